//! LoadBalancer objects: an address for each, a condition that says why when there is none, and an orderly end.
//!
//! ```text
//! alive   claim in the pool ──► vm: finalizer and address, host path ──► one PUT: finalizer, address, condition
//! ending  vm: host path withdrawn ──► release in the pool ──► finalizer
//! gone    whatever a pool still records for it is released, once its Service is gone too
//! ```
//! `see` reads caches, [`address::decide`] decides, the rest acts. A claim comes before the object's PUT: a crash
//! between the two leaves a record that names the object, and the next claim in its name adopts it.

pub mod address;
pub mod host;
pub mod machines;
pub mod status;

use std::{net::IpAddr, sync::Arc, time::Duration};

use controller_kit::{Action, EventType, ObjectKey, RawObject, error_message, replace};
use harvester_api::{AllocatedAddress, LoadBalancer, WorkloadType, finalizers, labels};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Resource, ResourceExt};

use crate::{
    condition::Ready,
    context::Context,
    host_path,
    insist::is_refusal,
    pool::{Answer, Failure, Order, Refused, WaitingFor},
    put_back,
};
use address::{Plan, Seen, Standing};
use host::{Waiting, Withdrawal};
use machines::Machines;
use status::Shown;

/// When a pool is tried again that the server does not let us write, or an object of the host path.
pub(crate) const REFUSED_AGAIN: Duration = Duration::from_secs(60);
/// How often an object is looked at afresh because somebody else wrote it in between.
const ATTEMPTS: usize = 8;

/// What went wrong, with what; the queue tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("address of load balancer {balancer}")]
    Pool { balancer: ObjectKey, source: Failure },
    #[error("host path of load balancer {balancer}")]
    HostPath { balancer: ObjectKey, source: host_path::Error },
    #[error("write load balancer {balancer}")]
    Write { balancer: ObjectKey, source: kube::Error },
    #[error("read what is left of load balancer {balancer}")]
    Read { balancer: ObjectKey, source: kube::Error },
    #[error("write load balancer {balancer}: somebody else keeps writing it")]
    Contended { balancer: ObjectKey },
    #[error("write load balancer {balancer}: {}", put_back::ADVICE)]
    PutBack { balancer: ObjectKey },
}

impl Error {
    fn is_put_back(&self) -> bool {
        matches!(self, Self::PutBack { .. } | Self::Pool { source: Failure::PutBack { .. }, .. })
    }
}

/// Whether what was decided still fits the object.
enum Pass {
    Done,
    /// The object changed while we worked: look again.
    Stale,
}

/// Brings one object to what it asks for.
///
/// # Errors
/// Those that may pass: the queue tries again. What the user must change is a condition instead.
pub async fn reconcile(cx: Arc<Context>, key: ObjectKey) -> Result<Action, Error> {
    let outcome = bring_there(&cx, &key).await;
    // a condition would be put back as well
    if let (Err(error), Some(lb)) = (&outcome, cx.caches.balancers.get(&key))
        && error.is_put_back()
    {
        cx.recorder.publish(&lb.object_ref(&()), EventType::Warning, put_back::REASON, &error_message(error));
    }
    outcome.map(|()| Action::AwaitChange)
}

async fn bring_there(cx: &Context, key: &ObjectKey) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let pass = match cx.caches.balancers.get(key) {
            None => gone(cx, key).await?,
            Some(lb) if lb.meta().deletion_timestamp.is_some() => ending(cx, key, &lb).await?,
            Some(lb) => alive(cx, key, &lb).await?,
        };
        if let Pass::Done = pass {
            return Ok(());
        }
    }
    Err(Error::Contended { balancer: key.clone() })
}

