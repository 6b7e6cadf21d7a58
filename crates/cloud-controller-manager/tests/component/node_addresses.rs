//! The addresses of Nodes, from their VMs.

use harvester_api::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::harness::{Ccm, allocate, announce, asked, create_service, join, until};

const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";
const HIDDEN: &str = "cloudprovider.harvesterhci.io/additional-internal-ips";

/// As `InternalIP 198.18.0.5`.
async fn addresses(cluster: &TestCluster) -> Vec<String> {
    let node = cluster.guest.get::<Node>("worker-1").await.expect("the Node is there");
    let list = node.status.and_then(|status| status.addresses).unwrap_or_default();
    list.into_iter().map(|it| format!("{} {}", it.type_, it.address)).collect()
}

async fn until_they_are(cluster: &TestCluster, expected: &[&str]) {
    until(cluster, &format!("the addresses are {expected:?}"), async || addresses(cluster).await == expected)
        .await;
}

/// The guest agent of the VM reports these on each of the VM's networks.
async fn report(cluster: &TestCluster, interfaces: Value) {
    let status = json!({"status": {"interfaces": interfaces}});
    cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", status).await;
    cluster.settle().await;
}

async fn annotate(cluster: &TestCluster, annotations: Value) {
    cluster.guest.patch::<Node>("worker-1", json!({"metadata": {"annotations": annotations}})).await;
    cluster.settle().await;
}

/// Until the program has acted on all reports so far: the Node's zone is `zone` then.
async fn until_seen(cluster: &TestCluster, zone: &str) {
    let place = json!({"metadata": {"annotations": {"topology.kubernetes.io/zone": zone}}});
    cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", place).await;
    until(cluster, "the Node follows", async || {
        let node = cluster.guest.get::<Node>("worker-1").await.expect("the Node is there");
        node.metadata.labels.is_some_and(|labels| labels["topology.kubernetes.io/zone"] == zone)
    })
    .await;
}

/// The message of the last Event about the Node with this reason.
async fn told(cluster: &TestCluster, reason: &str) -> Option<String> {
    let events = cluster.guest.list::<Event>().await;
    let mut about = events.into_iter().filter(|event| {
        event.involved_object.kind.as_deref() == Some("Node") && event.reason.as_deref() == Some(reason)
    });
    about.next_back().and_then(|event| event.message)
}

