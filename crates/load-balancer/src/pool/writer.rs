//! One task for each pool, the only one that writes it. It writes at once, and everything that arrives during a write
//! goes into the next one: an idle server answers a claim without delay, and a slow one is asked less. A namespace that has it
//! written again and again waits for its turn.

mod pace;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Cache, ObjectKey, RawObject, refusal, replace};
use harvester_api::IPPool;
use ip_pools::CheckedPool;
use ipam::Turns;
use kube::{Api, Client, ResourceExt as _};
use program::{Clock, TaskGroup};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    batch::{self, Answer, Order, Others, RECORD_LIMIT, Refused, Seen},
    index::PoolIndex,
    orphans::Orphans,
    reservations::{Reservations, Reserved},
};
use crate::{caches::Caches, status_reverted};
use pace::Pace;

/// A conflict means that somebody else wrote the pool; so many in a row mean that something is wrong.
const CONFLICTS: usize = 20;

/// A PUT that got no answer may be stored as late as that: an API server gives a request one minute.
const LOST_PUT: Duration = Duration::from_secs(120);

/// The longest wait that a server can ask of all orders of a pool: every load balancer that needs an address of it waits
/// as long.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why an order was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("write IPPool {pool}")]
    Write { pool: String, source: Arc<kube::Error> },
    #[error("write IPPool {pool}: {CONFLICTS} conflicts in a row; somebody else keeps writing it")]
    Contended { pool: String },
    #[error("write IPPool {pool}: {}", status_reverted::ADVICE)]
    StatusReverted { pool: String },
    #[error("write IPPool {pool}: the task that writes it ended before it answered")]
    Ended { pool: String },
}

struct Job {
    order: Order,
    /// The namespace whose object asks for it, if one does.
    asked_by: Option<String>,
    on_answer: OnAnswer,
}

/// Called exactly once: a task that panics, or stops, answers as well, and the order is tried again.
struct OnAnswer {
    pool: String,
    call: Option<Call>,
}

type Call = Box<dyn FnOnce(Result<Answer, Failure>, Basis<'_>) + Send>;

/// What an answer rests on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Basis<'a> {
    /// The version of the pool that was written, or else the one that was read.
    pub(crate) version: Option<&'a str>,
    /// The answer to another object that had the pool looked at rests on the same look, and went out before.
    pub(crate) is_told: bool,
}

impl OnAnswer {
    fn answer(mut self, result: Result<Answer, Failure>, basis: Basis<'_>) {
        if let Some(call) = self.call.take() {
            call(result, basis);
        }
    }
}

impl Drop for OnAnswer {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call(Err(Failure::Ended { pool: std::mem::take(&mut self.pool) }), Basis::default());
        }
    }
}

impl Shared {
    /// Between two writes of the pool for one namespace.
    fn apart(&self, pool: &str) -> Duration {
        let pool = self.pools.get(&ObjectKey::new("", pool));
        pace::apart(pool.map_or(0, |pool| pool.size()))
    }
}

/// The writers of all pools. Clones share them.
#[derive(Clone)]
pub(crate) struct Writers(Arc<Shared>);

struct Shared {
    client: Client,
    clock: Clock,
    tasks: TaskGroup,
    pools: Cache<RawObject<IPPool>>,
    index: PoolIndex,
    orphans: Orphans,
    reservations: Reservations,
    writers: Mutex<HashMap<String, mpsc::UnboundedSender<Job>>>,
    limit: usize,
}

impl Writers {
    pub(crate) fn new(
        client: Client,
        clock: Clock,
        tasks: TaskGroup,
        caches: &Caches,
        index: PoolIndex,
        orphans: Orphans,
    ) -> Self {
        Self(Arc::new(Shared {
            client,
            clock,
            tasks,
            pools: caches.pools.clone(),
            index,
            orphans,
            reservations: Reservations::default(),
            writers: Mutex::default(),
            limit: RECORD_LIMIT,
        }))
    }

    /// From now on `on_free` hears of addresses that a pool has not given because another one was about to.
    pub(crate) fn on_free(&self, on_free: impl Fn(&[IpAddr]) + Send + Sync + 'static) {
        self.0.reservations.on_free(on_free);
    }

