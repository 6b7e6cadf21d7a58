//! Who waits for an address.

use std::collections::BTreeMap;

use harvester_api::{IPPool, LoadBalancer};
use test_cluster::TestCluster;

use super::{families, holder, source};
use crate::cluster_setup::{EDGE, LAB, Pool};
use crate::user_actions::{AddressSource, Families};

/// Of one pool: free addresses of IPv4 and of IPv6, and the room that its quota leaves. All load balancers are of one
/// namespace and one guest cluster.
struct Room {
    free: [usize; 2],
    quota: usize,
}

impl Room {
    async fn of(pool: &Pool, cluster: &TestCluster) -> Self {
        let stored = cluster.harvester.get::<IPPool>(pool.name).await.expect("the pool is there");
        let allocated = stored.status.unwrap_or_default().allocated;
        let held = |is_v6: bool| allocated.keys().filter(|address| address.contains(':') == is_v6).count();
        let free = [pool.addresses - held(false), pool.ipv6_addresses - held(true)];
        let max = stored.spec.quota.first().and_then(|quota| usize::try_from(quota.max).ok());
        Self { free, quota: max.unwrap_or(usize::MAX).saturating_sub(allocated.len()) }
    }
}

/// # Panics
/// Where a load balancer lacks an address that a pool has free for it, and the quota has room.
pub(super) async fn nobody_waits_in_vain(
    cluster: &TestCluster,
    balancers: &[LoadBalancer],
    recorded: &BTreeMap<String, String>,
    falls_over: bool,
) {
    let (lab, edge) = (Room::of(&LAB, cluster).await, Room::of(&EDGE, cluster).await);
    for balancer in balancers {
        let (holder, families, source) = (holder(balancer), families(balancer), source(balancer));
        if source == AddressSource::Dhcp {
            continue;
        }
        let has = |is_v6: bool| {
            recorded.iter().any(|(address, of)| *of == holder && address.contains(':') == is_v6)
        };
        for (family, is_v6) in [false, true].into_iter().enumerate() {
            if is_v6 && families == Families::One || has(is_v6) {
                continue;
            }
            // the first pool that matches, and the next one only where that is full
            let pools = match source {
                AddressSource::Edge if is_v6 => vec![&lab],
                AddressSource::Edge if falls_over && edge.free[0] == 0 => vec![&edge, &lab],
                AddressSource::Edge => vec![&edge],
                AddressSource::Lab | AddressSource::Dhcp => vec![&lab],
            };
            // a quota has room for both families that are required, or gives neither
            let needs = if families == Families::Required { 2 } else { 1 };
            for Room { free, quota } in pools {
                assert!(
                    free[family] == 0 || *quota < needs,
                    "{holder} lacks an address of {}, {} are free, and the quota has room for {quota}",
                    if is_v6 { "IPv6" } else { "IPv4" },
                    free[family]
                );
            }
        }
    }
}
