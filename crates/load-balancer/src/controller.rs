//! LoadBalancer objects: an address for each, a condition that says why when there is none, and an orderly end.
//!
//! ```text
//! alive   claim in the pool ──► vm: finalizer and address, host datapath ──► one PUT: finalizer, address, condition
//! ending  vm: Service withdrawn ──► release in the pool ──► finalizer
//! gone    the pools release their records for it, once its Service is gone too
//! ```
//! `see` reads caches, and the server where caches know nothing; [`decide`] decides; `act` takes one step. A claim
//! comes before the object's PUT: a crash between the two leaves a record that names the object, and the next decision
//! in its name finds it. While a pool's writer carries out a claim or release, no worker waits: the controller goes on with
//! everything else of the object, and the answer wakes it.

pub(crate) mod address;
mod decide;
pub mod dry_run;
mod families;
mod give_back;
mod judge;
mod pace;
mod refused_writes;
pub(crate) mod requested;
mod see;
mod sources;
mod status;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use controller_kit::{
    Action, Cache, ObjectKey, PendingEvent, Queue, RawObject, Recorder, error_message, refusal, replace,
};
use harvester_api::{IPPool, LoadBalancer};
use ip_pools::managers;
use kube::{Api, Client, Resource};
use program::{
    Clock,
    capabilities::{Capabilities, Field, Right},
};

use crate::{
    PoolChoice,
    caches::Caches,
    host_datapath::{
        HostDatapath, RefusedWrite,
        write::{self, DatapathKind, Deleted, Write, Written},
    },
    metrics::{Metrics, NOT_WRITTEN, Repair},
    pool::{
        Failure, Order, Orders, Orphans, PoolIndex, PoolWaiters, Refused, WaitingFor,
        orders::{Outcome, Pending},
    },
    status_reverted,
    vms::VmWatch,
};
use address::order;
pub(crate) use decide::UNWATCHED_AGAIN;
use decide::{Plan, Release, Seen, Step};
pub(crate) use families::may_have_two;
use give_back::{Answers, Next};
pub(crate) use pace::{SlicePace, StatusPace};
pub(crate) use refused_writes::RefusedWrites;

/// Rounds of see, decide, act in one reconcile: more than any way from one settled state to another takes.
const ROUNDS: usize = 8;
/// The right without which the garbage collector deletes Services.
pub(crate) const DELETE_SERVICES: Right = Right::new("delete", "", "services");
/// The optional field that lists the backends.
pub(crate) const BACKENDS_FIELD: Field = Field {
    crd: "loadbalancers.loadbalancer.harvesterhci.io",
    version: "v1beta1",
    path: &["status", "backends"],
};

/// The optional field for the second address of an object.
pub(crate) const SECOND_ADDRESS_FIELD: Field = Field {
    crd: "loadbalancers.loadbalancer.harvesterhci.io",
    version: "v1beta1",
    path: &["status", "allocatedAddress", "ipv6IP"],
};

/// The optional field that lists both addresses of an object.
pub(crate) const ADDRESSES_FIELD: Field = Field {
    crd: "loadbalancers.loadbalancer.harvesterhci.io",
    version: "v1beta1",
    path: &["status", "addresses"],
};

/// The optional right and the optional fields on which decisions depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    may_delete_services: bool,
    has_backends_field: bool,
    has_second_address_field: bool,
    has_addresses_field: bool,
}

impl Allowed {
    pub(crate) fn of(capabilities: &Capabilities) -> Self {
        let has = |Field { crd, version, path }: Field| capabilities.has_field(crd, version, path);
        Self {
            may_delete_services: capabilities.allows(&DELETE_SERVICES),
            has_backends_field: has(BACKENDS_FIELD),
            has_second_address_field: has(SECOND_ADDRESS_FIELD),
            has_addresses_field: has(ADDRESSES_FIELD),
        }
    }
}

/// The controller of LoadBalancer objects, the only writer of them and of their Services and slices.
pub(crate) struct Controller {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) recorder: Recorder,
    pub(crate) capabilities: Capabilities,
    pub(crate) caches: Caches,
    pub(crate) index: PoolIndex,
    pub(crate) orders: Orders,
    pub(crate) waiters: PoolWaiters,
    pub(crate) orphans: Orphans,
    pub(crate) datapath: HostDatapath,
    pub(crate) vm_watch: VmWatch,
    /// The queue of pools: their conditions name orphans.
    pub(crate) pools: Queue<ObjectKey>,
    /// The queue of the record garbage collector, of pools.
    pub(crate) records: Queue<ObjectKey>,
    pub(crate) dummy_endpoint: Ipv4Addr,
    pub(crate) pool_choice: PoolChoice,
    pub(crate) status_pace: StatusPace,
    pub(crate) slice_pace: SlicePace,
    pub(crate) refused_writes: RefusedWrites,
    pub(crate) metrics: Metrics,
}