    /// Has an order of an object of this namespace carried out, in its turn among those of the namespace. `on_answer` runs after
    /// the PUT succeeded, or when there was nothing to write.
    pub(crate) fn submit(
        &self,
        namespace: &str,
        pool: &str,
        order: Order,
        on_answer: impl FnOnce(Result<Answer, Failure>, Basis<'_>) + Send + 'static,
    ) {
        self.send(Some(namespace.to_owned()), pool, order, on_answer);
    }

    fn send(
        &self,
        asked_by: Option<String>,
        pool: &str,
        order: Order,
        on_answer: impl FnOnce(Result<Answer, Failure>, Basis<'_>) + Send + 'static,
    ) {
        if self.0.pools.get(&ObjectKey::new("", pool)).is_none() {
            return on_answer(absent(pool, &order), Basis::default());
        }
        let on_answer = OnAnswer { pool: pool.to_owned(), call: Some(Box::new(on_answer)) };
        // a task that has just ended: the job that comes back answers by its drop
        drop(self.writer_of(pool).send(Job { order, asked_by, on_answer }));
    }

    /// Has an order that no object asks for carried out at once, and waits for the answer.
    ///
    /// # Errors
    /// When it was refused, or could not be written.
    pub(crate) async fn order(&self, pool: &str, order: Order) -> Result<Answer, Failure> {
        let (answer, answered) = oneshot::channel();
        // the caller may be gone; the record stands, and the holder's next claim adopts it
        self.send(None, pool, order, move |result, _| drop(answer.send(result)));
        answered.await.unwrap_or_else(|_| Err(Failure::Ended { pool: pool.to_owned() }))
    }

    /// The pool is gone for good: its task ends.
    pub(crate) fn forget(&self, pool: &str) {
        self.0.writers.lock().expect("no panic while looking up a writer").remove(pool);
    }

    fn writer_of(&self, pool: &str) -> mpsc::UnboundedSender<Job> {
        let mut writers = self.0.writers.lock().expect("no panic while looking up a writer");
        let open = writers.get(pool).filter(|writer| !writer.is_closed());
        open.cloned().unwrap_or_else(|| {
            let (writer, jobs) = mpsc::unbounded_channel();
            writers.insert(pool.to_owned(), writer.clone());
            self.0.tasks.spawn(work(self.0.clone(), pool.to_owned(), jobs));
            writer
        })
    }
}

/// Nothing can be claimed from a pool that is not there, and everything else about it is done.
fn absent(pool: &str, order: &Order) -> Result<Answer, Failure> {
    match order {
        order if order.is_claim() => Err(Refused::NoSuchPool { pool: pool.to_owned() }.into()),
        _ => Ok(Answer::Done),
    }
}

/// The addresses of a PUT that got no answer: the server may still store it, so no other pool may give them.
struct Unsettled {
    until: Instant,
    _reserved: Reserved,
}

async fn work(shared: Arc<Shared>, pool: String, mut jobs: mpsc::UnboundedReceiver<Job>) {
    // the oldest first
    let mut unsettled: Vec<Unsettled> = Vec::new();
    let mut turns = Turns::default();
    // the server has asked every writer of the pool to wait, whoever ordered what it wrote
    let mut paused_until = Instant::now();
    let (mut waiting, mut pace) = (Waiting::default(), Pace::default());
    loop {
        let ends = unsettled.first().map(|first| first.until);
        let is_paused = paused_until > Instant::now();
        pace.go_by(shared.apart(&pool));
        let turn = waiting.turn(&pace);
        tokio::select! {
            biased;
            () = shared.tasks.stop.cancelled() => return,
            job = jobs.recv(), if !is_paused => match job {
                Some(job) => waiting.add(job),
                None => return,
            },
            () = sleep_until(paused_until), if is_paused => continue,
            () = sleep_until(turn.unwrap_or_else(Instant::now)), if !is_paused && turn.is_some() => {}
            () = sleep_until(ends.unwrap_or_else(Instant::now)), if ends.is_some() => {
                unsettled.retain(|write| write.until > Instant::now());
                continue;
            }
        }
        // those whom one address wakes come one after the other, and where there is none to give no PUT joins them
        loop {
            tokio::task::yield_now().await;
            let before = waiting.jobs.len();
            while let Ok(job) = jobs.try_recv() {
                waiting.add(job);
            }
            if waiting.jobs.len() == before {
                break;
            }
        }
        pace.go_by(shared.apart(&pool));
        let batch = waiting.take(&pace, |orders| would_write(&shared, &pool, orders, turns));
        if batch.is_empty() {
            continue;
        }
        let (orders, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|job| (job.order, (job.asked_by, job.on_answer))).unzip();
        let mut rests_on = RestsOn::default();
        let results = match write(&shared, &pool, &orders, &mut unsettled, &mut turns, &mut rests_on).await {
            Ok(results) => results,
            Err(failure) => {
                paused_until = Instant::now() + asked_to_wait(&failure).unwrap_or_default();
                vec![Err(failure); orders.len()]
            }
        };
        let (mut causes, mut answered) = (BTreeSet::new(), Vec::new());
        for ((order, (asked_by, on_answer)), result) in orders.iter().zip(answers).zip(results) {
            let is_cause = rests_on.was_sent && !matches!(result, Err(Failure::Refused(_)));
            // an object that has the pool looked at wakes everybody who waits for it, also where nothing is written
            let is_look = asked_by.is_some() && matches!(order, Order::Refresh);
            if is_cause || is_look {
                causes.extend(asked_by);
            }
            answered.push((is_look, on_answer, result));
        }
        pace.caused(&causes);
        let mut is_told = false;
        for (is_look, on_answer, result) in answered {
            on_answer.answer(result, Basis { version: rests_on.version.as_deref(), is_told });
            is_told |= is_look;
        }
    }
}

/// Orders that are not carried out yet: the next write takes all of them along, whichever namespace causes it.
#[derive(Default)]
struct Waiting {
    jobs: Vec<Job>,
    /// The namespaces that ask, and nobody for an order that no object asks for.
    askers: BTreeSet<Option<String>>,
}

impl Waiting {
    fn add(&mut self, job: Job) {
        if !self.askers.contains(&job.asked_by) {
            self.askers.insert(job.asked_by.clone());
        }
        self.jobs.push(job);
    }

    /// The time from which one of them may cause a write; `None`: there is none.
    fn turn(&self, pace: &Pace) -> Option<Instant> {
        let turn = |asker: &Option<String>| {
            asker.as_deref().and_then(|namespace| pace.turn(namespace)).unwrap_or_else(Instant::now)
        };
        self.askers.iter().map(turn).min()
    }

    /// What is carried out now: what no object asks for, and the orders of the namespaces that have their turn. Where these
    /// cause a write it takes along the others; a claim that is refused does not, and neither does what no object asks for: a
    /// pool is looked at after each release.
    fn take(&mut self, pace: &Pace, would_write: impl FnOnce(&[Order]) -> bool) -> Vec<Job> {
        let now = Instant::now();
        let has_turn =
            |asker: &Option<String>| asker.as_deref().is_none_or(|namespace| pace.has_turn(namespace, now));
        let (due, late): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut self.askers).into_iter().partition(has_turn);
        let is_due = |job: &Job| due.contains(&job.asked_by);
        let due_orders = || -> Vec<_> {
            self.jobs.iter().filter(|job| is_due(job)).map(|job| job.order.clone()).collect()
        };
        if late.is_empty() || due.iter().any(Option::is_some) && would_write(&due_orders()) {
            return std::mem::take(&mut self.jobs);
        }
        self.askers = late;
        let (taken, waits) = std::mem::take(&mut self.jobs).into_iter().partition(is_due);
        self.jobs = waits;
        taken
    }
}

/// Whether these orders cause a write, if nobody writes the pool first.
fn would_write(shared: &Shared, pool: &str, orders: &[Order], turns: Turns) -> bool {
    let read = shared.pools.get(&ObjectKey::new("", pool));
    read.is_none_or(|read| {
        let look = Look::at(shared, pool, &read);
        batch::decide(look.seen(&read, turns, shared.limit), orders).put.is_some()
    })
}

/// The wait that the server asked for, as long as everybody who needs the pool can wait.
pub(super) fn asked_to_wait(failure: &Failure) -> Option<Duration> {
    match failure {
        Failure::Write { source, .. } => {
            controller_kit::retry_after(&**source).map(|wait| wait.min(LONGEST_PAUSE))
        }
        _ => None,
    }
}

/// What the answers to a batch rest on.
#[derive(Default)]
struct RestsOn {
    /// A PUT was sent, whatever became of it.
    was_sent: bool,
    /// The version that was written, or else the one that was read.
    version: Option<String>,
}

async fn write(
    shared: &Shared,
    name: &str,
    orders: &[Order],
    unsettled: &mut Vec<Unsettled>,
    turns: &mut Turns,
    rests_on: &mut RestsOn,
) -> Result<Vec<Result<Answer, Failure>>, Failure> {
    let key = ObjectKey::new("", name);
    let failed = |source| Failure::Write { pool: name.to_owned(), source: Arc::new(source) };
    let gone = || Ok(orders.iter().map(|order| absent(name, order)).collect());
    let Some(mut read) = shared.pools.get(&key) else { return gone() };
    for _ in 0..CONFLICTS {
        let look = Look::at(shared, name, &read);
        rests_on.version = read.resource_version();
        let decision = batch::decide(look.seen(&read, *turns, shared.limit), orders);
        let turned = decision.turns;
        let answers = || decision.answers.into_iter().map(|answer| answer.map_err(Failure::from)).collect();
        let Some(json) = decision.put else { return Ok(answers()) };
        let Some(reserved) = shared.reservations.reserve(name, &decision.recorded) else { continue };
        // a writer of another pool that finished in between has left its record
        let recorded_elsewhere =
            |address: &IpAddr| shared.index.holders_of(*address).iter().any(|(pool, _)| pool != name);
        if decision.recorded.iter().any(recorded_elsewhere) {
            continue;
        }
        rests_on.was_sent = true;
        match replace::<IPPool>(&shared.client, &json).await {
            Ok(written) => {
                tracing::debug!(pool = name, orders = orders.len(), "pool written");
                let reverted = status_reverted::record(&json, &written);
                rests_on.version = written.resource_version();
                note(&shared.pools, &shared.index, written);
                // each of them was made from an older version
                unsettled.clear();
                *turns = turned;
                return if reverted {
                    Err(Failure::StatusReverted { pool: name.to_owned() })
                } else {
                    let version = rests_on.version.as_deref();
                    shared.index.note_recorded(name, version, &decision.recorded);
                    Ok(answers())
                };
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => return gone(),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                tracing::debug!(pool = name, "somebody else wrote the pool: deciding again");
                match Api::<RawObject<IPPool>>::all(shared.client.clone())
                    .get_opt(name)
                    .await
                    .map_err(failed)?
                {
                    Some(fresh) => match note(&shared.pools, &shared.index, fresh) {
                        Some(newest) => read = newest,
                        None => return gone(),
                    },
                    None => return gone(),
                }
            }
            Err(error) => {
                let settled = matches!(&error, kube::Error::Api(status) if refusal::stored_nothing(status));
                if !settled {
                    let until = Instant::now() + LOST_PUT;
                    unsettled.push(Unsettled { until, _reserved: reserved });
                }
                return Err(failed(error));
            }
        }
    }
    Err(Failure::Contended { pool: name.to_owned() })
}

/// Takes in the server's answer. Returns the newest version known, which may be another: the index knows it as well, before
/// a reservation ends.
fn note(
    pools: &Cache<RawObject<IPPool>>,
    index: &PoolIndex,
    answer: RawObject<IPPool>,
) -> Option<Arc<RawObject<IPPool>>> {
    let key = ObjectKey::of(&answer);
    pools.wrote(answer);
    index.catch_up(&key);
    pools.get(&key)
}

/// Everything that the PUT depends on.
struct Look<'a> {
    checked: CheckedPool,
    status_addresses: Vec<(IpAddr, String)>,
    orphans: Vec<ObjectKey>,
    beside: Beside<'a>,
    now: String,
    at: i64,
}

