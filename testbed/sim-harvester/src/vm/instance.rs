//! The JSON of an instance, from its creation to its end.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use kube::ResourceExt;
use serde_json::{Map, Value, json};

use harvester_api::{kubevirt::MigrationState, labels};

use super::{Instance, Vm};
use crate::{
    host::Host,
    settings::{self, Behaviour, Unknown},
};

/// KubeVirt's label with the host's name.
const NODE_LABEL: &str = "kubevirt.io/nodeName";

/// A new instance of `vm`, not placed yet. It gets the labels of the VM's template, and, where the template is
/// silent, those of the VM: people often write them only once.
pub(super) fn pending(vm: &Vm) -> Value {
    let template = vm.spec.rest.get("template").cloned().unwrap_or_default();
    let mut labels = json!(vm.labels());
    labels[labels::VM_NAME] = vm.name_any().into();
    json_patch::merge(&mut labels, &object(&template["metadata"]["labels"]));
    let mut spec = object(&template["spec"]);
    if spec["networks"].as_array().is_none_or(Vec::is_empty) {
        spec["networks"] = json!([{"name": "default", "pod": {}}]);
    }
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": vm.name_any(),
            "namespace": vm.namespace(),
            "labels": labels,
            "annotations": object(&template["metadata"]["annotations"]),
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm.name_any(),
                "uid": vm.uid(), "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    })
}

fn object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { json!({}) }
}

/// How the VM behaves, by the annotations of instance and VM and by the VM's labels, and those that say nothing that
/// we know.
pub(super) fn behaviour(vm: &Vm, instance: Option<&Instance>) -> (Behaviour, Vec<Unknown>) {
    let of_vm = [vm.annotations(), vm.labels()];
    let layers: Vec<_> = instance.iter().map(|instance| instance.annotations()).chain(of_vm).collect();
    let (behaviour, mut unknown) = Behaviour::read(&layers);
    unknown.extend(settings::further_addresses(vm.annotations()).err());
    (behaviour, unknown)
}

/// The merge patch that makes of `instance` one that runs on `host`.
pub(super) fn running(
    vm: &Vm,
    instance: &Instance,
    host: &Host,
    address: Ipv4Addr,
    vips: &[(Option<String>, IpAddr)],
) -> Value {
    let (behaviour, _) = behaviour(vm, Some(instance));
    let further = settings::further_addresses(vm.annotations()).unwrap_or_default();
    let mut patch = json!({
        "metadata": {"labels": {NODE_LABEL: host.name}},
        "status": {
            "phase": "Running",
            "nodeName": host.name,
            "interfaces": interfaces(instance, address, behaviour, &further, vips),
            "conditions": conditions(behaviour),
            "guestOSInfo": if behaviour.agent_answers { guest_os() } else { Value::Null },
        },
    });
    let topology = topology(instance, host);
    // an API server drops empty ones, and the patch would be needed for ever
    if topology.as_object().is_some_and(|annotations| !annotations.is_empty()) {
        patch["metadata"]["annotations"] = topology;
    }
    patch
}

/// Harvester copies the host's labels to the instances of the node driver, and takes away what the host has not.
pub(super) fn topology(instance: &Instance, host: &Host) -> Value {
    let driver = instance.labels().get(labels::CREATOR).is_some_and(|creator| creator == labels::NODE_DRIVER);
    let annotations = host.topology().into_iter().filter(|_| driver);
    annotations.map(|(key, value)| (key.to_owned(), json!(value))).collect::<Map<_, _>>().into()
}

/// The guest agent's report about the operating system.
pub(crate) fn guest_os() -> Value {
    json!({"id": "sim", "name": "Simulated Linux", "prettyName": "Simulated Linux 1", "version": "1",
        "kernelRelease": "6.12.0-sim", "machine": "x86_64"})
}

