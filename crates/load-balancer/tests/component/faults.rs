//! Lost and late answers, crashes, and two leaders at once: nothing is given twice, nothing leaks.

use std::{collections::BTreeSet, time::Duration};

use harvester_api::{IPPool, LoadBalancer};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{Client, ResourceExt as _, client::Body};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::fixtures::{
    Controller, address_of, controller, faults, granted, in_step, load_balancer, pool, ready_of, record_of,
    told, work,
};
use super::lab::Lab;

/// Ten load balancers come and five go while `rules` hold; then all is in step.
async fn works_in_the_end(cluster: &TestCluster, rules: &str) {
    let _running = controller(cluster).await;
    pool(cluster, "edge", 10, 40).await;
    cluster.settle().await;
    faults(cluster, rules).await;
    for n in 0..10 {
        load_balancer(cluster, &format!("web-{n}"), "").await;
    }
    cluster.settle().await;
    for n in 0..5 {
        cluster.harvester.delete::<LoadBalancer>(&format!("team-a/web-{n}")).await;
    }
    cluster.settle().await;
    faults(cluster, "[]").await;
    cluster.advance(Duration::from_secs(120)).await;
    in_step(cluster).await;
    let mut addresses = BTreeSet::new();
    for n in 5..10 {
        addresses.insert(address_of(cluster, &format!("web-{n}")).await);
    }
    assert_eq!((addresses.len(), addresses.contains("")), (5, false));
    assert_eq!(record_of(cluster, "edge").await.allocated.len(), 5);
}

/// It has recorded an address for `web`, and its PUT of the object arrives a minute later.
async fn leader_stopped_between_two_writes(cluster: &TestCluster) -> Controller {
    let mut former = controller(cluster).await;
    pool(cluster, "edge", 10, 40).await;
    cluster.settle().await;
    faults(cluster, "[{verb: update, resource: loadbalancers, nth: 1, answer: delay=60s}]").await;
    load_balancer(cluster, "web", "").await;
    cluster.advance(Duration::from_secs(1)).await;
    assert_eq!(record_of(cluster, "edge").await.allocated["192.0.2.10"], "team-a/web");
    former.hang();
    former
}

