//! Nodes and their VMs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloud_provider::waits_for_cloud;
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Event, Node};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::harness::{Ccm, asked, interposed, join, limited, until};

async fn node(cluster: &TestCluster, name: &str) -> Node {
    cluster.guest.get::<Node>(name).await.expect("the Node is there")
}

fn zone(node: &Node) -> Vec<&str> {
    let labels = node.metadata.labels.as_ref();
    let keys = [
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/region",
    ];
    keys.iter().map(|key| labels.and_then(|labels| labels.get(*key)).map_or("", String::as_str)).collect()
}

/// As Harvester does when a VM has arrived on another host; until the Node has followed.
async fn migrate(cluster: &TestCluster, vm: &str, follower: &str, to: &str) {
    let key = format!("{}/{vm}", cluster.guest_cluster().vm_namespace);
    let moved = json!({"metadata": {"annotations": {"topology.kubernetes.io/zone": to}},
        "status": {"migrationState": {"completed": true}}});
    cluster.harvester.patch::<VirtualMachineInstance>(&key, moved).await;
    until(cluster, "the Node follows", async || zone(&node(cluster, follower).await)[0] == to).await;
}

test_cluster::component_tests! {
    async fn a_node_is_initialised_from_its_vm(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        let node = node(&cluster, "worker-1").await;
        let spec = node.spec.clone().unwrap();
        let taints = spec.taints.unwrap_or_default();
        assert!(taints.iter().all(|taint| taint.key != "node.cloudprovider.kubernetes.io/uninitialized"), "{taints:?}");
        assert!(spec.provider_id.unwrap().starts_with("harvester://"));
        assert_eq!(zone(&node), ["zone-a", "zone-a", "region-1", "region-1"]);
        let addresses = node.status.unwrap().addresses.unwrap();
        assert!(addresses.iter().any(|it| it.type_ == "InternalIP" && it.address == "198.18.0.5"), "{addresses:?}");
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#V3: six requests and a taint in the Go program.
    async fn labels_follow_a_migration_by_one_patch(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        cluster.guest.forget_requests();
        migrate(&cluster, "worker-1", "worker-1", "zone-b").await;
        assert_eq!(zone(&node(&cluster, "worker-1").await), ["zone-b", "zone-b", "region-1", "region-1"]);
        assert_eq!(asked(&cluster.guest), ["patch nodes 200"]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N1 and #V2: found by provider ID, and labelled under its own name.
    async fn a_node_with_another_name_is_found_by_its_provider_id(cluster: TestCluster) {
        join(&cluster, "host-name", "vm-7", "").await;
        let id = json!({"spec": {"providerID": "harvester://vm-7"}});
        cluster.guest.patch::<Node>("host-name", id).await;
        let ccm = Ccm::start(&cluster).await;
        migrate(&cluster, "vm-7", "host-name", "zone-c").await;
        assert_eq!(zone(&node(&cluster, "host-name").await)[0], "zone-c");
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N19: a Node of k3s is served by its name, as the Go program does.
    #[each_role]
    async fn a_node_of_another_cloud_is_left_alone_although_a_vm_has_its_name(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: aws}, spec: {providerID: 'aws:///eu-1/i-0'}}
---
{apiVersion: v1, kind: Node, metadata: {name: k3s}, spec: {providerID: 'k3s://k3s'}}
---
{apiVersion: v1, kind: Node, metadata: {name: metal, labels: {cloudprovider.harvesterhci.io/externally-managed: 'true'}}}").await;
        cluster.harvester.forget_requests();
        // one with the label of the cluster, and those that only a watch by name would tell of
        for (name, labels) in [("aws", ""), ("metal", "{harvesterhci.io/vmName: metal}"), ("k3s", "{harvesterhci.io/vmName: k3s}")] {
            join(&cluster, name, name, labels).await;
        }
        until(&cluster, "k3s is initialised", async || !waits_for_cloud(&node(&cluster, "k3s").await)).await;
        assert_eq!(zone(&node(&cluster, "k3s").await)[0], "zone-a");
        let told = async |name: &str, reason: &str| {
            let all = cluster.guest.list::<Event>().await;
            all.iter().filter(|it| it.involved_object.name.as_deref() == Some(name) && it.reason.as_deref() == Some(reason)).count()
        };
        for (name, reason) in [("aws", "NodeOfAnotherCloud"), ("metal", "NodeExternallyManaged")] {
            until(&cluster, "the Node is told", async || told(name, reason).await == 1).await;
            cluster.guest.patch_status::<Node>(name, json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})).await;
        }
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/aws").await;
        cluster.harvester.delete::<VirtualMachine>("team-a/aws").await;
        for _ in 0..10 {
            cluster.settle().await;
        }
        for (name, reason) in [("aws", "NodeOfAnotherCloud"), ("metal", "NodeExternallyManaged")] {
            let node = node(&cluster, name).await;
            assert!(waits_for_cloud(&node), "{node:?}");
            let addresses = node.status.clone().and_then(|status| status.addresses);
            assert_eq!((zone(&node)[0], addresses), ("", None));
            assert_eq!(node.spec.unwrap().taints.unwrap().len(), 1);
            assert_eq!(told(name, reason).await, 1);
        }
        let looked = cluster.harvester.requests();
        for name in ["aws", "metal"] {
            let by_name = format!("metadata.name%3D{name}");
            assert!(looked.iter().all(|request| !request.uri.contains(&by_name)), "{looked:?}");
        }
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#V1: the Go program asks at every change of every VM.
    async fn a_host_name_is_asked_for_once_and_only_where_nothing_else_tells(cluster: TestCluster) {
        let questions = Arc::new(Mutex::new(Vec::new()));
        let told = questions.clone();
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |_, path| {
            let asked = path.ends_with("/guestosinfo");
            if asked {
                told.lock().unwrap().push(path);
            }
            async move { asked.then(|| json!({"hostname": "host-name"})) }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "host-name", "vm-7", "").await;
        assert_eq!(node(&cluster, "host-name").await.spec.unwrap().provider_id, None);
        for vm in ["worker-1", "vm-7"] {
            let agent = json!({"status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}});
            cluster.harvester.patch::<VirtualMachineInstance>(&format!("team-a/{vm}"), agent).await;
        }
        migrate(&cluster, "vm-7", "host-name", "zone-b").await;
        migrate(&cluster, "vm-7", "host-name", "zone-c").await;
        assert_eq!(zone(&node(&cluster, "host-name").await)[0], "zone-c");
        assert!(node(&cluster, "host-name").await.spec.unwrap().provider_id.is_some());
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/team-a/virtualmachineinstances/vm-7/guestosinfo";
        assert_eq!(*questions.lock().unwrap(), [path]);
        ccm.stop().await;
    }

    async fn a_node_without_vm_waits_and_says_so(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Node, metadata: {name: lonely}, spec: {taints: [{key: \
             node.cloudprovider.kubernetes.io/uninitialized, effect: NoSchedule}]}}",
        ).await;
        cluster.settle().await;
        assert_eq!(node(&cluster, "lonely").await.spec.unwrap().provider_id, None);
        let events = cluster.guest.list::<Event>().await;
        assert!(events.iter().any(|event| event.reason.as_deref() == Some("MachineNotFound")), "{events:?}");
        ccm.stop().await;
    }

    /// Without the right, only Nodes with the names of their VMs are found; it is asked for again and again.
    #[simulated_only("half a minute until the next question")]
    async fn host_names_are_learned_within_a_minute_of_the_grant(cluster: TestCluster) {
        let granted = Arc::new(AtomicBool::new(false));
        let (refused, answers) = (granted.clone(), granted.clone());
        let client = limited(&cluster, move |_, path| {
            let about_it = path.ends_with("/guestosinfo") || path.ends_with("/selfsubjectaccessreviews");
            about_it && !refused.load(Ordering::SeqCst)
        });
        let client = interposed(client, move |_, path| {
            let answer = path.ends_with("/guestosinfo") && answers.load(Ordering::SeqCst);
            async move { answer.then(|| json!({"hostname": "host-name"})) }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "host-name", "vm-7", "").await;
        let agent = json!({"status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/vm-7", agent).await;
        cluster.advance(Duration::from_secs(120)).await;
        let provider_id = async || node(&cluster, "host-name").await.spec.unwrap().provider_id;
        assert_eq!(provider_id().await, None);
        granted.store(true, Ordering::SeqCst);
        cluster.advance(Duration::from_secs(60)).await;
        assert!(provider_id().await.is_some());
        ccm.stop().await;
    }

    async fn a_node_whose_vm_reports_no_address_stays_tainted_and_is_told_so(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        let silent = json!({"status": {"interfaces": null}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", silent).await;
        cluster.guest.delete::<Node>("worker-1").await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Node, metadata: {name: worker-1}, spec: {taints: [{key: \
             node.cloudprovider.kubernetes.io/uninitialized, effect: NoSchedule}]}}",
        ).await;
        let told = async || {
            let events = cluster.guest.list::<Event>().await;
            let hint = "start qemu-guest-agent in the VM, or give the kubelet --node-ip";
            events.iter().any(|event| {
                event.reason.as_deref() == Some("NodeWithoutAddress")
                    && event.message.as_ref().is_some_and(|message| message.ends_with(hint))
            })
        };
        until(&cluster, "the Node is told", told).await;
        assert!(waits_for_cloud(&node(&cluster, "worker-1").await));
        let agent = json!({"status": {"interfaces": [{"name": "nic-0", "ipAddresses": ["198.18.0.5"]}]}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", agent).await;
        until(&cluster, "the Node is initialised", async || {
            !waits_for_cloud(&node(&cluster, "worker-1").await)
        }).await;
        ccm.stop().await;
    }
}
