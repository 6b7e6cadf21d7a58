//! The record garbage collector: it finds records whose load balancer is not there, and releases them.
//!
//! A record that looks abandoned is looked at again 30 s later; if it still does, pool, load balancer and Service are
//! read afresh, and only then the record is released. Records that another program made (by the pool's managedFields)
//! stay. Where a Service may still announce the address, or admission reverts the release, the next look comes after a
//! quarter of the time that has passed, at most ten minutes; a Service with our label wakes by its watch. The other direction, load
//! balancers without record, is healed by [`crate::pool::batch`]; records that a load balancer has moved away from are
//! the business of its own controller.
//!
//! Nothing runs while nothing looks abandoned: pools are looked at when they change.

mod candidates;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard},
};

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, RawObject, Recorder};
use harvester_api::{IPPool, LoadBalancer};
use ipam::Record;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::time::Instant;

use crate::{
    caches::Caches,
    host_datapath::write,
    metrics::{Metrics, Repair},
    pool::{Answer, Failure, Order, Writers, record_change::load_balancer_of},
    reuse::{self, Holder},
    status_reverted,
};
use candidates::{ABANDONED_AFTER, Candidates, Outcome, Seen};

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("release the abandoned address {address} of IPPool {pool}")]
    Release { pool: String, address: IpAddr, source: Failure },
    #[error("read whether address {address} of IPPool {pool} is abandoned")]
    Read { pool: String, address: IpAddr, source: kube::Error },
    #[error("read what announces address {address} of IPPool {pool}")]
    ReadService { pool: String, address: IpAddr, source: write::Error },
}

impl Error {
    /// Whether the next record may do better: the server, or the client, finds fault with this very question.
    fn is_about_one_record(&self) -> bool {
        let (Self::Read { source, .. }
        | Self::ReadService { source: write::Error::Request { source, .. }, .. }) = self
        else {
            return false;
        };
        match source {
            kube::Error::BuildRequest(_) => true,
            kube::Error::Api(status) => (400..429).contains(&status.code),
            _ => false,
        }
    }
}

/// The record garbage collector, and what it remembers of each pool between two looks.
pub(crate) struct RecordGc {
    client: Client,
    recorder: Recorder,
    pools: Cache<RawObject<IPPool>>,
    load_balancers: Cache<RawObject<LoadBalancer>>,
    services: Cache<RawObject<Service>>,
    writers: Writers,
    memory: Mutex<HashMap<String, Candidates>>,
    metrics: Metrics,
}

