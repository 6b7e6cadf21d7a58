//! Services whose object somebody deleted in Harvester, and that get none in its place: the pool may give the address to
//! another.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use cloud_controller_manager::Parts;
use harvester_api::{LoadBalancer, VirtualMachine, annotations};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    client::Body,
};
use program::Clock;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};

use super::{
    harness::{
        ALLOCATED_ADDRESS, Ccm, FINALIZER, LOADBALANCER_IPS, allocate, annotation, announce,
        announced_service, create_service, harvester_says, ingress, join, limited, limited_to, load_balancer,
        service, told, until,
    },
    host_datapath::{CHECKED, start_with_two_nodes},
    sharing::{
        ON_HOST, PRIMARY, ask, ask_again, at, given, is, object_of, says_about, shared, start_on_host,
        told_about,
    },
};

const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
const CHECK: &str = "cloudprovider.harvesterhci.io/healthcheck-port";

/// Somebody deletes the only object in Harvester.
async fn delete_object(cluster: &TestCluster) {
    let name = load_balancer(cluster).await.expect("there is a LoadBalancer").name_any();
    let key = format!("{}/{name}", cluster.guest_cluster().vm_namespace);
    cluster.harvester.delete::<LoadBalancer>(&key).await;
    cluster.settle().await;
}

/// Somebody deletes the object of a Service in Harvester.
async fn delete_object_of(cluster: &TestCluster, name: &str) {
    let object = object_of(cluster, name).await.expect("it has a LoadBalancer").name_any();
    let key = format!("{}/{object}", cluster.guest_cluster().vm_namespace);
    cluster.harvester.delete::<LoadBalancer>(&key).await;
    cluster.settle().await;
}

/// `shop/api`, which shared the address of `shop/web`, has 127.9.0.2 by an object of its own.
async fn shared_once(cluster: &TestCluster) {
    ask(cluster, "api", 81, "web", ON_HOST).await;
    ask_again(cluster, "shop/api", Value::Null).await;
    says_about(cluster, "api", given("127.9.0.2")).await;
    assert_eq!(shared(cluster, "shop/api").await.1.as_deref(), Some(""));
    assert_eq!(ingress(&at(cluster, "shop/api").await), ["127.9.0.2"]);
}

/// The status that another controller writes, which serves the Service too.
fn of_another() -> Value {
    json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}})
}

/// The other controller writes again and again.
async fn another_insists(cluster: &TestCluster, service: &str) {
    for _ in 0..5 {
        cluster.guest.patch_status::<Service>(service, of_another()).await;
        cluster.settle().await;
    }
    assert_eq!(ingress(&at(cluster, service).await), ["192.0.2.7"]);
}

/// How often the program wrote the status of a Service.
fn status_writes(cluster: &TestCluster) -> usize {
    let mut writes = cluster.guest.work_of(User::CloudControllerManager);
    writes.retain(|it| it.verb == "patch" && it.resource() == "services/status");
    writes.len()
}

/// No pool has an address.
fn not_ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
}

async fn annotate(cluster: &TestCluster, key: &str, value: Value) {
    cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"annotations": {key: value}}})).await;
    cluster.settle().await;
}

/// What kube-vip is asked for, and what the status of `shop/web` shows.
async fn published(cluster: &TestCluster) -> (Option<String>, Vec<String>) {
    let service = service(cluster).await.expect("there is a Service");
    (annotation(&service, LOADBALANCER_IPS).map(str::to_owned), ingress(&service))
}

/// The program, with the machine of a Node: so it knows the right Harvester.
async fn start(cluster: &TestCluster) -> Ccm {
    let ccm = Ccm::start(cluster).await;
    join(cluster, "worker-1", "worker-1", "").await;
    ccm
}

/// A client of a Harvester that makes no object while the switch is on.
fn refusing(cluster: &TestCluster) -> (Client, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(false));
    let may_not = refuses.clone();
    let harvester = limited(cluster, move |method, path| {
        method == Method::POST && path.ends_with("/loadbalancers") && may_not.load(Ordering::SeqCst)
    });
    (harvester, refuses)
}

