//! What a cloud that has machines implements.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

/// A cloud's machines, as far as Nodes are concerned.
pub trait Instances: Send + Sync + 'static {
    /// The machine of a Node, from caches: called often, must not wait.
    fn instance(&self, node: &Node) -> Instance;

    /// Calls `wake` from now on whenever an answer may have changed.
    fn subscribe(&self, wake: Arc<dyn Fn() + Send + Sync>);
}

/// Whether a Node has a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    Found(Machine),
    /// The cloud has no such machine, as far as can be seen; the sentence says how it was looked for.
    Missing(String),
}

/// What a Node learns from its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// `<cloud>://<id>`; written once.
    pub provider_id: String,
    /// `None` where the cloud does not say: then the Node keeps what it has.
    pub zone: Option<String>,
    /// As [`Machine::zone`].
    pub region: Option<String>,
    /// Addresses for a Node that has no InternalIP of its own; the first of each family counts.
    pub internal_ips: Vec<std::net::IpAddr>,
}
