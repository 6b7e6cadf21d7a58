//! Source ranges of load balancers of VMs.

use std::time::Duration;

use harvester_api::{LoadBalancer, annotations};
use serde_json::json;
use test_cluster::TestCluster;

use super::fixtures::faults;
use super::lab::{A_WHILE, Lab};

test_cluster::component_tests! {
    // docs/contract/data-paths.md#row-15-harvester
    async fn source_ranges_are_on_the_service_before_they_are_confirmed(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let ask = |ranges: serde_json::Value| {
            let patch = json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): ranges}}});
            let cluster = &lab.cluster;
            async move {
                cluster.harvester.patch::<LoadBalancer>("team-a/web", patch).await;
                cluster.settle().await;
            }
        };
        let has = || async {
            let spec = lab.service().await.unwrap().spec.unwrap();
            let applied = lab.load_balancer().await.metadata.annotations.unwrap_or_default();
            let applied = applied.get(annotations::SOURCE_RANGES_APPLIED).cloned();
            (spec.load_balancer_source_ranges.unwrap_or_default().join(","), applied.unwrap_or_default())
        };
        let both = |ranges: &str| (ranges.to_owned(), ranges.to_owned());
        lab.writes();
        ask("10.0.0.0/8,192.0.2.0/24".into()).await;
        assert_eq!(has().await, both("10.0.0.0/8,192.0.2.0/24"));
        assert_eq!(lab.writes(), ["update services 200", "update loadbalancers 200"]);
        ask("10.0.0.0/8".into()).await;
        assert_eq!(has().await, both("10.0.0.0/8"));
        ask("everybody".into()).await;
        assert_eq!(has().await, ("10.0.0.0/8".to_owned(), String::new()));
        assert_eq!(lab.ready().await.unwrap().reason, "InvalidSourceRanges");
        lab.until_endpoints(&["dummy+"]).await;
        ask(serde_json::Value::Null).await;
        assert_eq!(has().await, both(""));
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.until_ready_says("").await;
    }

    // docs/contract/data-paths.md#row-15-harvester: the cloud controller manager takes the selector out until then
    #[simulated_only("before the time at which a VM that left by itself may come back")]
    async fn backends_come_back_as_soon_as_narrower_source_ranges_are_in_force(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.cluster.advance(A_WHILE).await;
        let both = lab.endpoints().await;
        for ranges in ["10.0.0.0/8", "10.0.0.0/9"] {
            let narrowed = json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): ranges}},
                "spec": {"backendServerSelector": null}});
            lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", narrowed).await;
            lab.cluster.settle().await;
            assert_eq!(lab.endpoints().await, [("dummy".to_owned(), true)], "nobody gets in before");
            let confirmed = lab.load_balancer().await.metadata.annotations.unwrap_or_default();
            assert_eq!(confirmed.get(annotations::SOURCE_RANGES_APPLIED).map(String::as_str), Some(ranges));
            let selecting = json!({"spec": {"backendServerSelector": {"tier": ["api"]}}});
            lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", selecting).await;
            lab.cluster.advance(Duration::from_millis(500)).await;
            assert_eq!(lab.endpoints().await, both, "{ranges}");
        }
    }

    async fn ranges_with_host_bits_are_in_force_on_every_server(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        let patch = json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): "10.0.0.5/8"}}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", patch).await;
        lab.cluster.settle().await;
        let spec = lab.service().await.unwrap().spec.unwrap();
        assert_eq!(spec.load_balancer_source_ranges, Some(vec!["10.0.0.0/8".to_owned()]));
        lab.until_endpoints(&["192.168.7.11+"]).await;
        lab.until_ready_says("").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn nobody_is_let_in_while_the_server_refuses_the_ranges(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        faults(&lab.cluster, "[{verb: update, resource: services, probability: 1, answer: 403}]").await;
        let patch = json!({"metadata": {"annotations": {(annotations::SOURCE_RANGES): "10.0.0.0/8"}}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", patch).await;
        lab.until_endpoints(&["dummy+"]).await;
        assert_eq!(lab.ready().await.unwrap().reason, "ServiceRefused");
        lab.writes();
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.cluster.settle().await;
        let writes = lab.writes();
        assert!(!writes.iter().any(|write| write.contains("endpointslices")), "{writes:?}");
        faults(&lab.cluster, "[]").await;
        lab.cluster.advance(A_WHILE * 3).await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.until_ready_says("").await;
    }
}
