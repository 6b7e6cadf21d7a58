//! A requested address, and the one that Harvester gave.
//!
//! Of a demand that is not met only an address that the Service has already is published, or one to which the load
//! balancer of this project moved it before the demand changed. Which of three states it is, the Ready condition tells:
//!
//! ```text
//! false, with a message    the load balancer has looked: its sentence is told
//! with a reason            the load balancer of this project, which has not looked yet; the Go program writes none
//! without a reason         the Go program, which ignores the demand; or ours, which started just now
//! ```
//! The last two are told after the time within which Harvester answers. Nothing but the time of an Event depends on how
//! long somebody waited, so a restart publishes nothing, and at most tells once more.

use std::net::IpAddr;

use controller_kit::{PendingEvent, RawObject};
use harvester_api::{LoadBalancer, annotations, condition};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::{
    ANSWER, Phase, Seen, allocated,
    families::{Families, listed, same, served},
    handover::given,
    ingress, is_leased, not_ready, source_ranges, status_address,
};
use crate::{
    datapath::Datapath,
    load_balancers::requests::demanded,
    requested::{Addresses, Asked, Requested, WISH},
    service_config::ServiceConfig,
};

/// The reasons of the load balancer of this project for which a pool gives an object no address.
const OF_A_POOL: [&str; 9] = [
    "PoolNotFound",
    "PoolNotReady",
    "PoolExhausted",
    "RecordFull",
    "PoolNotWritten",
    "PoolWithoutFamily",
    "PoolDraining",
    "PoolNotAllowed",
    "QuotaExceeded",
];

/// The demand of the Service, where Harvester gave something else.
pub(super) fn unmet_demand(
    service: &Service,
    requested: &Requested,
    object: &RawObject<LoadBalancer>,
) -> Option<Addresses> {
    let (given, path) = (allocated(object), Datapath::of_object(&object.spec));
    let is_unmet = |demand: &Addresses| !given.is_empty() && !is_met(service, path, *demand, &given);
    demanded(requested, object).filter(is_unmet)
}

/// Whether what Harvester gave answers this demand. Where the Service takes what there is of two families, the data path
/// host has one, and so may Harvester: of the other nothing is waited for.
pub(in crate::load_balancers) fn is_met(
    service: &Service,
    path: Datapath,
    demand: Addresses,
    given: &[&str],
) -> bool {
    let one_is_enough = path == Datapath::Host || Families::of(service).are_preferred();
    if one_is_enough { demand.fit(given) } else { demand.are_among(given) }
}

/// The wish of the Service, where Harvester gave something else.
pub(super) fn unmet_wish(requested: &Requested, object: &LoadBalancer) -> Option<Addresses> {
    let given = allocated(object);
    // one of two families is enough whatever the policy says: a Service that requires both waits for the second anyway
    let has_demand = demanded(requested, object).is_some();
    requested.wish.filter(|wish| !has_demand && !is_leased(object) && !given.is_empty() && !wish.fit(&given))
}

/// Whether the object's address is not for the Service: it demands another one, or nobody may reach it, and it has not
/// got this one yet.
pub(in crate::load_balancers) fn is_withheld(
    service: &Service,
    config: &ServiceConfig,
    object: &RawObject<LoadBalancer>,
) -> bool {
    let requested = &config.requested;
    match Datapath::of_object(&object.spec) {
        Datapath::Guest => {
            let has = || {
                let addresses = served(service, object);
                let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
                let given = given(service, Some(object)).unwrap_or_default();
                asked.is_some_and(|asked| *asked == addresses.join(","))
                    && addresses.iter().all(|address| listed(&given).any(|given| same(given, address)))
            };
            unmet_demand(service, requested, object).is_some() && !has() && !is_moving(service, object)
        }
        // kube-vip of Harvester may announce the former address for a while
        Datapath::Host => status_address(object).is_some_and(|address| {
            let is_another = || demanded(requested, object).is_some_and(|demand| demand.exclude(address));
            !ingress(service).contains(&address) && (is_another() || source_ranges::keep_out(config, object))
        }),
    }
}

/// The load balancer of this project gave another address in place of the one that was handed over, and waits until the
/// object shows that kube-vip followed: until then it keeps the former one, and gives no third. So the move is finished
/// first, also where the Service demands something else by now. The Go program waits for nobody: it gives the former
/// address back before it takes another one, whatever is demanded.
fn is_moving(service: &Service, object: &RawObject<LoadBalancer>) -> bool {
    let given = given(service, Some(&**object)).unwrap_or_default();
    let shown = status_address(object).filter(|shown| listed(&given).any(|given| same(given, shown)));
    let served = served(service, object);
    let follows = |shown| !served.is_empty() && !served.iter().any(|served| same(served, shown));
    is_of_this_project(object) && shown.is_some_and(follows)
}

