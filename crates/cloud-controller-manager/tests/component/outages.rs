//! While the cloud-config does not let us list what is in Harvester: who waits is told why.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::Request;
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{Client, client::Body};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::harness::{Ccm, balancer, create_service, events, finalizers, join, service, told, until};

const HOST: &str = "{cloudprovider.harvesterhci.io/healthcheck-port: '80'}";
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// A cloud-config without the right to see `resource`, until `granted`.
fn without(cluster: &TestCluster, resource: &'static str, granted: &Arc<AtomicBool>) -> Client {
    let ours = cluster.harvester.client(User::CloudControllerManager);
    let (nobody, granted) = (cluster.harvester.client(User::Nobody), granted.clone());
    let namespace = ours.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let refused = request.uri().path().contains(resource) && !granted.load(Ordering::SeqCst);
        let client = if refused { nobody.clone() } else { ours.clone() };
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, namespace)
}

/// A Service that has a balancer, and no program.
async fn served_and_left(cluster: &TestCluster) {
    let ccm = Ccm::start(cluster).await;
    create_service(cluster, "{}", "").await;
    assert!(balancer(cluster).await.is_some());
    ccm.stop().await;
}

/// The only failed sync that is told while LoadBalancers are out of reach; then a program for which they are not.
async fn why_it_cannot_be_deleted(cluster: &TestCluster) {
    let granted = Arc::new(AtomicBool::new(false));
    let ccm = Ccm::start_on(cluster, without(cluster, "/loadbalancers", &granted), |_| ()).await;
    until(cluster, "the Service is told", async || told(cluster, "SyncLoadBalancerFailed").await == 1).await;
    let all = events(cluster).await;
    let failed = all.iter().find(|(reason, _)| reason == "SyncLoadBalancerFailed");
    let (_, message) = failed.expect("it was told just now");
    let wording = "Error syncing load balancer: failed to delete load balancer: LoadBalancers in namespace team-a of \
                   Harvester cannot be listed: ";
    assert!(message.starts_with(wording), "{message}");
    granted.store(true, Ordering::SeqCst);
    until(cluster, "the balancer goes", async || balancer(cluster).await.is_none()).await;
    ccm.stop().await;
}

test_cluster::component_tests! {
    /// Contract 13.
    async fn a_service_that_cannot_go_is_told_why(cluster: TestCluster) {
        served_and_left(&cluster).await;
        cluster.guest.delete::<Service>("shop/web").await;
        why_it_cannot_be_deleted(&cluster).await;
        assert_eq!(service(&cluster).await, None);
    }

    async fn a_service_that_cannot_become_a_cluster_ip_is_told_why(cluster: TestCluster) {
        served_and_left(&cluster).await;
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": "ClusterIP"}})).await;
        why_it_cannot_be_deleted(&cluster).await;
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [""; 0]);
    }

    async fn who_needs_vms_is_told_why_they_are_not_known_and_served_when_they_are(cluster: TestCluster) {
        let granted = Arc::new(AtomicBool::new(false));
        let client = without(&cluster, "/virtualmachineinstances", &granted);
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        create_service(&cluster, HOST, "").await;
        let why = "VirtualMachineInstances in namespace team-a of Harvester cannot be listed: ";
        until(&cluster, "the Service is told", async || told(&cluster, "SyncLoadBalancerFailed").await == 1).await;
        let all = events(&cluster).await;
        let held = format!("Error syncing load balancer: failed to ensure load balancer: {why}");
        assert!(all.iter().any(|(_, message)| message.starts_with(&held)), "{all:?}");
        let waits = format!("node worker-1 waits for its VM: {why}");
        until(&cluster, "the Node is told", async || {
            let all = cluster.guest.list::<Event>().await;
            all.iter().any(|it| it.message.as_ref().is_some_and(|message| message.starts_with(&waits)))
        }).await;
        assert_eq!(balancer(&cluster).await, None);
        let report = ccm.health.report();
        for hindered in ["nodes: ", "services on the host path: "] {
            assert!(report.contains(&format!("{hindered}{why}")), "{report}");
        }

        granted.store(true, Ordering::SeqCst);
        until(&cluster, "the Service is served", async || balancer(&cluster).await.is_some()).await;
        until(&cluster, "the Node is initialised", async || {
            let node = cluster.guest.get::<Node>("worker-1").await.expect("the Node is there");
            node.spec.and_then(|spec| spec.taints).unwrap_or_default().iter().all(|taint| taint.key != TAINT)
        }).await;
        assert_eq!(ccm.health.report(), "");
        ccm.stop().await;
    }
}
