//! One task for each pool, the only one that writes it.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Cache, ObjectKey, RawObject, replace};
use harvester_api::{IPPool, LoadBalancer};
use kube::{Api, Client, Resource, ResourceExt};
use program::{Clock, TaskGroup};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::batch::{self, Answer, Order, RECORD_LIMIT, Refused, Seen};
use crate::put_back;

/// Orders that go into one PUT at most.
const BATCH: usize = 512;
/// After a PUT the desk rests so many times as long as the PUT took: a claim on idle servers waits for nothing, and in a
/// burst orders gather, so that a slow server is asked less instead of more.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(300);
/// A conflict means that somebody else wrote the pool; so many in a row mean that something is wrong.
const CONFLICTS: usize = 20;

/// Why an order was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("write IPPool {pool}")]
    Write { pool: String, source: Arc<kube::Error> },
    #[error("write IPPool {pool}: {CONFLICTS} conflicts in a row; somebody else keeps writing it")]
    Contended { pool: String },
    #[error("write IPPool {pool}: {}", put_back::ADVICE)]
    PutBack { pool: String },
    #[error("write IPPool {pool}: stopping")]
    Stopping { pool: String },
}

struct Job {
    order: Order,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

/// The desks where orders are taken. Cheap to clone.
#[derive(Clone)]
pub struct Writers(Arc<Shared>);

struct Shared {
    client: Client,
    clock: Clock,
    tasks: TaskGroup,
    pools: Cache<RawObject<IPPool>>,
    balancers: Cache<RawObject<LoadBalancer>>,
    desks: Mutex<HashMap<String, mpsc::UnboundedSender<Job>>>,
    limit: usize,
}

impl Writers {
    pub fn new(
        client: Client,
        clock: Clock,
        tasks: TaskGroup,
        pools: Cache<RawObject<IPPool>>,
        balancers: Cache<RawObject<LoadBalancer>>,
    ) -> Self {
        let desks = Mutex::default();
        Self(Arc::new(Shared { client, clock, tasks, pools, balancers, desks, limit: RECORD_LIMIT }))
    }

    /// Has an order carried out. The answer comes after the PUT succeeded, or when there was nothing to write.
    ///
    /// # Errors
    /// When it was refused, or could not be written.
    pub async fn order(&self, pool: &str, order: Order) -> Result<Answer, Failure> {
        if self.0.pools.get(&ObjectKey::new("", pool)).is_none() {
            return absent(pool, &order);
        }
        let (answer, answered) = oneshot::channel();
        let stopping = || Failure::Stopping { pool: pool.to_owned() };
        self.desk(pool).send(Job { order, answer }).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }

    /// The pool is gone for good: its task ends.
    pub fn forget(&self, pool: &str) {
        self.0.desks.lock().expect("no panic while looking up a desk").remove(pool);
    }

    fn desk(&self, pool: &str) -> mpsc::UnboundedSender<Job> {
        let mut desks = self.0.desks.lock().expect("no panic while looking up a desk");
        let open = desks.get(pool).filter(|desk| !desk.is_closed());
        open.cloned().unwrap_or_else(|| {
            let (desk, jobs) = mpsc::unbounded_channel();
            desks.insert(pool.to_owned(), desk.clone());
            self.0.tasks.spawn(work(self.0.clone(), pool.to_owned(), jobs));
            desk
        })
    }
}

/// Nothing can be claimed from a pool that is not there, and everything else about it is done.
fn absent(pool: &str, order: &Order) -> Result<Answer, Failure> {
    match order {
        Order::Claim { .. } => Err(Refused::NoSuchPool { pool: pool.to_owned() }.into()),
        _ => Ok(Answer::Done),
    }
}

async fn work(shared: Arc<Shared>, pool: String, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut rested = Instant::now();
    loop {
        let mut batch = Vec::new();
        let gather = async {
            sleep_until(rested).await;
            jobs.recv_many(&mut batch, BATCH).await
        };
        if shared.tasks.stop.run_until_cancelled(gather).await.unwrap_or(0) == 0 {
            return;
        }
        let began = Instant::now();
        let (orders, answers): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|job| (job.order, job.answer)).unzip();
        let results = match write(&shared, &pool, &orders).await {
            Ok(results) => results,
            Err(failure) => vec![Err(failure); orders.len()],
        };
        rested = Instant::now() + (began.elapsed() * REST).min(LONGEST_REST);
        for (answer, result) in answers.into_iter().zip(results) {
            // whoever asked may have gone away; the record stands, and its next claim adopts it
            drop(answer.send(result));
        }
    }
}

async fn write(
    shared: &Shared,
    name: &str,
    orders: &[Order],
) -> Result<Vec<Result<Answer, Failure>>, Failure> {
    let key = ObjectKey::new("", name);
    let failed = |source| Failure::Write { pool: name.to_owned(), source: Arc::new(source) };
    let gone = || Ok(orders.iter().map(|order| absent(name, order)).collect());
    let Some(mut read) = shared.pools.get(&key) else { return gone() };
    for _ in 0..CONFLICTS {
        let others = shared.pools.list();
        let judged = ip_pools::judge(&read, others.iter().map(|pool| &***pool));
        let now = shared.clock.now_text();
        let known = known(shared, name);
        let seen = Seen { pool: &read, judged: &judged, known: &known, now: &now, limit: shared.limit };
        let decision = batch::decide(seen, orders);
        let answers = || decision.answers.into_iter().map(|answer| answer.map_err(Failure::from)).collect();
        let Some(json) = decision.put else { return Ok(answers()) };
        match replace::<IPPool>(&shared.client, &json).await {
            Ok(written) => {
                tracing::debug!(pool = name, orders = orders.len(), "pool written");
                let put_back = put_back::record(&json, &written);
                shared.pools.wrote(written);
                return if put_back {
                    Err(Failure::PutBack { pool: name.to_owned() })
                } else {
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
                    Some(fresh) => read = shared.pools.wrote(fresh),
                    None => return gone(),
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Failure::Contended { pool: name.to_owned() })
}

/// Addresses that live load balancers believe to have from this pool.
fn known(shared: &Shared, pool: &str) -> Vec<(IpAddr, String)> {
    let balancers = shared.balancers.list();
    let alive = balancers.iter().filter(|lb| lb.meta().deletion_timestamp.is_none());
    alive
        .filter_map(|lb| {
            let has = lb.status.as_ref()?.allocated_address.as_ref().filter(|has| has.ip_pool == pool)?;
            Some((has.ip.parse().ok()?, format!("{}/{}", lb.namespace().unwrap_or_default(), lb.name_any())))
        })
        .collect()
}
