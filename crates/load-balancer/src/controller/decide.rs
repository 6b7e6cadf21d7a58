//! The decision about one LoadBalancer object.

mod foreign_records;
mod lost;
mod pending;
mod releases;
mod serve;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use controller_kit::{Explanation, ObjectKey, PendingEvent, RawObject};
use harvester_api::{AllocatedAddress, LoadBalancer, WorkloadType, annotations, finalizers};
use health_check::Target;
use ip_pools::CheckedPool;
use ipam::Candidates;
use ipam::Family;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use super::{
    address::{self, Decision, RecordedHolder},
    families,
    status::{self, Shown},
};
use crate::{
    PoolChoice,
    condition::Ready,
    host_datapath::{
        self, BackendId, Backends, RefusedWrite, Served, VmList, slice, source_ranges, write::Write,
    },
    ownership::{Owner, Ownership},
    pool::{Order, Refused, WaitingFor, orders::Pending},
    reuse::Holder,
};
use lost::{at_lost_address, leave_lost_address, refused_withdrawal, withdrawal};
use pending::{LATE_ANSWER, hold_back_releases, in_the_way_of_claim, lasting_records};
use releases::{release_all, release_others, release_unseen};
use serve::serve;

/// Nothing tells when a name that somebody else has becomes free, or when the server changes its mind about what it
/// refused: the object is looked at again after this time.
pub(crate) const UNWATCHED_AGAIN: Duration = Duration::from_secs(60);

/// The Event of an object whose address a pool gives to another.
pub(crate) const ADDRESS_LOST: &str = "AddressLost";

/// The cluster as the controller saw it. `decide` knows nothing else.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) key: ObjectKey,
    /// `None`: the object is gone.
    pub(crate) object: Option<Arc<RawObject<LoadBalancer>>>,
    pub(crate) address: SeenAddress,
    /// The Service and the slice of the object's name, somebody else's too where the object has a host datapath.
    pub(crate) service: Option<Arc<RawObject<Service>>>,
    pub(crate) slice: Option<Arc<RawObject<EndpointSlice>>>,
    pub(crate) vm_list: VmList,
    pub(crate) backends: Backends,
    /// The list of pools, objects, Services or slices that is not kept up to date now, and why.
    pub(crate) unlisted: Option<String>,
    /// The server refused these writes, decided a moment ago, of a Service and of a slice: at most one of each kind.
    pub(crate) refused_writes: Vec<RefusedWrite>,
    /// A fresh read showed a moment ago that records must stay: something announces their addresses.
    pub(crate) records_held: BTreeSet<(String, IpAddr)>,
    pub(crate) may_delete_services: bool,
    /// Whether the CRD has `status.backends`: the server drops unknown fields, and we would write them for ever.
    pub(crate) has_backends_field: bool,
    /// Whether the CRD has the fields of a second address.
    pub(crate) has_second_address_field: bool,
    /// Whether the CRD has `status.addresses`.
    pub(crate) has_addresses_field: bool,
    pub(crate) dummy_endpoint: Ipv4Addr,
    /// After this time a write of the status may say nothing new but the state of backends; `None`: now.
    pub(crate) backend_status_in: Option<Duration>,
    /// After this time a write of the slice may say nothing new but who is ready; `None`: now.
    pub(crate) slice_readiness_in: Option<Duration>,
    /// Backends whose readiness alone, or return, is not written before this time has passed.
    pub(crate) backend_due_in: BTreeMap<BackendId, Duration>,
    /// RFC 3339.
    pub(crate) now: String,
}