/// A client of a Harvester that makes no object. Before it says so, another controller has its address in the Service's status.
fn refusing_while_another_writes(cluster: &TestCluster) -> Client {
    let harvester = cluster.harvester.client(User::CloudControllerManager);
    let services = Api::<Service>::namespaced(cluster.guest.client(User::Driver), "shop");
    let namespace = harvester.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (harvester, services) = (harvester.clone(), services.clone());
        async move {
            if request.method() != Method::POST || !request.uri().path().ends_with("/loadbalancers") {
                return harvester.send(request).await.map_err(tower::BoxError::from);
            }
            services.patch_status("web", &PatchParams::default(), &Patch::Merge(&of_another())).await?;
            // until the watch has told it
            tokio::time::sleep(Duration::from_millis(100)).await;
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "loadbalancers is forbidden"});
            Ok(Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))?)
        }
    });
    Client::new(service, namespace)
}

/// A client of the guest cluster. While the switch is on, another controller has its address in the Service's status before
/// a write of that is answered.
fn while_another_is_faster(cluster: &TestCluster, switch: Arc<AtomicBool>) -> Client {
    let guest = cluster.guest.client(User::CloudControllerManager);
    let services = Api::<Service>::namespaced(cluster.guest.client(User::Driver), "shop");
    let namespace = guest.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (guest, services) = (guest.clone(), services.clone());
        let is_status = request.uri().path().ends_with("/services/web/status");
        let is_followed = is_status && request.method() == Method::PATCH && switch.load(Ordering::SeqCst);
        async move {
            let answer = guest.send(request).await.map_err(tower::BoxError::from)?;
            if is_followed {
                services.patch_status("web", &PatchParams::default(), &Patch::Merge(&of_another())).await?;
                // until the watch has told it
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok::<_, tower::BoxError>(answer)
        }
    });
    Client::new(service, namespace)
}

fn at_first() -> (Option<String>, Vec<String>) {
    (Some("127.9.0.1".to_owned()), vec!["127.9.0.1".to_owned()])
}

