//! Orders of load balancers that are under way or failed, and the answers that nobody has taken yet.
//!
//! A worker never waits for a pool: it submits an order, and the answer puts the object's key back into the queue as an
//! input of the next decision. An order that was carried out shows in the record, and leaves here only that a record is a
//! new one; an order that could not be written is an input of every decision until it may be sent again.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, Queue, error_message};
use ipam::Family;
use tokio::time::Instant;

use super::{Failure, Order, Refused, Writers, batch::Answer, writer};
use crate::{controller::UNWATCHED_AGAIN, refusal};

/// The orders, at most one under way for each load balancer. Clones share them.
#[derive(Clone)]
pub(crate) struct Orders {
    writers: Writers,
    queue: Queue<ObjectKey>,
    table: Arc<Mutex<HashMap<ObjectKey, Entry>>>,
}

#[derive(Default)]
struct Entry {
    state: State,
    /// At most one claim and one release of each pool. Each has a pause of its own: an order to another pool ends none.
    failed: Vec<FailedOrder>,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    UnderWay {
        pool: String,
        order: Order,
        /// A refusal counts for nothing, because a pool has changed since the order was submitted, or since the
        /// refusals before it.
        outdated: bool,
    },
    Recorded(String, IpAddr),
    Refused(Vec<(String, Refused)>),
    /// A decision rests on the refusals, and no pool has changed since.
    Taken,
}

struct FailedOrder {
    pool: String,
    order: Order,
    error: WriteError,
    /// In a row.
    failures: u32,
    again_at: Instant,
    /// The pools that had refused this claim before, and have not changed since.
    refused: Vec<(String, Refused)>,
    /// The failure, while nobody has reported it.
    unreported: Option<Failure>,
    /// The object needs it no more.
    is_over: bool,
}

impl FailedOrder {
    fn is_for(&self, pool: &str, order: &Order) -> bool {
        self.pool == pool && self.order.is_claim() == order.is_claim()
    }

    /// The pause that is left; `None`: the order may be sent again.
    fn retry_in(&self, now: Instant) -> Option<Duration> {
        Some(self.again_at.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

impl Entry {
    fn is_outdated(&self) -> bool {
        matches!(self.state, State::UnderWay { outdated: true, .. })
    }

    fn is_empty(&self) -> bool {
        matches!(self.state, State::Idle) && self.failed.is_empty()
    }

    /// The failed claims that the object has given up if it sends this one: an object of two families goes on with one
    /// while it waits for the other.
    fn failed_claims_like(&mut self, claim: &Order) -> impl Iterator<Item = &mut FailedOrder> {
        let asked = claim.family();
        let is_like = move |other: Option<Family>| asked.is_none() || other.is_none() || other == asked;
        self.failed_claims().filter(move |failed| is_like(failed.order.family()))
    }

    fn failed_claims(&mut self) -> impl Iterator<Item = &mut FailedOrder> {
        self.failed.iter_mut().filter(|failed| failed.order.is_claim())
    }

    /// `refused` counts for a claim only: a release that fails says nothing about other pools, and its pause may be long.
    fn failed(&mut self, pool: String, order: Order, failure: Failure, mut refused: Vec<(String, Refused)>) {
        if !order.is_claim() {
            refused.clear();
        }
        let before = self.failed.iter().position(|failed| failed.is_for(&pool, &order));
        let failures = before.map_or(0, |at| self.failed.swap_remove(at).failures) + 1;
        let error = WriteError::of(&order, &failure);
        let again_at = Instant::now() + pause(&error, &failure, failures);
        let unreported = Some(failure);
        self.failed.push(FailedOrder {
            pool,
            order,
            error,
            failures,
            again_at,
            refused,
            unreported,
            is_over: false,
        });
    }

    fn look(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        for failed in &mut self.failed {
            let retry_in = failed.retry_in(now);
            outcome.unreported.extend(failed.unreported.take().zip(Some(retry_in.unwrap_or_default())));
            // where the claim may be sent again, every pool is asked again: those that refuse write nothing
            if let Some(retry_in) = retry_in {
                outcome.refused.extend(failed.refused.iter().cloned());
                let FailedOrder { pool, order, error, .. } = &*failed;
                outcome.pending.failed.push(Failed {
                    pool: pool.clone(),
                    order: order.clone(),
                    error: error.clone(),
                    retry_in,
                });
            }
        }
        match &self.state {
            State::Idle | State::Taken => {}
            State::UnderWay { pool, order, .. } => {
                let before = self.failed.iter().find(|failed| failed.is_for(pool, order));
                let last_error = before.map(|failed| failed.error.clone());
                let (pool, order) = (pool.clone(), order.clone());
                outcome.pending.under_way = Some(UnderWay { pool, order, last_error });
            }
            State::Recorded(pool, address) => {
                outcome.recorded_anew = Some((pool.clone(), *address));
                self.state = State::Idle;
            }
            State::Refused(pools) => {
                outcome.refused.clone_from(pools);
                self.state = State::Taken;
            }
        }
        // those that a failed claim keeps are as new: a change of pools would have ended them
        if matches!(self.state, State::Idle) && !outcome.refused.is_empty() {
            self.state = State::Taken;
        }
        outcome
    }
}

/// The outcome of a load balancer's orders, as far as no record shows it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The pool recorded this address; it had none for the load balancer before.
    pub(crate) recorded_anew: Option<(String, IpAddr)>,
    /// The pools that refused the claim, in the order in which they were asked.
    pub(crate) refused: Vec<(String, Refused)>,
    pub(crate) pending: Pending,
    /// Failures that nobody has reported yet, each with the pause after which the order is sent again.
    pub(crate) unreported: Vec<(Failure, Duration)>,
}

/// The orders of a load balancer that no pool has carried out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) under_way: Option<UnderWay>,
    /// They may not be sent again yet: at most one claim and one release of each pool.
    pub(crate) failed: Vec<Failed>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.failed.is_empty()
    }
}

