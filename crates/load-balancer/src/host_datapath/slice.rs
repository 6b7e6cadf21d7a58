//! The EndpointSlice of a load balancer, with the load balancer's name: one, of the family of its one address.
//!
//! Membership, readiness and the dummy endpoint change in one write: between two, a Service with no ready endpoint
//! would send the VIP's traffic to the node itself. `conditions.ready` is also where verdicts survive a restart.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use controller_kit::RawObject;
use harvester_api::{Listener, labels, names};
use ipam::Family;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Map, Value, json};

use super::backends::{Backend, BackendId};
use super::write::Write;
use crate::ownership::{Owner, set_owner};

/// The readiness of the backends that a slice records, also in one of somebody else's making; the dummy is no backend.
pub(crate) fn recorded_readiness(slice: &EndpointSlice) -> BTreeMap<BackendId, bool> {
    slice
        .endpoints
        .iter()
        .filter_map(|endpoint| {
            let uid =
                endpoint.target_ref.as_ref()?.uid.clone().filter(|uid| uid != names::DUMMY_ENDPOINT_UID)?;
            let address = endpoint.addresses.first()?.parse().ok()?;
            // a missing condition means ready, by the API's own rule
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
            Some((BackendId { uid, address }, ready))
        })
        .collect()
}

/// Of the network of which routers discard everything (RFC 6666).
const DISCARDED: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);

/// The address of the endpoint that swallows traffic while no backend is ready.
pub(crate) fn dummy(family: Family, ipv4: Ipv4Addr) -> IpAddr {
    match family {
        Family::V4 => ipv4.into(),
        Family::V6 => DISCARDED.into(),
    }
}

/// Whether the slice may have endpoints of the family: the API fixes it when a slice is made.
pub(crate) fn is_of(slice: &EndpointSlice, family: Family) -> bool {
    slice.address_type.is_empty() || slice.address_type == address_type(family)
}

/// The write that makes the slice what it should be: an endpoint for each backend with its readiness, and the dummy
/// while none is ready. All are of the dummy's family.
pub(crate) fn write(
    existing: Option<&RawObject<EndpointSlice>>,
    owner: &Owner,
    listeners: &[Listener],
    backends: &[(Backend, bool)],
    dummy: IpAddr,
) -> Write {
    let mut endpoints: Vec<Value> = backends
        .iter()
        .map(|(backend, ready)| {
            endpoint(backend.id.address, *ready, &owner.key.namespace, &backend.name, &backend.id.uid)
        })
        .collect();
    if !backends.iter().any(|(_, ready)| *ready) {
        let Owner { key, .. } = owner;
        endpoints.push(endpoint(dummy, true, &key.namespace, &key.name, names::DUMMY_ENDPOINT_UID));
    }
    let ports: Vec<Value> = listeners
        .iter()
        .map(|listener| json!({"name": listener.name, "protocol": listener.protocol, "port": listener.backend_port}))
        .collect();
    edit(existing, owner, Family::of(dummy), |slice| {
        set_list(slice, "ports", ports, port_fields);
        set_list(slice, "endpoints", endpoints, endpoint_fields);
    })
}

/// How the backends of two versions of a slice differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Those of another readiness.
    pub(crate) flipped: Vec<BackendId>,
    pub(crate) left: Vec<BackendId>,
    pub(crate) joined: Vec<BackendId>,
}

/// What is new of the backends in `written`, if nothing else in it is new. The dummy is there while nobody is ready.
pub(crate) fn changed(existing: &EndpointSlice, written: &Value) -> Option<Changed> {
    let written = serde_json::from_value::<EndpointSlice>(written.clone()).ok()?;
    let but_backends = |slice: &EndpointSlice| EndpointSlice { endpoints: Vec::new(), ..slice.clone() };
    let (before, after) = (recorded_readiness(existing), recorded_readiness(&written));
    if but_backends(existing) != but_backends(&written) {
        return None;
    }
    let left = before.keys().filter(|id| !after.contains_key(*id)).cloned().collect();
    let mut changed = Changed { left, ..Changed::default() };
    for (id, ready) in after {
        match before.get(&id) {
            None => changed.joined.push(id),
            Some(before) if *before != ready => changed.flipped.push(id),
            Some(_) => {}
        }
    }
    Some(changed)
}

/// The write that takes all traffic away.
pub(crate) fn write_empty(existing: &RawObject<EndpointSlice>) -> Write {
    let edited = existing.edited(|slice| {
        if !existing.endpoints.is_empty() {
            slice["endpoints"] = json!([]);
        }
    });
    edited.map_or(Write::Nothing, Write::Replace)
}

fn edit(
    existing: Option<&RawObject<EndpointSlice>>,
    owner: &Owner,
    family: Family,
    change: impl FnOnce(&mut Value),
) -> Write {
    let own_labels = [
        (labels::SERVICE_LB, "true"),
        (labels::SLICE_SERVICE_NAME, owner.key.name.as_str()),
        (labels::SLICE_MANAGED_BY, labels::SLICE_MANAGED_BY_US),
    ];
    match existing {
        Some(existing) => existing
            .edited(|slice| {
                set_owner(slice, owner, &own_labels);
                change(slice);
            })
            .map_or(Write::Nothing, Write::Replace),
        None => {
            let mut slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"namespace": owner.key.namespace, "name": owner.key.name},
                "addressType": address_type(family),
            });
            set_owner(&mut slice, owner, &own_labels);
            change(&mut slice);
            Write::Create(slice)
        }
    }
}

/// A slice has addresses of one family.
fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn endpoint(address: IpAddr, ready: bool, namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "addresses": [address.to_string()],
        "conditions": {"ready": ready},
        "targetRef": {"namespace": namespace, "name": name, "uid": uid},
    })
}

/// The fields of an endpoint that the controller writes.
fn endpoint_fields(endpoint: &Value) -> Value {
    let target = &endpoint["targetRef"];
    json!([
        endpoint["addresses"],
        endpoint["conditions"]["ready"],
        target["namespace"],
        target["name"],
        target["uid"]
    ])
}

/// The fields of a port that the controller writes, with the server's defaults.
fn port_fields(port: &Value) -> Value {
    let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
    let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
    json!([name, protocol, port["port"]])
}

/// Makes the list `key` hold `wanted`. Items that have the same fields as before stay as they were found, with what
/// others put on them; when nothing but the order differs, nothing changes.
fn set_list(slice: &mut Value, key: &str, wanted: Vec<Value>, fields: fn(&Value) -> Value) {
    let found = slice.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut by_fields: Map<String, Value> =
        found.iter().map(|item| (fields(item).to_string(), item.clone())).collect();
    let mut found_again = 0;
    let kept: Vec<Value> = wanted
        .into_iter()
        .map(|item| match by_fields.remove(&fields(&item).to_string()) {
            Some(kept) => {
                found_again += 1;
                kept
            }
            None => item,
        })
        .collect();
    if found_again != found.len() || found_again != kept.len() {
        slice[key] = kept.into();
    }
}

#[cfg(test)]
mod tests;
