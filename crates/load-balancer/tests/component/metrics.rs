//! What Prometheus reads of a controller that leads, stands by, or may not do its work.

use std::{net::SocketAddr, time::Duration};

use test_cluster::TestCluster;

use super::fixtures::{Controller, address_of, faults, granted, in_step, load_balancer, pool, scrape, told};

async fn assert_measured(address: SocketAddr, expected: &str) {
    let lines = scrape(address).await;
    assert!(lines.iter().any(|line| line == expected), "no {expected}: {lines:#?}");
}

test_cluster::component_tests! {
    async fn a_candidate_beside_a_leader_says_that_it_does_not_lead(cluster: TestCluster) {
        let (_leader, leads) = Controller::measured(&cluster, "one").await;
        let (_candidate, stands_by) = Controller::measured(&cluster, "two").await;
        assert_measured(leads, "harvester_load_balancer_leading 1").await;
        assert_measured(stands_by, "harvester_load_balancer_leading 0").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn an_object_whose_status_the_server_refuses_is_counted_as_not_ready_and_told_once(cluster: TestCluster) {
        let (_running, measured) = Controller::measured(&cluster, "one").await;
        pool(&cluster, "edge", 10, 40).await;
        cluster.settle().await;
        faults(&cluster, "[{verb: update, resource: loadbalancers, probability: 1, answer: 403}]").await;
        load_balancer(&cluster, "web", "").await;
        cluster.advance(Duration::from_secs(60)).await;
        let not_written = |count: usize| {
            format!("harvester_load_balancer_balancers_not_ready{{reason=\"NotWritten\"}} {count}")
        };
        assert_measured(measured, &not_written(1)).await;
        assert_eq!(told(&cluster, "NotWritten").await, granted(&cluster, 1));
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(90)).await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        assert_measured(measured, &not_written(0)).await;
        in_step(&cluster).await;
    }
}
