//! The addresses of the Harvester nodes, which no backend may have.
//!
//! From the Nodes where the role reads them; the existing role does not. Then from the slice of `default/kubernetes`,
//! which has the addresses of the API servers: the nodes whose impersonation would hurt most.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use controller_kit::{Cache, Life};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};

/// A watch on whichever source there is.
#[derive(Clone)]
pub(crate) enum NodeAddresses {
    Nodes(Cache<Node>),
    ApiServers(Cache<EndpointSlice>),
}

impl NodeAddresses {
    /// Asks once which source the role admits, and watches it.
    pub(crate) async fn watch(life: &Life, client: &Client) -> Self {
        match Api::<Node>::all(client.clone()).list(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let why = &status.message;
                tracing::info!(why, "node addresses come from the EndpointSlice of default/kubernetes");
                let config = watcher::Config::default().labels("kubernetes.io/service-name=kubernetes");
                Self::ApiServers(Cache::start(life, Api::namespaced(client.clone(), "default"), config))
            }
            // any other failure is not about rights: the watch tries again by itself
            Ok(_) | Err(_) => {
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
                Self::Nodes(Cache::start_trimmed(life, Api::all(client.clone()), config, trim))
            }
        }
    }

    pub(crate) async fn ready(&self) {
        match self {
            Self::Nodes(nodes) => nodes.ready().await,
            Self::ApiServers(slices) => slices.ready().await,
        }
    }

    pub(crate) fn addresses(&self) -> BTreeSet<Ipv4Addr> {
        match self {
            Self::Nodes(nodes) => nodes.list().iter().flat_map(|node| of_node(node)).collect(),
            Self::ApiServers(slices) => slices.list().iter().flat_map(|slice| of_slice(slice)).collect(),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_sources_tell_the_ipv4_addresses() {
        let addresses = json!([{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "host-1"}]);
        let node = serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap();
        assert_eq!(of_node(&node), [Ipv4Addr::new(192, 168, 7, 1)]);
        let endpoints = json!([{"addresses": ["192.168.7.2"]}, {"addresses": ["fd00::1"]}]);
        let slice = json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints, "ports": []});
        assert_eq!(of_slice(&serde_json::from_value(slice).unwrap()), [Ipv4Addr::new(192, 168, 7, 2)]);
    }
}
