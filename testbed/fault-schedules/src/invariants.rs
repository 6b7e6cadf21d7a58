//! What must be true when everything has come to rest, and what must be true at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use harvester_api::names::DHCP_ADDRESS;
use harvester_api::{IPPool, LoadBalancer, VirtualMachineInstance, annotations};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt as _;
use sim_harvester::SimHarvester;
use test_cluster::{Side, TestCluster};

use crate::deeds::{Kind, Source};
use crate::land::POOLS;

/// So many connections to each Service: more than backends.
const CONNECTIONS: usize = 6;

/// At any time: no two load balancers that are there to stay have one address.
///
/// # Panics
/// Where it does not hold.
pub(crate) async fn nobody_shares(cluster: &TestCluster) {
    let mut holders = BTreeMap::new();
    for balancer in cluster.harvester.list::<LoadBalancer>().await {
        if let Some(address) =
            pool_address(&balancer).filter(|_| balancer.metadata.deletion_timestamp.is_none())
        {
            let name = balancer.name_any();
            let other = holders.insert(address.clone(), name.clone());
            assert_eq!(other, None, "{address} is {name}'s too");
        }
    }
}

/// At rest.
///
/// # Panics
/// Where one does not hold.
pub(crate) async fn hold(cluster: &TestCluster, simulation: &SimHarvester) {
    let recorded = records(cluster).await;
    let balancers = cluster.harvester.list::<LoadBalancer>().await;
    let believed: BTreeMap<String, String> = balancers
        .iter()
        .filter_map(|balancer| {
            let holder = format!("{}/{}", balancer.namespace().unwrap_or_default(), balancer.name_any());
            Some((pool_address(balancer)?, holder))
        })
        .collect();
    assert_eq!(
        believed, recorded,
        "addresses as LoadBalancers have them (left) and as pools record them (right)"
    );

    let services = cluster.guest.list::<Service>().await;
    let (wanted, others): (Vec<_>, Vec<_>) = services.iter().partition(|service| is_wanted(service));
    let owners: BTreeMap<String, &LoadBalancer> = balancers
        .iter()
        .map(|balancer| {
            (balancer.annotations().get(annotations::SERVICE_UID).cloned().unwrap_or_default(), balancer)
        })
        .collect();
    let of_balancers: BTreeSet<_> = owners.keys().cloned().collect();
    let of_services: BTreeSet<_> = wanted.iter().filter_map(|service| service.uid()).collect();
    let name = |uid: &String| {
        owners.get(uid).map_or("none", |balancer| balancer.metadata.name.as_deref().unwrap_or_default())
    };
    let odd: Vec<_> = of_balancers.symmetric_difference(&of_services).map(|uid| (uid, name(uid))).collect();
    assert!(
        odd.is_empty(),
        "every LoadBalancer has its Service, and every Service its LoadBalancer, but {odd:?}"
    );
    assert_eq!(owners.len(), balancers.len(), "one LoadBalancer for each Service");

    let mut published = BTreeSet::new();
    for service in &wanted {
        let balancer = owners[&service.uid().unwrap_or_default()];
        if let Some(address) = check(service, balancer, simulation) {
            assert!(published.insert(address), "{address} is served twice");
        }
    }
    for service in others {
        let told = (service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS), ingress(service));
        assert_eq!(told, (None, vec![]), "Service {} publishes nothing", service.name_any());
    }
    for pool in POOLS {
        let sources = wanted.iter().filter_map(|service| Kind::asked_by(service).source.pool());
        let asked = sources.filter(|source| source.name == pool.name).count();
        let given = balancers.iter().filter(|balancer| given_by(balancer) == Some(pool.name)).count();
        assert_eq!(
            given,
            asked.min(pool.addresses),
            "nobody waits while pool {} has a free address",
            pool.name
        );
    }
    nodes_are_where_their_machines_are(cluster).await;
}

/// One Service publishes just what it was given, by whom it asked, and is reached there; the address, if it has one.
fn check(service: &Service, balancer: &LoadBalancer, simulation: &SimHarvester) -> Option<IpAddr> {
    let (name, kind) = (service.name_any(), Kind::asked_by(service));
    let leased = kind.source == Source::Dhcp;
    let status = balancer.status.clone().unwrap_or_default();
    let annotation = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).map(String::as_str);
    let ingress = ingress(service);
    let given = pool_address(balancer);
    if given.is_some() {
        assert_eq!(given_by(balancer), kind.source.pool().map(|pool| pool.name), "{name}, {kind:?}");
    }
    let allocated = if leased { Some(DHCP_ADDRESS) } else { given.as_deref() };
    let asked_of_guest = allocated.filter(|_| !kind.on_host);
    assert_eq!(annotation, asked_of_guest, "annotation of Service {name}, {kind:?}");
    let address = if leased { ingress.first().cloned() } else { given };
    assert_eq!(ingress, Vec::from_iter(address.clone()), "status of Service {name}, {kind:?}");
    if leased {
        assert!(address.is_some(), "Service {name} has no lease, {kind:?}");
    }
    assert_eq!(status.address, address.clone().unwrap_or_default(), "LoadBalancer of {name}, {kind:?}");
    let address = address?.parse().expect("an address");
    for _ in 0..CONNECTIONS {
        if let Err(refused) = simulation.carry(address, 80) {
            panic!("Service {name}, {kind:?}, at {address}: {refused}");
        }
    }
    Some(address)
}

async fn nodes_are_where_their_machines_are(cluster: &TestCluster) {
    let zone = |of: &BTreeMap<String, String>| of.get(annotations::TOPOLOGY_ZONE).cloned();
    let nodes = cluster.guest.list::<Node>().await;
    let nodes: BTreeMap<_, _> = nodes.iter().map(|node| (node.name_any(), zone(node.labels()))).collect();
    let instances = cluster.harvester.list::<VirtualMachineInstance>().await;
    let machines = instances.iter().map(|instance| (instance.name_any(), zone(instance.annotations())));
    assert_eq!(nodes, machines.collect(), "zones of Nodes (left) and of their machines (right)");
}

/// # Panics
/// Where an object is there that was not before, or an address is still held.
pub(crate) async fn nothing_is_left(cluster: &TestCluster, before: &[BTreeSet<String>; 2]) {
    assert_eq!(records(cluster).await, BTreeMap::new());
    for (side, before) in Side::ALL.into_iter().zip(before) {
        assert_eq!(&objects(cluster, side).await, before, "objects of the {} cluster", side.name());
    }
}

/// What is there, certificates and registration of the webhook apart.
pub(crate) async fn objects(cluster: &TestCluster, side: Side) -> BTreeSet<String> {
    let mut objects = cluster.objects(side).await;
    objects.retain(|path| !path.contains("harvester-load-balancer-webhook"));
    objects
}

/// Address to holder, of all pools.
pub(crate) async fn records(cluster: &TestCluster) -> BTreeMap<String, String> {
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

fn is_wanted(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

fn ingress(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|entry| entry.ip.clone()).collect()
}

/// The pool that an address is from.
fn given_by(balancer: &LoadBalancer) -> Option<&str> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then_some(allocated.ip_pool.as_str())
}

fn pool_address(balancer: &LoadBalancer) -> Option<String> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then(|| allocated.ip.clone())
}
