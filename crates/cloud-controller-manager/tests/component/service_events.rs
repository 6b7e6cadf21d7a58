//! What a Service on the guest datapath hears about itself.

use cloud_controller_manager::datapath::Policy;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{
    Ccm, FINALIZER, LOADBALANCER_IPS, allocate, annotation, asked, create_service, events, finalizers,
    harvester_says, load_balancer, service, told, until,
};

test_cluster::component_tests! {
    async fn a_cloud_config_that_may_do_nothing_is_told_on_every_service_that_waits(cluster: TestCluster) {
        let elsewhere = "not-ours".to_owned();
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.namespace = elsewhere).await;
        create_service(&cluster, "{}", "").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SyncLoadBalancerFailed").await == 1).await;
        let (_, message) = events(&cluster).await.remove(0);
        assert!(message.contains("in namespace not-ours of Harvester cannot be listed: loadbalancers"), "{message}");
        assert!(message.contains("correct the cloud-config"), "{message}");
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#L4 and #L5
    async fn what_harvester_waits_for_is_told_and_success_comes_by_itself(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        assert_eq!(told(&cluster, "SyncLoadBalancerFailed").await, 0);
        let ready = json!({"type": "Ready", "status": "False", "message": "no pool matches, add a range"});
        harvester_says(&cluster, json!({"status": {"conditions": [ready]}})).await;
        let all = events(&cluster).await;
        let failed = all.iter().find(|(reason, _)| reason == "SyncLoadBalancerFailed");
        assert!(failed.is_some_and(|(_, message)| message.contains("no pool matches, add a range")), "{all:?}");
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [FINALIZER]);
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_changed_ipam_is_told_and_the_address_stays(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.harvester.forget_requests();
        let change = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ipam": "dhcp"}}});
        cluster.guest.patch::<Service>("shop/web", change).await;
        cluster.settle().await;
        assert_eq!(told(&cluster, "IPAMFixed").await, 1);
        assert_eq!(asked(&cluster.harvester), Vec::<String>::new());
        ccm.stop().await;
    }

    async fn a_changed_network_is_told_and_the_address_stays(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        let change = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/network": "default/vlan9"}}});
        cluster.guest.patch::<Service>("shop/web", change).await;
        until(&cluster, "the Service is told", async || told(&cluster, "NetworkFixed").await == 1).await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_wrong_service_gets_one_event_with_every_fault_and_no_object(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let wrong = "{cloudprovider.harvesterhci.io/ipam: static, cloudprovider.harvesterhci.io/primary-service: a/b/c,
            cloudprovider.harvesterhci.io/data-path: host}";
        create_service(&cluster, wrong, "loadBalancerSourceRanges: ['fd00::/8']").await;
        let all = events(&cluster).await;
        assert_eq!(all.len(), 1, "{all:?}");
        for part in ["ipam", "\"static\"", "primary-service", "spec.loadBalancerSourceRanges"] {
            assert!(all[0].1.contains(part), "{part} is not in {all:?}");
        }
        assert_eq!(load_balancer(&cluster).await, None);
        // corrected, it is served
        let right = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ipam": "ippool",
            "cloudprovider.harvesterhci.io/primary-service": null, "cloudprovider.harvesterhci.io/data-path": "guest"}},
            "spec": {"loadBalancerSourceRanges": null}});
        cluster.guest.patch::<Service>("shop/web", right).await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    async fn an_address_that_a_user_asks_kube_vip_for_is_told_once_and_the_service_gets_its_own(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let keys = "{kube-vip.io/loadbalancerIPs: 127.9.0.9}";
        create_service(&cluster, keys, "").await;
        allocate(&cluster, "127.9.0.1").await;
        let all = events(&cluster).await;
        let named: Vec<_> = all.iter().filter(|(reason, _)| reason == "AnnotationHasNoEffect").collect();
        assert!(named.len() == 1 && named[0].1.contains(LOADBALANCER_IPS), "{all:?}");
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_cluster_without_nodes_is_told_and_has_its_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(told(&cluster, "UnAvailableLoadBalancer").await, 1);
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_health_check_on_the_guest_datapath_names_the_flag(cluster: TestCluster) {
        let policy = Policy::Guest;
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.policy = policy).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/healthcheck-port: nonsense}", "").await;
        let all = events(&cluster).await;
        let told = all.iter().filter(|(reason, text)| reason == "HealthCheckNotEnforced" && text.contains("--data-path"));
        assert_eq!(told.count(), 1, "{all:?}");
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }
}
