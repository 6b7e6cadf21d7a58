//! Readiness and liveness of the load balancer.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use test_cluster::TestCluster;

use super::fixtures::{Controller, address_of, controller, faults, load_balancer, pool, ready_of};

/// The lists of pools answer after this time.
const SLOW: &str = "[{verb: list, resource: ippools, probability: 1, answer: delay=20s}]";
const ANSWERED: Duration = Duration::from_secs(30);
const LISTING: &str = "lists: not complete yet\n";

/// Long enough for a watch to be tried again.
const MENDED: Duration = Duration::from_secs(120);

/// The role lost the right to list and watch a kind, and every open watch expires.
async fn lose_lists_of(cluster: &TestCluster, resource: &str) {
    let lost = |verb: &str| format!("{{verb: {verb}, resource: {resource}, probability: 1, answer: 403}}");
    faults(cluster, &format!("[{}, {}]", lost("list"), lost("watch"))).await;
    cluster.harvester.simulated().expect("a simulated server").faults().expire_watches();
    cluster.advance(Duration::from_secs(60)).await;
}

async fn holder(cluster: &TestCluster) -> Option<String> {
    let lease = cluster.harvester.get::<Lease>("kube-system/harvester-load-balancer").await?;
    lease.spec?.holder_identity
}

test_cluster::component_tests! {
    #[simulated_only("a list that takes its time")]
    async fn a_leader_is_ready_once_its_lists_are_there_and_alive_before(cluster: TestCluster) {
        faults(&cluster, SLOW).await;
        let first = Controller::start(&cluster, "first");
        tokio::task::yield_now().await;
        assert!(!first.health.readiness_report().is_empty(), "before the first answer of the server");
        cluster.settle().await;
        assert_eq!(holder(&cluster).await.as_deref(), Some("first"));
        assert_eq!(first.health.readiness_report(), LISTING);
        assert_eq!(first.health.liveness_report(), "");
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.advance(ANSWERED).await;
        assert_eq!(first.health.readiness_report(), "");
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
    }

    #[simulated_only("a list that takes its time")]
    async fn a_candidate_that_waits_is_ready_and_once_it_leads_its_lists_count(cluster: TestCluster) {
        let first = Controller::start(&cluster, "first");
        cluster.settle().await;
        faults(&cluster, SLOW).await;
        let second = Controller::start(&cluster, "second");
        cluster.settle().await;
        for candidate in [&first, &second] {
            assert_eq!(candidate.health.readiness_report(), "");
        }
        assert_eq!(holder(&cluster).await.as_deref(), Some("first"));
        first.stop().await;
        cluster.advance(Duration::from_secs(5)).await;
        assert_eq!(holder(&cluster).await.as_deref(), Some("second"));
        assert_eq!(second.health.readiness_report(), LISTING);
        cluster.advance(ANSWERED).await;
        assert_eq!(second.health.readiness_report(), "");
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_leader_that_lost_a_right_to_list_is_not_ready_and_names_it(cluster: TestCluster) {
        let leader = controller(&cluster).await;
        for (resource, right) in [
            ("ippools", "list ippools.loadbalancer.harvesterhci.io"),
            ("loadbalancers", "list loadbalancers.loadbalancer.harvesterhci.io"),
            ("services", "list services"),
            ("endpointslices", "list endpointslices.discovery.k8s.io"),
        ] {
            assert_eq!(leader.health.readiness_report(), "");
            lose_lists_of(&cluster, resource).await;
            let report = leader.health.readiness_report();
            assert!(report.starts_with(&format!("lists: {right}: ")), "{report}");
            faults(&cluster, "[]").await;
            cluster.advance(MENDED).await;
        }
    }

    #[simulated_only("faults are the simulated server's")]
    async fn no_condition_says_that_a_pool_is_missing_while_pools_cannot_be_listed(cluster: TestCluster) {
        let _leader = controller(&cluster).await;
        lose_lists_of(&cluster, "ippools").await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", ", ipPool: edge").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!(ready.reason, "NotListed");
        assert!(ready.message.contains("list ippools.loadbalancer.harvesterhci.io"), "{}", ready.message);
        assert!(!ready.message.contains("no such"), "{}", ready.message);
        faults(&cluster, "[]").await;
        cluster.advance(MENDED).await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
    }
}
