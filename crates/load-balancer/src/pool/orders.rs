//! Orders of load balancers that are under way, and the answers that nobody has taken yet.
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
use tokio::time::Instant;

use super::{Failure, Order, Refused, Writers, batch::Answer, writer};
use crate::{controller::UNWATCHED_AGAIN, host_datapath::write};

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
    /// The pool that could not be written last.
    unwritten: Option<(String, Failed)>,
}

#[derive(Default)]
enum State {
    /// Nothing is ordered; the entry counts failures.
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
    Failed(Unwritten),
}

struct Unwritten {
    pool: String,
    order: Order,
    failure: Failure,
    /// The pools that had refused this claim before, and have not changed since.
    refused: Vec<(String, Refused)>,
    /// When the order may be sent again. `None`: nobody has heard of the failure yet.
    again_at: Option<Instant>,
}

impl Entry {
    fn is_outdated(&self) -> bool {
        matches!(self.state, State::UnderWay { outdated: true, .. })
    }
}

/// The outcome of a load balancer's last order.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// There was none, or the record shows it, or the time has come to send it again.
    None,
    /// The pool recorded this address; it had none for the load balancer before.
    Recorded(String, IpAddr),
    /// The pools that refused this claim, in the order in which they were asked.
    Refused(Vec<(String, Refused)>),
    /// The pool has not carried it out. Of a failed claim `refused` are the pools that refused it before; `news` is a
    /// failure that nobody has heard of yet.
    Pending { pending: Pending, refused: Vec<(String, Refused)>, news: Option<Failure> },
}

/// An order that its pool has not carried out.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) pool: String,
    pub(crate) order: Order,
    /// It failed and may be sent again after this time. `None`: the pool's writer has it, and its answer will wake the
    /// object.
    pub(crate) retry_in: Option<Duration>,
    /// Why the pool was not written: this time, or the last time where the writer has the order again.
    pub(crate) failed: Option<Failed>,
}

/// The pool could not be written.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) why: String,
    /// A claim that the server will answer in the same way until somebody mends that.
    pub(crate) is_denied: bool,
}

impl Orders {
    pub(crate) fn new(writers: Writers, queue: Queue<ObjectKey>) -> Self {
        Self { writers, queue, table: Arc::default() }
    }

    /// Submits an order for `key`. `refused` are the pools that refused this claim before, as [`Orders::take`] gave them.
    pub(crate) fn submit(
        &self,
        key: &ObjectKey,
        pool: &str,
        order: Order,
        mut refused: Vec<(String, Refused)>,
    ) {
        let (orders, key, pool_name) = (self.clone(), key.clone(), pool.to_owned());
        {
            let mut table = self.table();
            let state = &mut table.entry(key.clone()).or_default().state;
            if matches!(state, State::Failed(_)) {
                // they refused a claim that the object has given up
                refused.clear();
            }
            let outdated = !refused.is_empty() && !matches!(state, State::Taken);
            *state = State::UnderWay { pool: pool_name.clone(), order: order.clone(), outdated };
        }
        self.writers.submit(pool, order.clone(), move |result| {
            let mut table = orders.table();
            match result {
                Ok(Answer::Done) => drop(table.remove(&key)),
                Ok(Answer::RecordedAnew(address)) => {
                    let state = State::Recorded(pool_name, address);
                    table.insert(key.clone(), Entry { state, ..Entry::default() });
                }
                Err(Failure::Refused(_)) if table.get(&key).is_some_and(Entry::is_outdated) => {
                    table.remove(&key);
                }
                Err(Failure::Refused(why)) => {
                    refused.push((pool_name, why));
                    table.insert(key.clone(), Entry { state: State::Refused(refused), ..Entry::default() });
                }
                Err(failure) => {
                    let entry = table.entry(key.clone()).or_default();
                    entry.failures += 1;
                    if entry.is_outdated() {
                        refused.clear();
                    }
                    entry.unwritten = Some((pool_name.clone(), failed(&order, &failure)));
                    let unwritten = Unwritten { pool: pool_name, order, failure, refused, again_at: None };
                    entry.state = State::Failed(unwritten);
                }
            }
            drop(table);
            orders.queue.add(key);
        });
    }

