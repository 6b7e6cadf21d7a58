//! The object of a Service beside objects that other tenants of the namespace in Harvester write.

use std::time::Duration;

use cloud_controller_manager::cluster::GuestCluster;
use harvester_api::{LoadBalancer, annotations, labels};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{Ccm, LOADBALANCER_IPS, annotation, asked, create_service, service, told};

const FORGED: &str = "team-a/a-forged";

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
}
