//! The shape of `--output json`. Fields may be added; none is renamed or taken away.

use std::collections::BTreeMap;

use serde::Serialize;

/// The explanation of one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `namespace/name`.
    pub service: String,
    pub state: State,
    /// The state in one sentence.
    pub headline: String,
    pub class: Class,
    /// `null` while the Service asks for no address of another Service.
    pub sharing: Option<Sharing>,
    /// `null` where the Service wants no load balancer of ours.
    pub data_path: Option<DataPath>,
    pub object: Object,
    pub address: Address,
    pub traffic: Traffic,
    pub controller: Controller,
    /// Completes the sentence "it waits until …".
    pub waits_until: Option<String>,
    /// The Events that the cloud controller manager decides now; warnings name the next step.
    pub findings: Vec<Finding>,
    /// Events that were recorded about the Service, the newest last.
    pub events: Vec<Event>,
    /// Requests that failed; the parts of the report that need them are empty.
    pub not_read: Vec<NotRead>,
    /// The flags of the cloud controller manager by which this was decided.
    pub flags: BTreeMap<&'static str, String>,
}

/// The state of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It has an address, and its status shows it.
    Served,
    /// It waits for an address, or for somebody who announces it.
    Waiting,
    /// A fault keeps the controller from making a load balancer; `findings` has it.
    Refused,
    /// It is being deleted, or gives its load balancer up.
    Leaving,
    /// It asks for no load balancer of ours.
    NotOurs,
    /// Harvester could not be read.
    Unknown,
}

/// Whether the cloud controller manager serves the Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Class {
    /// `spec.type`.
    pub service_type: String,
    /// `spec.loadBalancerClass`.
    pub class: Option<String>,
    /// Whether the cloud controller manager serves it.
    pub ours: bool,
    pub sentence: String,
}

/// The part of the Service in sharing an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sharing {
    /// The Service whose address it asks for; at the end of a chain the last one.
    pub primary: Option<String>,
    /// Whether the primary serves it.
    pub shares: bool,
    pub sentence: String,
}

/// The way of the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataPath {
    /// `guest` or `host`.
    pub path: &'static str,
    /// `recorded`, `class`, `annotation`, `healthCheckPort` or `flag`.
    pub rule: &'static str,
    /// The rule in words.
    pub because: String,
    /// What would choose the other path.
    pub change: String,
}

/// The LoadBalancer object in Harvester.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// `namespace/name` of the object, or of the one that would be made.
    pub name: String,
    /// `present`, `absent`, `deleting`, `unreadable` or `unknown`.
    pub state: &'static str,
    pub sentence: String,
    /// The Ready condition.
    pub ready: Option<Ready>,
    /// The Services that use its address as well.
    pub secondaries: Vec<String>,
}

/// The Ready condition of the object, which the load balancer writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    pub message: String,
    /// RFC 3339; empty where nobody wrote it.
    pub since: String,
}

/// The address and the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// `pool` or `dhcp`; `null` without an object.
    pub ipam: Option<String>,
    /// The addresses that Harvester allocated, each with its pool.
    pub allocated: Vec<Allocated>,
    /// The addresses in the Service's status.
    pub shown: Vec<String>,
    /// What the Service and its object ask for, as `field: value`.
    pub asked: Vec<String>,
    pub sentence: String,
    /// What the pool must match; `null` where pools could not be read or there is no object.
    pub requirement: Option<String>,
    /// Every pool with its answer; `null` where pools could not be read or there is no object.
    pub pools: Option<Vec<Pool>>,
    /// What a load balancer with a flag that is not among `flags` decides otherwise.
    pub depends: Vec<String>,
}

/// An address and its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocated {
    pub address: String,
    /// Empty for DHCP.
    pub pool: String,
}

/// One pool, towards this Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    pub name: String,
    /// `holds`, `gives`, `refuses`, `rejected` or `notNamed`.
    pub verdict: &'static str,
    /// The rule or the address.
    pub sentence: String,
    pub available: i64,
    pub total: i64,
}

/// Nodes, VMs and backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Who announces the address, as far as the objects say.
    pub sentence: String,
    pub nodes: Vec<Node>,
    /// `status.backends` of the object: on the data path host, where the CRD has the field.
    pub backends: Vec<Backend>,
}

/// A Node and its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    /// Whether it may be a backend.
    pub eligible: bool,
    pub vm: Option<String>,
    /// The sign by which the VM was found, or why there is none.
    pub because: &'static str,
}

/// A backend as the load balancer's health check sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    pub name: String,
    pub address: String,
    pub ready: bool,
    pub last_error: String,
    /// RFC 3339.
    pub since: String,
}

/// The cloud controller manager, by its Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// Whether somebody renews the Lease; `null` where it could not be read.
    pub runs: Option<bool>,
    pub sentence: String,
    /// The writes that are due; a running controller does them within seconds.
    pub due: Vec<&'static str>,
}

/// An Event that holds now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub event_type: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// An Event that somebody recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// RFC 3339.
    pub last_seen: String,
    /// How long ago that was.
    #[serde(skip)]
    pub age: String,
    pub count: i32,
    #[serde(rename = "type")]
    pub event_type: String,
    pub reason: String,
    /// The component that recorded it.
    pub from: String,
    pub message: String,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotRead {
    /// `guest` or `Harvester`.
    pub cluster: &'static str,
    /// `get` or `list`.
    pub verb: &'static str,
    /// In the plural, as RBAC has it; `all resources` where there is no kubeconfig.
    pub resource: &'static str,
    /// `null` for all namespaces and for resources without.
    pub namespace: Option<String>,
    pub why: String,
}
