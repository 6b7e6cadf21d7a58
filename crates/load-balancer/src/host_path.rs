//! The host path of a LoadBalancer object of type vm: what carries its traffic.
//!
//! ```text
//! VMIs ──select──► backends ──targets──► Prober ──verdicts──┐
//!                     │                                     ▼
//!                     └───────────────────────────► EndpointSlice (with a dummy while nobody is ready)
//! address, listeners ─────────────────────────────► Service ──► kube-vip announces, kube-proxy forwards
//!                                                      │
//! status: address, backends, Ready ◄───────ingress─────┘
//! ```
//!
//! * The slice is written before the Service: kube-vip from 1.2 on announces nothing that has no endpoint.
//! * Both have the object's name. A Service or slice of that name that is not ours is never touched.
//! * Verdicts live in the slice; with the controller gone, traffic goes on by the last ones.
//! * Nothing is written that is already so, and nothing here waits: what is waited for is watched
//!   ([`HostPath::subscribe`]). Two things have no watch, and are looked at again every minute: a Service or slice
//!   without our label in our way, and the reasons for which the server refuses what we write.

mod backends;
mod changes;
mod host;
mod owner;
mod plausible;
mod probes;
mod readiness;
mod service;
mod slice;
mod vips;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use controller_kit::{ObjectKey, Queue, RawObject};
use harvester_api::{AllocatedAddress, LoadBalancer};
use health_check::{DIALS_AT_ONCE, Dial, Prober};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Client, Resource as _, ResourceExt as _};
use program::TaskGroup;

pub use backends::BackendId;
pub use write::Error;

use crate::balancer::REFUSED_AGAIN;
use crate::balancer::host::{Served, Waiting, Withdrawal};
use crate::context::{Caches, Context};
use host::HostAddresses;
use owner::{Owner, Standing};
use plausible::Rules;
use write::{Deleted, Write, Written};

/// When a name that somebody else has is looked at again: nothing tells us that it became free.
const NAME_TAKEN_AGAIN: Duration = Duration::from_secs(60);

/// How often a decision is made anew because the objects were not what the caches said.
const ATTEMPTS: usize = 4;

/// The host paths of all LoadBalancer objects, with what they share: the prober and what is known of the host.
pub struct HostPath {
    prober: Prober<ObjectKey, BackendId>,
    host: HostAddresses,
    /// False once the server said that our role may not delete Services (the role of the existing chart may not).
    may_delete_services: AtomicBool,
}

impl HostPath {
    /// Starts probing and the watches on the host's own addresses. Verdicts that change put the object's key in `queue`.
    pub async fn start(
        tasks: &TaskGroup,
        client: &Client,
        dial: Dial,
        seed: u64,
        queue: Queue<ObjectKey>,
    ) -> Self {
        let prober = Prober::new(DIALS_AT_ONCE, seed, |lb: &ObjectKey| &lb.namespace);
        tasks.spawn(prober.clone().run(dial, move |key| queue.add(key), tasks.stop.clone()));
        let host = HostAddresses::watch(tasks, client).await;
        host.ready().await;
        Self { prober, host, may_delete_services: AtomicBool::new(true) }
    }

    /// Puts the keys of LoadBalancer objects in `queue` whose Service, slice or backends change.
    pub fn subscribe(caches: &Caches, queue: &Queue<ObjectKey>) {
        let into = queue.clone();
        caches.services.on_change(move |change| into.add(change.key.clone()));
        let into = queue.clone();
        caches.slices.on_change(move |change| into.add(change.key.clone()));
        let (into, balancers) = (queue.clone(), caches.balancers.clone());
        caches.vmis.on_change(move |change| {
            if changes::matters(change) {
                let balancers = balancers.list();
                let balancers = balancers.iter().map(|lb| &***lb);
                changes::concerned(change, balancers).into_iter().for_each(|key| into.add(key));
            }
        });
    }

    /// Makes slice, Service and probes what `lb` asks for, with `address` as the one to announce.
    ///
    /// # Errors
    /// Those of requests that may succeed when they are repeated.
    pub async fn serve(
        &self,
        cx: &Context,
        lb: &RawObject<LoadBalancer>,
        address: &AllocatedAddress,
    ) -> Result<Served, Error> {
        let owner = Owner::of(&**lb);
        for _ in 0..ATTEMPTS {
            if let Some(served) = self.try_to_serve(cx, lb, &owner, &address.ip).await? {
                return Ok(served);
            }
        }
        Err(Error::Contended(owner.key))
    }

