//! Which clusters have an export on: an annotation of its NetworkFilesystem names them
//! ([`harvester_api::annotations::CSI_EXPORT_ON_FOR`]). Pure.
//!
//! Each cluster sees its own VolumeAttachments alone, so the last of those that are named switches the export off, and what
//! is named for another one is neither deleted nor made this cluster's. The Go driver names nobody, nor does a cluster
//! without a name of its own.

use std::collections::BTreeSet;

use harvester_api::annotations::CSI_EXPORT_ON_FOR;
use kube::ResourceExt;

use crate::host::kinds::NetworkFilesystem;

/// More than any text of ours.
const LONGEST: usize = 4096;

pub(super) fn is_on(export: &NetworkFilesystem) -> bool {
    export.spec.desired_state == "Enabled"
}

/// The clusters that have the export on.
pub(crate) fn clusters(export: &NetworkFilesystem) -> BTreeSet<String> {
    let text = export.annotations().get(CSI_EXPORT_ON_FOR).filter(|text| text.len() <= LONGEST);
    text.into_iter()
        .flat_map(|text| text.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether the export is on for another cluster than `own`. Where it is on and nobody is named, it may be any that has
/// machines in the namespace.
pub(crate) fn is_of_others(own: &str, export: &NetworkFilesystem, has_others: bool) -> bool {
    let clusters = clusters(export);
    is_on(export)
        && if clusters.is_empty() { has_others } else { clusters.iter().any(|cluster| cluster != own) }
}

/// The names that the export is to have before a node of this cluster uses it. `None` where it is on with them. `label` is
/// the cluster's label on the claim.
pub(super) fn lacks(
    own: Option<&str>,
    export: &NetworkFilesystem,
    label: Option<&str>,
) -> Option<BTreeSet<String>> {
    let (is_on, clusters) = (is_on(export), clusters(export));
    let joined = joined(own, is_on, &clusters, label);
    (!is_on || joined != clusters).then_some(joined)
}

/// The clusters that have the export on when this one has it too. One that somebody has on who is not named is left to
/// them, unless the claim is ours.
fn joined(
    own: Option<&str>,
    is_on: bool,
    clusters: &BTreeSet<String>,
    label: Option<&str>,
) -> BTreeSet<String> {
    let mut all = if is_on { clusters.clone() } else { BTreeSet::new() };
    if let Some(own) = own
        && (!is_on || !clusters.is_empty() || label == Some(own))
    {
        all.insert(own.to_owned());
    }
    all
}

/// What the last node of this cluster leaves behind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// The export is none of this cluster's.
    Nothing,
    /// These have it on.
    On(BTreeSet<String>),
    Off,
}

pub(super) fn left(own: Option<&str>, clusters: &BTreeSet<String>, label: Option<&str>) -> Leaves {
    let Some(own) = own else {
        // a cluster without a name names nobody either
        return if clusters.is_empty() { Leaves::Off } else { Leaves::Nothing };
    };
    let mut rest = clusters.clone();
    match rest.remove(own) {
        true if rest.is_empty() => Leaves::Off,
        true => Leaves::On(rest),
        // the Go driver names nobody
        false if clusters.is_empty() && label == Some(own) => Leaves::Off,
        false => Leaves::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[rstest]
    #[case::switched_on(false, &[], None, &["demo"])]
    #[case::switched_on_after_others(false, &["shop"], None, &["demo"])]
    #[case::beside_another(true, &["shop"], None, &["demo", "shop"])]
    #[case::known(true, &["demo"], None, &["demo"])]
    #[case::of_somebody_who_is_not_named(true, &[], None, &[])]
    #[case::of_our_own_claim(true, &[], Some("demo"), &["demo"])]
    fn a_cluster_is_named_that_has_an_export_on(
        #[case] is_on: bool,
        #[case] clusters: &[&str],
        #[case] label: Option<&str>,
        #[case] expected: &[&str],
    ) {
        assert_eq!(joined(Some("demo"), is_on, &names(clusters), label), names(expected));
        assert!(!joined(None, is_on, &names(clusters), label).contains("demo") || clusters.contains(&"demo"));
    }

    #[rstest]
    #[case::ours(&["demo"], None, Leaves::Off)]
    #[case::beside_another(&["demo", "shop"], None, Leaves::On(names(&["shop"])))]
    #[case::anothers(&["shop"], None, Leaves::Nothing)]
    #[case::anothers_though_the_claim_is_ours(&["shop"], Some("demo"), Leaves::Nothing)]
    #[case::of_the_go_driver(&[], Some("demo"), Leaves::Off)]
    #[case::of_somebody_who_is_not_named(&[], None, Leaves::Nothing)]
    fn the_last_cluster_that_has_an_export_on_switches_it_off(
        #[case] clusters: &[&str],
        #[case] label: Option<&str>,
        #[case] expected: Leaves,
    ) {
        assert_eq!(left(Some("demo"), &names(clusters), label), expected);
        let nameless = if clusters.is_empty() { Leaves::Off } else { Leaves::Nothing };
        assert_eq!(left(None, &names(clusters), label), nameless);
    }

    #[rstest]
    #[case::off("Disabled", "shop", true, false)]
    #[case::ours("Enabled", "demo", true, false)]
    #[case::anothers("Enabled", "shop", false, true)]
    #[case::ours_and_anothers("Enabled", "demo,shop", false, true)]
    #[case::of_nobody_who_is_named("Enabled", "", true, true)]
    #[case::of_nobody_else("Enabled", "", false, false)]
    fn an_export_that_is_on_for_another_cluster_is_theirs(
        #[case] state: &str,
        #[case] on_for: &str,
        #[case] has_others: bool,
        #[case] expected: bool,
    ) {
        let export = serde_json::json!({"metadata": {"name": "pv", "annotations": {CSI_EXPORT_ON_FOR: on_for}},
            "spec": {"desiredState": state}});
        let export: NetworkFilesystem = serde_json::from_value(export).unwrap();
        assert_eq!(is_of_others("demo", &export, has_others), expected);
    }
}