test_cluster::component_tests! {
    /// docs/contract/cloud-controller-manager.md#8.6, #N13 and #N14: by watches, and no request for what has not changed.
    async fn addresses_follow_the_guest_agent_in_both_families(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until_they_are(&cluster, &["InternalIP 198.18.0.5", "Hostname worker-1"]).await;
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.6", "198.18.0.7", "FD00:0::6", "fe80::1"]}])).await;
        let both = ["InternalIP 198.18.0.6", "ExternalIP 198.18.0.7", "InternalIP fd00::6", "Hostname worker-1"];
        until_they_are(&cluster, &both).await;

        cluster.guest.forget_requests();
        // docs/contract/cloud-controller-manager.md#N3: a silent agent takes no address away
        report(&cluster, json!([{"name": "nic-0"}])).await;
        until_seen(&cluster, "zone-b").await;
        report(&cluster, Value::Null).await;
        until_seen(&cluster, "zone-c").await;
        // nothing new, and what the pod network of the guest has is no address of the Node
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.6", "198.18.0.7", "fd00::6"]},
            {"interfaceName": "cni0", "ipAddresses": ["10.42.0.1"]}])).await;
        until_seen(&cluster, "zone-d").await;
        ccm.stop().await;
        let ccm = Ccm::start(&cluster).await;
        until_seen(&cluster, "zone-e").await;
        assert_eq!(addresses(&cluster).await, both);
        assert_eq!(asked(&cluster.guest), ["patch nodes 200"; 4], "the labels alone");

        // a speaking one replaces them
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.8"]}])).await;
        until_they_are(&cluster, &["InternalIP 198.18.0.8", "Hostname worker-1"]).await;
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N10
    async fn an_address_that_a_service_announces_is_never_one_of_a_node(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "198.18.0.77").await;
        announce(&cluster, "198.18.0.77").await;
        // kube-vip has bound it to the interface of the Node, which the kernel lists first
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.77", "198.18.0.5", "198.18.0.6"]}])).await;
        let own = ["InternalIP 198.18.0.5", "ExternalIP 198.18.0.6", "Hostname worker-1"];
        until_they_are(&cluster, &own).await;

        // anybody may write the addresses of Nodes there
        let other = "{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop, annotations: \
             {kube-vip.io/loadbalancerIPs: '198.18.0.5,198.18.0.6'}}, spec: {ports: [{port: 80}], type: LoadBalancer, \
             loadBalancerClass: a/b}}";
        cluster.guest.apply(other).await;
        until_seen(&cluster, "zone-d").await;
        assert_eq!(addresses(&cluster).await, own);
        // nor when the status shows them: that may be a program which announces the addresses of Nodes, or kube-vip
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.5"}, {"ip": "198.18.0.6"}]}}});
        cluster.guest.patch_status::<Service>("shop/other", shown).await;
        until_seen(&cluster, "zone-e").await;
        assert_eq!(addresses(&cluster).await, own);
        // kube-vip's own is believed, but for an InternalIP
        let announced = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
        cluster.guest.patch::<Service>("shop/other", announced).await;
        until_they_are(&cluster, &["InternalIP 198.18.0.5", "Hostname worker-1"]).await;
        cluster.guest.delete::<Service>("shop/other").await;
        until_they_are(&cluster, &own).await;

        // the agent reports the address of a Service that is gone until it is asked again
        cluster.guest.delete::<Service>("shop/web").await;
        until_seen(&cluster, "zone-b").await;
        assert_eq!(addresses(&cluster).await, own);
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.5", "198.18.0.6"]}])).await;
        until_seen(&cluster, "zone-c").await;
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.5", "198.18.0.77"]}])).await;
        until_they_are(&cluster, &["InternalIP 198.18.0.5", "ExternalIP 198.18.0.77", "Hostname worker-1"]).await;
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#18.4 and #N6
    async fn the_kubelets_own_addresses_come_first_and_stay(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.5", "198.18.0.6", "fd00::6", "fd00::7"]}])).await;
        annotate(&cluster, json!({PROVIDED: "FD00::0006, 198.18.0.6", HIDDEN: "[\"198.18.0.5\"]"})).await;
        let own = ["InternalIP fd00::6", "InternalIP 198.18.0.6", "ExternalIP fd00::7", "Hostname worker-1"];
        until_they_are(&cluster, &own).await;
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.5", "fd00::7"]}])).await;
        until(&cluster, "the mismatch is told", async || told(&cluster, "NodeAddressesKept").await.is_some()).await;
        let message = told(&cluster, "NodeAddressesKept").await.unwrap();
        assert!(message.contains("fd00::6 (--node-ip)") && message.contains("--management-network"), "{message}");
        assert_eq!(addresses(&cluster).await, own);
        annotate(&cluster, json!({HIDDEN: "198.18.0.5"})).await;
        until(&cluster, "the list is told", async || told(&cluster, "InvalidNodeAnnotation").await.is_some()).await;
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N7
    async fn prefixes_choose_and_hide_where_annotations_are_disabled(cluster: TestCluster) {
        let ccm = Ccm::start_with(&cluster, |settings| {
            settings.addresses.prefixes = vec!["198.18.0.128/25".parse().unwrap()];
            settings.addresses.excluded = vec!["198.18.7.0/24".parse().unwrap()];
            settings.addresses.ignore_annotations = true;
        }).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        annotate(&cluster, json!({PROVIDED: "198.18.0.5", HIDDEN: "[\"198.18.0.6\"]"})).await;
        let ips = ["198.18.0.5", "198.18.0.6", "198.18.7.7", "198.18.0.200"];
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ips}])).await;
        let own = ["ExternalIP 198.18.0.5", "ExternalIP 198.18.0.6", "InternalIP 198.18.0.200", "Hostname worker-1"];
        until_they_are(&cluster, &own).await;
        // no address of it is an InternalIP now, and the one that the Node has stays
        report(&cluster, json!([{"name": "nic-0", "ipAddresses": ["198.18.0.5"]}])).await;
        until(&cluster, "it is told", async || told(&cluster, "NodeAddressesKept").await.is_some()).await;
        assert_eq!(addresses(&cluster).await, own);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N8 and #N9: of two interfaces the one on the management network counts,
    /// and a flag that names no network of the VM takes nothing away.
    async fn a_management_network_that_the_vm_lacks_takes_no_address_away(cluster: TestCluster) {
        let on = |network: &'static str| move |settings: &mut cloud_controller_manager::Settings| {
            settings.addresses.management_network = Some(network.to_owned());
        };
        let ccm = Ccm::start_with(&cluster, on("team-a/storage")).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        let networks = json!([{"name": "nic-0", "multus": {"networkName": "team-a/mgmt"}},
            {"name": "nic-1", "multus": {"networkName": "storage"}}]);
        let spec = json!({"spec": {"networks": networks}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", spec).await;
        report(&cluster, json!([{"name": "nic-0", "ipAddress": "198.18.0.5"}, {"name": "nic-1", "ipAddress": "198.18.9.5"}])).await;
        let own = ["InternalIP 198.18.9.5", "Hostname worker-1"];
        until_they_are(&cluster, &own).await;
        ccm.stop().await;

        let ccm = Ccm::start_with(&cluster, on("team-a/strage")).await;
        until(&cluster, "it is told", async || told(&cluster, "NodeAddressesKept").await.is_some()).await;
        let message = told(&cluster, "NodeAddressesKept").await.unwrap();
        assert!(message.contains("no network team-a/strage (it has network team-a/mgmt"), "{message}");
        assert_eq!(addresses(&cluster).await, own);
        ccm.stop().await;
    }
}