/// A failure after which the queue tries again, with the step and the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{step} for load balancer {key}")]
    Datapath { step: String, key: ObjectKey, source: write::Error },
    #[error("{step} for load balancer {key}")]
    Request { step: String, key: ObjectKey, source: kube::Error },
    #[error("write load balancer {key}: somebody else keeps writing it")]
    Contended { key: ObjectKey },
    #[error(
        "look at load balancer {key}: IPPool {pool} no longer gives it {address}, and the watch has not told of that"
    )]
    Behind { key: ObjectKey, pool: String, address: IpAddr },
    #[error("write load balancer {key}: {}", status_reverted::ADVICE)]
    StatusReverted { key: ObjectKey },
}

impl Error {
    /// The reason of the Event about a failure that lasts until somebody changes the object, a rule or a right.
    fn event_reason(&self) -> Option<&'static str> {
        let source = match self {
            Self::StatusReverted { .. } => return Some(status_reverted::REASON),
            Self::Contended { .. } | Self::Behind { .. } => return None,
            Self::Request { source, .. }
            | Self::Datapath { source: write::Error::Request { source, .. }, .. } => source,
        };
        let lasts = matches!(source, kube::Error::Api(status) if refusal::is_lasting(status));
        lasts.then_some(NOT_WRITTEN)
    }
}

/// What one reconcile knows and no cache tells: the outcome of the orders, and the server's answers in earlier rounds.
#[derive(Default)]
struct Learned {
    /// The pool recorded this address just now; it had none for the object before.
    recorded_anew: Option<(String, IpAddr)>,
    refused: Vec<(String, Refused)>,
    pending: Pending,
    /// At most one of each kind.
    refused_writes: Vec<RefusedWrite>,
    records_held: BTreeSet<(String, IpAddr)>,
    /// A Service that is not ours names the address of one.
    held_by_stranger: bool,
    /// No watch tells when one of them may go.
    unwatched: bool,
}

impl Learned {
    fn note_refused_write(&mut self, kind: &'static str, why: String) {
        self.refused_writes.retain(|write| write.kind != kind);
        self.refused_writes.push(RefusedWrite { kind, why });
    }
}

/// How a step ended.
enum Acted {
    /// The next step of the plan follows.
    Done,
    /// The plan rests on something that has changed: see again.
    Changed,
    /// The answer of a pool's writer will wake the object.
    Ordered,
}