test_cluster::component_tests! {
    async fn an_address_whose_object_is_gone_is_published_no_more_while_a_fault_keeps_it_from_coming_back(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        announced_service(&cluster, "{}").await;
        annotate(&cluster, IPAM, json!("static")).await;
        assert_eq!(published(&cluster).await, at_first(), "the object stands");
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await, (None, vec![]));
        let gone = service(&cluster).await.unwrap();
        assert_eq!(annotation(&gone, ALLOCATED_ADDRESS), Some("127.9.0.1"));
        annotate(&cluster, "foreign", json!("x")).await;
        assert_eq!(told(&cluster, "AddressTakenBack").await, 1);
        assert_eq!(load_balancer(&cluster).await, None);

        annotate(&cluster, IPAM, Value::Null).await;
        allocate(&cluster, "127.9.0.2").await;
        assert_eq!(published(&cluster).await.0.as_deref(), Some("127.9.0.2"));
        ccm.stop().await;
    }

    async fn an_address_on_the_host_datapath_whose_object_is_gone_is_shown_no_more_while_a_fault_keeps_it_from_coming_back(
        cluster: TestCluster,
    ) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, given("127.9.0.1")).await;
        annotate(&cluster, CHECK, json!("81")).await;
        assert_eq!(published(&cluster).await.1, ["127.9.0.1"], "the object stands");
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await, (None, vec![]));
        assert_eq!(told(&cluster, "AddressTakenBack").await, 1);
        annotate(&cluster, CHECK, json!("80")).await;
        harvester_says(&cluster, given("127.9.0.2")).await;
        assert_eq!(published(&cluster).await.1, ["127.9.0.2"]);
        ccm.stop().await;
    }

    /// By a right that is missing, a webhook, a policy or a quota. It is tried again and again.
    #[simulated_only("ten seconds of refusals")]
    async fn an_address_whose_object_is_gone_is_published_no_more_while_harvester_refuses_another_one(cluster: TestCluster) {
        let (harvester, refuses) = refusing(&cluster);
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        announced_service(&cluster, "{}").await;
        refuses.store(true, Ordering::SeqCst);
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await, at_first(), "it may pass");
        cluster.advance(Duration::from_secs(25)).await;
        assert_eq!((published(&cluster).await, told(&cluster, "AddressTakenBack").await), ((None, vec![]), 1));
        refuses.store(false, Ordering::SeqCst);
        until(&cluster, "the object is made", async || load_balancer(&cluster).await.is_some()).await;
        allocate(&cluster, "127.9.0.2").await;
        assert_eq!(published(&cluster).await.0.as_deref(), Some("127.9.0.2"));
        ccm.stop().await;
    }

    /// It serves the Service too, and the two would take turns without end. It is faster than Harvester's refusal.
    #[simulated_only("ten seconds of refusals")]
    async fn an_address_of_another_controller_on_the_host_datapath_is_taken_away_once_at_most(cluster: TestCluster) {
        create_service(&cluster, CHECKED, "").await;
        cluster.guest.patch_status::<Service>("shop/web", of_another()).await;
        let ccm = Ccm::start_on(&cluster, refusing_while_another_writes(&cluster), |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "worker-2", "worker-2", "").await;
        cluster.advance(Duration::from_secs(120)).await;
        let shown = vec!["192.0.2.7".to_owned()];
        assert_eq!((published(&cluster).await.1, status_writes(&cluster)), (shown.clone(), 0), "it was there before");
        ccm.stop().await;
        // by now it could be an address that the program gave
        let ccm = Ccm::start_on(&cluster, refusing_while_another_writes(&cluster), |_| ()).await;
        cluster.advance(Duration::from_secs(120)).await;
        assert_eq!((published(&cluster).await.1, status_writes(&cluster)), (shown, 1));
        assert_eq!(told(&cluster, "AddressTakenBack").await, 1);
        ccm.stop().await;
    }

    /// The record of the data path says that it was ours: a pool may have given the address.
    #[simulated_only("ten seconds of refusals")]
    async fn an_address_of_a_service_whose_finalizer_somebody_took_off_goes_with_its_object(cluster: TestCluster) {
        let there = format!("{{{CHECK}: '80', {}: host, kube-vip.io/ignore: 'true'}}", annotations::RECORDED_DATA_PATH);
        create_service(&cluster, &there, "").await;
        cluster.guest.patch_status::<Service>("shop/web", of_another()).await;
        let (harvester, refuses) = refusing(&cluster);
        refuses.store(true, Ordering::SeqCst);
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "worker-2", "worker-2", "").await;
        cluster.advance(Duration::from_secs(120)).await;
        assert_eq!((published(&cluster).await.1, status_writes(&cluster)), (vec![], 1));
        assert_eq!(told(&cluster, "AddressTakenBack").await, 1);
        ccm.stop().await;
    }

    /// Whose status is full again before the program hears that it was emptied.
    #[simulated_only("ten seconds of refusals")]
    async fn an_object_is_tried_again_though_another_controller_fills_the_status_at_once(cluster: TestCluster) {
        let (harvester, refuses) = refusing(&cluster);
        let guest = while_another_is_faster(&cluster, refuses.clone());
        let ccm = Ccm::start_between(&cluster, guest, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "worker-2", "worker-2", "").await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, given("127.9.0.1")).await;
        cluster.guest.forget_requests();
        refuses.store(true, Ordering::SeqCst);
        delete_object(&cluster).await;
        cluster.advance(Duration::from_secs(30)).await;
        cluster.harvester.forget_requests();
        cluster.advance(Duration::from_secs(120)).await;
        let mut tries = cluster.harvester.requests();
        tries.retain(|it| it.verb == "create" && it.resource() == "loadbalancers");
        assert_eq!((published(&cluster).await.1, status_writes(&cluster)), (vec!["192.0.2.7".to_owned()], 1));
        assert!(tries.len() > 1, "{tries:?}");
        ccm.stop().await;
    }

    async fn an_address_of_another_controller_stays_while_no_pool_has_one(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, not_ready()).await;
        another_insists(&cluster, "shop/web").await;
        assert_eq!(status_writes(&cluster), 0);
        ccm.stop().await;
    }

    async fn an_address_of_another_controller_stays_at_a_service_whose_primary_has_none(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        let mut lost = not_ready();
        lost["status"]["allocatedAddress"] = Value::Null;
        lost["status"]["address"] = "".into();
        says_about(&cluster, "web", lost).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        cluster.guest.forget_requests();
        another_insists(&cluster, "shop/api").await;
        assert_eq!(status_writes(&cluster), 0);
        ccm.stop().await;
    }

    async fn an_address_of_another_controller_stays_while_a_demand_is_not_met(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        let demands = CHECKED.replace('{', "{cloudprovider.harvesterhci.io/ip: 10.0.0.5, ");
        create_service(&cluster, &demands, "").await;
        harvester_says(&cluster, given("127.9.0.2")).await;
        assert_eq!(ingress(&at(&cluster, "shop/web").await), [""; 0]);
        cluster.guest.forget_requests();
        another_insists(&cluster, "shop/web").await;
        assert_eq!(status_writes(&cluster), 0);
        ccm.stop().await;
    }

    /// A former process may have written what the status shows first.
    async fn an_address_of_another_controller_is_taken_away_once_while_no_pool_has_one(cluster: TestCluster) {
        create_service(&cluster, CHECKED, "").await;
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": [FINALIZER]}})).await;
        cluster.guest.patch_status::<Service>("shop/web", of_another()).await;
        let ccm = start_with_two_nodes(&cluster).await;
        cluster.settle().await;
        harvester_says(&cluster, not_ready()).await;
        another_insists(&cluster, "shop/web").await;
        assert_eq!(status_writes(&cluster), 1);
        ccm.stop().await;
    }

    async fn an_address_of_another_controller_stays_while_the_service_waits_for_its_primary(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        ask(&cluster, "api", 81, "''", ON_HOST).await;
        says_about(&cluster, "api", given("127.9.0.2")).await;
        ask_again(&cluster, "shop/api", json!("web")).await;
        cluster.guest.forget_requests();
        delete_object_of(&cluster, "api").await;
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await.len(), 1);
        another_insists(&cluster, "shop/api").await;
        assert_eq!((status_writes(&cluster), told_about(&cluster, "api", "AddressTakenBack").await.len()), (1, 1));
        ccm.stop().await;
    }

    /// It has the label still, which names nobody.
    async fn an_object_that_comes_back_costs_a_service_that_shared_once_nothing(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        shared_once(&cluster).await;
        delete_object_of(&cluster, "api").await;
        assert!(object_of(&cluster, "api").await.is_some(), "it is made again");
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.2"]);
        says_about(&cluster, "api", not_ready()).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0], "no pool has it any more");
        ccm.stop().await;
    }

    /// Nobody who saw that object runs any more.
    async fn an_object_that_went_while_nobody_led_costs_a_service_that_shared_once_nothing(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        shared_once(&cluster).await;
        ccm.stop().await;
        delete_object_of(&cluster, "api").await;
        cluster.guest.forget_requests();
        let ccm = Ccm::start(&cluster).await;
        assert!(object_of(&cluster, "api").await.is_some(), "it is made again");
        assert_eq!((ingress(&at(&cluster, "shop/api").await), status_writes(&cluster)), (vec!["127.9.0.2".to_owned()], 0));
        ccm.stop().await;
    }

    async fn the_address_of_a_service_that_shared_once_stays_where_machines_of_the_same_names_alone_are_listed(
        cluster: TestCluster,
    ) {
        let ccm = start_on_host(&cluster).await;
        shared_once(&cluster).await;
        let wrong = json!({"metadata": {"annotations": {IPAM: "static"}}});
        cluster.guest.patch::<Service>("shop/api", wrong).await;
        cluster.settle().await;
        ccm.stop().await;
        for worker in ["worker-1", "worker-2"] {
            let vm = format!("{}/{worker}", cluster.guest_cluster().vm_namespace);
            cluster.harvester.delete::<VirtualMachine>(&vm).await;
            join(&cluster, worker, worker, "").await;
        }
        delete_object_of(&cluster, "api").await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.2"]);
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await, [""; 0]);
        ccm.stop().await;
    }

    /// It has an address of its own to wait for, and the shared one is another's.
    #[simulated_only("ten seconds of refusals")]
    async fn a_service_that_shared_an_address_on_the_host_datapath_loses_it_while_harvester_refuses_another_one(
        cluster: TestCluster,
    ) {
        let (harvester, refuses) = refusing(&cluster);
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        join(&cluster, "worker-2", "worker-2", "").await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, given("127.9.0.1")).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        refuses.store(true, Ordering::SeqCst);
        let alone = json!({"metadata": {"annotations": {PRIMARY: null}, "labels": {PRIMARY: null}}});
        cluster.guest.patch::<Service>("shop/api", alone).await;
        cluster.advance(Duration::from_secs(60)).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await.len(), 1);
        ccm.stop().await;
    }

    /// Only a try tells that Harvester makes objects again.
    #[simulated_only("ten seconds of refusals")]
    async fn an_object_is_made_again_though_the_status_may_not_be_emptied(cluster: TestCluster) {
        let (harvester, refuses) = refusing(&cluster);
        let guest = limited_to(&cluster.guest, |_, path| path.ends_with("/services/web/status"));
        let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
        let ccm = Ccm::start_parts(&cluster, parts, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        announced_service(&cluster, "{}").await;
        refuses.store(true, Ordering::SeqCst);
        delete_object(&cluster).await;
        cluster.advance(Duration::from_secs(25)).await;
        assert_eq!(published(&cluster).await, (None, vec!["127.9.0.1".to_owned()]));
        refuses.store(false, Ordering::SeqCst);
        until(&cluster, "the object is made", async || load_balancer(&cluster).await.is_some()).await;
        ccm.stop().await;
    }

    /// That is the rule. kube-vip never let go of it, and does not write it to the status a second time.
    async fn an_address_that_comes_back_is_shown_again_with_those_that_share_it(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "web", "kube-vip.io/vipHost: worker-1").await;
        let show = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}});
        cluster.guest.patch_status::<Service>("shop/api", show).await;
        annotate(&cluster, IPAM, json!("static")).await;
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await, (None, vec![]));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);

        annotate(&cluster, IPAM, Value::Null).await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(published(&cluster).await, at_first());
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        ccm.stop().await;
    }

    /// As an API server does that has just started.
    async fn an_address_stays_published_where_harvester_refuses_another_object_once(cluster: TestCluster) {
        let refusals = Arc::new(AtomicUsize::new(0));
        let left = refusals.clone();
        let harvester = limited(&cluster, move |method, path| {
            let one_less = |left: usize| left.checked_sub(1);
            let is_creation = method == Method::POST && path.ends_with("/loadbalancers");
            is_creation && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        });
        let ccm = Ccm::start_on(&cluster, harvester, |_| ()).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        announced_service(&cluster, "{}").await;
        refusals.store(1, Ordering::SeqCst);
        delete_object(&cluster).await;
        until(&cluster, "the object is made", async || load_balancer(&cluster).await.is_some()).await;
        assert_eq!(refusals.load(Ordering::SeqCst), 0);
        assert_eq!((published(&cluster).await, told(&cluster, "AddressTakenBack").await), (at_first(), 0));
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(published(&cluster).await, at_first());
        ccm.stop().await;
    }

    /// As long as no machine of a Node is known, the list may be that of another Harvester.
    async fn an_address_stays_published_until_it_is_known_that_its_object_is_gone_from_the_right_harvester(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        annotate(&cluster, IPAM, json!("static")).await;
        delete_object(&cluster).await;
        assert_eq!((published(&cluster).await, told(&cluster, "AddressTakenBack").await), (at_first(), 0));
        join(&cluster, "worker-1", "worker-1", "").await;
        until(&cluster, "the address goes", async || published(&cluster).await == (None, vec![])).await;
        ccm.stop().await;
    }

    /// Two sites of one plan have such, or two clusters of one name.
    async fn an_address_stays_published_where_machines_of_the_same_names_alone_are_listed(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        announced_service(&cluster, "{}").await;
        annotate(&cluster, IPAM, json!("static")).await;
        ccm.stop().await;
        let vm = format!("{}/worker-1", cluster.guest_cluster().vm_namespace);
        cluster.harvester.delete::<VirtualMachine>(&vm).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        delete_object(&cluster).await;
        let ccm = Ccm::start(&cluster).await;
        annotate(&cluster, "foreign", json!("x")).await;
        assert_eq!((published(&cluster).await, told(&cluster, "AddressTakenBack").await), (at_first(), 0));
        join(&cluster, "worker-2", "worker-2", "").await;
        until(&cluster, "the address goes", async || published(&cluster).await == (None, vec![])).await;
        ccm.stop().await;
    }

    /// Nothing in Harvester held it, and no pool gives it to another.
    async fn a_lease_stays_with_a_service_whose_object_is_gone(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ipam: dhcp}", "").await;
        harvester_says(&cluster, json!({"status": {"allocatedAddress": {"ip": "0.0.0.0"}}})).await;
        announce(&cluster, "127.9.0.7").await;
        annotate(&cluster, IPAM, json!("static")).await;
        delete_object(&cluster).await;
        let leased = (Some("0.0.0.0".to_owned()), vec!["127.9.0.7".to_owned()]);
        assert_eq!((published(&cluster).await, told(&cluster, "AddressTakenBack").await), (leased, 0));
        ccm.stop().await;
    }

    async fn a_service_that_shares_an_address_whose_object_is_gone_loses_it_too_and_gets_the_next_one(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "web", "").await;
        let show = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}});
        cluster.guest.patch_status::<Service>("shop/api", show).await;
        annotate(&cluster, IPAM, json!("static")).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await, (None, vec![]));
        assert_eq!(shared(&cluster, "shop/api").await, (None, Some(String::new())));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await.len(), 1);

        annotate(&cluster, IPAM, Value::Null).await;
        assert_eq!(shared(&cluster, "shop/api").await.0, None, "there is no address yet");
        allocate(&cluster, "127.9.0.2").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.2", "shop.web"));
        ccm.stop().await;
    }

    async fn on_the_host_datapath_too_a_service_loses_the_shared_address_and_gets_the_next_one(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        annotate(&cluster, CHECK, json!("82")).await;
        delete_object(&cluster).await;
        assert_eq!(published(&cluster).await.1, [""; 0]);
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        assert_eq!(shared(&cluster, "shop/api").await.1.as_deref(), Some(""));

        annotate(&cluster, CHECK, json!("80")).await;
        harvester_says(&cluster, given("127.9.0.2")).await;
        until(&cluster, "api has it", async || ingress(&at(&cluster, "shop/api").await) == ["127.9.0.2"]).await;
        assert_eq!(published(&cluster).await.1, ["127.9.0.2"]);
        ccm.stop().await;
    }

    /// It asks for an address of its own, which it does not get either.
    async fn a_service_that_waits_for_its_own_address_with_a_fault_loses_the_shared_one_with_its_object(cluster: TestCluster) {
        let ccm = start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "web", "").await;
        let wish = json!({PRIMARY: null, IPAM: "static"});
        cluster.guest.patch::<Service>("shop/api", json!({"metadata": {"annotations": wish}})).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"), "until it has its own");
        annotate(&cluster, IPAM, json!("static")).await;
        delete_object(&cluster).await;
        assert_eq!(shared(&cluster, "shop/api").await.0, None);
        ccm.stop().await;
    }
}
