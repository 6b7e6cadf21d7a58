//! Nodes and their VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use harvester_api::names::PROVIDER_ID_PREFIX;
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use sim_harvester::SimHarvester;
use test_cluster::{Rights, TestCluster};

use crate::cluster_setup::{STOPPED, VMS, is_of_services};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The Nodes of the last look: UID, name, and provider ID.
#[derive(Debug, Default)]
pub(crate) struct NodesSeen(BTreeMap<String, (String, Option<String>)>);

impl NodesSeen {
    /// At any time.
    ///
    /// # Panics
    /// Where a Node was removed whose VM is there.
    pub(crate) async fn look(&mut self, cluster: &TestCluster) {
        let nodes = cluster.guest.list::<Node>().await;
        let seen = |node: &Node| (node.name_any(), provider_id(node).map(str::to_owned));
        let now: BTreeMap<_, _> =
            nodes.iter().map(|node| (node.uid().unwrap_or_default(), seen(node))).collect();
        let gone: Vec<_> = self.0.iter().filter(|(uid, _)| !now.contains_key(*uid)).collect();
        let vms = if gone.is_empty() { vec![] } else { cluster.harvester.list::<VirtualMachine>().await };
        for (_, (name, provider_id)) in gone {
            // one without provider ID was initialised since, by the late write of a stopped program it may be
            let is_its = |vm: &&VirtualMachine| match provider_id.as_deref() {
                Some(_) => is_of(provider_id.as_deref(), vm),
                None => vm.name_any() == *name,
            };
            let vm = vms.iter().find(is_its).filter(|vm| vm.metadata.deletion_timestamp.is_none());
            assert_eq!(vm.map(ResourceExt::name_any), None, "the VM of Node {name}, which was removed");
        }
        self.0 = now;
    }
}

fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref())
}

fn is_of(provider_id: Option<&str>, vm: &VirtualMachine) -> bool {
    let uid = provider_id.and_then(|id| id.strip_prefix(PROVIDER_ID_PREFIX));
    uid.is_some() && uid == vm.metadata.uid.as_deref()
}

/// Whether a Node, one of `nodes`, that has no VM among `vms` is removed.
fn goes(cluster: &TestCluster, node: &Node, nodes: &[Node], vms: &[VirtualMachine]) -> bool {
    // a cloud-config that finds no VM at all removes nothing
    let mut others = nodes.iter().filter(|other| other.uid() != node.uid());
    let is_sure = others.any(|other| vms.iter().any(|vm| is_of(provider_id(other), vm)));
    cluster.rights() == Rights::Ours && is_sure && provider_id(node).is_some()
}

/// Whether a Node is there whose VM is not, and that goes when the manager searches for the VM again.
pub(crate) async fn one_awaits_a_search(cluster: &TestCluster) -> bool {
    let nodes = cluster.guest.list::<Node>().await;
    let vms = cluster.harvester.list::<VirtualMachine>().await;
    let lacks_vm = |node: &&Node| !vms.iter().any(|vm| vm.name_any() == node.name_any());
    nodes.iter().filter(lacks_vm).any(|node| goes(cluster, node, &nodes, &vms))
}

/// At rest. `published`: the addresses of Services.
pub(super) async fn are_as_their_vms_are(
    cluster: &TestCluster,
    simulation: &SimHarvester,
    published: &BTreeSet<IpAddr>,
) {
    let nodes = cluster.guest.list::<Node>().await;
    let vms = cluster.harvester.list::<VirtualMachine>().await;
    let instances = cluster.harvester.list::<VirtualMachineInstance>().await;
    for name in VMS {
        let node = nodes.iter().find(|node| node.name_any() == name);
        let vm = vms.iter().find(|vm| vm.name_any() == name);
        let instance = instances.iter().find(|instance| instance.name_any() == name);
        match (node, vm) {
            (Some(node), Some(vm)) => {
                let is_stopped = vm.spec.run_strategy == STOPPED;
                // a VM that stops before its Node was initialised has no address to initialise it with
                let is_new = has_taint(node, UNINITIALIZED);
                assert!(!is_new || is_stopped, "Node {name} is not initialised");
                assert_eq!(has_taint(node, SHUTDOWN), is_stopped && !is_new, "taint of Node {name}");
            }
            (None, Some(vm)) => assert_eq!(vm.spec.run_strategy, STOPPED, "VM {name} runs and has no Node"),
            (Some(node), None) => {
                assert!(!goes(cluster, node, &nodes, &vms), "Node {name} has no VM any more");
            }
            (None, None) => {}
        }
        if let (Some(node), Some(instance)) = (node, instance) {
            follows(node, instance, published, &simulation.left_on(name));
        }
    }
}

/// `left`: the addresses that kube-vip has on the Node's interface and does not take away.
fn follows(
    node: &Node,
    instance: &VirtualMachineInstance,
    published: &BTreeSet<IpAddr>,
    left: &BTreeSet<IpAddr>,
) {
    let zone = |of: &BTreeMap<String, String>| of.get(annotations::TOPOLOGY_ZONE).cloned();
    let name = node.name_any();
    assert_eq!(
        zone(node.labels()),
        zone(instance.annotations()),
        "zones of Node {name} (left) and of its VM (right)"
    );
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    // A manager that started after a Service had gone does not know what kube-vip has left on the interface. A VM has no IPv6
    // address of its own: there the first one that is left looks like one.
    let is_left = |type_: &str, ip: IpAddr| {
        let is_nobodys = is_of_services(ip) && !published.contains(&ip);
        is_nobodys && (type_ == "ExternalIP" || ip.is_ipv6() && left.contains(&ip))
    };
    let addresses: Vec<_> = addresses
        .filter(|it| it.type_ != "Hostname" && !it.address.parse().is_ok_and(|ip| is_left(&it.type_, ip)))
        .collect();
    let interface = instance.status.as_ref().and_then(|status| status.interfaces.first());
    let of_vm = interface.and_then(|interface| interface.ip_addresses.first());
    let of_node: Vec<_> = addresses.iter().map(|it| (it.type_.as_str(), it.address.as_str())).collect();
    let expected: Vec<_> = of_vm.iter().map(|ip| ("InternalIP", ip.as_str())).collect();
    assert_eq!(of_node, expected, "addresses of Node {name} (left) and of its VM (right)");
}

fn has_taint(node: &Node, key: &str) -> bool {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).any(|taint| taint.key == key)
}
