//! Orders of load balancers that are under way, and the answers that nobody has taken yet.
//!
//! A worker never waits for a pool: it submits an order, and the answer puts the object's key back into the queue as an
//! input of the next decision. An order that was carried out needs no answer here, because the record shows it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, Queue};

use super::{Failure, Order, Refused, Writers};

/// The orders, at most one for each load balancer. Clones share them.
#[derive(Clone)]
pub(crate) struct Orders {
    writers: Writers,
    queue: Queue<ObjectKey>,
    table: Arc<Mutex<HashMap<ObjectKey, Entry>>>,
}

#[derive(Default)]
struct Entry {
    state: State,
    /// Failures in a row.
    failures: u32,
}

#[derive(Default)]
enum State {
    /// Nothing is ordered; the entry counts failures.
    #[default]
    Idle,
    /// `outdated`: a refusal counts for nothing, because a pool has changed since the order was submitted.
    UnderWay {
        outdated: bool,
    },
    Refused(Vec<(String, Refused)>),
    Failed {
        pool: String,
        failure: Failure,
        is_claim: bool,
    },
}

impl Entry {
    fn is_outdated(&self) -> bool {
        matches!(self.state, State::UnderWay { outdated: true })
    }
}

/// The outcome of a load balancer's last order.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There was none, or the record shows it.
    None,
    /// No answer yet; it will wake the object.
    UnderWay,
    /// The pools that refused this claim, in the order in which they were asked.
    Refused(Vec<(String, Refused)>),
    /// It could not be written.
    Failed { pool: String, failure: Failure, is_claim: bool, retry_in: Duration },
}

impl Orders {
    pub(crate) fn new(writers: Writers, queue: Queue<ObjectKey>) -> Self {
        Self { writers, queue, table: Arc::default() }
    }

    /// Submits an order for `key`. `refused` are the pools that refused this claim before.
    pub(crate) fn submit(
        &self,
        key: &ObjectKey,
        pool: &str,
        order: Order,
        mut refused: Vec<(String, Refused)>,
    ) {
        self.table().entry(key.clone()).or_default().state = State::UnderWay { outdated: false };
        let (orders, key, name) = (self.clone(), key.clone(), pool.to_owned());
        let is_claim = matches!(order, Order::Claim { .. });
        self.writers.submit(pool, order, move |result| {
            let mut table = orders.table();
            match result {
                Ok(_) => drop(table.remove(&key)),
                Err(Failure::Refused(_)) if table.get(&key).is_some_and(Entry::is_outdated) => {
                    table.remove(&key);
                }
                Err(Failure::Refused(why)) => {
                    refused.push((name, why));
                    table.insert(key.clone(), Entry { state: State::Refused(refused), failures: 0 });
                }
                Err(failure) => {
                    let entry = table.entry(key.clone()).or_default();
                    entry.failures += 1;
                    entry.state = State::Failed { pool: name, failure, is_claim };
                }
            }
            drop(table);
            orders.queue.add(key);
        });
    }

    /// Takes the outcome of the last order: an answer is an input of one decision.
    pub(crate) fn take(&self, key: &ObjectKey) -> Outcome {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Outcome::None };
        match std::mem::take(&mut entry.state) {
            State::Idle => Outcome::None,
            under_way @ State::UnderWay { .. } => {
                entry.state = under_way;
                Outcome::UnderWay
            }
            State::Refused(pools) => {
                table.remove(key);
                Outcome::Refused(pools)
            }
            State::Failed { pool, failure, is_claim } => {
                let asked = super::writer::asked_to_wait(&failure).unwrap_or_default();
                let retry_in = controller_kit::backoff(entry.failures).max(asked);
                Outcome::Failed { pool, failure, is_claim, retry_in }
            }
        }
    }

    /// A pool has changed in a way that may help the load balancer: refusals from before count for nothing.
    pub(crate) fn outdate(&self, key: &ObjectKey) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return };
        match &mut entry.state {
            State::UnderWay { outdated } => *outdated = true,
            State::Refused(_) => drop(table.remove(key)),
            State::Idle | State::Failed { .. } => {}
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
