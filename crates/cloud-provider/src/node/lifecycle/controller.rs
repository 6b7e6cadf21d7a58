//! The running part of the life cycle of Nodes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use controller_kit::{Action, Cache, Change, ObjectKey, PendingEvent, QueueMetrics, Recorder, error_message};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use program::{
    TaskGroup,
    capabilities::{Capabilities, Right},
};
use serde_json::{Value, json};

use super::decide::{Step, decide, is_ready};
use crate::{
    Instances,
    event::EventDeduplicator,
    node::{
        AFTER_CONFLICT, JOIN,
        start::{self, Controller},
    },
};

/// The right to remove Nodes; without it they stay, and an Event says so.
pub const DELETE_NODES: Right = Right::new("delete", "", "nodes");

/// Taints Nodes whose instance of the cloud `C` is stopped, and removes those whose instance is gone.
pub struct NodeLifecycle<C> {
    cloud: Arc<C>,
    nodes: Cache<Node>,
    client: Client,
    events: EventDeduplicator,
    capabilities: Capabilities,
    /// The server answers no questions about rights: the next deletion is tried, although the last was refused.
    is_try_due: AtomicBool,
    role: &'static str,
}

#[derive(Debug, thiserror::Error)]
#[error("{step:?} for node {node}")]
pub(in crate::node) struct Error {
    step: Box<Step>,
    node: String,
    source: kube::Error,
}

impl<C: Instances> NodeLifecycle<C> {
    /// Starts the controller; it works until `tasks` ends. `nodes` need no conditions but `Ready`. `capabilities` are
    /// asked for [`DELETE_NODES`]; `role` names the role that should grant it, for people: "ClusterRole ccm".
    pub fn start(
        tasks: &TaskGroup,
        client: Client,
        cloud: &Arc<C>,
        nodes: &Cache<Node>,
        recorder: Recorder,
        capabilities: &Capabilities,
        role: &'static str,
    ) -> QueueMetrics {
        let controller = Arc::new(Self {
            cloud: cloud.clone(),
            nodes: nodes.clone(),
            client,
            events: EventDeduplicator::new(recorder),
            capabilities: capabilities.clone(),
            is_try_due: AtomicBool::new(false),
            role,
        });
        let queue = start::start(&controller, nodes, tasks, 1, matters);
        let everybody = start::waking(&queue, nodes, || JOIN);
        cloud.subscribe(Arc::new(everybody.clone()));
        capabilities.on_change(everybody.clone());
        let woken = everybody.clone();
        capabilities.on_try(move |right| {
            if *right == DELETE_NODES {
                controller.is_try_due.store(true, Ordering::SeqCst);
                woken();
            }
        });
        nodes.on_change(move |change| {
            if is_new_instance(change) {
                everybody();
            }
        });
        queue.metrics().clone()
    }
}

impl<C: Instances> Controller for NodeLifecycle<C> {
    type Error = Error;

    fn events(&self) -> &EventDeduplicator {
        &self.events
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Action::AwaitChange) };
        let may_delete = self.capabilities.allows(&DELETE_NODES) || self.is_try_due.load(Ordering::SeqCst);
        let plan = decide(&node, || self.cloud.state(&node), may_delete, self.role);
        let about = node.object_ref(&());
        if let Some(event) = &plan.event {
            self.events.record(&about, event);
        }
        let Some(step) = plan.step else { return Ok(Action::AwaitChange) };
        tracing::info!(node = %key, ?step);
        let deletes = step == Step::Delete;
        if deletes {
            self.is_try_due.store(false, Ordering::SeqCst);
        }
        match self.act(&node, &step).await {
            Ok(()) => {
                if deletes {
                    self.capabilities.worked(&DELETE_NODES);
                }
                Ok(Action::AwaitChange)
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(Action::RequeueAfter(AFTER_CONFLICT))
            }
            // decided again without the right, the Node is told
            Err(kube::Error::Api(status)) if status.is_forbidden() && deletes => {
                self.capabilities.refused(&DELETE_NODES);
                Ok(Action::RequeueAfter(JOIN))
            }
            Err(source) => {
                if deletes {
                    let why = format!("node {} could not be removed: {}", key.name, error_message(&source));
                    self.events.record(&about, &PendingEvent::warning("DeletingNodeFailed", why));
                }
                Err(Error { step: Box::new(step), node: key.to_string(), source })
            }
        }
    }
}

impl<C: Instances> NodeLifecycle<C> {
    async fn act(&self, node: &Node, step: &Step) -> kube::Result<()> {
        let (api, name) = (Api::<Node>::all(self.client.clone()), node.name_any());
        match step {
            Step::Taint(taints) => {
                let patch = Patch::Merge(taint_patch(node, taints));
                self.nodes.wrote(api.patch(&name, &PatchParams::default(), &patch).await?);
            }
            Step::Delete => {
                // one that was made again, or that became ready in this moment, stays
                let seen = Preconditions { uid: node.uid(), resource_version: node.resource_version() };
                api.delete(&name, &DeleteParams::default().preconditions(seen)).await?;
            }
        }
        Ok(())
    }
}

/// The merge patch that writes the list of taints. It holds for the version that was seen.
fn taint_patch(node: &Node, taints: &[Taint]) -> Value {
    let taints = if taints.is_empty() { Value::Null } else { json!(taints) };
    json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}})
}

/// Whether a change is about more than a heartbeat, addresses or annotations.
fn matters(change: &Change<Node>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    (old.uid(), old.labels(), &old.spec, is_ready(old)) != (new.uid(), new.labels(), &new.spec, is_ready(new))
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
}

/// Whether the cloud may know an instance of this Node from now on, which may settle a doubt about others.
fn is_new_instance(change: &Change<Node>) -> bool {
    let id = |node: &Option<Arc<Node>>| node.as_ref()?.spec.as_ref()?.provider_id.clone();
    let new = id(&change.new);
    new.is_some() && new != id(&change.old)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn change(old: &Value, new: &Value) -> Change<Node> {
        let node = |json: &Value| serde_json::from_value(json.clone()).map(Arc::new).unwrap();
        Change { key: ObjectKey::new("", "worker-1"), old: Some(node(old)), new: Some(node(new)) }
    }

    fn condition(ready: &str, heard: &str) -> Value {
        json!({"status": {"conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heard}]}})
    }

    #[rstest]
    #[case::heartbeat(
        condition("True", "2026-01-01T00:00:00Z"),
        condition("True", "2026-01-01T00:00:10Z"),
        false
    )]
    #[case::silent(
        condition("True", "2026-01-01T00:00:00Z"),
        condition("Unknown", "2026-01-01T00:00:00Z"),
        true
    )]
    #[case::addresses(json!({}), json!({"status": {"addresses": [{"type": "InternalIP", "address": "198.18.0.5"}]}}), false)]
    #[case::taken_over(json!({}), json!({"metadata": {"labels": {"a/externally-managed": "true"}}}), true)]
    fn a_heartbeat_wakes_nobody(#[case] old: Value, #[case] new: Value, #[case] expected: bool) {
        assert_eq!(matters(&change(&old, &new)), expected);
    }

    #[test]
    fn a_taint_is_written_on_the_version_that_was_seen_and_the_last_one_leaves_no_list() {
        let node = json!({"metadata": {"name": "worker-1", "resourceVersion": "7"}});
        let patch = taint_patch(&serde_json::from_value(node).unwrap(), &[]);
        assert_eq!(patch, json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": null}}));
    }
}
