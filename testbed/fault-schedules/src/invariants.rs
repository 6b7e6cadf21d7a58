//! Conditions that hold at rest, and conditions that hold at any time.

mod nodes;
mod sharing;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use controller_kit::ObjectKey;
use harvester_api::names::DHCP_ADDRESS;
use harvester_api::{IPPool, Ipam, LoadBalancer, WorkloadType, annotations, labels};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt;
use sim_harvester::{Cluster, SimHarvester, Vip};
use test_cluster::{Side, TestCluster};

use crate::cluster_setup::{EDGE_NETWORK, is_leased};
use crate::process::LateCreations;
use crate::user_actions::{AddressSource, Families, ServiceOptions, first_port};

pub(crate) use self::nodes::{NodesSeen, one_awaits_a_search};
use self::sharing::{Shared, Sharing, asked, nobody_shares_a_port};

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
        let name = balancer.name_any();
        let is_alive = balancer.metadata.deletion_timestamp.is_none();
        for address in pool_addresses(&balancer).into_iter().filter(|_| is_alive) {
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
pub(crate) async fn hold(
    cluster: &TestCluster,
    simulation: &SimHarvester,
    late: &LateCreations,
    falls_over: bool,
) {
    let mut recorded = records(cluster).await;
    nothing_is_withheld(cluster).await;
    let balancers = cluster.harvester.list::<LoadBalancer>().await;
    waits::nobody_waits_in_vain(cluster, &balancers, &recorded, falls_over, &late.of("loadbalancers")).await;
    let mut believed: BTreeMap<String, String> = BTreeMap::new();
    for balancer in &balancers {
        let (holder, addresses) = (holder(balancer), pool_addresses(balancer));
        if addresses.is_empty() && families(balancer) == Families::Required {
            // of two that it requires it holds one while the other is missing
            let held = recorded.values().filter(|of| **of == holder).count();
            assert!(held <= 1, "{holder} holds two addresses and shows none");
            recorded.retain(|_, of| *of != holder);
        }
        believed.extend(addresses.into_iter().map(|address| (address, holder.clone())));
        lists_both(balancer);
    }
    assert_eq!(
        believed, recorded,
        "addresses as LoadBalancers have them (left) and as pools record them (right)"
    );

    let services = cluster.guest.list::<Service>().await;
    let owners: BTreeMap<String, &LoadBalancer> = balancers
        .iter()
        .map(|balancer| {
            (balancer.annotations().get(annotations::SERVICE_UID).cloned().unwrap_or_default(), balancer)
        })
        .collect();
    assert_eq!(owners.len(), balancers.len(), "one LoadBalancer for each Service");
    let passed_over = simulation.announced().into_iter().filter(|(_, vip)| vip.was_passed_over);
    let sharing = Sharing::of(&services, &owners, passed_over.map(|(_, vip)| vip.service_uid).collect());
    let unpublished = told_of(cluster, "AddressNotPublished").await;
    let of_primaries = told_of(cluster, "PrimaryNotSuitable").await;
    let told = Told {
        unshared: unpublished.union(&of_primaries).cloned().collect(),
        unpublished,
        unchecked: told_of(cluster, "HealthCheckNeeded").await,
        of_one_family: told_of(cluster, "IPFamilyNotSupported").await,
    };
    let late = late.of("loadbalancers");
    let (mut published, mut served) = (BTreeMap::<IpAddr, Vec<&Service>>::new(), BTreeSet::new());
    let mut owned = BTreeSet::new();
    for service in &services {
        let (name, uid) = (service.name_any(), service.uid().unwrap_or_default());
        let own = owners.get(&uid).copied();
        served.extend(own.map(|_| uid.clone()));
        let addresses = if !is_wanted(service) {
            if sharing.is_used(service) {
                continue;
            }
            let told = (service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS), ingress(service));
            assert_eq!(told, (None, vec![]), "Service {name} publishes nothing");
            assert_eq!(own.map(ResourceExt::name_any), None, "Service {name} wants no LoadBalancer");
            Vec::new()
        } else if let Some(shared) = sharing.used_by(service) {
            Vec::from_iter(check_shared(service, &shared, simulation, &told.unshared))
        } else if let Some(own) = own {
            let options = options(service, own, &late);
            let addresses = check(service, options, own, simulation, &told, falls_over);
            for address in &addresses {
                assert!(owned.insert(*address), "{address} is served twice");
            }
            addresses
        } else {
            assert!(asked(service).is_some(), "Service {name} has no LoadBalancer");
            let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
            if service.annotations().get(annotations::ALLOCATED_ADDRESS).is_some_and(|it| it == DHCP_ADDRESS)
            {
                // a lease is kube-vip's own: it stays when the object goes that asked for it
                assert_eq!(asked.map(String::as_str), Some(DHCP_ADDRESS), "the lease of Service {name}");
                ingress(service).iter().map(|ip| ip.parse().expect("an address")).collect()
            } else {
                assert_eq!((asked, ingress(service)), (None, vec![]), "Service {name} has no address");
                Vec::new()
            }
        };
        if is_wanted(service) {
            sharing.must_not_wait(service);
        }
        for address in addresses {
            published.entry(address).or_default().push(service);
        }
    }
    nobody_shares_a_port(&published);
    let odd: Vec<_> = owners.keys().filter(|uid| !served.contains(*uid)).collect();
    assert!(odd.is_empty(), "every LoadBalancer has its Service, but not those for {odd:?}");
    nodes::are_as_their_vms_are(cluster, simulation, &published.into_keys().collect()).await;
}

