//! Start, stop, and two programs at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cloud_controller_manager::ElectionSettings;
use k8s_openapi::api::coordination::v1::Lease;
use test_cluster::TestCluster;

use super::harness::{
    Ccm, allocate, announce, asked, create_service, event_requests, limited, load_balancer, told, until,
};

test_cluster::component_tests! {
    async fn a_settled_cluster_is_started_upon_without_a_write(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        for name in ["a", "b", "c"] {
            cluster.guest.apply(&format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{type: LoadBalancer, ports: [{{port: 80}}]}}}}"
            )).await;
        }
        cluster.settle().await;
        ccm.stop().await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        let ccm = Ccm::start(&cluster).await;
        assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (vec![], vec![]));
        ccm.stop().await;
    }

    /// The figure writes-per-service, as far as it is this program's: two PATCHes and one Event in the guest, a POST
    /// and the PUT of the announced address in Harvester.
    async fn a_service_costs_five_writes_until_it_is_announced(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        // a cluster without Nodes is worth an Event of its own
        let others = event_requests(&cluster).len();
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
        assert_eq!(asked(&cluster.guest), ["patch services 200", "patch services 200"]);
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "update loadbalancers 200"]);
        assert_eq!((told(&cluster, "EnsuredLoadBalancer").await, others), (1, 1));
        assert_eq!(event_requests(&cluster), ["create", "create"]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#25.3 and #S2: the first gives the Lease back, so the second
    /// need not wait for it.
    async fn of_two_programs_one_acts_and_the_other_takes_over_at_once(cluster: TestCluster) {
        let first = Ccm::start(&cluster).await;
        let second = Ccm::start_with(&cluster, |settings| settings.election = Some(ElectionSettings::usual("second"))).await;
        create_service(&cluster, "{}", "").await;
        assert!(load_balancer(&cluster).await.is_some());
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201"]);
        first.stop().await;
        until(&cluster, "the second leads", async || holder(&cluster).await.as_deref() == Some("second")).await;
        cluster.guest.delete::<k8s_openapi::api::core::v1::Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(load_balancer(&cluster).await, None);
        second.stop().await;
    }

    /// Else a chart with one replica never rolls.
    async fn a_candidate_is_ready_once_its_credentials_work(cluster: TestCluster) {
        let first = Ccm::start(&cluster).await;
        let granted = Arc::new(AtomicBool::new(false));
        let may = granted.clone();
        let client = limited(&cluster, move |_, _| !may.load(Ordering::SeqCst));
        let second = Ccm::start_on(&cluster, client, |settings| {
            settings.election = Some(ElectionSettings::usual("second"));
        }).await;
        let report = second.health.readiness_report();
        assert!(report.starts_with("harvester-access: Harvester, namespace team-a: ") && report.lines().count() == 1, "{report}");
        granted.store(true, Ordering::SeqCst);
        until(&cluster, "it is ready", async || second.health.readiness_report().is_empty()).await;
        assert_eq!((first.health.readiness_report(), holder(&cluster).await.as_deref()), (String::new(), Some("first")));
        second.stop().await;
        first.stop().await;
    }

    /// `Ccm::stop` sees that it ends in order.
    async fn whoever_deletes_the_lease_ends_no_leader(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        cluster.guest.delete::<Lease>("kube-system/cloud-controller-manager").await;
        until(&cluster, "the Lease is made again", async || holder(&cluster).await.as_deref() == Some("first")).await;
        create_service(&cluster, "{}", "").await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }
}

/// The holder of the Lease; a test has no watch on it.
async fn holder(cluster: &TestCluster) -> Option<String> {
    let lease = cluster.guest.get::<Lease>("kube-system/cloud-controller-manager").await;
    lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity)
}
