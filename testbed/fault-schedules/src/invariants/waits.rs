//! Who waits for an address.

use std::collections::{BTreeMap, BTreeSet};

use controller_kit::ObjectKey;
use harvester_api::{IPPool, LoadBalancer, annotations};
use kube::ResourceExt as _;
use test_cluster::TestCluster;

use super::{families, holder, is_ipv6, source};
use crate::cluster_setup::{EDGE, LAB, POOLS, Pool, SPARE};
use crate::user_actions::{AddressSource, Families};

/// What one pool could give out: free addresses of IPv4 and of IPv6, and the room that its quota leaves. All load balancers
/// are of one namespace and one guest cluster.
struct Room {
    free: [usize; 2],
    quota: usize,
}

impl Room {
    async fn of(pool: &Pool, cluster: &TestCluster) -> Self {
        let stored = cluster.harvester.get::<IPPool>(pool.name).await.expect("the pool is there");
        let allocated = stored.status.unwrap_or_default().allocated;
        let held = |ipv6: bool| allocated.keys().filter(|address| is_ipv6(address) == ipv6).count();
        let free = [pool.addresses - held(false), pool.ipv6_addresses - held(true)];
        // it takes nothing back
        let max = stored.spec.quota.first().and_then(|quota| usize::try_from(quota.max).ok());
        let quota = max.map_or(usize::MAX, |max| max.saturating_sub(allocated.len()));
        Self { free, quota }
    }

    fn gives(&self, ipv6: bool, addresses: usize) -> bool {
        self.free[usize::from(ipv6)] > 0 && self.quota >= addresses
    }
}

/// The pools that may give an address of this family to who asks for this source. Only the global pool has IPv6.
pub(super) fn pools(source: AddressSource, ipv6: bool, falls_over: bool) -> Vec<&'static Pool> {
    match source {
        AddressSource::Dhcp => vec![],
        AddressSource::Edge if !ipv6 && falls_over => vec![&EDGE, &SPARE],
        AddressSource::Edge if !ipv6 => vec![&EDGE],
        AddressSource::Edge | AddressSource::Lab => vec![&LAB],
    }
}

/// Nobody waits for an address that there is:
/// - who asks for one family, or is content with one of two, has one of each family of which a pool has one free and room for
///   it in its quota;
/// - who requires both has both where there are both, in one pool that has room for two in its quota or in two pools with
///   room for one; with one of them it has the other as soon as that is free. Otherwise it may wait though there is one;
/// - who demands one has it, unless it is another's, or of no pool for it, or a quota has no room for two while it moves.
///
/// `late`: those that a stopped program made, for what their Services had asked for before. One may keep an address of a family
/// that its Service does not ask for any more.
///
/// # Panics
/// Where somebody does.
pub(super) async fn nobody_waits_in_vain(
    cluster: &TestCluster,
    balancers: &[LoadBalancer],
    recorded: &BTreeMap<String, String>,
    falls_over: bool,
    late: &BTreeSet<ObjectKey>,
) {
    let mut rooms = BTreeMap::new();
    for pool in POOLS {
        rooms.insert(pool.name, Room::of(pool, cluster).await);
    }
    for balancer in balancers {
        let (holder, families, source) = (holder(balancer), families(balancer), source(balancer));
        let has = |ipv6: bool| recorded.iter().any(|(address, of)| *of == holder && is_ipv6(address) == ipv6);
        if late.contains(&ObjectKey::of(balancer)) && (has(false) || has(true)) {
            continue;
        }
        let gives = |ipv6: bool, addresses: usize| {
            let of = pools(source, ipv6, falls_over);
            of.into_iter().map(|pool| pool.name).find(|name| rooms[name].gives(ipv6, addresses))
        };
        if let Some(demanded) = balancer.annotations().get(annotations::REQUESTED_IP_STRICT) {
            let of = pools(source, is_ipv6(demanded), falls_over);
            let gives = of.into_iter().find(|pool| pool.offers(demanded) && rooms[pool.name].quota > 0);
            let is_met = recorded.get(demanded).is_some() || gives.is_none();
            assert!(is_met, "{holder} waits for {demanded}, which is free");
            continue;
        }
        let one = |ipv6: bool| if has(ipv6) { None } else { gives(ipv6, 1) };
        let in_vain = match families {
            Families::One => one(false),
            Families::Required if !has(false) && !has(true) => {
                let both = gives(false, 1).zip(gives(true, 1));
                both.filter(|(first, second)| first != second || gives(true, 2).is_some())
                    .map(|(first, _)| first)
            }
            Families::Preferred | Families::Required => one(false).or_else(|| one(true)),
        };
        assert_eq!(in_vain, None, "{holder} waits, {families:?}, and this pool has an address for it");
    }
}