    /// Takes the outcome of the last order. A refusal is an input of one decision.
    pub(crate) fn take(&self, key: &ObjectKey) -> Outcome {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return Outcome::None };
        match std::mem::take(&mut entry.state) {
            State::Idle | State::Taken => Outcome::None,
            State::UnderWay { pool, order, outdated } => {
                let before = entry.unwritten.as_ref().filter(|(unwritten, _)| *unwritten == pool);
                let failed = before.map(|(_, failed)| failed.clone());
                let pending = Pending { pool: pool.clone(), order: order.clone(), retry_in: None, failed };
                entry.state = State::UnderWay { pool, order, outdated };
                Outcome::Pending { pending, refused: Vec::new(), news: None }
            }
            State::Recorded(pool, address) => {
                table.remove(key);
                Outcome::Recorded(pool, address)
            }
            State::Refused(pools) => {
                entry.state = State::Taken;
                Outcome::Refused(pools)
            }
            State::Failed(unwritten) => {
                let now = Instant::now();
                if unwritten.again_at.is_some_and(|at| at <= now) {
                    // every pool is asked again: those that refuse write nothing
                    return Outcome::None;
                }
                let again_at = unwritten.again_at.unwrap_or_else(|| now + pause(&unwritten, entry.failures));
                let Unwritten { pool, order, failure, refused, .. } = &unwritten;
                let pending = Pending {
                    pool: pool.clone(),
                    order: order.clone(),
                    retry_in: Some(again_at - now),
                    failed: Some(failed(order, failure)),
                };
                let news = unwritten.again_at.is_none().then(|| failure.clone());
                let outcome = Outcome::Pending { pending, refused: refused.clone(), news };
                entry.state = State::Failed(Unwritten { again_at: Some(again_at), ..unwritten });
                outcome
            }
        }
    }

    /// A pool has changed in a way that may help the load balancer: answers from before count for nothing.
    pub(crate) fn outdate(&self, key: &ObjectKey) {
        let mut table = self.table();
        let Some(entry) = table.get_mut(key) else { return };
        match &mut entry.state {
            State::UnderWay { outdated, .. } => *outdated = true,
            State::Refused(_) => drop(table.remove(key)),
            // the count of failures stays
            State::Taken | State::Failed(Unwritten { again_at: Some(_), .. }) => entry.state = State::Idle,
            State::Failed(unwritten) => unwritten.refused.clear(),
            State::Idle | State::Recorded(..) => {}
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
fn pause(unwritten: &Unwritten, failures: u32) -> Duration {
    if is_denied_claim(&unwritten.order, &unwritten.failure) {
        return UNWATCHED_AGAIN;
    }
    let asked = writer::asked_to_wait(&unwritten.failure).unwrap_or_default();
    controller_kit::backoff(failures).max(asked)
}

fn failed(order: &Order, failure: &Failure) -> Failed {
    let why = match failure {
        Failure::Write { source, .. } => error_message(&**source),
        other => error_message(other),
    };
    Failed { why, is_denied: is_denied_claim(order, failure) }
}

fn is_denied_claim(order: &Order, failure: &Failure) -> bool {
    let is_claim = matches!(order, Order::Claim { .. });
    is_claim && matches!(failure, Failure::Write { source, .. } if is_refusal(source))
}

/// Whether the server will answer the same request in the same way, as far as it alone is concerned.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if matches!(status.code, 400..500) && !matches!(status.code, 401 | 408 | 409 | 429) || write::is_denial(status))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use program::{Clock, TaskGroup};
    use rstest::rstest;

    use super::*;
    use crate::{
        caches::{Caches, no_server},
        pool::{Orphans, PoolIndex},
    };

    const WEBHOOK: &str = "admission webhook \"pools.example.com\" denied the request: not during the freeze";
    const POLICY: &str = "ippools \"edge\" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'all' denied \
                          request: not now";

    #[rstest]
    #[case::forbidden(403, "ippools \"edge\" is forbidden", true)]
    #[case::invalid(422, "IPPool \"edge\" is invalid", true)]
    #[case::a_webhook_without_code(400, WEBHOOK, true)]
    // the server passes on any code from 400 that the webhook gives
    #[case::a_webhook_with_a_code_of_its_own(500, WEBHOOK, true)]
    #[case::a_webhook_that_says_busy(429, WEBHOOK, true)]
    #[case::a_policy(401, POLICY, true)]
    #[case::a_webhook_that_is_away(
        500,
        "failed calling webhook \"pools.example.com\": connection refused",
        false
    )]
    #[case::expired_credentials(401, "Unauthorized", false)]
    #[case::busy(429, "too many requests", false)]
    fn a_denial_by_admission_is_a_refusal_whatever_its_code(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let status = Status::failure(message, "").with_code(code);
        assert_eq!(is_refusal(&kube::Error::Api(Box::new(status))), expected);
    }

    /// In a cluster without pools and without server: claims are refused at once.
    fn orders() -> Orders {
        let (caches, clock, tasks) = (Caches::empty(), Clock::system(), TaskGroup::new());
        let index = PoolIndex::follow(&caches);
        let client = no_server();
        let writers = Writers::new(client, clock, tasks, &caches, index, Orphans::default());
        Orders::new(writers, Queue::new())
    }

    fn refusals(outcome: Outcome) -> Vec<(String, Refused)> {
        match outcome {
            Outcome::None => Vec::new(),
            Outcome::Refused(pools) => pools,
            other => panic!("{other:?}"),
        }
    }

    // an address of the first pool came free meanwhile: who goes on with the second must come back to the first
    #[tokio::test(start_paused = true)]
    async fn a_refusal_counts_for_nothing_after_a_change_of_pools_also_while_a_decision_rests_on_it() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let claim = || Order::Claim { holder: key.to_string(), known: None };
        for (changed, expected) in [(false, &["edge", "core"][..]), (true, &[][..])] {
            orders.submit(&key, "edge", claim(), Vec::new());
            let refused = refusals(orders.take(&key));
            assert_eq!(refused.len(), 1);
            if changed {
                orders.outdate(&key);
            }
            orders.submit(&key, "core", claim(), refused);
            let refused = refusals(orders.take(&key));
            assert_eq!(refused.into_iter().map(|(pool, _)| pool).collect::<Vec<_>>(), expected);
            assert_eq!(orders.queue.depth(), 1, "the object is looked at again");
            assert!(matches!(orders.take(&key), Outcome::None), "an answer is an input of one decision");
        }
    }

    fn failed_claim(refused: Vec<(String, Refused)>) -> Unwritten {
        let order = Order::Claim { holder: "shop/web".to_owned(), known: None };
        let failure = Failure::Contended { pool: "core".to_owned() };
        Unwritten { pool: "core".to_owned(), order, failure, refused, again_at: None }
    }

    // the first pool may have room again, and refuses without a write where it has none
    #[tokio::test(start_paused = true)]
    async fn a_claim_that_may_be_sent_again_begins_with_the_first_pool() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let refused = vec![("edge".to_owned(), Refused::NoSuchPool { pool: "edge".to_owned() })];
        let state = State::Failed(failed_claim(refused));
        orders.table().insert(key.clone(), Entry { state, failures: 1, unwritten: None });
        let Outcome::Pending { pending, refused, news } = orders.take(&key) else { panic!("not pending") };
        assert_eq!((refused.len(), news.is_some()), (1, true));
        tokio::time::advance(pending.retry_in.expect("it failed")).await;
        assert!(matches!(orders.take(&key), Outcome::None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_pools_before_anybody_heard_of_a_failure_outdates_the_refusals_before_it() {
        let (orders, key) = (orders(), ObjectKey::new("shop", "web"));
        let refused = vec![("edge".to_owned(), Refused::NoSuchPool { pool: "edge".to_owned() })];
        let state = State::Failed(failed_claim(refused));
        orders.table().insert(key.clone(), Entry { state, failures: 1, unwritten: None });
        orders.outdate(&key);
        let Outcome::Pending { refused, .. } = orders.take(&key) else { panic!("not pending") };
        assert_eq!(refused.len(), 0);
    }
}
