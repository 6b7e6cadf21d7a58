//! Source ranges of load balancers of VMs.

use harvester_api::{LoadBalancer, annotations};
use serde_json::json;
use test_cluster::TestCluster;

use super::lab::Lab;

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
}
