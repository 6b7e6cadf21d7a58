//! The labels and annotations of a Node that its instance gives, and which labels the controller may take away again.
//!
//! A Node does not show who wrote a label. So the controller keeps what it wrote in an annotation, and removes only
//! that, once the instance says that it is no longer true (docs/contract/cloud-controller-manager.md#V4 and #N16).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::InstanceMetadata;

/// Both generations of the keys; old programs read the second.
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const INSTANCE_TYPE: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

/// Labels to write and (`None`) to remove, with the annotation that says so, and other annotations to write.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LabelChanges {
    pub(super) labels: BTreeMap<String, Option<String>>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl LabelChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }

    /// The annotations alone that differ on `node`.
    pub(super) fn of_annotations(node: &Node, metadata: &InstanceMetadata) -> Self {
        let there = node.annotations();
        let differs = |(key, value): &(&String, &String)| there.get(*key) != Some(*value);
        let annotations = metadata.annotations.iter().filter(differs);
        let annotations = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        Self { annotations, ..Self::default() }
    }

    /// What differs on `node`. A label that the instance does not mention stays, unless the controller wrote it and the
    /// instance has mentioned everything.
    pub(super) fn of(node: &Node, metadata: &InstanceMetadata) -> Self {
        let there = node.labels();
        let before = metadata.record.and_then(|key| node.annotations().get(key)).map(|text| written(text));
        let before = before.unwrap_or_default();
        let is_anothers = |key: &str, value: &str| {
            there.get(key).is_some_and(|there| there != value && before.get(key) != Some(there))
        };
        let mut wanted = metadata.labels.clone();
        let topology = [(&metadata.zone, ZONE), (&metadata.region, REGION)];
        // k3s and people write types of their own
        let own_type = metadata.instance_type.clone();
        let own_type = own_type.filter(|value| !INSTANCE_TYPE.into_iter().any(|key| is_anothers(key, value)));
        for (value, keys) in topology.into_iter().chain([(&own_type, INSTANCE_TYPE)]) {
            if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
                wanted.extend(keys.map(|key| (key.to_owned(), value.clone())));
            }
        }
        let (mut labels, mut after) = (BTreeMap::new(), before.clone());
        for (key, value) in wanted.iter().filter(|(key, value)| there.get(*key) != Some(*value)) {
            labels.insert(key.clone(), Some(value.clone()));
            after.insert(key.clone(), value.clone());
        }
        let untrue = before.iter().filter(|(key, _)| metadata.has_all_labels && !wanted.contains_key(*key));
        for (key, value) in untrue {
            after.remove(key);
            if there.get(key) == Some(value) {
                labels.insert(key.clone(), None);
            }
        }
        let record = metadata.record.filter(|_| !labels.is_empty() && after != before);
        let text = |after| serde_json::to_string(after).expect("a map of texts is JSON");
        let Self { mut annotations, .. } = Self::of_annotations(node, metadata);
        annotations.extend(record.map(|key| (key.to_owned(), text(&after))));
        Self { labels, annotations }
    }
}

