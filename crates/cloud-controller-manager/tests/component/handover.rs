//! Services whose address kube-vip in the guest is to announce, and does not at first.

use std::time::Duration;

use cloud_controller_manager::datapath::AllowedDatapaths;
use harvester_api::LoadBalancer;
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::{
    harness::{
        Ccm, allocate, annotation, announced_service, create_service, events, harvester_says, ingress,
        load_balancer, service, set_type, told,
    },
    host_datapath::{CHECKED, IGNORE, spec, start_with_two_nodes},
};

test_cluster::component_tests! {
    /// docs/contract/data-paths.md#row-2: while the annotation stays nobody announces, and without it kube-vip takes an
    /// address from the status, which may be another's by then.
    async fn a_service_whose_host_datapath_is_excluded_goes_to_kube_vip_with_its_object(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, json!({"status": {"address": "127.9.0.1"}})).await;
        assert_eq!(ingress(&service(&cluster).await.unwrap()), ["127.9.0.1"]);
        ccm.stop().await;
        let guest_only = AllowedDatapaths { guest: true, host: false };
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.allowed = guest_only).await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), IGNORE), Some("true"), "the object stands");
        let key = format!("team-a/{}", load_balancer(&cluster).await.unwrap().metadata.name.unwrap());
        cluster.guest.forget_requests();
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        let handed_over = service(&cluster).await.unwrap();
        assert_eq!((annotation(&handed_over, IGNORE), ingress(&handed_over)), (None, vec![]));
        let work = cluster.guest.work_of(User::CloudControllerManager);
        let of_the_status: Vec<_> = work.iter().map(|request| request.uri.contains("/web/status")).collect();
        assert_eq!(of_the_status, [true, false], "the status first, {work:?}");
        assert_eq!(spec(&load_balancer(&cluster).await.unwrap())["workloadType"], "cluster");
        ccm.stop().await;
    }

    /// docs/contract/kube-vip.md#written-once: kube-vip passed over the change of the type, and nobody else writes the
    /// status.
    #[simulated_only("waits a minute")]
    async fn an_address_that_kube_vip_does_not_write_a_second_time_is_told_once(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        set_type(&cluster, "ClusterIP").await;
        assert_eq!(ingress(&service(&cluster).await.unwrap()), [""; 0]);
        set_type(&cluster, "LoadBalancer").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.advance(Duration::from_secs(50)).await;
        assert_eq!(told(&cluster, "AddressNotPublished").await, 0);
        cluster.advance(Duration::from_secs(600)).await;
        let all = events(&cluster).await;
        let told: Vec<_> = all.iter().filter(|(reason, _)| reason == "AddressNotPublished").collect();
        assert!(told.len() == 1 && told[0].1.contains("127.9.0.1"), "{all:?}");
        assert_eq!(ingress(&service(&cluster).await.unwrap()), [""; 0]);
        ccm.stop().await;
    }
}
