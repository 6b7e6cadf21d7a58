//! The start that the controllers of Nodes share: a queue, its workers, and the changes that fill it.

use std::{sync::Arc, time::Duration};

use controller_kit::{Action, Cache, Change, ObjectKey, Queue};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use program::TaskGroup;

use crate::event::EventDeduplicator;

/// A controller of Nodes.
pub(super) trait Controller: Send + Sync + 'static {
    type Error: std::error::Error + Send + 'static;

    fn events(&self) -> &EventDeduplicator;

    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

/// Starts `workers`, which work until `tasks` ends, on the Nodes of which a change `matters`.
pub(super) fn start<C: Controller>(
    controller: &Arc<C>,
    nodes: &Cache<Node>,
    tasks: &TaskGroup,
    workers: usize,
    matters: fn(&Change<Node>) -> bool,
) -> Queue<ObjectKey> {
    let queue = Queue::new();
    let worker = controller.clone();
    queue.run(tasks, workers, move |key| {
        let controller = worker.clone();
        async move { controller.reconcile(key).await }
    });
    let (controller, changed) = (controller.clone(), queue.clone());
    nodes.on_change(move |change| {
        if change.new.is_none() {
            let uid = change.old.as_ref().and_then(|node| node.uid()).unwrap_or_default();
            controller.events().forget(&uid);
        } else if matters(change) {
            changed.add(change.key.clone());
        }
    });
    queue
}

/// A function that has every Node looked at after a delay.
pub(super) fn waking(
    queue: &Queue<ObjectKey>,
    nodes: &Cache<Node>,
    delay: impl Fn() -> Duration + Clone + Send + Sync + 'static,
) -> impl Fn() + Clone + Send + Sync + 'static {
    let (queue, nodes) = (queue.clone(), nodes.clone());
    move || {
        let delay = delay();
        for node in nodes.list() {
            queue.add_after(ObjectKey::of(&*node), delay);
        }
    }
}
