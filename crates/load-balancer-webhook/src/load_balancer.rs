//! Rules and defaults for LoadBalancer objects.

pub(crate) mod named_pool_scope;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use harvester_api::{
    HealthCheck, Ipam, Listener, LoadBalancerSpec, LoadBalancerStatus, VirtualMachine,
    VirtualMachineInstance, WorkloadType, annotations, labels, names,
};
use health_check::HttpGet;
use json_patch::PatchOperation;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::patch::{set, set_entries, set_status};
use crate::review::{Change, Fault, Faults, Write, cut, quoted};
use crate::{Policy, dns, status};

/// At most so many backend ports are listed in a message.
const PORTS_LISTED: usize = 20;
/// A selector is compared with every VM of its namespace. No slice holds more than 1,000 backends, so no more values are
/// needed under all keys together.
const SELECTOR_KEYS: usize = 100;
const SELECTOR_VALUES: usize = 1_000;

/// The surroundings of a guest cluster's load balancer, and of one whose claims are judged: its namespace. Empty for other
/// load balancers of VMs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Annotations of the Namespace, for the mutator; nothing when there is no such Namespace.
    pub(crate) namespace: Option<BTreeMap<String, String>>,
    pub(crate) vms: Vec<Arc<VirtualMachine>>,
    pub(crate) vmis: Vec<Arc<VirtualMachineInstance>>,
    /// For the validator, where [`named_pool_scope::needs_facts`] says so.
    pub(crate) facts: Option<named_pool_scope::Facts>,
}

/// The beginning of a refusal's message.
pub(crate) fn prefix(write: &Write) -> String {
    let verb = if matches!(write.change, Change::Create(_)) { "create" } else { "update" };
    format!("{verb} loadbalancer {}/{} failed: ", cut(&write.namespace), cut(&write.name))
}

/// Whether the write is of a guest cluster's load balancer, whose surroundings the rules look at.
pub(crate) fn of_cluster(write: &Write) -> bool {
    write.reviewed().is_some_and(|object| object.data["spec"]["workloadType"] == "cluster")
}

/// Whether the write is of a load balancer that names a pool, whose selector counts.
pub(crate) fn names_pool(write: &Write, policy: &Policy) -> bool {
    let names = |object: &DynamicObject| {
        let named = |field: &str| object.data["spec"][field].as_str().is_some_and(|name| !name.is_empty());
        named("ipPool") || named("ipv6Pool")
    };
    policy.enforce_named_pool_scope && write.reviewed().is_some_and(names)
}

/// Every rule that the write breaks. A rule looks at the fields that the write changes: an object from before a rule
/// can still get its status and lose its finalizer.
pub(crate) fn validate(write: &Write, seen: &Seen, policy: &Policy) -> Faults {
    let mut faults = Faults::default();
    let Some(object) = write.reviewed() else {
        if let Some(object) = write.stored() {
            let [spec, status] = ["spec", "status"].map(|part| (&object.data[part], &write.old_data()[part]));
            match parse_spec(spec.0) {
                Ok(parsed) => {
                    // the class of an object decides who may write its address
                    immutable(&parsed, spec.1, &mut faults);
                    if spec.0["healthCheck"] != spec.1["healthCheck"] {
                        refuse_negative_numbers(&parsed, &mut faults);
                    }
                }
                // what could not be read before may still lose its finalizer
                Err(fault) if spec.0 != spec.1 => return fault.into(),
                Err(_) => {}
            }
            if status.0 != status.1
                && let Err(fault) = parse_status(status.0)
            {
                return fault.into();
            }
            admitted_status(write, object, policy, &mut faults);
        }
        return faults;
    };
    let old_spec = &write.old_data()["spec"];
    let spec = match parse_spec(&object.data["spec"]) {
        Ok(spec) => spec,
        Err(fault) => return fault.into(),
    };
    if let Err(fault) = parse_status(&object.data["status"]) {
        return fault.into();
    }
    let changed = |field: &str| object.data["spec"][field] != old_spec[field];
    let is_new = write.old().is_none();
    if spec.workload() == WorkloadType::Vm
        && (is_new || changed("listeners") || changed("healthCheck") || changed("workloadType"))
    {
        let old = Vec::<Listener>::deserialize(&old_spec["listeners"]).unwrap_or_default();
        listeners(&spec.listeners, &old, &mut faults);
        health_check(spec.health_check.as_ref(), &old_spec["healthCheck"], &spec.listeners, &mut faults);
    }
    // the rules for VMs look at the numbers of a check that is made
    let is_made = spec.health_check.as_ref().is_some_and(|check| check.port.unwrap_or(0) != 0);
    if (is_new || changed("healthCheck")) && !(spec.workload() == WorkloadType::Vm && is_made) {
        refuse_negative_numbers(&spec, &mut faults);
    }
    if is_new || changed("backendServerSelector") {
        selector(&spec.backend_server_selector, &old_spec["backendServerSelector"], &mut faults);
    }
    if is_new && spec.workload() == WorkloadType::Vm {
        service_name(&write.name, &mut faults);
    }
    namespace(write, object, &mut faults);
    if !is_new {
        immutable(&spec, old_spec, &mut faults);
    } else if spec.workload() == WorkloadType::Cluster {
        guest_cluster(object, &seen.vms, &mut faults);
    }
    named_pool_scope::judge(write, object, &spec, seen, &mut faults);
    admitted_status(write, object, policy, &mut faults);
    faults
}