/// The pool's writer has the order, and its answer will wake the object.
#[derive(Clone, Debug)]
pub(crate) struct UnderWay {
    pub(crate) pool: String,
    pub(crate) order: Order,
    /// Why the pool was not written the last time.
    pub(crate) last_error: Option<WriteError>,
}

/// The pool could not be written, and the order is sent again after a pause.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) pool: String,
    pub(crate) order: Order,
    pub(crate) error: WriteError,
    pub(crate) retry_in: Duration,
}

/// Why a pool was not written.
#[derive(Clone, Debug)]
pub(crate) struct WriteError {
    pub(crate) why: String,
    /// The server will answer the claim in the same way until somebody mends that.
    pub(crate) is_denied: bool,
}

impl WriteError {
    fn of(order: &Order, failure: &Failure) -> Self {
        let why = match failure {
            Failure::Write { source, .. } => error_message(&**source),
            other => error_message(other),
        };
        let is_denied = matches!(failure, Failure::Write { source, .. }
            if matches!(&**source, kube::Error::Api(status) if refusal::is_lasting(status)));
        Self { why, is_denied: is_denied && order.is_claim() }
    }
}

impl Orders {
    pub(crate) fn new(writers: Writers, queue: Queue<ObjectKey>) -> Self {
        Self { writers, queue, table: Arc::default() }
    }

    /// Submits an order for `key`. `refused` are the pools that refused this claim before, as [`Orders::look`] gave them.
    pub(crate) fn submit(
        &self,
        key: &ObjectKey,
        pool: &str,
        order: Order,
        mut refused: Vec<(String, Refused)>,
    ) {
        let (orders, key, pool_name) = (self.clone(), key.clone(), pool.to_owned());
        {
            let (mut table, now) = (self.table(), Instant::now());
            let entry = table.entry(key.clone()).or_default();
            let refused_before =
                |failed: &FailedOrder| failed.retry_in(now).is_some() && !failed.refused.is_empty();
            if order.is_claim() && entry.failed_claims_like(&order).any(|failed| refused_before(failed)) {
                // they refused a claim that the object has given up
                refused.clear();
                entry.failed_claims_like(&order).for_each(|failed| failed.refused.clear());
            }
            let outdated = !refused.is_empty() && !matches!(entry.state, State::Taken);
            entry.state = State::UnderWay { pool: pool_name.clone(), order: order.clone(), outdated };
        }
        let namespace = key.namespace.clone();
        self.writers.submit(&namespace, pool, order.clone(), move |result| {
            let mut table = orders.table();
            let entry = table.entry(key.clone()).or_default();
            let outdated = entry.is_outdated();
            entry.state = State::Idle;
            match result {
                Err(failure) if !matches!(failure, Failure::Refused(_)) => {
                    if outdated {
                        refused.clear();
                    }
                    entry.failed(pool_name, order, failure, refused);
                }
                answer => {
                    // one address of a family is all that an object claims
                    if order.is_claim() && answer.is_ok() {
                        entry.failed_claims_like(&order).for_each(|failed| failed.is_over = true);
                    }
                    entry.failed.retain(|failed| !failed.is_over && !failed.is_for(&pool_name, &order));
                    entry.state = match answer {
                        Ok(Answer::RecordedAnew(address)) => State::Recorded(pool_name, address),
                        Err(Failure::Refused(why)) if !outdated => {
                            refused.push((pool_name, why));
                            State::Refused(refused)
                        }
                        _ => State::Idle,
                    };
                    if entry.is_empty() {
                        table.remove(&key);
                    }
                }
            }
            drop(table);
            orders.queue.add(key);
        });
    }

