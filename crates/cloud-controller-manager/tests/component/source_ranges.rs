//! Source ranges on the host datapath. The tests play the load balancer: one of this project, which confirms, and the Go
//! program, which does not.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use harvester_api::LoadBalancer;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::{Client, ResourceExt, client::Body};
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    harness::{
        Ccm, allocate, asked, create_service, harvester_says, ingress, join, load_balancer, service, told,
        until,
    },
    host_datapath::{CHECKED, start_with_two_nodes},
};

const RANGES: &str = "loadbalancer.harvesterhci.io/source-ranges";
const APPLIED: &str = "loadbalancer.harvesterhci.io/source-ranges-applied";

async fn confirm(cluster: &TestCluster, ranges: &str) {
    harvester_says(cluster, json!({"metadata": {"annotations": {APPLIED: ranges}}})).await;
}

async fn narrow(cluster: &TestCluster, ranges: Value) {
    cluster.guest.patch::<Service>("shop/web", json!({"spec": {"loadBalancerSourceRanges": ranges}})).await;
    cluster.settle().await;
}

fn selects(object: &LoadBalancer) -> bool {
    !object.spec.backend_server_selector.is_empty()
}

fn ranges(object: &LoadBalancer) -> Option<&str> {
    object.annotations().get(RANGES).map(String::as_str)
}

async fn shown(cluster: &TestCluster) -> Vec<String> {
    ingress(&service(cluster).await.expect("there is a Service"))
}

/// The program's client for Harvester, where a webhook refuses so many new LoadBalancers.
fn refusing_objects(cluster: &TestCluster, count: usize) -> Client {
    let refused = Arc::new(AtomicUsize::new(0));
    let client = cluster.harvester.client(User::CloudControllerManager);
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, refused) = (client.clone(), refused.clone());
        async move {
            let makes_one =
                request.method() == Method::POST && request.uri().path().ends_with("/loadbalancers");
            if !makes_one || refused.fetch_add(1, Ordering::Relaxed) >= count {
                return client.send(request).await.map_err(tower::BoxError::from);
            }
            let message = "admission webhook \"validator\" denied the request: no matching VM";
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400,
                "reason": "BadRequest", "message": message});
            let body = Body::from(status.to_string().into_bytes());
            Ok(Response::builder().status(400).body(body).expect("a response"))
        }
    });
    Client::new(service, namespace)
}

test_cluster::component_tests! {
    /// docs/contract/data-paths.md#row-15-selector.
    async fn traffic_flows_after_the_source_ranges_are_in_force(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "loadBalancerSourceRanges: [192.168.0.0/16, 10.0.0.0/8]").await;
        let made = load_balancer(&cluster).await.unwrap();
        assert_eq!((ranges(&made), selects(&made)), (Some("10.0.0.0/8,192.168.0.0/16"), false));
        allocate(&cluster, "10.0.0.9").await;
        harvester_says(&cluster, json!({"status": {"address": "10.0.0.9"}})).await;
        assert_eq!(shown(&cluster).await, Vec::<String>::new());
        confirm(&cluster, "10.0.0.0/8,192.168.0.0/16").await;
        assert_eq!((selects(&load_balancer(&cluster).await.unwrap()), shown(&cluster).await), (true, vec!["10.0.0.9".to_owned()]));
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "update loadbalancers 200"]);

        // the former ranges admit others: nobody is let in until the new ones are in force
        narrow(&cluster, json!(["10.1.0.0/16"])).await;
        let narrowed = load_balancer(&cluster).await.unwrap();
        assert_eq!((ranges(&narrowed), selects(&narrowed)), (Some("10.1.0.0/16"), false));
        assert_eq!(shown(&cluster).await, ["10.0.0.9"]);
        confirm(&cluster, "10.1.0.0/16").await;
        assert!(selects(&load_balancer(&cluster).await.unwrap()));

        narrow(&cluster, Value::Null).await;
        let open = load_balancer(&cluster).await.unwrap();
        assert_eq!((ranges(&open), selects(&open), told(&cluster, "SourceRangesUnsupported").await), (None, true, 0));
        ccm.stop().await;
    }

    async fn an_object_whose_ranges_nobody_enforces_goes_and_comes_back_with_other_ranges(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        allocate(&cluster, "10.0.0.9").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SourceRangesUnsupported").await == 1).await;
        assert_eq!((load_balancer(&cluster).await, shown(&cluster).await), (None, vec![]));
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "delete loadbalancers 200"]);
        narrow(&cluster, json!(["10.1.0.0/16"])).await;
        assert_eq!(ranges(&load_balancer(&cluster).await.unwrap()), Some("10.1.0.0/16"));
        ccm.stop().await;
    }

    async fn a_service_that_gives_its_ranges_up_is_served_again(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        allocate(&cluster, "10.0.0.9").await;
        until(&cluster, "the object is given up", async || load_balancer(&cluster).await.is_none()).await;
        narrow(&cluster, Value::Null).await;
        let made = load_balancer(&cluster).await.unwrap();
        assert_eq!((ranges(&made), selects(&made)), (None, true));
        ccm.stop().await;
    }

    /// Harvester 1.2 and 1.3.
    async fn a_harvester_that_refuses_an_object_without_vms_is_asked_once(cluster: TestCluster) {
        let harvester = refusing_objects(&cluster, usize::MAX);
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        create_service(&cluster, CHECKED, "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SourceRangesUnsupported").await == 1).await;
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }

    /// The webhook may have refused it for anything else.
    async fn a_refused_object_is_made_again_when_its_service_changes(cluster: TestCluster) {
        let harvester = refusing_objects(&cluster, 1);
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        create_service(&cluster, CHECKED, "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SourceRangesUnsupported").await == 1).await;
        assert_eq!(load_balancer(&cluster).await, None);
        let annotations = json!({"metadata": {"annotations": {"example.org/mended": "yes"}}});
        cluster.guest.patch::<Service>("shop/web", annotations).await;
        cluster.settle().await;
        assert_eq!(ranges(&load_balancer(&cluster).await.unwrap()), Some("10.0.0.0/8"));
        ccm.stop().await;
    }
}