/// The Service publishes the address of its primary, and is reached there.
fn check_shared(
    service: &Service,
    shared: &Shared<'_>,
    simulation: &SimHarvester,
    told: &BTreeSet<String>,
) -> Option<IpAddr> {
    let (name, on_host) = (service.name_any(), shared.object.spec.workload() == WorkloadType::Vm);
    let primary = shared.primary.name_any();
    let annotation = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS);
    let asked_of_guest = shared.address.as_ref().filter(|_| !on_host);
    assert_eq!(annotation, asked_of_guest, "annotation of Service {name}, which shares with {primary}");
    let ingress = ingress(service);
    if ingress.is_empty() && !on_host {
        let uid = service.uid().unwrap_or_default();
        assert!(told.contains(&uid), "Service {name}, which shares with {primary}, waits in silence");
        return None;
    }
    assert_eq!(
        ingress,
        Vec::from_iter(shared.address.clone()),
        "status of {name}, which shares with {primary}"
    );
    let address = shared.address.as_ref()?.parse().expect("an address");
    if !on_host || shared.object.spec.health_check.is_some() {
        carries(service, address, simulation);
    }
    Some(address)
}

fn carries(service: &Service, address: IpAddr, simulation: &SimHarvester) {
    for _ in 0..CONNECTIONS {
        if let Err(refused) = simulation.carry(address, first_port(service)) {
            panic!("Service {} at {address}: {refused}", service.name_any());
        }
    }
}

/// The choices by which a Service is served. A stopped program may have made an object of it late, for what it asked before; the
/// object keeps its datapath, its ipam and the network that chose its pool, and where another stopped program deletes it late, too,
/// the next one is made for what the Service has by then.
fn options(service: &Service, balancer: &LoadBalancer, late: &BTreeSet<ObjectKey>) -> ServiceOptions {
    let asked_by = ServiceOptions::asked_by(service);
    let has_shared = service.labels().contains_key(labels::PRIMARY_SERVICE) || asked(service).is_some();
    let name = balancer.name_any();
    if !has_shared && !late.iter().any(|object| without_hash(&object.name) == without_hash(&name)) {
        return asked_by;
    }
    let on_host = balancer.spec.workload() == WorkloadType::Vm;
    ServiceOptions { on_host, source: source(balancer), ..asked_by }
}

/// What the names of all objects of a Service have.
fn without_hash(object: &str) -> &str {
    object.rsplit_once('-').map_or(object, |(name, _)| name)
}

/// The source of an object's address.
fn source(balancer: &LoadBalancer) -> AddressSource {
    let network = balancer.annotations().get(annotations::LB_NETWORK);
    if balancer.spec.ipam() == Ipam::Dhcp {
        AddressSource::Dhcp
    } else if network.is_some_and(|network| network == EDGE_NETWORK) {
        AddressSource::Edge
    } else {
        AddressSource::Lab
    }
}

/// UIDs of the Services with an Event of this reason.
async fn told_of(cluster: &TestCluster, reason: &str) -> BTreeSet<String> {
    let events = cluster.guest.list::<Event>().await.into_iter();
    let told = events.filter(|event| event.reason.as_deref() == Some(reason));
    told.filter_map(|event| event.involved_object.uid).collect()
}

/// The UIDs of Services with an Event about what they do not get.
struct Told {
    unpublished: BTreeSet<String>,
    /// Of those that share an address also what is said of the primary.
    unshared: BTreeSet<String>,
    /// Those that are to set a health check.
    unchecked: BTreeSet<String>,
    of_one_family: BTreeSet<String>,
}