/// The part of [`Seen`] that the pools tell.
#[derive(Clone, Default)]
pub(crate) struct SeenAddress {
    pub(crate) pools: Arc<Vec<CheckedPool>>,
    pub(crate) candidates: Option<Arc<Candidates>>,
    pub(crate) pool_choice: PoolChoice,
    pub(crate) holder: RecordedHolder,
    /// The holder of the address in the fields for a second one.
    pub(crate) second_holder: RecordedHolder,
    pub(crate) recorded: Vec<(String, IpAddr)>,
    /// Records that another program made for the machine of the object's name.
    pub(crate) of_machine: Vec<(String, IpAddr)>,
    /// Records that other programs made for the object, as far as somebody has looked, each with its maker.
    pub(crate) made_by_others: BTreeMap<(String, IpAddr), String>,
    /// Records for the object that count for nothing, because older pools record the addresses for somebody else.
    pub(crate) outranked: Vec<(String, IpAddr)>,
    pub(crate) refused: Vec<(String, Refused)>,
    /// The object's orders that no pool has carried out.
    pub(crate) pending: Pending,
    /// Addresses that the object or its Service shows, and that the pools record for other holders only.
    pub(crate) of_others: BTreeSet<IpAddr>,
    /// The addresses that the object asks for and that pools record for others, each with one of those.
    pub(crate) rivals: Vec<(IpAddr, String)>,
    /// Those of them that only load balancers of the same namespace have that are being deleted.
    pub(crate) leaving: Vec<IpAddr>,
}

/// A write, or an order to the writer of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The object: finalizer and status, or its last version.
    WriteObject(Value),
    /// [`Step::WriteObject`] of which nothing is new but the state of backends, their networks, and VMs without usable address.
    WriteBackendStatus(Value),
    WriteSlice(Write),
    /// [`Step::WriteSlice`] from which these backends are missing, and which does not wait.
    WriteSliceWithout {
        write: Write,
        left: Vec<BackendId>,
    },
    /// [`Step::WriteSlice`] that says nothing new but who is ready.
    WriteSliceReadiness {
        write: Write,
        flipped: Vec<BackendId>,
    },
    WriteService(Write),
    /// The Service with this UID.
    DeleteService {
        uid: String,
    },
    /// [`Step::DeleteService`], if a fresh read shows that the object is gone.
    DeleteOrphan {
        uid: String,
    },
    /// The answer to the claim is the input of a later decision.
    Claim {
        pool: String,
        known: Option<IpAddr>,
        /// This address or none, whatever the object has.
        exactly: Option<IpAddr>,
        family: Option<Family>,
        /// With the claim of the other family, in one write.
        together: Option<address::OneClaim>,
    },
    /// Give a record back, if a fresh read of the Service allows it.
    Release(Release),
}

/// Records of one pool to give back.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Release {
    pub(crate) pool: String,
    pub(crate) address: IpAddr,
    pub(crate) because: Because,
    pub(crate) order: Order,
}

/// Why a record is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// The object is gone: it is read afresh too.
    Gone,
    /// The object is being deleted.
    Ending,
    /// The object with this UID has another address. A record of another program stays.
    Moved { uid: String },
}

impl Because {
    pub(crate) fn holder(&self) -> Holder<'_> {
        match self {
            Self::Gone | Self::Ending => Holder::Gone,
            Self::Moved { uid } => Holder::Moved(uid),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteObject(_) => f.write_str("write object"),
            Self::WriteBackendStatus(_) => f.write_str("write backend status"),
            Self::WriteSlice(_) | Self::WriteSliceWithout { .. } => f.write_str("write slice"),
            Self::WriteSliceReadiness { .. } => f.write_str("write slice readiness"),
            Self::WriteService(_) => f.write_str("write service"),
            Self::DeleteService { .. } => f.write_str("delete service"),
            Self::DeleteOrphan { .. } => f.write_str("delete orphan"),
            Self::Claim { pool, together: Some(_), .. } => write!(f, "claim both families from {pool}"),
            Self::Claim { pool, exactly: Some(address), .. } => write!(f, "claim {address} from {pool}"),
            Self::Claim { pool, .. } => write!(f, "claim from {pool}"),
            Self::Release(Release { pool, address, .. }) => write!(f, "release {address} of {pool}"),
        }
    }
}

