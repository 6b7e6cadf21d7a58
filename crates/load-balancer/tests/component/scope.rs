//! Pools that are named by load balancers whom their selectors do not admit: docs/contract/load-balancer.md#S-2

use harvester_api::{ConditionStatus, IPPool};
use serde_json::json;
use test_cluster::TestCluster;

use super::fixtures::{Controller, address_of, controller, in_step, load_balancer, pool, ready_of};

async fn admit(cluster: &TestCluster, pool: &str, namespace: &str) {
    let scope = json!([{"project": "*", "namespace": namespace, "guestCluster": "*"}]);
    cluster.harvester.patch::<IPPool>(pool, json!({"spec": {"selector": {"scope": scope}}})).await;
}

test_cluster::component_tests! {
    async fn a_load_balancer_waits_for_the_selector_of_the_pool_that_it_names(cluster: TestCluster) {
        pool(&cluster, "theirs", 10, 20).await;
        admit(&cluster, "theirs", "team-b").await;
        let _running = Controller::enforcing_scope(&cluster);
        load_balancer(&cluster, "web", ", ipPool: theirs").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "PoolNotAllowed"));
        assert!(ready.message.starts_with("pool theirs does not serve this load balancer"), "{}", ready.message);
        assert_eq!(address_of(&cluster, "web").await, "");
        admit(&cluster, "theirs", "team-a").await;
        cluster.settle().await;
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        assert_ne!(address_of(&cluster, "web").await, "");
        in_step(&cluster).await;
    }

    async fn one_that_stands_keeps_its_address_when_the_selector_begins_to_count(cluster: TestCluster) {
        pool(&cluster, "theirs", 10, 20).await;
        admit(&cluster, "theirs", "team-b").await;
        let without = controller(&cluster).await;
        load_balancer(&cluster, "web", ", ipPool: theirs").await;
        cluster.settle().await;
        let had = address_of(&cluster, "web").await;
        assert_ne!(had, "", "as in the Go program");
        without.stop().await;
        let _running = Controller::enforcing_scope(&cluster);
        load_balancer(&cluster, "api", ", ipPool: theirs").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, had);
        assert_eq!(ready_of(&cluster, "web").await.status, ConditionStatus::True);
        assert_eq!(ready_of(&cluster, "api").await.reason, "PoolNotAllowed");
        in_step(&cluster).await;
    }
}