    /// The outcome of the object's orders, for one decision. The next one hears of refusals and of reported failures only
    /// what is still pending.
    pub(crate) fn look(&self, key: &ObjectKey) -> Outcome {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Outcome::default() };
        let outcome = entry.look(Instant::now());
        if entry.is_empty() {
            table.remove(key);
        }
        outcome
    }

    /// A pool has changed in a way that may help the load balancer to an address: answers to claims from before count for
    /// nothing.
    pub(crate) fn outdate(&self, key: &ObjectKey) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return };
        match &mut entry.state {
            State::UnderWay { outdated, .. } => *outdated = true,
            State::Refused(_) | State::Taken => entry.state = State::Idle,
            State::Idle | State::Recorded(..) => {}
        }
        for failed in entry.failed_claims() {
            failed.refused.clear();
            if failed.unreported.is_none() {
                failed.again_at = Instant::now();
            }
        }
    }

    /// The load balancer is gone and has nothing more to order.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.table().remove(key);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ObjectKey, Entry>> {
        self.table.lock().expect("no panic while the table of orders is locked")
    }
}

/// The time until an order that could not be written may be sent again.
fn pause(error: &WriteError, failure: &Failure, failures: u32) -> Duration {
    if error.is_denied {
        return UNWATCHED_AGAIN;
    }
    let asked = writer::asked_to_wait(failure).unwrap_or_default();
    controller_kit::backoff(failures).max(asked)
}

#[cfg(test)]
mod tests {
    use program::{Clock, TaskGroup};

    use super::*;
    use crate::{
        caches::{Caches, no_server},
        pool::{Orphans, PoolIndex},
    };

    /// In a cluster without pools and without server: claims are refused at once.
    fn orders() -> Orders {
        let (caches, clock, tasks) = (Caches::empty(), Clock::system(), TaskGroup::new());
        let index = PoolIndex::follow(&caches);
        let client = no_server();
        let writers = Writers::new(client, clock, tasks, &caches, index, Orphans::default());
        Orders::new(writers, Queue::new())
    }