/// The steps to take now, in order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) events: Vec<PendingEvent>,
    /// The targets to probe; `None` leaves them as they are.
    pub(crate) probes: Option<BTreeMap<BackendId, Target>>,
    /// The news of pools that may end the object's wait.
    pub(crate) waits_for: Option<WaitingFor>,
    /// The Service has no load balancer, and our role may not delete it.
    pub(crate) orphaned: bool,
    /// When to look again though nothing may change before then.
    pub(crate) again: Option<Duration>,
    /// What ends the present state may be told by no watch: the controller looks again by itself.
    pub(crate) unwatched: bool,
}

impl Plan {
    /// Keeps all as it is, without probes.
    fn unprobed() -> Self {
        Self { probes: Some(BTreeMap::new()), ..Self::default() }
    }

    /// Looks again after this time at the latest.
    fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |again| again.min(after)));
    }
}

/// Decides.
pub(crate) fn decide(seen: &Seen) -> Plan {
    let mut plan = match &seen.object {
        None => gone(seen),
        Some(lb) if lb.meta().deletion_timestamp.is_some() => ending(seen, lb),
        Some(lb) => {
            let mut plan = alive(seen, lb);
            if seen.unlisted.is_some() {
                // what ends a wait may not be heard of
                plan.unwatched = true;
            }
            plan
        }
    };
    hold_back_releases(seen, &mut plan);
    for failed in &seen.address.pending.failed {
        plan.look_again(failed.retry_in);
    }
    plan
}

/// The object is gone: its records follow as soon as its Service is gone too.
fn gone(seen: &Seen) -> Plan {
    let mut plan = Plan::unprobed();
    let owner = Owner { key: seen.key.clone(), uid: String::new() };
    match seen.service.as_deref() {
        Some(service) if owner.ownership(service.meta()) == Ownership::Orphaned => {
            remove_orphan(seen, service, &mut plan);
        }
        // the garbage collector is on its way to it, and its DELETE event comes here
        Some(service) if owner.ownership(service.meta()) != Ownership::Foreign => {}
        _ => plan.steps = release_all(seen, &Because::Gone),
    }
    plan
}

/// The object is being deleted: nothing may announce its address when its record goes, and its finalizer goes last.
fn ending(seen: &Seen, lb: &RawObject<LoadBalancer>) -> Plan {
    let mut plan = Plan::unprobed();
    // ours is done, or was never set; the DELETE event comes when the finalizers of others are gone
    if !is_finalized(lb) {
        return plan;
    }
    let owner = Owner::of(lb);
    let service = seen.service.as_deref();
    let ours = service.filter(|service| owner.ownership(service.meta()).is_writable());
    match ours {
        Some(service) if lb.spec.workload() == WorkloadType::Vm => {
            plan.steps.extend(empty_slice(seen, &owner));
            match show_to_kube_vip(seen, service) {
                Ok(write) => plan.steps.extend(write),
                Err(refused) => {
                    plan.events.push(refused);
                    plan.unwatched = true;
                    return plan;
                }
            }
            if service.meta().deletion_timestamp.is_some() {
                plan.unwatched = !crate::ownership::is_labelled(service.meta());
                return plan;
            }
            if seen.may_delete_services {
                plan.steps.push(delete(service));
                return plan;
            }
            // the Service keeps its type: the garbage collector deletes it, and then the record is released
        }
        _ => {
            if service.is_none_or(|service| owner.ownership(service.meta()) == Ownership::Foreign) {
                plan.steps.extend(empty_slice(seen, &owner));
                let releases = release_all(seen, &Because::Ending);
                if !releases.is_empty() {
                    plan.steps.extend(releases);
                    return plan;
                }
            }
        }
    }
    // what a claim that is under way records goes back before the finalizer
    if seen.address.pending.under_way.is_none() {
        plan.steps.extend(status::write_without_finalizer(lb).map(Step::WriteObject));
    }
    plan
}