/// What cannot be read tells of no label.
fn written(text: &str) -> BTreeMap<String, String> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const RECORD: &str = "cloud/labels";

    fn node(labels: &Value, record: &str) -> Node {
        let json = json!({"metadata": {"labels": labels, "annotations": {RECORD: record}}});
        serde_json::from_value(json).unwrap()
    }

    fn metadata(zone: Option<&str>, instance_type: Option<&str>, rack: Option<&str>) -> InstanceMetadata {
        InstanceMetadata {
            zone: zone.map(str::to_owned),
            instance_type: instance_type.map(str::to_owned),
            labels: rack.map(|rack| ("example.com/rack".to_owned(), rack.to_owned())).into_iter().collect(),
            record: Some(RECORD),
            has_all_labels: true,
            ..InstanceMetadata::default()
        }
    }

    fn rack(value: &str) -> Value {
        json!({"example.com/rack": value})
    }

    // docs/contract/cloud-controller-manager.md#N16 and #V4
    #[rstest]
    #[case::new(json!({}), "", Some("r1"), Some("r1"), Some(r#"{"example.com/rack":"r1"}"#))]
    #[case::in_step(rack("r1"), r#"{"example.com/rack":"r1"}"#, Some("r1"), None, None)]
    #[case::moved(
        rack("r1"),
        r#"{"example.com/rack":"r1"}"#,
        Some("r2"),
        Some("r2"),
        Some(r#"{"example.com/rack":"r2"}"#)
    )]
    #[case::no_longer_true(rack("r1"), r#"{"example.com/rack":"r1"}"#, None, Some(""), Some("{}"))]
    #[case::a_person_changed_it(rack("mine"), r#"{"example.com/rack":"r1"}"#, None, None, None)]
    #[case::a_person_wrote_it(rack("mine"), "", None, None, None)]
    #[case::a_record_that_is_none(rack("r1"), "[1", None, None, None)]
    fn a_label_that_is_no_longer_true_goes_where_the_controller_wrote_it(
        #[case] labels: Value,
        #[case] record: &str,
        #[case] given: Option<&str>,
        #[case] written: Option<&str>,
        #[case] recorded: Option<&str>,
    ) {
        let changes = LabelChanges::of(&node(&labels, record), &metadata(None, None, given));
        let expected = written.map(|value| Some(value.to_owned()).filter(|value| !value.is_empty()));
        assert_eq!(changes.labels.get("example.com/rack"), expected.as_ref());
        assert_eq!(changes.labels.len(), usize::from(written.is_some()));
        assert_eq!(changes.annotations.get(RECORD).map(String::as_str), recorded);
    }

    #[test]
    fn an_instance_that_has_not_said_everything_takes_no_label_away() {
        let node = node(&rack("r1"), r#"{"example.com/rack":"r1"}"#);
        let silent = InstanceMetadata { has_all_labels: false, ..metadata(None, None, None) };
        assert!(LabelChanges::of(&node, &silent).is_empty());
        let without_record = InstanceMetadata { record: None, ..metadata(None, None, None) };
        assert!(LabelChanges::of(&node, &without_record).is_empty());
    }

    // docs/contract/cloud-controller-manager.md#N17
    #[rstest]
    #[case::none(json!({}), "", 2)]
    #[case::anothers(json!({"node.kubernetes.io/instance-type": "k3s"}), "", 0)]
    #[case::ours(json!({"node.kubernetes.io/instance-type": "old", "beta.kubernetes.io/instance-type": "old"}),
        r#"{"node.kubernetes.io/instance-type": "old", "beta.kubernetes.io/instance-type": "old"}"#, 2)]
    #[case::in_step(json!({"node.kubernetes.io/instance-type": "big", "beta.kubernetes.io/instance-type": "big"}), "", 0)]
    fn an_instance_type_that_somebody_else_wrote_stays(
        #[case] labels: Value,
        #[case] record: &str,
        #[case] written: usize,
    ) {
        let changes = LabelChanges::of(&node(&labels, record), &metadata(None, Some("big"), None));
        assert_eq!(changes.labels.len(), written, "{changes:?}");
    }

    #[rstest]
    #[case::new(json!({}), &[("cloud/place", "here")])]
    #[case::in_step(json!({"cloud/place": "here", "other": "1"}), &[])]
    #[case::moved(json!({"cloud/place": "there"}), &[("cloud/place", "here")])]
    fn annotations_of_the_instance_are_written_where_they_differ(
        #[case] there: Value,
        #[case] written: &[(&str, &str)],
    ) {
        let node: Node = serde_json::from_value(json!({"metadata": {"annotations": there}})).unwrap();
        let annotations = BTreeMap::from([("cloud/place".to_owned(), "here".to_owned())]);
        let metadata = InstanceMetadata { annotations, ..metadata(None, None, None) };
        let written = written.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let expected = LabelChanges { annotations: written, ..LabelChanges::default() };
        assert_eq!(LabelChanges::of(&node, &metadata), expected);
        assert_eq!(expected.is_empty(), expected.annotations.is_empty());
    }

    #[test]
    fn zone_and_region_are_written_under_both_generations_of_keys() {
        let changes = LabelChanges::of(&node(&json!({}), ""), &metadata(Some("a"), None, None));
        assert_eq!(changes.labels.into_keys().collect::<Vec<_>>(), [ZONE[1], ZONE[0]]);
    }
}
