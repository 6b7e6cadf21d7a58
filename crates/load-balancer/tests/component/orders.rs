//! Orders that pools do not carry out keep nothing waiting but further orders.

use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer};
use serde_json::json;
use test_cluster::TestCluster;

use super::fixtures::{address_of, faults, granted, pool, ready_of, record_of, status_of, work};
use super::lab::{A_WHILE, Lab};

const CHECK: &str =
    "{port: 8080, successThreshold: 1, failureThreshold: 1, periodSeconds: 1, timeoutSeconds: 1}";
const BACKEND: &str = "192.168.7.11";
/// The first address of the lab's pool.
const ADDRESS: &str = "203.0.113.2";

/// PUTs of the pool get this answer.
async fn writes_get(lab: &Lab, pool: &str, answer: &str) {
    let rules = format!("[{{verb: update, resource: ippools, name: {pool}, answer: {answer}}}]");
    faults(&lab.cluster, &rules).await;
}

/// A load balancer that serves, and that is told to move to pool `core`, whose PUTs get this answer.
async fn moving(cluster: TestCluster, answer: &str) -> Lab {
    let lab = Lab::start(cluster).await;
    lab.vm("api-1", "api", BACKEND).await;
    lab.answer(BACKEND);
    lab.web(CHECK).await;
    lab.until_endpoints(&["192.168.7.11+"]).await;
    lab.announce().await;
    lab.until_ready_says("").await;
    pool(&lab.cluster, "core", 30, 40).await;
    lab.cluster.advance(A_WHILE).await;
    writes_get(&lab, "core", answer).await;
    lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": "core"}})).await;
    lab.cluster.advance(Duration::from_secs(1)).await;
    lab
}

async fn verdict_reaches_the_slice(cluster: TestCluster, answer: &str) {
    let lab = moving(cluster, answer).await;
    lab.refuse(BACKEND);
    lab.cluster.advance(Duration::from_secs(8)).await;
    assert_eq!(lab.endpoints().await, [(BACKEND.to_owned(), false), ("dummy".to_owned(), true)]);
    assert_eq!(record_of(&lab.cluster, "core").await.allocated.len(), 0, "the claim still waits");
    assert_eq!(ready_of(&lab.cluster, "web").await.reason, "NoHealthyBackend");
    assert_eq!(status_of(&lab.cluster, "web").await.address, ADDRESS);
}

async fn lost_address_is_withdrawn(cluster: TestCluster, answer: &str) {
    let lab = Lab::serving(cluster).await;
    writes_get(&lab, "edge", answer).await;
    let stolen = json!({"status": {"allocated": {ADDRESS: "machines/node-1"}}});
    lab.cluster.harvester.patch::<IPPool>("edge", stolen).await;
    lab.cluster.advance(Duration::from_secs(10)).await;
    assert_eq!(lab.endpoints().await, [], "nobody serves it");
    // the existing role may not delete Services
    assert!(lab.service().await.is_none() || granted(&lab.cluster, 1) == 0, "nobody announces it");
    let status = status_of(&lab.cluster, "web").await;
    assert_eq!((status.address.as_str(), status.allocated_address), ("", None));
    let held_by = (ADDRESS.to_owned(), "machines/node-1".to_owned());
    let held = record_of(&lab.cluster, "edge").await.allocated;
    assert_eq!(held.into_iter().collect::<Vec<_>>(), [held_by], "the claim still waits");
    faults(&lab.cluster, "[]").await;
    lab.cluster.advance(Duration::from_secs(120)).await;
    assert_eq!(address_of(&lab.cluster, "web").await, "203.0.113.3");
    lab.until_endpoints(&["192.168.7.11+"]).await;
    let service = lab.service().await.expect("it is served again");
    assert_eq!(service.spec.unwrap().load_balancer_ip.as_deref(), Some("203.0.113.3"));
}

test_cluster::component_tests! {
    #[simulated_only("faults are the simulated server's")]
    async fn a_backends_verdict_reaches_the_slice_while_an_order_is_under_way(cluster: TestCluster) {
        verdict_reaches_the_slice(cluster, "delay=600s").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_backends_verdict_reaches_the_slice_while_a_pool_cannot_be_written(cluster: TestCluster) {
        verdict_reaches_the_slice(cluster, "500").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_lost_address_is_withdrawn_while_the_order_of_another_is_under_way(cluster: TestCluster) {
        lost_address_is_withdrawn(cluster, "delay=30s").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_lost_address_is_withdrawn_while_the_pool_cannot_be_written(cluster: TestCluster) {
        lost_address_is_withdrawn(cluster, "500").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_refused_claim_is_sent_again_when_a_pool_changes_and_not_because_of_our_own_writes(cluster: TestCluster) {
        let lab = Lab::start(cluster).await;
        lab.cluster.settle().await;
        writes_get(&lab, "edge", "403").await;
        lab.cluster.harvester.forget_requests();
        lab.web("{}").await;
        lab.cluster.advance(Duration::from_secs(30)).await;
        assert_eq!(ready_of(&lab.cluster, "web").await.reason, "PoolNotWritten");
        let work = work(&lab.cluster);
        let puts = work.iter().filter(|request| request.verb == "update" && request.resource() == "ippools");
        assert_eq!(puts.count(), 1);
        faults(&lab.cluster, "[]").await;
        lab.cluster.harvester.patch::<IPPool>("edge", json!({"spec": {"description": "mended"}})).await;
        lab.cluster.advance(Duration::from_secs(1)).await;
        assert_eq!(address_of(&lab.cluster, "web").await, ADDRESS);
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_pool_that_cannot_be_written_is_asked_no_more_often_because_backends_flap(cluster: TestCluster) {
        let lab = moving(cluster, "500").await;
        lab.cluster.harvester.forget_requests();
        for _ in 0..30 {
            lab.refuse(BACKEND);
            lab.cluster.advance(Duration::from_secs(1)).await;
            lab.answer(BACKEND);
            lab.cluster.advance(Duration::from_secs(1)).await;
        }
        let work = work(&lab.cluster);
        let puts = |resource: &str| {
            work.iter().filter(|request| request.verb == "update" && request.resource() == resource).count()
        };
        assert!(puts("endpointslices") >= 5, "{}", puts("endpointslices"));
        assert!((3..=8).contains(&puts("ippools")), "5 ms, 10 ms, ... 30 s: {}", puts("ippools"));
    }
}
