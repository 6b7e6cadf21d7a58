//! The running part: the changes that requeue a Service, and its reconcile.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{
    Action, Cache, Change, ObjectKey, PendingEvent, Queue, QueueMetrics, Recorder, error_message,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Client, Resource, ResourceExt};
use program::TaskGroup;

use super::{
    EligibleNodes, asks_for_load_balancer,
    decide::{Seen, Step, decide, failed},
    has_finalizer, published, wants_load_balancer,
    writer::ServiceWriter,
};
use crate::{Decision, Failure, LoadBalancerState, LoadBalancers, Requeue, event::EventDeduplicator};

/// Changes of Nodes and instances within this time are joined.
const JOIN: Duration = Duration::from_secs(1);
/// Rounds of see, decide, act in one reconcile: more than any way from one settled state to another takes.
const ROUNDS: usize = 8;
/// After a conflict the watch brings the newer version; this is the backstop for a watch that does not.
const AFTER_CONFLICT: Duration = Duration::from_secs(5);

/// Gives every Service that asks for one a load balancer of the cloud `C`, and removes it when the Service gives it up.
pub struct ServiceController<C> {
    cloud: Arc<C>,
    services: Cache<Service>,
    nodes: EligibleNodes,
    queue: Queue<ObjectKey>,
    writer: ServiceWriter,
    events: EventDeduplicator,
    /// UIDs of Services whose load balancer we deleted since they last wanted one.
    deleted: Mutex<HashSet<String>>,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step:?} for service {service}: {why}")]
