//! Readiness and liveness of the load balancer (issue 8, row 10).

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use test_cluster::TestCluster;

use super::fixtures::{Controller, address_of, faults, load_balancer, pool};

/// The lists of pools answer after this time.
const SLOW: &str = "[{verb: list, resource: ippools, probability: 1, answer: delay=20s}]";
const ANSWERED: Duration = Duration::from_secs(30);
const LISTING: &str = "lists: not complete yet\n";

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
}
