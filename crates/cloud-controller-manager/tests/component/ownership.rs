//! The object of a Service beside objects that other tenants of the namespace in Harvester write.

use harvester_api::{LoadBalancer, annotations};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{Ccm, annotation, asked, create_service, service};

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
        assert_eq!(annotation(&served, "kube-vip.io/loadbalancerIPs"), Some("127.9.0.1"));
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        let left: Vec<_> = cluster.harvester.list::<LoadBalancer>().await.iter().map(ResourceExt::name_any).collect();
        assert_eq!(left, ["a-forged"]);
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "delete loadbalancers 200"]);
        ccm.stop().await;
    }
}
