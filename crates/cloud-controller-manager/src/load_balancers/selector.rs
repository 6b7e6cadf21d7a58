//! The VMs behind the eligible Nodes, as a label selector.
//!
//! One label of the cluster where that means exactly the VMs of the eligible Nodes: then a Node that comes or goes
//! costs no write. Else the VMs by name.

use std::collections::{BTreeMap, BTreeSet};

use guest_vms::Backend;
use harvester_api::labels;

use crate::cluster::GuestCluster;

/// `spec.backendServerSelector`: keys are ANDed, values ORed.
pub type Selector = BTreeMap<String, Vec<String>>;

/// The selector for `eligible` VMs (by name) among all that are there.
///
/// # Errors
/// Names of the VMs that no label selects.
pub fn select(
    cluster: &GuestCluster,
    eligible: &BTreeSet<String>,
    backends: &[Backend],
) -> Result<Selector, Vec<String>> {
    let label = cluster.label_value();
    let labelled = |backend: &&Backend| backend.cluster.as_deref() == Some(&label);
    let of_cluster: BTreeSet<String> =
        backends.iter().filter(labelled).map(|backend| backend.vm.clone()).collect();
    if !cluster.is_anonymous() && of_cluster == *eligible {
        return Ok(BTreeMap::from([(labels::GUEST_CLUSTER.to_owned(), vec![label])]));
    }
    let named =
        |vm: &str| backends.iter().any(|backend| backend.vm == vm && backend.name.as_deref() == Some(vm));
    let unnamed: Vec<String> = eligible.iter().filter(|vm| !named(vm)).cloned().collect();
    if !unnamed.is_empty() {
        return Err(unnamed);
    }
    Ok(BTreeMap::from([(labels::VM_NAME.to_owned(), eligible.iter().cloned().collect())]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn backend(vm: &str, cluster: Option<&str>, named: bool) -> Backend {
        Backend { vm: vm.into(), cluster: cluster.map(str::to_owned), name: named.then(|| vm.to_owned()) }
    }

    fn three() -> Vec<Backend> {
        vec![
            backend("c", Some("prod"), true),
            backend("a", Some("prod"), true),
            backend("x", Some("test"), true),
        ]
    }

    const BY_CLUSTER: &str = "guestcluster.harvesterhci.io/name";
    const BY_NAME: &str = "harvesterhci.io/vmName";

    #[rstest]
    #[case::exactly_the_cluster("prod", &["a", "c"], three(), Ok((BY_CLUSTER, vec!["prod"])))]
    #[case::an_excluded_node("prod", &["a"], three(), Ok((BY_NAME, vec!["a"])))]
    #[case::a_vm_without_label("prod", &["a", "c", "x"], three(), Ok((BY_NAME, vec!["a", "c", "x"])))]
    #[case::nobody_chose_a_name("kubernetes", &["a"], vec![backend("a", Some("kubernetes"), true)],
        Ok((BY_NAME, vec!["a"])))]
    #[case::no_labels_at_all("prod", &["a", "b"], vec![backend("a", None, true), backend("b", None, false)],
        Err(vec!["b"]))]
    // docs/contract/node-driver.md#B13: the node driver labels VMs with what a label can have
    #[case::a_name_that_no_label_can_have("a b", &["a"], vec![backend("a", Some("hash_EKP58g_z"), false)],
        Ok((BY_CLUSTER, vec!["hash_EKP58g_z"])))]
    #[case::labelled_by_cluster_only("prod", &["a"], vec![backend("a", Some("prod"), false)],
        Ok((BY_CLUSTER, vec!["prod"])))]
    fn selectors(
        #[case] cluster: &str,
        #[case] eligible: &[&str],
        #[case] backends: Vec<Backend>,
        #[case] expected: Result<(&str, Vec<&str>), Vec<&str>>,
    ) {
        let eligible = eligible.iter().map(|name| (*name).to_owned()).collect();
        let selector = select(&GuestCluster::new(cluster), &eligible, &backends);
        let owned = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let expected =
            expected.map(|(key, values)| BTreeMap::from([(key.to_owned(), owned(values))])).map_err(owned);
        assert_eq!(selector, expected);
    }
}
