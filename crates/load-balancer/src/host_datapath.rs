//! The host datapath of a LoadBalancer object of type vm: the objects that carry its traffic.
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
//! * `see` ([`HostDatapath::see`]) reads caches and the prober, [`decide`] decides, the controller of LoadBalancer
//!   objects writes.
//! * The slice is written before the Service: kube-vip from 1.2 on announces nothing that has no endpoint.
//! * Both have the object's name. A Service or slice of that name that is not ours is never touched.
//! * The Service never changes its type, and never gets `kube-vip.io/ignore`: kube-vip up to 1.2.3 would announce its
//!   address for ever.
//! * Verdicts live in the slice; with the controller gone, traffic goes on by the last ones.

pub(crate) mod backends;
mod changes;
pub(crate) mod host_addresses;
pub(crate) mod networks;
mod plausible;
pub(crate) mod probes;
mod readiness;
mod served;
pub(crate) mod service;
pub(crate) mod slice;
pub(crate) mod source_ranges;
pub(crate) mod vips;
pub(crate) mod write;

use std::{collections::BTreeMap, time::Duration};

use controller_kit::{Explanation, ObjectKey, Queue, RawObject};
use harvester_api::{LoadBalancer, VirtualMachineInstance, WorkloadType, load_balancer::MAX_LISTENERS};
use health_check::{DIALS_AT_ONCE, Dial, News, Prober, Target, Verdict};
use ipam::Family;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Resource as _, ResourceExt as _};
use program::TaskGroup;

pub(crate) use backends::BackendId;
pub(crate) use served::{MOST_LISTED, Served, is_usable, may_differ_by_vms};

use crate::{
    Config,
    caches::Caches,
    ownership::{Owner, Ownership},
    steps::step,
    wiring::Queues,
};
use backends::{Backend, Selected, Selector};
use networks::Wish;
use plausible::Rules;
use vips::Vips;
use write::Write;

/// The reads of all host datapaths: VMs, verdicts, and the addresses that no backend may have.
pub(crate) struct HostDatapath {
    prober: Prober<ObjectKey, BackendId>,
    vips: Vips,
    caches: Caches,
    config: Config,
}

/// The VMs behind a load balancer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backends {
    pub(crate) selected: Selected,
    /// The prober's verdicts; none without a health check.
    pub(crate) verdicts: BTreeMap<BackendId, Verdict>,
}

impl HostDatapath {
    /// Starts probing. Verdicts that change put the object's key into its queue.
    pub(crate) fn start(
        tasks: &TaskGroup,
        dial: Dial,
        seed: u64,
        config: Config,
        caches: &Caches,
        vips: Vips,
        queues: &Queues,
    ) -> Self {
        let prober = Prober::new(DIALS_AT_ONCE, seed, |lb: &ObjectKey| &lb.namespace);
        let (woken, metrics) = (queues.load_balancers.clone(), queues.metrics.probes.clone());
        let hear = move |news: News<'_, ObjectKey>| match news {
            News::Changed { object } => woken.add(object),
            News::Answered { result, took } => metrics.answered(result, took),
            News::Flaps => metrics.flapped(),
        };
        tasks.spawn(prober.clone().run(dial, hear, tasks.stop.clone()));
        Self { prober, vips, caches: caches.clone(), config }
    }

    /// Puts the keys of LoadBalancer objects in `queue` whose Service or slice changes; VMs: `changes`.
    pub(crate) fn subscribe(caches: &Caches, queue: &Queue<ObjectKey>) {
        let into = queue.clone();
        caches.services.on_change(move |change| into.add(change.key.clone()));
        let into = queue.clone();
        caches.slices.on_change(move |change| into.add(change.key.clone()));
    }

    /// Sees the VMs behind `lb`, at addresses that its Service carries. `slice` has those by which they served so far.
    pub(crate) fn see(
        &self,
        lb: &LoadBalancer,
        service: Option<&Service>,
        slice: Option<&EndpointSlice>,
    ) -> Backends {
        let (key, namespace) = (ObjectKey::of(lb), lb.namespace().unwrap_or_default());
        let taken = |address| self.vips.refuse(&namespace, address);
        let rules = Rules {
            family: seen_family(lb, service),
            pod_cidrs: &self.config.pod_cidrs,
            service_cidrs: &self.config.service_cidrs,
            taken: &taken,
        };
        let recorded = slice.map(slice::recorded_readiness).unwrap_or_default();
        let previous = recorded.keys().map(|id| (id.uid.clone(), id.address)).collect();
        let vmis = self.caches.vmis.list_in(&namespace);
        let selector = Selector::of(lb);
        let is_selected = |vmi: &&VirtualMachineInstance| {
            step();
            selector.selects(vmi.labels())
        };
        let behind = vmis.iter().map(|vmi| &**vmi).filter(is_selected);
        let selected = backends::select(behind, &previous, &Wish::of(lb), &rules);
        Backends { selected, verdicts: self.prober.verdicts(&key) }
    }

    /// Probes exactly these targets for the load balancer.
    pub(crate) fn probe(&self, key: &ObjectKey, targets: BTreeMap<BackendId, Target>) {
        self.prober.set_targets(key.clone(), targets);
    }
}

