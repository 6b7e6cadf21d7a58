//! Orders of load balancers that are under way or failed, and the answers that nobody has taken yet.
//!
//! A worker never waits for a pool: it submits an order, and the answer puts the object's key back into the queue as an
//! input of the next decision. An order that was carried out shows in the record, and leaves here only that a record is a
//! new one; an order that could not be written is an input of every decision until it may be sent again.

mod entry;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, Queue};
use tokio::time::Instant;

use super::{Answer, Order, Writers, writer::Basis};
pub(crate) use entry::{Changed, Failed, Outcome, Pending, UnderWay, WriteError};
use entry::{Entry, Refusals};

/// An object that heard a refusal although pools had changed meanwhile is looked at again after this: the change wakes it no
/// second time.
const OVERTAKEN_AGAIN: Duration = Duration::from_secs(1);

/// The orders, at most one under way for each load balancer. Clones share them.
#[derive(Clone)]
pub(crate) struct Orders {
    writers: Writers,
    queue: Queue<ObjectKey>,
    table: Arc<Mutex<HashMap<ObjectKey, Entry>>>,
}

impl Orders {
    pub(crate) fn new(writers: Writers, queue: Queue<ObjectKey>) -> Self {
        Self { writers, queue, table: Arc::default() }
    }

    /// Submits an order for `key`. `refused` are the pools that refused this claim before, as [`Orders::look`] gave them.
    pub(crate) fn submit(&self, key: &ObjectKey, pool: &str, order: Order, refused: Refusals) {
        let refused = {
            let mut table = self.table();
            let entry = table.entry(key.clone()).or_default();
            entry.submit(pool, &order, refused, Instant::now())
        };
        let (orders, key, pool_name) = (self.clone(), key.clone(), pool.to_owned());
        let namespace = key.namespace.clone();
        self.writers.submit(&namespace, pool, order.clone(), move |result, Basis { version, .. }| {
            // the server works again, and the address should be shown at once
            if matches!(result, Ok(Answer::RecordedAnew(_))) {
                orders.queue.forgive(&key);
            }
            {
                let mut table = orders.table();
                let entry = table.entry(key.clone()).or_default();
                entry.answer(pool_name, order, (result, version), refused, Instant::now());
                if entry.is_empty() {
                    table.remove(&key);
                }
            }
            orders.queue.add(key);
        });
    }

    /// Has the pool say what is true of it, in the turn of the namespace whose object gave cause. `pools` hears where that
    /// failed; `then` is called in any case, once for all looks that the pool answers by one.
    pub(crate) fn refresh(
        &self,
        namespace: &str,
        pool: &str,
        pools: &Queue<ObjectKey>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let (key, pools) = (ObjectKey::new("", pool), pools.clone());
        self.writers.submit(namespace, pool, Order::Refresh, move |result, Basis { is_told, .. }| {
            if result.is_err() {
                pools.add(key);
            }
            if !is_told {
                then();
            }
        });
    }

    /// The outcome of the object's orders, for one decision. The next one hears of refusals and of reported failures only
    /// what is still pending.
    pub(crate) fn look(&self, key: &ObjectKey) -> Outcome {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Outcome::default() };
        let outcome = entry.look(Instant::now());
        let is_overtaken = entry.is_overtaken(&outcome);
        if entry.is_empty() {
            table.remove(key);
        }
        drop(table);
        if is_overtaken {
            // whoever adds the object earlier has every pool asked anew as well
            self.queue.add_after(key.clone(), OVERTAKEN_AGAIN);
        }
        outcome
    }

    /// A pool has changed in a way that may help the load balancer to an address: answers to claims from before count for
    /// nothing. `changed` is the only pool that may help.
    pub(crate) fn outdate(&self, key: &ObjectKey, changed: Option<Changed<'_>>) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return };
        entry.outdate(changed, Instant::now());
    }

    /// The load balancer is gone and has nothing more to order.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.table().remove(key);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ObjectKey, Entry>> {
        self.table.lock().expect("no panic while the table of orders is locked")
    }
}

#[cfg(test)]
mod tests {
    use controller_kit::Action;
    use ipam::Family;
    use program::{Clock, TaskGroup};

    use super::{entry::State, *};
    use crate::{
        caches::{Caches, no_server},
        pool::{Failure, Orphans, PoolIndex, Refused},
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
                orders.outdate(&key, None);
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
        let mut table = orders.table();
        let entry = table.entry(key.clone()).or_default();
        entry.fail(pool.to_owned(), order, failure, refused, Instant::now());
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
        orders.outdate(&key, None);
        let outcome = orders.look(&key);
        assert_eq!((outcome.refused.len(), outcome.pending.failed.len()), (0, 1));
        orders.outdate(&key, None);
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
            orders.outdate(&key, None);
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

    // the news that the refusal is older than has woken the object already, and wakes it no second time
    #[tokio::test(start_paused = true)]
    async fn an_object_that_heard_an_overtaken_refusal_is_looked_at_once_more() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let ask = |is_overtaken: bool| {
            orders.submit(&key, "edge", claim(), Vec::new());
            if is_overtaken {
                orders.outdate(&key, None);
            }
            refused_by(&orders, &key)
        };
        assert_eq!([(); 4].map(|()| ask(true)), [vec![], vec![], vec![], vec!["edge"]]);
        let (tasks, (looked, mut looks)) = (TaskGroup::new(), tokio::sync::mpsc::unbounded_channel());
        orders.queue.run(&tasks, 1, move |key| {
            let is_told = looked.send(key).map_err(std::io::Error::other);
            async move { is_told.map(|()| Action::AwaitChange) }
        });
        let mut next = async || tokio::time::timeout(Duration::from_secs(5), looks.recv()).await.is_ok();
        assert_eq!((next().await, next().await, next().await), (true, true, false));
        assert_eq!(ask(false), ["edge"]);
        assert_eq!((next().await, next().await), (true, false), "after a refusal that is not it waits");
    }
}
