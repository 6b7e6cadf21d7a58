//! Orders of load balancers that are under way, and the answers that nobody has taken yet.
//!
//! A worker never waits for a pool: it submits an order, and the answer puts the object's key back into the queue as an
//! input of the next decision. An order that was carried out needs no answer here, because the record shows it; one that
//! could not be written is an input of every decision until it may be sent again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, Queue, error_message};
use tokio::time::Instant;

use super::{Failure, Order, Refused, Writers, writer};
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
}

#[derive(Default)]
enum State {
    /// Nothing is ordered; the entry counts failures.
    #[default]
    Idle,
    UnderWay {
        pool: String,
        order: Order,
        /// A refusal counts for nothing, because a pool has changed since the order was submitted.
        outdated: bool,
    },
    Refused(Vec<(String, Refused)>),
    Failed(Unwritten),
}

struct Unwritten {
    pool: String,
    order: Order,
    failure: Failure,
    /// The pools that had refused this claim before.
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
    /// The pools that refused this claim, in the order in which they were asked.
    Refused(Vec<(String, Refused)>),
    /// The pool has not carried it out. `refused` as above; `news` is a failure that nobody has heard of yet.
    Pending { pending: Pending, refused: Vec<(String, Refused)>, news: Option<Failure> },
}

/// An order that its pool has not carried out.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) pool: String,
    pub(crate) order: Order,
    /// `None`: the pool's writer has it, and its answer will wake the object.
    pub(crate) failed: Option<Failed>,
}

/// The pool could not be written.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) why: String,
    /// A claim that the server will answer in the same way until somebody mends that.
    pub(crate) is_refusal: bool,
    /// The order may be sent again after this time.
    pub(crate) retry_in: Duration,
}

impl Orders {
    pub(crate) fn new(writers: Writers, queue: Queue<ObjectKey>) -> Self {
        Self { writers, queue, table: Arc::default() }
    }

    /// Submits an order for `key`. `refused` are the pools that have refused the object's claim.
    pub(crate) fn submit(
        &self,
        key: &ObjectKey,
        pool: &str,
        order: Order,
        mut refused: Vec<(String, Refused)>,
    ) {
        let (orders, key, pool_name) = (self.clone(), key.clone(), pool.to_owned());
        let under_way = State::UnderWay { pool: pool_name.clone(), order: order.clone(), outdated: false };
        self.table().entry(key.clone()).or_default().state = under_way;
        self.writers.submit(pool, order.clone(), move |result| {
            let mut table = orders.table();
            match result {
                Ok(()) => drop(table.remove(&key)),
                Err(Failure::Refused(_)) if table.get(&key).is_some_and(Entry::is_outdated) => {
                    table.remove(&key);
                }
                Err(Failure::Refused(why)) => {
                    refused.push((pool_name, why));
                    table.insert(key.clone(), Entry { state: State::Refused(refused), failures: 0 });
                }
                Err(failure) => {
                    let entry = table.entry(key.clone()).or_default();
                    entry.failures += 1;
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
            State::Idle => Outcome::None,
            State::UnderWay { pool, order, outdated } => {
                let pending = Pending { pool: pool.clone(), order: order.clone(), failed: None };
                entry.state = State::UnderWay { pool, order, outdated };
                Outcome::Pending { pending, refused: Vec::new(), news: None }
            }
            State::Refused(pools) => {
                table.remove(key);
                Outcome::Refused(pools)
            }
            State::Failed(unwritten) => {
                let now = Instant::now();
                if unwritten.again_at.is_some_and(|at| at <= now) {
                    let refused = unwritten.refused;
                    return if refused.is_empty() { Outcome::None } else { Outcome::Refused(refused) };
                }
                let again_at = unwritten.again_at.unwrap_or_else(|| now + pause(&unwritten, entry.failures));
                let Unwritten { pool, order, failure, refused, .. } = &unwritten;
                let is_refusal = is_refused_claim(&unwritten);
                let failed = Failed { why: why(failure), is_refusal, retry_in: again_at - now };
                let outcome = Outcome::Pending {
                    pending: Pending { pool: pool.clone(), order: order.clone(), failed: Some(failed) },
                    refused: refused.clone(),
                    news: unwritten.again_at.is_none().then(|| failure.clone()),
                };
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
            State::Failed(Unwritten { again_at: Some(_), .. }) => entry.state = State::Idle,
            State::Idle | State::Failed(_) => {}
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
    if is_refused_claim(unwritten) {
        return UNWATCHED_AGAIN;
    }
    let asked = writer::asked_to_wait(&unwritten.failure).unwrap_or_default();
    controller_kit::backoff(failures).max(asked)
}

fn why(failure: &Failure) -> String {
    match failure {
        Failure::Write { source, .. } => error_message(&**source),
        other => error_message(other),
    }
}

fn is_refused_claim(Unwritten { order, failure, .. }: &Unwritten) -> bool {
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
    use rstest::rstest;

    use super::*;

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
}
