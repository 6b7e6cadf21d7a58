//! The processes inside the VMs of the guest cluster: a kubelet each, and the pods of the example.
//!
//! A kubelet registers its Node once, when its VM starts, with the taint that asks for a cloud controller manager;
//! it reports the Node Ready while the VM is up, and it runs every pod that names the Node. The example's pods are
//! made for each Node; DaemonSets and Deployments get theirs in `workloads`. Every pod answers HTTP, whatever its image.

pub(crate) mod controller;
pub(crate) mod heartbeat;
mod workload;
pub(crate) mod workloads;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use ipnet::Ipv4Net;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{host::HOSTNAME, merge_patch, vm::VmState, wire::ipv6};

/// Key of the taint of a Node that no cloud controller manager has seen yet.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Key of the taint by which somebody says that nothing runs on a Node any more.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Version that the simulated kubelets report.
const KUBELET: &str = "v1.33.0-sim";

/// Annotation of a Pod whose volumes are all mounted. The containers of a pod with claims start only then; whoever plays the
/// volume manager of kubelet writes it.
pub const MOUNTED: &str = "sim.harvesterhci.io/volumes-mounted";

/// Pods that run on every Node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub namespace: String,
    /// Its pods are named `<name>-<node>`.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Ports that the container declares.
    pub ports: Vec<u16>,
}

impl Workload {
    /// The example's backend: pods `default/web-<node>` with label `app: web`, port 80 named `http`.
    pub fn web() -> Self {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        Self { namespace: "default".to_owned(), name: "web".to_owned(), labels, ports: vec![80] }
    }
}

/// One write about a Node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeStep {
    Register(Value),
    PatchStatus(Value),
}

/// The step of a Node's kubelet now; `registered` is the instance whose kubelet has registered already.
pub(crate) fn decide_node(
    node: Option<&Node>,
    vm: Option<&VmState>,
    registered: Option<&str>,
    now: &str,
) -> Option<NodeStep> {
    let running = vm.and_then(|vm| vm.running.as_deref());
    match (node, vm, running) {
        // a Node that was deleted comes back only with a kubelet that starts
        (None, Some(vm), Some(instance)) if registered != Some(instance) => Some(NodeStep::Register(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": vm.node, "labels": {
                HOSTNAME: vm.node,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            }},
            "spec": {"taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
        }))),
        (None, ..) => None,
        (Some(node), vm, running) => {
            let ready = running.is_some() && vm.is_some_and(|vm| vm.behaviour.ready);
            let json = serde_json::to_value(node).expect("a Node is JSON");
            merge_patch::needed(&json, node_status(node, ready, now)).map(NodeStep::PatchStatus)
        }
    }
}

/// Conditions that a kubelet reports beside its own state: type, reason and message while all is well.
const WELL: [(&str, &str, &str); 3] = [
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
];

/// The status that a kubelet reports for a Node that has just become ready.
pub fn ready_status(now: &str) -> Value {
    node_status(&Node::default(), true, now)
}

/// Nobody hears of a dead kubelet but through its silence: `Unknown`, as the node controller would write.
fn node_status(node: &Node, ready: bool, now: &str) -> Value {
    let old: Vec<_> = node.status.iter().flat_map(|status| status.conditions.iter().flatten()).collect();
    let condition = |type_: &str, well: &str, reason: &str, message: &str| {
        let (status, reason, message) = if ready {
            (well, reason, message)
        } else {
            ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        };
        let old = old.iter().find(|old| old.type_ == type_);
        let same = old.filter(|old| old.status == status);
        let since = same.and_then(|old| old.last_transition_time.as_ref());
        let heard = if ready { same } else { old }.and_then(|old| old.last_heartbeat_time.as_ref());
        let or_now = |time: Option<&Time>| time.map_or_else(|| json!(now), |time| json!(time));
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": or_now(since), "lastHeartbeatTime": or_now(heard)})
    };
    let others = old.iter().filter(|old| old.type_ != "Ready" && WELL.iter().all(|well| well.0 != old.type_));
    let conditions = WELL
        .iter()
        .map(|(type_, reason, message)| condition(type_, "False", reason, message))
        .chain([condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")])
        .chain(others.map(|old| json!(old)));
    json!({"status": {
        "conditions": conditions.collect::<Vec<_>>(),
        "capacity": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"},
        "nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "sim://1", "kernelVersion": "6.12.0-sim",
            "kubeProxyVersion": "", "kubeletVersion": KUBELET, "machineID": "", "operatingSystem": "linux",
            "osImage": "Simulated Linux 1", "systemUUID": "",
        },
    }})
}

/// The pod of a workload on a Node.
pub(crate) fn pod_of(workload: &Workload, node: &str) -> Value {
    let ports = workload.ports.iter().enumerate().map(|(index, port)| {
        let name = if index == 0 { "http".to_owned() } else { format!("http-{port}") };
        json!({"name": name, "containerPort": port, "protocol": "TCP"})
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("{}-{node}", workload.name), "namespace": workload.namespace,
            "labels": workload.labels},
        "spec": {
            "nodeName": node,
            "containers": [{"name": workload.name, "image": "sim.harvesterhci.io/web:1",
                "ports": ports.collect::<Vec<_>>()}],
            "tolerations": [{"operator": "Exists"}],
        },
    })
}

