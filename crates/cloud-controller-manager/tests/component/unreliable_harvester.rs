//! A Harvester that is away for ten minutes, and one that answers 429 and 500 now and then, while Nodes and Services
//! change: nothing is lost meanwhile, and everything is there in the end.

use std::time::Duration;

use harvester_api::{LoadBalancer, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Event, Service};
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::harness::{
    Ccm, LOADBALANCER_IPS, annotation, announced_service, finalizers, ingress, join, node, set_ready, until,
};

/// The address that `shop/web` has and keeps.
const ADDRESS: &str = "127.9.0.1";

/// What Harvester answers from now on, to everybody but the test: rules of the simulated server.
async fn harvester_answers(cluster: &TestCluster, rules: &Value) {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "sim-faults", "namespace": "kube-system"}, "data": {"rules": rules.to_string()}});
    cluster.harvester.apply(&object.to_string()).await;
}

async fn change_service(cluster: &TestCluster, name: &str, port: u16) {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"name": "http", "port": port}]}});
    cluster.guest.apply(&object.to_string()).await;
}

/// Whether `shop/<service>` has its object in Harvester; two would be one too many.
async fn is_served(cluster: &TestCluster, service: &str) -> bool {
    let all = cluster.harvester.list::<LoadBalancer>().await;
    let named = |object: &&LoadBalancer| {
        let labels = object.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get("cloudprovider.harvesterhci.io/serviceName"))
            .is_some_and(|it| it == service)
    };
    let found = all.iter().filter(named).count();
    assert!(found <= 1, "{all:?}");
    found == 1
}

async fn move_vm(cluster: &TestCluster, vm: &str, zone: &str) {
    let moved = json!({"metadata": {"annotations": {"topology.kubernetes.io/zone": zone}}});
    cluster.harvester.patch::<VirtualMachineInstance>(&format!("team-a/{vm}"), moved).await;
}

async fn zone(cluster: &TestCluster, name: &str) -> Option<String> {
    node(cluster, name).await?.metadata.labels?.remove("topology.kubernetes.io/zone")
}

/// Nodes `worker-1` and `worker-2`, a Service with an address, and one that will go.
async fn at_work(cluster: &TestCluster) -> Ccm {
    let ccm = Ccm::start(cluster).await;
    for name in ["worker-1", "worker-2"] {
        join(cluster, name, name, "").await;
        set_ready(cluster, name, "True").await;
    }
    announced_service(cluster, "{}").await;
    change_service(cluster, "old", 80).await;
    until(cluster, "the second Service is served", async || is_served(cluster, "old").await).await;
    until(cluster, "the Nodes are initialised", async || zone(cluster, "worker-2").await.is_some()).await;
    ccm
}

