//! Orders that pools do not carry out keep nothing waiting but further orders.

use std::time::Duration;

use harvester_api::{IPPool, LoadBalancer};
use serde_json::json;
use test_cluster::TestCluster;

use super::fixtures::{
    address_of, controller, faults, granted, load_balancer, pool, ready_of, record_of, status_of, work,
};
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

/// PUTs of the pool since the last look.
fn puts_of(cluster: &TestCluster, pool: &str) -> usize {
    let is_put = |request: &test_cluster::Request| {
        let path = request.uri.split('?').next().unwrap_or_default();
        request.verb == "update" && path.ends_with(&format!("/ippools/{pool}"))
    };
    work(cluster).iter().filter(|request| is_put(request)).count()
}

/// The pool records one more address for `web`.
async fn record(cluster: &TestCluster, pool: &str, address: &str) {
    let recorded = json!({"status": {"allocated": {address: "team-a/web"}}});
    cluster.harvester.patch::<IPPool>(pool, recorded).await;
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

    #[simulated_only("counts writes by the clock")]
    async fn releases_that_fail_in_several_pools_are_sent_again_later_and_later(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        pool(&cluster, "core", 30, 40).await;
        load_balancer(&cluster, "web", ", ipPool: edge").await;
        cluster.settle().await;
        // each release reads the Service: a read that takes its time lets a hot loop end
        faults(&cluster, "[{verb: update, resource: ippools, answer: 500},
            {verb: get, resource: services, answer: delay=50ms}]").await;
        record(&cluster, "core", "192.0.2.30").await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(60)).await;
        for pool in ["core", "edge"] {
            // the controller of pools writes the counts of `core`, and fails as often
            let puts = puts_of(&cluster, pool);
            assert!((3..=30).contains(&puts), "{puts} of {pool}: 5 ms, 10 ms, ... 30 s");
        }
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(60)).await;
        assert!(cluster.harvester.list::<LoadBalancer>().await.is_empty());
        for pool in ["core", "edge"] {
            assert_eq!(record_of(&cluster, pool).await.allocated.len(), 0, "{pool}");
        }
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_release_that_fails_lets_a_denied_claim_wait_and_its_condition_stand(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        pool(&lab.cluster, "core", 30, 40).await;
        pool(&lab.cluster, "lab", 50, 60).await;
        let to = |pool: &str| json!({"spec": {"ipPool": pool}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", to("lab")).await;
        lab.cluster.advance(A_WHILE).await;
        faults(&lab.cluster, "[{verb: update, resource: ippools, name: core, answer: 403},
            {verb: update, resource: ippools, name: edge, answer: 500}]").await;
        lab.announce().await;
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", to("core")).await;
        lab.cluster.advance(Duration::from_secs(2)).await;
        assert_eq!(ready_of(&lab.cluster, "web").await.reason, "PoolNotWritten");
        lab.cluster.harvester.forget_requests();
        lab.cluster.advance(Duration::from_secs(20)).await;
        assert!(puts_of(&lab.cluster, "edge") >= 1, "the release of the first address is tried again");
        assert_eq!(puts_of(&lab.cluster, "core"), 0, "the claim was denied less than a minute ago");
        let work = work(&lab.cluster);
        let told = work.iter().filter(|request| request.is_write() && request.resource() == "loadbalancers");
        assert_eq!(told.count(), 0, "the condition says the same");
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_pool_that_cannot_be_written_is_asked_later_and_later_also_behind_one_that_refuses(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "second", 30, 40).await;
        pool(&cluster, "first", 10, 20).await;
        let full = json!({"spec": {"description": "x".repeat(1_200_000), "selector": {"priority": 9}}});
        cluster.harvester.patch::<IPPool>("first", full).await;
        cluster.settle().await;
        faults(&cluster, "[{verb: update, resource: ippools, name: second, answer: 500}]").await;
        cluster.harvester.forget_requests();
        load_balancer(&cluster, "web", "").await;
        cluster.advance(Duration::from_secs(10)).await;
        let puts = puts_of(&cluster, "second");
        assert!((3..=20).contains(&puts), "{puts}: 5 ms, 10 ms, ... 5 s");
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(30)).await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
    }
}
