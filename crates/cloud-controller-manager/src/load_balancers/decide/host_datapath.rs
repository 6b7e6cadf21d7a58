//! The host datapath: the conditions that a Service and the cluster must meet, and the fields of the object that carry
//! the traffic.

use controller_kit::{Explanation, PendingEvent};
use harvester_api::{LoadBalancer, annotations, load_balancer::MAX_LISTENERS};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::{NO_NODES, Seen, families, source_ranges};
use crate::{
    load_balancers::{
        object::{
            self, DatapathFields, listeners, listeners_of_secondary, object as object_at, prefix_of_secondary,
        },
        selector::{Selector, select},
    },
    requested::WISH,
    service_config::{SOURCE_RANGES, ServiceConfig, health_check, ports},
};

/// The fields of the object, unless a fault forbids it or the VMs are not known. Adds faults and Events.
pub(super) fn datapath(
    seen: &Seen<'_>,
    exists: bool,
    faults: &mut Vec<Explanation>,
    events: &mut Vec<PendingEvent>,
) -> Option<DatapathFields> {
    let Seen { identity, service, config, backends, .. } = seen;
    let spec = service.spec.as_ref();
    let own = faults.len();
    let source_ranges = match &config.source_ranges {
        Some(Ok(ranges)) => Some(ranges.clone()),
        Some(Err(fault)) => {
            faults.push(fault.clone());
            None
        }
        None => None,
    };
    // no VM matters where no object is to be made
    if let Some(given_up) = seen.given_up.as_ref().filter(|_| !exists && source_ranges.is_some()) {
        faults.push(source_ranges::fault(given_up));
    }
    if ports(service).len() > MAX_LISTENERS {
        let sentence = format!(
            "{} ports are more than the {MAX_LISTENERS} that the data path host carries: use several Services, or data-path: guest",
            ports(service).len()
        );
        faults.push(Explanation::new("TooManyPorts", sentence));
        return None;
    }
    let listeners = listeners(service).map_err(|found| faults.extend(found)).ok();
    let check = health_check(service).map_err(|found| faults.extend(found)).ok();
    if !config.network.is_empty() {
        let sentence = format!(
            "annotation {} is not for the data path host, which speaks on the management network: ",
            annotations::SERVICE_NETWORK
        );
        if exists {
            // it must go on to follow the ports: node ports that this Service let go of may be another's
            let sentence = sentence + "remove it, or create the Service anew with data-path: guest";
            events.push(PendingEvent::warning("NetworkNotSupported", sentence));
        } else {
            let sentence = sentence + "remove it, or use data-path: guest";
            faults.push(Explanation::new("NetworkNotSupported", sentence));
        }
    }
    match families::on_host(service, exists) {
        Ok(told) => events.extend(told),
        Err(fault) => faults.push(fault),
    }
    if spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local") {
        if matches!(check, Some(None)) {
            let sentence = format!(
                "externalTrafficPolicy Local needs a health check on the data path host: set annotation {}",
                annotations::HEALTH_CHECK_PORT
            );
            faults.push(Explanation::new("HealthCheckNeeded", sentence));
        } else {
            let sentence =
                "externalTrafficPolicy Local does not preserve the client's address on the data path host";
            events.push(PendingEvent::normal("ClientAddressNotPreserved", sentence));
        }
    }
    if spec.and_then(|spec| spec.session_affinity.as_deref()) == Some("ClientIP") {
        let sentence = "sessionAffinity ClientIP has no effect on the data path host, where each connection may go to another VM: \
            remove it, or create the Service anew with data-path: guest";
        events.push(PendingEvent::warning("NotSupported", sentence));
    }
    let host = service.annotations().get(annotations::KUBE_VIP_VIP_HOST);
    // kube-vip reads that field, and may do so before the annotation is there by which it passes over the Service
    let wish = spec.and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|wish| !wish.trim().is_empty());
    let instead = wish.map(|_| {
        format!(
            " with annotation {} in place of {WISH}, which kube-vip announces by itself",
            annotations::SERVICE_IP
        )
    });
    let instead = instead.unwrap_or_default();
    if exists && host.is_some_and(|host| !host.is_empty()) {
        let sentence = format!(
            "kube-vip in the guest announces this address too and does not let go of it: restart kube-vip, or create the Service \
             anew{instead}"
        );
        events.push(PendingEvent::warning("VipAnnouncedTwice", sentence));
    } else if !exists && was_announced_in_guest(service) {
        let sentence = format!(
            "kube-vip in the guest has announced this Service and would announce its address a second time: create the Service \
             anew for the data path host{instead}"
        );
        faults.push(Explanation::new("AnnouncedInGuest", sentence));
    }

    let backends = backends.as_ref()?;
    if !backends.nodes_without_vm.is_empty() {
        let sentence =
            format!("no VM is known for nodes {}: they get no traffic", backends.nodes_without_vm.join(", "));
        events.push(PendingEvent::warning("NodeWithoutVM", sentence));
    }
    if backends.eligible.is_empty() {
        if exists {
            events.push(PendingEvent::warning("UnAvailableLoadBalancer", NO_NODES));
        } else {
            faults.push(Explanation::new("UnAvailableLoadBalancer", NO_NODES));
        }
        return None;
    }
    let selector = select(&identity.cluster, &backends.eligible, &backends.all).map_err(|vms| {
        let sentence = format!(
            "VMs {} have neither label guestcluster.harvesterhci.io/name={} nor harvesterhci.io/vmName: label them and their templates in Harvester",
            vms.join(", "),
            identity.cluster.name()
        );
        faults.push(Explanation::new("NodesNotSelectable", sentence));
    });
    let mut listeners = listeners?;
    for secondary in &seen.secondaries.carried {
        // one that cannot be carried was not admitted
        listeners.extend(listeners_of_secondary(secondary).unwrap_or_default());
    }
    let mut selector = selector.ok()?;
    if !source_ranges::may_flow(source_ranges.as_ref(), seen.load_balancer.object().map(|object| &**object)) {
        selector.clear();
    }
    let datapath = DatapathFields::Host { listeners, selector, health_check: check?, source_ranges };
    // an object that exists follows every change that is no fault; a new one is made only without fault
    (exists && faults.len() == own || faults.is_empty()).then_some(datapath)
}

