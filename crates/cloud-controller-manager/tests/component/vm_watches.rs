//! Which VMs of the namespace are watched: those with the cluster's label, and by name those that a Node may be.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_controller_manager::cluster::GuestCluster;
use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Client;
use serde_json::json;
use test_cluster::{Rights, TestCluster, User};

use super::harness::{Ccm, delete_vm, interposed, is_shut_down, join, node, rest, set_ready, until};

const UNLABELLED: &str = "{harvesterhci.io/vmName: some}";
const FOREIGN: &str = "{guestcluster.harvesterhci.io/name: other}";
const LABEL: &str = "guestcluster.harvesterhci.io/name";

async fn provider_id(cluster: &TestCluster, name: &str) -> Option<String> {
    node(cluster, name).await?.spec?.provider_id
}

async fn until_initialised(cluster: &TestCluster, name: &str) {
    until(cluster, &format!("{name} is initialised"), async || provider_id(cluster, name).await.is_some())
        .await;
}

/// Gives the VM and its instance another label, or takes it away.
async fn relabel(cluster: &TestCluster, vm: &str, label: Option<&str>) {
    let labels = json!({"metadata": {"labels": {LABEL: label}}});
    let key = format!("team-a/{vm}");
    cluster.harvester.patch::<VirtualMachine>(&key, labels.clone()).await;
    cluster.harvester.patch::<VirtualMachineInstance>(&key, labels).await;
    rest(cluster).await;
}

/// As Harvester does when a VM has arrived on another host; until the Node has followed.
async fn migrate(cluster: &TestCluster, vm: &str, follower: &str, to: &str) {
    let moved = json!({"metadata": {"annotations": {"topology.kubernetes.io/zone": to}}});
    cluster.harvester.patch::<VirtualMachineInstance>(&format!("team-a/{vm}"), moved).await;
    until(cluster, "the Node follows", async || {
        let labels = node(cluster, follower).await.and_then(|node| node.metadata.labels).unwrap_or_default();
        labels.get("topology.kubernetes.io/zone").is_some_and(|zone| zone == to)
    })
    .await;
}

