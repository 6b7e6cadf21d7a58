//! The cloud-config does not let the program list objects of Harvester: Services and Nodes that wait get the reason.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloud_config::{CloudConfig, Followed, proxy::Environment};
use cloud_controller_manager::{Parts, cluster::GuestCluster};
use harvester_api::VirtualMachineInstance;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{Client, client::Body};
use program::Clock;
use serde_json::json;
use test_cluster::{Request as Asked, TestCluster, User};
use tokio::{sync::watch, time::Instant};

use super::harness::{
    Ccm, LOADBALANCER_IPS, annotation, announced_service, create_service, events, finalizers, ingress, join,
    limited, limited_to, load_balancer, rest, service, told, until,
};

const HOST: &str = "{cloudprovider.harvesterhci.io/healthcheck-port: '80'}";
const KUBECONFIG: &str =
    "{current-context: a, clusters: [{name: a, cluster: {server: 'https://harvester.example'}}],
    contexts: [{name: a, context: {cluster: a}}]}";
const TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn followed(kubeconfig: &str) -> Followed {
    let config = CloudConfig::parse(kubeconfig, "cloud-config", &Environment::default()).expect("it is good");
    Followed { config, fault: None }
}

/// A cloud-config without the right to see `resource`, until `granted`.
fn without(cluster: &TestCluster, resource: &'static str, granted: &Arc<AtomicBool>) -> Client {
    let granted = granted.clone();
    limited(cluster, move |_, path| path.contains(resource) && !granted.load(Ordering::SeqCst))
}

/// `client`, but the first POST of a LoadBalancer gets 429 with `Retry-After`; the times of the POSTs go to `posts`.
fn busy(client: Client, seconds: u64, posts: &Arc<Mutex<Vec<Instant>>>) -> Client {
    let (namespace, posts) = (client.default_namespace().to_owned(), posts.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_post = request.method() == Method::POST && request.uri().path().ends_with("/loadbalancers");
        let is_first = is_post && {
            let mut posts = posts.lock().expect("no panic while counting");
            posts.push(Instant::now());
            posts.len() == 1
        };
        let client = client.clone();
        async move {
            if !is_first {
                return client.send(request).await.map_err(tower::BoxError::from);
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
                "reason": "TooManyRequests", "message": "busy", "details": {"retryAfterSeconds": seconds}});
            let answer = Response::builder().status(429).body(Body::from(status.to_string().into_bytes()));
            Ok(answer.expect("a constant answer"))
        }
    });
    Client::new(service, namespace)
}

/// A client for two servers. Once `is_elsewhere`, none of the LoadBalancers is there. VMs can be read while `may_read_vms`.
fn of_two_servers(
    cluster: &TestCluster,
    is_elsewhere: &Arc<AtomicBool>,
    may_read_vms: &Arc<AtomicBool>,
) -> Client {
    let (is_elsewhere, may_read_vms) = (is_elsewhere.clone(), may_read_vms.clone());
    let client = limited(cluster, move |_, path| {
        path.contains("/virtualmachine") && !may_read_vms.load(Ordering::SeqCst)
    });
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let is_list = request.method() == Method::GET && request.uri().path().ends_with("/loadbalancers");
        if is_list && is_elsewhere.load(Ordering::SeqCst) {
            let of_none = format!("{}&labelSelector=of%3Danother", request.uri());
            *request.uri_mut() = of_none.parse().expect("it is a URI");
        }
        let client = client.clone();
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    Client::new(service, namespace)
}

async fn is_initialised(cluster: &TestCluster, node: &str) -> bool {
    let node = cluster.guest.get::<Node>(node).await.expect("the Node is there");
    node.spec.and_then(|spec| spec.taints).unwrap_or_default().iter().all(|taint| taint.key != TAINT)
}