/// Told to an object that has the name of a machine with addresses of its own.
fn of_machine(records: &[(String, IpAddr)]) -> Option<String> {
    let (pool, address) = records.first()?;
    Some(format!(
        "pool {pool} records {address} for the VirtualMachine of this name, and not for the load balancer, which gets another \
         address"
    ))
}

fn alive(seen: &Seen, lb: &RawObject<LoadBalancer>) -> Plan {
    if seen.vm_list == VmList::Awaited {
        return Plan::default();
    }
    if let Some(plan) = behind_a_former_service(seen, lb) {
        return plan;
    }
    let is_vm = lb.spec.workload() == WorkloadType::Vm;
    let foreign_records = foreign_records::find(seen, lb);
    let address::Decided { decision, mut note, dual } = address::decide(&address::Seen {
        lb,
        pools: &seen.address.pools,
        candidates: seen.address.candidates.as_deref(),
        pool_choice: seen.address.pool_choice,
        holder: seen.address.holder,
        second_holder: seen.address.second_holder,
        has_second_address_field: seen.has_second_address_field,
        recorded: &lasting_records(seen),
        service_names_address: service_names_address(seen.service.as_deref(), lb),
        refused: &seen.address.refused,
        rivals: &seen.address.rivals,
        leaving: &seen.address.leaving,
        foreign_records: &foreign_records,
    });
    let is_waiting = matches!(decision, Decision::Wait { .. });
    let by_other_programs = foreign_records::note(seen, &foreign_records).filter(|_| is_waiting);
    // a refused wish is read from the condition up to its end
    note = address::joined([by_other_programs, of_machine(&seen.address.of_machine), note]);
    let (address, waiting, lost, waits_for) = match decision {
        Decision::Claim { pool, known, exactly, meanwhile, lost } => {
            // the object serves at an address, or must leave one
            let is_at_address =
                meanwhile.is_some() || lost.is_some() || is_vm && at_lost_address(seen, lb).is_some();
            let Some(order) = in_the_way_of_claim(seen, &pool) else {
                let family = dual.family.or(address::requirement(lb).family);
                let steps = vec![Step::Claim { pool, known, exactly, family, together: dual.together }];
                return Plan { steps, again: is_at_address.then_some(LATE_ANSWER), ..Plan::default() };
            };
            let other = dual
                .other_claim
                .filter(|other| order.is_denied() && in_the_way_of_claim(seen, &other.pool).is_none());
            if let Some(address::OneClaim { family, pool, known, exactly }) = other {
                let family = Some(family);
                let steps = vec![Step::Claim { pool, known, exactly, family, together: None }];
                return Plan { steps, again: is_at_address.then_some(LATE_ANSWER), ..Plan::default() };
            }
            let claim_waits_for =
                order.waits_for(address::dual::named_pool(lb, dual.family), &pool, &seen.address.refused);
            let waits_for = dual.waits_for.into_iter().fold(claim_waits_for, WaitingFor::or);
            let waits_for = Some(waits_for);
            if !is_at_address && !order.is_denied() {
                // the answer may be a moment away, and a server that is slow gets no more writes than it must
                return Plan { waits_for, ..Plan::default() };
            }
            // while the object keeps its address, the condition says how it serves
            let is_told = order.is_denied() || meanwhile.is_none();
            let mut waiting = is_told.then(|| order.explain(&pool));
            if dual.is_enough
                && let Some(why) = waiting.take()
            {
                // a refused wish is read from the condition, and ends with the message
                note = Some(why.message + &note.map_or_else(String::new, |note| format!("; {note}")));
            }
            (meanwhile, waiting, lost, waits_for)
        }
        Decision::Has { address, lost } => (Some(address), None, lost, dual.waits_for),
        Decision::Wait { waiting, meanwhile, lost, asked, until_free } => {
            let waits_for = address::waits_for(lb, asked, until_free);
            (meanwhile, Some(waiting), lost, Some(dual.waits_for.unwrap_or(waits_for)))
        }
    };
    if !seen.has_addresses_field && !families::both(lb, address.as_ref()).is_empty() {
        note = address::joined([Some(families::NO_LIST.to_owned()), note]);
    }
    let mut plan = Plan { waits_for, ..Plan::default() };
    match (&address, &seen.vm_list) {
        (Some(address), VmList::Complete) if is_vm => {
            serve(seen, lb, address, Told { waiting, note }, &mut plan);
        }
        (address, vm_list) => {
            let without_vms = match vm_list {
                VmList::Unavailable(why) => Some(why.clone()),
                VmList::Complete | VmList::Awaited => None,
            };
            let is_withdrawn =
                is_vm && address.is_none() && (lost.is_some() || at_lost_address(seen, lb).is_some());
            if is_withdrawn {
                plan.probes = Some(BTreeMap::new());
                plan.steps.extend(withdrawal(seen, lb));
            }
            let nothing = Served::default();
            let shown = Shown {
                address: address.as_ref(),
                has_addresses_field: seen.has_addresses_field,
                ready: ready(seen, Told { waiting: waiting.or(without_vms), note }),
                served: is_withdrawn.then_some(&nothing),
                backends: (is_withdrawn && seen.has_backends_field).then_some(&[]),
                applied: applied(seen, lb),
            };
            plan.steps.extend(status::write(lb, &shown, &seen.now).map(Step::WriteObject));
            if let (Some(address), true) = (&address, is_vm) {
                plan.steps.extend(leave_lost_address(seen, lb, address));
            }
        }
    }
    if let Some(lost) = lost
        && plan.steps.iter().any(|step| matches!(step, Step::WriteObject(_)))
    {
        let message = format!(
            "address {lost} belongs to somebody else according to the pools; the load balancer gives it up"
        );
        plan.events.push(PendingEvent::warning(ADDRESS_LOST, message));
    }
    if plan.steps.is_empty() && is_vm {
        plan.events.extend(refused_withdrawal(seen, lb));
    }
    if plan.steps.is_empty() {
        plan.steps = match &address {
            Some(address) => release_others(seen, lb, address),
            None => release_unseen(seen, lb, dual.held.as_deref()),
        };
    }
    plan
}

