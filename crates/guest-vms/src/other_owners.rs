//! Nodes that are none of Harvester's: of another cloud, or in the care of an administrator. No VM is looked for, read or
//! watched for them, whatever VM has their name, but for a Node in an administrator's care that has a VM's provider ID.
//!
//! The Go program serves every Node by its name, whatever its provider ID says. That of k3s and RKE2 names a
//! distribution and no cloud, so those Nodes are served as before (docs/contract/cloud-controller-manager.md#N19).

use harvester_api::{labels, names::PROVIDER_ID_PREFIX};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{addresses::shown, vms::provider_id};

/// What stands before `://` in a provider ID that a Node of this cloud may have.
const SCHEMES: [&str; 3] = ["harvester", "k3s", "rke2"];

/// The provider ID of a Node, in quotes and for people, if another cloud gave it.
pub fn id_of_other_cloud(node: &Node) -> Option<String> {
    is_of_other_cloud(node).then(|| shown(provider_id(node)))
}

/// Whether a provider ID was given by another cloud.
pub fn is_id_of_other_cloud(id: &str) -> bool {
    let scheme = id.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && !SCHEMES.contains(&scheme))
}

fn is_of_other_cloud(node: &Node) -> bool {
    is_id_of_other_cloud(provider_id(node))
}

/// Whether an administrator has said that the Node is none of the cloud's affair.
pub fn is_externally_managed(node: &Node) -> bool {
    node.labels().get(labels::EXTERNALLY_MANAGED).is_some_and(|value| value == "true")
}

/// Whether a VM of Harvester may be this Node. One that is externally managed and has the provider ID of a VM still gets
/// the traffic of load balancers.
pub(crate) fn may_be_a_vm(node: &Node) -> bool {
    !is_of_other_cloud(node)
        && (!is_externally_managed(node) || provider_id(node).starts_with(PROVIDER_ID_PREFIX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // docs/contract/cloud-controller-manager.md#N19
    #[rstest]
    #[case::new("", "", true)]
    #[case::ours("harvester://d4b50d98-39ec-4d88-8098-36579de5db4a", "", true)]
    #[case::of_k3s("k3s://worker-1", "", true)]
    #[case::of_rke2("rke2://worker-1", "", true)]
    #[case::without_scheme("worker-1", "", true)]
    #[case::with_an_empty_scheme("://worker-1", "", true)]
    #[case::of_aws("aws:///eu-west-1a/i-0123", "", false)]
    #[case::of_vsphere("vsphere://4237", "", false)]
    #[case::of_a_cloud_with_a_name_like_ours("harvester2://1", "", false)]
    #[case::metal("", "true", false)]
    #[case::metal_under_k3s("k3s://worker-1", "true", false)]
    #[case::a_vm_in_an_administrators_care("harvester://1", "true", true)]
    #[case::not_managed("", "false", true)]
    fn which_nodes_may_be_vms_of_harvester(
        #[case] provider_id: &str,
        #[case] managed: &str,
        #[case] expected: bool,
    ) {
        let node = json!({"metadata": {"name": "worker-1", "labels": {labels::EXTERNALLY_MANAGED: managed}},
            "spec": {"providerID": provider_id}});
        assert_eq!(may_be_a_vm(&serde_json::from_value(node).unwrap()), expected);
    }
}
