//! What must be true when everything has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::{IPPool, LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use test_cluster::{Side, TestCluster};

use crate::deeds::ADDRESSES;

/// # Panics
/// Where one does not hold.
pub(crate) async fn hold(cluster: &TestCluster) {
    let recorded = records(cluster).await;
    let balancers = cluster.harvester.list::<LoadBalancer>().await;
    let believed: BTreeMap<String, String> = balancers
        .iter()
        .filter_map(|balancer| {
            let address = address_of(balancer)?;
            Some((address, format!("{}/{}", balancer.namespace().unwrap_or_default(), balancer.name_any())))
        })
        .collect();
    assert_eq!(
        believed, recorded,
        "addresses as LoadBalancers have them (left) and as pools record them (right)"
    );

    let services = cluster.guest.list::<Service>().await;
    let wanted: BTreeMap<String, &Service> = services
        .iter()
        .filter(|service| {
            service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
        })
        .map(|service| (service.uid().unwrap_or_default(), service))
        .collect();
    let owners: BTreeMap<String, &LoadBalancer> = balancers
        .iter()
        .map(|balancer| {
            (balancer.annotations().get(annotations::SERVICE_UID).cloned().unwrap_or_default(), balancer)
        })
        .collect();
    let uids = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(
        uids(owners.keys().collect()),
        uids(wanted.keys().collect()),
        "every LoadBalancer (left) has its Service (right), and every Service its LoadBalancer"
    );
    assert_eq!(owners.len(), balancers.len(), "one LoadBalancer for each Service");

    for (uid, service) in wanted {
        let published = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).cloned();
        assert_eq!(published, address_of(owners[&uid]), "what Service {} publishes", service.name_any());
    }
    assert_eq!(recorded.len(), owners.len().min(ADDRESSES), "nobody waits while there is a free address");
}

/// # Panics
/// Where an object is there that was not before, or an address is still held.
pub(crate) async fn nothing_is_left(cluster: &TestCluster, before: &[BTreeSet<String>; 2]) {
    assert_eq!(records(cluster).await, BTreeMap::new());
    for (side, before) in Side::ALL.into_iter().zip(before) {
        assert_eq!(&cluster.objects(side).await, before, "objects of the {} cluster", side.name());
    }
}

/// Address to holder, of all pools.
async fn records(cluster: &TestCluster) -> BTreeMap<String, String> {
    let mut records = BTreeMap::new();
    for pool in cluster.harvester.list::<IPPool>().await {
        let name = pool.name_any();
        let status = pool.status.unwrap_or_default();
        let held = i64::try_from(status.allocated.len()).unwrap_or(i64::MAX);
        assert_eq!(status.total - status.available, held, "numbers of pool {name}");
        for (address, holder) in status.allocated {
            assert_eq!(records.insert(address.clone(), holder), None, "{address} is in two pools");
        }
    }
    records
}

fn address_of(balancer: &LoadBalancer) -> Option<String> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then(|| allocated.ip.clone())
}