async fn alive(cx: &Context, key: &ObjectKey, lb: &RawObject<LoadBalancer>) -> Result<Pass, Error> {
    let workload = lb.spec.workload();
    let trouble = cx.caches.vmis.trouble();
    let unlisted = match machines::decide(workload, cx.machines_listed(), trouble.as_deref()) {
        Machines::Known => None,
        Machines::Awaited => return Ok(Pass::Done),
        Machines::Unlisted(waiting) => Some(waiting),
    };
    let vm = workload == WorkloadType::Vm;
    cx.waiting.enter(key, WaitingFor::Anything);
    let Addressed { address, waiting, asked, lost, moved } = address_for(cx, key, lb).await?;
    match &waiting {
        None => cx.waiting.leave(key),
        Some(_) => cx.waiting.enter(key, WaitingFor::after(&lb.spec.ip_pool, asked)),
    }
    if let Some(lost) = &lost {
        let message =
            format!("address {lost} belongs to somebody else according to its pool; a new one is claimed");
        cx.recorder.publish(&lb.object_ref(&()), EventType::Warning, "AddressLost", &message);
        tracing::warn!(balancer = %key, lost, "address belongs to somebody else");
    }
    match &address {
        Some(address) if vm && unlisted.is_none() => return serve(cx, key, lb, address, waiting).await,
        None if vm && lost.is_some() => {
            let withdrawn = cx.host_path.withdraw(cx, lb).await;
            withdrawn.map_err(|source| Error::HostPath { balancer: key.clone(), source })?;
        }
        _ => {}
    }
    let waiting = waiting.or(unlisted);
    let waits = waiting.is_some();
    let shown =
        Shown { address: address.as_ref(), ready: ready(waiting), served: None, backends_known: false };
    let pass = write(cx, key, status::write(lb, &shown, &cx.clock.now_text())).await?;
    if let (Pass::Done, Some(address), true) = (&pass, &address, moved && !waits) {
        release_others(cx, key, address).await?;
    }
    Ok(pass)
}

/// An object with a host path: its finalizer and address are written before the network carries anything.
async fn serve(
    cx: &Context,
    key: &ObjectKey,
    lb: &RawObject<LoadBalancer>,
    address: &AllocatedAddress,
    waiting: Option<Waiting>,
) -> Result<Pass, Error> {
    let mut shown = Shown { address: Some(address), ready: ready(None), served: None, backends_known: false };
    let finalized = lb.finalizers().iter().any(|name| name == finalizers::LOAD_BALANCER);
    let has = lb.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    let mut lb = Arc::new(lb.clone());
    if !finalized || has != Some(address) {
        shown.ready = Ready::no("SettingUp", "Service and EndpointSlice are being set up");
        if let Some(json) = status::write(&lb, &shown, &cx.clock.now_text()) {
            match put(cx, key, &json).await? {
                Some(written) => lb = written,
                None => return Ok(Pass::Stale),
            }
        }
    }
    let served = cx.host_path.serve(cx, &lb, address).await;
    let served = served.map_err(|source| Error::HostPath { balancer: key.clone(), source })?;
    shown.ready = ready(waiting.or_else(|| served.waiting.clone()));
    shown.served = Some(&served);
    shown.backends_known = cx.backends_known;
    let pass = write(cx, key, status::write(&lb, &shown, &cx.clock.now_text())).await?;
    // the old address goes back when the network has left it
    if served.address == address.ip && matches!(pass, Pass::Done) {
        release_others(cx, key, address).await?;
    }
    Ok(pass)
}

fn ready(waiting: Option<Waiting>) -> Ready {
    match waiting {
        None => Ready::yes("AddressAllocated"),
        Some(Waiting { reason, message }) => Ready::no(reason, message),
    }
}

/// What came of asking for an address.
struct Addressed {
    address: Option<AllocatedAddress>,
    waiting: Option<Waiting>,
    /// The pools that had none to give.
    asked: Vec<String>,
    /// The status named an address that is somebody else's.
    lost: Option<String>,
    /// It is another address than before.
    moved: bool,
}

impl Addressed {
    fn none(waiting: Waiting, lost: Option<String>) -> Self {
        Self { address: None, waiting: Some(waiting), asked: Vec::new(), lost, moved: false }
    }

    fn some(address: AllocatedAddress, lost: Option<String>, moved: bool) -> Self {
        Self { address: Some(address), waiting: None, asked: Vec::new(), lost, moved }
    }
}

