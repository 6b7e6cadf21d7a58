//! The Services that users make.

use harvester_api::annotations::{
    DATA_PATH, HEALTH_CHECK_FAILURE_THRESHOLD, HEALTH_CHECK_PORT, HEALTH_CHECK_SUCCESS_THRESHOLD, IPAM,
    PRIMARY_SERVICE, SERVICE_NETWORK,
};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::cluster_setup::EDGE_NETWORK;

/// The choices that a user makes for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceOptions {
    /// Harvester carries the traffic, not the guest.
    pub(crate) on_host: bool,
    /// `externalTrafficPolicy: Local`.
    pub(crate) local: bool,
    pub(crate) source: AddressSource,
    pub(crate) families: Families,
    /// It asks for the address of the Service with this number.
    pub(crate) shares: Option<usize>,
    pub(crate) port: u16,
}

/// A secondary that asks for the data path host has no health check of its own.
pub(super) fn is_on_host_unchecked(service: &Service) -> bool {
    let annotations = service.annotations();
    annotations.contains_key(DATA_PATH) && !annotations.contains_key(HEALTH_CHECK_PORT)
}

/// The families of a Service's addresses. Only the guest can carry the traffic of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 alone.
    One,
    /// `PreferDualStack`, IPv4 before IPv6.
    Preferred,
    /// `RequireDualStack`, IPv6 before IPv4.
    Required,
}

/// The source of a Service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressSource {
    /// The pool for every load balancer.
    Lab,
    /// The pool of a network that the Service asks for. Only the guest can carry its traffic.
    Edge,
    Dhcp,
}

impl ServiceOptions {
    /// Carried by Harvester or by the guest, with an address of the pool for every load balancer.
    pub(crate) fn plain(on_host: bool) -> Self {
        let (source, families) = (AddressSource::Lab, Families::One);
        Self { on_host, local: false, source, families, shares: None, port: 80 }
    }

    pub(crate) fn drawn(random: &mut fastrand::Rng) -> Self {
        let on_host = random.bool();
        if random.u8(..4) == 0 {
            let shares = Some(random.usize(..super::NAMES));
            return Self { shares, port: random.u16(81..84), ..Self::plain(on_host) };
        }
        let source = match random.u8(..8) {
            0 | 1 => AddressSource::Dhcp,
            2 | 3 if !on_host => AddressSource::Edge,
            _ => AddressSource::Lab,
        };
        // a fifth of all Services
        let families = match random.u8(..6) {
            0 | 1 if !on_host && source != AddressSource::Dhcp => Families::Preferred,
            2 | 3 if !on_host && source != AddressSource::Dhcp => Families::Required,
            _ => Families::One,
        };
        Self { local: random.u8(..4) == 0, source, families, ..Self::plain(on_host) }
    }

    /// The choices that a Service shows.
    pub(crate) fn asked_by(service: &Service) -> Self {
        let annotations = service.annotations();
        let policy = service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref());
        let families = service.spec.as_ref().and_then(|spec| spec.ip_family_policy.as_deref());
        Self {
            on_host: annotations.contains_key(HEALTH_CHECK_PORT) || annotations.contains_key(DATA_PATH),
            local: policy == Some("Local"),
            source: match annotations.get(IPAM).map(String::as_str) {
                Some("dhcp") => AddressSource::Dhcp,
                _ if annotations.contains_key(SERVICE_NETWORK) => AddressSource::Edge,
                _ => AddressSource::Lab,
            },
            families: match families {
                Some("PreferDualStack") => Families::Preferred,
                Some("RequireDualStack") => Families::Required,
                _ => Families::One,
            },
            shares: annotations
                .get(PRIMARY_SERVICE)
                .and_then(|key| key.strip_prefix("shop/web-")?.parse().ok()),
            port: first_port(service),
        }
    }

    fn annotations(self) -> Value {
        let mut annotations = json!({IPAM: if self.source == AddressSource::Dhcp { "dhcp" } else { "pool" }});
        if self.source == AddressSource::Edge {
            annotations[SERVICE_NETWORK] = EDGE_NETWORK.into();
        }
        if let Some(primary) = self.shares {
            annotations[PRIMARY_SERVICE] = key(primary).into();
            if self.on_host {
                annotations[DATA_PATH] = "host".into();
            }
        } else if self.on_host {
            annotations[HEALTH_CHECK_PORT] = "80".into();
            annotations[HEALTH_CHECK_SUCCESS_THRESHOLD] = "2".into();
            annotations[HEALTH_CHECK_FAILURE_THRESHOLD] = "2".into();
        }
        annotations
    }
}

/// The port at which the Service is looked at.
pub(crate) fn first_port(service: &Service) -> u16 {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.map(|port| u16::try_from(port.port).expect("the server takes no other")).next().unwrap_or(80)
}

pub(super) fn key(index: usize) -> String {
    format!("shop/web-{index}")
}

pub(super) fn of(index: usize, options: ServiceOptions) -> Service {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("web-{index}"), "namespace": "shop", "annotations": options.annotations()},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": options.port}],
            "externalTrafficPolicy": if options.local { "Local" } else { "Cluster" }},
    });
    match options.families {
        Families::One => {}
        Families::Preferred => service["spec"]["ipFamilyPolicy"] = "PreferDualStack".into(),
        Families::Required => {
            service["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
            service["spec"]["ipFamilies"] = json!(["IPv6", "IPv4"]);
        }
    }
    serde_json::from_value(service).expect("this is a Service")
}
