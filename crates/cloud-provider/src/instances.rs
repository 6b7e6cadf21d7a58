//! The trait of a cloud that runs the instances behind Nodes.

use std::{collections::BTreeMap, sync::Arc};

use controller_kit::Explanation;
use k8s_openapi::api::core::v1::{Node, NodeAddress};

/// A cloud's instances, as far as Nodes are concerned.
pub trait Instances: Send + Sync + 'static {
    /// The instance of a Node, from caches: the controller calls this often, so it must not wait.
    fn instance(&self, node: &Node) -> Instance;

    /// What became of the instance of a Node, from caches too. The default answer taints and removes no Node.
    fn state(&self, node: &Node) -> InstanceState {
        let _ = node;
        InstanceState::Unknown
    }

    /// The cloud calls `requeue` from now on whenever an answer may have changed.
    fn subscribe(&self, requeue: Arc<dyn Fn() + Send + Sync>);
}

/// Whether a Node has an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum Instance {
    Found(Box<InstanceMetadata>),
    /// The cloud has no such instance; the explanation says how the cloud looked for it. A Node that waits for the cloud
    /// gets it as an Event.
    Missing(Explanation),
    /// The cloud cannot tell, because it has not read its own lists. The explanation, where there is one, says why it
    /// cannot read them; a Node that waits for the cloud gets it as an Event.
    Unknown(Option<Explanation>),
    /// The Node is of another cloud, or in somebody else's care: the controller leaves it alone. The Node gets the
    /// explanation, where there is one, as an Event once.
    Foreign(Option<Explanation>),
}

/// What became of the instance of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// It runs, or it is about to.
    Running,
    /// It is stopped until somebody starts it.
    Stopped,
    /// It is gone for good, and the cloud is sure that it was this Node's. The words, for an Event, go on after "node a: ".
    Gone(String),
    /// It is not there, and the cloud is not sure that it was this Node's. A Node that is not ready gets the explanation
    /// as an Event, and stays.
    Doubtful(Explanation),
    /// The Node belongs to no instance of this cloud: it is left alone.
    Foreign,
    /// The cloud cannot tell now.
    Unknown,
}

/// The facts about an instance that go into its Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstanceMetadata {
    /// `<cloud>://<id>`; the controller writes it once.
    pub provider_id: String,
    /// `None` where the cloud does not say: the Node keeps its label.
    pub zone: Option<String>,
    /// As [`InstanceMetadata::zone`].
    pub region: Option<String>,
    /// The kind of machine, for the label `node.kubernetes.io/instance-type`. A Node keeps what somebody else wrote there.
    pub instance_type: Option<String>,
    /// More labels.
    pub labels: BTreeMap<String, String>,
    /// The cloud has named all labels that the instance has now: one that the controller wrote, and that is not named, is
    /// no longer true and goes.
    pub has_all_labels: bool,
    /// Annotations that the Node should have. The controller writes those that differ, and removes none.
    pub annotations: BTreeMap<String, String>,
    /// The annotation in which the controller keeps the labels that it wrote on a Node; without one it removes none.
    pub record: Option<&'static str>,
    /// The IP addresses that the Node should have, in their order, by the cloud's own rules and by what the kubelet asks
    /// for in the annotation `alpha.kubernetes.io/provided-node-ip`; the controller adds the Hostname. Empty where the
    /// cloud cannot say: the Node keeps its addresses.
    pub addresses: Vec<NodeAddress>,
    /// Why `addresses` is empty, or has no InternalIP; for Events.
    pub address_problem: Option<AddressProblem>,
    /// What else a person should know about this Node; for Events.
    pub remarks: Vec<Explanation>,
}

/// Why an instance gives its Node no address, or no InternalIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressProblem {
    /// The cause and the next step, as the part of a sentence: "its agent is silent: start it".
    pub why: String,
    /// An instance that starts or stops has this problem for a while. Only a Node that waits for its first address is
    /// told of it.
    pub is_passing: bool,
}