/// The family of the backends that [`HostDatapath::see`] sees: the address is that of the status.
pub(crate) fn seen_family(lb: &LoadBalancer, service: Option<&Service>) -> Family {
    let has = lb.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    service::family(service, has.map_or("", |has| &has.ip))
}

/// Everything that the decision depends on.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) lb: &'a LoadBalancer,
    /// The address to announce; `0.0.0.0`: whatever DHCP gives.
    pub(crate) address: &'a str,
    pub(crate) service: Option<&'a RawObject<Service>>,
    pub(crate) slice: Option<&'a RawObject<EndpointSlice>>,
    pub(crate) backends: &'a Backends,
    /// The server refused to store the Service or slice that was decided before.
    pub(crate) refused: Option<&'a RefusedWrite>,
    /// The server refuses the EndpointSlice, whatever else it refuses.
    pub(crate) is_slice_refused: bool,
    /// Backends that left, or whose readiness was written, a short while ago: in the slice again after this time.
    pub(crate) backend_due_in: &'a BTreeMap<BackendId, Duration>,
    /// Address of the endpoint that swallows traffic while no backend is ready.
    pub(crate) dummy: std::net::Ipv4Addr,
    /// RFC 3339.
    pub(crate) now: &'a str,
}

impl Seen<'_> {
    /// The family of the slice, and of the Service where it can be.
    pub(crate) fn family(&self) -> Family {
        service::family(self.service.map(|service| &**service), self.address)
    }
}

/// A Service or slice that the server will not have as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedWrite {
    pub(crate) kind: &'static str,
    /// In the server's words.
    pub(crate) why: String,
}

/// The writes, the targets to probe, and the status to show.
#[derive(Debug)]
pub(crate) struct DatapathPlan {
    pub(crate) slice: Write,
    pub(crate) service: Write,
    pub(crate) probes: BTreeMap<BackendId, Target>,
    /// The status once both writes are done.
    pub(crate) served: Served,
    /// The time until the first of the VMs that come back before their time may be in the slice again.
    pub(crate) returns_in: Option<Duration>,
    /// Nothing tells when this ends.
    pub(crate) unwatched: bool,
}