async fn connect_agent(cluster: &TestCluster, vm: &str) {
    let agent = json!({"status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}});
    cluster.harvester.patch::<VirtualMachineInstance>(&format!("team-a/{vm}"), agent).await;
}

/// Verb, kind and selector of the lists and watches of VMs so far; one for all pages.
fn looked(cluster: &TestCluster) -> Vec<String> {
    // the account of Harvester is the guest cluster's
    let account = &cluster.guest_cluster().name;
    let of_vms = cluster.harvester.requests().into_iter().filter(|request| {
        let resource = request.resource();
        resource.starts_with("virtualmachine") && request.user.ends_with(account)
    });
    let mut all: Vec<_> = of_vms
        .map(|request| {
            let (_, query) = request.uri.split_once('?').unwrap_or_default();
            let selectors = query.split('&').filter(|it| it.contains("Selector="));
            format!("{} {} {}", request.verb, request.resource(), selectors.collect::<Vec<_>>().join("&"))
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The program's client for Harvester; guest agents of these VMs report `host-name`. With the questions so far.
fn with_agents(cluster: &TestCluster) -> (Client, Arc<Mutex<Vec<String>>>) {
    let questions = Arc::new(Mutex::new(Vec::new()));
    let told = questions.clone();
    let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |_, path| {
        let asked = path.strip_suffix("/guestosinfo").and_then(|path| path.rsplit('/').next());
        let answer = asked.map(|vm| {
            told.lock().expect("no panic while asking").push(vm.to_owned());
            json!({"hostname": if vm == "vm-7" { "host-name" } else { "another" }})
        });
        async move { answer }
    });
    (client, questions)
}

test_cluster::component_tests! {
    // docs/contract/cloud-controller-manager.md#N15
    /// user-demands 16, and docs/contract/cloud-controller-manager.md#V1: what foreign VMs do costs nothing.
    async fn vms_of_other_clusters_are_not_read_and_a_labelled_node_costs_no_list(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        for vm in ["vm-x", "vm-y"] {
            join(&cluster, "worker-1", vm, FOREIGN).await;
        }
        let ccm = Ccm::start(&cluster).await;
        until_initialised(&cluster, "worker-1").await;
        let label = "labelSelector=guestcluster.harvesterhci.io%2Fname%3Dblue";
        let expected = ["list virtualmachineinstances", "list virtualmachines", "watch virtualmachineinstances",
            "watch virtualmachines"].map(|it| format!("{it} {label}"));
        assert_eq!(looked(&cluster), expected);
        cluster.harvester.forget_requests();
        join(&cluster, "worker-2", "worker-2", "").await;
        until_initialised(&cluster, "worker-2").await;
        connect_agent(&cluster, "vm-x").await;
        rest(&cluster).await;
        assert_eq!(looked(&cluster), Vec::<String>::new());
        ccm.stop().await;
    }

    /// docs/contract/node-driver.md#B13: a name that no label can have is hashed by the node driver.
    async fn vms_are_watched_by_the_label_that_the_node_driver_gives_a_long_name(cluster: TestCluster) {
        let name = "a".repeat(70);
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.cluster = GuestCluster::new(&name)).await;
        cluster.harvester.forget_requests();
        join(&cluster, "worker-1", "worker-1", "{guestcluster.harvesterhci.io/name: hash_WQR0Cw_z}").await;
        until_initialised(&cluster, "worker-1").await;
        join(&cluster, "worker-2", "worker-2", FOREIGN).await;
        rest(&cluster).await;
        assert_eq!(provider_id(&cluster, "worker-2").await, None, "another cluster's");
        let all = looked(&cluster);
        assert!(all.iter().all(|it| !it.ends_with("metadata.name%3Dworker-1")), "the label tells of it: {all:?}");
        ccm.stop().await;
    }

    /// One list and one watch of either kind, for this name.
    async fn a_vm_without_the_label_is_watched_by_the_name_of_its_node(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        cluster.harvester.forget_requests();
        join(&cluster, "worker-1", "worker-1", UNLABELLED).await;
        until_initialised(&cluster, "worker-1").await;
        migrate(&cluster, "worker-1", "worker-1", "zone-b").await;
        let name = "fieldSelector=metadata.name%3Dworker-1";
        let expected = ["list virtualmachineinstances", "list virtualmachines", "watch virtualmachineinstances",
            "watch virtualmachines"].map(|it| format!("{it} {name}"));
        assert_eq!(looked(&cluster), expected);
        // the label is put on while the program runs
        relabel(&cluster, "worker-1", Some("blue")).await;
        migrate(&cluster, "worker-1", "worker-1", "zone-c").await;
        ccm.stop().await;
    }

    /// A watch by label tells such a VM as deleted.
    #[each_role]
    async fn a_vm_that_loses_its_label_keeps_its_node_and_its_deletion_is_still_seen(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until_initialised(&cluster, "worker-1").await;
        set_ready(&cluster, "worker-1", "Unknown").await;
        relabel(&cluster, "worker-1", None).await;
        assert!(node(&cluster, "worker-1").await.is_some());
        assert!(!is_shut_down(&cluster, "worker-1").await);
        migrate(&cluster, "worker-1", "worker-1", "zone-b").await;
        // and comes back, and goes to another cluster
        for label in [Some("blue"), None, Some("other")] {
            relabel(&cluster, "worker-1", label).await;
            assert!(node(&cluster, "worker-1").await.is_some(), "{label:?}");
        }
        cluster.harvester.patch::<VirtualMachine>("team-a/worker-1", json!({"spec": {"runStrategy": "Halted"}})).await;
        rest(&cluster).await;
        assert!(!is_shut_down(&cluster, "worker-1").await, "another cluster's VM says nothing");
        relabel(&cluster, "worker-1", None).await;
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/worker-1").await;
        until(&cluster, "the Node is tainted", async || is_shut_down(&cluster, "worker-1").await).await;
        cluster.harvester.delete::<VirtualMachine>("team-a/worker-1").await;
        if cluster.rights() == Rights::Ours {
            until(&cluster, "the Node goes", async || node(&cluster, "worker-1").await.is_none()).await;
        }
        ccm.stop().await;
    }

    /// Its VM has another name than the Node. Guest agents of other clusters are not asked.
    #[each_role]
    async fn a_vm_without_label_is_found_by_its_host_name_and_by_its_uid_after_a_restart(cluster: TestCluster) {
        let (client, questions) = with_agents(&cluster);
        let ccm = Ccm::start_on(&cluster, client.clone(), |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "worker-1", "vm-x", FOREIGN).await;
        join(&cluster, "worker-1", "vm-8", UNLABELLED).await;
        for vm in ["vm-x", "vm-8"] {
            connect_agent(&cluster, vm).await;
        }
        until_initialised(&cluster, "worker-1").await;
        cluster.harvester.forget_requests();
        assert_eq!(*questions.lock().unwrap(), Vec::<String>::new(), "nobody is unknown");
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm-7, namespace: team-a}, \
             spec: {runStrategy: Always, template: {spec: {}}}}
---
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm-7, namespace: team-a}, spec: {networks: \
             [{name: nic-0, pod: {}}], domain: {devices: {}}}, status: {phase: Running, interfaces: \
             [{name: nic-0, ipAddresses: [198.18.0.7]}], conditions: [{type: AgentConnected, status: 'True'}]}}",
        ).await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Node, metadata: {name: host-name}, spec: {taints: [{key: \
             node.cloudprovider.kubernetes.io/uninitialized, effect: NoSchedule}]}}",
        ).await;
        until_initialised(&cluster, "host-name").await;
        questions.lock().unwrap().sort();
        assert_eq!(*questions.lock().unwrap(), ["vm-7", "vm-8"]);
        let all = looked(&cluster);
        assert!(all.contains(&format!("list virtualmachineinstances labelSelector=%21{}", LABEL.replace('/', "%2F"))), "{all:?}");
        ccm.stop().await;

        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        for name in ["host-name", "worker-1"] {
            set_ready(&cluster, name, "Unknown").await;
        }
        migrate(&cluster, "vm-7", "host-name", "zone-b").await;
        rest(&cluster).await;
        assert!(node(&cluster, "host-name").await.is_some() && node(&cluster, "worker-1").await.is_some());
        ccm.stop().await;

        // removed while nobody watched: a list of all VMs shows that it is nowhere, and that others are there
        delete_vm(&cluster, "vm-7").await;
        let ccm = Ccm::start(&cluster).await;
        if cluster.rights() == Rights::Ours {
            until(&cluster, "the Node goes", async || node(&cluster, "host-name").await.is_none()).await;
        }
        rest(&cluster).await;
        assert!(node(&cluster, "worker-1").await.is_some());
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#V1
    /// One says its name at the fourth question, and its Node settles; another never says one that a Node can have.
    #[simulated_only("hours")]
    async fn guest_agents_without_a_host_name_are_asked_ever_less_often_and_no_more_when_no_node_is_unknown(cluster: TestCluster) {
        let questions = Arc::new(Mutex::new(Vec::new()));
        let told = questions.clone();
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |_, path| {
            let mut told = told.lock().expect("no panic while asking");
            let asked = path.strip_suffix("/guestosinfo").and_then(|path| path.rsplit('/').next());
            let answer = asked.map(|vm| {
                told.push(vm.to_owned());
                let times = told.iter().filter(|it| *it == vm).count();
                let of_a_booting_system = if times % 2 == 0 { "(none)" } else { "" };
                json!({"hostname": if vm == "vm-7" && times > 3 { "host-name" } else { of_a_booting_system }})
            });
            async move { answer }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        for vm in ["vm-7", "vm-8"] {
            join(&cluster, "worker-1", vm, UNLABELLED).await;
            connect_agent(&cluster, vm).await;
        }
        let asked = |vm: &str| questions.lock().unwrap().iter().filter(|it| *it == vm).count();
        cluster.advance(Duration::from_secs(3600)).await;
        assert_eq!(asked("vm-7") + asked("vm-8"), 0, "nobody is unknown");
        cluster.guest.apply(
            "{apiVersion: v1, kind: Node, metadata: {name: host-name}, spec: {taints: [{key: \
             node.cloudprovider.kubernetes.io/uninitialized, effect: NoSchedule}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: lonely}}",
        ).await;
        cluster.advance(Duration::from_secs(3600)).await;
        assert!(provider_id(&cluster, "host-name").await.is_some());
        assert_eq!(asked("vm-7"), 4);
        // at 30, 60, 120, 240, 480 s, then every ten minutes, and after each search
        assert!(asked("vm-8") <= 20, "{}", asked("vm-8"));
        cluster.guest.delete::<Node>("lonely").await;
        rest(&cluster).await;
        questions.lock().unwrap().clear();
        cluster.advance(Duration::from_secs(3600)).await;
        migrate(&cluster, "vm-7", "host-name", "zone-b").await;
        assert_eq!(*questions.lock().unwrap(), Vec::<String>::new(), "no Node is unknown");
        // and they are asked again when one is
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: lonely}}").await;
        until(&cluster, "vm-8 is asked", async || asked("vm-8") > 0).await;
        assert_eq!(asked("vm-7"), 0, "its Node is known");
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#V5
    /// Nobody chose a name, so no label says whose a VM is.
    async fn a_cluster_without_name_watches_its_vms_by_name_alone(cluster: TestCluster) {
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.cluster = GuestCluster::new("kubernetes")).await;
        join(&cluster, "worker-1", "worker-1", "{guestcluster.harvesterhci.io/name: kubernetes}").await;
        until_initialised(&cluster, "worker-1").await;
        migrate(&cluster, "worker-1", "worker-1", "zone-b").await;
        let all = looked(&cluster);
        let is_by_name = |it: &String| it.ends_with("fieldSelector=metadata.name%3Dworker-1");
        assert!(!all.is_empty() && all.iter().all(is_by_name), "{all:?}");
        ccm.stop().await;
    }

    #[simulated_only("ten minutes until the next search")]
    async fn an_unknown_node_is_searched_for_every_ten_minutes_and_a_known_one_never(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until_initialised(&cluster, "worker-1").await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: lonely}}").await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: metal, labels: \
             {cloudprovider.harvesterhci.io/externally-managed: 'true'}}}").await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: aws}, spec: {providerID: 'aws://i-1'}}").await;
        rest(&cluster).await;
        let searches = |cluster: &TestCluster| {
            let all = cluster.harvester.requests();
            all.iter().filter(|request| request.uri.contains("labelSelector=%21")).count()
        };
        let before = searches(&cluster);
        assert!(before >= 1);
        cluster.advance(Duration::from_secs(1100)).await;
        assert_eq!(searches(&cluster), before + 1);
        cluster.guest.delete::<Node>("lonely").await;
        cluster.advance(Duration::from_secs(3600)).await;
        assert_eq!(searches(&cluster), before + 1);
        let events = cluster.guest.list::<Event>().await;
        let told: Vec<_> = events.iter().filter(|event| event.reason.as_deref() == Some("MachineNotFound")).collect();
        assert!(told.is_empty(), "none of these waits: {told:?}");
        ccm.stop().await;
    }
}
