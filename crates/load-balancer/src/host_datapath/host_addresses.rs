//! The addresses of the Harvester cluster itself, which no backend may have.
//!
//! Its nodes': from the Nodes where the role reads them; the existing role does not. A Node tells of the network of its pods as
//! well, in which the node has addresses that its status does not list. Without the right: from the slice of
//! `default/kubernetes`, which has the addresses of the API servers: the nodes whose impersonation would hurt most. The
//! source changes with the role, while the program runs. Its own VIP: from the Services of `kube-system`.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use controller_kit::Cache;
use harvester_api::names;
use ipnet::{IpAdd as _, IpNet};
use k8s_openapi::api::{
    core::v1::{Node, NodeSpec, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, api::ListParams, runtime::watcher};
use program::{
    TaskGroup,
    capabilities::{Capabilities, Right},
};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};

use crate::{reuse, run::KNOWN_WITHIN};

/// With this right the Nodes are the source.
pub(crate) const LIST_NODES: Right = Right::new("list", "", "nodes");

/// Watches on what there is. Clones share them.
#[derive(Clone)]
pub(crate) struct HostAddresses(Arc<Shared>);

struct Shared {
    capabilities: Capabilities,
    /// Watched from the first moment in which the role grants it.
    nodes: OnceLock<Cache<Node>>,
    api_servers: Cache<EndpointSlice>,
    services: Cache<Service>,
    known: Mutex<Addresses>,
    listeners: Mutex<Vec<Listener>>,
}

type Listener = Arc<dyn Fn(&[IpAddr]) + Send + Sync>;

impl Shared {
    fn known(&self) -> MutexGuard<'_, Addresses> {
        self.known.lock().expect("no panic while the addresses are locked")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    nodes: BTreeSet<IpAddr>,
    services: BTreeSet<IpAddr>,
}

impl HostAddresses {
    /// Begins to watch. Complete when this returns, but for Nodes that the server was slow to list, or to refuse.
    pub(crate) async fn watch(tasks: &TaskGroup, client: &Client, capabilities: Capabilities) -> Self {
        let trim = |service: &mut Service| service.spec = None;
        let services = Api::namespaced(client.clone(), names::KUBE_SYSTEM);
        let kubernetes = watcher::Config::default().fields("metadata.name=kubernetes");
        let host = Self(Arc::new(Shared {
            capabilities,
            nodes: OnceLock::new(),
            api_servers: Cache::start(tasks, Api::namespaced(client.clone(), "default"), kubernetes),
            services: Cache::start_trimmed(tasks, services, watcher::Config::default(), trim),
            known: Mutex::default(),
            listeners: Mutex::default(),
        }));
        let nodes = async {
            // a right that nobody has answered for by then is tried
            drop(timeout(KNOWN_WITHIN, host.0.capabilities.rights_known()).await);
            let (ends, first_try) = oneshot::channel();
            tasks.spawn_until_stop(host.clone().await_nodes(tasks.clone(), client.clone(), ends));
            // the slice is the source meanwhile, and an address should not wait for the Nodes
            drop(timeout(KNOWN_WITHIN, first_try).await);
        };
        tokio::join!(host.0.api_servers.ready(), host.0.services.ready(), nodes);

        let look = || {
            let host = host.clone();
            move || host.look()
        };
        let (slices, services, rights) = (look(), look(), look());
        host.0.api_servers.on_change(move |_| slices());
        host.0.services.on_change(move |_| services());
        host.0.capabilities.on_change(rights);
        host.look();
        host
    }

    /// A cluster of which nothing is known; for tests.
    #[cfg(test)]
    pub(crate) fn unknown() -> Self {
        Self(Arc::new(Shared {
            capabilities: Capabilities::assumed([]),
            nodes: OnceLock::new(),
            api_servers: Cache::empty(),
            services: Cache::empty(),
            known: Mutex::default(),
            listeners: Mutex::default(),
        }))
    }

    pub(crate) fn is_of_node(&self, address: IpAddr) -> bool {
        self.0.known().nodes.contains(&address)
    }

    /// Whether the address is one of the cluster's own VIPs.
    pub(crate) fn is_of_service(&self, address: IpAddr) -> bool {
        self.0.known().services.contains(&address)
    }