/// A client whose writes of pools a webhook denies, with code 500.
fn denied_pools(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            if request.method() != Method::PUT || !request.uri().path().contains("/ippools/") {
                return client.send(request).await;
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
                "message": "admission webhook \"pools.example.com\" denied the request: not during the freeze"});
            let answer = Response::builder().status(500).header("content-type", "application/json");
            Ok::<_, kube::Error>(answer.body(Body::from(status.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

test_cluster::component_tests! {
    #[simulated_only("faults are the simulated server's")]
    async fn lost_answers_of_pools_are_made_up_for(cluster: TestCluster) {
        works_in_the_end(&cluster, "[{verb: update, resource: ippools, probability: 0.5, answer: drop, when: after}]").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn lost_answers_of_load_balancers_are_made_up_for(cluster: TestCluster) {
        works_in_the_end(&cluster, "[{verb: update, resource: loadbalancers, probability: 0.5, answer: drop, when: after}]").await;
    }

    // docs/contract/load-balancer.md#IP-3, #IP-4
    #[simulated_only("faults are the simulated server's")]
    async fn conflicts_and_failures_are_made_up_for(cluster: TestCluster) {
        works_in_the_end(&cluster, "[{verb: update, resource: ippools, probability: 0.3, answer: 409},
            {verb: update, resource: loadbalancers, probability: 0.3, answer: 409},
            {verb: update, probability: 0.3, answer: 500}, {verb: get, probability: 0.3, answer: 500}]").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_pool_that_may_not_be_written_is_told_and_tried_again(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 40).await;
        cluster.settle().await;
        faults(&cluster, "[{verb: update, resource: ippools, probability: 1, answer: 403}]").await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!(ready.reason, "PoolNotWritten");
        assert!(ready.message.starts_with("fail to reserve an address in pool edge"), "{}", ready.message);
        faults(&cluster, "[]").await;
        cluster.advance(Duration::from_secs(90)).await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        in_step(&cluster).await;
    }

    async fn a_pool_that_a_webhook_denies_with_a_code_of_its_own_is_told(cluster: TestCluster) {
        let client = denied_pools(cluster.harvester.client(User::LoadBalancer));
        let _running = Controller::asking(&cluster, client);
        pool(&cluster, "edge", 10, 40).await;
        cluster.settle().await;
        load_balancer(&cluster, "web", "").await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!(ready.reason, "PoolNotWritten");
        assert!(ready.message.contains("denied the request: not during the freeze"), "{}", ready.message);
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_slow_write_of_a_pool_holds_up_no_other_pool_and_the_next_takes_all_that_came(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 200).await;
        pool(&cluster, "core", 210, 220).await;
        cluster.settle().await;
        faults(&cluster, "[{verb: update, resource: ippools, nth: 1, answer: delay=5s}]").await;
        cluster.harvester.forget_requests();
        load_balancer(&cluster, "first", ", ipPool: edge").await;
        cluster.advance(Duration::from_secs(1)).await;
        // more than there are workers
        for n in 0..100 {
            load_balancer(&cluster, &format!("web-{n}"), ", ipPool: edge").await;
        }
        load_balancer(&cluster, "elsewhere", ", ipPool: core").await;
        cluster.advance(Duration::from_secs(1)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
        assert_eq!(address_of(&cluster, "elsewhere").await, "192.0.2.210");
        cluster.advance(Duration::from_secs(10)).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 101);
        let puts = work(&cluster).iter().filter(|request| request.verb == "update" && request.resource() == "ippools").count();
        assert_eq!(puts, 3, "edge twice, core once");
        in_step(&cluster).await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn broken_watches_are_made_up_for(cluster: TestCluster) {
        works_in_the_end(&cluster, "[{verb: watch, probability: 0.5, answer: drop}, {verb: watch, probability: 0.3, answer: 410}]").await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_load_balancer_whose_slice_cannot_be_written_still_ends(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        faults(&lab.cluster, "[{verb: update, resource: endpointslices, probability: 1, answer: 403}]").await;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.until_gone().await;
        in_step(&lab.cluster).await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_load_balancer_whose_service_and_slice_cannot_be_written_says_once_why_it_does_not_end(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        faults(&lab.cluster, "[{verb: update, resource: endpointslices, answer: 403}, {verb: update, resource: services, answer: 403}]").await;
        // kube-vip would pass over its deletion
        let ignored = json!({"metadata": {"annotations": {"kube-vip.io/ignore": "true"}}});
        lab.cluster.harvester.patch::<Service>("team-a/web", ignored).await;
        lab.cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        lab.cluster.advance(Duration::from_secs(30)).await;
        let events = lab.cluster.harvester.list::<Event>().await;
        let refused = events.iter().filter(|event| event.reason.as_deref() == Some("ServiceRefused"));
        let counts: Vec<_> = refused.map(|event| event.count).collect();
        assert_eq!(counts, vec![Some(1); granted(&lab.cluster, 1)], "the decision comes to an end");
        lab.writes();
        lab.cluster.advance(Duration::from_secs(300)).await;
        assert!(lab.writes().len() <= 20, "later and later");
        faults(&lab.cluster, "[]").await;
        lab.cluster.advance(Duration::from_secs(600)).await;
        lab.until_gone().await;
    }

    #[simulated_only("faults are the simulated server's")]
    async fn a_service_that_may_not_be_withdrawn_from_a_lost_address_is_tried_again(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        faults(&lab.cluster, "[{verb: update, resource: services, answer: 403}]").await;
        // kube-vip would pass over its deletion
        let ignored = json!({"metadata": {"annotations": {"kube-vip.io/ignore": "true"}}});
        lab.cluster.harvester.patch::<Service>("team-a/web", ignored).await;
        let named = json!({"spec": {"ipPool": "nowhere"}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", named).await;
        let stolen = json!({"status": {"allocated": {"203.0.113.2": "machines/node-1"}}});
        lab.cluster.harvester.patch::<IPPool>("edge", stolen).await;
        lab.cluster.advance(Duration::from_secs(5)).await;
        assert_eq!(lab.endpoints().await, []);
        let is_ignored = |service: &Service| service.annotations().contains_key("kube-vip.io/ignore");
        assert!(lab.service().await.as_ref().is_some_and(is_ignored), "its PUT is refused");
        assert_eq!(told(&lab.cluster, "ServiceRefused").await, granted(&lab.cluster, 1));
        faults(&lab.cluster, "[]").await;
        lab.cluster.advance(Duration::from_secs(600)).await;
        // the existing role may not delete Services
        assert!(!lab.service().await.as_ref().is_some_and(is_ignored), "kube-vip sees the end of it");
    }

    #[simulated_only("an hour of refused writes")]
    async fn refused_writes_are_sent_again_later_and_later_and_at_once_when_the_object_changes(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        for n in 0..10 {
            cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
                   metadata: {{name: web-{n}, namespace: team-a}},
                   spec: {{workloadType: vm, ipam: dhcp,
                          listeners: [{{name: A_B, port: 80, protocol: TCP, backendPort: 80}}]}}}}"
            )).await;
        }
        let posts = || {
            let work = work(&cluster);
            let is_of_datapath = |resource: &str| ["services", "endpointslices"].contains(&resource);
            work.iter().filter(|request| request.is_write() && is_of_datapath(&request.resource())).count()
        };
        cluster.advance(Duration::from_secs(3600)).await;
        assert!((20..200).contains(&posts()), "{} for 10 load balancers", posts());
        assert_eq!(ready_of(&cluster, "web-0").await.reason, "ServiceRefused");
        let before = posts();
        let mark = json!({"metadata": {"annotations": {"team": "shop"}}});
        cluster.harvester.patch::<LoadBalancer>("team-a/web-0", mark).await;
        cluster.advance(Duration::from_secs(1)).await;
        assert_eq!(posts(), before + 1);
    }

    // docs/contract/addresses.md#2: leader A is stopped between pool PUT and LB PUT while B takes over and collects
    // records
    #[simulated_only("the old leader's PUT arrives a minute late")]
    async fn a_late_write_of_a_former_leader_finds_the_address_where_it_was(cluster: TestCluster) {
        let _former = leader_stopped_between_two_writes(&cluster).await;
        let _successor = Controller::start(&cluster, "two");
        load_balancer(&cluster, "api", "").await;
        cluster.advance(Duration::from_secs(300)).await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.11");
        in_step(&cluster).await;
    }

    #[simulated_only("the old leader's PUT arrives a minute late")]
    async fn a_late_write_of_a_former_leader_for_an_object_that_is_gone_leaves_nothing(cluster: TestCluster) {
        let _former = leader_stopped_between_two_writes(&cluster).await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        let _successor = Controller::start(&cluster, "two");
        cluster.advance(Duration::from_secs(300)).await;
        in_step(&cluster).await;
        assert_eq!(record_of(&cluster, "edge").await.allocated.len(), 0);
    }

    #[simulated_only("a kill at each of the first writes")]
    async fn a_crash_after_any_write_is_healed_by_the_next_leader(cluster: TestCluster) {
        pool(&cluster, "edge", 10, 40).await;
        for nth in 1..8 {
            let name = format!("web-{nth}");
            let mut doomed = Controller::start(&cluster, &format!("doomed-{nth}"));
            cluster.advance(Duration::from_secs(60)).await;
            faults(&cluster, &format!("[{{verb: update, resource: ippools, nth: {nth}, answer: delay=600s, when: after}},
                {{verb: update, resource: loadbalancers, nth: {nth}, answer: delay=600s, when: after}}]")).await;
            load_balancer(&cluster, &name, "").await;
            load_balancer(&cluster, &format!("gone-{nth}"), "").await;
            cluster.advance(Duration::from_secs(1)).await;
            cluster.harvester.delete::<LoadBalancer>(&format!("team-a/gone-{nth}")).await;
            cluster.advance(Duration::from_secs(1)).await;
            doomed.hang();
            faults(&cluster, "[]").await;
            let next = Controller::start(&cluster, &format!("next-{nth}"));
            cluster.advance(Duration::from_secs(200)).await;
            in_step(&cluster).await;
            assert!(!address_of(&cluster, &name).await.is_empty());
            next.stop().await;
        }
    }
}
