//! `loadbalancer.harvesterhci.io/v1beta1`, kind LoadBalancer. There is no status subresource: status travels with
//! an ordinary PUT, and whoever leaves it out of one erases it.

use std::{collections::BTreeMap, net::IpAddr};

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::Condition;

/// API versions, the stored one first. Clients from before Harvester 1.2 write the other.
pub const API_VERSIONS: [&str; 2] =
    ["loadbalancer.harvesterhci.io/v1beta1", "loadbalancer.harvesterhci.io/v1alpha1"];

/// A load balancer with more listeners is refused: every port of a Service is rules on every node of Harvester, and the
/// Services of earlier versions take a node port for each, of which there are 2,768.
pub const MAX_LISTENERS: usize = 100;
/// So many source ranges at most: kube-proxy compares the first packet of each connection with all of them.
pub const MAX_SOURCE_RANGES: usize = 500;

/// What is asked for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1beta1",
    kind = "LoadBalancer",
    plural = "loadbalancers",
    shortname = "lb",
    shortname = "lbs",
    namespaced,
    schema = "disabled",
    status = "LoadBalancerStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Absent means [`WorkloadType::Vm`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<WorkloadType>,
    /// Absent means [`Ipam::Pool`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
    /// A pool by name; empty leaves the choice to the selectors of the pools.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    /// The pool of the IPv6 address, by name; see `ip_pool`. An addition of ours: absent on older schemas.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ipv6_pool: String,
    /// Absent means [`IpFamilyPolicy::SingleStack`]. An addition of ours: absent on older schemas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<Listener>,
    /// Label key to accepted values: keys are ANDed, values ORed. Empty selects nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backend_server_selector: BTreeMap<String, Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
}

impl LoadBalancerSpec {
    /// The workload type that counts.
    pub fn workload(&self) -> WorkloadType {
        self.workload_type.unwrap_or(WorkloadType::Vm)
    }

    /// The address management that counts.
    pub fn ipam(&self) -> Ipam {
        self.ipam.unwrap_or(Ipam::Pool)
    }
}

/// Who carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadType {
    /// Harvester: VIP, Service and EndpointSlice live there, backends are VMs.
    Vm,
    /// The guest cluster: Harvester gives the address and nothing else.
    Cluster,
}

/// How many families of addresses, in the words of `spec.ipFamilyPolicy` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IpFamilyPolicy {
    /// One address.
    SingleStack,
    /// Two, or one where there is no pool for the other.
    PreferDualStack,
    /// Two, or none.
    RequireDualStack,
}

/// Where the address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ipam {
    Pool,
    Dhcp,
}

impl Ipam {
    /// Reads the Service annotation: `pool`, `dhcp`, and `ippool`, which the documentation of Harvester 1.9 shows,
    /// in any letter case. Empty means pool.
    ///
    /// # Errors
    /// The text itself where it is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "pool" | "ippool" => Ok(Self::Pool),
            "dhcp" => Ok(Self::Dhcp),
            _ => Err(text.to_owned()),
        }
    }
}

/// One front-end port and the port of the backends behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    #[serde(default)]
    pub name: String,
    pub port: i32,
    /// `TCP` or `UDP`.
    #[serde(default = "tcp")]
    pub protocol: String,
    /// 0 in objects that were stored through v1alpha1, whose schema does not require it.
    #[serde(default)]
    pub backend_port: i32,
}

fn tcp() -> String {
    "TCP".to_owned()
}

/// A check of the backends: a TCP connect, or an HTTP request where there is a path. Numbers are signed because the schema
/// has no bounds; see `health_check` for what counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheck {
    /// Backend port that is probed; 0 or absent: no health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// Path of the HTTP request, with its slash; empty: a TCP connect. An addition of ours, like the field below: absent
    /// on older schemas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// `HTTP` or `HTTPS`; empty means `HTTP`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scheme: String,
}

/// What our webhook takes at most. More is a slip of the keyboard: the load balancer would wait for ever.
impl HealthCheck {
    /// Good or failed probes in a row.
    pub const MOST_IN_A_ROW: i64 = 1_000;
    /// Period or timeout: a day.
    pub const LONGEST_SECONDS: i64 = 86_400;
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// Addresses of all selected backends, healthy or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backend_servers: Vec<String>,
    /// What the pool gave. A copy of what the pool's `status.allocated` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_address: Option<AllocatedAddress>,
    /// Both addresses of an object that has two, in the order of the families that it asks for; one is in
    /// `allocated_address` alone. An addition of ours: absent on older schemas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The address that is announced. Written by the load balancer for [`WorkloadType::Vm`], by the cloud
    /// controller manager for [`WorkloadType::Cluster`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// What the health check knows of each backend, of 1,000 at most. An addition of ours: absent on older schemas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<BackendStatus>,
}

/// An address out of a pool, or [`crate::names::DHCP_ADDRESS`] without a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocatedAddress {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Dotted, e.g. `255.255.255.0`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mask: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The pool of the IPv6 address. An addition of ours, like the three fields below: absent on older
    /// schemas.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6_pool: String,
    #[serde(rename = "ipv6IP", skip_serializing_if = "String::is_empty")]
    pub ipv6_ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6_mask: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6_gateway: String,
}

impl AllocatedAddress {
    /// Pool and address in the fields that the existing program knows. They hold an IPv4 address, or the only address of
    /// an object that has no IPv4 address.
    pub fn primary(&self) -> Option<(&str, &str)> {
        (!self.ip.is_empty()).then_some((self.ip_pool.as_str(), self.ip.as_str()))
    }

    /// Pool and address in the fields for a second, IPv6 address.
    pub fn ipv6(&self) -> Option<(&str, &str)> {
        (!self.ipv6_ip.is_empty()).then_some((self.ipv6_pool.as_str(), self.ipv6_ip.as_str()))
    }
}

impl LoadBalancer {
    /// The address in the object's status that came from a pool.
    pub fn pool_address(&self) -> Option<AllocatedAddress> {
        let has = self.status.as_ref()?.allocated_address.clone()?;
        (!has.ip_pool.is_empty() && !has.ip.is_empty()).then_some(has)
    }

    /// Pool and address of both addresses in the object's status that came from pools.
    pub fn pool_addresses(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        let has = self.status.as_ref().and_then(|status| status.allocated_address.as_ref());
        let pairs = has.into_iter().flat_map(|has| has.primary().into_iter().chain(has.ipv6()));
        let from_pools = pairs.filter(|(pool, _)| !pool.is_empty());
        from_pools.filter_map(|(pool, ip)| Some((pool, ip.parse().ok()?)))
    }
}

/// One backend and its verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendStatus {
    /// Name of the VM.
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    pub ready: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// When `ready` last changed, RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}
