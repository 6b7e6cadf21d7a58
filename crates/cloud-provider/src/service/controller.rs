//! The running part: what wakes a reconcile, and the reconcile.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Action, Cache, Change, ObjectKey, Queue, QueueMetrics, Recorder, error_message};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Client, Resource, ResourceExt};
use program::TaskGroup;

use super::{
    EligibleNodes,
    act::Pen,
    asks_for_another_class, asks_for_balancer,
    decide::{Seen, Step, decide},
    is_finalized, published,
};
use crate::{Balancer, Failure, LoadBalancers, Notice, Whom, notice::Crier};

/// Changes of Nodes and machines within this time are joined.
const JOIN: Duration = Duration::from_secs(1);
/// Rounds of see, decide, act in one reconcile: more than any way from one settled state to another takes.
const ROUNDS: usize = 8;
/// After a conflict the watch brings the newer version; this is for a watch that does not.
const AFTER_CONFLICT: Duration = Duration::from_secs(5);

/// Gives every Service that asks for one a balancer of the cloud `C`, and takes it back.
pub struct ServiceController<C> {
    cloud: Arc<C>,
    services: Cache<Service>,
    nodes: EligibleNodes,
    queue: Queue<ObjectKey>,
    pen: Pen,
    crier: Crier,
    /// UIDs of Services whose balancer we deleted since they last wanted one.
    deleted: Mutex<HashSet<String>>,
}

/// A step that was not possible.
#[derive(Debug, thiserror::Error)]
#[error("{step:?} for service {service}: {why}")]
struct Error {
    step: Step,
    service: ObjectKey,
    why: String,
}

impl<C: LoadBalancers> ServiceController<C> {
    /// Starts the controller; it works until `tasks` ends. `nodes` and `services` are watch caches, `recorder` has
    /// the component name that Kubernetes' own service controller uses.
    pub fn start(
        tasks: &TaskGroup,
        client: Client,
        cloud: &Arc<C>,
        services: &Cache<Service>,
        nodes: &Cache<Node>,
        recorder: Recorder,
        workers: usize,
    ) -> QueueMetrics {
        let queue = Queue::new();
        let everybody = {
            let (queue, services, cloud) = (queue.clone(), services.clone(), cloud.clone());
            move || {
                for service in services.list() {
                    if concerns(&service, cloud.class()) {
                        queue.add_after(ObjectKey::of(&*service), JOIN);
                    }
                }
            }
        };
        let controller = Arc::new(Self {
            nodes: EligibleNodes::follow(nodes, everybody.clone()),
            cloud: cloud.clone(),
            services: services.clone(),
            queue: queue.clone(),
            pen: Pen { client },
            crier: Crier::new(recorder),
            deleted: Mutex::default(),
        });
        let metrics = queue.metrics().clone();
        let worker = controller.clone();
        queue.run(tasks, workers, move |key| {
            let controller = worker.clone();
            async move { controller.reconcile(key).await }
        });
        let woken = queue.clone();
        cloud.subscribe(Arc::new(move |whom| match whom {
            Whom::One(key) => woken.add(key),
            Whom::All => everybody(),
        }));
        services.on_change(move |change| controller.heard(change));
        metrics
    }