    /// Calls `hear` with the addresses that came or went.
    pub(crate) fn on_change(&self, hear: impl Fn(&[IpAddr]) + Send + Sync + 'static) {
        self.0.listeners.lock().expect("no panic while a listener is added").push(Arc::new(hear));
    }

    /// Waits for the right to list Nodes, and watches them from then on. A right that nobody has answered for yet is tried;
    /// `first_try` hears of its end.
    async fn await_nodes(self, tasks: TaskGroup, client: Client, first_try: oneshot::Sender<()>) {
        let granted = Arc::new(Notify::new());
        let notify = granted.clone();
        self.0.capabilities.on_change(move || notify.notify_one());
        let notify = granted.clone();
        self.0.capabilities.on_try(move |right| {
            if *right == LIST_NODES {
                notify.notify_one();
            }
        });
        self.watch_nodes(&tasks, &client).await;
        drop(first_try);
        while self.0.nodes.get().is_none() {
            granted.notified().await;
            self.watch_nodes(&tasks, &client).await;
        }
    }

    async fn watch_nodes(&self, tasks: &TaskGroup, client: &Client) {
        let api = Api::<Node>::all(client.clone());
        if !self.may_list(&api).await {
            tracing::info!("node addresses come from the EndpointSlice of default/kubernetes");
            return;
        }
        tracing::info!("node addresses come from the Nodes");
        let nodes = Cache::start_trimmed(tasks, api, watcher::Config::default(), trim_node);
        // the role may have lost the right again: the slice is the source meanwhile
        tokio::select! {
            () = nodes.ready() => {}
            () = self.lost_nodes() => {}
        }
        let host = self.clone();
        let nodes = self.0.nodes.get_or_init(|| nodes);
        nodes.on_change(move |_| host.look());
        self.look();
    }

    /// Where the server answers no questions about rights only a request tells, and a list that is refused never becomes
    /// complete.
    async fn may_list(&self, nodes: &Api<Node>) -> bool {
        let capabilities = &self.0.capabilities;
        if !capabilities.allows(&LIST_NODES) {
            return false;
        }
        match nodes.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => capabilities.worked(&LIST_NODES),
            Err(kube::Error::Api(status)) if status.is_forbidden() => capabilities.refused(&LIST_NODES),
            // the watch asks again
            Err(_) => {}
        }
        capabilities.allows(&LIST_NODES)
    }

    async fn lost_nodes(&self) {
        let lost = Arc::new(Notify::new());
        let notify = lost.clone();
        self.0.capabilities.on_change(move || notify.notify_one());
        while self.0.capabilities.allows(&LIST_NODES) {
            lost.notified().await;
        }
    }

    fn look(&self) {
        let shared = &self.0;
        // locked before it looks: of two looks at once the later one stays
        let mut held = shared.known();
        let nodes = shared.nodes.get().filter(|_| shared.capabilities.allows(&LIST_NODES));
        let known = Addresses {
            nodes: match nodes {
                Some(nodes) => nodes.list().iter().flat_map(|node| of_node(node)).collect(),
                None => shared.api_servers.list().iter().flat_map(|slice| of_slice(slice)).collect(),
            },
            services: shared.services.list().iter().flat_map(|service| of_service(service)).collect(),
        };
        let before = std::mem::replace(&mut *held, known.clone());
        drop(held);
        let changed = |one: &BTreeSet<IpAddr>, other: &BTreeSet<IpAddr>| {
            one.symmetric_difference(other).copied().collect::<Vec<_>>()
        };
        let mut addresses = changed(&before.nodes, &known.nodes);
        addresses.extend(changed(&before.services, &known.services));
        if !addresses.is_empty() {
            let listeners = shared.listeners.lock().expect("no panic while a listener is added").clone();
            listeners.iter().for_each(|hear| hear(&addresses));
        }
    }
}

/// Leaves of a Node what [`of_node`] reads.
fn trim_node(node: &mut Node) {
    node.metadata.labels = None;
    node.metadata.annotations = None;
    if let Some(spec) = &mut node.spec {
        let NodeSpec { pod_cidr, pod_cidrs, .. } = std::mem::take(spec);
        *spec = NodeSpec { pod_cidr, pod_cidrs, ..NodeSpec::default() };
    }
    if let Some(status) = &mut node.status {
        let addresses = status.addresses.take();
        *status = Default::default();
        status.addresses = addresses;
    }
}

