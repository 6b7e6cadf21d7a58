//! A controller whose user the webhook does not take for the writer of addresses: it says so, loses nothing, and rests.

use std::time::Duration;

use harvester_api::LoadBalancer;
use program::TaskGroup;
use test_cluster::{TestCluster, User};

use super::stage::{
    Controller, address_of, balancer, controller, granted, in_step, pool, record_of, told, vanish,
};
use super::webhook::{reachable, unregister};

/// Another user than the one that the controller of these stories has.
const SOMEBODY_ELSE: &str = "system:serviceaccount:elsewhere:harvester-load-balancer";

test_cluster::component_tests! {
    #[each_role]
    async fn what_admission_puts_back_is_told_and_no_address_is_lost(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, SOMEBODY_ELSE).await;
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "");
        assert_eq!(told(&cluster, "StatusPutBack").await, granted(&cluster, 1));

        // what it claimed it cannot give back: the object stays, and names the address
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_some());
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.10"], "team-a/web");
        tasks.end().await;
        unregister(&cluster).await;
    }

    // of two releases each undid what the other had left in the history, and so woke it again
    #[simulated_only("the patience of the sweep is half a minute")]
    async fn releases_that_are_put_back_are_tried_again_every_half_minute_and_take_when_they_may(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, SOMEBODY_ELSE).await;
        let running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        balancer(&cluster, "web", "").await;
        balancer(&cluster, "api", "").await;
        cluster.settle().await;
        running.stop().await;
        vanish(&cluster, "team-a/web").await;
        vanish(&cluster, "team-a/api").await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(60)).await;

        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(300)).await;
        let work = cluster.harvester.work_of(User::LoadBalancer);
        let writes = work.iter().filter(|request| request.is_write()).count();
        assert!((18..=22).contains(&writes), "{writes} writes in five minutes");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        assert_eq!(told(&cluster, "StatusPutBack").await, granted(&cluster, 4), "of the objects, and of each record");

        tasks.end().await;
        unregister(&cluster).await;
        cluster.advance(Duration::from_secs(60)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        in_step(&cluster).await;
    }
}