    async fn try_to_serve(
        &self,
        cx: &Context,
        lb: &LoadBalancer,
        owner: &Owner,
        address: &str,
    ) -> Result<Option<Served>, Error> {
        let Caches { services, slices, .. } = &cx.caches;
        let key = &owner.key;
        let slice = write::find(&cx.client, slices, key).await?;
        // before the slice is written: an endpoint must never get into a stranger's Service
        let service = write::find(&cx.client, services, key).await?;
        if let Some(waiting) = obstacle(owner, service.as_deref(), slice.as_deref()) {
            self.prober.watch(key.clone(), BTreeMap::new());
            cx.queue.add_after(key.clone(), NAME_TAKEN_AGAIN);
            return Ok(Some(Served { waiting: Some(waiting), ..Served::default() }));
        }

        let known = slice.as_deref().map(|slice| slice::verdicts(slice)).unwrap_or_default();
        let selected = self.select(cx, lb, &known);
        let check = lb.spec.health_check.as_ref();
        self.prober.watch(key.clone(), probes::targets(check, &selected.backends, &known));
        let verdicts = self.prober.verdicts(key);
        let probed = probes::port(check).is_some();
        let ready: Vec<_> = selected
            .backends
            .iter()
            .map(|backend| {
                let vouched = verdicts.get(&backend.id).is_some_and(|verdict| verdict.ready);
                (backend.clone(), !probed || vouched)
            })
            .collect();

        let listeners = &lb.spec.listeners;
        let slice = slice::write(slice.as_deref(), owner, listeners, &ready, cx.config.dummy_endpoint);
        match write::carry_out(&cx.client, slices, key, slice).await? {
            Written::Done => {}
            Written::Stale => return Ok(None),
            Written::Refused(why) => return Ok(Some(refused(cx, key, "EndpointSlice", &why))),
        }
        let service_write = service::write(service.as_deref(), owner, listeners, address);
        match write::carry_out(&cx.client, services, key, service_write).await? {
            Written::Done => {}
            Written::Stale => return Ok(None),
            Written::Refused(why) => return Ok(Some(refused(cx, key, "Service", &why))),
        }

        let service = services.get(key);
        Ok(Some(readiness::served(&readiness::Seen {
            selected: &selected,
            ready: &ready,
            verdicts: &verdicts,
            announced: service.as_deref().and_then(|service| service::announced(service)),
            asked: address,
            before: lb.status.as_ref().map_or(&[], |status| &status.backends),
            now: &cx.clock.now_text(),
        })))
    }

    fn select(
        &self,
        cx: &Context,
        lb: &LoadBalancer,
        known: &BTreeMap<BackendId, bool>,
    ) -> backends::Selected {
        let Caches { balancers, pools, services, .. } = &cx.caches;
        let (balancers, pools, services) = (balancers.list(), pools.list(), services.list());
        let namespace = lb.namespace().unwrap_or_default();
        let rules = Rules {
            pod_cidrs: &cx.config.pod_cidrs,
            service_cidrs: &cx.config.service_cidrs,
            nodes: self.host.of_nodes(),
            vips: &vips::of(&namespace, &balancers, &pools, &services) | &self.host.of_services(),
        };
        let previous = known.keys().map(|id| (id.uid.clone(), id.address)).collect();
        let vmis = cx.caches.vmis.list();
        let of_namespace =
            vmis.iter().filter(|vmi| vmi.namespace().as_deref() == Some(&*namespace)).map(|vmi| &**vmi);
        backends::select(&lb.spec.backend_server_selector, of_namespace, &previous, &rules)
    }

