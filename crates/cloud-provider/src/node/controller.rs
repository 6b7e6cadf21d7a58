//! The running part of the Node controller.

use std::sync::{Arc, Mutex};

use controller_kit::{Action, Cache, Change, ObjectKey, QueueMetrics, Recorder};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use program::TaskGroup;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    AFTER_CONFLICT,
    decide::{Step, decide},
    join::Joined,
    labels::LabelChanges,
    start::{self, Controller},
};
use crate::{Instances, event::EventDeduplicator};

/// Rounds of see, decide, act in one reconcile.
const ROUNDS: usize = 4;

/// The duties of the controller; a flag can switch each off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duties {
    /// Finish Nodes that wait for their cloud.
    pub initialise: bool,
    /// Keep the labels true.
    pub follow_topology: bool,
}

/// Keeps Nodes in step with the instances of the cloud `C`.
pub struct NodeController<C> {
    cloud: Arc<C>,
    nodes: Cache<Node>,
    client: Client,
    events: EventDeduplicator,
    duties: Duties,
}

#[derive(Debug, thiserror::Error)]
#[error("{step:?} for node {node}")]
pub(in crate::node) struct Error {
    step: Box<Step>,
    node: String,
    source: kube::Error,
}

impl<C: Instances> NodeController<C> {
    /// Starts the controller; it works until `tasks` ends.
    pub fn start(
        tasks: &TaskGroup,
        client: Client,
        cloud: &Arc<C>,
        nodes: &Cache<Node>,
        recorder: Recorder,
        workers: usize,
        duties: Duties,
    ) -> QueueMetrics {
        let controller = Arc::new(Self {
            cloud: cloud.clone(),
            nodes: nodes.clone(),
            client,
            events: EventDeduplicator::new(recorder),
            duties,
        });
        let queue = start::start(&controller, nodes, tasks, workers, matters);
        let joined = Arc::new(Mutex::new(Joined::default()));
        let delay = move || joined.lock().expect("no panic while joining").delay(Instant::now());
        cloud.subscribe(Arc::new(start::waking(&queue, nodes, delay)));
        queue.metrics().clone()
    }
}

impl<C: Instances> Controller for NodeController<C> {
    type Error = Error;

    fn events(&self) -> &EventDeduplicator {
        &self.events
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        for _ in 0..ROUNDS {
            let Some(node) = self.nodes.get(&key) else { return Ok(Action::AwaitChange) };
            let plan = decide(&node, &self.cloud.instance(&node), self.duties);
            let settled = plan.steps.is_empty();
            for step in plan.steps {
                tracing::info!(node = %key, ?step);
                match self.act(&node, &step).await {
                    Ok(written) => {
                        self.nodes.wrote(written);
                    }
                    Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                        return Ok(Action::RequeueAfter(AFTER_CONFLICT));
                    }
                    Err(source) => return Err(Error { step: Box::new(step), node: key.to_string(), source }),
                }
            }
            let about = node.object_ref(&());
            for event in &plan.events {
                self.events.record(&about, event);
            }
            if let Some(notice) = &plan.notice {
                self.events.record_outcome(&about, notice);
            }
            if settled {
                return Ok(Action::AwaitChange);
            }
        }
        Ok(Action::RequeueAfter(AFTER_CONFLICT))
    }
}

impl<C: Instances> NodeController<C> {
    async fn act(&self, node: &Node, step: &Step) -> kube::Result<Node> {
        let (api, how) = (Api::<Node>::all(self.client.clone()), PatchParams::default());
        let (name, patch) = (node.name_any(), Patch::Merge(patch(node, step)));
        match step {
            Step::Addresses(_) => api.patch_status(&name, &how, &patch).await,
            Step::Label(_) | Step::Initialise { .. } => api.patch(&name, &how, &patch).await,
        }
    }
}

/// The merge patch of a step. It holds for the version that was seen: the lists in it are written as a whole, and a
/// Node that was made again under the name may have another instance.
fn patch(node: &Node, step: &Step) -> Value {
    let mut patch = match step {
        Step::Addresses(addresses) => json!({"status": {"addresses": addresses}}),
        Step::Label(changes) => labelled(changes),
        Step::Initialise { provider_id, labels, taints } => {
            let mut spec = json!({"taints": if taints.is_empty() { Value::Null } else { json!(taints) }});
            if let Some(id) = provider_id {
                spec["providerID"] = json!(id);
            }
            let mut patch = labelled(labels);
            patch["spec"] = spec;
            patch
        }
    };
    patch["metadata"]["resourceVersion"] = json!(node.resource_version());
    patch
}

fn labelled(changes: &LabelChanges) -> Value {
    let mut patch = json!({"metadata": {"labels": changes.labels}});
    if !changes.annotations.is_empty() {
        patch["metadata"]["annotations"] = json!(changes.annotations);
    }
    patch
}

/// Whether a change is about more than a heartbeat.
fn matters(change: &Change<Node>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    let addresses = |node: &Node| node.status.as_ref().and_then(|status| status.addresses.clone());
    (old.uid(), old.labels(), old.annotations(), &old.spec)
        != (new.uid(), new.labels(), new.annotations(), &new.spec)
        || addresses(old) != addresses(new)
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::addresses(Step::Addresses(vec![]), json!({"status": {"addresses": []}, "metadata": {"resourceVersion": "7"}}))]
    #[case::labels(Step::Label(LabelChanges::default()), json!({"metadata": {"labels": {}, "resourceVersion": "7"}}))]
    #[case::initialise(
        Step::Initialise { provider_id: None, labels: LabelChanges::default(), taints: vec![] },
        json!({"spec": {"taints": null}, "metadata": {"labels": {}, "resourceVersion": "7"}}))]
    fn every_patch_holds_for_the_version_that_was_seen(#[case] step: Step, #[case] expected: Value) {
        let node = json!({"metadata": {"name": "worker-1", "resourceVersion": "7"}});
        assert_eq!(patch(&serde_json::from_value(node).unwrap(), &step), expected);
    }
}