fn of_node(node: &Node) -> Vec<IpAddr> {
    let told = node.status.iter().filter_map(|status| status.addresses.as_ref()).flatten();
    let told = told.filter_map(|address| address.address.parse::<IpAddr>().ok());
    let of_pods =
        node.spec.iter().flat_map(|spec| spec.pod_cidr.iter().chain(spec.pod_cidrs.iter().flatten()));
    let of_pods = of_pods.filter_map(|network| network.parse::<IpNet>().ok());
    told.chain(of_pods.flat_map(own_addresses)).collect()
}

/// The node's own addresses in the network of its pods: Flannel gives it the network's address, bridges of CNI have the first
/// one, and `host-local`, the IPAM of Harvester's Canal, gives neither to a pod.
fn own_addresses(pods: IpNet) -> impl Iterator<Item = IpAddr> {
    let first: IpAddr = match pods.network() {
        IpAddr::V4(network) => network.saturating_add(1).into(),
        IpAddr::V6(network) => network.saturating_add(1).into(),
    };
    [pods.network(), first].into_iter().filter(move |address| pods.contains(address))
}

fn of_slice(slice: &EndpointSlice) -> Vec<IpAddr> {
    slice
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|text| text.parse().ok())
        .collect()
}

fn of_service(service: &Service) -> Vec<IpAddr> {
    reuse::shown(service).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn all_sources_tell_their_addresses() {
        let addresses = json!([{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "host-1"}]);
        let node = serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap();
        assert_eq!(of_node(&node), [IpAddr::from([192, 168, 7, 1])]);
        let endpoints = json!([{"addresses": ["192.168.7.2"]}, {"addresses": ["fd00::1"]}]);
        let slice = json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints, "ports": []});
        assert_eq!(
            of_slice(&serde_json::from_value(slice).unwrap()),
            ["192.168.7.2", "fd00::1"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        let status =
            json!({"loadBalancer": {"ingress": [{"ip": "192.168.7.3"}, {"hostname": "harvester.local"}]}});
        let service = json!({"metadata": {"name": "ingress-expose"}, "status": status});
        assert_eq!(of_service(&serde_json::from_value(service).unwrap()), [IpAddr::from([192, 168, 7, 3])]);
    }

    #[rstest]
    #[case::none(json!({}), &[])]
    #[case::one(json!({"podCIDR": "10.52.3.0/24"}), &["10.52.3.0", "10.52.3.1"])]
    #[case::two(json!({"podCIDR": "10.52.3.0/24", "podCIDRs": ["10.52.3.0/24", "fd00:52:0:3::/64"]}),
        &["10.52.3.0", "10.52.3.1", "fd00:52:0:3::", "fd00:52:0:3::1"])]
    #[case::of_one_address(json!({"podCIDRs": ["10.52.3.7/32"]}), &["10.52.3.7"])]
    #[case::no_network(json!({"podCIDRs": ["10.52.3.0"]}), &[])]
    fn the_first_two_addresses_of_the_network_of_its_pods_are_the_nodes(
        #[case] spec: Value,
        #[case] expected: &[&str],
    ) {
        let mut node = serde_json::from_value(json!({"metadata": {"name": "host-1"}, "spec": spec})).unwrap();
        trim_node(&mut node);
        let expected: BTreeSet<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(BTreeSet::from_iter(of_node(&node)), expected);
    }

    #[test]
    fn of_a_node_nothing_is_kept_but_its_addresses_and_the_networks_of_its_pods() {
        let node = json!({"metadata": {"name": "host-1", "labels": {"a": "b"}, "annotations": {"large": "x"}},
            "spec": {"podCIDR": "10.52.3.0/24", "podCIDRs": ["10.52.3.0/24"], "providerID": "x", "taints": [{"key": "a",
                "effect": "NoSchedule"}]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.7.1"}], "images": [{"names": ["x"]}]}});
        let mut node: Node = serde_json::from_value(node).unwrap();
        trim_node(&mut node);
        let kept = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-1"},
            "spec": {"podCIDR": "10.52.3.0/24", "podCIDRs": ["10.52.3.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.7.1"}]}});
        assert_eq!(serde_json::to_value(&node).unwrap(), kept);
    }
}