    /// Takes the address of `lb` from the network: no endpoint, then no Service.
    ///
    /// # Errors
    /// Those of requests that may succeed when they are repeated.
    pub async fn withdraw(&self, cx: &Context, lb: &RawObject<LoadBalancer>) -> Result<Withdrawal, Error> {
        let owner = Owner::of(&**lb);
        let key = &owner.key;
        self.forget(key);
        let Caches { services, slices, .. } = &cx.caches;
        for _ in 0..ATTEMPTS {
            let slice = write::find(&cx.client, slices, key).await?;
            let slice = slice.filter(|slice| owner.standing(slice.meta()) == Standing::Ours);
            let write = slice.map_or(Write::Nothing, |slice| slice::write_empty(&slice));
            if write::carry_out(&cx.client, slices, key, write).await? == Written::Stale {
                continue;
            }
            let service = write::find(&cx.client, services, key).await?;
            let service = service.filter(|service| owner.standing(service.meta()) == Standing::Ours);
            let Some(service) = service else { return Ok(Withdrawal::Gone) };
            if service.meta().deletion_timestamp.is_some() {
                return Ok(Withdrawal::Going(going(cx, key)));
            }
            if self.may_delete_services.load(Ordering::Relaxed) {
                let uid = service.uid().unwrap_or_default();
                match write::delete(&cx.client, services, key, &uid).await? {
                    Deleted::Gone => return Ok(Withdrawal::Gone),
                    Deleted::Going => return Ok(Withdrawal::Going(going(cx, key))),
                    Deleted::Forbidden => {
                        tracing::info!(
                            "our role may not delete Services: they are left to the garbage collector"
                        );
                        self.may_delete_services.store(false, Ordering::Relaxed);
                    }
                }
            }
            let write = service::write_withdrawn(&service);
            match write::carry_out(&cx.client, services, key, write).await? {
                Written::Done => return Ok(Withdrawal::LeftToGarbageCollector),
                Written::Stale => {}
                Written::Refused(why) => {
                    // holding the object up would not take the address from the network either
                    tracing::warn!(service = %key, why, "cannot be withdrawn, only collected");
                    return Ok(Withdrawal::LeftToGarbageCollector);
                }
            }
        }
        Err(Error::Contended(owner.key))
    }

    /// The object is gone, or has no host path: its probes end.
    pub fn forget(&self, lb: &ObjectKey) {
        self.prober.watch(lb.clone(), BTreeMap::new());
    }
}

/// What stands in the way of serving: an object of our name that is not ours, or on its way out.
fn obstacle(
    owner: &Owner,
    service: Option<&RawObject<Service>>,
    slice: Option<&RawObject<EndpointSlice>>,
) -> Option<Waiting> {
    let found = [
        service.map(|service| ("Service", service.meta())),
        slice.map(|slice| ("EndpointSlice", slice.meta())),
    ];
    found.into_iter().flatten().find_map(|(kind, meta)| match owner.standing(meta) {
        Standing::Ours if meta.deletion_timestamp.is_none() => None,
        Standing::Ours => Some(Waiting {
            reason: "ServiceGoing",
            message: format!("waiting until the {kind} {}, which is being deleted, is gone", owner.key),
        }),
        Standing::Former => Some(Waiting {
            reason: "FormerServiceGoing",
            message: format!("waiting until the {kind} {} of a former load balancer of this name is gone", owner.key),
        }),
        Standing::Foreign => Some(Waiting {
            reason: "NameTaken",
            message: format!(
                "the {kind} {} belongs to somebody else: delete or rename it, or give the load balancer another name",
                owner.key
            ),
        }),
    })
}

fn going(cx: &Context, key: &ObjectKey) -> Waiting {
    if cx.caches.services.get(key).is_none() {
        // it lost our label, so nothing tells us of its end
        cx.queue.add_after(key.clone(), NAME_TAKEN_AGAIN);
    }
    let message = format!("waiting until the Service {key} is gone");
    Waiting { reason: "ServiceGoing", message }
}

/// The server's refusal is the load balancer's: its listeners make no valid Service, or a quota is used up, of whose
/// end nobody tells us.
fn refused(cx: &Context, key: &ObjectKey, kind: &str, why: &str) -> Served {
    cx.queue.add_after(key.clone(), REFUSED_AGAIN);
    let message = format!("the {kind} was refused, correct what the server says of it: {why}");
    Served { waiting: Some(Waiting { reason: "ServiceRefused", message }), ..Served::default() }
}

#[cfg(test)]
mod tests;