/// An object that was made again under the name waits until the Service of its predecessor is gone: its own address may
/// be announced by that Service, and so may the predecessor's.
fn behind_a_former_service(seen: &Seen, lb: &RawObject<LoadBalancer>) -> Option<Plan> {
    let service = seen.service.as_deref()?;
    let owner = Owner::of(lb);
    let is_vm = lb.spec.workload() == WorkloadType::Vm;
    let mut plan = Plan::unprobed();
    let waiting = match owner.ownership(service.meta()) {
        Ownership::Former => host_datapath::former("Service", &seen.key),
        Ownership::Ours | Ownership::Orphaned if !is_vm => {
            if service.meta().deletion_timestamp.is_none() {
                remove_orphan(seen, service, &mut plan);
            }
            host_datapath::former("Service", &seen.key)
        }
        _ => return None,
    };
    let has = lb.status.as_ref().and_then(|status| status.allocated_address.clone());
    show(seen, lb, has.as_ref(), Some(waiting), &mut plan);
    plan.unwatched = !crate::ownership::is_labelled(service.meta());
    Some(plan)
}

/// A Service of ours that no load balancer needs, and that the garbage collector does not know of.
fn remove_orphan(seen: &Seen, service: &RawObject<Service>, plan: &mut Plan) {
    if service.meta().deletion_timestamp.is_some() {
        return;
    }
    let uid = service.uid().unwrap_or_default();
    if !seen.may_delete_services {
        plan.orphaned = true;
        return;
    }
    let Ok(shown) = show_to_kube_vip(seen, service) else {
        plan.unwatched = true;
        return;
    };
    plan.steps.extend(shown);
    plan.steps.push(match &seen.object {
        None => Step::DeleteOrphan { uid },
        Some(_) => Step::DeleteService { uid },
    });
}

