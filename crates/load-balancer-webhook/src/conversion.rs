//! LoadBalancer objects of version v1alpha1, which clients from before Harvester 1.2 write and old clusters still store,
//! as v1beta1 and back. Pure, and total: every object of either schema has a counterpart, because a single one without
//! would break each list of them (docs/contract/load-balancer.md#9.5).
//!
//! v1alpha1 has no room for most of v1beta1. What it cannot say travels in annotation [`KEPT`], together with the object's
//! UID and generation, and comes back on the way to v1beta1, but for what was changed in v1alpha1 meanwhile. An annotation
//! that somebody saved with an earlier version of the object, or copied to another one, counts for nothing, and one that
//! somebody wrote himself for no more than what he might write in v1beta1 ([`schema`]).

mod envelope;
mod handler;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use harvester_api::annotations::V1BETA1 as KEPT;
use harvester_api::load_balancer::API_VERSIONS as VERSIONS;
use harvester_api::names::DHCP_ADDRESS;
use harvester_api::{IPPool, VirtualMachineInstance, labels};
use serde_json::{Map, Value, json};

pub(crate) use envelope::{Needs, Review, answer, refusal};
pub(crate) use handler::converted;

/// The version that is stored.
pub(crate) const V1BETA1: &str = VERSIONS[0];
/// The former one.
pub(crate) const V1ALPHA1: &str = VERSIONS[1];

/// Bytes of what is kept in an annotation.
const KEPT_MAX: usize = 128 << 10;
/// Bytes of all annotations of an object, keys and values: an API server that gets more from a conversion fails the whole
/// list.
const ANNOTATIONS_MAX: usize = 256 << 10;

/// Of a health check that names some of them: what the mutating webhook would fill in.
const DEFAULTS: [(&str, &str, u32); 4] = [
    ("successThreshold", "successThreshold", 2),
    ("failureThreshold", "failureThreshold", 2),
    ("periodSeconds", "PeriodSeconds", 1),
    ("timeoutSeconds", "timeoutSeconds", 1),
];

/// Where pool and VMs are looked up that v1alpha1 does not name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookup<'a> {
    /// With their records.
    pub(crate) pools: &'a [IPPool],
    pub(crate) machines: Machines<'a>,
}

/// Names of VMs, by namespace and the address of an interface.
pub(crate) type Machines<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;

/// The VMs that have an address.
pub(crate) fn machines(vmis: &[Arc<VirtualMachineInstance>]) -> Machines<'_> {
    let mut machines = Machines::new();
    for vmi in vmis {
        let metadata = &vmi.metadata;
        let (Some(namespace), Some(name)) = (metadata.namespace.as_deref(), metadata.name.as_deref()) else {
            continue;
        };
        for interface in vmi.status.iter().flat_map(|status| &status.interfaces) {
            let addresses = iter::once(&interface.ip_address).chain(&interface.ip_addresses);
            for address in addresses.filter(|address| !address.is_empty()) {
                machines.entry((namespace, address.as_str())).or_default().insert(name);
            }
        }
    }
    machines
}

/// The object in another version. One that is in it already stays as it is.
pub(crate) fn convert(object: Value, to: &str, lookup: &Lookup<'_>) -> Value {
    if object["apiVersion"] == to {
        return object;
    }
    let mut object = object;
    if to == V1BETA1 {
        to_beta(&mut object, lookup);
    } else {
        to_alpha(&mut object);
    }
    object["apiVersion"] = to.into();
    object
}