/// Decides how `seen.lb` is served.
pub(crate) fn decide(seen: &Seen<'_>) -> DatapathPlan {
    let Seen {
        lb,
        address,
        service,
        slice,
        backends,
        refused,
        is_slice_refused,
        backend_due_in,
        dummy,
        now: _,
    } = *seen;
    let owner = Owner::of(lb);
    let selected = &backends.selected;
    let family = seen.family();
    let obstacle = obstacle(&owner, service, slice)
        .or_else(|| slice.and_then(|slice| of_other_family(&owner.key, slice, family)));
    if let Some(obstacle) = obstacle {
        return DatapathPlan {
            slice: Write::Nothing,
            service: Write::Nothing,
            probes: BTreeMap::new(),
            served: still_served(&owner, service, slice, obstacle),
            returns_in: None,
            unwatched: true,
        };
    }
    let ranges = match source_ranges::of(lb) {
        Ok(ranges) => ranges,
        // nobody may be let in whom the annotation keeps out
        Err(why) => return without_backends(seen, &owner, Explanation::new("InvalidSourceRanges", why)),
    };
    let recorded = slice.map(|slice| slice::recorded_readiness(slice)).unwrap_or_default();
    let check = lb.spec.health_check.as_ref();
    let ready = readiness::of(backends, &recorded, probes::port(check).is_some());
    let (mut ready, returns_in) = match slice {
        Some(_) => readiness::without_early_returns(ready, &recorded, backend_due_in),
        None => (ready, None),
    };
    let is_open = source_ranges::admits_others(ranges.as_ref(), family, service.map(|service| &**service));
    if is_open {
        // the server may refuse the ranges: nobody is reached anew before the Service has them
        ready.retain(|(backend, _)| recorded.contains_key(&backend.id));
    }
    let listeners = &lb.spec.listeners;
    let probes = probes::targets(check, &selected.backends, &recorded);
    let refusal = refused.map(|RefusedWrite { kind, why }| {
        if service.is_none() && why.contains("spec.ipFamilies") {
            let why = format!("the server makes no Service of {family}: {why}");
            return served::not_carried(address, &why, family.other());
        }
        let message = format!("the {kind} was refused, correct what the server says of it: {why}");
        Explanation::new("ServiceRefused", message)
    });
    if is_open
        && is_slice_refused
        && let Some(refusal) = refusal
    {
        // the backends of before stay in it: the Service alone can close the load balancer
        let service_write = match refused {
            Some(RefusedWrite { kind: "Service", .. }) => Write::Nothing,
            _ => service::write(service, &owner, listeners, address, ranges.as_ref()),
        };
        return DatapathPlan {
            slice: Write::Nothing,
            service: service_write,
            probes,
            served: still_served(&owner, service, slice, refusal),
            returns_in,
            unwatched: true,
        };
    }
    if let Some(refusal) =
        refusal.or_else(|| too_many(listeners.len()).filter(|_| listeners.len() > ports(service)))
    {
        if is_open {
            let Explanation { reason, message } = refusal;
            let message = format!(
                "{message}; the load balancer has no backends until the Service has the source ranges"
            );
            let waiting = Explanation::new(reason, message);
            let closed = without_backends(seen, &owner, waiting);
            return DatapathPlan { probes, unwatched: refused.is_some(), ..closed };
        }
        let still = still_served(&owner, service, slice, refusal);
        let Served { backends, left_out, .. } = served_by(seen, &ready);
        return DatapathPlan {
            slice: Write::Nothing,
            service: Write::Nothing,
            probes,
            served: Served { backends, left_out, ..still },
            returns_in,
            unwatched: refused.is_some(),
        };
    }
    DatapathPlan {
        slice: slice::write(slice, &owner, listeners, &ready, slice::dummy(family, dummy)),
        service: service::write(service, &owner, listeners, address, ranges.as_ref()),
        probes,
        served: served_by(seen, &ready),
        returns_in,
        unwatched: false,
    }
}

/// No traffic reaches a backend. The Service stays as it is.
fn without_backends(seen: &Seen<'_>, owner: &Owner, waiting: Explanation) -> DatapathPlan {
    let Seen { lb, service, slice, dummy, .. } = *seen;
    let dummy = slice::dummy(seen.family(), dummy);
    DatapathPlan {
        slice: match slice {
            Some(_) => slice::write(slice, owner, &lb.spec.listeners, &[], dummy),
            None => Write::Nothing,
        },
        service: Write::Nothing,
        probes: BTreeMap::new(),
        served: still_served(owner, service, slice, waiting),
        returns_in: None,
        unwatched: false,
    }
}

/// The status while the slice stays as it is, though the prober says otherwise of its backends.
pub(crate) fn served_by_slice(seen: &Seen<'_>) -> Served {
    let recorded = seen.slice.map(|slice| slice::recorded_readiness(slice)).unwrap_or_default();
    served_by(seen, &readiness::recorded_of(&seen.backends.selected, &recorded))
}

fn served_by(seen: &Seen<'_>, ready: &[(Backend, bool)]) -> Served {
    served::served(&served::Seen {
        selected: &seen.backends.selected,
        ready,
        verdicts: &seen.backends.verdicts,
        check: seen.lb.spec.health_check.as_ref(),
        announced: seen.service.and_then(|service| service::announced(service)),
        family: seen.family(),
        asked: seen.address,
        before: seen.lb.status.as_ref().map_or(&[], |status| &status.backends),
        now: seen.now,
    })
}

/// The reason of the condition and of the Event for [`MAX_LISTENERS`].
pub(crate) const TOO_MANY_LISTENERS: &str = "TooManyListeners";

/// The ports of the Service that stands.
fn ports(service: Option<&RawObject<Service>>) -> usize {
    let spec = service.and_then(|service| service.spec.as_ref());
    spec.and_then(|spec| spec.ports.as_ref()).map_or(0, Vec::len)
}