impl Controller {
    /// Brings one object to what it asks for.
    ///
    /// # Errors
    /// Failures that may pass: the queue tries again. A fault that the user must mend becomes a condition instead, but for one
    /// that keeps conditions from being written, which becomes an Event.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let outcome = self.bring_there(&key).await;
        if let (Err(error), Some(lb)) = (&outcome, self.caches.load_balancers.get(&key)) {
            self.metrics.failed(&key);
            if let Some(reason) = error.event_reason() {
                self.warn(&lb, reason, &error_message(error));
            }
        }
        outcome
    }

    async fn bring_there(&self, key: &ObjectKey) -> Result<Action, Error> {
        let mut learned = self.outcome_of_orders(key);
        // what happens to the pools after the look wakes the object
        if let Some(lb) = self.caches.load_balancers.get(key) {
            self.metrics.looked_at(key, &lb);
            self.waiters.enter(key, WaitingFor::Anything);
        }
        for _ in 0..ROUNDS {
            let seen = self.see(key, &learned).await?;
            let plan = decide::decide(&seen);
            if let Some(action) = self.carry_out(&seen, plan, &mut learned).await? {
                return Ok(action);
            }
        }
        Err(Error::Contended { key: key.clone() })
    }

    /// The outcome of the object's orders.
    fn outcome_of_orders(&self, key: &ObjectKey) -> Learned {
        let Outcome { recorded_anew, refused, pending, unreported } = self.orders.look(key);
        for (failure, retry_in) in &unreported {
            self.report_failed_order(key, failure, *retry_in);
        }
        Learned { recorded_anew, refused, pending, ..Learned::default() }
    }

    /// Takes the steps of a plan. `None`: see again.
    async fn carry_out(
        &self,
        seen: &Seen,
        plan: Plan,
        learned: &mut Learned,
    ) -> Result<Option<Action>, Error> {
        let Plan { steps, events, probes, waits_for, orphaned, again, unwatched } = plan;
        let key = &seen.key;
        if let (Some(lb), false) = (&seen.object, events.is_empty()) {
            for event in &events {
                let PendingEvent { reason, message, .. } = event;
                tracing::warn!(load_balancer = %key, reason, message);
                if *reason == decide::ADDRESS_LOST {
                    self.metrics.repaired(Repair::LostAddress);
                }
                self.recorder.publish(&lb.object_ref(&()), event);
            }
        }
        if let Some(probes) = probes {
            self.datapath.probe(key, probes);
        }
        if orphaned {
            self.note_orphan(seen, true);
        }
        for step in &steps {
            tracing::debug!(load_balancer = %key, %step);
            if !self.may_take(key, step) {
                return Ok(None);
            }
            match self.act(seen, step, learned).await? {
                Acted::Done => {}
                Acted::Changed => return Ok(None),
                Acted::Ordered => return Ok(Some(Action::AwaitAnswer(again))),
            }
        }
        if !steps.is_empty() {
            return Ok(None);
        }
        self.metrics.settled(key, seen.object.as_deref().map(|lb| &**lb));
        match waits_for {
            Some(waits_for) => self.waiters.enter(key, waits_for),
            None => self.waiters.leave(key),
        }
        if seen.object.is_none() {
            if seen.address.pending.is_empty() {
                self.orders.forget(key);
            }
            self.status_pace.forget(key);
            self.slice_pace.forget(key);
            self.refused_writes.forget(key);
        }
        self.note_orphan(seen, orphaned || learned.held_by_stranger);
        let refused = learned
            .refused_writes
            .iter()
            .filter_map(|write| self.refused_writes.again(key, write.kind))
            .min();
        let again = again.into_iter().chain(self.refused_writes.stranger_again(key)).min();
        let again = next_look(again, unwatched || learned.unwatched, refused);
        Ok(Some(again.map_or(Action::AwaitChange, Action::RequeueAfter)))
    }

    /// Whether the rate of the namespace allows the step. If not, `see` sees from now on when it will: it cannot do so before
    /// the object asks, and only one that has something to write may use up the rate.
    fn may_take(&self, key: &ObjectKey, step: &Step) -> bool {
        match step {
            Step::WriteBackendStatus(_) => self.status_pace.limiter.try_acquire(key),
            Step::WriteSliceReadiness { .. } => self.slice_pace.limiter.try_acquire(key),
            _ => true,
        }
    }

    async fn act(&self, seen: &Seen, step: &Step, learned: &mut Learned) -> Result<Acted, Error> {
        let key = &seen.key;
        let failed = |source| Error::Datapath { step: step.to_string(), key: key.clone(), source };
        match step {
            Step::WriteObject(json) => self.put(key, json).await,
            Step::WriteBackendStatus(json) => {
                let written = self.put(key, json).await;
                match &written {
                    Ok(Acted::Done) => self.status_pace.wrote(key),
                    _ => self.status_pace.limiter.keep(key),
                }
                written
            }
            Step::WriteSlice(write) => {
                let written = self.write("EndpointSlice", &self.caches.slices, seen, write, learned).await;
                written.map_err(failed)
            }
            Step::WriteSliceWithout { write, left } => {
                let written = self.write("EndpointSlice", &self.caches.slices, seen, write, learned).await;
                if let Ok(Acted::Done) = &written {
                    self.slice_pace.wrote(key, seen.object.as_deref(), left);
                }
                written.map_err(failed)
            }
            Step::WriteSliceReadiness { write, flipped } => {
                let written = self.write("EndpointSlice", &self.caches.slices, seen, write, learned).await;
                match &written {
                    Ok(Acted::Done) => self.slice_pace.wrote(key, seen.object.as_deref(), flipped),
                    // it is sent again at once: traffic must not go on to a backend that died
                    _ => self.slice_pace.limiter.keep(key),
                }
                written.map_err(failed)
            }
            Step::WriteService(write) => {
                let written = self.write("Service", &self.caches.services, seen, write, learned).await;
                written.map_err(failed)
            }
            Step::DeleteService { uid } => self.delete_service(key, uid).await.map_err(failed),
            Step::DeleteOrphan { uid } => {
                if let Some(fresh) = self.read_object(key, step).await? {
                    self.caches.load_balancers.wrote(fresh);
                    return Ok(Acted::Changed);
                }
                tracing::warn!(service = %key, "without load balancer (kubectl delete --cascade=orphan?): deleted");
                self.delete_service(key, uid).await.map_err(failed)
            }
            Step::Claim { pool, known, exactly, family, together } => {
                let holder = key.to_string();
                let order = order(&holder, *known, *exactly, *family);
                let order = match together {
                    Some(other) => Order::ClaimBoth(Box::new([order, other.order(&holder)])),
                    None => order,
                };
                self.orders.submit(key, pool, order, learned.refused.clone());
                Ok(Acted::Ordered)
            }
            Step::Release(release) => self.release(key, step, release, learned).await,
        }
    }

    /// Writes a Service or slice, unless the server refused the same a short while ago.
    async fn write<K: DatapathKind>(
        &self,
        kind: &'static str,
        cache: &Cache<RawObject<K>>,
        seen: &Seen,
        write: &Write,
        learned: &mut Learned,
    ) -> Result<Acted, write::Error> {
        let (key, lb) = (&seen.key, seen.object.as_deref());
        let (Write::Create(json) | Write::Replace(json)) = write else { return Ok(Acted::Done) };
        if let Some(why) = self.refused_writes.standing(key, kind, json, lb) {
            learned.note_refused_write(kind, why);
            return Ok(Acted::Changed);
        }
        match write::carry_out(&self.client, cache, key, write).await? {
            Written::Done => {
                self.refused_writes.stored(key, kind);
                Ok(Acted::Done)
            }
            Written::Stale => Ok(Acted::Changed),
            Written::Refused { why, for_good } => {
                // one that ends has no condition that anybody reads
                tracing::warn!(load_balancer = %key, kind, "the server refused the write: {why}");
                self.refused_writes.note(key, kind, json, lb, &why, for_good);
                learned.note_refused_write(kind, why);
                Ok(Acted::Changed)
            }
        }
    }

    /// Asks the server what can keep the record, and has it released if nothing does.
    async fn release(
        &self,
        key: &ObjectKey,
        step: &Step,
        release: &Release,
        learned: &mut Learned,
    ) -> Result<Acted, Error> {
        let Release { pool, address, because, order } = release;
        let mut answers = Answers::default();
        let kept = loop {
            match give_back::next(key, *address, because, &answers) {
                Next::ReadObject => {
                    let fresh = self.read_object(key, step).await?;
                    answers.is_object_there = Some(fresh.is_some());
                    if let Some(fresh) = fresh {
                        self.caches.load_balancers.wrote(fresh);
                    }
                }
                Next::ReadService => {
                    let read = write::read_service(&self.client, key).await;
                    let failed =
                        |source| Error::Datapath { step: step.to_string(), key: key.clone(), source };
                    answers.service = Some(read.map_err(failed)?);
                }
                Next::ReadPool => {
                    let fresh = Api::<IPPool>::all(self.client.clone()).get_opt(pool).await;
                    let failed = |source| Error::Request { step: step.to_string(), key: key.clone(), source };
                    let maker = fresh.map_err(failed)?.and_then(|fresh| managers::foreign(&fresh, *address));
                    answers.is_of_other_program = Some(maker.is_some());
                    if let Some(maker) = maker
                        && self.index.note_left(key, pool, *address, &maker)
                    {
                        tracing::info!(load_balancer = %key, pool, %address, maker, "not released: of another program");
                    }
                }
                Next::GiveBack => {
                    self.orders.submit(key, pool, order.clone(), learned.refused.clone());
                    return Ok(Acted::Ordered);
                }
                Next::Keep(kept) => break kept,
            }
        };
        if let Some(why) = kept.by_service {
            tracing::info!(load_balancer = %key, pool, %address, "not released: {why}");
        }
        learned.records_held.insert((pool.clone(), *address));
        learned.held_by_stranger |= kept.by_stranger;
        learned.unwatched |= kept.unwatched;
        if kept.left_to_collector {
            self.records.add(ObjectKey::new("", pool));
        }
        Ok(Acted::Changed)
    }

    async fn delete_service(&self, key: &ObjectKey, uid: &str) -> Result<Acted, write::Error> {
        match write::delete(&self.client, &self.caches.services, key, uid).await? {
            Deleted::Gone | Deleted::Going => self.capabilities.worked(&DELETE_SERVICES),
            Deleted::Forbidden => self.capabilities.refused(&DELETE_SERVICES),
        }
        Ok(Acted::Changed)
    }

    async fn read_object(
        &self,
        key: &ObjectKey,
        step: &Step,
    ) -> Result<Option<RawObject<LoadBalancer>>, Error> {
        let api = Api::<RawObject<LoadBalancer>>::namespaced(self.client.clone(), &key.namespace);
        let failed = |source| Error::Request { step: step.to_string(), key: key.clone(), source };
        api.get_opt(&key.name).await.map_err(failed)
    }

    /// Writes the object, or reads the newer version of it.
    async fn put(&self, key: &ObjectKey, json: &serde_json::Value) -> Result<Acted, Error> {
        let failed = |source| Error::Request { step: "write object".to_owned(), key: key.clone(), source };
        match replace::<LoadBalancer>(&self.client, json).await {
            Ok(written) => {
                let reverted = status_reverted::address(json, &written);
                self.caches.load_balancers.wrote(written);
                if reverted { Err(Error::StatusReverted { key: key.clone() }) } else { Ok(Acted::Done) }
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
                let api = Api::<RawObject<LoadBalancer>>::namespaced(self.client.clone(), &key.namespace);
                match api.get_opt(&key.name).await.map_err(failed)? {
                    Some(fresh) => drop(self.caches.load_balancers.wrote(fresh)),
                    None => {
                        let uid = json.pointer("/metadata/uid").and_then(serde_json::Value::as_str);
                        self.caches.load_balancers.gone(key, uid.unwrap_or_default());
                    }
                }
                Ok(Acted::Changed)
            }
            Err(source) => Err(failed(source)),
        }
    }

    /// Logs why the pool was not written, and publishes an Event where admission reverted the write.
    fn report_failed_order(&self, key: &ObjectKey, failure: &Failure, retry_in: Duration) {
        let why = error_message(failure);
        tracing::warn!(load_balancer = %key, ?retry_in, "address of the load balancer: {why}");
        if let (Failure::StatusReverted { .. }, Some(lb)) = (failure, self.caches.load_balancers.get(key)) {
            self.warn(&lb, status_reverted::REASON, &format!("address of load balancer {key}: {why}"));
        }
    }

    fn warn(&self, lb: &RawObject<LoadBalancer>, reason: &'static str, message: &str) {
        self.recorder.publish(&lb.object_ref(&()), &PendingEvent::warning(reason, message));
    }

    /// The pools that record the Service's addresses name it in their condition.
    fn note_orphan(&self, seen: &Seen, orphaned: bool) {
        if !self.orphans.set(&seen.key, orphaned) {
            return;
        }
        if orphaned {
            let addresses: Vec<_> = seen.address.recorded.iter().map(|(_, address)| address).collect();
            tracing::warn!(service = %seen.key, ?addresses,
                "without load balancer, and not ours to delete: delete it, its addresses stay held");
        }
        for (pool, _) in &seen.address.recorded {
            // whoever may write the Service may change that as often as it likes
            self.orders.refresh(&seen.key.namespace, pool, &self.pools, || {});
        }
    }
}

/// When the object is looked at again: after `again`, and with the `refused` writes, which come later and later, or after a
/// minute where another state may end that no watch tells of.
fn next_look(again: Option<Duration>, unwatched: bool, refused: Option<Duration>) -> Option<Duration> {
    let unwatched = unwatched.then_some(UNWATCHED_AGAIN);
    again.into_iter().chain(refused.or(unwatched)).min()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::settled(None, false, None, None)]
    #[case::unwatched(None, true, None, Some(60))]
    #[case::a_refused_write(None, true, Some(600), Some(600))]
    #[case::a_denied_claim_beside_a_refused_write(Some(60), true, Some(600), Some(60))]
    #[case::a_refused_write_that_keeps_nothing_else_waiting(None, false, Some(60), Some(60))]
    #[case::a_verdict_that_waits(Some(3), true, None, Some(3))]
    fn an_object_is_looked_at_again_for_the_first_of_its_reasons(
        #[case] again: Option<u64>,
        #[case] unwatched: bool,
        #[case] refused: Option<u64>,
        #[case] expected: Option<u64>,
    ) {
        let seconds = |after: Option<u64>| after.map(Duration::from_secs);
        assert_eq!(next_look(seconds(again), unwatched, seconds(refused)), seconds(expected));
    }
}