/// An object stays as it is because its Service has a fault or the VMs are not known. But it leads to no node port that
/// the Service has let go of, which may be another's (docs/contract/data-paths.md#row-12), and it carries its secondaries.
/// No object is without listeners: one that has none left leads to no VM.
pub(super) fn freeze(seen: &Seen<'_>, frozen: &LoadBalancer, json: &mut Value) {
    let spec = object_at(json, "spec");
    let before = spec.get("listeners").and_then(Value::as_array).cloned().unwrap_or_default();
    let carried =
        seen.secondaries.carried.iter().flat_map(|it| listeners_of_secondary(it).unwrap_or_default());
    let carried: Vec<_> = carried.collect();
    let is_anothers = |it: &Value| {
        carried.iter().any(|other| it["port"] == other.port && it["protocol"] == *other.protocol)
    };
    if let Some(Value::Array(own)) = spec.get_mut("listeners") {
        own.retain(|it| leads_to(seen.service, it) && !is_anothers(it));
    }
    seen.secondaries.carry(json);
    source_ranges::enforce(seen, frozen, json);
    let spec = object_at(json, "spec");
    let listeners = spec.get("listeners").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(mut last) = before.into_iter().next().filter(|_| listeners.is_empty()) {
        // under the name of no secondary, which would wait for it to go
        let protocol = last["protocol"].as_str().unwrap_or("TCP").to_ascii_lowercase();
        last["name"] = json!(format!("{protocol}-{}", last["port"]));
        spec.insert("listeners".to_owned(), json!([last]));
        spec.remove("backendServerSelector");
        return;
    }
    if !listeners.is_empty() {
        check_what_is_left(spec, &listeners);
    }
    let may_flow = match &seen.config.source_ranges {
        None => true,
        Some(Ok(ranges)) => source_ranges::may_flow(Some(ranges), Some(frozen)),
        Some(Err(_)) => false,
    };
    if may_flow
        && frozen.spec.backend_server_selector.is_empty()
        && let Some(selector) = selector(seen)
    {
        spec.insert("backendServerSelector".to_owned(), json!(selector));
    }
}

/// Whether [`freeze`] leaves a way to VMs: a port that the Service still has, or a secondary's.
pub(super) fn is_anything_left(seen: &Seen<'_>, frozen: &LoadBalancer) -> bool {
    !seen.secondaries.carried.is_empty()
        || frozen.spec.listeners.iter().any(|it| leads_to(seen.service, &json!(it)))
}

