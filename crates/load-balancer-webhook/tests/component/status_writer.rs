//! A controller whose user the webhook does not know as the writer of addresses: it reports that, loses no address, and
//! comes to rest.

use std::time::Duration;

use harvester_api::LoadBalancer;
use program::TaskGroup;
use test_cluster::addresses::{
    address_of, assert_records_match, create_load_balancer, create_pool, delete_unseen, events, granted,
    record_of,
};
use test_cluster::{TestCluster, User};

use super::fixtures::{Controller, controller, reachable, unregister};

/// Another user than the controller of these tests.
const SOMEBODY_ELSE: &str = "system:serviceaccount:elsewhere:harvester-load-balancer";

test_cluster::component_tests! {
    #[each_role]
    async fn a_status_that_admission_restores_is_reported_and_no_address_is_lost(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, SOMEBODY_ELSE).await;
        let _running = controller(&cluster).await;
        create_pool(&cluster, "edge", 10, 20).await;
        create_load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "");
        assert_eq!(events(&cluster, "StatusPutBack").await, granted(&cluster, 1));

        // the controller cannot release its claim: the object stays, and names the address
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_some());
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.10"], "team-a/web");
        tasks.end().await;
        unregister(&cluster).await;
    }

    // each of two releases undid the history entry of the other, and so woke it again
    #[simulated_only("the record garbage collector waits half a minute")]
    async fn releases_that_admission_undoes_are_tried_again_less_and_less_often_and_succeed_when_admitted(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        reachable(&cluster, &tasks, SOMEBODY_ELSE).await;
        let running = controller(&cluster).await;
        create_pool(&cluster, "edge", 10, 20).await;
        create_load_balancer(&cluster, "web", "").await;
        create_load_balancer(&cluster, "api", "").await;
        cluster.settle().await;
        running.stop().await;
        delete_unseen(&cluster, "team-a/web").await;
        delete_unseen(&cluster, "team-a/api").await;
        let _again = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(60)).await;

        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(300)).await;
        let work = cluster.harvester.work_of(User::LoadBalancer);
        let writes = work.iter().filter(|request| request.is_write()).count();
        // two records, each after a quarter of its age
        assert!((10..=18).contains(&writes), "{writes} writes in five minutes");
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 2);
        assert_eq!(events(&cluster, "StatusPutBack").await, granted(&cluster, 4), "for the objects, and for each record");

        tasks.end().await;
        unregister(&cluster).await;
        cluster.advance(Duration::from_secs(120)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        assert_records_match(&cluster).await;
    }
}
