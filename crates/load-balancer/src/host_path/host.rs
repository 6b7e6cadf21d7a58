//! The addresses of the Harvester cluster itself, which no backend may have.
//!
//! Its nodes': from the Nodes where the role reads them; the existing role does not. Then from the slice of
//! `default/kubernetes`, which has the addresses of the API servers: the nodes whose impersonation would hurt most.
//! Its own VIP: from the Services of `kube-system`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use controller_kit::Cache;
use harvester_api::names;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use program::TaskGroup;

use crate::insist::insist;

/// Watches on what there is.
pub(crate) struct HostAddresses {
    nodes: Nodes,
    services: Cache<Service>,
}

enum Nodes {
    Themselves(Cache<Node>),
    ApiServers(Cache<EndpointSlice>),
}

impl HostAddresses {
    /// Asks once which source the role admits, and begins to watch.
    pub(crate) async fn watch(tasks: &TaskGroup, client: &Client) -> Self {
        let trim = |service: &mut Service| service.spec = None;
        let services = Api::namespaced(client.clone(), names::KUBE_SYSTEM);
        Self {
            nodes: Nodes::watch(tasks, client).await,
            services: Cache::start_trimmed(tasks, services, watcher::Config::default(), trim),
        }
    }

    pub(crate) async fn ready(&self) {
        match &self.nodes {
            Nodes::Themselves(nodes) => nodes.ready().await,
            Nodes::ApiServers(slices) => slices.ready().await,
        }
        self.services.ready().await;
    }

    pub(crate) fn of_nodes(&self) -> BTreeSet<Ipv4Addr> {
        match &self.nodes {
            Nodes::Themselves(nodes) => nodes.list().iter().flat_map(|node| of_node(node)).collect(),
            Nodes::ApiServers(slices) => slices.list().iter().flat_map(|slice| of_slice(slice)).collect(),
        }
    }

    /// The cluster's own VIPs.
    pub(crate) fn of_services(&self) -> BTreeSet<Ipv4Addr> {
        self.services.list().iter().flat_map(|service| of_service(service)).collect()
    }
}

impl Nodes {
    async fn watch(tasks: &TaskGroup, client: &Client) -> Self {
        let (api, one) = (Api::<Node>::all(client.clone()), ListParams::default().limit(1));
        match insist("list Nodes", || api.list(&one)).await {
            Err(refusal) => {
                let why = &refusal as &dyn std::error::Error;
                tracing::info!(why, "node addresses come from the EndpointSlice of default/kubernetes");
                let config = watcher::Config::default().labels("kubernetes.io/service-name=kubernetes");
                Self::ApiServers(Cache::start(tasks, Api::namespaced(client.clone(), "default"), config))
            }
            Ok(_) => {
                tracing::info!("node addresses come from the Nodes");
                let trim = |node: &mut Node| {
                    node.spec = None;
                    node.metadata.labels = None;
                    node.metadata.annotations = None;
                    if let Some(status) = &mut node.status {
                        let addresses = status.addresses.take();
                        *status = Default::default();
                        status.addresses = addresses;
                    }
                };
                let config = watcher::Config::default();
                Self::Themselves(Cache::start_trimmed(tasks, Api::all(client.clone()), config, trim))
            }
        }
    }
}

fn of_node(node: &Node) -> Vec<Ipv4Addr> {
    let addresses = node.status.iter().filter_map(|status| status.addresses.as_ref()).flatten();
    addresses.filter_map(|address| address.address.parse().ok()).collect()
}

fn of_slice(slice: &EndpointSlice) -> Vec<Ipv4Addr> {
    slice
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// What is announced for a Service.
pub(crate) fn of_service(service: &Service) -> Vec<Ipv4Addr> {
    let status = service.status.iter().filter_map(|status| status.load_balancer.as_ref());
    let ingress = status.filter_map(|status| status.ingress.as_ref()).flatten();
    ingress.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_sources_tell_their_ipv4_addresses() {
        let addresses = json!([{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "host-1"}]);
        let node = serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap();
        assert_eq!(of_node(&node), [Ipv4Addr::new(192, 168, 7, 1)]);
        let endpoints = json!([{"addresses": ["192.168.7.2"]}, {"addresses": ["fd00::1"]}]);
        let slice = json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints, "ports": []});
        assert_eq!(of_slice(&serde_json::from_value(slice).unwrap()), [Ipv4Addr::new(192, 168, 7, 2)]);
        let status =
            json!({"loadBalancer": {"ingress": [{"ip": "192.168.7.3"}, {"hostname": "harvester.local"}]}});
        let service = json!({"metadata": {"name": "ingress-expose"}, "status": status});
        assert_eq!(of_service(&serde_json::from_value(service).unwrap()), [Ipv4Addr::new(192, 168, 7, 3)]);
    }
}