/// One write about a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodStep {
    PatchStatus(Value),
    /// Its VM is gone for good, or somebody deleted it: the kubelet lets it go.
    Delete,
}

/// The step of the kubelet for a pod on its Node. `vm` is `None` when no VM is behind the Node any more.
pub(crate) fn decide_pod(
    pod: &Pod,
    vm: Option<&VmState>,
    taken: &BTreeSet<Ipv4Addr>,
    network: Ipv4Net,
    now: &str,
) -> Option<PodStep> {
    let Some(vm) = vm.filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
        return Some(PodStep::Delete);
    };
    let Some(address) = pod_address(pod).or_else(|| network.hosts().find(|address| !taken.contains(address)))
    else {
        tracing::warn!(pod = %pod.name_any(), %network, "no address left for a pod");
        return None;
    };
    let ready = has_volumes(pod) && vm.behaviour.ready && vm.backend().is_serving();
    let json = serde_json::to_value(pod).expect("a Pod is JSON");
    merge_patch::needed(&json, pod_status(pod, vm, address, ready, now)).map(PodStep::PatchStatus)
}

/// Whether everything that a pod mounts is there.
fn has_volumes(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    pod.annotations().contains_key(MOUNTED) || volumes.all(|volume| volume.persistent_volume_claim.is_none())
}

/// The address that a pod was given.
pub(crate) fn pod_address(pod: &Pod) -> Option<Ipv4Addr> {
    pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()
}

fn pod_status(pod: &Pod, vm: &VmState, address: Ipv4Addr, ready: bool, now: &str) -> Value {
    let old = pod.status.clone().unwrap_or_default();
    let text = if ready { "True" } else { "False" };
    let condition = |kind: &str, status: &str| {
        let old = old.conditions.iter().flatten().find(|old| old.type_ == kind && old.status == status);
        let since = old.and_then(|old| old.last_transition_time.as_ref());
        json!({"type": kind, "status": status,
            "lastTransitionTime": since.map_or_else(|| json!(now), |since| json!(since))})
    };
    let started = old.start_time.as_ref().map_or_else(|| json!(now), |time| json!(time));
    let runs = has_volumes(pod);
    let state = if runs {
        json!({"running": {"startedAt": started}})
    } else {
        json!({"waiting": {"reason": "ContainerCreating"}})
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| {
        json!({"name": container.name, "image": container.image.clone().unwrap_or_default(), "imageID": "",
            "ready": ready, "started": runs, "restartCount": 0, "state": state})
    });
    json!({"status": {
        "phase": if runs { "Running" } else { "Pending" },
        "hostIP": vm.address,
        "podIP": address,
        "podIPs": [{"ip": address}, {"ip": ipv6(address)}],
        "startTime": started,
        "conditions": [condition("Initialized", "True"), condition("PodScheduled", "True"),
            condition("ContainersReady", text), condition("Ready", text)],
        "containerStatuses": containers.collect::<Vec<_>>(),
    }})
}

