//! Nodes learn from their instances: provider ID, labels (zone, region, type), and addresses. So a Node that the kubelet registered
//! as uninitialised becomes usable.
//!
//! The controller follows labels and addresses for as long as the Node lives: an instance moves, by a PATCH of the
//! labels (the Go program tainted the Node to have it initialised again,
//! docs/contract/cloud-controller-manager.md#V2 and #V3), and gets other addresses, by a PATCH of the whole list
//! (docs/contract/cloud-controller-manager.md#18.4).

mod controller;
mod decide;
mod join;
mod labels;
mod lifecycle;
mod start;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;

pub use controller::{Duties, NodeController};
pub use lifecycle::{DELETE_NODES, NodeLifecycle};

/// Changes of instances within this time after the first are joined.
const JOIN: Duration = Duration::from_millis(200);
/// After a conflict the watch brings the newer version; this is the backstop for a watch that does not.
const AFTER_CONFLICT: Duration = Duration::from_secs(5);
/// Set by a kubelet that expects a cloud to finish its Node.
const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Whether the Node waits for its cloud to finish it.
pub fn waits_for_cloud(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == UNINITIALISED)
}