async fn address_for(
    cx: &Context,
    key: &ObjectKey,
    lb: &RawObject<LoadBalancer>,
) -> Result<Addressed, Error> {
    let pools = cx.caches.pools.list();
    let has = address::allocated(lb);
    let standing = has.as_ref().map_or(Standing::Nobodys, |has| standing(cx, key, has));
    let service = || cx.caches.services.get(key);
    let served = has.as_ref().is_some_and(|has| service().is_some_and(|service| carries(&service, &has.ip)));
    let wanted = &lb.spec.ip_pool;
    let stays = wanted.is_empty() || has.as_ref().is_some_and(|has| has.ip_pool == *wanted);
    let settled = standing == Standing::Ours && stays;
    let plan = if settled {
        address::decide(&Seen { lb, pools: &[], standing, recorded: &[], served })
    } else {
        let judged = ip_pools::judge_all(pools.iter().map(|pool| &**pool));
        let recorded: Vec<_> = recorded(cx, key).into_iter().map(|(pool, _)| pool).collect();
        address::decide(&Seen { lb, pools: &judged, standing, recorded: &recorded, served })
    };
    let (pools, known, meanwhile, lost) = match plan {
        Plan::Keep(address) => {
            let left = has.is_some_and(|has| has.ip_pool != address.ip_pool);
            return Ok(Addressed::some(address, None, left));
        }
        Plan::Wait { waiting, lost } => return Ok(Addressed::none(waiting, lost)),
        Plan::Claim { pools, known, meanwhile, lost } => (pools, known, meanwhile, lost),
    };

    let (mut refused, mut asked) = (None, Vec::new());
    for pool in &pools {
        asked.push(pool.clone());
        let order = Order::Claim { holder: key.to_string(), known };
        match cx.pools.order(pool, order).await {
            Ok(Answer::Given(given)) => {
                let address = AllocatedAddress {
                    ip_pool: given.pool,
                    ip: given.address.to_string(),
                    mask: given.mask,
                    gateway: given.gateway,
                };
                return Ok(Addressed::some(address, lost, true));
            }
            Ok(Answer::Done) => unreachable!("a claim is answered with an address"),
            Err(Failure::Refused(why)) => {
                // a full pool is waited for; a full record, or a pool that went away meanwhile, is passed over
                let last = matches!(why, Refused::Exhausted { .. });
                refused.get_or_insert(why);
                if last {
                    break;
                }
            }
            Err(Failure::Write { source, .. }) if is_refusal(&source) => {
                // nothing tells us when the server thinks otherwise
                cx.queue.add_after(key.clone(), REFUSED_AGAIN);
                let why = error_message(&*source);
                let message =
                    format!("fail to reserve an address in pool {pool}: the pool cannot be written: {why}");
                let waiting = Waiting { reason: "PoolNotWritten", message };
                return Ok(Addressed { address: meanwhile, asked, ..Addressed::none(waiting, lost) });
            }
            Err(source) => return Err(Error::Pool { balancer: key.clone(), source }),
        }
    }
    let why = refused.expect("a claim names at least one pool");
    let message = match &meanwhile {
        None => why.to_string(),
        Some(address) => {
            format!("{why}; address {} of pool {} stays until then", address.ip, address.ip_pool)
        }
    };
    let waiting = Waiting { reason: why.reason(), message };
    Ok(Addressed { address: meanwhile, asked, ..Addressed::none(waiting, lost) })
}

fn carries(service: &Service, ip: &str) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.load_balancer_ip.as_deref() == Some(ip))
}

fn standing(cx: &Context, key: &ObjectKey, has: &AllocatedAddress) -> Standing {
    let Some(pool) = cx.caches.pools.get(&ObjectKey::new("", &has.ip_pool)) else {
        return Standing::NoSuchPool;
    };
    let holder = pool.status.as_ref().and_then(|status| status.allocated.get(&has.ip));
    match holder {
        None => Standing::Nobodys,
        Some(holder) if *holder == key.to_string() => Standing::Ours,
        Some(_) => Standing::SomebodyElses,
    }
}

/// Every address that the pools record for a holder, by pool.
fn recorded(cx: &Context, key: &ObjectKey) -> Vec<(String, IpAddr)> {
    let holder = key.to_string();
    let mut found = Vec::new();
    for pool in cx.caches.pools.list() {
        let allocated = pool.status.iter().flat_map(|status| &status.allocated);
        let own = allocated.filter(|(_, name)| **name == holder);
        found.extend(own.filter_map(|(address, _)| Some((pool.name_any(), address.parse().ok()?))));
    }
    found
}

/// The object has moved to another address, and the network follows it: the old one goes back.
async fn release_others(cx: &Context, key: &ObjectKey, address: &AllocatedAddress) -> Result<(), Error> {
    for (pool, other) in recorded(cx, key) {
        if pool != address.ip_pool || other.to_string() != address.ip {
            release(cx, key, &pool, Order::Release { holder: key.to_string(), address: other }).await?;
        }
    }
    Ok(())
}

