//! The object of a Service beside objects that other tenants of the namespace in Harvester write.

use std::time::Duration;

use cloud_controller_manager::cluster::GuestCluster;
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{Ccm, LOADBALANCER_IPS, annotation, asked, create_service, service, told};

const FORGED: &str = "team-a/a-forged";

/// Another tenant writes an object of our cluster for a Service that is not there, with these annotations beside it.
async fn forge(cluster: &TestCluster, more: &[(&str, String)]) {
    let kubernetes = cluster.guest.get::<Service>("default/kubernetes").await.expect("every cluster has it");
    let mut annotations = json!({annotations::CLUSTER_UID: kubernetes.uid()});
    for (key, value) in more {
        annotations[*key] = json!(value);
    }
    let labels = json!({labels::SERVICE_NAMESPACE: "default", labels::SERVICE_NAME: "web"});
    let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "a-forged", "namespace": "team-a", "annotations": annotations, "labels": labels},
        "spec": {"workloadType": "cluster", "ipam": "pool"}});
    cluster.harvester.apply(&object.to_string()).await;
}

test_cluster::component_tests! {
    /// docs/contract/addresses.md#4: the Service's UID can be read from its object, so anybody there can write it.
    async fn an_object_that_another_tenant_annotates_with_our_service_is_neither_used_nor_deleted(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let made = cluster.harvester.list::<LoadBalancer>().await.remove(0);
        let yaml = format!(
            "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: a-forged
  namespace: team-a
  annotations: {{{}: of-another-cluster, {}: {}}}
spec: {{workloadType: cluster, ipam: pool}}
",
            annotations::CLUSTER_UID,
            annotations::SERVICE_UID,
            service(&cluster).await.unwrap().uid().unwrap(),
        );
        cluster.harvester.apply(&yaml).await;
        cluster.settle().await;
        let patch = json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": "127.9.0.6"}}});
        cluster.harvester.patch::<LoadBalancer>(FORGED, patch).await;
        let ours = format!("team-a/{}", made.name_any());
        let patch = json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": "127.9.0.1"}}});
        cluster.harvester.patch::<LoadBalancer>(&ours, patch).await;
        cluster.settle().await;
        let served = service(&cluster).await.unwrap();
        assert_eq!(annotation(&served, LOADBALANCER_IPS), Some("127.9.0.1"));
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        let left: Vec<_> = cluster.harvester.list::<LoadBalancer>().await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["a-forged"]);
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "delete loadbalancers 200"]);
        ccm.stop().await;
    }

    /// The Go program made an object under each name that the cluster had, and left the former one.
    #[simulated_only("waits half a minute")]
    async fn of_two_objects_of_the_go_program_the_one_with_the_address_of_the_service_is_taken_over(cluster: TestCluster) {
        create_service(&cluster, "{kube-vip.io/loadbalancerIPs: 127.9.0.8}", "").await;
        let uid = service(&cluster).await.unwrap().uid().unwrap();
        let blue = cluster.guest_cluster().name.clone();
        let [former, stale] = [("kubernetes", "127.9.0.8"), (blue.as_str(), "127.9.0.7")].map(|(name, ip)| {
            (name, GuestCluster::new(name).load_balancer_name("shop", "web", &uid), ip)
        });
        for (cluster_name, name, ip) in [&former, &stale] {
            let yaml = format!(
                "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: {name}
  namespace: team-a
  labels: {{{}: {cluster_name}, {}: shop, {}: web}}
spec: {{workloadType: cluster, ipam: pool}}
",
                labels::CLUSTER,
                labels::SERVICE_NAMESPACE,
                labels::SERVICE_NAME,
            );
            cluster.harvester.apply(&yaml).await;
            let patch = json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": ip}}});
            cluster.harvester.patch::<LoadBalancer>(&format!("team-a/{name}"), patch).await;
        }
        let ccm = Ccm::start(&cluster).await;
        cluster.advance(Duration::from_secs(60)).await;
        let served = service(&cluster).await.unwrap();
        assert_eq!(annotation(&served, LOADBALANCER_IPS), Some("127.9.0.8"));
        assert_eq!(told(&cluster, "LoadBalancerWithoutService").await, 1);
        let reported = async |(_, name, _): &(&str, String, &str)| {
            let object = cluster.harvester.get::<LoadBalancer>(&format!("team-a/{name}")).await.unwrap();
            object.annotations().contains_key(annotations::WITHOUT_SERVICE)
        };
        assert_eq!([reported(&former).await, reported(&stale).await], [false, true]);
        ccm.stop().await;
    }

    /// docs/contract/addresses.md#4: anybody there may write any annotation, and the Event is the guest cluster's.
    #[simulated_only("waits half a minute")]
    async fn an_event_about_an_object_without_service_is_short_whatever_stands_in_the_object(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        forge(&cluster, &[(annotations::SERVICE_UID, "x".repeat(240_000))]).await;
        cluster.advance(Duration::from_secs(60)).await;
        let events = cluster.guest.list::<Event>().await;
        let event = events.iter().find(|event| event.reason.as_deref() == Some("LoadBalancerWithoutService"));
        assert!(serde_json::to_string(event.expect("it is told")).unwrap().len() < 2_048);
        ccm.stop().await;
    }

    #[simulated_only("waits ten minutes")]
    async fn an_object_without_service_that_changes_without_end_is_told_once_in_ten_minutes(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        for n in 0..10 {
            let uid = format!("00000000-0000-4000-8000-{n:012}");
            forge(&cluster, &[(annotations::SERVICE_UID, uid)]).await;
            let unmarked = json!({"metadata": {"annotations": {annotations::WITHOUT_SERVICE: null}}});
            cluster.harvester.patch::<LoadBalancer>(FORGED, unmarked).await;
            cluster.advance(Duration::from_secs(45)).await;
        }
        assert_eq!(told(&cluster, "LoadBalancerWithoutService").await, 1);
        let written = || asked(&cluster.harvester).iter().filter(|it| it.starts_with("update")).count();
        assert_eq!(written(), 1);
        cluster.advance(Duration::from_secs(600)).await;
        assert_eq!(written(), 2, "the mark is put back");
        ccm.stop().await;
    }

    /// The server refuses annotations of more than a quarter of a megabyte.
    #[simulated_only("waits half a minute")]
    async fn an_object_that_cannot_be_marked_is_tried_once(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        forge(&cluster, &[("x", "x".repeat(262_000))]).await;
        cluster.advance(Duration::from_secs(600)).await;
        let written: Vec<_> = asked(&cluster.harvester).into_iter().filter(|it| it.starts_with("update")).collect();
        assert_eq!(written, ["update loadbalancers 422"]);
        assert_eq!(told(&cluster, "LoadBalancerWithoutService").await, 1);
        ccm.stop().await;
    }
}