    // an address of the first pool came free meanwhile: who goes on with the second must come back to the first
    #[tokio::test(start_paused = true)]
    async fn a_refusal_counts_for_nothing_after_a_change_of_pools_also_while_a_decision_rests_on_it() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let refusals = || orders.look(&key).refused;
        for (changed, expected) in [(false, &["edge", "core"][..]), (true, &[][..])] {
            orders.submit(&key, "edge", claim(), Vec::new());
            let refused = refusals();
            assert_eq!(refused.len(), 1);
            if changed {
                orders.outdate(&key);
            }
            orders.submit(&key, "core", claim(), refused);
            assert_eq!(refusals().into_iter().map(|(pool, _)| pool).collect::<Vec<_>>(), expected);
            assert_eq!(orders.queue.depth(), 1, "the object is looked at again");
            assert!(refusals().is_empty(), "an answer is an input of one decision");
        }
    }

    fn claim() -> Order {
        Order::Claim { holder: "shop/web".to_owned(), known: None, family: None }
    }

    fn release() -> Order {
        Order::Release { holder: "shop/web".to_owned(), address: [10, 0, 1, 7].into() }
    }

    /// A claim that pool `edge` refused, and for which pool `core` could not be written.
    fn behind_a_failed_claim(orders: &Orders, key: &ObjectKey) {
        let refused = vec![("edge".to_owned(), Refused::NoSuchPool { pool: "edge".to_owned() })];
        fail(orders, key, "core", claim(), refused);
    }

    fn fail(orders: &Orders, key: &ObjectKey, pool: &str, order: Order, refused: Vec<(String, Refused)>) {
        let failure = Failure::Contended { pool: pool.to_owned() };
        orders.table().entry(key.clone()).or_default().failed(pool.to_owned(), order, failure, refused);
    }

    // the first pool may have room again, and refuses without a write where it has none
    #[tokio::test(start_paused = true)]
    async fn a_claim_that_may_be_sent_again_begins_with_the_first_pool() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        behind_a_failed_claim(&orders, &key);
        let Outcome { refused, pending, unreported, .. } = orders.look(&key);
        assert_eq!((refused.len(), unreported.len()), (1, 1));
        tokio::time::advance(pending.failed[0].retry_in).await;
        let Outcome { refused, pending, unreported, .. } = orders.look(&key);
        assert!(refused.is_empty() && pending.is_empty() && unreported.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_pools_before_anybody_heard_of_a_failure_outdates_the_refusals_before_it() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        behind_a_failed_claim(&orders, &key);
        orders.outdate(&key);
        let outcome = orders.look(&key);
        assert_eq!((outcome.refused.len(), outcome.pending.failed.len()), (0, 1));
        orders.outdate(&key);
        assert!(orders.look(&key).pending.is_empty(), "a change after that lets the claim be sent again");
    }

    // else a full pool is asked again without a pause, or a free address passed over until the release is sent again
    #[tokio::test(start_paused = true)]
    async fn a_release_that_failed_keeps_no_refusal_of_a_claim() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let refused = vec![("core".to_owned(), Refused::NoSuchPool { pool: "core".to_owned() })];
        fail(&orders, &key, "lab", release(), refused);
        let outcome = orders.look(&key);
        assert_eq!((outcome.refused.len(), outcome.pending.failed.len()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn each_order_that_failed_has_a_pause_of_its_own() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let pauses = || {
            let failed = orders.look(&key).pending.failed;
            failed.iter().map(|failed| (failed.pool.clone(), failed.retry_in.as_millis())).collect::<Vec<_>>()
        };
        let pause = |pool: &str, millis| (pool.to_owned(), millis);
        for (pool, order) in
            [("edge", release()), ("edge", claim()), ("core", release()), ("core", release())]
        {
            fail(&orders, &key, pool, order, Vec::new());
        }
        let expected = [pause("edge", 5), pause("edge", 5), pause("core", 10)];
        assert_eq!(pauses(), expected);
        // there is no such pool: a release of it is done, a claim from it refused
        orders.submit(&key, "lab", release(), Vec::new());
        assert_eq!(pauses(), expected, "a release elsewhere changes nothing");
        orders.submit(&key, "edge", release(), Vec::new());
        assert_eq!(pauses(), expected[1..]);
        orders.submit(&key, "edge", claim(), Vec::new());
        assert_eq!(pauses(), expected[2..]);
    }

    fn claim_of(family: Family) -> Order {
        Order::Claim { holder: "shop/web".to_owned(), known: None, family: Some(family) }
    }

    fn refused_by(orders: &Orders, key: &ObjectKey) -> Vec<String> {
        orders.look(key).refused.into_iter().map(|(pool, _)| pool).collect()
    }

    // else the pools of one family are asked in turn, without a pause, as long as the claim of the other is denied
    #[tokio::test(start_paused = true)]
    async fn a_denied_claim_of_one_family_ends_no_refusal_of_the_other() {
        for (denied, asked) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
            let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
            fail(&orders, &key, "edge", claim_of(denied), Vec::new());
            orders.look(&key);
            for (pool, expected) in [("one", &["one"][..]), ("two", &["one", "two"])] {
                let refused = orders.look(&key).refused;
                orders.submit(&key, pool, claim_of(asked), refused);
                // as the decision that follows sees it
                let table = orders.table();
                let State::Refused(pools) = &table[&key].state else { panic!("{pool} refuses") };
                assert_eq!(pools.iter().map(|(pool, _)| pool).collect::<Vec<_>>(), expected);
            }
        }
    }

    // else a pool that refuses is asked again without a pause, as long as the claim of the other family is denied
    #[tokio::test(start_paused = true)]
    async fn a_refusal_counts_beside_those_that_a_denied_claim_of_the_other_family_keeps() {
        for (denied, asked) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
            let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
            let before = vec![("full".to_owned(), Refused::NoSuchPool { pool: "full".to_owned() })];
            fail(&orders, &key, "edge", claim_of(denied), before);
            for _ in 0..2 {
                let refused = orders.look(&key).refused;
                orders.submit(&key, "one", claim_of(asked), refused);
                // as the decision that follows sees it
                assert_eq!(refused_by(&orders, &key), ["full", "one"]);
            }
            let refused = orders.look(&key).refused;
            orders.outdate(&key);
            orders.submit(&key, "one", claim_of(asked), refused);
            assert!(refused_by(&orders, &key).is_empty(), "a pool has changed since");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_a_claim_that_the_object_has_given_up_end_once() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        behind_a_failed_claim(&orders, &key);
        let refused = orders.look(&key).refused;
        orders.submit(&key, "one", claim(), refused);
        assert_eq!(refused_by(&orders, &key), ["one"]);
        let refused = vec![("one".to_owned(), Refused::NoSuchPool { pool: "one".to_owned() })];
        orders.submit(&key, "two", claim(), refused);
        assert_eq!(refused_by(&orders, &key), ["one", "two"], "no pool is asked in turn for ever");
    }
}