/// Whether a pod's Ready condition holds.
pub fn pod_is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::settings::{Backend, Behaviour};

    const NOW: &str = "2026-11-21T12:00:00Z";

    pub(super) fn vm(running: bool, backend: Backend, ready: bool) -> VmState {
        VmState {
            namespace: "shop".to_owned(),
            name: "guest-1".to_owned(),
            address: Ipv4Addr::new(198, 18, 7, 11),
            node: "guest-1".to_owned(),
            behaviour: Behaviour { backend, ready, ..Behaviour::default() },
            cluster: Some("demo".to_owned()),
            running: running.then(|| "uid-1".to_owned()),
        }
    }

    fn read<K: serde::de::DeserializeOwned>(json: Value) -> K {
        serde_json::from_value(json).unwrap()
    }

    fn ready_of(patch: &Value) -> &str {
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].as_str().unwrap()
    }

    #[test]
    fn a_kubelet_registers_with_the_taint_once_and_again_only_when_its_vm_started_again() {
        let vm = vm(true, Backend::Ok, true);
        let Some(NodeStep::Register(node)) = decide_node(None, Some(&vm), None, NOW) else { panic!() };
        assert_eq!(node["spec"]["taints"][0]["key"], UNINITIALIZED);
        assert_eq!(decide_node(None, Some(&vm), Some("uid-1"), NOW), None, "somebody deleted the Node");
        assert!(decide_node(None, Some(&vm), Some("uid-0"), NOW).is_some());
    }

    #[rstest]
    #[case::up(Some(vm(true, Backend::Ok, true)), "True")]
    #[case::its_server_stopped(Some(vm(true, Backend::Stopped, true)), "True")]
    #[case::not_ready(Some(vm(true, Backend::Ok, false)), "Unknown")]
    #[case::halted(Some(vm(false, Backend::Ok, true)), "Unknown")]
    #[case::gone(None, "Unknown")]
    fn a_node_is_ready_while_its_kubelet_is_there(#[case] vm: Option<VmState>, #[case] expected: &str) {
        let mut json = json!({"metadata": {"name": "guest-1"}});
        let node: Node = read(json.clone());
        let Some(NodeStep::PatchStatus(patch)) = decide_node(Some(&node), vm.as_ref(), None, NOW) else {
            panic!()
        };
        assert_eq!(ready_of(&patch), expected);
        json_patch::merge(&mut json, &patch);
        let later = "2026-11-21T13:00:00Z";
        assert_eq!(decide_node(Some(&read(json)), vm.as_ref(), None, later), None, "nothing moves");
    }

    #[rstest]
    #[case::serving(vm(true, Backend::Ok, true), "True")]
    #[case::slow(vm(true, Backend::Slow(std::time::Duration::from_secs(2)), true), "True")]
    #[case::stopped(vm(true, Backend::Stopped, true), "False")]
    #[case::refusing(vm(true, Backend::Refusing, true), "False")]
    #[case::halted(vm(false, Backend::Ok, true), "False")]
    #[case::not_ready(vm(true, Backend::Ok, false), "False")]
    fn a_pod_is_ready_while_its_backend_serves(#[case] vm: VmState, #[case] expected: &str) {
        let mut json = pod_of(&Workload::web(), "guest-1");
        let taken = BTreeSet::from([Ipv4Addr::new(198, 18, 7, 129)]);
        let network = "198.18.7.128/25".parse().unwrap();
        let decide = |json: &Value, now| decide_pod(&read(json.clone()), Some(&vm), &taken, network, now);
        let Some(PodStep::PatchStatus(patch)) = decide(&json, NOW) else { panic!() };
        assert_eq!(ready_of(&patch), expected);
        assert_eq!(patch["status"]["podIP"], "198.18.7.130");
        json_patch::merge(&mut json, &patch);
        assert_eq!(decide(&json, "2026-11-21T13:00:00Z"), None, "nothing moves");
    }

    #[test]
    fn a_pod_with_a_claim_starts_when_its_volumes_are_mounted() {
        let mut json = pod_of(&Workload::web(), "guest-1");
        json["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        let (taken, network) = (BTreeSet::new(), "198.18.7.128/25".parse().unwrap());
        let vm = vm(true, Backend::Ok, true);
        let state = |json: &Value| {
            let Some(PodStep::PatchStatus(patch)) =
                decide_pod(&read(json.clone()), Some(&vm), &taken, network, NOW)
            else {
                panic!()
            };
            (patch["status"]["phase"].clone(), ready_of(&patch).to_owned())
        };
        assert_eq!(state(&json), (json!("Pending"), "False".to_owned()));
        json["metadata"]["annotations"] = json!({MOUNTED: "true"});
        assert_eq!(state(&json), (json!("Running"), "True".to_owned()));
    }

    #[test]
    fn pods_go_with_their_vm_and_when_somebody_deletes_them() {
        let mut json = pod_of(&Workload::web(), "guest-1");
        let (taken, network) = (BTreeSet::new(), "198.18.7.128/25".parse().unwrap());
        assert_eq!(decide_pod(&read(json.clone()), None, &taken, network, NOW), Some(PodStep::Delete));
        json["metadata"]["deletionTimestamp"] = NOW.into();
        let vm = vm(true, Backend::Ok, true);
        assert_eq!(decide_pod(&read(json), Some(&vm), &taken, network, NOW), Some(PodStep::Delete));
    }
}
