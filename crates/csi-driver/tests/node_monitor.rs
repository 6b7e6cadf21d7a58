//! The node monitor with the rights that the driver has in both clusters: taints of Nodes whose machines are lost, and
//! labels of volumes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use csi_driver::{
    host::{Host, kinds::NetworkFilesystem},
    leading::Leading,
    lease::NODE_MONITOR,
    node_id::OwnMachine,
    node_monitor::{NodeMonitor, decide::OUT_OF_SERVICE},
};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations, labels, names::CSI_DRIVER};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim},
};
use program::{Clock, TaskGroup};
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};
use test_cluster::{Class, TestCluster, User, component_tests};
use tokio::sync::watch;

const VOLUME: &str = "pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11";

const NODES: &str = "
apiVersion: v1
kind: Node
metadata: {name: server-1, labels: {node-role.kubernetes.io/control-plane: ''}}
---
apiVersion: v1
kind: Node
metadata: {name: worker-1}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: server-1}
spec: {drivers: [{name: driver.harvesterhci.io, nodeID: vm-0, topologyKeys: null}]}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: worker-1}
spec: {drivers: [{name: driver.harvesterhci.io, nodeID: vm-1, topologyKeys: null}]}
";

/// A machine that runs.
fn machine(name: &str) -> String {
    format!(
        "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}, namespace: team-a, labels: {{guestcluster.harvesterhci.io/name: demo}}}}
spec: {{runStrategy: Always, template: {{spec: {{domain: {{devices: {{}}}}}}}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}, namespace: team-a}}
spec: {{domain: {{devices: {{}}}}}}
status: {{phase: Running, nodeName: host-1}}
"
    )
}

/// A monitor beside the machine vm-0, which is Node `node`.
fn monitor(cluster: &TestCluster, node: &str, identity: &str) -> (NodeMonitor, impl Drop) {
    let host = Host::new(cluster.harvester.client(User::CsiDriver), "team-a");
    let ((reached, host), (named, machine)) =
        (watch::channel(Ok(host)), watch::channel(OwnMachine::Confirmed("vm-0".to_owned())));
    let monitor = NodeMonitor {
        guest: cluster.guest.client(User::CsiDriver),
        host,
        node: node.to_owned(),
        machine,
        identity: identity.to_owned(),
        clock: Clock::starting_at(cluster.start()),
        leading: Leading::default(),
    };
    (monitor, Kept(reached, named))
}

struct Kept(watch::Sender<csi_driver::host::reach::Reached>, watch::Sender<OwnMachine>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.send_modify(|_| ());
        self.1.send_modify(|_| ());
    }
}

/// Two Nodes that are ready, and a monitor that leads.
async fn start(cluster: &TestCluster) -> (TaskGroup, impl Drop) {
    cluster.harvester.apply(&machine("vm-0")).await;
    cluster.harvester.apply(&machine("vm-1")).await;
    cluster.guest.apply(NODES).await;
    ready(cluster, "server-1", "True").await;
    ready(cluster, "worker-1", "True").await;
    let (tasks, (monitor, kept)) = (TaskGroup::new(), monitor(cluster, "server-1", "pod-0"));
    tasks.spawn(monitor.run(tasks.clone()));
    cluster.settle().await;
    (tasks, kept)
}

async fn ready(cluster: &TestCluster, node: &str, status: &str) {
    // each change has a time of its own, as kubelet and the node controller write it
    let before: Node = cluster.guest.get(node).await.unwrap();
    let turns = before
        .status
        .and_then(|status| status.conditions)
        .map_or(0, |all| all[0].message.clone().map_or(0, |text| text.len()));
    let condition = json!({"type": "Ready", "status": status, "reason": "", "message": "x".repeat(turns + 1),
        "lastTransitionTime": format!("2026-01-01T00:00:{:02}Z", turns + 1)});
    cluster.guest.patch_status::<Node>(node, json!({"status": {"conditions": [condition]}})).await;
}

async fn taint(cluster: &TestCluster, node: &str) -> Option<String> {
    let node: Node = cluster.guest.get(node).await.unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.into_iter().find(|taint| taint.key == OUT_OF_SERVICE).map(|taint| taint.value.unwrap_or_default())
}