fn too_many(listeners: usize) -> Option<Explanation> {
    (listeners > MAX_LISTENERS).then(|| {
        let message = format!(
            "{listeners} listeners: a load balancer has at most {MAX_LISTENERS}; spread them over several load balancers"
        );
        Explanation::new(TOO_MANY_LISTENERS, message)
    })
}

/// An object of our name that keeps us from serving: it is not ours, or on its way out.
fn obstacle(
    owner: &Owner,
    service: Option<&RawObject<Service>>,
    slice: Option<&RawObject<EndpointSlice>>,
) -> Option<Explanation> {
    let found = [
        service.map(|service| ("Service", service.meta())),
        slice.map(|slice| ("EndpointSlice", slice.meta())),
    ];
    found.into_iter().flatten().find_map(|(kind, meta)| match owner.ownership(meta) {
        Ownership::Ours | Ownership::Orphaned if meta.deletion_timestamp.is_none() => None,
        Ownership::Ours | Ownership::Orphaned => Some(Explanation::new(
            "ServiceGoing",
            format!("waiting until the {kind} {}, which is being deleted, is gone", owner.key),
        )),
        Ownership::Former => Some(former(kind, &owner.key)),
        Ownership::Foreign => Some(Explanation::new(
            "NameTaken",
            format!(
                "the {kind} {} belongs to somebody else: delete or rename it, or give the load balancer another name",
                owner.key
            ),
        )),
    })
}

/// The API fixes the family of a slice when it is made, and our role may not delete one.
fn of_other_family(key: &ObjectKey, slice: &EndpointSlice, family: Family) -> Option<Explanation> {
    (!slice::is_of(slice, family)).then(|| {
        let message = format!(
            "the EndpointSlice {key} is of {}, and the Service of {family}: delete the EndpointSlice, the controller makes \
             it anew",
            family.other()
        );
        Explanation::new("IPFamilyNotSupported", message)
    })
}

/// The condition of an object while a Service or slice of its predecessor is left.
pub(crate) fn former(kind: &str, key: &ObjectKey) -> Explanation {
    let message = format!("waiting until the {kind} {key} of a former load balancer of this name is gone");
    Explanation::new("FormerServiceGoing", message)
}

/// The status while nothing new can be written: the Service and the slice that are there go on serving.
fn still_served(
    owner: &Owner,
    service: Option<&RawObject<Service>>,
    slice: Option<&RawObject<EndpointSlice>>,
    waiting: Explanation,
) -> Served {
    let service = service.filter(|service| owner.ownership(service.meta()).is_writable());
    let slice = slice.filter(|slice| owner.ownership(slice.meta()).is_writable());
    let announced = service.and_then(|service| service::announced(service)).unwrap_or_default();
    let recorded = slice.map(|slice| slice::recorded_readiness(slice)).unwrap_or_default();
    Served {
        backend_servers: recorded.keys().map(|id| id.address.to_string()).collect(),
        address: announced.to_owned(),
        backends: Vec::new(),
        left_out: 0,
        waiting: Some(waiting),
        note: None,
    }
}

/// Whether the list of VMs is complete. A decision from half a list would give the VMs on it the traffic of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VmList {
    /// All VMs are known, or none are needed.
    Complete,
    /// The list is on its way, and its end brings the object back.
    Awaited,
    /// The VMs cannot be listed now.
    Unavailable(Explanation),
}

impl VmList {
    /// `is_listed`: the first list was complete; `error`: why the watch does not work now.
    pub(crate) fn of(lb: Option<&LoadBalancer>, is_listed: bool, error: Option<&str>) -> Self {
        match (lb.is_some_and(needs_vms), is_listed, error) {
            (false, ..) | (true, true, _) => Self::Complete,
            (true, false, None) => Self::Awaited,
            (true, false, Some(why)) => Self::Unavailable(Explanation::new(
                "WaitingForMachines",
                format!(
                    "the VirtualMachineInstances cannot be listed: {why}; backends stay as they are until that is mended"
                ),
            )),
        }
    }
}

/// Whether the backends depend on the VMs. An object has none, whatever VMs there are, without a selector or with source
/// ranges that cannot be read: traffic that was taken away must not wait for a list.
fn needs_vms(lb: &LoadBalancer) -> bool {
    lb.spec.workload() == WorkloadType::Vm && Selector::of(lb).is_any() && source_ranges::of(lb).is_ok()
}

#[cfg(test)]
mod tests;
