//! Nodes and their VMs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use harvester_api::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Node;
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
        let events = cluster.guest.list::<k8s_openapi::api::core::v1::Event>().await;
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
            let events = cluster.guest.list::<k8s_openapi::api::core::v1::Event>().await;
            let hint = "start qemu-guest-agent in the VM, or give the kubelet --node-ip";
            events.iter().any(|event| {
                event.reason.as_deref() == Some("NodeWithoutAddress")
                    && event.message.as_ref().is_some_and(|message| message.ends_with(hint))
            })
        };
        until(&cluster, "the Node is told", told).await;
        assert!(cloud_provider::waits_for_cloud(&node(&cluster, "worker-1").await));
        let agent = json!({"status": {"interfaces": [{"name": "nic-0", "ipAddresses": ["198.18.0.5"]}]}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", agent).await;
        until(&cluster, "the Node is initialised", async || {
            !cloud_provider::waits_for_cloud(&node(&cluster, "worker-1").await)
        }).await;
        ccm.stop().await;
    }
}
