//! The address that a LoadBalancer object should have: a pure function from the object, the record and the pools.

use std::{collections::HashMap, net::IpAddr};

use controller_kit::Explanation;
use harvester_api::{AllocatedAddress, Ipam, LoadBalancer, WorkloadType, annotations, names};
use ip_pools::CheckedPool;
use ipam::{Mode, Requirement, select};
use kube::ResourceExt;

use crate::pool::Refused;

/// The holder of the address in the object's status, according to its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordedHolder {
    Us,
    SomebodyElse,
    #[default]
    Nobody,
    /// The pool is not there. The address stays with an object that uses it; no record could say otherwise.
    NoSuchPool,
}

/// Everything that the address depends on.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) lb: &'a LoadBalancer,
    /// Every pool, with what speaks against it.
    pub(crate) pools: &'a [CheckedPool],
    pub(crate) holder: RecordedHolder,
    /// The addresses that the pools record for this object, without one that it is giving back, in the order of the pools'
    /// names.
    pub(crate) recorded: &'a [(String, IpAddr)],
    /// The object's Service names the status' address already.
    pub(crate) service_names_address: bool,
    /// The pools that refused this claim, in the order in which they were asked.
    pub(crate) refused: &'a [(String, Refused)],
}

/// The decision about the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The object has this address. `lost` is an address in its status that the pool gives to somebody else.
    Has { address: AllocatedAddress, lost: Option<String> },
    /// Ask this pool.
    Claim {
        pool: String,
        /// The address that the object believes to have.
        known: Option<IpAddr>,
        /// Stays until there is another: a record that somebody erased, or the spec names another pool now.
        meanwhile: Option<AllocatedAddress>,
        lost: Option<String>,
    },
    /// There is none to be had now.
    Wait {
        waiting: Explanation,
        /// Stays until there is another: the spec names another pool now.
        meanwhile: Option<AllocatedAddress>,
        lost: Option<String>,
        /// The pools that were asked.
        asked: Vec<String>,
    },
}

/// Decides.
pub(crate) fn decide(seen: &Seen<'_>) -> Decision {
    let lb = seen.lb;
    let lost = lb.pool_address().filter(|_| seen.holder == RecordedHolder::SomebodyElse).map(|has| has.ip);
    if lb.spec.ipam() == Ipam::Dhcp {
        let ip = names::DHCP_ADDRESS.to_owned();
        return Decision::Has { address: AllocatedAddress { ip, ..AllocatedAddress::default() }, lost };
    }
    let wanted = lb.spec.ip_pool.as_str();
    let Some(has) = lb.pool_address() else { return fresh(seen, None) };
    let trusted = match seen.holder {
        RecordedHolder::Us => true,
        RecordedHolder::NoSuchPool => {
            lb.spec.workload() == WorkloadType::Cluster || seen.service_names_address
        }
        RecordedHolder::SomebodyElse | RecordedHolder::Nobody => false,
    };
    // a record that somebody erased takes no address from the network: the pool gets it back from the object
    let is_shown = match lb.spec.workload() {
        // without a Service that names it the address has nobody who announces it, and may be another's by now
        WorkloadType::Vm => seen.service_names_address,
        WorkloadType::Cluster => lb.status.as_ref().is_some_and(|status| status.address == has.ip),
    };
    let meanwhile = (trusted || seen.holder == RecordedHolder::Nobody && is_shown).then(|| has.clone());
    if !wanted.is_empty() && wanted != has.ip_pool {
        return from_pools(seen, vec![wanted.to_owned()], None, meanwhile, lost);
    }
    if trusted {
        return Decision::Has { address: has, lost: None };
    }
    if seen.holder == RecordedHolder::Nobody && checked(seen.pools, &has.ip_pool).is_some() {
        let known = has.ip.parse().ok();
        return from_pools(seen, vec![has.ip_pool], known, meanwhile, None);
    }
    fresh(seen, Some(has.ip))
}