fn parse_spec(spec: &Value) -> Result<LoadBalancerSpec, Fault> {
    LoadBalancerSpec::deserialize(spec)
        .map_err(|error| Fault::invalid(format!("it cannot be read: spec: {error}")))
}

fn parse_status(status: &Value) -> Result<Option<LoadBalancerStatus>, Fault> {
    Option::deserialize(status).map_err(|error| Fault::invalid(format!("it cannot be read: status: {error}")))
}

/// The Go programs cannot read a number of a health check that has a sign, and one such object breaks their list of all.
fn refuse_negative_numbers(spec: &LoadBalancerSpec, faults: &mut Faults) {
    let Some(check) = &spec.health_check else { return };
    for (field, number) in [
        ("port", check.port),
        ("successThreshold", check.success_threshold),
        ("failureThreshold", check.failure_threshold),
        ("periodSeconds", check.period_seconds),
        ("timeoutSeconds", check.timeout_seconds),
    ] {
        if let Some(number) = number.filter(|number| *number < 0) {
            faults.add(|| {
                Fault::invalid(format!(
                    "spec.healthCheck.{field} is {number}: write 0 or more, or leave it out"
                ))
            });
        }
    }
}

/// The addresses in the status are the controller's, also while the object is being deleted.
fn admitted_status(write: &Write, object: &DynamicObject, policy: &Policy, faults: &mut Faults) {
    if write.user == policy.status_writer {
        return;
    }
    let admitted = status::of_load_balancer(&object.data, write.old_data());
    let written = &object.data["status"];
    for field in ["allocatedAddress", "address"].into_iter().filter(|field| written[field] != admitted[field])
    {
        faults.add(|| {
            Fault::forbidden(format!(
                "status.{field} is written by {} only: leave it as it is",
                policy.status_writer
            ))
        });
    }
}

/// The Service of a load balancer of VMs has its name.
fn service_name(name: &str, faults: &mut Faults) {
    // a name that the API server makes up is not there yet
    if !name.is_empty() && !dns::is_service_name(name) {
        faults.add(|| {
            Fault::invalid(
                "the name of a load balancer of VMs begins with a letter and has at most 63 characters and no dot, \
                 because its Service gets the same name: choose another",
            )
        });
    }
}

