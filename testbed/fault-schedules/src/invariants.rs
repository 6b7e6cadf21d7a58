//! Conditions that hold at rest, and conditions that hold at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use controller_kit::ObjectKey;
use harvester_api::names::DHCP_ADDRESS;
use harvester_api::{IPPool, Ipam, LoadBalancer, VirtualMachineInstance, WorkloadType, annotations};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::ResourceExt;
use sim_harvester::{Cluster, SimHarvester, Vip};
use test_cluster::{Side, TestCluster};

use crate::cluster_setup::{EDGE_NETWORK, POOLS, is_leased};
use crate::process::LateCreations;
use crate::user_actions::{AddressSource, ServiceOptions};

/// The number of connections to each Service: more than there are backends.
const CONNECTIONS: usize = 6;

/// At any time.
///
/// # Panics
/// Where one does not hold.
pub(crate) async fn hold_at_any_time(cluster: &TestCluster, simulation: &SimHarvester, late: &LateCreations) {
    nobody_shares(cluster).await;
    no_announced_address_is_anothers(cluster, simulation, &late.of("services")).await;
}

/// No two load balancers have one address, those under deletion apart.
async fn nobody_shares(cluster: &TestCluster) {
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

/// While Harvester's kube-vip announces an address of a pool for a Service, the pool records it for the load balancer of
/// the Service's name: it is neither free nor another's (docs/contract/addresses.md#1).
///
/// kube-vip hears of a deletion some time after it; an address whose Service is gone, and that kube-vip is about to
/// withdraw, does not count. Nor does a Service that a stopped program created when it went on: its load balancer may have
/// lost the address meanwhile, and the leader deletes the Service as soon as it sees it.
async fn no_announced_address_is_anothers(
    cluster: &TestCluster,
    simulation: &SimHarvester,
    late: &BTreeSet<ObjectKey>,
) {
    let before = announced_for_good(cluster, simulation).await;
    let records = records(cluster).await;
    // what was announced before the look at the records, and still is after it, was announced at the look
    let after = announced_for_good(cluster, simulation).await;
    for (address, service) in before
        .intersection(&after)
        .filter(|(address, service)| !is_leased(*address) && !late.contains(service))
    {
        let holder = records.get(&address.to_string());
        assert_eq!(
            holder,
            Some(&service.to_string()),
            "kube-vip announces {address} for Service {service}, and the pool records it for {holder:?}"
        );
    }
}

/// The addresses that Harvester's kube-vip announces and that no event under way takes away.
async fn announced_for_good(
    cluster: &TestCluster,
    simulation: &SimHarvester,
) -> BTreeSet<(IpAddr, ObjectKey)> {
    let services = cluster.harvester.list::<Service>().await;
    let living: BTreeSet<_> = services.iter().filter_map(ResourceExt::uid).collect();
    let of_harvester = simulation.announced().into_iter().filter(|(of, _)| *of == Cluster::Harvester);
    let lasting = of_harvester.filter(|(_, vip)| vip.passed_over || living.contains(&vip.service_uid));
    lasting
        .flat_map(|(_, Vip { service, addresses, .. })| {
            addresses.into_iter().map(move |address| (address, service.clone()))
        })
        .collect()
}

/// At rest.
///
/// # Panics
/// Where one does not hold.
pub(crate) async fn hold(cluster: &TestCluster, simulation: &SimHarvester, late: &LateCreations) {
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

    let told = told_of_addresses_not_published(cluster).await;
    let late = late.of("loadbalancers");
    let mut published = BTreeSet::new();
    let served: Vec<_> = wanted
        .iter()
        .map(|service| {
            let balancer = owners[&service.uid().unwrap_or_default()];
            (*service, balancer, options(service, balancer, &late))
        })
        .collect();
    for (service, balancer, options) in &served {
        if let Some(address) = check(service, *options, balancer, simulation, &told) {
            assert!(published.insert(address), "{address} is served twice");
        }
    }
    for service in others {
        let told = (service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS), ingress(service));
        assert_eq!(told, (None, vec![]), "Service {} publishes nothing", service.name_any());
    }
    for pool in POOLS {
        let sources = served.iter().filter_map(|(_, _, options)| options.source.pool());
        let asked = sources.filter(|source| source.name == pool.name).count();
        let given = balancers.iter().filter(|balancer| given_by(balancer) == Some(pool.name)).count();
        assert_eq!(
            given,
            asked.min(pool.addresses),
            "nobody waits while pool {} has a free address",
            pool.name
        );
    }
    nodes_are_as_their_vms_are(cluster).await;
}

/// The choices by which a Service is served. A stopped program may have made its object late, for what it asked before; an
/// object keeps its datapath, its ipam and the network that chose its pool.
fn options(service: &Service, balancer: &LoadBalancer, late: &BTreeSet<ObjectKey>) -> ServiceOptions {
    let asked = ServiceOptions::asked_by(service);
    if !late.contains(&ObjectKey::of(balancer)) {
        return asked;
    }
    let network = balancer.annotations().get(annotations::LB_NETWORK);
    let source = if balancer.spec.ipam() == Ipam::Dhcp {
        AddressSource::Dhcp
    } else if network.is_some_and(|network| network == EDGE_NETWORK) {
        AddressSource::Edge
    } else {
        AddressSource::Lab
    };
    let on_host = balancer.spec.workload() == WorkloadType::Vm;
    ServiceOptions { on_host, source, ..asked }
}

