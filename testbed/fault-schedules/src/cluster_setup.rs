//! The clusters at the start of a run: hosts, VMs that are nodes of the guest, pools, and the simulation of Harvester
//! and the guest around their API servers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use program::{Clock, TaskGroup};
use serde_json::{Value, json};
use sim_harvester::{Carrier, Lan, Options, Release, SimHarvester, Workload, settings};
use test_cluster::{TestCluster, User};

/// A pool of addresses.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: &'static str,
    /// The number of its IPv4 addresses.
    pub(crate) addresses: usize,
    /// The number of its IPv6 addresses.
    pub(crate) ipv6_addresses: usize,
    manifest: &'static str,
    subnet: &'static str,
    /// The last parts of its first and its last address.
    ends: [u8; 2],
}

impl Pool {
    /// One of its IPv4 addresses.
    pub(crate) fn address(&self, random: &mut fastrand::Rng) -> String {
        let [first, last] = self.ends;
        format!("{}{}", self.subnet, random.u8(first..=last))
    }

    /// Whether this is one of its IPv4 addresses.
    pub(crate) fn offers(&self, address: &str) -> bool {
        let [first, last] = self.ends;
        let part = address.strip_prefix(self.subnet).and_then(|part| part.parse().ok());
        part.is_some_and(|part: u8| (first..=last).contains(&part))
    }

    /// Its addresses as one range of each family, or as two, the first of which drains.
    pub(crate) fn ranges(&self, drain: bool) -> Value {
        let v4 = |first: u8, last: u8| {
            let [start, end] = [first, last].map(|last| format!("{}{last}", self.subnet));
            json!({"subnet": format!("{}0/24", self.subnet), "rangeStart": start, "rangeEnd": end})
        };
        let v6 = |first: u8, last: u8| {
            let [start, end] = [first, last].map(|last| format!("{IPV6_PREFIX}{last:x}"));
            json!({"subnet": format!("{IPV6_PREFIX}/64"), "rangeStart": start, "rangeEnd": end})
        };
        let mut ranges = parts(self.ends, drain, v4);
        if self.ipv6_addresses > 0 {
            ranges.extend(parts(IPV6_ENDS, drain, v6));
        }
        json!(ranges)
    }
}

/// A range, or its two halves, the first of which drains.
fn parts([first, last]: [u8; 2], drain: bool, range: impl Fn(u8, u8) -> Value) -> Vec<Value> {
    if !drain {
        return vec![range(first, last)];
    }
    let middle = first + (last - first) / 2;
    let mut draining = range(first, middle);
    draining["drain"] = true.into();
    vec![draining, range(middle + 1, last)]
}

/// The network of the IPv6 addresses, and the last parts of the first and the last one: fewer than Services that ask for
/// both families, so that some of them wait for others to go.
const IPV6_PREFIX: &str = "fd00:2::";
const IPV6_ENDS: [u8; 2] = [0x10, 0x11];

/// The pool for every load balancer that no other pool serves.
pub(crate) const LAB: Pool = Pool {
    name: "lab",
    addresses: 8,
    ipv6_addresses: 2,
    subnet: "192.0.2.",
    ends: [10, 17],
    manifest: "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: lab}
spec:
  ranges:
  - {subnet: 192.0.2.0/24, rangeStart: 192.0.2.10, rangeEnd: 192.0.2.17}
  - {subnet: 'fd00:2::/64', rangeStart: 'fd00:2::10', rangeEnd: 'fd00:2::11'}
  selector: {scope: [{project: '*', namespace: '*', guestCluster: '*'}]}
",
};
/// The pool for load balancers of this guest cluster that ask for its network.
pub(crate) const EDGE: Pool = Pool {
    name: "edge",
    addresses: 2,
    ipv6_addresses: 0,
    subnet: "198.51.100.",
    ends: [10, 11],
    manifest: "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: edge}
spec:
  ranges: [{subnet: 198.51.100.0/24, rangeStart: 198.51.100.10, rangeEnd: 198.51.100.11}]
  selector:
    network: team-a/edge
    priority: 2
    scope: [{project: '*', namespace: team-a, guestCluster: blue}]
",
};
/// The pool that serves those of [`EDGE`] where that is full and the load balancer passes over full pools.
pub(crate) const SPARE: Pool = Pool {
    name: "spare",
    addresses: 2,
    ipv6_addresses: 0,
    subnet: "198.51.100.",
    ends: [20, 21],
    manifest: "
apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: IPPool
metadata: {name: spare}
spec:
  ranges: [{subnet: 198.51.100.0/24, rangeStart: 198.51.100.20, rangeEnd: 198.51.100.21}]
  selector:
    network: team-a/edge
    priority: 1
    scope: [{project: '*', namespace: team-a, guestCluster: blue}]
",
};
/// The network of [`EDGE`]. It has no NetworkAttachmentDefinition: a pool may be older than the webhook, and may outlive
/// the definition.
pub(crate) const EDGE_NETWORK: &str = "team-a/edge";
/// All pools.
pub(crate) const POOLS: [&Pool; 3] = [&LAB, &EDGE, &SPARE];
/// The run strategies of a VM that runs, and of one that somebody stopped.
pub(crate) const RUNS: &str = "RerunOnFailure";
pub(crate) const STOPPED: &str = "Halted";
/// The VMs, and the Nodes of the guest.
pub(crate) const VMS: [&str; 3] = ["blue-1", "blue-2", "blue-3"];
const HOSTS: [&str; 3] = ["host-1", "host-2", "host-3"];
/// The addresses of the DHCP server: of no pool.
const DHCP_POOL: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(192, 0, 2, 100), Ipv4Addr::new(192, 0, 2, 200));
/// The length of a DHCP lease: short, so that kube-vip renews during a run.
const LEASE_SECONDS: u32 = 120;
/// The releases of kube-vip that differ.
pub(crate) const RELEASES: [Release; 4] =
    [Release::UpTo06, Release::From07, Release::From09, Release::From12];