/// Whether a listener leads to a node port of the Service.
fn leads_to(service: &Service, listener: &Value) -> bool {
    ports(service).iter().any(|port| port.node_port.is_some_and(|port| listener["backendPort"] == port))
}

/// The health check of an object goes to the first port that is left.
fn check_what_is_left(spec: &mut Map<String, Value>, listeners: &[Value]) {
    let checked = spec.get("healthCheck").map(|check| check["port"].clone()).unwrap_or_default();
    if !checked.is_null() && !listeners.iter().any(|it| it["backendPort"] == checked) {
        match listeners.iter().find(|it| it["protocol"] == "TCP").map(|it| it["backendPort"].clone()) {
            Some(port) => spec["healthCheck"]["port"] = port,
            None => drop(spec.remove("healthCheck")),
        }
    }
}

/// The selector for an object whose other fields stay as they are; none while it cannot be told.
fn selector(seen: &Seen<'_>) -> Option<Selector> {
    let backends = seen.backends.as_ref().filter(|backends| !backends.eligible.is_empty())?;
    select(&seen.identity.cluster, &backends.eligible, &backends.all).ok()
}

/// The object of a Service that gives it up stays for its secondaries, and until the Service shares another address: it
/// follows their ports and the Nodes. A Service of another type has no node ports, and those that it had may be anybody's:
/// their listeners go (docs/contract/data-paths.md#row-12), and the health check goes to the first port that is left.
pub(super) fn keep_for_secondaries(seen: &Seen<'_>, kept: &LoadBalancer, json: &mut Value) {
    let spec = object_at(json, "spec");
    let before = spec.get("listeners").cloned();
    let mut listeners = before.as_ref().and_then(Value::as_array).cloned().unwrap_or_default();
    let is_secondarys = |it: &Value| prefix_of_secondary(it["name"].as_str().unwrap_or_default()).is_some();
    match object::listeners(seen.service).ok().filter(|_| seen.wanted) {
        Some(own) => {
            listeners.retain(is_secondarys);
            listeners.splice(0..0, own.iter().map(|listener| json!(listener)));
        }
        None => listeners.retain(|it| is_secondarys(it) || leads_to(seen.service, it)),
    }
    spec.insert("listeners".to_owned(), Value::Array(listeners));
    // a secondary may have got the port of one that went
    seen.secondaries.carry(json);
    let spec = object_at(json, "spec");
    let listeners = spec["listeners"].as_array().cloned().unwrap_or_default();
    if listeners.is_empty() {
        // no object is without listeners, and the address of this one is in a status that we are about to change
        if let Some(before) = before.filter(|_| seen.secondaries.shown) {
            spec.insert("listeners".to_owned(), before);
        }
        return;
    }
    check_what_is_left(spec, &listeners);
    let flows = !kept.spec.backend_server_selector.is_empty();
    if let Some(selector) = selector(seen).filter(|_| flows) {
        spec.insert("backendServerSelector".to_owned(), json!(selector));
    }
}

/// Why the object of another Service cannot carry the ports of this one, which may share its address otherwise.
pub(in crate::load_balancers) fn hinders_sharing(
    service: &Service,
    config: &ServiceConfig,
) -> Vec<Explanation> {
    let mut faults = listeners_of_secondary(service).err().unwrap_or_default();
    if config.source_ranges.is_some() {
        let sentence = format!(
            "{SOURCE_RANGES} cannot be had by a Service that shares an address on the data path host, where those of its \
             primary count: remove it"
        );
        faults.push(Explanation::new("NotSupported", sentence));
    }
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local") {
        let sentence = "externalTrafficPolicy Local needs a health check on the data path host, and a Service that \
            shares an address has none of its own: use Cluster";
        faults.push(Explanation::new("HealthCheckNeeded", sentence));
    }
    faults
}

/// kube-vip in the guest has announced the Service: it may not come onto this datapath.
pub(in crate::load_balancers) fn was_announced_in_guest(service: &Service) -> bool {
    let has = |key: &str| service.annotations().get(key).is_some_and(|value| !value.is_empty());
    has(annotations::KUBE_VIP_VIP_HOST) || has(annotations::KUBE_VIP_LOADBALANCER_IPS)
}

#[cfg(test)]
mod tests;
