//! Harvester refuses one verb on one resource: what needs it stops and says which right is missing, and what does not
//! goes on; after the grant it works within a minute.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use harvester_api::LoadBalancer;
use http::{Method, Request, Uri};
use k8s_openapi::api::core::v1::Service;
use kube::{Client, client::Body};
use serde_json::json;
use test_cluster::{TestCluster, User};
use tokio::time::Instant;

use super::harness::{Ccm, create_service, events, harvester_says, load_balancer, told, until};

const ROLE: &str = "ClusterRole harvesterhci.io:cloudprovider";
const GRANTED_WITHIN: Duration = Duration::from_secs(60);
const CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";

/// The verb and resource that are refused now.
type Refused = Arc<Mutex<Option<(&'static str, &'static str)>>>;

fn refuse(refused: &Refused, what: Option<(&'static str, &'static str)>) {
    *refused.lock().expect("no panic while it is set") = what;
}

/// The verb that a request to this collection, or to an object of it, is about.
fn verb(method: &Method, uri: &Uri, resource: &str) -> Option<&'static str> {
    let is_collection = uri.path().ends_with(&format!("/{resource}"));
    if !is_collection && !uri.path().contains(&format!("/{resource}/")) {
        return None;
    }
    match (method.as_str(), is_collection) {
        ("GET", true) if uri.query().unwrap_or_default().contains("watch=true") => Some("watch"),
        ("GET", true) => Some("list"),
        ("GET", false) => Some("get"),
        ("POST", _) => Some("create"),
        ("PUT", _) => Some("update"),
        ("DELETE", _) => Some("delete"),
        _ => None,
    }
}

/// The program's client for Harvester; what is refused goes there without any right.
fn client(cluster: &TestCluster, refused: &Refused) -> Client {
    let (ours, nobody) =
        (cluster.harvester.client(User::CloudControllerManager), cluster.harvester.client(User::Nobody));
    let (namespace, refused) = (ours.default_namespace().to_owned(), refused.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let now = *refused.lock().expect("no panic while it is set");
        let is_refused = now.is_some_and(|(denied, resource)| {
            verb(request.method(), request.uri(), resource) == Some(denied)
        });
        let client = if is_refused { nobody.clone() } else { ours.clone() };
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, namespace)
}

/// The Service was told once more, that this verb on LoadBalancers is refused and what grants it.
async fn is_told(cluster: &TestCluster, verb: &str, times: usize) {
    let why = format!("cannot {verb} resource \"loadbalancers\"");
    until(cluster, "the Service is told", async || told(cluster, "SyncLoadBalancerFailed").await == times)
        .await;
    cluster.settle().await;
    let all = events(cluster).await;
    let about: Vec<_> = all.iter().filter(|(_, message)| message.contains(&why)).collect();
    assert_eq!(about.len(), 1, "{all:?}");
    assert!(about[0].1.contains(ROLE), "{}", about[0].1);
}

/// The list or the watch is named by readiness with its role, and by no more than that; after the grant it works.
async fn is_a_condition(cluster: &TestCluster, verb: &'static str, resource: &'static str) {
    let refused = Refused::default();
    refuse(&refused, Some((verb, resource)));
    let ccm = Ccm::start_on(cluster, client(cluster, &refused), |_| ()).await;
    let why = format!("cannot {verb} resource \"{resource}\"");
    until(cluster, &format!("readiness says {why}"), async || {
        let report = ccm.health.readiness_report();
        report.contains(&why) && report.contains(ROLE)
    })
    .await;
    assert_eq!(ccm.health.liveness_report(), "", "a restart helps nobody");
    refuse(&refused, None);
    let granted = Instant::now();
    until(cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
    assert!(granted.elapsed() <= GRANTED_WITHIN, "{resource}: {:?}", granted.elapsed());
    ccm.stop().await;
}

test_cluster::component_tests! {
    async fn each_write_that_harvester_refuses_is_told_once_with_its_right_and_done_within_a_minute_of_the_grant(cluster: TestCluster) {
        let refused = Refused::default();
        let ccm = Ccm::start_on(&cluster, client(&cluster, &refused), |_| ()).await;
        refuse(&refused, Some(("create", "loadbalancers")));
        create_service(&cluster, "{}", "").await;
        is_told(&cluster, "create", 1).await;
        let mut granted = Instant::now();
        refuse(&refused, None);
        until(&cluster, "the object is made", async || load_balancer(&cluster).await.is_some()).await;
        assert!(granted.elapsed() <= GRANTED_WITHIN);

        refuse(&refused, Some(("update", "loadbalancers")));
        harvester_says(&cluster, json!({"metadata": {"labels": {CLUSTER: null}}})).await;
        is_told(&cluster, "update", 2).await;
        granted = Instant::now();
        refuse(&refused, None);
        let is_labelled = async || {
            let object: LoadBalancer = load_balancer(&cluster).await.expect("it is there");
            object.metadata.labels.is_some_and(|labels| labels.contains_key(CLUSTER))
        };
        until(&cluster, "the object is as it should be", is_labelled).await;
        assert!(granted.elapsed() <= GRANTED_WITHIN);

        refuse(&refused, Some(("delete", "loadbalancers")));
        cluster.guest.delete::<Service>("shop/web").await;
        is_told(&cluster, "delete", 3).await;
        granted = Instant::now();
        refuse(&refused, None);
        until(&cluster, "the object is gone", async || load_balancer(&cluster).await.is_none()).await;
        assert!(granted.elapsed() <= GRANTED_WITHIN);
        ccm.stop().await;
    }

    async fn load_balancers_that_may_not_be_listed_are_a_condition_that_names_the_right(cluster: TestCluster) {
        is_a_condition(&cluster, "list", "loadbalancers").await;
    }

    async fn vms_that_may_not_be_listed_are_a_condition_that_names_the_right(cluster: TestCluster) {
        is_a_condition(&cluster, "list", "virtualmachines").await;
    }

    async fn instances_that_may_not_be_listed_are_a_condition_that_names_the_right(cluster: TestCluster) {
        is_a_condition(&cluster, "list", "virtualmachineinstances").await;
    }

    #[simulated_only("a watch in a quiet cluster counts as working after 45 s")]
    async fn what_may_not_be_watched_is_a_condition_that_names_the_right(cluster: TestCluster) {
        for resource in ["loadbalancers", "virtualmachines", "virtualmachineinstances"] {
            is_a_condition(&cluster, "watch", resource).await;
        }
    }
}