/// The first network carries the VM's address, and each those that an annotation gives it. Without the agent nobody knows
/// addresses behind a bridge, nor the names of interfaces. With it everything on an interface is reported: what kube-vip
/// put there too, on the interface that the Service asks for, else on the first one.
fn interfaces(
    instance: &Instance,
    address: Ipv4Addr,
    behaviour: Behaviour,
    further: &BTreeMap<String, Vec<IpAddr>>,
    vips: &[(Option<String>, IpAddr)],
) -> Value {
    let [.., c, d] = address.octets();
    let given_mac = |name: &str| {
        let devices = instance.spec.rest.get("domain").map(|domain| &domain["devices"]["interfaces"]);
        let device = devices.and_then(Value::as_array)?.iter().find(|device| device["name"] == name)?;
        Some(device["macAddress"].as_str()?.to_owned())
    };
    let networks = instance.spec.networks.iter().enumerate();
    let status = networks.map(|(index, network)| {
        let mac = given_mac(&network.name).unwrap_or_else(|| format!("52:54:00:{c:02x}:{d:02x}:{index:02x}"));
        let mut status = json!({"name": network.name, "mac": mac, "infoSource": "domain", "queueCount": 1});
        let mut source = vec!["domain"];
        let mut addresses = Vec::new();
        if index == 0 && (behaviour.agent_answers || network.pod.is_some()) {
            addresses.push(IpAddr::V4(address));
        }
        if behaviour.agent_answers {
            source.push("guest-agent");
            let name = interface_name(index);
            let is_here = |wish: &Option<String>| match wish.as_deref().filter(|wish| !wish.is_empty()) {
                None => index == 0,
                Some(wish) => wish == name,
            };
            addresses.extend(further.get(&network.name).into_iter().flatten());
            addresses.extend(vips.iter().filter(|(wish, _)| is_here(wish)).map(|(_, ip)| *ip));
            status["interfaceName"] = name.into();
        }
        if network.pod.is_none() {
            source.push("multus-status");
        }
        status["infoSource"] = source.join(", ").into();
        if let Some(first) = addresses.first() {
            status["ipAddress"] = first.to_string().into();
            status["ipAddresses"] = json!(addresses);
        }
        status
    });
    status.collect::<Vec<_>>().into()
}

/// The guest's name of its interface on the network with this place in the list.
fn interface_name(index: usize) -> String {
    format!("enp{}s0", index + 1)
}

fn conditions(behaviour: Behaviour) -> Value {
    let condition =
        |kind: &str, holds: bool| json!({"type": kind, "status": if holds { "True" } else { "False" }});
    let mut conditions = vec![condition("Ready", behaviour.ready), condition("LiveMigratable", true)];
    if behaviour.agent_answers {
        conditions.push(condition("AgentConnected", true));
    }
    conditions.into()
}

pub(super) fn is_ready(instance: &Instance) -> bool {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|condition| condition.r#type == "Ready" && condition.status == "True")
}

pub(super) fn is_running(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| status.phase == "Running")
}

/// The merge patch of an instance whose host is lost.
pub(super) fn given_up() -> Value {
    json!({"status": {"phase": "Failed", "reason": "NodeUnresponsive",
        "conditions": [{"type": "Ready", "status": "False"}]}})
}

pub(super) fn has_failed(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| status.phase == "Failed")
}

/// Whether it has a host.
pub(super) fn is_placed(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| !status.node_name.is_empty())
}

/// The conditions that KubeVirt copies to the VM: what is wrong.
pub(super) fn complaints(instance: &Instance) -> Vec<Value> {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|condition| matches!(condition.r#type.as_str(), "Synchronized" | "PodScheduled"))
        .filter(|condition| condition.status == "False")
        .map(|condition| json!(condition))
        .collect()
}

/// By the words that KubeVirt itself goes by.
pub(super) fn migrating(instance: &Instance) -> bool {
    let state = instance.status.as_ref().and_then(|status| status.migration_state.as_ref());
    let says = |state: &MigrationState, key: &str| state.rest.get(key).is_some_and(|it| !it.is_null());
    state.is_some_and(|state| {
        says(state, "startTimestamp") && !state.completed && !says(state, "endTimestamp")
    })
}

pub(super) fn node_selector(instance: &Instance) -> BTreeMap<String, String> {
    let selector = instance.spec.rest.get("nodeSelector").cloned().unwrap_or_default();
    serde_json::from_value(selector).unwrap_or_default()
}
