//! The end of Nodes: one whose instance is stopped gets the taint `node.cloudprovider.kubernetes.io/shutdown`, one
//! whose instance is gone is deleted. Only a Node that is not ready is judged at all.
//!
//! The Go program asked its cloud about every such Node every five seconds
//! (docs/contract/cloud-controller-manager.md#18.5 and #N12). Here watches of Nodes and instances say when to look.

mod controller;
mod decide;

pub use controller::{DELETE_NODES, NodeLifecycle};