impl RecordGc {
    pub(crate) fn new(
        client: Client,
        recorder: Recorder,
        caches: &Caches,
        writers: Writers,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            recorder,
            pools: caches.pools.clone(),
            load_balancers: caches.load_balancers.clone(),
            services: caches.services.clone(),
            writers,
            memory: Mutex::default(),
            metrics,
        }
    }

    /// Looks at one pool, and waits for its writer: other pools have other workers.
    ///
    /// # Errors
    /// Those that may pass.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pool) = self.pools.get(&key) else {
            self.memory().remove(&key.name);
            return Ok(Action::AwaitChange);
        };
        let abandoned = self.look_abandoned(&pool);
        let now = Instant::now();
        let look = self.memory().entry(key.name.clone()).or_default().look(abandoned, now);
        let (mut again, mut failed) = (look.again, None);
        let fresh = match look.due.first() {
            Some((address, _)) => self.read_pool(&key.name, *address).await?,
            None => None,
        };
        for (address, holder) in look.due {
            let seen = match self.see(fresh.as_ref(), &key.name, address, &holder).await {
                Ok(seen) => seen,
                // those behind it are due as well
                Err(error) if error.is_about_one_record() => {
                    failed.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match candidates::decide(seen) {
                Outcome::Keep => continue,
                Outcome::Foreign(manager) => {
                    tracing::info!(pool = %key, %address, holder, manager, "recorded by another program: it stays");
                    self.memory().entry(key.name.clone()).or_default().foreign(address, &holder);
                    continue;
                }
                Outcome::InUse(why) => {
                    tracing::info!(pool = %key, %address, holder, "abandoned, and not released: {why}");
                }
                Outcome::Release => {
                    if self.release(&pool, address, &holder).await? {
                        continue;
                    }
                }
            }
            let pause = self.memory().entry(key.name.clone()).or_default().again(address, &holder, now);
            again = Some(again.map_or(pause, |again| again.min(pause)));
        }
        let memory = self.memory();
        let foreign: usize = memory.values().map(Candidates::foreign_records).sum();
        // the lock is held until the gauge is set, so that no worker overwrites a later count
        self.metrics.foreign.set(i64::try_from(foreign).unwrap_or(i64::MAX));
        drop(memory);
        match failed {
            Some(error) => Err(error),
            None => Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter)),
        }
    }

    /// Records whose load balancer no cache knows. One that has a Service of ours is the business of the load
    /// balancer's controller, which hears of the Service's end.
    fn look_abandoned(&self, pool: &IPPool) -> Vec<(IpAddr, String)> {
        let unreadable = self.load_balancers.malformed();
        let is_abandoned = |holder: &str| {
            let Some(key) = load_balancer_of(holder) else { return false };
            self.load_balancers.get(&key).is_none()
                && !unreadable.iter().any(|(other, _)| *other == key)
                && self.services.get(&key).is_none()
        };
        let record = ip_pools::record(pool);
        let abandoned = record.held().filter(|(_, holder)| is_abandoned(holder));
        abandoned.map(|(address, holder)| (address, holder.to_owned())).collect()
    }

    /// Reads the pool afresh, once for all of its records that are due: it may have thousands.
    async fn read_pool(&self, pool: &str, address: IpAddr) -> Result<Option<(IPPool, Record)>, Error> {
        let read = Api::<IPPool>::all(self.client.clone()).get_opt(pool).await;
        let read = read.map_err(|source| Error::Read { pool: pool.to_owned(), address, source })?;
        Ok(read.map(|pool| {
            let record = ip_pools::record(&pool);
            (pool, record)
        }))
    }

    /// Reads load balancer and Service afresh, unless another program made the record.
    async fn see(
        &self,
        fresh: Option<&(IPPool, Record)>,
        pool: &str,
        address: IpAddr,
        holder: &str,
    ) -> Result<Seen, Error> {
        let failed = |source| Error::Read { pool: pool.to_owned(), address, source };
        let fresh = fresh.filter(|(_, record)| record.holder(address) == Some(holder));
        let (Some((fresh, _)), Some(key)) = (fresh, load_balancer_of(holder)) else {
            return Ok(Seen::NoRecord);
        };
        if let Some(manager) = ip_pools::managers::foreign(fresh, address) {
            return Ok(Seen::Foreign(manager));
        }
        let api = Api::<LoadBalancer>::namespaced(self.client.clone(), &key.namespace);
        let holder_exists = api.get_opt(&key.name).await.map_err(failed)?.is_some();
        let service = write::read_service(&self.client, &key).await;
        let service =
            service.map_err(|source| Error::ReadService { pool: pool.to_owned(), address, source })?;
        let service: Option<&Service> = service.as_deref();
        Ok(Seen::Record {
            holder_exists,
            reuse: reuse::may_be_given_away(&key, Holder::Gone, address, service),
        })
    }

    /// Whether the record is released.
    async fn release(&self, pool: &IPPool, address: IpAddr, holder: &str) -> Result<bool, Error> {
        let name = pool.name_any();
        let order = Order::Release { holder: holder.to_owned(), address };
        match self.writers.order(&name, order).await {
            Ok(Answer::Kept) => {
                tracing::info!(pool = name, %address, holder, "not released: its load balancer was made again");
                Ok(false)
            }
            Ok(_) => {
                self.metrics.repaired(Repair::AbandonedRecord);
                tracing::warn!(pool = name, %address, holder, "abandoned: its load balancer is not there; released");
                Ok(true)
            }
            Err(failure @ Failure::StatusReverted { .. }) => {
                tracing::warn!(pool = name, %address, holder, retry_in = ?ABANDONED_AFTER, "abandoned, and not released: {failure}");
                let message = format!("abandoned address {address} of {holder} is not released: {failure}");
                let about = pool.object_ref(&());
                self.recorder.publish(&about, &PendingEvent::warning(status_reverted::REASON, message));
                Ok(false)
            }
            Err(source) => Err(Error::Release { pool: name, address, source }),
        }
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<String, Candidates>> {
        self.memory.lock().expect("no panic while the memory of records is locked")
    }
}