/// The Service publishes exactly the addresses that the source in `options` gave to it, in the order of its families, and is
/// reached there, or is told why not. Returns them.
fn check(
    service: &Service,
    options: ServiceOptions,
    balancer: &LoadBalancer,
    simulation: &SimHarvester,
    told: &Told,
    falls_over: bool,
) -> Vec<IpAddr> {
    let (name, mut leased) = (service.name_any(), options.source == AddressSource::Dhcp);
    let status = balancer.status.clone().unwrap_or_default();
    let annotation = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).map(String::as_str);
    let ingress = ingress(service);
    let demand = |object: &BTreeMap<String, String>, key: &str| object.get(key).cloned().filter(|_| !leased);
    assert_eq!(
        demand(balancer.annotations(), annotations::REQUESTED_IP_STRICT),
        demand(service.annotations(), annotations::SERVICE_IP),
        "what the LoadBalancer of {name} demands, {options:?}"
    );
    let mut given = of_its_families(service, &pool_addresses(balancer));
    // of a demand that cannot be met it shows what it had before, or nothing
    let is_unmet =
        demand(service.annotations(), annotations::SERVICE_IP).is_some_and(|it| !given.contains(&it));
    if is_unmet && ingress.is_empty() && annotation.is_none() {
        return Vec::new();
    }
    // of two that it requires the Service is handed none while one is missing, unless it had that one before, or has an object
    // on the host data path, where there is no second one
    let requires_two = options.families == Families::Required;
    let is_short = leased || given.len() < 2;
    if requires_two && !options.on_host && is_short && annotation.is_none() {
        given.clear();
        leased = false;
    }
    for (pool, address) in given_by(balancer) {
        let expected = waits::pools(options.source, is_ipv6(&address), falls_over);
        let is_of = expected.iter().any(|expected| expected.name == pool);
        assert!(is_of, "{name} has {address} of pool {pool}, {options:?}");
    }
    let allocated = match (leased, given.is_empty()) {
        (true, _) => Some(DHCP_ADDRESS.to_owned()),
        (false, true) => None,
        (false, false) => Some(given.join(",")),
    };
    let asked_of_guest = allocated.as_deref().filter(|_| !options.on_host);
    assert_eq!(annotation, asked_of_guest, "annotation of Service {name}, {options:?}");
    if ingress.is_empty() && is_not_written_again(service, simulation) {
        let uid = service.uid().unwrap_or_default();
        assert!(
            allocated.is_none() || told.unpublished.contains(&uid),
            "Service {name} waits in silence, {options:?}"
        );
        return Vec::new();
    }
    let addresses = if leased { ingress.iter().take(1).cloned().collect() } else { given };
    assert_eq!(ingress, addresses, "status of Service {name}, {options:?}");
    if leased {
        assert!(!addresses.is_empty(), "Service {name} has no lease, {options:?}");
    }
    // of two the one in the fields for the first
    let first =
        pool_address(balancer).filter(|_| !addresses.is_empty()).or_else(|| addresses.first().cloned());
    assert_eq!(status.address, first.unwrap_or_default(), "LoadBalancer of {name}, {options:?}");
    let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().expect("an address")).collect();
    if addresses.is_empty() {
        return addresses;
    }
    // as below: that object has one family
    if options.on_host && requires_two {
        let uid = service.uid().unwrap_or_default();
        assert!(
            told.of_one_family.contains(&uid),
            "Service {name} has one of two families in silence, {options:?}"
        );
    }
    // it asked for the guest data path, and got the object that a stopped program made for its predecessor on the other
    // one, which serves no such Service without a health check
    if options.on_host && options.local && !service.annotations().contains_key(annotations::HEALTH_CHECK_PORT)
    {
        let uid = service.uid().unwrap_or_default();
        assert!(told.unchecked.contains(&uid), "Service {name} is refused in silence, {options:?}");
        return addresses;
    }
    // without a health check Harvester sends to VMs that refuse, too
    if !options.on_host || balancer.spec.health_check.is_some() {
        addresses.iter().for_each(|address| carries(service, *address, simulation));
    }
    addresses
}

/// The addresses that are of the Service's families, in their order. A second one stays with the object of a Service that
/// gave up the family.
fn of_its_families(service: &Service, addresses: &[String]) -> Vec<String> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref()).into_iter().flatten();
    let of = |family: &String| addresses.iter().find(|it| is_ipv6(it) == (family == "IPv6")).cloned();
    families.filter_map(of).collect()
}

