//! A Service with its EndpointSlices, as kube-proxy reads them.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    discovery::v1::EndpointSlice,
};

use super::{Destination, Protocol};
use crate::wire::meant;

/// A Service with everything that it may send to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Balanced {
    pub(crate) uid: String,
    /// kube-proxy serves the addresses of `status.loadBalancer` for this type only.
    pub(crate) is_load_balancer: bool,
    ports: Vec<Port>,
    /// `externalTrafficPolicy: Local`.
    pub(crate) local_only: bool,
    targets: Vec<Target>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    name: String,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
}

/// An endpoint for the Service port of this name and protocol.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    port_name: String,
    protocol: Protocol,
    ready: bool,
    /// Its slice has IPv6 addresses.
    ipv6: bool,
    endpoint: Endpoint,
}

/// Where a connection may go, and the node that this is on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    pub(crate) at: SocketAddr,
    pub(crate) node: Option<String>,
}

impl Balanced {
    /// Reads a Service and the slices that name it. What kube-proxy would not understand is left out.
    pub(crate) fn of<'a>(service: &Service, slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Self {
        let spec = service.spec.as_ref();
        let policy = spec.and_then(|spec| spec.external_traffic_policy.as_deref());
        let ports = spec.into_iter().flat_map(|spec| spec.ports.iter().flatten());
        Self {
            uid: service.metadata.uid.clone().unwrap_or_default(),
            is_load_balancer: spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer")),
            ports: ports.filter_map(Port::of).collect(),
            local_only: policy == Some("Local"),
            targets: slices.into_iter().flat_map(targets).collect(),
        }
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = (Protocol, u16)> {
        self.ports.iter().map(|port| (port.protocol, port.port))
    }

    pub(crate) fn node_ports(&self) -> impl Iterator<Item = (Protocol, u16)> {
        self.ports.iter().filter_map(|port| Some((port.protocol, port.node_port?)))
    }

    pub(crate) fn port(&self, protocol: Protocol, number: u16) -> Option<&Port> {
        self.ports.iter().find(|port| port.protocol == protocol && port.port == number)
    }

    pub(crate) fn node_port(&self, protocol: Protocol, number: u16) -> Option<&Port> {
        self.ports.iter().find(|port| port.protocol == protocol && port.node_port == Some(number))
    }

    /// The ready endpoints of a port, for connections of one family; its name and protocol tie Service and slice
    /// together.
    pub(crate) fn ready(&self, port: &Port, ipv6: bool) -> Vec<&Endpoint> {
        let of_port = |target: &&Target| {
            target.ipv6 == ipv6 && target.port_name == port.name && target.protocol == port.protocol
        };
        self.targets
            .iter()
            .filter(of_port)
            .filter(|target| target.ready)
            .map(|target| &target.endpoint)
            .collect()
    }

    /// Everything that is sent to, ready or not.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Destination> {
        self.targets.iter().map(|target| Destination { at: target.endpoint.at, protocol: target.protocol })
    }
}

impl Port {
    fn of(port: &ServicePort) -> Option<Self> {
        let node_port = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        Some(Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: Protocol::of(port.protocol.as_deref())?,
            port: u16::try_from(port.port).ok()?,
            node_port,
        })
    }
}

fn targets(slice: &EndpointSlice) -> Vec<Target> {
    let mut targets = Vec::new();
    for port in slice.ports.iter().flatten() {
        let number = port.port.and_then(|port| u16::try_from(port).ok());
        let (Some(number), Some(protocol)) = (number, Protocol::of(port.protocol.as_deref())) else {
            continue;
        };
        for endpoint in &slice.endpoints {
            // all addresses of an endpoint are one thing; kube-proxy uses the first
            let Some(address) = endpoint.addresses.first().and_then(|address| address.parse().ok()) else {
                continue;
            };
            let address: IpAddr = address;
            targets.push(Target {
                port_name: port.name.clone().unwrap_or_default(),
                protocol,
                ready: endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true),
                ipv6: address.is_ipv6(),
                endpoint: Endpoint {
                    at: SocketAddr::new(meant(address), number),
                    node: endpoint.node_name.clone(),
                },
            });
        }
    }
    targets
}

/// How many endpoints there are, ready or not; the second figure counts those that serve on `node`.
pub(crate) fn endpoints_of<'a>(
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    node: &str,
) -> (usize, usize) {
    let (mut all, mut local) = (0, 0);
    for endpoint in slices.into_iter().flat_map(|slice| &slice.endpoints) {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let serves = conditions.serving.or(conditions.ready).unwrap_or(true);
        all += 1;
        local += usize::from(serves && endpoint.node_name.as_deref() == Some(node));
    }
    (all, local)
}