struct Error {
    step: Step,
    service: ObjectKey,
    why: String,
    /// The queue reads `Retry-After` from it.
    source: Option<kube::Error>,
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
            writer: ServiceWriter::new(client),
            events: EventDeduplicator::new(recorder),
            deleted: Mutex::default(),
        });
        let metrics = queue.metrics().clone();
        let worker = controller.clone();
        queue.run(tasks, workers, move |key| {
            let controller = worker.clone();
            async move { controller.reconcile(key).await }
        });
        cloud.subscribe(Arc::new(move |requeue| match requeue {
            Requeue::One(key) => queue.add(key),
            Requeue::All => everybody(),
        }));
        services.on_change(move |change| controller.on_change(change));
        metrics
    }

    fn on_change(&self, change: &Change<Service>) {
        let both = [&change.old, &change.new];
        for dependent in both.into_iter().flatten().flat_map(|service| self.cloud.dependents(service)) {
            self.queue.add(dependent);
        }
        match (&change.old, &change.new) {
            (Some(old), None) => {
                let uid = old.uid().unwrap_or_default();
                self.events.forget(&uid);
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
        let mut after_unpublish = None;
        'rounds: for _ in 0..ROUNDS {
            let Some(newest) = self.services.get(&key) else { return Ok(Action::AwaitChange) };
            let mut service = after_unpublish.take().unwrap_or(newest);
            let Decision { view, mut write, events } = self.cloud.decide(&service, &self.nodes.get());
            let seen = Seen { has_write: write.is_some(), view, events, ..self.see(&service) };
            let plan = decide(&seen);
            let about = service.object_ref(&());
            if let LoadBalancerState::Present { addresses } = &seen.view.load_balancer
                && !addresses.is_empty()
            {
                self.events.end(&about);
            }
            let reminder = self.events.remind(&about);
            for event in &plan.events {
                self.events.record(&about, event);
            }
            if plan.steps.is_empty() {
                let again = plan.again.into_iter().chain(reminder).min();
                return Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter));
            }
            let released = matches!(plan.steps.last(), Some(Step::Release { .. }));
            let absent = seen.view.load_balancer == LoadBalancerState::Absent;
            let mut not_emptied = None;
            let mut steps = plan.steps.into_iter().peekable();
            while let Some(step) = steps.next() {
                tracing::debug!(service = %key, ?step);
                let is_next_made = absent && step == Step::Unpublish && steps.peek() == Some(&Step::Apply);
                match self.act(&service, &seen, &step, &mut write).await {
                    // somebody else may fill it at once, and the cloud has to see that it was empty: the next decision
                    // goes by the version that we wrote. The cache may have a newer one, whose change queued the
                    // Service again
                    Ok(ours) if seen.wanted && step == Step::Unpublish => {
                        after_unpublish = ours;
                        continue 'rounds;
                    }
                    // the next step goes by the version that we wrote, and by no newer one
                    Ok(ours) => service = ours.unwrap_or(service),
                    Err(Failure::Outdated) => return Ok(Action::RequeueAfter(AFTER_CONFLICT)),
                    Err(Failure::Failed { why, source }) => {
                        self.events.record(&about, &failed(&step, &why));
                        let error = Error { step, service: key.clone(), why, source };
                        // only the try to make it tells whether its address is still lost
                        if !is_next_made {
                            return Err(error);
                        }
                        not_emptied = Some(error);
                    }
                }
            }
            if let Some(error) = not_emptied {
                return Err(error);
            }
            if let Some(outcome) = &plan.outcome {
                self.events.record_outcome(&about, outcome);
            }
            if released {
                self.events.forget(&service.uid().unwrap_or_default());
            }
        }
        Ok(Action::RequeueAfter(AFTER_CONFLICT))
    }

    /// The Service, without the decision of the cloud.
    fn see(&self, service: &Service) -> Seen {
        let uid = service.uid().unwrap_or_default();
        let class = self.cloud.class();
        let mut remembered = self.deleted.lock().expect("no panic while remembering");
        if wants_load_balancer(service, class) {
            remembered.remove(&uid);
        }
        super::see(service, class, remembered.contains(&uid))
    }

    async fn act(
        &self,
        service: &Service,
        seen: &Seen,
        step: &Step,
        write: &mut Option<C::Write>,
    ) -> Result<Option<Arc<Service>>, Failure> {
        let about = service.object_ref(&());
        let absent = seen.view.load_balancer == LoadBalancerState::Absent;
        match step {
            Step::Prepare { add_finalizer, annotations, labels } => {
                self.wrote(service, self.writer.prepare(service, *add_finalizer, annotations, labels).await)
            }
            Step::Apply => {
                if absent {
                    let event = PendingEvent::normal("EnsuringLoadBalancer", "Ensuring load balancer");
                    self.events.start(&about, event);
                }
                match write.take() {
                    Some(write) => self.cloud.apply(write).await.map(|()| None),
                    None => Ok(None),
                }
            }
            Step::Publish(addresses) => self.wrote(service, self.writer.publish(service, addresses).await),
            Step::Unpublish => self.wrote(service, self.writer.publish(service, &[]).await),
            Step::Delete => {
                if !absent {
                    let event = PendingEvent::normal("DeletingLoadBalancer", "Deleting load balancer");
                    self.events.start(&about, event);
                }
                self.cloud.delete(service).await?;
                let uid = service.uid().unwrap_or_default();
                self.deleted.lock().expect("no panic while remembering").insert(uid);
                Ok(None)
            }
            Step::Release { annotations, labels } => {
                match self.writer.release(service, annotations, labels).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => self.gone(service),
                    answer => drop(self.wrote(service, answer)?),
                }
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
            Err(error) => Err(Failure::Failed { why: error_message(&error), source: Some(error) }),
        }
    }

    fn gone(&self, service: &Service) {
        self.services.gone(&ObjectKey::of(service), &service.uid().unwrap_or_default());
    }
}

/// Whether the controller has anything to do with the Service.
fn concerns(service: &Service, class: Option<&str>) -> bool {
    has_finalizer(service) || asks_for_load_balancer(service, class)
}

/// Whether two versions differ in a field that a decision reads.
fn differs(old: &Service, new: &Service) -> bool {
    let metadata = |service: &Service| {
        let data = &service.metadata;
        (
            data.uid.clone(),
            data.annotations.clone(),
            data.labels.clone(),
            data.finalizers.clone(),
            data.deletion_timestamp.is_some(),
        )
    };
    metadata(old) != metadata(new) || old.spec != new.spec || published(old) != published(new)
}