/// Spec and status of an object in v1alpha1.
fn alpha(spec: &Value, status: &Value) -> [Value; 2] {
    let mut converted = Map::new();
    let mut copy = |key: &str, value: Value| {
        if !value.is_null() {
            converted.insert(key.to_owned(), value);
        }
    };
    copy("description", spec["description"].clone());
    copy("ipam", spec.get("ipam").cloned().unwrap_or_else(|| "pool".into()));
    copy("listeners", each(&spec["listeners"], |listener| default(listener, "name", || "".into())));
    copy("backendServers", status["backendServers"].clone());
    let check = &spec["healthCheck"];
    if check["port"].as_i64().is_some_and(|port| port != 0) {
        let fields = DEFAULTS.map(|(beta, alpha, usual)| {
            (alpha.to_owned(), check.get(beta).cloned().unwrap_or_else(|| usual.into()))
        });
        let port = ("port".to_owned(), check["port"].clone());
        copy("healthCheck", Value::Object(fields.into_iter().chain([port]).collect()));
    }
    let mut shown = Map::new();
    for field in ["address", "conditions"] {
        if let Some(value) = status.get(field) {
            shown.insert(field.to_owned(), value.clone());
        }
    }
    [Value::Object(converted), Value::Object(shown)]
}

fn to_alpha(object: &mut Value) {
    // one that somebody stored was not made here
    drop(take_kept(object));
    let [spec, status] = ["spec", "status"].map(|part| object.get(part).cloned());
    let [of_spec, of_status] =
        alpha(spec.as_ref().unwrap_or(&Value::Null), status.as_ref().unwrap_or(&Value::Null));
    let metadata = &object["metadata"];
    // one that was stored before the webhook converted may lack what the schema requires
    let mut whole = spec.clone();
    if let Some(listeners) = whole.as_ref().and_then(|spec| spec.get("listeners")) {
        let listeners = with_backend_ports(listeners);
        set(whole.get_or_insert_default(), "listeners", Some(listeners));
    }
    let kept = json!({"uid": metadata["uid"], "generation": metadata["generation"],
        "spec": whole, "status": status})
    .to_string();
    set(object, "spec", spec.map(|_| of_spec));
    set(object, "status", status.map(|_| of_status));
    let others = object["metadata"]["annotations"].as_object().into_iter().flatten();
    let others: usize = others.map(|(key, text)| key.len() + text.as_str().unwrap_or_default().len()).sum();
    let fits = kept.len() <= KEPT_MAX && others + KEPT.len() + kept.len() <= ANNOTATIONS_MAX;
    if fits && object["metadata"].is_object() {
        let annotations = &mut object["metadata"]["annotations"];
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[KEPT] = kept.into();
    }
}

/// v1beta1 requires the backend's port.
fn with_backend_ports(listeners: &Value) -> Value {
    each(listeners, |listener| {
        let port = listener["port"].clone();
        default(listener, "backendPort", || port);
    })
}

