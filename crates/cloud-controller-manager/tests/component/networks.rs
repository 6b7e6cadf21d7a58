//! Services that ask for a network, and the mapping of networks to interfaces.

use harvester_api::VirtualMachineInstance;
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::harness::{
    Ccm, LOADBALANCER_IPS, allocate, annotation, announce, asked, create_service, events, join, limited_to,
    load_balancer, rest, service, set_type, told, until,
};
use super::sharing::{ask, at, is, shared, told_about};

const INTERFACE: &str = "kube-vip.io/serviceInterface";
const NETWORK: &str = "cloudprovider.harvesterhci.io/network";
const MAPPING: &str = "kube-system/harvester-nad-mapping";
const KEY: &str = "interface-nad-mapping";

/// A second network, besides `mgmt` on enp1s0.
fn net2(cluster: &TestCluster) -> String {
    format!("{}/net2", cluster.guest_cluster().vm_namespace)
}

fn asking(cluster: &TestCluster) -> String {
    format!("{{{NETWORK}: {}}}", net2(cluster))
}

/// The guest agent of a VM reports these interfaces of `mgmt` and `net2`.
async fn report(cluster: &TestCluster, vm: &str, names: [&str; 2]) {
    let namespace = &cluster.guest_cluster().vm_namespace;
    let networks = ["mgmt", "net2"]
        .map(|name| json!({"name": name, "multus": {"networkName": format!("{namespace}/{name}")}}));
    let interfaces = ["mgmt", "net2"].iter().zip(names).map(
        |(name, interface)| json!({"name": name, "interfaceName": interface, "ipAddresses": ["198.18.0.5"]}),
    );
    let status = json!({"interfaces": interfaces.collect::<Vec<_>>()});
    let patch = json!({"spec": {"networks": networks}, "status": status});
    cluster.harvester.patch::<VirtualMachineInstance>(&format!("{namespace}/{vm}"), patch).await;
    cluster.settle().await;
}

async fn write_mapping(cluster: &TestCluster, text: &str) {
    let name = MAPPING.split_once('/').expect("a namespace and a name").1;
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "kube-system", "name": name, "labels": {"foreign": "stays"}},
        "data": {KEY: text, "other": "stays"}});
    cluster.guest.apply(&config_map.to_string()).await;
    cluster.settle().await;
}

async fn mapping(cluster: &TestCluster) -> Option<Value> {
    let config_map = cluster.guest.get::<ConfigMap>(MAPPING).await?;
    let text = config_map.data.unwrap_or_default().remove(KEY).unwrap_or_default();
    Some(serde_json::from_str(&text).unwrap_or_else(|_| json!(text)))
}

async fn interface(cluster: &TestCluster) -> Option<String> {
    annotation(&service(cluster).await.expect("the Service is there"), INTERFACE).map(str::to_owned)
}

async fn address(cluster: &TestCluster) -> Option<String> {
    annotation(&service(cluster).await.expect("the Service is there"), LOADBALANCER_IPS).map(str::to_owned)
}