/// The write without which kube-vip never hears of the Service's deletion, if it needs one.
///
/// # Errors
/// The server refused this write: the Service must stay until somebody mends that.
fn show_to_kube_vip(seen: &Seen, service: &RawObject<Service>) -> Result<Option<Step>, PendingEvent> {
    match (host_datapath::service::write_visible(service), refusal_of(seen, "Service")) {
        (Write::Nothing, _) => Ok(None),
        (_, Some(RefusedWrite { why, .. })) => Err(PendingEvent::warning(
            "ServiceRefused",
            format!(
                "kube-vip does not see the Service and goes on announcing its address; give it type LoadBalancer and \
                 remove {}: {why}",
                annotations::KUBE_VIP_IGNORE
            ),
        )),
        (write, _) => Ok(Some(Step::WriteService(write))),
    }
}

/// Address and condition, and nothing of the host datapath.
fn show(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    address: Option<&AllocatedAddress>,
    waiting: Option<Explanation>,
    plan: &mut Plan,
) {
    let ready = ready(seen, Told { waiting, note: None });
    let shown = Shown {
        address,
        has_addresses_field: seen.has_addresses_field,
        ready,
        served: None,
        backends: None,
        applied: applied(seen, lb),
    };
    plan.steps.extend(status::write(lb, &shown, &seen.now).map(Step::WriteObject));
}

/// The slice only helps: where the server refuses the write, the end goes on without it.
fn empty_slice(seen: &Seen, owner: &Owner) -> Option<Step> {
    let slice = seen.slice.as_deref()?;
    if refusal_of(seen, "EndpointSlice").is_some() {
        return None;
    }
    let ours = owner.ownership(slice.meta()).is_writable();
    Some(Step::WriteSlice(slice::write_empty(slice))).filter(|step| ours && is_needed(step))
}

fn refusal_of<'a>(seen: &'a Seen, kind: &str) -> Option<&'a RefusedWrite> {
    seen.refused_writes.iter().find(|refused| refused.kind == kind)
}

fn delete(service: &RawObject<Service>) -> Step {
    Step::DeleteService { uid: service.uid().unwrap_or_default() }
}

fn is_needed(step: &Step) -> bool {
    !matches!(step, Step::WriteSlice(Write::Nothing) | Step::WriteService(Write::Nothing))
}

fn is_finalized(lb: &RawObject<LoadBalancer>) -> bool {
    lb.finalizers().iter().any(|name| name == finalizers::LOAD_BALANCER)
}

/// The source ranges to confirm: those that the Service has now.
fn applied<'a>(seen: &Seen, lb: &'a LoadBalancer) -> Option<Option<&'a str>> {
    let is_vm = lb.spec.workload() == WorkloadType::Vm;
    is_vm.then(|| source_ranges::applied(lb, seen.service.as_deref().map(|service| &**service)))
}

/// Whether the object's Service names the status' address already.
pub(super) fn service_names_address(service: Option<&RawObject<Service>>, lb: &LoadBalancer) -> bool {
    let named = service.and_then(|service| service.spec.as_ref()?.load_balancer_ip.clone());
    lb.pool_address().is_some_and(|has| Some(has.ip) == named)
}

/// What the Ready condition tells.
#[derive(Default)]
struct Told {
    waiting: Option<Explanation>,
    /// Told also of an object that waits for nothing.
    note: Option<String>,
}

/// What is waited for may have come, and what is missing may be there, while a list is not kept up to date.
fn ready(seen: &Seen, told: Told) -> Ready {
    let Told { waiting, note } = told;
    let ready = match (waiting, &seen.unlisted) {
        (None, _) => Ready::yes("AddressAllocated"),
        (Some(_), Some(why)) => {
            Ready::no("NotListed", format!("waiting until the controller can do this again: {why}"))
        }
        (Some(Explanation { reason, message }), None) => Ready::no(reason, message),
    };
    ready.with_note(note.as_deref())
}

#[cfg(test)]
mod tests;