/// The reasons and messages of all Events.
async fn told(cluster: &TestCluster) -> Vec<(String, String)> {
    let events = cluster.guest.list::<Event>().await;
    events.into_iter().map(|event| (event.reason.unwrap(), event.message.unwrap())).collect()
}

async fn seconds(cluster: &TestCluster, seconds: u64) {
    cluster.advance(Duration::from_secs(seconds)).await;
}

fn refuse(user: &str, verb: Option<&str>, resource: &str) -> Rule {
    let mut rule = Rule::new(Answer::Code(403));
    rule.user = Some(user.to_owned());
    rule.verb = verb.map(str::to_owned);
    rule.resource = Some(resource.to_owned());
    rule
}

fn volume(policy: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: data}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: {policy}
  csi: {{driver: driver.harvesterhci.io, volumeHandle: {VOLUME}}}
"
    )
}

fn claim() -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {VOLUME}, namespace: team-a}}
spec: {{accessModes: [ReadWriteMany], resources: {{requests: {{storage: 1Gi}}}}}}
"
    )
}

/// A claim of the namespace that says that it is in a machine.
async fn annotated(cluster: &TestCluster, volume: &str, machine: &str, uid: &str) {
    cluster.harvester.apply(&claim().replace(VOLUME, volume)).await;
    let text = json!({"vm": machine, "vmUid": uid, "op": "attach"}).to_string();
    let patch = json!({"metadata": {"annotations": {annotations::CSI_ATTACH: text}}});
    cluster.harvester.patch::<PersistentVolumeClaim>(&format!("team-a/{volume}"), patch).await;
}

async fn label(cluster: &TestCluster) -> Option<String> {
    let key = format!("team-a/{VOLUME}");
    let claim: PersistentVolumeClaim = cluster.harvester.get(&key).await.unwrap();
    claim.metadata.labels.and_then(|all| all.get(labels::GUEST_CLUSTER).cloned())
}

