//! Where a volume may be used, with `--topology`. Pure.
//!
//! Harvester attaches a volume to any machine, so a volume belongs to no zone. A PersistentVolume that says otherwise is
//! pinned for good: a volume says where it may be used only where its class asks for less than all Nodes
//! (docs/contract/csi-driver.md#topology).

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::annotations::{TOPOLOGY_REGION, TOPOLOGY_ZONE};
use tonic::Code;

use crate::{csi::Topology, refusal::Refusal};

/// The labels of a Node that count.
pub const KEYS: [&str; 2] = [TOPOLOGY_REGION, TOPOLOGY_ZONE];

/// Region and zone of a Node, as far as it has them.
pub type Segments = BTreeMap<String, String>;

/// Those among the labels of a Node.
pub fn of_node(labels: &BTreeMap<String, String>) -> Segments {
    let segment =
        |key: &str| Some((key.to_owned(), labels.get(key).filter(|value| !value.is_empty())?.clone()));
    KEYS.into_iter().filter_map(segment).collect()
}

/// As CSI has them; `None` for a Node without any.
pub fn message(segments: Segments) -> Option<Topology> {
    (!segments.is_empty()).then(|| Topology { segments: segments.into_iter().collect() })
}

/// Where a volume may be used whose class asks for one of these places: nothing where that is every Node.
///
/// # Errors
/// RESOURCE_EXHAUSTED where no Node is in any of them.
pub fn restricted(requisite: &[Topology], nodes: &BTreeSet<Segments>) -> Result<Vec<Topology>, Refusal> {
    if requisite.iter().all(|place| place.segments.is_empty()) {
        return Ok(vec![]);
    }
    let is_in = |node: &Segments, place: &Topology| {
        place.segments.iter().all(|(key, value)| node.get(key) == Some(value))
    };
    let covers = |place: &&Topology| nodes.iter().any(|node| is_in(node, place));
    let places: Vec<_> = requisite.iter().filter(covers).cloned().collect();
    if places.is_empty() {
        return Err(Refusal::new(
            Code::ResourceExhausted,
            format!(
                "no Node is in a place that the StorageClass allows: look at its allowedTopologies, and at the labels {} of \
                 the Nodes",
                KEYS.join(" and ")
            ),
        ));
    }
    // a Node that has no label yet says nothing about the class
    let mut labelled = nodes.iter().filter(|node| !node.is_empty());
    let is_everywhere = labelled.all(|node| places.iter().any(|place| is_in(node, place)));
    Ok(if is_everywhere { vec![] } else { places })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn segments(text: &str) -> Segments {
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').unwrap();
            let key = if key == "zone" { TOPOLOGY_ZONE } else { TOPOLOGY_REGION };
            (key.to_owned(), value.to_owned())
        };
        text.split_whitespace().map(pair).collect()
    }

    fn places(texts: &[&str]) -> Vec<Topology> {
        texts.iter().map(|text| Topology { segments: segments(text).into_iter().collect() }).collect()
    }

    // docs/contract/csi-driver.md#topology
    #[rstest]
    #[case::nothing_is_asked(&[], &["zone=a"], &[])]
    #[case::everything_is_allowed(&["zone=a", "zone=b"], &["zone=a", "zone=b"], &[])]
    #[case::a_node_without_labels(&["zone=a"], &["zone=a", ""], &[])]
    #[case::one_zone(&["zone=a"], &["zone=a", "zone=b"], &["zone=a"])]
    #[case::two_of_three(&["zone=a", "zone=b"], &["zone=a", "zone=b", "zone=c"], &["zone=a", "zone=b"])]
    #[case::an_empty_zone_is_left_out(&["zone=a", "zone=x"], &["zone=a", "zone=b"], &["zone=a"])]
    #[case::a_region_has_zones(&["region=r"], &["region=r zone=a", "region=r zone=b"], &[])]
    #[case::a_zone_of_a_region(&["region=r zone=a"], &["region=r zone=a", "region=s zone=a"], &["region=r zone=a"])]
    fn a_volume_is_confined_where_its_class_asks_for_less_than_all_nodes(
        #[case] requisite: &[&str],
        #[case] nodes: &[&str],
        #[case] expected: &[&str],
    ) {
        let nodes = nodes.iter().map(|text| segments(text)).collect();
        assert_eq!(restricted(&places(requisite), &nodes).unwrap(), places(expected));
    }

    #[test]
    fn a_place_without_nodes_is_refused() {
        let refusal = restricted(&places(&["zone=x"]), &BTreeSet::from([segments("zone=a")])).unwrap_err();
        assert_eq!(refusal.code, Code::ResourceExhausted);
        assert!(restricted(&places(&["zone=x"]), &BTreeSet::new()).is_err());
    }

    #[test]
    fn of_the_labels_of_a_node_region_and_zone_count() {
        let labels = [("kubernetes.io/hostname", "n"), (TOPOLOGY_ZONE, "a"), (TOPOLOGY_REGION, "")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(of_node(&labels), segments("zone=a"));
        assert_eq!(message(Segments::new()), None);
    }
}
