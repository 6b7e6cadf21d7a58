//! The records that an object gives back: all but that of its address, or all.

use std::net::IpAddr;

use controller_kit::RawObject;
use harvester_api::{AllocatedAddress, LoadBalancer, WorkloadType};
use kube::{Resource as _, ResourceExt as _};

use super::{Because, Release, Seen, Step};
use crate::{
    controller::{address::dual, families},
    ownership::{Owner, Ownership},
    pool::Order,
    reuse::{self, Holder},
};

/// The object has another address now: everything else that the pools record for it goes back, once kube-vip has
/// followed, on Harvester or in the guest.
pub(super) fn release_others(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    address: &AllocatedAddress,
) -> Vec<Step> {
    let (first, second) = (address.primary(), address.ipv6());
    let is_of = |pool: &str, other: IpAddr, has: Option<(&str, &str)>| {
        has.is_some_and(|(of, ip)| of == pool && ip.parse() == Ok(other))
    };
    let is_other =
        |(pool, other): &&(String, IpAddr)| !is_of(pool, *other, first) && !is_of(pool, *other, second);
    let first_ip: Option<IpAddr> = address.ip.parse().ok();
    // nothing tells when an IPv6 address is announced no more while `status.address` has the IPv4 one; and an IPv4 address
    // is held for two that are required, before the object shows it
    let has_or_wants_two = families::may_have_two(lb) || dual::second(lb).is_some();
    let may_go = |record: &&(String, IpAddr)| {
        let moved = record.1.is_ipv4() && first_ip.is_some_and(|first| first.is_ipv4());
        !has_or_wants_two || moved || seen.address.outranked.contains(record)
    };
    // the cloud controller manager shows what kube-vip in the guest announces, and publishes what stands in the status
    let shown = lb.status.as_ref().and_then(|status| status.address.parse::<IpAddr>().ok());
    let shown = shown.filter(|_| lb.spec.workload() == WorkloadType::Cluster);
    let is_followed = |other: IpAddr| {
        let is_alone = other.is_ipv4() && !has_or_wants_two;
        shown.is_none_or(|shown| shown != other && (is_alone || Some(shown) == first_ip))
    };
    let others = records(seen).filter(is_other).filter(may_go).filter(|record| is_followed(record.1));
    moved(seen, lb, others)
}

/// What an object that requires two addresses holds beside the record of each family that it counts on, `held`, while it
/// shows none: nobody has heard of the others, and whoever names one pool after the other holds no more than one of each.
pub(super) fn release_unseen(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    held: Option<&[(String, IpAddr)]>,
) -> Vec<Step> {
    let Some(held) = held else { return Vec::new() };
    let shows = lb.pool_addresses().next().is_some();
    let is_told = lb.status.as_ref().is_some_and(|status| !status.address.is_empty());
    if shows || is_told {
        return Vec::new();
    }
    moved(seen, lb, records(seen).filter(|record| !held.contains(record)))
}

/// Gives these records back, of which nobody needs the address.
fn moved<'a>(
    seen: &Seen,
    lb: &RawObject<LoadBalancer>,
    others: impl Iterator<Item = &'a (String, IpAddr)>,
) -> Vec<Step> {
    let uid = lb.uid().unwrap_or_default();
    // a fresh read decides about a stranger's, and tells
    let owner = Owner::of(lb);
    let service = seen.service.as_deref();
    let service = service.filter(|service| owner.ownership(service.meta()) != Ownership::Foreign);
    let service = service.map(|service| &**service);
    let is_free = |(_, other): &&(String, IpAddr)| {
        reuse::may_be_given_away(&seen.key, Holder::Moved(&uid), *other, service).is_ok()
    };
    let others = others.filter(is_free).filter(|record| !seen.records_held.contains(*record));
    others
        .map(|(pool, other)| {
            let order = Order::Release { holder: seen.key.to_string(), address: *other };
            let because = Because::Moved { uid: uid.clone() };
            Step::Release(Release { pool: pool.clone(), address: *other, because, order })
        })
        .collect()
}

pub(super) fn release_all(seen: &Seen, because: &Because) -> Vec<Step> {
    let release = |(pool, address): &(String, IpAddr)| {
        let order = Order::Release { holder: seen.key.to_string(), address: *address };
        let because = because.clone();
        Step::Release(Release { pool: pool.clone(), address: *address, because, order })
    };
    let free = records(seen).filter(|record| !seen.records_held.contains(*record));
    free.map(release).collect()
}

/// Everything that pools record for the object.
fn records(seen: &Seen) -> impl Iterator<Item = &(String, IpAddr)> {
    seen.address.recorded.iter().chain(&seen.address.outranked)
}
