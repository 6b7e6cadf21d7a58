//! Rules and defaults for LoadBalancer objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use harvester_api::{
    HealthCheck, Ipam, Listener, LoadBalancer, VirtualMachine, VirtualMachineInstance, WorkloadType,
    annotations, labels, names,
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::Policy;
use super::patch::{set_entries, set_root};
use super::status;
use crate::review::{Fault, Operation, Request};

/// What the rules and defaults follow from, beside the request: the object's namespace.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Annotations of the Namespace; nothing when there is no such Namespace.
    pub namespace: Option<BTreeMap<String, String>>,
    pub vms: Vec<Arc<VirtualMachine>>,
    pub vmis: Vec<Arc<VirtualMachineInstance>>,
}

/// What a fault's message begins with.
pub fn prefix(request: &Request) -> String {
    let verb = if request.operation == Operation::Create { "create" } else { "update" };
    format!("{verb} loadbalancer {}/{} failed: ", request.namespace, request.name)
}

/// Every rule that the object breaks. The rules about the spec do not run when an update leaves it alone: an object
/// from before a rule can still get its status and lose its finalizer.
pub fn validate(request: &Request, world: &World, policy: &Policy) -> Vec<Fault> {
    let judged = matches!(request.operation, Operation::Create | Operation::Update);
    if !judged || request.deleting() {
        return Vec::new();
    }
    let lb: LoadBalancer = match serde_json::from_value(request.object.clone()) {
        Ok(lb) => lb,
        Err(error) => return vec![Fault::invalid(format!("it cannot be read: {error}"))],
    };
    let mut faults = Vec::new();
    if request.object["spec"] != request.old["spec"] {
        if lb.spec.workload() == WorkloadType::Vm {
            faults.extend(listeners(&lb.spec.listeners));
            faults.extend(health_check(lb.spec.health_check.as_ref(), &lb.spec.listeners));
        }
        faults.extend(selector(&lb.spec.backend_server_selector));
    }
    match request.operation {
        Operation::Update => faults.extend(immutable(&lb, &request.old)),
        _ if lb.spec.workload() == WorkloadType::Cluster => faults.extend(guest_cluster(&lb, &world.vms)),
        _ => {}
    }
    if request.user != policy.status_writer {
        let standing = status::of_load_balancer(&request.object, &request.old);
        let written = &request.object["status"];
        let fields: &[&str] = &["allocatedAddress", "address"];
        faults.extend(fields.iter().filter(|field| written[**field] != standing[**field]).map(|field| {
            Fault::forbidden(format!(
                "status.{field} is written by {} only: leave it as it is",
                policy.status_writer
            ))
        }));
    }
    faults
}

fn listeners(listeners: &[Listener]) -> Vec<Fault> {
    let mut faults = Vec::new();
    if listeners.is_empty() {
        faults.push(Fault::invalid("the load balancer needs at least one listener"));
    }
    for (index, listener) in listeners.iter().enumerate() {
        let Listener { name, port, protocol, backend_port } = listener;
        for (field, number) in [("port", port), ("backendPort", backend_port)] {
            if *number > 65_535 {
                faults.push(Fault::invalid(format!(
                    "listener {name:?} has {field} {number}, must be <= 65535"
                )));
            }
            if *number < 1 {
                faults.push(Fault::invalid(format!("listener {name:?} has {field} {number}, must be >= 1")));
            }
        }
        for earlier in &listeners[..index] {
            if earlier.name == *name {
                faults.push(Fault::invalid(format!("listeners have duplicate name {name:?}")));
            }
            let both = [("port", earlier.port, port), ("backend port", earlier.backend_port, backend_port)];
            for (what, earlier_number, number) in both {
                if earlier.protocol == *protocol && earlier_number == *number {
                    let text = format!(
                        "listener {name:?} has duplicate {what} {protocol}:{number} with listener {:?}",
                        earlier.name
                    );
                    faults.push(Fault::invalid(text));
                }
            }
        }
    }
    faults
}