fn listeners(listeners: &[Listener], old: &[Listener], faults: &mut Faults) {
    if listeners.is_empty() {
        faults.add(|| Fault::invalid("the load balancer needs at least one listener"));
    }
    let stood: HashSet<(&str, &str)> = old.iter().map(|old| (&*old.name, &*old.protocol)).collect();
    let mut names = HashSet::new();
    let (mut ports, mut backend_ports) = (HashMap::new(), HashMap::new());
    for Listener { name, port, protocol, backend_port } in listeners {
        for (field, number) in [("port", *port), ("backendPort", *backend_port)] {
            if number > 65_535 {
                faults.add(|| {
                    Fault::invalid(format!(
                        "listener {} has {field} {number}, must be <= 65535",
                        quoted(name)
                    ))
                });
            }
            if number < 1 {
                faults.add(|| {
                    Fault::invalid(format!("listener {} has {field} {number}, must be >= 1", quoted(name)))
                });
            }
        }
        let stood = stood.contains(&(&**name, &**protocol));
        // a Service with one port needs no name for it
        let named = if name.is_empty() {
            listeners.len() == 1 || (stood && old.len() > 1)
        } else {
            stood || dns::is_label(name)
        };
        if !named {
            faults.add(|| {
                Fault::invalid(format!(
                    "listener {} has a name that no port of a Service can have: use at most 63 lowercase letters, digits \
                     and dashes",
                    quoted(name)
                ))
            });
        }
        // the API server takes no protocol for TCP
        if !stood && !["TCP", "UDP", "SCTP", ""].contains(&protocol.as_str()) {
            faults.add(|| {
                Fault::invalid(format!(
                    "listener {} has protocol {}: use TCP or UDP",
                    quoted(name),
                    quoted(protocol)
                ))
            });
        }
        if !names.insert(name) {
            faults.add(|| Fault::invalid(format!("listeners have duplicate name {}", quoted(name))));
        }
        for (field, taken, number) in
            [("port", &mut ports, *port), ("backend port", &mut backend_ports, *backend_port)]
        {
            let first = taken.entry((protocol, number)).or_insert(name);
            // the entry is this listener's own where no earlier one has the port
            if !std::ptr::eq(*first, name) {
                let protocol = quoted(protocol);
                let protocol = protocol.trim_matches('"');
                faults.add(|| {
                    Fault::invalid(format!(
                        "listener {} has duplicate {field} {protocol}:{number} with listener {}",
                        quoted(name),
                        quoted(first)
                    ))
                });
            }
        }
    }
}

fn health_check(check: Option<&HealthCheck>, old: &Value, listeners: &[Listener], faults: &mut Faults) {
    let Some(check) = check else { return };
    let HealthCheck {
        port,
        success_threshold,
        failure_threshold,
        period_seconds,
        timeout_seconds,
        path,
        scheme,
    } = check;
    let port = port.filter(|port| *port != 0);
    match HttpGet::parse(path, scheme) {
        Ok(Some(_)) if port.is_none() => faults.add(|| {
            Fault::invalid(
                "healthyCheck: path has no effect without a port: give the port, or leave the path out",
            )
        }),
        Ok(_) => {}
        Err(several) => {
            for fault in several {
                faults.add(|| Fault::invalid(format!("healthyCheck: {fault}")));
            }
        }
    }
    let Some(port) = port else { return };
    let mut behind = listeners.iter().filter(|listener| i64::from(listener.backend_port) == port).peekable();
    if behind.peek().is_none() {
        faults.add(|| {
            let listed =
                listeners.iter().take(PORTS_LISTED).map(|listener| listener.backend_port.to_string());
            let more = if listeners.len() > PORTS_LISTED { ", …" } else { "" };
            let listed = listed.collect::<Vec<_>>().join(", ");
            Fault::invalid(format!(
                "healthyCheck: port {port} is not in the listener backend port list [{listed}{more}]"
            ))
        });
    } else if !behind.any(|listener| listener.protocol == "TCP") {
        faults.add(|| Fault::invalid(format!("healthyCheck: port {port} can only be a TCP backend port")));
    }
    let parameters = [
        ("SuccessThreshold", "successThreshold", success_threshold, HealthCheck::MOST_IN_A_ROW),
        ("FailureThreshold", "failureThreshold", failure_threshold, HealthCheck::MOST_IN_A_ROW),
        ("PeriodSeconds", "periodSeconds", period_seconds, HealthCheck::LONGEST_SECONDS),
        ("TimeoutSeconds", "timeoutSeconds", timeout_seconds, HealthCheck::LONGEST_SECONDS),
    ];
    let was_made = old["port"].as_i64().is_some_and(|port| port != 0);
    for (name, field, value, most) in parameters {
        let value = value.unwrap_or(0);
        // what the backends are probed by already stays
        if value > most && !(was_made && old[field] == value) {
            faults
                .add(|| Fault::invalid(format!("spec.healthCheck.{field} is {value}: write {most} or less")));
        }
        if value <= 0 {
            faults.add(|| Fault::invalid(format!("healthyCheck: {name} should be > 0, it is {value}")));
        }
    }
}

