//! The trait of a cloud that runs the instances behind Nodes.

use std::{net::IpAddr, sync::Arc};

use controller_kit::Explanation;
use k8s_openapi::api::core::v1::Node;

/// A cloud's instances, as far as Nodes are concerned.
pub trait Instances: Send + Sync + 'static {
    /// The instance of a Node, from caches: the controller calls this often, so it must not wait.
    fn instance(&self, node: &Node) -> Instance;

    /// The cloud calls `requeue` from now on whenever an answer may have changed.
    fn subscribe(&self, requeue: Arc<dyn Fn() + Send + Sync>);
}

/// Whether a Node has an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    Found(InstanceMetadata),
    /// The cloud has no such instance; the explanation says how the cloud looked for it. A Node that waits for the cloud
    /// gets it as an Event.
    Missing(Explanation),
    /// The cloud cannot tell, because it has not read its own lists. The explanation, where there is one, says why it
    /// cannot read them; a Node that waits for the cloud gets it as an Event.
    Unknown(Option<Explanation>),
}

/// The facts about an instance that go into its Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// `<cloud>://<id>`; the controller writes it once.
    pub provider_id: String,
    /// `None` where the cloud does not say: the Node keeps its label.
    pub zone: Option<String>,
    /// As [`InstanceMetadata::zone`].
    pub region: Option<String>,
    /// Addresses for a Node that has no InternalIP of its own; the first of each family counts.
    pub internal_ips: Vec<IpAddr>,
    /// What a person can do where `internal_ips` is empty, for an Event: "start the agent of the instance".
    pub address_hint: Option<&'static str>,
}
