//! Objects that this program did not make for the Service of today, or that have none: taken over, or reported and kept.

use std::time::Duration;

use cloud_controller_manager::cluster::GuestCluster;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{
    Ccm, LOADBALANCER_IPS, allocate, annotation, asked, create_service, harvester_says, load_balancer,
    service, set_type, told,
};

/// The object of a Service from which somebody stripped the finalizer.
async fn leave_without_service(cluster: &TestCluster) {
    let ccm = Ccm::start(cluster).await;
    create_service(cluster, "{}", "").await;
    allocate(cluster, "127.9.0.1").await;
    ccm.stop().await;
    cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": null}})).await;
    cluster.guest.delete::<Service>("shop/web").await;
}

test_cluster::component_tests! {
    /// As a program leaves it that was stopped in front of its POST, and as somebody does who strips finalizers.
    #[simulated_only("half a minute of patience")]
    async fn an_object_whose_service_is_gone_is_told_and_kept(cluster: TestCluster) {
        leave_without_service(&cluster).await;
        let ccm = Ccm::start(&cluster).await;
        cluster.advance(Duration::from_secs(25)).await;
        let reported = async || {
            let annotations = load_balancer(&cluster).await.expect("nobody deletes it").metadata.annotations.unwrap();
            annotations.get("cloudprovider.harvesterhci.io/without-service").cloned()
        };
        assert_eq!(reported().await, None);
        cluster.advance(Duration::from_secs(10)).await;
        let sentence = reported().await.unwrap();
        assert!(sentence.starts_with("Service shop/web of guest cluster blue is gone: delete LoadBalancer"), "{sentence}");
        assert_eq!(told(&cluster, "LoadBalancerWithoutService").await, 1);

        ccm.stop().await;
        cluster.harvester.forget_requests();
        let ccm = Ccm::start(&cluster).await;
        cluster.advance(Duration::from_secs(3600)).await;
        assert_eq!(asked(&cluster.harvester), Vec::<String>::new(), "told once");
        ccm.stop().await;
    }

    /// The object of the Go program has our computed name and none of our annotations.
    async fn an_object_of_the_go_program_is_taken_over_with_its_address(cluster: TestCluster) {
        create_service(&cluster, "{}", "").await;
        let uid = service(&cluster).await.unwrap().metadata.uid.unwrap();
        let name = GuestCluster::new("blue").load_balancer_name("shop", "web", &uid);
        let yaml = format!(
            "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: {name}
  namespace: team-a
  annotations: {{loadbalancer.harvesterhci.io/network: default/mgmt, loadbalancer.harvesterhci.io/cluster: blue}}
  labels:
    cloudprovider.harvesterhci.io/cluster: blue
    cloudprovider.harvesterhci.io/serviceNamespace: shop
    cloudprovider.harvesterhci.io/serviceName: web
spec: {{workloadType: cluster, ipam: pool}}
status: {{allocatedAddress: {{ipPool: lab, ip: 127.9.0.3}}}}
"
        );
        cluster.harvester.apply(&yaml).await;
        let ccm = Ccm::start(&cluster).await;
        let taken = load_balancer(&cluster).await.unwrap();
        let annotations = taken.metadata.annotations.unwrap();
        assert_eq!(annotations["cloudprovider.harvesterhci.io/service-uid"], uid);
        assert_eq!(annotations["loadbalancer.harvesterhci.io/network"], "default/mgmt");
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
        ccm.stop().await;
    }

    /// docs/contract/addresses.md#4: made while nobody had given the cluster a name.
    async fn an_object_that_was_made_under_the_name_kubernetes_is_taken_over(cluster: TestCluster) {
        for labels in [true, false] {
            create_service(&cluster, "{}", "").await;
            let uid = service(&cluster).await.unwrap().metadata.uid.unwrap();
            let nameless = GuestCluster::new("kubernetes");
            let name = nameless.load_balancer_name("shop", "web", &uid);
            let labels = if labels {
                "{cloudprovider.harvesterhci.io/cluster: kubernetes, cloudprovider.harvesterhci.io/serviceNamespace: shop,
                  cloudprovider.harvesterhci.io/serviceName: web}"
            } else {
                "{}"
            };
            cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {{name: {name}, namespace: \
                 team-a, annotations: {{loadbalancer.harvesterhci.io/cluster: kubernetes}}, labels: {labels}}}, spec: \
                 {{workloadType: cluster, ipam: pool}}, status: {{allocatedAddress: {{ipPool: lab, ip: 127.9.0.3}}}}}}"
            )).await;
            let ccm = Ccm::start(&cluster).await;
            let taken = load_balancer(&cluster).await.unwrap();
            assert_eq!(taken.metadata.name.as_deref(), Some(&*name));
            assert_eq!(taken.metadata.annotations.unwrap()["cloudprovider.harvesterhci.io/service-uid"], uid);
            assert_eq!(taken.metadata.labels.unwrap()["cloudprovider.harvesterhci.io/cluster"], "blue");
            assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
            cluster.guest.delete::<Service>("shop/web").await;
            cluster.settle().await;
            assert_eq!(load_balancer(&cluster).await, None);
            ccm.stop().await;
        }
    }

    /// docs/contract/addresses.md#4: restored from a backup, it has a new UID.
    async fn an_object_of_this_cluster_serves_the_service_that_was_made_again(cluster: TestCluster) {
        create_service(&cluster, "{}", "").await;
        cluster.harvester.apply(
            "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: blue-shop-web-0
  namespace: team-a
  annotations: {loadbalancer.harvesterhci.io/cluster: blue}
  labels:
    cloudprovider.harvesterhci.io/cluster: blue
    cloudprovider.harvesterhci.io/serviceNamespace: shop
    cloudprovider.harvesterhci.io/serviceName: web
spec: {workloadType: cluster, ipam: pool}
status: {allocatedAddress: {ipPool: lab, ip: 127.9.0.3}}
",
        ).await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().metadata.name.as_deref(), Some("blue-shop-web-0"));
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
        ccm.stop().await;
    }

    /// docs/contract/addresses.md#4: an object without Service is never deleted on its own.
    async fn a_cluster_ip_with_the_name_of_a_former_service_does_not_take_its_object_away(cluster: TestCluster) {
        leave_without_service(&cluster).await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}",
        ).await;
        let ccm = Ccm::start(&cluster).await;
        harvester_says(&cluster, json!({"metadata": {"annotations": {"foreign": "x"}}})).await;
        assert!(load_balancer(&cluster).await.unwrap().metadata.deletion_timestamp.is_none());
        // the next one that asks for a load balancer gets the address
        set_type(&cluster, "LoadBalancer").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L34: in Go another cluster name orphans every object.
    async fn another_cluster_name_keeps_the_objects(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let name = load_balancer(&cluster).await.unwrap().metadata.name;
        ccm.stop().await;
        let green = GuestCluster::new("green");
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.cluster = green).await;
        let kept = load_balancer(&cluster).await.unwrap();
        assert_eq!(kept.metadata.name, name);
        assert_eq!(kept.metadata.labels.unwrap()["cloudprovider.harvesterhci.io/cluster"], "green");
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }
}