/// UIDs of the Services with an Event that kube-vip does not show their address.
async fn told_of_addresses_not_published(cluster: &TestCluster) -> BTreeSet<String> {
    let events = cluster.guest.list::<Event>().await.into_iter();
    let told = events.filter(|event| event.reason.as_deref() == Some("AddressNotPublished"));
    told.filter_map(|event| event.involved_object.uid).collect()
}

/// The Service publishes exactly the address that the source in `options` gave to it, and is reached there. Returns the
/// address, if it has one. `told`: the Services that have an Event instead.
fn check(
    service: &Service,
    options: ServiceOptions,
    balancer: &LoadBalancer,
    simulation: &SimHarvester,
    told: &BTreeSet<String>,
) -> Option<IpAddr> {
    let (name, leased) = (service.name_any(), options.source == AddressSource::Dhcp);
    let status = balancer.status.clone().unwrap_or_default();
    let annotation = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).map(String::as_str);
    let ingress = ingress(service);
    let given = pool_address(balancer);
    if given.is_some() {
        assert_eq!(given_by(balancer), options.source.pool().map(|pool| pool.name), "{name}, {options:?}");
    }
    let allocated = if leased { Some(DHCP_ADDRESS) } else { given.as_deref() };
    let asked_of_guest = allocated.filter(|_| !options.on_host);
    assert_eq!(annotation, asked_of_guest, "annotation of Service {name}, {options:?}");
    if ingress.is_empty() && is_not_written_again(service, simulation) {
        let uid = service.uid().unwrap_or_default();
        assert!(allocated.is_none() || told.contains(&uid), "Service {name} waits in silence, {options:?}");
        return None;
    }
    let address = if leased { ingress.first().cloned() } else { given };
    assert_eq!(ingress, Vec::from_iter(address.clone()), "status of Service {name}, {options:?}");
    if leased {
        assert!(address.is_some(), "Service {name} has no lease, {options:?}");
    }
    assert_eq!(status.address, address.clone().unwrap_or_default(), "LoadBalancer of {name}, {options:?}");
    let address = address?.parse().expect("an address");
    if options.on_host && !ServiceOptions::asked_by(service).on_host {
        // it asks for no health check, so Harvester sends to VMs that refuse, too
        return Some(address);
    }
    for _ in 0..CONNECTIONS {
        if let Err(refused) = simulation.carry(address, 80) {
            panic!("Service {name}, {options:?}, at {address}: {refused}");
        }
    }
    Some(address)
}

/// The Service was of another type for a while. kube-vip passed over that, goes on to announce the address, and does not
/// write it to the status a second time; in the guest no program of ours writes it.
fn is_not_written_again(service: &Service, simulation: &SimHarvester) -> bool {
    let uid = service.uid().unwrap_or_default();
    simulation.announced().iter().any(|(_, vip)| vip.service_uid == uid && vip.was_passed_over)
}

async fn nodes_are_as_their_vms_are(cluster: &TestCluster) {
    let zone = |of: &BTreeMap<String, String>| of.get(annotations::TOPOLOGY_ZONE).cloned();
    let nodes = cluster.guest.list::<Node>().await;
    let zones: BTreeMap<_, _> = nodes.iter().map(|node| (node.name_any(), zone(node.labels()))).collect();
    let instances = cluster.harvester.list::<VirtualMachineInstance>().await;
    let of_vms = instances.iter().map(|instance| (instance.name_any(), zone(instance.annotations())));
    assert_eq!(zones, of_vms.collect(), "zones of Nodes (left) and of their VMs (right)");

    let ip_of_node = |node: &Node| {
        let addresses = node.status.as_ref()?.addresses.as_ref()?;
        addresses.iter().find(|it| it.type_ == "InternalIP").map(|it| it.address.clone())
    };
    let addresses: BTreeMap<_, _> = nodes.iter().map(|node| (node.name_any(), ip_of_node(node))).collect();
    let ip_of_vm = |instance: &VirtualMachineInstance| {
        let interface = instance.status.as_ref()?.interfaces.first()?;
        interface.ip_addresses.first().cloned()
    };
    let of_vms = instances.iter().map(|instance| (instance.name_any(), ip_of_vm(instance)));
    assert_eq!(addresses, of_vms.collect(), "InternalIPs of Nodes (left) and addresses of their VMs (right)");
}

/// # Panics
/// Where an object is there that was not before, or an address is still held.
pub(crate) async fn nothing_is_left(cluster: &TestCluster, before: &[BTreeSet<String>; 2]) {
    assert_eq!(records(cluster).await, BTreeMap::new());
    for (side, before) in Side::ALL.into_iter().zip(before) {
        assert_eq!(&objects(cluster, side).await, before, "objects of the {} cluster", side.name());
    }
}

/// All objects, certificates and registration of the webhook apart.
pub(crate) async fn objects(cluster: &TestCluster, side: Side) -> BTreeSet<String> {
    let mut objects = cluster.objects(side).await;
    objects.retain(|path| !path.contains("harvester-load-balancer-webhook"));
    objects
}

/// The holder of each address, of all pools.
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

/// The pool that gave the address.
fn given_by(balancer: &LoadBalancer) -> Option<&str> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then_some(allocated.ip_pool.as_str())
}

fn pool_address(balancer: &LoadBalancer) -> Option<String> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then(|| allocated.ip.clone())
}