test_cluster::component_tests! {
    // docs/contract/cloud-controller-manager.md#V6 and #V9
    /// docs/contract/cloud-controller-manager.md#17.4 and #9.3: the Go program makes the mapping in one controller and
    /// reads it in another, so a change of it reached a Service whenever something else happened to it.
    async fn a_service_is_announced_on_the_interface_of_its_network(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, &asking(&cluster), "").await;
        assert_eq!(interface(&cluster).await, None);
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!((address(&cluster).await, interface(&cluster).await), (Some("127.9.0.1".into()), Some("enp2s0".into())));
        assert_eq!(told(&cluster, "NotSupported").await, 0);
        let namespace = cluster.guest_cluster().vm_namespace.clone();
        let expected = json!({format!("{namespace}/mgmt"): "enp1s0", format!("{namespace}/net2"): "enp2s0"});
        until(&cluster, "the mapping is written", async || mapping(&cluster).await == Some(expected.clone())).await;

        report(&cluster, "worker-1", ["enp1s0", "enp7s0"]).await;
        until(&cluster, "the interface follows", async || interface(&cluster).await == Some("enp7s0".into())).await;
        let expected = json!({format!("{namespace}/mgmt"): "enp1s0", format!("{namespace}/net2"): "enp7s0"});
        until(&cluster, "the mapping follows", async || mapping(&cluster).await == Some(expected.clone())).await;

        // silence takes nothing away
        report(&cluster, "worker-1", ["", ""]).await;
        until(&cluster, "nothing is left to do", async || told(&cluster, "EnsuredLoadBalancer").await > 0).await;
        assert_eq!((interface(&cluster).await, mapping(&cluster).await), (Some("enp7s0".into()), Some(expected)));

        set_type(&cluster, "ClusterIP").await;
        assert_eq!(interface(&cluster).await, None);
        ccm.stop().await;
    }

    async fn what_the_go_program_wrote_for_a_network_is_taken_over_with_the_record_of_the_address_alone(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, &asking(&cluster), "").await;
        allocate(&cluster, "127.9.0.1").await;
        until(&cluster, "the mapping is written", async || mapping(&cluster).await.is_some()).await;
        until(&cluster, "the Node is there", async || {
            let node = cluster.guest.get::<k8s_openapi::api::core::v1::Node>("worker-1").await;
            node.is_some_and(|node| node.spec.is_some_and(|spec| spec.provider_id.is_some()))
        }).await;
        // the Go program writes to the object what the Service shows
        announce(&cluster, "127.9.0.1").await;
        ccm.stop().await;
        // the Go program has no record of the address
        let record = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/allocated-address": null}}});
        cluster.guest.patch::<Service>("shop/web", record).await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        for written in [vec!["patch services 200".to_owned()], vec![]] {
            let again = Ccm::start(&cluster).await;
            rest(&cluster).await;
            assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (written, vec![]));
            again.stop().await;
            cluster.guest.forget_requests();
        }
        let taken = service(&cluster).await.unwrap();
        assert_eq!(annotation(&taken, "cloudprovider.harvesterhci.io/allocated-address"), Some("127.9.0.1"));
        assert_eq!(interface(&cluster).await.as_deref(), Some("enp2s0"));
    }

    // docs/contract/cloud-controller-manager.md#L37 and #V8
    async fn a_service_on_a_network_that_no_vm_has_waits_until_one_has_it(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, &format!("{{{NETWORK}: default/net9}}"), "").await;
        allocate(&cluster, "127.9.0.1").await;
        let service = service(&cluster).await.unwrap();
        assert_eq!((annotation(&service, LOADBALANCER_IPS), annotation(&service, INTERFACE)), (None, None));
        let all = events(&cluster).await;
        let about: Vec<_> = all.iter().filter(|(reason, _)| reason == "NetworkWithoutInterface").collect();
        assert!(about.len() == 1 && about[0].1.contains("no VM of this cluster has network default/net9"), "{all:?}");
        assert!(load_balancer(&cluster).await.is_some(), "the pools may have more to say");

        let namespace = &cluster.guest_cluster().vm_namespace;
        let patch = json!({"spec": {"networks": [{"name": "net9", "multus": {"networkName": "default/net9"}}]},
            "status": {"interfaces": [{"name": "net9", "interfaceName": "eth9"}]}});
        cluster.harvester.patch::<VirtualMachineInstance>(&format!("{namespace}/worker-1"), patch).await;
        until(&cluster, "the Service has its interface", async || interface(&cluster).await == Some("eth9".into())).await;
        assert_eq!(address(&cluster).await.as_deref(), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_secondary_waits_while_its_primary_waits_for_an_interface(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, &format!("{{{NETWORK}: default/net9}}"), "").await;
        allocate(&cluster, "127.9.0.1").await;
        let secondary = "apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop, annotations: {cloudprovider.harvesterhci.io/primary-service: web}}
spec: {type: LoadBalancer, ports: [{port: 81}]}
";
        cluster.guest.apply(secondary).await;
        cluster.settle().await;
        let asked = async || {
            let secondary = cluster.guest.get::<Service>("shop/api").await.unwrap();
            annotation(&secondary, LOADBALANCER_IPS).map(str::to_owned)
        };
        assert_eq!(asked().await, None);
        let namespace = &cluster.guest_cluster().vm_namespace;
        let patch = json!({"spec": {"networks": [{"name": "net9", "multus": {"networkName": "default/net9"}}]},
            "status": {"interfaces": [{"name": "net9", "interfaceName": "eth9"}]}});
        cluster.harvester.patch::<VirtualMachineInstance>(&format!("{namespace}/worker-1"), patch).await;
        until(&cluster, "it shares the address", async || asked().await == Some("127.9.0.1".into())).await;
        ccm.stop().await;
    }

    /// `--disable-vmi-controller`, as people who write the mapping themselves use it.
    async fn a_mapping_that_users_wrote_is_followed_and_left_alone(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        write_mapping(&cluster, &json!({net2(&cluster): "br0"}).to_string()).await;
        let ccm = Ccm::start_with(&cluster, |settings| settings.nodes.follow_topology = false).await;
        create_service(&cluster, &asking(&cluster), "").await;
        allocate(&cluster, "127.9.0.1").await;
        until(&cluster, "the mapping counts", async || interface(&cluster).await == Some("br0".into())).await;
        write_mapping(&cluster, &json!({net2(&cluster): "br1"}).to_string()).await;
        until(&cluster, "the mapping is followed", async || interface(&cluster).await == Some("br1".into())).await;
        assert_eq!(mapping(&cluster).await, Some(json!({net2(&cluster): "br1"})));
        ccm.stop().await;
    }

    async fn a_malformed_mapping_harms_no_service_but_those_that_need_it(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        write_mapping(&cluster, &format!("{{\"{}", "x".repeat(10_000))).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(address(&cluster).await.as_deref(), Some("127.9.0.1"));
        assert_eq!(told(&cluster, "NetworkWithoutInterface").await, 0);
        let other = "apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop, annotations: {cloudprovider.harvesterhci.io/network: a/b}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
";
        cluster.guest.apply(other).await;
        let about = async || {
            let all = cluster.guest.list::<k8s_openapi::api::core::v1::Event>().await;
            let about = all.into_iter().filter(|event| event.reason.as_deref() == Some("NetworkWithoutInterface"));
            about.filter_map(|event| event.message).collect::<Vec<_>>()
        };
        until(&cluster, "it is told", async || !about().await.is_empty()).await;
        let told = about().await;
        assert!(told.len() == 1 && told[0].contains("it is no JSON") && told[0].len() < 1000, "{told:?}");

        // an agent that speaks repairs it, and nothing else of it is lost
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let repaired = async || mapping(&cluster).await.is_some_and(|it| it[net2(&cluster)] == "enp2s0");
        until(&cluster, "the mapping is repaired", repaired).await;
        let config_map = cluster.guest.get::<ConfigMap>(MAPPING).await.unwrap();
        assert_eq!(config_map.data.unwrap()["other"], "stays");
        assert_eq!(config_map.metadata.labels.unwrap()["foreign"], "stays");
        ccm.stop().await;
    }

    /// As charts before 0.2.13 granted it: there the Go program never starts.
    async fn without_the_right_to_the_mapping_the_vms_alone_count(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let refused = |_: &Method, path: &str| path.contains("configmaps") || path.contains("selfsubjectaccessreviews");
        let guest = limited_to(&cluster.guest, refused);
        let harvester = cluster.harvester.client(User::CloudControllerManager);
        let ccm = Ccm::start_between(&cluster, guest, harvester, |_| ()).await;
        create_service(&cluster, &asking(&cluster), "").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(interface(&cluster).await.as_deref(), Some("enp2s0"));
        assert_eq!(mapping(&cluster).await, None);
        ccm.stop().await;
    }

    /// What it is given of the network goes with the address: its owner wrote none.
    async fn a_service_that_shared_an_address_shares_it_again_whatever_network_its_primary_names(cluster: TestCluster) {
        join(&cluster, "worker-1", "worker-1", "").await;
        report(&cluster, "worker-1", ["enp1s0", "enp2s0"]).await;
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, &asking(&cluster), "").await;
        allocate(&cluster, "127.9.0.1").await;
        let name = async |network: &str| {
            let patch = json!({"metadata": {"annotations": {NETWORK: network}}});
            cluster.guest.patch::<Service>("shop/web", patch).await;
            cluster.settle().await;
        };
        let become_one = async |spec_type: &str| {
            cluster.guest.patch::<Service>("shop/api", json!({"spec": {"type": spec_type}})).await;
            cluster.settle().await;
        };
        // its object stays on its network
        name("team-a/other").await;
        ask(&cluster, "api", 81, "web", "").await;
        for network in ["team-a/other", "team-a/another"] {
            name(network).await;
            assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"), "{network}");
            assert_eq!(annotation(&at(&cluster, "shop/api").await, NETWORK), Some(&*net2(&cluster)));
            become_one("ClusterIP").await;
            assert_eq!(shared(&cluster, "shop/api").await.1, None);
            become_one("LoadBalancer").await;
        }
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        assert_eq!(told_about(&cluster, "api", "NetworkDiffers").await, [""; 0]);
        ccm.stop().await;
    }
}