/// A Service that has a load balancer, and no program.
async fn served_and_left(cluster: &TestCluster) {
    let ccm = Ccm::start(cluster).await;
    create_service(cluster, "{}", "").await;
    assert!(load_balancer(cluster).await.is_some());
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
    until(cluster, "the load balancer goes", async || load_balancer(cluster).await.is_none()).await;
    ccm.stop().await;
}

test_cluster::component_tests! {
    /// docs/contract/cloud-controller-manager.md#13.
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
        assert_eq!(load_balancer(&cluster).await, None);
        let report = ccm.health.readiness_report();
        for hindered in ["nodes: ", "services on the data path host: "] {
            assert!(report.contains(&format!("{hindered}{why}")), "{report}");
        }

        granted.store(true, Ordering::SeqCst);
        until(&cluster, "the Service is served", async || load_balancer(&cluster).await.is_some()).await;
        until(&cluster, "the Node is initialised", async || is_initialised(&cluster, "worker-1").await).await;
        assert_eq!(ccm.health.readiness_report(), "");
        ccm.stop().await;
    }

    /// A worker that waits for the list would hold up the end of the process.
    async fn a_program_without_the_right_to_list_vms_ends_at_once(cluster: TestCluster) {
        let client = limited(&cluster, |_, path| path.ends_with("/virtualmachines"));
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        let agent = json!({"status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}});
        cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", agent).await;
        cluster.settle().await;
        let told = Instant::now();
        ccm.stop().await;
        assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    }

    #[simulated_only("waits as long as the server asks")]
    async fn a_busy_harvester_is_asked_again_no_sooner_than_it_wants(cluster: TestCluster) {
        let posts = Arc::new(Mutex::new(Vec::new()));
        let client = busy(cluster.harvester.client(User::CloudControllerManager), 7, &posts);
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        until(&cluster, "the Service is served", async || load_balancer(&cluster).await.is_some()).await;
        let posts = posts.lock().unwrap().clone();
        assert_eq!(posts.len(), 2);
        assert!(posts[1] - posts[0] >= Duration::from_secs(7), "{:?}", posts[1] - posts[0]);
        ccm.stop().await;
    }

    #[simulated_only("after a minute of refusals the back-off is half a minute")]
    async fn what_harvester_refused_is_tried_again_at_once_with_another_cloud_config(cluster: TestCluster) {
        let granted = Arc::new(AtomicBool::new(false));
        let may_write = granted.clone();
        let harvester = limited(&cluster, move |method, path| {
            method == Method::POST && path.ends_with("/loadbalancers") && !may_write.load(Ordering::SeqCst)
        });
        let (file, in_use) = watch::channel(followed(KUBECONFIG));
        let guest = cluster.guest.client(User::CloudControllerManager);
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        let parts = Parts { followed: Some(in_use), ..parts };
        let ccm = Ccm::start_parts(&cluster, parts, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        // the last try was after 41 s, and the next one comes after 71 s
        cluster.advance(Duration::from_secs(45)).await;
        granted.store(true, Ordering::SeqCst);
        assert_eq!(load_balancer(&cluster).await, None);
        // one that is refused leaves the one that is in use
        file.send_modify(|followed| followed.fault = Some("it has no context".to_owned()));
        cluster.advance(Duration::from_secs(5)).await;
        assert_eq!(load_balancer(&cluster).await, None);
        file.send_replace(followed(&KUBECONFIG.replace("harvester.example", "other.example")));
        cluster.advance(Duration::from_secs(5)).await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    /// The watches stay with the server at which they began, each until its own end: an object that is not in the list of
    /// one Harvester would be missed beside the machines of another.
    async fn at_another_server_everything_is_listed_anew_at_once(cluster: TestCluster) {
        let (file, in_use) = watch::channel(followed(KUBECONFIG));
        let [guest, harvester] =
            [&cluster.guest, &cluster.harvester].map(|side| side.client(User::CloudControllerManager));
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        let ccm = Ccm::start_parts(&cluster, Parts { followed: Some(in_use), ..parts }, |_| ()).await;
        let lists = || {
            let mut asked = cluster.harvester.requests();
            asked.retain(|request| request.verb == "list");
            asked.iter().map(Asked::resource).collect::<BTreeSet<_>>()
        };
        cluster.harvester.forget_requests();
        // such as a newer token
        file.send_replace(followed(&format!("{KUBECONFIG}\n")));
        cluster.settle().await;
        assert!(lists().is_empty(), "{:?}", lists());
        file.send_replace(followed(&KUBECONFIG.replace("harvester.example", "other.example")));
        cluster.settle().await;
        let all = ["loadbalancers", "virtualmachineinstances", "virtualmachines"];
        assert_eq!(lists(), BTreeSet::from(all.map(str::to_owned)));
        ccm.stop().await;
    }

    /// They are watched by name alone, and those of the former server are shown until their lists have come.
    async fn an_address_stays_published_at_another_server_until_a_machine_of_a_nameless_cluster_is_listed_there(
        cluster: TestCluster,
    ) {
        let [is_elsewhere, may_read_vms] = [false, true].map(|is_so| Arc::new(AtomicBool::new(is_so)));
        let (file, in_use) = watch::channel(followed(KUBECONFIG));
        let guest = cluster.guest.client(User::CloudControllerManager);
        let harvester = of_two_servers(&cluster, &is_elsewhere, &may_read_vms);
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        let parts = Parts { followed: Some(in_use), ..parts };
        let ccm = Ccm::start_parts(&cluster, parts, |settings| {
            settings.rules.cluster = GuestCluster::default_name();
        })
        .await;
        join(&cluster, "worker-1", "worker-1", "").await;
        announced_service(&cluster, "{}").await;
        let wrong = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ipam": "static"}}});
        cluster.guest.patch::<Service>("shop/web", wrong).await;
        rest(&cluster).await;
        may_read_vms.store(false, Ordering::SeqCst);
        is_elsewhere.store(true, Ordering::SeqCst);
        file.send_replace(followed(&KUBECONFIG.replace("harvester.example", "other.example")));
        rest(&cluster).await;
        let served = service(&cluster).await.unwrap();
        assert_eq!(annotation(&served, LOADBALANCER_IPS), Some("127.9.0.1"));
        assert_eq!((ingress(&served), told(&cluster, "AddressTakenBack").await), (vec!["127.9.0.1".to_owned()], 0));
        may_read_vms.store(true, Ordering::SeqCst);
        until(&cluster, "the address goes", async || ingress(&service(&cluster).await.unwrap()).is_empty()).await;
        ccm.stop().await;
    }

    async fn a_cloud_config_that_may_only_get_vms_initialises_nodes_by_their_names(cluster: TestCluster) {
        let client = limited(&cluster, |_, path| {
            path.ends_with("/virtualmachines") || path.ends_with("/virtualmachineinstances")
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until(&cluster, "the Node is initialised", async || is_initialised(&cluster, "worker-1").await).await;
        until(&cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
        ccm.stop().await;
    }

    /// The list is refused there in the same words, so no change of them tells.
    #[simulated_only("the read of a minute later does not count")]
    async fn at_another_server_a_vm_that_may_only_be_read_is_read_again_at_once(cluster: TestCluster) {
        let client = limited(&cluster, |_, path| {
            path.ends_with("/virtualmachines") || path.ends_with("/virtualmachineinstances")
        });
        let (file, in_use) = watch::channel(followed(KUBECONFIG));
        let guest = cluster.guest.client(User::CloudControllerManager);
        let parts = Parts::new(guest, client, Clock::starting_at(cluster.start()));
        let ccm = Ccm::start_parts(&cluster, Parts { followed: Some(in_use), ..parts }, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until(&cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
        file.send_replace(followed(&KUBECONFIG.replace("harvester.example", "other.example")));
        cluster.advance(Duration::from_secs(2)).await;
        assert_eq!(ccm.health.readiness_report(), "");
        ccm.stop().await;
    }

    async fn readiness_does_not_rest_on_a_vm_that_was_read_by_the_name_of_a_former_node(cluster: TestCluster) {
        let client = limited(&cluster, |_, path| {
            path.ends_with("/virtualmachines") || path.ends_with("/virtualmachineinstances")
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until(&cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
        cluster.guest.delete::<Node>("worker-1").await;
        cluster.settle().await;
        assert!(ccm.health.readiness_report().contains("nodes: "), "{}", ccm.health.readiness_report());
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#S15
    async fn a_harvester_that_is_away_is_no_matter_of_liveness(cluster: TestCluster) {
        let granted = Arc::new(AtomicBool::new(false));
        let ccm = Ccm::start_on(&cluster, without(&cluster, "/", &granted), |_| ()).await;
        assert_eq!(ccm.health.liveness_report(), "");
        assert!(ccm.health.readiness_report().contains("harvester: "), "{}", ccm.health.readiness_report());
        granted.store(true, Ordering::SeqCst);
        until(&cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
        ccm.stop().await;
    }

    /// A right may be taken away, and a token may expire, after the lists were complete.
    #[simulated_only("a watch lasts minutes")]
    async fn an_outage_that_begins_later_is_told_to_services_that_wait(cluster: TestCluster) {
        let granted = Arc::new(AtomicBool::new(true));
        let may_list = granted.clone();
        let client = limited(&cluster, move |method, path| {
            method == Method::GET && path.contains("/loadbalancers") && !may_list.load(Ordering::SeqCst)
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        assert_eq!(ccm.health.readiness_report(), "");
        for _ in 0..2 {
            granted.store(false, Ordering::SeqCst);
            cluster.advance(Duration::from_secs(400)).await;
            create_service(&cluster, "{}", "").await;
            cluster.advance(Duration::from_secs(30)).await;
            let why = "LoadBalancers in namespace team-a of Harvester cannot be listed: ";
            assert!(ccm.health.readiness_report().contains(why), "{}", ccm.health.readiness_report());
            let all = events(&cluster).await;
            assert!(all.iter().any(|(_, message)| message.contains(why)), "{all:?}");
            granted.store(true, Ordering::SeqCst);
            until(&cluster, "it is ready", async || ccm.health.readiness_report().is_empty()).await;
            cluster.guest.delete::<Service>("shop/web").await;
            until(&cluster, "it goes", async || load_balancer(&cluster).await.is_none()).await;
        }
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-9: a cache that nothing renews would decide from what was true once.
    #[simulated_only("a watch lasts minutes")]
    async fn a_right_to_list_in_the_guest_that_is_lost_is_named_by_readiness(cluster: TestCluster) {
        for kind in ["services", "nodes"] {
            let granted = Arc::new(AtomicBool::new(true));
            let (may_list, list) = (granted.clone(), format!("/api/v1/{kind}"));
            let guest = limited_to(&cluster.guest, move |method, path| {
                method == Method::GET && path == list && !may_list.load(Ordering::SeqCst)
            });
            let harvester = cluster.harvester.client(User::CloudControllerManager);
            let ccm = Ccm::start_between(&cluster, guest, harvester, |_| ()).await;
            assert_eq!(ccm.health.readiness_report(), "");
            granted.store(false, Ordering::SeqCst);
            cluster.advance(Duration::from_secs(400)).await;
            let report = ccm.health.readiness_report();
            let right = format!("guest {kind}: the rights list and watch on {kind} do not work: ");
            assert!(report.starts_with(&right), "{report}");
            granted.store(true, Ordering::SeqCst);
            cluster.advance(Duration::from_secs(60)).await;
            assert_eq!(ccm.health.readiness_report(), "");
            ccm.stop().await;
        }
    }
}