impl<'a> Look<'a> {
    fn at(shared: &'a Shared, name: &'a str, read: &RawObject<IPPool>) -> Self {
        Self {
            checked: shared.index.check(read),
            status_addresses: shared.index.status_addresses(name),
            orphans: shared.orphans.list(),
            beside: Beside { shared, pool: name },
            now: shared.clock.now_text(),
            at: shared.clock.now().as_second(),
        }
    }

    fn seen<'b>(&'b self, pool: &'b RawObject<IPPool>, turns: Turns, limit: usize) -> Seen<'b> {
        let Self { checked, status_addresses, orphans, beside, now, at } = self;
        Seen { pool, checked, status_addresses, orphans, others: beside, turns, now, at: *at, limit }
    }
}

/// Everything beside the record of this pool.
struct Beside<'a> {
    shared: &'a Shared,
    pool: &'a str,
}

impl Others for Beside<'_> {
    fn have(&self, address: IpAddr, holder: &str) -> bool {
        let Self { shared, pool } = self;
        shared.reservations.is_reserved_by_another(pool, address)
            || shared.index.is_taken(pool, address, holder)
    }

    fn outrank(&self, address: IpAddr, holder: &str) -> bool {
        self.shared.index.counts_for_nothing(self.pool, address, holder)
    }

    fn used_by(&self, holder: &str) -> Vec<IpAddr> {
        self.shared.index.used_by(holder)
    }

    fn cluster_of(&self, holder: &str) -> Option<String> {
        self.shared.index.cluster_of(holder)
    }

    fn members_of(&self, cluster: &str) -> Vec<String> {
        self.shared.index.members_of(cluster)
    }
}

#[cfg(test)]
mod tests;