fn is_ipv6(address: &str) -> bool {
    address.contains(':')
}

/// # Panics
/// Where `status.addresses` has others than both addresses of an object that has two.
fn lists_both(balancer: &LoadBalancer) {
    let given = pool_addresses(balancer);
    let mut listed = balancer.status.clone().unwrap_or_default().addresses;
    listed.sort_by_key(|address| is_ipv6(address));
    let expected = if given.len() == 2 { given } else { Vec::new() };
    assert_eq!(listed, expected, "status.addresses of {}", balancer.name_any());
}

/// The Service was of another type for a while. kube-vip passed over that, goes on to announce the address, and does not
/// write it to the status a second time; in the guest no program of ours writes it.
fn is_not_written_again(service: &Service, simulation: &SimHarvester) -> bool {
    let uid = service.uid().unwrap_or_default();
    simulation.announced().iter().any(|(_, vip)| vip.service_uid == uid && vip.was_passed_over)
}

/// # Panics
/// Where an object is there that was not before, or an address is still held.
pub(crate) async fn nothing_is_left(cluster: &TestCluster, before: &[BTreeSet<String>; 2]) {
    assert_eq!(records(cluster).await, BTreeMap::new());
    nothing_is_withheld(cluster).await;
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

/// No range drains any more, and no address rests: each is held or available.
async fn nothing_is_withheld(cluster: &TestCluster) {
    for pool in cluster.harvester.list::<IPPool>().await {
        let name = pool.name_any();
        assert_eq!(pool.annotations().get(annotations::QUARANTINE), None, "addresses of pool {name} rest");
        let status = pool.status.unwrap_or_default();
        let held = i64::try_from(status.allocated.len()).unwrap_or(i64::MAX);
        assert_eq!(status.total - status.available, held, "numbers of pool {name}");
    }
}

/// The holder of each address, of all pools.
pub(crate) async fn records(cluster: &TestCluster) -> BTreeMap<String, String> {
    let mut records = BTreeMap::new();
    for pool in cluster.harvester.list::<IPPool>().await {
        let name = pool.name_any();
        let status = pool.status.unwrap_or_default();
        let held = i64::try_from(status.allocated.len()).unwrap_or(i64::MAX);
        // a user's edit may withhold free addresses, which the load balancer counts a moment later
        let withheld = status.total - status.available - held;
        assert!((0..=status.total).contains(&withheld), "numbers of pool {name}: {status:?}");
        for (address, holder) in status.allocated {
            assert_eq!(records.insert(address.clone(), holder), None, "{address} is in two pools");
        }
    }
    records
}

fn is_wanted(service: &Service) -> bool {
    let spec_type = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    spec_type == Some("LoadBalancer") && service.metadata.deletion_timestamp.is_none()
}

/// Whether kube-vip in the guest leases the address.
fn is_leased_out(balancer: &LoadBalancer) -> bool {
    balancer.spec.ipam() == Ipam::Dhcp
}

fn ingress(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|entry| entry.ip.clone()).collect()
}

/// The addresses that pools gave, each with its pool: the first one, and the second one where the object has two.
fn given_by(balancer: &LoadBalancer) -> Vec<(String, String)> {
    let allocated = balancer.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    let first = allocated.map(|it| (it.ip_pool.clone(), it.ip.clone())).filter(|(pool, _)| !pool.is_empty());
    let second = allocated.and_then(|it| it.ipv6()).map(|(pool, ip)| (pool.to_owned(), ip.to_owned()));
    first.into_iter().chain(second).collect()
}

fn pool_addresses(balancer: &LoadBalancer) -> Vec<String> {
    given_by(balancer).into_iter().map(|(_, address)| address).collect()
}

/// The first one.
fn pool_address(balancer: &LoadBalancer) -> Option<String> {
    let allocated = balancer.status.as_ref()?.allocated_address.as_ref()?;
    (!allocated.ip_pool.is_empty()).then(|| allocated.ip.clone())
}

/// The object as a pool records it.
fn holder(balancer: &LoadBalancer) -> String {
    format!("{}/{}", balancer.namespace().unwrap_or_default(), balancer.name_any())
}

/// The families that the object asks for.
fn families(balancer: &LoadBalancer) -> Families {
    match balancer.annotations().get(annotations::IP_FAMILY_POLICY).map(String::as_str) {
        Some("PreferDualStack") => Families::Preferred,
        Some("RequireDualStack") => Families::Required,
        _ => Families::One,
    }
}