    fn heard(&self, change: &Change<Service>) {
        match (&change.old, &change.new) {
            (Some(old), None) => {
                let uid = old.uid().unwrap_or_default();
                self.crier.forget(&uid);
                self.deleted.lock().expect("no panic while remembering").remove(&uid);
            }
            (old, Some(new)) => {
                let class = self.cloud.class();
                let before = old.as_ref().is_some_and(|old| concerns(old, class));
                if (before || concerns(new, class)) && old.as_ref().is_none_or(|old| differs(old, new)) {
                    self.queue.add(change.key.clone());
                }
            }
            (None, None) => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        for _ in 0..ROUNDS {
            let Some(mut service) = self.services.get(&key) else { return Ok(Action::AwaitChange) };
            let nodes = self.nodes.get();
            let seen = self.see(&service, &nodes);
            let plan = decide(&seen);
            let about = service.object_ref(&());
            if matches!(seen.view.balancer, Balancer::Present { address: Some(_), .. }) {
                self.crier.end(&about);
            }
            let reminder = self.crier.remind(&about);
            for notice in plan.notices {
                self.crier.tell(&about, &notice);
            }
            if plan.steps.is_empty() {
                let again = plan.again.into_iter().chain(reminder).min();
                return Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter));
            }
            for step in plan.steps {
                tracing::debug!(service = %key, ?step);
                match self.act(&service, &nodes, &seen, &step).await {
                    // what the next step goes by is the version that we wrote, and no newer one
                    Ok(ours) => service = ours.unwrap_or(service),
                    Err(Failure::Outdated) => return Ok(Action::RequeueAfter(AFTER_CONFLICT)),
                    Err(Failure::Refused(why)) => {
                        self.crier.tell(&about, &failed(&step, &why));
                        return Err(Error { step, service: key, why });
                    }
                }
            }
            if let Some(outcome) = plan.outcome {
                self.crier.say(&about, &outcome);
            }
        }
        Ok(Action::RequeueAfter(AFTER_CONFLICT))
    }

    fn see(&self, service: &Service, nodes: &[Arc<Node>]) -> Seen {
        let uid = service.uid().unwrap_or_default();
        let wanted = asks_for_balancer(service, self.cloud.class());
        let deleting = service.metadata.deletion_timestamp.is_some();
        let mut remembered = self.deleted.lock().expect("no panic while remembering");
        if wanted && !deleting {
            remembered.remove(&uid);
        }
        Seen {
            wanted,
            foreign: asks_for_another_class(service, self.cloud.class()),
            deleting,
            finalized: is_finalized(service),
            annotations: service.annotations().clone(),
            published: published(service),
            deleted: remembered.contains(&uid),
            view: self.cloud.view(service, nodes),
        }
    }

    async fn act(
        &self,
        service: &Service,
        nodes: &[Arc<Node>],
        seen: &Seen,
        step: &Step,
    ) -> Result<Option<Arc<Service>>, Failure> {
        let about = service.object_ref(&());
        match step {
            Step::Mark { finalize, marks } => {
                self.wrote(service, self.pen.mark(service, *finalize, marks).await)
            }
            Step::Ensure => {
                if seen.view.balancer == Balancer::Absent {
                    self.crier
                        .begin(&about, Notice::normal("EnsuringLoadBalancer", "Ensuring load balancer"));
                }
                self.cloud.ensure(service, nodes).await.map(|()| None)
            }
            Step::Publish(address) => self.wrote(service, self.pen.publish(service, Some(address)).await),
            Step::Unpublish => self.wrote(service, self.pen.publish(service, None).await),
            Step::Delete => {
                if seen.view.balancer != Balancer::Absent {
                    self.crier
                        .begin(&about, Notice::normal("DeletingLoadBalancer", "Deleting load balancer"));
                }
                self.cloud.delete(service).await?;
                let uid = service.uid().unwrap_or_default();
                self.deleted.lock().expect("no panic while remembering").insert(uid);
                Ok(None)
            }
            Step::Release { marks } => {
                match self.pen.release(service, marks).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => self.gone(service),
                    answer => drop(self.wrote(service, answer)?),
                }
                self.crier.forget(&service.uid().unwrap_or_default());
                Ok(None)
            }
        }
    }

    fn wrote(
        &self,
        service: &Service,
        answer: kube::Result<Service>,
    ) -> Result<Option<Arc<Service>>, Failure> {
        match answer {
            Ok(object) => Ok(Some(self.services.wrote(object))),
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                self.gone(service);
                Err(Failure::Outdated)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Err(Failure::Outdated),
            Err(error) => Err(Failure::Refused(error_message(&error))),
        }
    }

    fn gone(&self, service: &Service) {
        self.services.gone(&ObjectKey::of(service), &service.uid().unwrap_or_default());
    }
}

/// Whether the controller has anything to do with the Service.
fn concerns(service: &Service, class: Option<&str>) -> bool {
    is_finalized(service) || asks_for_balancer(service, class)
}

/// Whether two versions differ in anything that a decision depends on.
fn differs(old: &Service, new: &Service) -> bool {
    let metadata = |service: &Service| {
        let data = &service.metadata;
        (
            data.uid.clone(),
            data.annotations.clone(),
            data.finalizers.clone(),
            data.deletion_timestamp.is_some(),
        )
    };
    metadata(old) != metadata(new) || old.spec != new.spec || published(old) != published(new)
}

fn failed(step: &Step, why: &str) -> Notice {
    let what = match step {
        Step::Ensure => "failed to ensure load balancer",
        Step::Delete => "failed to delete load balancer",
        Step::Mark { .. } => "failed to write finalizer or annotations",
        Step::Publish(_) | Step::Unpublish => "failed to write the status",
        Step::Release { .. } => "failed to remove the finalizer",
    };
    Notice::warning("SyncLoadBalancerFailed", format!("Error syncing load balancer: {what}: {why}"))
}