fn health_check(check: Option<&HealthCheck>, listeners: &[Listener]) -> Vec<Fault> {
    let Some(check) = check else { return Vec::new() };
    let HealthCheck { port, success_threshold, failure_threshold, period_seconds, timeout_seconds } = check;
    let Some(port) = port.filter(|port| *port != 0) else { return Vec::new() };
    let mut faults = Vec::new();
    let mut behind = listeners.iter().filter(|listener| i64::from(listener.backend_port) == port).peekable();
    if behind.peek().is_none() {
        let ports: Vec<String> = listeners.iter().map(|listener| listener.backend_port.to_string()).collect();
        let ports = ports.join(", ");
        faults.push(format!("port {port} is not in the listener backend port list [{ports}]"));
    } else if !behind.any(|listener| listener.protocol == "TCP") {
        faults.push(format!("port {port} can only be a TCP backend port"));
    }
    let parameters = [
        ("SuccessThreshold", success_threshold),
        ("FailureThreshold", failure_threshold),
        ("PeriodSeconds", period_seconds),
        ("TimeoutSeconds", timeout_seconds),
    ];
    let bad = parameters.into_iter().filter(|(_, value)| value.unwrap_or(0) <= 0);
    faults.extend(bad.map(|(name, value)| format!("{name} should be > 0, it is {}", value.unwrap_or(0))));
    faults.into_iter().map(|fault| Fault::invalid(format!("healthyCheck: {fault}"))).collect()
}

fn selector(selector: &BTreeMap<String, Vec<String>>) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (key, values) in selector {
        if values.is_empty() {
            faults.push(format!(
                "backendServerSelector {key:?} has no values: give at least one, or leave the key out"
            ));
        }
        if !is_label_key(key) {
            faults.push(format!("backendServerSelector {key:?} is not a label key"));
        }
        let bad = values.iter().filter(|value| !value.is_empty() && !is_label_name(value));
        faults.extend(
            bad.map(|value| format!("backendServerSelector {key:?}: {value:?} is not a label value")),
        );
    }
    faults.into_iter().map(Fault::invalid).collect()
}

/// `[prefix/]name`; the prefix a DNS name of at most 253 characters.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let dns = |prefix: &str| {
        let label = |label: &str| {
            let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
            let bytes = label.as_bytes();
            ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
        };
        prefix.len() <= 253 && prefix.split('.').all(label)
    };
    prefix.is_none_or(dns) && is_label_name(name)
}

/// At most 63 letters, digits, `-`, `_` and `.`, beginning and ending with one of the first two.
fn is_label_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= 63 && ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
}

/// `ipam` and `workloadType` stay in their class; absent means pool and vm.
fn immutable(lb: &LoadBalancer, old: &Value) -> Vec<Fault> {
    let Ok(old) = serde_json::from_value::<LoadBalancer>(old.clone()) else { return Vec::new() };
    let mut faults = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change = |field: &str, from: Value, to: Value| {
        Fault::invalid(format!("can't change the {field} from {} to {}", text(&from), text(&to)))
    };
    if (old.spec.ipam() == Ipam::Dhcp) != (lb.spec.ipam() == Ipam::Dhcp) {
        faults.push(change("IPAM", json!(old.spec.ipam()), json!(lb.spec.ipam())));
    }
    if (old.spec.workload() == WorkloadType::Cluster) != (lb.spec.workload() == WorkloadType::Cluster) {
        faults.push(change("WorkloadType", json!(old.spec.workload()), json!(lb.spec.workload())));
    }
    faults
}

/// No new load balancer for a guest cluster that is being removed.
fn guest_cluster(lb: &LoadBalancer, vms: &[Arc<VirtualMachine>]) -> Option<Fault> {
    let cluster = lb.labels().get(labels::CLUSTER)?;
    if cluster.is_empty() || cluster == names::DEFAULT_CLUSTER_NAME {
        return None;
    }
    let has = |map: &BTreeMap<String, String>, key: &str, value: &str| {
        map.get(key).is_some_and(|found| found == value)
    };
    let machine = vms.iter().find(|vm| {
        has(vm.labels(), labels::CREATOR, labels::NODE_DRIVER)
            && has(vm.labels(), labels::GUEST_CLUSTER, cluster)
            && has(vm.annotations(), annotations::REMOVE_ALL_PVCS, "true")
    })?;
    let name = format!("{}/{}", machine.namespace().unwrap_or_default(), machine.name_any());
    let text =
        format!("guest cluster check: the VM {name} shows that the guest cluster {cluster} is being removed");
    Some(Fault::forbidden(text))
}

