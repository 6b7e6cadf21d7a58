//! Addresses that load balancers have: no backend may have one of them.
//!
//! For the whole cluster only that counts which no tenant can write: the record of a pool that names the load
//! balancer, and what kube-vip says of our own Services. `status.address` of its objects is what a guest cluster's
//! credentials may write, with DHCP to any address: it counts within their namespace, where the guest cluster's
//! nodes, which report it, are. Otherwise one tenant could take another's machines out of service.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use controller_kit::{ObjectKey, RawObject};
use harvester_api::{IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::Service;

use super::host::of_service;

/// Those that a backend in `namespace` may not have. `services` are those with our label.
pub(crate) fn of(
    namespace: &str,
    balancers: &[Arc<RawObject<LoadBalancer>>],
    pools: &[Arc<RawObject<IPPool>>],
    services: &[Arc<RawObject<Service>>],
) -> BTreeSet<Ipv4Addr> {
    let recorded = balancers.iter().filter_map(|lb| recorded(lb, pools));
    let announced = services.iter().flat_map(|service| of_service(service));
    let here = |lb: &&Arc<RawObject<LoadBalancer>>| lb.metadata.namespace.as_deref() == Some(namespace);
    let written = balancers.iter().filter(here).filter_map(|lb| lb.status.as_ref()?.address.parse().ok());
    recorded.chain(announced).chain(written).collect()
}

/// The address that a load balancer holds, by its pool. Records of other programs are no load balancers' addresses: they
/// may well be those of machines.
fn recorded(lb: &LoadBalancer, pools: &[Arc<RawObject<IPPool>>]) -> Option<Ipv4Addr> {
    let has = lb.status.as_ref()?.allocated_address.as_ref()?;
    let pool = pools.iter().find(|pool| pool.metadata.name.as_ref() == Some(&has.ip_pool))?;
    let holder = pool.status.as_ref()?.allocated.get(&has.ip)?;
    if *holder != ObjectKey::of(lb).to_string() {
        return None;
    }
    has.ip.parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn kept<K: serde::de::DeserializeOwned>(object: Value) -> Arc<RawObject<K>> {
        Arc::new(RawObject::from_json(object).unwrap())
    }

    fn lb(workload: &str, status: &Value) -> Vec<Arc<RawObject<LoadBalancer>>> {
        vec![kept(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"workloadType": workload}, "status": status,
        }))]
    }

    fn allocated(pool: &str, ip: &str) -> Value {
        json!({"allocatedAddress": {"ipPool": pool, "ip": ip}})
    }

    #[rstest]
    #[case::held(lb("vm", &allocated("edge", "10.0.0.7")), "other", &["10.0.0.7"])]
    #[case::held_by_a_guest_cluster(lb("cluster", &allocated("edge", "10.0.0.7")), "other", &["10.0.0.7"])]
    #[case::another_holds_it(lb("vm", &allocated("edge", "10.0.0.8")), "other", &[])]
    #[case::nobody_holds_it(lb("vm", &allocated("edge", "10.0.0.9")), "other", &[])]
    #[case::no_such_pool(lb("vm", &allocated("core", "10.0.0.7")), "other", &[])]
    // addresses.md 8: with DHCP a guest cluster writes any address
    #[case::a_tenants_word(lb("cluster", &json!({"address": "192.168.7.11"})), "other", &[])]
    #[case::a_tenants_word_of_itself(lb("cluster", &json!({"address": "192.168.7.11"})), "shop", &["192.168.7.11"])]
    #[case::no_address_yet(lb("cluster", &json!({"address": ""})), "shop", &[])]
    fn a_tenants_word_counts_only_among_its_own(
        #[case] balancers: Vec<Arc<RawObject<LoadBalancer>>>,
        #[case] namespace: &str,
        #[case] expected: &[&str],
    ) {
        let pool = kept(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
            "metadata": {"name": "edge"}, "spec": {"ranges": []}, "status": {"total": 9, "available": 7,
                "lastAllocated": "", "allocated": {"10.0.0.7": "shop/web", "10.0.0.8": "machines/node-1"}},
        }));
        let expected: BTreeSet<Ipv4Addr> = expected.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(of(namespace, &balancers, &[pool], &[]), expected);
    }

    #[test]
    fn what_is_announced_counts_for_everybody() {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.77"}]}});
        let service = kept(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web"}, "status": status}));
        assert_eq!(of("other", &[], &[], &[service]), [Ipv4Addr::new(203, 0, 113, 77)].into());
    }
}