fn selector(selector: &BTreeMap<String, Vec<String>>, old: &Value, faults: &mut Faults) {
    let keys = selector.len();
    if keys > SELECTOR_KEYS && keys > old.as_object().map_or(0, serde_json::Map::len) {
        faults.add(|| {
            Fault::invalid(format!(
                "backendServerSelector has {keys} keys, at most {SELECTOR_KEYS} are allowed: give the VMs a label of \
                 their own"
            ))
        });
    }
    let count: usize = selector.values().map(Vec::len).sum();
    let stood = || -> usize {
        let lists = old.as_object().into_iter().flat_map(serde_json::Map::values);
        lists.filter_map(Value::as_array).map(Vec::len).sum()
    };
    if count > SELECTOR_VALUES && count > stood() {
        faults.add(|| {
            Fault::invalid(format!(
                "backendServerSelector has {count} values, at most {SELECTOR_VALUES} are allowed under all keys together: \
                 give the VMs a label of their own"
            ))
        });
    }
    for (key, values) in selector {
        if values.is_empty() {
            faults.add(|| {
                Fault::invalid(format!(
                    "backendServerSelector {} has no values: give at least one, or leave the key out",
                    quoted(key)
                ))
            });
        }
        if !is_label_key(key) {
            faults
                .add(|| Fault::invalid(format!("backendServerSelector {} is not a label key", quoted(key))));
        }
        for value in values.iter().filter(|value| !value.is_empty() && !is_label_name(value)) {
            faults.add(|| {
                Fault::invalid(format!(
                    "backendServerSelector {}: {} is not a label value",
                    quoted(key),
                    quoted(value)
                ))
            });
        }
    }
}

/// The namespace by which the controller chooses a pool is the object's own. The mutator writes it over whatever a user
/// wrote, so only a write that bypassed the mutator is refused: its failure policy is Ignore.
fn namespace(write: &Write, object: &DynamicObject, faults: &mut Faults) {
    let written = |object: &DynamicObject| object.annotations().get(annotations::LB_NAMESPACE).cloned();
    let Some(namespace) = written(object).filter(|namespace| !namespace.is_empty()) else { return };
    let stood = write.old().and_then(written).is_some_and(|old| old == namespace);
    if namespace != write.namespace && !stood {
        faults.add(|| {
            Fault::forbidden(format!(
                "annotation {} is {}, but the object is in namespace {}: leave the annotation out",
                annotations::LB_NAMESPACE,
                quoted(&namespace),
                cut(&write.namespace)
            ))
        });
    }
}

/// `[prefix/]name`; the prefix a DNS name of at most 253 characters.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(dns::is_subdomain) && is_label_name(name)
}

/// At most 63 letters, digits, `-`, `_` and `.`, beginning and ending with one of the first two.
fn is_label_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= 63 && ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner)
}

/// `ipam` and `workloadType` stay in their class; absent means pool and vm.
fn immutable(new: &LoadBalancerSpec, old: &Value, faults: &mut Faults) {
    let Ok(old) = LoadBalancerSpec::deserialize(old) else { return };
    let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let mut change = |field: &str, from: Value, to: Value| {
        let fault =
            || Fault::invalid(format!("can't change the {field} from {} to {}", text(from), text(to)));
        faults.add(fault);
    };
    if (old.ipam() == Ipam::Dhcp) != (new.ipam() == Ipam::Dhcp) {
        change("IPAM", json!(old.ipam()), json!(new.ipam()));
    }
    if (old.workload() == WorkloadType::Cluster) != (new.workload() == WorkloadType::Cluster) {
        change("WorkloadType", json!(old.workload()), json!(new.workload()));
    }
}

/// No new load balancer for a guest cluster that is being removed.
fn guest_cluster(object: &DynamicObject, vms: &[Arc<VirtualMachine>], faults: &mut Faults) {
    let cluster = object.labels().get(labels::CLUSTER).map(String::as_str).unwrap_or_default();
    if cluster.is_empty() || cluster == names::DEFAULT_CLUSTER_NAME {
        return;
    }
    let has = |map: &BTreeMap<String, String>, key: &str, value: &str| {
        map.get(key).is_some_and(|found| found == value)
    };
    let going = vms.iter().find(|vm| {
        has(vm.labels(), labels::CREATOR, labels::NODE_DRIVER)
            && has(vm.labels(), labels::GUEST_CLUSTER, cluster)
            && has(vm.annotations(), annotations::REMOVE_ALL_PVCS, "true")
    });
    if let Some(vm) = going {
        let name = format!("{}/{}", vm.namespace().unwrap_or_default(), vm.name_any());
        faults.add(|| {
            Fault::forbidden(format!(
                "guest cluster check: the VM {name} shows that the guest cluster {cluster} is being removed"
            ))
        });
    }
}

