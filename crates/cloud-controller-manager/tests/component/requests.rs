//! Start, stop, and two programs at once.

use cloud_controller_manager::ElectionSettings;
use k8s_openapi::api::coordination::v1::Lease;
use test_cluster::TestCluster;

use super::harness::{Ccm, asked, balancer, create_service, until};

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

    /// Contract 25.3, 14; and pitfalls-ccm.md S2: the Lease is given back, so the second need not wait for it.
    async fn of_two_programs_one_acts_and_the_other_takes_over_at_once(cluster: TestCluster) {
        let first = Ccm::start(&cluster).await;
        let second = Ccm::start_with(&cluster, |settings| settings.election = Some(ElectionSettings::usual("second"))).await;
        create_service(&cluster, "{}", "").await;
        assert!(balancer(&cluster).await.is_some());
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201"]);
        first.stop().await;
        until(&cluster, "the second leads", async || holder(&cluster).await.as_deref() == Some("second")).await;
        cluster.guest.delete::<k8s_openapi::api::core::v1::Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(balancer(&cluster).await, None);
        second.stop().await;
    }

    /// `Ccm::stop` sees that it ends in order.
    async fn whoever_deletes_the_lease_ends_no_leader(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        cluster.guest.delete::<Lease>("kube-system/cloud-controller-manager").await;
        until(&cluster, "the Lease is made again", async || holder(&cluster).await.as_deref() == Some("first")).await;
        create_service(&cluster, "{}", "").await;
        assert!(balancer(&cluster).await.is_some());
        ccm.stop().await;
    }
}

/// Who has the Lease. Nobody hears of it but by looking.
async fn holder(cluster: &TestCluster) -> Option<String> {
    let lease = cluster.guest.get::<Lease>("kube-system/cloud-controller-manager").await;
    lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity)
}