fn fresh(seen: &Seen<'_>, lost: Option<String>) -> Decision {
    let lb = seen.lb;
    if !lb.spec.ip_pool.is_empty() {
        return from_pools(seen, vec![lb.spec.ip_pool.clone()], None, None, lost);
    }
    if let [(recorded, _), ..] = seen.recorded {
        return from_pools(seen, vec![recorded.clone()], None, None, lost);
    }
    let requirement = requirement(lb);
    let mode = match lb.spec.workload() {
        WorkloadType::Cluster => Mode::StrictThenLoose,
        WorkloadType::Vm => Mode::Strict,
    };
    let pools: Vec<_> = seen.pools.iter().map(|checked| &checked.pool).collect();
    let blocked: HashMap<_, _> = seen
        .pools
        .iter()
        .filter_map(|checked| Some((checked.pool.name.as_str(), checked.blocked.as_ref()?)))
        .collect();
    let usable = |pool: &ipam::Pool| match blocked.get(pool.name.as_str()) {
        Some(why) => Err((*why).clone()),
        None => Ok(()),
    };
    let choice = select(&pools, &requirement, mode, usable);
    if choice.order.is_empty() {
        let waiting = Explanation::new("NoMatchingPool", choice.explain(&requirement));
        return Decision::Wait { waiting, meanwhile: None, lost, asked: Vec::new() };
    }
    from_pools(seen, choice.order, None, None, lost)
}

/// The address that one of `pools` records for the object; else a claim to the first one that has not refused it.
fn from_pools(
    seen: &Seen<'_>,
    pools: Vec<String>,
    known: Option<IpAddr>,
    meanwhile: Option<AllocatedAddress>,
    lost: Option<String>,
) -> Decision {
    let first = pools.first().map(String::as_str).unwrap_or_default();
    if let Some(address) = recorded_in(seen, first, known) {
        return Decision::Has { address, lost };
    }
    let (mut refused, mut asked) = (None, Vec::new());
    for pool in pools {
        let Some((_, why)) = seen.refused.iter().find(|(by, _)| *by == pool) else {
            return Decision::Claim { pool, known, meanwhile, lost };
        };
        asked.push(pool);
        refused.get_or_insert(why);
        // a full pool is waited for; a full record, or a pool that went away meanwhile, is passed over
        if matches!(why, Refused::Exhausted { .. }) {
            break;
        }
    }
    let (reason, why) = refused.map_or_else(Default::default, |why| (why.reason(), why.to_string()));
    let message = match &meanwhile {
        None => why,
        Some(address) => {
            format!("{why}; address {} of pool {} stays until then", address.ip, address.ip_pool)
        }
    };
    Decision::Wait { waiting: Explanation::new(reason, message), meanwhile, lost, asked }
}

/// The record is the answer to a claim: the address that `pool` records for the object, if it does. Of several, the one
/// that the object believes to have, else one that the pool still offers, else the lowest.
fn recorded_in(seen: &Seen<'_>, pool: &str, known: Option<IpAddr>) -> Option<AllocatedAddress> {
    let ranges = checked(seen.pools, pool).map(|checked| &checked.pool.ranges);
    let offered = |address: IpAddr| ranges.is_some_and(|ranges| ranges.offers(address));
    let own = seen.recorded.iter().filter(|(recorded, _)| recorded == pool).map(|(_, address)| *address);
    let address = own.min_by_key(|address| (Some(*address) != known, !offered(*address), *address))?;
    let range = ranges.and_then(|ranges| ranges.covering(address));
    Some(AllocatedAddress {
        ip_pool: pool.to_owned(),
        ip: address.to_string(),
        mask: range.map(|range| range.mask().to_string()).unwrap_or_default(),
        gateway: range.and_then(|range| range.gateway()).map(|ip| ip.to_string()).unwrap_or_default(),
        ..AllocatedAddress::default()
    })
}

fn checked<'a>(pools: &'a [CheckedPool], name: &str) -> Option<&'a CheckedPool> {
    pools.iter().find(|checked| checked.pool.name == name)
}

/// The requirement in the object's annotations. An object that the webhook never saw has none.
pub(crate) fn requirement(lb: &LoadBalancer) -> Requirement {
    // `*` is a word of pools' scopes: an object that says it would match the scopes of everybody
    let text =
        |key: &str| lb.annotations().get(key).filter(|value| *value != "*").cloned().unwrap_or_default();
    let namespace = text(annotations::LB_NAMESPACE);
    Requirement {
        network: text(annotations::LB_NETWORK),
        project: text(annotations::LB_PROJECT),
        namespace: if namespace.is_empty() { lb.namespace().unwrap_or_default() } else { namespace },
        cluster: text(annotations::LB_CLUSTER),
    }
}

#[cfg(test)]
mod tests;
