//! Records whose load balancer is not there, found and released: the ends that nobody saw.
//!
//! A record that looks abandoned is looked at again 30 s later; if it still does, pool, load balancer and Service are
//! read afresh, and only then it is released. Records that another program made (by the pool's managedFields) are
//! held for it. A release that admission undoes is tried again with the same patience. The other direction, load
//! balancers without record, is healed by [`crate::pool::batch`].
//!
//! Nothing runs while nothing looks abandoned: pools are looked at when they change.

pub mod suspects;

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, atomic::AtomicI64},
};

use controller_kit::{Action, EventType, ObjectKey};
use harvester_api::{IPPool, LoadBalancer, WorkloadType, labels};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Resource, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::Instant;

use crate::{
    context::Context,
    pool::{Failure, Order},
    put_back,
};
use suspects::{Holder, PATIENCE, Suspects};

/// What went wrong; the queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("release the abandoned address {address} of IPPool {pool}")]
    Release { pool: String, address: IpAddr, source: Failure },
    #[error("read whether address {address} of IPPool {pool} is abandoned")]
    Read { pool: String, address: IpAddr, source: kube::Error },
}

/// What became of a record that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// Released, or not abandoned after all: the next change of the pool tells more.
    ForNow,
    /// Somebody undid the release.
    PutBack,
}

/// What the sweep remembers of each pool between two looks.
#[derive(Debug, Default)]
pub struct Sweep {
    memory: Mutex<HashMap<String, Suspects>>,
    foreign: Gauge<i64, AtomicI64>,
}

impl Sweep {
    /// `foreign` shows how many records of other programs are held.
    pub fn new(foreign: Gauge<i64, AtomicI64>) -> Self {
        Self { memory: Mutex::default(), foreign }
    }

    /// Looks at one pool.
    ///
    /// # Errors
    /// Those that may pass.
    pub async fn reconcile(&self, cx: Arc<Context>, key: ObjectKey) -> Result<Action, Error> {
        let Some(pool) = cx.caches.pools.get(&key) else {
            self.memory().remove(&key.name);
            return Ok(Action::AwaitChange);
        };
        let record = ip_pools::record(&pool);
        let suspicious: Vec<_> = record
            .held()
            .filter(|(address, holder)| {
                suspects::abandoned(&key.name, *address, &holder_in_caches(&cx, holder))
            })
            .map(|(address, holder)| (address, holder.to_owned()))
            .collect();
        let look = self.memory().entry(key.name.clone()).or_default().look(suspicious, Instant::now());
        let mut again = look.again;
        for (address, holder) in look.due {
            if self.settle(&cx, &pool, address, &holder).await? == Settled::PutBack {
                self.memory().entry(key.name.clone()).or_default().again(address, &holder, Instant::now());
                again = again.or(Some(PATIENCE));
            }
        }
        let foreign: usize = self.memory().values().map(Suspects::foreign_records).sum();
        self.foreign.set(i64::try_from(foreign).unwrap_or(i64::MAX));
        Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter))
    }

    async fn settle(
        &self,
        cx: &Context,
        pool: &IPPool,
        address: IpAddr,
        holder: &str,
    ) -> Result<Settled, Error> {
        let (name, about) = (pool.name_any(), pool.object_ref(&()));
        let pool = name.as_str();
        let failed = |source| Error::Read { pool: pool.to_owned(), address, source };
        let Some(fresh) = Api::<IPPool>::all(cx.client.clone()).get_opt(pool).await.map_err(failed)? else {
            return Ok(Settled::ForNow);
        };
        if ip_pools::record(&fresh).holder(address) != Some(holder) {
            return Ok(Settled::ForNow);
        }
        if let Some(manager) = ip_pools::managers::foreign(&fresh, &address.to_string()) {
            tracing::info!(pool, %address, holder, manager, "recorded by another program: held for it");
            self.memory().entry(pool.to_owned()).or_default().foreign(address, holder);
            return Ok(Settled::ForNow);
        }
        if !suspects::abandoned(pool, address, &holder_afresh(cx, holder).await.map_err(failed)?) {
            return Ok(Settled::ForNow);
        }
        let order = Order::Release { holder: holder.to_owned(), address };
        match cx.pools.order(pool, order).await {
            Ok(_) => {
                tracing::warn!(pool, %address, holder, "abandoned: its load balancer is not there; released");
                Ok(Settled::ForNow)
            }
            Err(failure @ Failure::PutBack { .. }) => {
                tracing::warn!(pool, %address, holder, retry_in = ?PATIENCE, "abandoned, and not released: {failure}");
                let message = format!("abandoned address {address} of {holder} is not released: {failure}");
                cx.recorder.publish(&about, EventType::Warning, put_back::REASON, &message);
                Ok(Settled::PutBack)
            }
            Err(source) => Err(Error::Release { pool: pool.to_owned(), address, source }),
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, HashMap<String, Suspects>> {
        self.memory.lock().expect("no panic while the sweep's memory is locked")
    }
}

fn holder_in_caches(cx: &Context, holder: &str) -> Holder {
    let Some(key) = ObjectKey::parse(holder).filter(|key| !key.namespace.is_empty()) else {
        return Holder::NoName;
    };
    if let Some(lb) = cx.caches.balancers.get(&key) {
        return holder_of(cx, &lb, &key);
    }
    if cx.caches.balancers.malformed().iter().any(|(unreadable, _)| *unreadable == key) {
        return Holder::Exists { uses: None, wants: String::new(), announced: None };
    }
    if cx.caches.services.get(&key).is_some() { Holder::OnlyService } else { Holder::Gone }
}

async fn holder_afresh(cx: &Context, holder: &str) -> kube::Result<Holder> {
    let Some(key) = ObjectKey::parse(holder).filter(|key| !key.namespace.is_empty()) else {
        return Ok(Holder::NoName);
    };
    let balancers = Api::<LoadBalancer>::namespaced(cx.client.clone(), &key.namespace);
    if let Some(lb) = balancers.get_opt(&key.name).await? {
        return Ok(holder_of(cx, &lb, &key));
    }
    let services = Api::<Service>::namespaced(cx.client.clone(), &key.namespace);
    let service = services.get_opt(&key.name).await?;
    let ours = service.is_some_and(|service| service.labels().contains_key(labels::SERVICE_LB));
    Ok(if ours { Holder::OnlyService } else { Holder::Gone })
}

fn holder_of(cx: &Context, lb: &LoadBalancer, key: &ObjectKey) -> Holder {
    let has = crate::balancer::address::allocated(lb);
    let recorded = has.filter(|has| {
        let pool = cx.caches.pools.get(&ObjectKey::new("", &has.ip_pool));
        let holder = pool.and_then(|pool| pool.status.as_ref()?.allocated.get(&has.ip).cloned());
        holder == Some(key.to_string())
    });
    let uses = recorded.and_then(|has| Some((has.ip_pool, has.ip.parse().ok()?)));
    // of a guest cluster's, the address in the status is the cloud controller manager's word, not the network's
    let vm = lb.spec.workload() == WorkloadType::Vm;
    let announced = lb.status.as_ref().filter(|_| vm).and_then(|status| status.address.parse().ok());
    Holder::Exists { uses, wants: lb.spec.ip_pool.clone(), announced }
}
