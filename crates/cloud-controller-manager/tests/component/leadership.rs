//! The program ends, and another one that waits for its Lease goes on.

use std::time::Duration;

use cloud_controller_manager::{ElectionSettings, Settings};
use k8s_openapi::api::coordination::v1::Lease;
use test_cluster::{Class, Rights, TestCluster};

use super::harness::{Ccm, create_service, load_balancer, until};

/// A candidate that looks at the Lease by itself so seldom that no test would see it.
fn patient(settings: &mut Settings) {
    let election = ElectionSettings::usual("second");
    settings.election = Some(ElectionSettings { retry_period: Duration::from_secs(100_000), ..election });
}

async fn holder(cluster: &TestCluster) -> String {
    let lease: Lease = cluster.guest.get("kube-system/cloud-controller-manager").await.expect("it is there");
    lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// Verbs of the requests for Leases, watches apart.
fn of_leases(cluster: &TestCluster) -> Vec<String> {
    let mut all = cluster.guest.requests();
    all.retain(|request| request.class() == Class::Lease && request.verb != "watch");
    all.into_iter().map(|request| request.verb).collect()
}

test_cluster::component_tests! {
    /// docs/contract/cloud-controller-manager.md#S2. With the existing role, which grants no watch on Leases, the next
    /// one looks in its period.
    #[each_role]
    async fn a_program_that_ends_gives_its_lease_back_and_the_next_one_leads_as_soon_as_it_hears_of_it(cluster: TestCluster) {
        let may_watch = cluster.rights() == Rights::Ours;
        let first = Ccm::start(&cluster).await;
        let second = Ccm::start_with(&cluster, |settings| match may_watch {
            true => patient(settings),
            false => settings.election = Some(ElectionSettings::usual("second")),
        }).await;
        until(&cluster, "the second one waits", async || second.health.readiness_report().is_empty()).await;
        assert_eq!(holder(&cluster).await, "first");
        cluster.guest.forget_requests();
        first.stop().await;
        until(&cluster, "the next one leads", async || holder(&cluster).await == "second").await;
        let verbs = of_leases(&cluster);
        let taken = verbs.iter().rposition(|verb| verb == "update").expect("somebody wrote it");
        assert_eq!(verbs[taken - 1], "get", "it looks before it takes: {verbs:?}");
        let writes = verbs.iter().filter(|verb| *verb != "get").count();
        if may_watch {
            assert!(writes >= 2 && verbs.iter().filter(|verb| *verb == "get").count() == 1, "{verbs:?}");
        }
        create_service(&cluster, "{}", "").await;
        until(&cluster, "it works", async || load_balancer(&cluster).await.is_some()).await;
        second.stop().await;
        assert_eq!(holder(&cluster).await, "");
    }
}