/// The operations that complete the object and put a status back that is not the writer's to change.
///
/// # Errors
/// What stands in the way of completing it.
pub fn mutate(request: &Request, world: &World, policy: &Policy) -> Result<Vec<Value>, Fault> {
    let judged = matches!(request.operation, Operation::Create | Operation::Update);
    if !judged || request.deleting() {
        return Ok(Vec::new());
    }
    let object = &request.object;
    let mut entries = vec![(annotations::LB_NAMESPACE, request.namespace.clone())];
    if object["spec"]["workloadType"] == "cluster" {
        let Some(namespace) = &world.namespace else {
            return Err(Fault::invalid(format!("there is no namespace {}", request.namespace)));
        };
        let project =
            namespace.get(annotations::PROJECT_ID).map(|id| id.replacen(':', "/", 1)).unwrap_or_default();
        entries.push((annotations::LB_PROJECT, project));
        entries.push((annotations::LB_NETWORK, network(object, &world.vmis)));
    }
    let mut operations = set_entries(object, "annotations", &entries);
    operations.extend(health_check_defaults(&object["spec"]["healthCheck"]));
    if request.user != policy.status_writer {
        let standing = status::of_load_balancer(object, &request.old);
        operations.extend(set_root(object, "status", &standing));
    }
    Ok(operations)
}

/// Harvester's defaults, for who asked for a health check and left values out.
fn health_check_defaults(check: &Value) -> Vec<Value> {
    if check["port"].as_i64().unwrap_or(0) == 0 {
        return Vec::new();
    }
    let defaults =
        [("successThreshold", 2), ("failureThreshold", 2), ("periodSeconds", 1), ("timeoutSeconds", 1)];
    let missing = defaults.into_iter().filter(|(field, _)| check[*field].as_i64().unwrap_or(0) == 0);
    missing
        .map(|(field, default)| json!({"op": "add", "path": format!("/spec/healthCheck/{field}"), "value": default}))
        .collect()
}

/// The network of the guest's nodes: as written, else the management network, else the first network of the VMs
/// that carry the cluster's label, else of machines of the node driver whose name begins with the cluster's.
fn network(object: &Value, vmis: &[Arc<VirtualMachineInstance>]) -> String {
    let annotation = |key: &str| {
        let value = object["metadata"]["annotations"][key].as_str().unwrap_or_default();
        Some(value.to_owned()).filter(|value| !value.is_empty())
    };
    let first_network = |selects: &dyn Fn(&VirtualMachineInstance) -> bool| {
        let mut chosen: Vec<_> = vmis.iter().filter(|vmi| selects(vmi)).collect();
        chosen.sort_by_key(|vmi| vmi.name_any());
        chosen.into_iter().find_map(|vmi| {
            let multus = vmi.spec.networks.iter().find_map(|network| network.multus.as_ref())?;
            Some(qualified(&multus.network_name, &vmi.namespace().unwrap_or_default()))
        })
    };
    let of_cluster = |cluster: String| {
        let labelled =
            |vmi: &VirtualMachineInstance| vmi.labels().get(labels::GUEST_CLUSTER) == Some(&cluster);
        let named = |vmi: &VirtualMachineInstance| {
            vmi.labels().get(labels::CREATOR).is_some_and(|creator| creator == labels::NODE_DRIVER)
                && vmi.name_any().starts_with(&cluster)
        };
        first_network(&labelled).or_else(|| first_network(&named))
    };
    annotation(annotations::LB_NETWORK)
        .or_else(|| annotation(annotations::MANAGEMENT_NETWORK))
        .or_else(|| annotation(annotations::LB_CLUSTER).and_then(of_cluster))
        .unwrap_or_default()
}

/// Pools compare networks as text, so a bare name gets the namespace that it stands for.
fn qualified(network: &str, namespace: &str) -> String {
    if network.contains('/') || network.is_empty() {
        network.to_owned()
    } else {
        format!("{namespace}/{network}")
    }
}

#[cfg(test)]
mod tests;