async fn release(cx: &Context, key: &ObjectKey, pool: &str, order: Order) -> Result<(), Error> {
    let answer = cx.pools.order(pool, order).await;
    answer.map(drop).map_err(|source| Error::Pool { balancer: key.clone(), source })
}

async fn release_all(cx: &Context, key: &ObjectKey) -> Result<(), Error> {
    for (pool, _) in recorded(cx, key) {
        release(cx, key, &pool, Order::ReleaseAll { holder: key.to_string() }).await?;
    }
    Ok(())
}

async fn ending(cx: &Context, key: &ObjectKey, lb: &RawObject<LoadBalancer>) -> Result<Pass, Error> {
    cx.waiting.leave(key);
    if !lb.finalizers().iter().any(|name| name == finalizers::LOAD_BALANCER) {
        // ours is done, or never began; the DELETE event comes when the others are
        return Ok(Pass::Done);
    }
    let withdrawal = match lb.spec.workload() {
        WorkloadType::Cluster => Withdrawal::Gone,
        WorkloadType::Vm => {
            let withdrawn = cx.host_path.withdraw(cx, lb).await;
            withdrawn.map_err(|source| Error::HostPath { balancer: key.clone(), source })?
        }
    };
    match withdrawal {
        Withdrawal::Gone => release_all(cx, key).await?,
        Withdrawal::Going(waiting) => {
            tracing::debug!(balancer = %key, reason = waiting.reason, waiting.message, "not gone yet");
            return Ok(Pass::Done);
        }
        Withdrawal::LeftToGarbageCollector => {}
    }
    write(cx, key, status::write_farewell(lb)).await
}

async fn gone(cx: &Context, key: &ObjectKey) -> Result<Pass, Error> {
    cx.waiting.leave(key);
    cx.host_path.forget(key);
    if recorded(cx, key).is_empty() || cx.caches.services.get(key).is_some() {
        return Ok(Pass::Done);
    }
    // caches may be behind; an address in use must not go back
    let exists = async {
        let namespace = &key.namespace;
        let balancers = Api::<LoadBalancer>::namespaced(cx.client.clone(), namespace);
        let services = Api::<Service>::namespaced(cx.client.clone(), namespace);
        let ours = |service: Service| service.labels().contains_key(labels::SERVICE_LB);
        Ok(balancers.get_opt(&key.name).await?.is_some()
            || services.get_opt(&key.name).await?.is_some_and(ours))
    };
    let exists = exists.await.map_err(|source| Error::Read { balancer: key.clone(), source })?;
    if !exists {
        release_all(cx, key).await?;
    }
    Ok(Pass::Done)
}

async fn write(cx: &Context, key: &ObjectKey, json: Option<serde_json::Value>) -> Result<Pass, Error> {
    let Some(json) = json else { return Ok(Pass::Done) };
    Ok(if put(cx, key, &json).await?.is_some() { Pass::Done } else { Pass::Stale })
}

/// Writes the object. None: it is not what it was, and the cache knows the newer one now.
async fn put(
    cx: &Context,
    key: &ObjectKey,
    json: &serde_json::Value,
) -> Result<Option<Arc<RawObject<LoadBalancer>>>, Error> {
    let failed = |source| Error::Write { balancer: key.clone(), source };
    match replace::<LoadBalancer>(&cx.client, json).await {
        Ok(written) => {
            let put_back = put_back::address(json, &written);
            let written = cx.caches.balancers.wrote(written);
            if put_back { Err(Error::PutBack { balancer: key.clone() }) } else { Ok(Some(written)) }
        }
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            let api = Api::<RawObject<LoadBalancer>>::namespaced(cx.client.clone(), &key.namespace);
            match api.get_opt(&key.name).await.map_err(failed)? {
                Some(fresh) => drop(cx.caches.balancers.wrote(fresh)),
                None => {
                    let uid = json.pointer("/metadata/uid").and_then(serde_json::Value::as_str);
                    cx.caches.balancers.gone(key, uid.unwrap_or_default());
                }
            }
            Ok(None)
        }
        Err(source) => Err(failed(source)),
    }
}