/// The Event of a Service whose demand cannot be met now, in the words of the load balancer.
fn refused(object: &LoadBalancer) -> Option<PendingEvent> {
    let ready = not_ready(object).filter(|ready| !ready.message.is_empty())?;
    let reason = ["AddressInUse", "AddressNotInPool"].into_iter().find(|reason| *reason == ready.reason)?;
    Some(PendingEvent::warning(reason, ready.message.as_str()))
}

/// The Event of a Service that keeps its address because the pool that it names by now gives it none, in the words of the
/// load balancer: of a Service that is served no failed sync tells.
fn not_moved(requested: &Requested, object: &LoadBalancer) -> Option<PendingEvent> {
    let Asked::For(pool) = &requested.pool else { return None };
    let (former, _) = object.status.as_ref()?.allocated_address.as_ref()?.primary()?;
    let ready = not_ready(object).filter(|ready| OF_A_POOL.contains(&ready.reason.as_str()))?;
    let is_asked = object.spec.ip_pool == *pool && former != pool.as_str() && !ready.message.is_empty();
    is_asked.then(|| PendingEvent::warning("RequestedAddressNotUsed", ready.message.as_str()))
}

/// The sentence of a load balancer that is ready about a demand that this object never meets: an IPv6 address stays
/// whatever is asked for.
fn never_met(object: &LoadBalancer, demand: Addresses) -> Option<&str> {
    why_not(object, demand).filter(|_| not_ready(object).is_none())
}

/// An Event says in the words of the load balancer why there is no address.
pub(super) fn is_refused(object: &LoadBalancer, phase: &Phase) -> bool {
    let is_never_met = || matches!(phase, Phase::Demand(demand) if never_met(object, *demand).is_some());
    refused(object).is_some() || is_never_met()
}

/// The load balancer of this project wrote the object's status last.
pub(super) fn is_of_this_project(object: &LoadBalancer) -> bool {
    let conditions = object.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition::ready(conditions).is_some_and(|ready| !ready.reason.is_empty())
}

/// Events about what the Service asks for and does not have.
pub(super) fn told(seen: &Seen<'_>, object: &RawObject<LoadBalancer>) -> Vec<PendingEvent> {
    let requested = &seen.config.requested;
    let given = allocated(object).join(", ");
    if demanded(requested, object).is_some()
        && let Some(event) = refused(object)
    {
        return vec![event];
    }
    match seen.phase() {
        Some(Phase::Demand(demand)) if never_met(object, demand).is_some() => {
            let sentence = never_met(object, demand).unwrap_or_default();
            vec![PendingEvent::warning("RequestedAddressNotUsed", sentence)]
        }
        Some(Phase::Demand(demand)) if seen.waited >= ANSWER && !is_of_this_project(object) => {
            if not_ready(object).is_some_and(|ready| !ready.message.is_empty()) {
                return vec![];
            }
            let now = match is_withheld(seen.service, &seen.config, object) {
                true => "the Service gets no address",
                false => "the Service keeps its address",
            };
            let sentence = format!(
                "Harvester gave {given}, and annotation {} demands {demand}: its load balancer does not know requested \
                 addresses, so {now}; install the load balancer of this project in Harvester, or remove the annotation",
                annotations::SERVICE_IP
            );
            vec![PendingEvent::warning("RequestedAddressUnsupported", sentence)]
        }
        phase => {
            // of these two the failed sync, or the Event about families, has the sentence of the load balancer
            let is_told_so = matches!(phase, Some(Phase::Allocation | Phase::Demand(_)));
            let about_wish = |wish| {
                let why = why_not(object, wish);
                let is_known =
                    why.is_some() || matches!(phase, Some(Phase::Wish(_))) && seen.waited >= ANSWER;
                let why = why.unwrap_or("it may be in use, or in no pool for this Service");
                let sentence = format!(
                    "{WISH} asks for {wish}, and Harvester gave {given}: {why}; annotation {} demands an address",
                    annotations::SERVICE_IP
                );
                is_known.then(|| PendingEvent::warning("RequestedAddressNotUsed", sentence))
            };
            let of_pool = not_moved(requested, object).filter(|_| !is_told_so);
            of_pool.or_else(|| unmet_wish(requested, object).and_then(about_wish)).into_iter().collect()
        }
    }
}

/// The sentence of the load balancer about this wish.
fn why_not(object: &LoadBalancer, wish: Addresses) -> Option<&str> {
    let conditions = object.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let message = condition::ready(conditions)?.message.as_str();
    // 10.0.0.7 is a part of 10.0.0.70
    let is_no_word = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '(' | ')' | '"');
    let names = |ip: IpAddr| {
        let is_it = |word: &str| word.parse() == Ok(ip);
        message.split(is_no_word).any(|word| is_it(word) || is_it(word.trim_end_matches(['.', ':'])))
    };
    wish.iter().any(names).then_some(message)
}

#[cfg(test)]
mod tests;
