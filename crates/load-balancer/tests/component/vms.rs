//! Virtual machines: old finalizers go, with a removed guest cluster go its load balancers, and a label that is written on and
//! off costs little.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use harvester_api::{
    ConditionStatus, IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, annotations,
};
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    client::Body,
};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::fixtures::{
    Controller, address_of, controller, granted, in_step, load_balancer, pool, ready_of, record_of, told,
    work,
};
use super::lab::{A_WHILE, Lab};

/// How often the cluster may come to rest before a watch that broke is tried again.
pub(crate) const RESTS: usize = 80;

/// A client that is refused the machines until `open`.
fn without_machines(client: Client, open: Arc<AtomicBool>) -> Client {
    without(client, open, |request| request.uri().path().ends_with("/virtualmachineinstances"))
}

/// A client that is refused these requests until `open`.
pub(crate) fn without(client: Client, open: Arc<AtomicBool>, refused: fn(&Request<Body>) -> bool) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, open) = (client.clone(), open.load(Ordering::Relaxed));
        async move {
            if open || !refused(&request) {
                return client.send(request).await;
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "virtualmachineinstances is forbidden"});
            let answer = Response::builder().status(403).header("content-type", "application/json");
            Ok::<_, kube::Error>(answer.body(Body::from(status.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

/// A pool `edge` with the address of load balancer `api`, which shows it no more, and those that other programs recorded for
/// `demo-1`, of which name there is a VM, and for `web`. No controller runs.
async fn recorded_for_a_machine(cluster: &TestCluster) {
    let former = controller(cluster).await;
    pool(cluster, "edge", 10, 20).await;
    load_balancer(cluster, "api", "").await;
    cluster.settle().await;
    former.stop().await;
    let recorded =
        json!({"status": {"allocated": {"192.0.2.11": "team-a/demo-1", "192.0.2.12": "team-a/web"}}});
    cluster.harvester.patch::<IPPool>("edge", recorded).await;
    cluster.harvester.patch::<LoadBalancer>("team-a/api", json!({"status": null})).await;
    cluster
        .harvester
        .apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: demo-1, namespace: team-a},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        )
        .await;
    for name in ["demo-1", "web"] {
        load_balancer(cluster, name, "").await;
    }
}

/// The node driver's record of an address for the machine `demo-1`.
async fn driver_records(cluster: &TestCluster, pool: &str, address: &str) {
    let api = Api::<IPPool>::all(cluster.harvester.client(User::Driver));
    let params = PatchParams {
        field_manager: Some("docker-machine-driver-harvester".to_owned()),
        ..PatchParams::default()
    };
    let record = json!({"status": {"allocated": {(address): "team-a/demo-1"}}});
    api.patch(pool, &params, &Patch::Merge(&record)).await.unwrap();
}

/// Load balancer `web` with an address of pool `edge`, and another program's record for it in pool `core`. No controller runs.
async fn recorded_elsewhere_too(cluster: &TestCluster) {
    let former = controller(cluster).await;
    pool(cluster, "edge", 10, 20).await;
    pool(cluster, "core", 30, 40).await;
    load_balancer(cluster, "web", ", ipPool: edge").await;
    cluster.settle().await;
    former.stop().await;
    let recorded = json!({"status": {"allocated": {"192.0.2.31": "team-a/web"}}});
    cluster.harvester.patch::<IPPool>("core", recorded).await;
}

test_cluster::component_tests! {
    // the node driver records the address first
    async fn a_load_balancer_takes_and_releases_no_record_of_a_machine_that_is_still_to_come(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        pool(&cluster, "core", 30, 40).await;
        cluster.settle().await;
        driver_records(&cluster, "edge", "192.0.2.11").await;
        load_balancer(&cluster, "demo-1", ", ipPool: edge").await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.10");
        let told = ready_of(&cluster, "demo-1").await.message;
        assert!(told.contains("records 192.0.2.11 for the VirtualMachine of this name"), "{told}");
        driver_records(&cluster, "core", "192.0.2.31").await;
        cluster.harvester.delete::<LoadBalancer>("team-a/demo-1").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<LoadBalancer>("team-a/demo-1").await.is_none());
        for (pool, address) in [("edge", "192.0.2.11"), ("core", "192.0.2.31")] {
            let held: Vec<_> = record_of(&cluster, pool).await.allocated.into_iter().collect();
            assert_eq!(held, [(address.to_owned(), "team-a/demo-1".to_owned())]);
        }
    }

    async fn whether_a_machine_has_its_name_a_load_balancer_asks_once_and_again_before_it_goes(cluster: TestCluster) {
        recorded_elsewhere_too(&cluster).await;
        let list = |request: &Request<Body>| request.uri().path().ends_with("/virtualmachines");
        let client = without(cluster.harvester.client(User::LoadBalancer), Arc::default(), list);
        let _running = Controller::asking(&cluster, client);
        cluster.settle().await;
        cluster.harvester.forget_requests();
        for number in 0..5 {
            let looked_at = json!({"spec": {"description": format!("look {number}")}});
            cluster.harvester.patch::<LoadBalancer>("team-a/web", looked_at).await;
            cluster.settle().await;
        }
        let is_question = |request: &&test_cluster::Request| request.verb == "get" && request.resource() == "virtualmachines";
        assert_eq!(work(&cluster).iter().filter(is_question).count(), 0);
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: web, namespace: team-a},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        ).await;
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_none());
        assert!(record_of(&cluster, "edge").await.allocated.is_empty());
        assert_eq!(record_of(&cluster, "core").await.allocated["192.0.2.31"], "team-a/web");
    }

    // the server has let go of the pool, and the watch tells of that later
    async fn a_load_balancer_shows_no_address_that_the_cache_alone_records_for_it(cluster: TestCluster) {
        let former = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        cluster.settle().await;
        former.stop().await;
        driver_records(&cluster, "edge", "192.0.2.11").await;
        load_balancer(&cluster, "demo-1", ", ipPool: edge").await;
        let open = Arc::new(AtomicBool::new(false));
        let (client, is_open) = (cluster.harvester.client(User::LoadBalancer), open.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_read = request.method() == "GET" && request.uri().path().ends_with("/ippools/edge");
            let (client, is_gone) = (client.clone(), is_read && !is_open.load(Ordering::Relaxed));
            async move {
                if !is_gone {
                    return client.send(request).await;
                }
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "reason": "NotFound", "message": "pool edge is not there"});
                let answer = Response::builder().status(404).header("content-type", "application/json");
                Ok::<_, kube::Error>(answer.body(Body::from(status.to_string().into_bytes())).unwrap())
            }
        });
        let _running = Controller::asking(&cluster, Client::new(service, "default"));
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "demo-1").await, "");
        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while address_of(&cluster, "demo-1").await.is_empty() {
            assert!(rests < RESTS, "it goes on waiting");
            rests += 1;
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.10");
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.11"], "team-a/demo-1");
    }

    #[simulated_only("a watch that tells nothing is begun anew after a while")]
    async fn a_record_that_is_gone_keeps_nobody_waiting_while_the_watch_of_pools_tells_nothing(cluster: TestCluster) {
        recorded_elsewhere_too(&cluster).await;
        let open = Arc::new(AtomicBool::new(false));
        let core = |request: &Request<Body>| request.method() == "GET" && request.uri().path().ends_with("/ippools/core");
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), core);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let (client, is_silent) = (client.clone(), is_watch && request.uri().path().ends_with("/ippools"));
            async move {
                if is_silent {
                    std::future::pending::<()>().await;
                }
                client.send(request).await
            }
        });
        let _running = Controller::asking(&cluster, Client::new(service, "default"));
        cluster.settle().await;
        cluster.harvester.patch::<IPPool>("core", json!({"status": {"allocated": null}})).await;
        open.store(true, Ordering::Relaxed);
        cluster.harvester.patch::<LoadBalancer>("team-a/web", json!({"spec": {"ipPool": "core"}})).await;
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.30");
    }

    #[each_role]
    async fn a_load_balancer_that_is_deleted_says_for_what_answer_about_machines_it_waits(cluster: TestCluster) {
        recorded_elsewhere_too(&cluster).await;
        let open = Arc::new(AtomicBool::new(false));
        let any = |request: &Request<Body>| request.uri().path().contains("/virtualmachines");
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), any);
        let _running = Controller::asking(&cluster, client);
        cluster.harvester.delete::<LoadBalancer>("team-a/web").await;
        cluster.settle().await;
        assert!(cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_some());
        let events = cluster.harvester.list::<Event>().await;
        let told = events.into_iter().find(|event| event.reason.as_deref() == Some("NotWritten"));
        let told = told.and_then(|event| event.message).unwrap_or_default();
        let names_both = told.contains("192.0.2.31 of IPPool core") && told.contains("is forbidden");
        assert!(names_both || granted(&cluster, 1) == 0, "{told}");
        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while cluster.harvester.get::<LoadBalancer>("team-a/web").await.is_some() {
            assert!(rests < RESTS, "it goes on waiting");
            rests += 1;
            cluster.settle().await;
        }
        for pool in ["edge", "core"] {
            assert!(record_of(&cluster, pool).await.allocated.is_empty(), "{pool}");
        }
    }

    // the node driver records static addresses under the name of the machine
    async fn while_machines_cannot_be_listed_a_load_balancer_takes_no_record_of_the_one_of_its_name(cluster: TestCluster) {
        recorded_for_a_machine(&cluster).await;
        let open = Arc::new(AtomicBool::new(false));
        let list = |request: &Request<Body>| request.uri().path().ends_with("/virtualmachines");
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), list);
        let _running = Controller::asking(&cluster, client);
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.13");
        let told = ready_of(&cluster, "demo-1").await.message;
        assert!(told.contains("records 192.0.2.11 for the VirtualMachine of this name"), "{told}");
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10", "its own record");
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.12", "an administrator may write a record back");
        open.store(true, Ordering::Relaxed);
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.13");
        assert_eq!(record_of(&cluster, "edge").await.allocated["192.0.2.11"], "team-a/demo-1");
    }

    #[each_role]
    async fn a_load_balancer_waits_while_the_server_does_not_say_whether_a_machine_has_its_name(cluster: TestCluster) {
        recorded_for_a_machine(&cluster).await;
        let open = Arc::new(AtomicBool::new(false));
        let any = |request: &Request<Body>| request.uri().path().contains("/virtualmachines");
        let client = without(cluster.harvester.client(User::LoadBalancer), open.clone(), any);
        let _running = Controller::asking(&cluster, client);
        cluster.settle().await;
        assert_eq!(address_of(&cluster, "api").await, "192.0.2.10", "its own record needs no machines");
        for name in ["demo-1", "web"] {
            assert_eq!(address_of(&cluster, name).await, "", "{name}");
        }
        assert_eq!(told(&cluster, "NotWritten").await, granted(&cluster, 2));
        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while address_of(&cluster, "demo-1").await.is_empty() || address_of(&cluster, "web").await.is_empty() {
            assert!(rests < RESTS, "it goes on waiting");
            rests += 1;
            cluster.settle().await;
        }
        assert_eq!(address_of(&cluster, "demo-1").await, "192.0.2.13");
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.12");
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_vm_whose_label_is_written_on_and_off_has_few_writes_made_for_it(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        // the condition names each VM that is not reached there
        let there = json!({"metadata": {"annotations": {annotations::LB_NETWORK: "infra/none"}}});
        lab.cluster.harvester.patch::<LoadBalancer>("team-a/web", there).await;
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.until_endpoints(&["192.168.7.11+", "192.168.7.12+"]).await;
        lab.cluster.advance(A_WHILE).await;
        lab.writes();
        lab.vm("api-2", "db", "192.168.7.12").await;
        lab.cluster.settle().await;
        assert_eq!(lab.endpoints().await, [("192.168.7.11".to_owned(), true)], "who leaves leaves at once");
        for _ in 0..20 {
            for tier in ["api", "db"] {
                lab.vm("api-2", tier, "192.168.7.12").await;
                lab.cluster.advance(Duration::from_millis(500)).await;
            }
        }
        let writes = lab.writes();
        for resource in ["endpointslices", "loadbalancers"] {
            let count = writes.iter().filter(|write| write.contains(resource)).count();
            assert!((1..=12).contains(&count), "{count} of {resource} in 20 s");
        }
        lab.vm("api-2", "api", "192.168.7.12").await;
        lab.cluster.advance(A_WHILE).await;
        assert_eq!(lab.endpoints().await.len(), 2, "it is back");
        let told = lab.ready().await.unwrap().message;
        assert!(told.contains("VMs api-1, api-2 are reached on"), "{told}");
    }

    #[simulated_only("counts writes by the clock")]
    async fn a_vm_without_address_whose_label_is_written_on_and_off_has_few_writes_made_for_it(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        // beside one that serves, and as the only one
        for (tier_of_other, left) in [("api", vec!["api-1"]), ("db", vec![])] {
            lab.vm("api-1", tier_of_other, "192.168.7.11").await;
            lab.cluster.advance(A_WHILE).await;
            lab.writes();
            for _ in 0..20 {
                for tier in ["api", "db"] {
                    lab.vm_without_address("api-2", tier).await;
                    lab.cluster.advance(Duration::from_millis(500)).await;
                }
            }
            let writes = lab.writes();
            let count = |resource: &str| writes.iter().filter(|write| write.contains(resource)).count();
            assert!((1..=22).contains(&count("loadbalancers")), "{} in 20 s", count("loadbalancers"));
            assert_eq!(count("endpointslices"), 0, "it is in no slice");
            lab.cluster.advance(A_WHILE).await;
            let listed = lab.load_balancer().await.status.unwrap_or_default().backends;
            assert_eq!(listed.iter().map(|backend| backend.name.as_str()).collect::<Vec<_>>(), left);
        }
        lab.vm_without_address("api-2", "api").await;
        lab.until_ready_says("running backend servers have no IP").await;
    }

    #[simulated_only("counts writes by the clock")]
    async fn two_vms_that_swap_a_label_have_as_few_writes_made_for_them_as_two_that_flap(cluster: TestCluster) {
        let lab = Lab::serving(cluster).await;
        lab.vm("api-2", "db", "192.168.7.12").await;
        lab.cluster.advance(A_WHILE).await;
        lab.writes();
        for _ in 0..20 {
            for [one, two] in [["db", "api"], ["api", "db"]] {
                lab.vm("api-2", two, "192.168.7.12").await;
                lab.vm("api-1", one, "192.168.7.11").await;
                lab.cluster.advance(Duration::from_millis(500)).await;
            }
        }
        let writes = lab.writes();
        let count = writes.iter().filter(|write| write.contains("endpointslices")).count();
        assert!((4..=20).contains(&count), "{count} in 20 s");
        lab.cluster.advance(A_WHILE).await;
        assert_eq!(lab.endpoints().await, [("192.168.7.11".to_owned(), true)]);
    }

    // docs/contract/load-balancer.md#VM-2
    async fn old_finalizers_are_taken_off_and_everything_else_stays(cluster: TestCluster) {
        let finalizers = "[wrangler.cattle.io/harvester-lb-vm-controller, other.io/keep]";
        cluster.harvester.apply(&format!(
            "{{apiVersion: kubevirt.io/v1, kind: VirtualMachine,
               metadata: {{name: blue-1, namespace: team-a, finalizers: {finalizers}}},
               spec: {{runStrategy: Always, template: {{spec: {{domain: {{devices: {{}}}}}}}}}}}}"
        )).await;
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance,
              metadata: {name: blue-1, namespace: team-a, finalizers: [wrangler.cattle.io/harvester-lb-vmi-controller]},
              spec: {domain: {devices: {}}}}",
        ).await;
        let _running = controller(&cluster).await;
        let vm = cluster.harvester.get::<VirtualMachine>("team-a/blue-1").await.unwrap();
        assert_eq!(vm.metadata.finalizers, Some(vec!["other.io/keep".to_owned()]));
        assert_eq!(vm.spec.rest["template"]["spec"]["domain"], json!({"devices": {}}));
        let vmi = cluster.harvester.get::<VirtualMachineInstance>("team-a/blue-1").await.unwrap();
        assert_eq!(vmi.metadata.finalizers.unwrap_or_default(), Vec::<String>::new());
        cluster.harvester.patch::<VirtualMachine>("team-a/blue-1", json!({"metadata": {"finalizers": null}})).await;
    }

    async fn a_load_balancer_of_machines_that_cannot_be_listed_says_so_and_has_its_address(cluster: TestCluster) {
        let open = Arc::new(AtomicBool::new(false));
        let client = without_machines(cluster.harvester.client(User::LoadBalancer), open.clone());
        let _running = Controller::asking(&cluster, client);
        pool(&cluster, "edge", 10, 20).await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {name: web, namespace: team-a},
              spec: {workloadType: vm, backendServerSelector: {harvesterhci.io/vmName: [blue-1]},
                     listeners: [{name: http, port: 80, protocol: TCP, backendPort: 8080}]}}",
        ).await;
        cluster.settle().await;
        let ready = ready_of(&cluster, "web").await;
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "WaitingForMachines"));
        assert!(ready.message.contains("virtualmachineinstances is forbidden"), "{}", ready.message);
        assert_eq!(address_of(&cluster, "web").await, "192.0.2.10");
        assert!(cluster.harvester.get::<Service>("team-a/web").await.is_none(), "nothing is served blindly");

        open.store(true, Ordering::Relaxed);
        let mut rests = 0;
        while ready_of(&cluster, "web").await.reason == "WaitingForMachines" {
            assert!(rests < RESTS, "it goes on waiting");
            rests += 1;
            cluster.settle().await;
        }
        cluster.settle().await;
        assert!(cluster.harvester.get::<Service>("team-a/web").await.is_some());
        in_step(&cluster).await;
    }

    async fn with_a_removed_guest_cluster_its_load_balancers_go(cluster: TestCluster) {
        let _running = controller(&cluster).await;
        pool(&cluster, "edge", 10, 20).await;
        load_balancer(&cluster, "web", "").await;
        cluster.harvester.apply(
            "{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer,
              metadata: {name: other, namespace: team-a, labels: {cloudprovider.harvesterhci.io/cluster: green}},
              spec: {workloadType: cluster}}",
        ).await;
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine,
              metadata: {name: blue-1, namespace: team-a,
                labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: blue}},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        ).await;
        cluster.settle().await;
        let mark = json!({"metadata": {"annotations": {"harvesterhci.io/removeAllPersistentVolumeClaims": "true"}}});
        cluster.harvester.patch::<VirtualMachine>("team-a/blue-1", mark).await;
        cluster.settle().await;
        assert_eq!(cluster.harvester.list::<LoadBalancer>().await.len(), 2);
        cluster.harvester.delete::<VirtualMachine>("team-a/blue-1").await;
        cluster.settle().await;
        let left: Vec<_> = cluster.harvester.list::<LoadBalancer>().await.into_iter().filter_map(|lb| lb.metadata.name).collect();
        assert_eq!(left, ["other"]);
        in_step(&cluster).await;
    }

    // docs/contract/load-balancer.md#VM-1
    async fn one_that_may_not_be_deleted_keeps_no_other_of_its_removed_cluster(cluster: TestCluster) {
        let refused = |request: &Request<Body>| request.method() == "DELETE" && request.uri().path().ends_with("/api");
        let client = without(cluster.harvester.client(User::LoadBalancer), Arc::default(), refused);
        let _running = Controller::asking(&cluster, client);
        pool(&cluster, "edge", 10, 20).await;
        for name in ["api", "web"] {
            load_balancer(&cluster, name, "").await;
        }
        cluster.harvester.apply(
            "{apiVersion: kubevirt.io/v1, kind: VirtualMachine,
              metadata: {name: blue-1, namespace: team-a,
                annotations: {harvesterhci.io/removeAllPersistentVolumeClaims: 'true'},
                labels: {harvesterhci.io/creator: docker-machine-driver-harvester, guestcluster.harvesterhci.io/name: blue}},
              spec: {runStrategy: Always, template: {spec: {domain: {devices: {}}}}}}",
        ).await;
        cluster.settle().await;
        cluster.harvester.delete::<VirtualMachine>("team-a/blue-1").await;
        cluster.settle().await;
        let left: Vec<_> = cluster.harvester.list::<LoadBalancer>().await.into_iter().filter_map(|lb| lb.metadata.name).collect();
        assert_eq!(left, ["api"]);
    }
}