/// The operations that complete the object, and restore a status that this user may not change.
///
/// # Errors
/// The reason why the object cannot be completed.
pub(crate) fn mutate(write: &Write, seen: &Seen, policy: &Policy) -> Result<Vec<PatchOperation>, Fault> {
    let Some(object) = write.reviewed() else {
        return Ok(restored_status(write, policy).into_iter().collect());
    };
    let mut entries = vec![(annotations::LB_NAMESPACE, write.namespace.clone())];
    if object.data["spec"]["workloadType"] == "cluster" {
        let Some(namespace) = &seen.namespace else {
            return Err(Fault::invalid(format!("there is no namespace {}", cut(&write.namespace))));
        };
        entries.push((annotations::LB_PROJECT, named_pool_scope::project(namespace)));
        entries.push((annotations::LB_NETWORK, network(object.annotations(), &seen.vmis)));
    } else if let Some(namespace) = seen.namespace.as_ref().filter(|_| policy.enforce_named_pool_scope) {
        // the controller, which may not read Namespaces, asks the named pool by it
        let project = named_pool_scope::project(namespace);
        if *object.annotations().get(annotations::LB_PROJECT).unwrap_or(&String::new()) != project {
            entries.push((annotations::LB_PROJECT, project));
        }
    }
    let mut operations = set_entries(object.metadata.annotations.as_ref(), "annotations", entries);
    operations.extend(health_check_defaults(&object.data["spec"]["healthCheck"]));
    operations.extend(restored_status(write, policy));
    Ok(operations)
}

/// Restores the part of the status that this user may not change.
fn restored_status(write: &Write, policy: &Policy) -> Option<PatchOperation> {
    let object = write.stored().filter(|_| write.user != policy.status_writer)?;
    set_status(&object.data["status"], status::of_load_balancer(&object.data, write.old_data()))
}

/// Harvester's defaults for a health check that leaves values out.
fn health_check_defaults(check: &Value) -> impl Iterator<Item = PatchOperation> {
    let defaults =
        [("successThreshold", 2), ("failureThreshold", 2), ("periodSeconds", 1), ("timeoutSeconds", 1)];
    // the validator refuses a number that does not fit, so it must not be taken for an absent one
    let is_zero = |field: &str| check[field].is_null() || check[field].as_i64() == Some(0);
    let on = !is_zero("port");
    let missing = defaults.into_iter().filter(move |(field, _)| on && is_zero(field));
    missing.map(|(field, default)| set(&["spec", "healthCheck", field], default))
}

/// The network of the guest's nodes: as written, else the management network, else the first network of the VMs
/// that carry the cluster's label, else of VMs of the node driver whose name begins with the cluster's.
fn network(annotations: &BTreeMap<String, String>, vmis: &[Arc<VirtualMachineInstance>]) -> String {
    let annotation = |key: &str| annotations.get(key).filter(|value| !value.is_empty()).cloned();
    let first_network = |selects: &dyn Fn(&VirtualMachineInstance) -> bool| {
        let mut chosen: Vec<_> = vmis.iter().filter(|vmi| selects(vmi)).collect();
        chosen.sort_by_key(|vmi| vmi.name_any());
        chosen.into_iter().find_map(|vmi| {
            let multus = vmi.spec.networks.iter().find_map(|network| network.multus.as_ref())?;
            Some(qualified(&multus.network_name, &vmi.namespace().unwrap_or_default()))
        })
    };
    let of_cluster = |cluster: String| {
        let label = labels::legal(&cluster);
        let labelled = |vmi: &VirtualMachineInstance| vmi.labels().get(labels::GUEST_CLUSTER) == Some(&label);
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

/// Pools compare networks as text, so a bare name gets the namespace of its VM.
fn qualified(network: &str, namespace: &str) -> String {
    if network.contains('/') || network.is_empty() {
        network.to_owned()
    } else {
        format!("{namespace}/{network}")
    }
}

#[cfg(test)]
mod tests;