component_tests! {
    // docs/contract/csi-driver.md#node-lost
    #[simulated_only("a minute")]
    async fn the_node_of_a_stopped_machine_is_out_of_service_after_a_minute_and_until_it_is_ready(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        ready(&cluster, "worker-1", "Unknown").await;
        seconds(&cluster, 300).await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        seconds(&cluster, 59).await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        seconds(&cluster, 2).await;
        assert_eq!(taint(&cluster, "worker-1").await.as_deref(), Some(CSI_DRIVER));
        assert_eq!(taint(&cluster, "server-1").await, None);
        cluster.harvester.apply(&machine("vm-1")).await;
        seconds(&cluster, 300).await;
        assert!(taint(&cluster, "worker-1").await.is_some());
        ready(&cluster, "worker-1", "True").await;
        cluster.settle().await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        let mut reasons: Vec<_> = told(&cluster).await.into_iter().map(|(reason, _)| reason).collect();
        reasons.sort();
        assert_eq!(reasons, ["NodeInService", "NodeOutOfService"]);
        tasks.end().await;
    }

    async fn a_ready_node_that_somebody_else_has_tainted_is_told_and_stays_tainted(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        let taints = json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
        cluster.guest.patch::<Node>("worker-1", json!({"spec": {"taints": taints}})).await;
        ready(&cluster, "worker-1", "True").await;
        cluster.settle().await;
        let reasons: Vec<_> = told(&cluster).await.into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(reasons, ["NodeStaysOutOfService"]);
        assert_eq!(taint(&cluster, "worker-1").await.as_deref(), Some("nodeshutdown"));
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#node-lost
    #[simulated_only("a minute")]
    async fn the_node_of_a_deleted_machine_is_out_of_service_too(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.harvester.delete::<VirtualMachine>("team-a/vm-1").await;
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        ready(&cluster, "worker-1", "Unknown").await;
        seconds(&cluster, 61).await;
        assert!(taint(&cluster, "worker-1").await.is_some());
        let (reason, message) = told(&cluster).await.pop().unwrap();
        assert_eq!(reason, "NodeOutOfService");
        assert!(message.contains("VirtualMachine team-a/vm-1 on the host is gone"), "{message}");
        tasks.end().await;
    }

    // the registrar takes the driver out of the CSINode when its Pod ends, and a cluster without our cloud controller
    // manager has no provider IDs
    #[simulated_only("a minute")]
    async fn a_stopped_machine_of_another_cluster_with_the_nodes_name_taints_nothing(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        for (name, of) in [("lonely", "staging"), ("beside", "demo")] {
            let machine = machine(name).replace("demo", of);
            let vm = machine.split("---").next().unwrap();
            cluster.harvester.apply(vm).await;
            cluster.guest.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}")).await;
            ready(&cluster, name, "Unknown").await;
        }
        seconds(&cluster, 300).await;
        assert_eq!(taint(&cluster, "lonely").await, None);
        assert!(taint(&cluster, "beside").await.is_some(), "the label of the cluster proves it");
        let said = told(&cluster).await;
        let unknown: Vec<_> = said.iter().filter(|(reason, _)| reason == "MachineUnknown").collect();
        assert!(matches!(unknown[..], [(_, said)] if said.contains("has the Node's name, and nothing proves")), "{said:?}");
        tasks.end().await;
    }

    // anybody may annotate a claim of his own, and another cluster's annotations are true
    #[simulated_only("a minute")]
    async fn a_volume_of_another_cluster_in_a_machine_of_the_nodes_name_proves_nothing(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.guest.apply(&volume("Retain")).await;
        for (name, volume) in [("lonely", "pvc-of-another"), ("former", VOLUME), ("gone", "pvc-forged")] {
            let machine = machine(name).replace("demo", "staging");
            cluster.harvester.apply(machine.split("---").next().unwrap()).await;
            let vm: VirtualMachine = cluster.harvester.get(&format!("team-a/{name}")).await.unwrap();
            // our volume was in a machine of that name, which is not the one of now
            let uid = if name == "former" { "uid-former".to_owned() } else { vm.metadata.uid.unwrap() };
            annotated(&cluster, volume, name, &uid).await;
            cluster.guest.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}")).await;
        }
        cluster.harvester.delete::<VirtualMachine>("team-a/gone").await;
        for name in ["lonely", "former", "gone"] {
            ready(&cluster, name, "Unknown").await;
        }
        seconds(&cluster, 300).await;
        for name in ["lonely", "former", "gone"] {
            assert_eq!(taint(&cluster, name).await, None, "{name}");
        }
        tasks.end().await;
    }

    #[simulated_only("a minute")]
    async fn a_volume_of_this_cluster_proves_whose_the_machine_is_that_it_is_in(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        let vm = machine("lonely").replace("demo", "kubernetes");
        cluster.harvester.apply(vm.split("---").next().unwrap()).await;
        let vm: VirtualMachine = cluster.harvester.get("team-a/lonely").await.unwrap();
        cluster.guest.apply(&volume("Retain")).await;
        annotated(&cluster, VOLUME, "lonely", &vm.metadata.uid.unwrap()).await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: lonely}}").await;
        ready(&cluster, "lonely", "Unknown").await;
        seconds(&cluster, 61).await;
        assert!(taint(&cluster, "lonely").await.is_some());
        tasks.end().await;
    }

    #[simulated_only("a minute")]
    async fn the_deletion_of_another_clusters_machine_with_the_nodes_name_taints_nothing(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        for (name, of) in [("lonely", "staging"), ("unnamed", "kubernetes"), ("own", "demo")] {
            cluster.harvester.apply(machine(name).replace("demo", of).split("---").next().unwrap()).await;
            cluster.guest.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}")).await;
            cluster.settle().await;
            cluster.harvester.delete::<VirtualMachine>(&format!("team-a/{name}")).await;
            ready(&cluster, name, "Unknown").await;
        }
        seconds(&cluster, 300).await;
        for name in ["lonely", "unnamed"] {
            assert_eq!(taint(&cluster, name).await, None, "{name}");
        }
        assert!(taint(&cluster, "own").await.is_some(), "the label of the cluster proves it");
        tasks.end().await;
    }

    // each kubelet writes its own CSINode
    #[simulated_only("a minute")]
    async fn a_node_id_that_no_machine_can_have_is_no_part_of_a_request(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.guest.apply(&NODES.replace("nodeID: vm-1", "nodeID: 'vm-1?watch=1'")).await;
        ready(&cluster, "worker-1", "Unknown").await;
        let provider = json!({"spec": {"providerID": "harvester://vm-1"}});
        cluster.guest.patch::<Node>("worker-1", provider).await;
        seconds(&cluster, 300).await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        let (_, message) = told(&cluster).await.pop().unwrap();
        assert!(message.contains("it names no machine"), "{message}");
        tasks.end().await;
    }

    #[simulated_only("a minute")]
    async fn a_node_that_is_ready_in_between_and_a_machine_that_runs_in_between_begin_anew(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        for status in ["Unknown", "True", "Unknown"] {
            ready(&cluster, "worker-1", status).await;
            seconds(&cluster, 50).await;
        }
        assert_eq!(taint(&cluster, "worker-1").await, None);
        cluster.harvester.delete::<VirtualMachine>("team-a/vm-1").await;
        cluster.harvester.apply(&machine("vm-1")).await;
        cluster.settle().await;
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        seconds(&cluster, 50).await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#node-lost
    #[simulated_only("a minute")]
    async fn a_host_that_does_not_answer_proves_nothing(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        let faults = cluster.harvester.simulated().unwrap().faults();
        let account = cluster.guest_cluster().csi_account();
        for resource in ["virtualmachines", "virtualmachineinstances"] {
            faults.add(refuse(&account, None, resource));
        }
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        ready(&cluster, "worker-1", "Unknown").await;
        seconds(&cluster, 600).await;
        assert_eq!(taint(&cluster, "worker-1").await, None);
        faults.clear();
        seconds(&cluster, 120).await;
        assert!(taint(&cluster, "worker-1").await.is_some());
        tasks.end().await;
    }

    #[simulated_only("a minute")]
    async fn a_missing_right_is_told_and_the_taint_comes_within_a_minute_of_the_grant(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        let faults = cluster.guest.simulated().unwrap().faults();
        faults.add(refuse("harvester-csi-driver", Some("update"), "nodes"));
        faults.add(refuse("harvester-csi-driver", None, "selfsubjectaccessreviews"));
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        ready(&cluster, "worker-1", "Unknown").await;
        seconds(&cluster, 300).await;
        let events = told(&cluster).await;
        assert_eq!(events.len(), 1, "{events:?}");
        let (reason, message) = &events[0];
        assert_eq!(reason, "TaintRefused");
        assert!(message.contains("update nodes") && message.contains("ClusterRole harvester-csi-driver"), "{message}");
        faults.clear();
        seconds(&cluster, 60).await;
        assert!(taint(&cluster, "worker-1").await.is_some());
        tasks.end().await;
    }

    #[simulated_only("hours")]
    async fn nodes_that_are_ready_cost_no_requests_but_those_for_the_lease(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        seconds(&cluster, 240).await;
        let work = |requests: Vec<test_cluster::Request>| {
            requests.into_iter().filter(|one| one.class() == Class::Work).collect::<Vec<_>>()
        };
        assert_eq!(work(cluster.guest.work_of(User::CsiDriver)), []);
        assert_eq!(work(cluster.harvester.work_of(User::CsiDriver)), []);
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#exits
    #[simulated_only("the Lease of others ends after 45 s")]
    async fn a_process_that_loses_the_lease_is_a_candidate_again(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        let key = format!("kube-system/{NODE_MONITOR}");
        let holder = async || {
            let lease: Lease = cluster.guest.get(&key).await.unwrap();
            lease.spec.unwrap().holder_identity.unwrap_or_default()
        };
        assert_eq!(holder().await, "pod-0");
        cluster.guest.patch::<Lease>(&key, json!({"spec": {"holderIdentity": "the Go program"}})).await;
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/vm-1").await;
        ready(&cluster, "worker-1", "Unknown").await;
        seconds(&cluster, 40).await;
        assert_eq!((holder().await.as_str(), taint(&cluster, "worker-1").await), ("the Go program", None));
        seconds(&cluster, 180).await;
        assert_eq!(holder().await, "pod-0");
        assert!(taint(&cluster, "worker-1").await.is_some());
        tasks.end().await;
        assert_eq!(holder().await, "");
    }

    async fn a_node_outside_of_the_control_plane_is_no_candidate(cluster: TestCluster) {
        cluster.guest.apply(NODES).await;
        let (tasks, (monitor, _kept)) = (TaskGroup::new(), monitor(&cluster, "worker-1", "pod-1"));
        tasks.spawn(monitor.run(tasks.clone()));
        cluster.settle().await;
        assert!(cluster.guest.get::<Lease>(&format!("kube-system/{NODE_MONITOR}")).await.is_none());
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#cluster-label
    #[each_role]
    async fn a_volume_has_the_label_of_its_cluster_until_it_is_to_be_retained(cluster: TestCluster) {
        let (tasks, _kept) = start(&cluster).await;
        cluster.harvester.apply(&claim()).await;
        cluster.guest.apply(&volume("Delete")).await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await.as_deref(), Some("demo"));
        let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        cluster.guest.patch::<PersistentVolume>("data", retain).await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await, None);
        let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        cluster.guest.patch::<PersistentVolume>("data", delete).await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await.as_deref(), Some("demo"));
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#cluster-label
    async fn a_claim_that_a_machine_of_another_cluster_has_never_gets_our_label(cluster: TestCluster) {
        let theirs = machine("shop-0").replace("name: demo", "name: shop");
        cluster.harvester.apply(&theirs).await;
        // as the Go driver has it there
        let template = json!({"spec": {"template": {"spec": {"domain": {"devices": {"disks": [{"name": VOLUME, "disk": {}}]}},
            "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME, "hotpluggable": true}}]}}}});
        cluster.harvester.patch::<VirtualMachine>("team-a/shop-0", template).await;
        cluster.harvester.apply(&claim()).await;
        let (tasks, _kept) = start(&cluster).await;
        cluster.guest.apply(&volume("Delete")).await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await, None);
        // and on its way there by the annotation alone
        let bare = json!({"spec": {"template": {"spec": {"domain": {"devices": {"disks": null}}, "volumes": null}}}});
        cluster.harvester.patch::<VirtualMachine>("team-a/shop-0", bare).await;
        annotated(&cluster, VOLUME, "shop-0", "uid-0").await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await, None);
        tasks.end().await;
    }

    // docs/contract/csi-driver.md#cluster-label
    async fn a_claim_whose_export_another_cluster_has_on_never_gets_our_label(cluster: TestCluster) {
        cluster.harvester.apply(&machine("shop-0").replace("name: demo", "name: shop")).await;
        cluster.harvester.apply(&claim()).await;
        let key = format!("team-a/{VOLUME}");
        cluster.harvester.patch::<PersistentVolumeClaim>(&key, json!({"spec": {"volumeName": "pv-1"}})).await;
        let bound = json!({"status": {"phase": "Bound"}});
        cluster.harvester.patch_status::<PersistentVolumeClaim>(&key, bound).await;
        let export = |on_for: serde_json::Value| {
            json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "NetworkFilesystem",
                "metadata": {"name": "pv-1", "namespace": "harvester-system",
                    "annotations": {annotations::CSI_EXPORT_ON_FOR: on_for}},
                "spec": {"desiredState": "Enabled", "networkFSName": "pv-1", "provisioner": "", "preferredNodes": null}})
        };
        cluster.harvester.apply(&export(json!("shop")).to_string()).await;
        let (tasks, _kept) = start(&cluster).await;
        cluster.guest.apply(&volume("Delete")).await;
        cluster.settle().await;
        assert_eq!(label(&cluster).await, None);
        for (on_for, expected) in [(json!(null), None), (json!("demo,shop"), None), (json!("demo"), Some("demo"))] {
            let annotation = json!({"metadata": {"annotations": {annotations::CSI_EXPORT_ON_FOR: on_for}}});
            cluster.harvester.patch::<NetworkFilesystem>("harvester-system/pv-1", annotation).await;
            // its claim changes
            let again = json!({"metadata": {"annotations": {"changed": on_for.to_string()}}});
            cluster.harvester.patch::<PersistentVolumeClaim>(&key, again).await;
            cluster.settle().await;
            assert_eq!(label(&cluster).await.as_deref(), expected, "{on_for}");
        }
        tasks.end().await;
    }
}