/// No Node is removed, tainted or without its address, and the Service keeps its own.
async fn nothing_is_lost(cluster: &TestCluster) {
    for name in ["worker-1", "worker-2"] {
        let node = node(cluster, name).await.unwrap_or_else(|| panic!("{name} is removed"));
        let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
        assert!(taints.iter().all(|it| !it.key.starts_with("node.cloudprovider")), "{name}: {taints:?}");
        let addresses = node.status.unwrap_or_default().addresses.unwrap_or_default();
        assert!(
            addresses.iter().any(|it| it.type_ == "InternalIP" && it.address == "198.18.0.5"),
            "{name}: {addresses:?}"
        );
    }
    let web = cluster.guest.get::<Service>("shop/web").await.expect("the Service is there");
    assert_eq!(
        (annotation(&web, LOADBALANCER_IPS), &ingress(&web)[..]),
        (Some(ADDRESS), &[ADDRESS.to_owned()][..])
    );
    assert_eq!(finalizers(&web).len(), 1);
    assert!(is_served(cluster, "web").await, "its object is there");
    let events = cluster.guest.list::<Event>().await;
    let wrong: Vec<_> =
        events.iter().filter(|event| event.reason.as_deref() == Some("DeletingNode")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

async fn is_there(cluster: &TestCluster, service: &str) -> bool {
    cluster.guest.get::<Service>(&format!("shop/{service}")).await.is_some()
}

test_cluster::component_tests! {
    #[simulated_only("ten minutes")]
    async fn a_harvester_that_is_away_for_ten_minutes_costs_no_node_and_no_address(cluster: TestCluster) {
        let ccm = at_work(&cluster).await;
        harvester_answers(&cluster, &json!([{"answer": "drop"}])).await;
        let server = cluster.harvester.simulated().expect("it is simulated");
        server.faults().close_watches();
        set_ready(&cluster, "worker-1", "Unknown").await;
        move_vm(&cluster, "worker-2", "zone-b").await;
        join(&cluster, "worker-3", "worker-3", "").await;
        change_service(&cluster, "web", 81).await;
        change_service(&cluster, "new", 80).await;
        cluster.guest.delete::<Service>("shop/old").await;
        for _ in 0..10 {
            cluster.advance(Duration::from_secs(60)).await;
            nothing_is_lost(&cluster).await;
            assert_eq!(zone(&cluster, "worker-3").await, None);
            assert!(is_there(&cluster, "old").await, "its object in Harvester is not gone");
        }
        let told = cluster.guest.list::<Event>().await;
        let waits = |event: &Event| event.reason.as_deref() == Some("MachinesNotListed");
        assert!(told.iter().any(waits), "{told:?}");
        assert!(ccm.health.readiness_report().contains("harvester: "), "{}", ccm.health.readiness_report());
        assert_eq!(ccm.health.liveness_report(), "");

        harvester_answers(&cluster, &json!([])).await;
        cluster.advance(Duration::from_secs(60)).await;
        nothing_is_lost(&cluster).await;
        assert_eq!(zone(&cluster, "worker-2").await.as_deref(), Some("zone-b"));
        assert_eq!(zone(&cluster, "worker-3").await.as_deref(), Some("zone-a"));
        assert!(is_served(&cluster, "new").await && !is_served(&cluster, "old").await);
        assert!(!is_there(&cluster, "old").await);
        assert_eq!(ccm.health.readiness_report(), "");
        ccm.stop().await;
    }

    #[simulated_only("minutes, and faults that a seed chooses")]
    async fn a_harvester_that_answers_429_and_500_now_and_then_costs_no_node_and_no_address(cluster: TestCluster) {
        let ccm = at_work(&cluster).await;
        let after = json!({"answer": 500, "when": "after", "probability": 0.05});
        harvester_answers(&cluster, &json!([{"answer": 429, "probability": 0.15}, {"answer": 500, "probability": 0.15}, after])).await;
        let server = cluster.harvester.simulated().expect("it is simulated");
        for round in 0..20_u16 {
            let (first, second) = if round % 2 == 0 { ("zone-b", "Unknown") } else { ("zone-a", "True") };
            move_vm(&cluster, "worker-1", first).await;
            set_ready(&cluster, "worker-2", second).await;
            change_service(&cluster, "web", 81 + round).await;
            change_service(&cluster, &format!("new-{round}"), 80).await;
            if round > 0 {
                cluster.guest.delete::<Service>(&format!("shop/new-{}", round - 1)).await;
            }
            // watches that are begun anew, and lists that are read anew
            if round % 3 == 0 {
                server.faults().close_watches();
            } else if round % 5 == 0 {
                server.faults().expire_watches();
            }
            cluster.advance(Duration::from_secs(10)).await;
            nothing_is_lost(&cluster).await;
        }
        assert!(server.faults().hits() > 20, "{}", server.faults().hits());
        harvester_answers(&cluster, &json!([])).await;
        cluster.advance(Duration::from_secs(60)).await;
        nothing_is_lost(&cluster).await;
        assert_eq!(zone(&cluster, "worker-1").await.as_deref(), Some("zone-a"));
        let served: Vec<_> = cluster.harvester.list::<LoadBalancer>().await;
        assert_eq!(served.len(), 3, "web, old and the last new one: {served:?}");
        assert!(is_served(&cluster, "new-19").await && !is_there(&cluster, "new-18").await);
        assert_eq!(ccm.health.readiness_report(), "");
        ccm.stop().await;
    }
}