/// Whether the address is one that Services have, and no VM.
pub(crate) fn is_of_services(address: IpAddr) -> bool {
    let v4 = match address {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(v6) => return v6.segments()[..2] == [0xfd00, 2],
    };
    [[192, 0, 2], [198, 51, 100]].contains(&[v4.octets()[0], v4.octets()[1], v4.octets()[2]])
}

/// Whether the DHCP server gives this address.
pub(crate) fn is_leased(address: IpAddr) -> bool {
    let (first, last) = DHCP_POOL;
    (IpAddr::V4(first)..=IpAddr::V4(last)).contains(&address)
}

/// Creates a VM that is a node of the guest.
pub(crate) async fn make_vm(cluster: &TestCluster, name: &str) {
    let guest = cluster.guest_cluster();
    let labels = json!({"guestcluster.harvesterhci.io/name": guest.name, "harvesterhci.io/vmName": name,
        "harvesterhci.io/creator": "docker-machine-driver-harvester"});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": guest.vm_namespace, "labels": labels},
        "spec": {"runStrategy": RUNS, "template": {"metadata": {"labels": labels}, "spec": {
            "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
            "networks": [{"name": "default", "pod": {}}]}}}});
    cluster.harvester.apply(&vm.to_string()).await;
}

/// Creates all this and waits until all VMs run. The simulation ends with `tasks`.
pub(crate) async fn set_up(
    cluster: &TestCluster,
    releases: [Release; 2],
    seed: u64,
    tasks: &TaskGroup,
) -> SimHarvester {
    cluster.guest.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await;
    for pool in POOLS {
        cluster.harvester.apply(pool.manifest).await;
    }
    for (index, name) in HOSTS.into_iter().enumerate() {
        let zone = format!("zone-{index}");
        let host = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
            "topology.kubernetes.io/region": "lab", "topology.kubernetes.io/zone": zone,
            "kubernetes.io/hostname": name}}});
        let host: Node = serde_json::from_value(host).expect("this is a Node");
        cluster.harvester.create(&host).await;
    }
    let guest = cluster.guest_cluster();
    for name in VMS {
        make_vm(cluster, name).await;
    }
    let simulation = SimHarvester::start(
        Options {
            harvester: cluster.harvester.client(User::Driver),
            guest: cluster.guest.client(User::Driver),
            cluster: guest.name.clone(),
            network: "198.18.0.0/24".parse().expect("a network"),
            workloads: vec![Workload { namespace: "shop".to_owned(), ..Workload::web() }],
            writes_slices: true,
            harvester_vip: releases[0],
            guest_vip: releases[1],
            carrier: Carrier::Memory,
            lan: Lan::memory(),
            dhcp: settings::Dhcp { pool: DHCP_POOL, lease_seconds: LEASE_SECONDS, silent: false },
            clock: Clock::starting_at(cluster.start()),
            seed,
        },
        tasks,
    );
    cluster.advance(Duration::from_secs(10)).await;
    assert_eq!(simulation.vms().len(), VMS.len(), "all VMs run");
    simulation
}
