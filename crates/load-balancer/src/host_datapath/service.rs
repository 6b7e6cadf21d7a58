//! The Service that Harvester's kube-vip announces for a load balancer.

use std::collections::HashMap;

use controller_kit::RawObject;
use harvester_api::{Listener, annotations, labels, names};
use ipam::Family;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::{
    source_ranges::{self, SourceRanges},
    write::Write,
};
use crate::ownership::{Owner, set_owner};

/// The address that kube-vip says it announces: the first ingress, as the Go program reads it. `0.0.0.0`, which some
/// versions write while they still wait for a lease, is not an address.
pub(crate) fn announced(service: &Service) -> Option<&str> {
    let status = service.status.as_ref()?.load_balancer.as_ref()?;
    let ip = status.ingress.as_ref()?.first()?.ip.as_deref()?;
    (!ip.is_empty() && ip != names::DHCP_ADDRESS).then_some(ip)
}

/// The family of the backends: that of the address, unless the Service carries another one alone. The API fixes the first
/// family of a Service when it is made.
pub(crate) fn family(service: Option<&Service>, address: &str) -> Family {
    let of_address = address.parse().map_or(Family::V4, Family::of);
    let families = service.and_then(|service| service.spec.as_ref()).map(|spec| spec.ip_families.as_deref());
    match families {
        // it is made for the address
        None => of_address,
        // a server that knows no families
        Some(None | Some([])) => Family::V4,
        Some(Some(carried)) if carried.iter().any(|name| *name == of_address.to_string()) => of_address,
        Some(Some([first, ..])) => {
            if first == "IPv6" {
                Family::V6
            } else {
                Family::V4
            }
        }
    }
}

/// The write that makes the Service ask for `address` (`0.0.0.0`: a lease), carry the listeners' ports and admit `ranges`. Both
/// ways of asking are used: which of them a kube-vip reads first depends on its version.
pub(crate) fn write(
    existing: Option<&RawObject<Service>>,
    owner: &Owner,
    listeners: &[Listener],
    address: &str,
    ranges: Option<&SourceRanges<'_>>,
) -> Write {
    let change = |service: &mut Value| {
        set_owner(service, owner, &[(labels::SERVICE_LB, "true")]);
        ask_for(service, address);
        source_ranges::put_on(service, ranges);
        set_ports(&mut service["spec"], listeners);
    };
    match existing {
        Some(existing) => existing.edited(change).map_or(Write::Nothing, Write::Replace),
        None => {
            let mut service = json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"namespace": owner.key.namespace, "name": owner.key.name},
                // kube-proxy serves the address without node ports, and kube-vip only announces it
                "spec": {"allocateLoadBalancerNodePorts": false},
            });
            // an IPv4 one is what the cluster makes of it
            if family(None, address) == Family::V6 {
                service["spec"]["ipFamilies"] = json!(["IPv6"]);
                service["spec"]["ipFamilyPolicy"] = "SingleStack".into();
            }
            change(&mut service);
            Write::Create(service)
        }
    }
}

/// The write that makes the Service ask for `address`, and changes nothing else of what it serves.
pub(crate) fn write_address(existing: &RawObject<Service>, address: &str) -> Write {
    existing.edited(|service| ask_for(service, address)).map_or(Write::Nothing, Write::Replace)
}

/// The write that makes kube-vip see the Service. Up to 1.2.3 it passes over every event of one that has `ignore` or
/// another type, the deletion included, and goes on announcing the address.
pub(crate) fn write_visible(existing: &RawObject<Service>) -> Write {
    existing.edited(make_visible).map_or(Write::Nothing, Write::Replace)
}

fn ask_for(service: &mut Value, address: &str) {
    make_visible(service);
    service["metadata"]["annotations"][annotations::KUBE_VIP_LOADBALANCER_IPS] = address.into();
    service["spec"]["loadBalancerIP"] = address.into();
}

fn make_visible(service: &mut Value) {
    service["spec"]["type"] = "LoadBalancer".into();
    let found = service.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(found) = found {
        found.remove(annotations::KUBE_VIP_IGNORE);
    }
}

/// Makes the ports those of the listeners. The node port (and whatever else others put on a port) stays with the
/// port of the same protocol and number; ports that are as they should be stay untouched.
fn set_ports(spec: &mut Value, listeners: &[Listener]) {
    let found = spec.get("ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let number = |port: &Value| (protocol(port).to_owned(), port["port"].as_i64().unwrap_or_default());
    let by_number: HashMap<_, _> = found.iter().map(|port| (number(port), port)).collect();
    let wanted: Vec<Value> = listeners
        .iter()
        .map(|listener| {
            let same = by_number.get(&(listener.protocol.clone(), i64::from(listener.port)));
            let mut port = same.map_or_else(|| json!({}), |port| (*port).clone());
            // an unnamed port is stored without the key
            if port.get("name").and_then(Value::as_str).unwrap_or_default() != listener.name {
                port["name"] = listener.name.clone().into();
            }
            port["protocol"] = listener.protocol.clone().into();
            port["port"] = listener.port.into();
            port["targetPort"] = listener.backend_port.into();
            port
        })
        .collect();
    let is_found = |port: &Value| by_number.get(&number(port)).is_some_and(|found| *found == port);
    let same = wanted.len() == found.len() && wanted.iter().all(is_found);
    if !same {
        spec["ports"] = wanted.into();
    }
}

fn protocol(port: &Value) -> &str {
    port.get("protocol").and_then(Value::as_str).unwrap_or("TCP")
}

#[cfg(test)]
mod tests;