fn to_beta(object: &mut Value, lookup: &Lookup<'_>) {
    let kept = take_kept(object);
    let [then_spec, then_status] =
        kept.as_ref().map(|(spec, status)| alpha(spec, status)).unwrap_or_default();
    let [now_spec, now_status] = ["spec", "status"].map(|part| object[part].clone());
    let had_status = object.get("status").is_some();
    let (mut spec, mut status) = kept.unwrap_or_default();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let changed = |field: &str| now_spec.get(field) != then_spec.get(field);
    for field in ["description", "ipam"] {
        if changed(field) {
            set(&mut spec, field, now_spec.get(field).cloned());
        }
    }
    if changed("listeners") {
        set(&mut spec, "listeners", now_spec.get("listeners").map(with_backend_ports));
    }
    if changed("backendServers") {
        let servers = now_spec.get("backendServers").cloned();
        let addresses = servers.as_ref().and_then(Value::as_array).into_iter().flatten();
        let machines: BTreeSet<_> = addresses
            .filter_map(|address| lookup.machines.get(&(namespace, address.as_str()?)))
            .flatten()
            .collect();
        let selector = (!machines.is_empty()).then(|| json!({labels::VM_NAME: machines}));
        set(&mut spec, "backendServerSelector", selector);
        set(&mut status, "backendServers", servers);
    }
    if changed("healthCheck") {
        let check = now_spec.get("healthCheck").cloned().map(|mut check| {
            if let Some(period) = check.as_object_mut().and_then(|check| check.remove("PeriodSeconds")) {
                check["periodSeconds"] = period;
            }
            // v1alpha1 has no words for them: whoever edits the rest does not mean them
            for field in ["path", "scheme"] {
                if let (true, Some(kept)) = (check.is_object(), spec["healthCheck"].get(field)) {
                    check[field] = kept.clone();
                }
            }
            check
        });
        set(&mut spec, "healthCheck", check);
    }
    for field in ["address", "conditions"] {
        if now_status.get(field) != then_status.get(field) {
            set(&mut status, field, now_status.get(field).cloned());
        }
    }
    if status.get("allocatedAddress").is_none() {
        let key = format!("{namespace}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        let allocated = allocated(spec["ipam"] == "dhcp", &status["address"], &key, lookup);
        if let Some(pool) = allocated.as_ref().and_then(|allocated| allocated.get("ipPool")) {
            default(&mut spec, "ipPool", || pool.clone());
        }
        set(&mut status, "allocatedAddress", allocated);
    }
    // v1beta1 requires a spec
    object["spec"] = if spec.is_object() { spec } else { json!({}) };
    let is_empty = status.as_object().is_none_or(Map::is_empty);
    set(object, "status", (had_status || !is_empty).then(|| if is_empty { json!({}) } else { status }));
}

/// Where an address comes from that a controller from before Harvester 1.2 gave. An address that no pool has a record of
/// says nothing.
fn allocated(dhcp: bool, address: &Value, holder: &str, lookup: &Lookup<'_>) -> Option<Value> {
    let address = address.as_str().filter(|address| !address.is_empty())?;
    if dhcp {
        return Some(json!({"ip": DHCP_ADDRESS}));
    }
    let holds = |pool: &&IPPool| {
        pool.status.as_ref().and_then(|status| status.allocated.get(address)).is_some_and(|it| it == holder)
    };
    let pool = lookup.pools.iter().find(holds)?;
    Some(json!({"ipPool": pool.metadata.name, "ip": address}))
}

/// Spec and status as they were in v1beta1; nothing where they were another object's, or an earlier version's.
fn take_kept(object: &mut Value) -> Option<(Value, Value)> {
    let metadata = object.get_mut("metadata")?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(KEPT)?;
    if annotations.is_empty() {
        set(metadata, "annotations", None);
    }
    // a longer one was not made here, and what it says may take much memory
    let text = text.as_str().filter(|text| text.len() <= KEPT_MAX)?;
    let kept: Value = serde_json::from_str(text).ok()?;
    let same_object = metadata["uid"].is_string() && kept["uid"] == metadata["uid"];
    // an update is converted after its generation was counted up
    let (then, now) = (kept["generation"].as_i64()?, metadata["generation"].as_i64()?);
    let same_version = then == now || then.checked_add(1) == Some(now);
    let is_part = |part: &Value, shape| part.is_null() || schema::allows(shape, part);
    let is_allowed = is_part(&kept["spec"], &schema::SPEC) && is_part(&kept["status"], &schema::STATUS);
    (same_object && same_version && is_allowed).then(|| (kept["spec"].clone(), kept["status"].clone()))
}

/// Sets a field of an object, or of nothing; `None` removes it.
fn set(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            if !object.is_object() {
                *object = json!({});
            }
            object[field] = value;
        }
        None => {
            object.as_object_mut().and_then(|object| object.remove(field));
        }
    }
}

/// Fills in a field that an object lacks.
fn default(object: &mut Value, field: &str, value: impl FnOnce() -> Value) {
    if object.get(field).is_none() {
        set(object, field, Some(value()));
    }
}

/// A list whose objects are changed.
fn each(list: &Value, change: impl Fn(&mut Value)) -> Value {
    let mut list = list.clone();
    list.as_array_mut().into_iter().flatten().filter(|entry| entry.is_object()).for_each(change);
    list
}

#[cfg(test)]
mod tests;
