//! Addresses and pools that a Service asks for. The tests play the load balancer: one of this project, which says why,
//! and the Go program, which knows nothing of it.

use cloud_controller_manager::requested::Aliases;
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::harness::{
    Ccm, LOADBALANCER_IPS, allocate, annotation, announce, asked, create_service, events, harvester_says,
    ingress, load_balancer, service, told, until,
};

const STRICT: &str = "cloudprovider.harvesterhci.io/requested-ip-strict";
const WISH: &str = "cloudprovider.harvesterhci.io/requested-ip";
const DEMANDS: &str = "{cloudprovider.harvesterhci.io/ip: 10.0.0.7}";

async fn demand(cluster: &TestCluster, address: Value) {
    let annotations = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ip": address}}});
    cluster.guest.patch::<Service>("shop/web", annotations).await;
    cluster.settle().await;
}

/// The answer of this project's load balancer to a demand that it cannot meet.
async fn refuse(cluster: &TestCluster, reason: &str, message: &str) {
    let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": message});
    harvester_says(cluster, json!({"status": {"conditions": [ready]}})).await;
}

async fn requests(cluster: &TestCluster) -> (Option<String>, Option<String>) {
    let object = load_balancer(cluster).await.expect("there is a LoadBalancer");
    (object.annotations().get(WISH).cloned(), object.annotations().get(STRICT).cloned())
}

async fn handed_over(cluster: &TestCluster) -> Option<String> {
    annotation(&service(cluster).await.expect("there is a Service"), LOADBALANCER_IPS).map(str::to_owned)
}

test_cluster::component_tests! {
    /// docs/contract/addresses.md#5.
    async fn a_demanded_address_is_waited_for_and_then_published(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, DEMANDS, "loadBalancerIP: 10.0.0.8").await;
        assert_eq!(requests(&cluster).await, (None, Some("10.0.0.7".into())));
        refuse(&cluster, "AddressInUse", "10.0.0.7 is in use by another namespace").await;
        let all = events(&cluster).await;
        assert!(all.iter().any(|(reason, message)| reason == "AddressInUse" && message.contains("by another namespace")), "{all:?}");
        assert_eq!(handed_over(&cluster).await, None);
        allocate(&cluster, "10.0.0.7").await;
        harvester_says(&cluster, json!({"status": {"conditions": []}})).await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.7"));
        assert_eq!(told(&cluster, "AddressInUse").await, 1);
        ccm.stop().await;
    }

    async fn a_changed_demand_is_one_write_and_the_former_address_stays_until_the_new_one_is_there(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, DEMANDS, "").await;
        allocate(&cluster, "10.0.0.7").await;
        announce(&cluster, "10.0.0.7").await;
        cluster.harvester.forget_requests();
        demand(&cluster, json!("10.0.0.8")).await;
        refuse(&cluster, "AddressNotInPool", "no pool has 10.0.0.8").await;
        assert_eq!((handed_over(&cluster).await.as_deref(), told(&cluster, "AddressNotInPool").await), (Some("10.0.0.7"), 1));
        // a manager that starts in between knows no more than the clusters do
        ccm.stop().await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.7"));
        allocate(&cluster, "10.0.0.8").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.8"));
        let work = asked(&cluster.harvester);
        let writes: Vec<_> = work.iter().filter(|request| request.contains("loadbalancers") && request.starts_with("update")).collect();
        assert_eq!(writes, ["update loadbalancers 200"], "{work:?}");
        ccm.stop().await;
    }

    /// The Go program writes no reason into its condition.
    async fn a_load_balancer_that_ignores_a_demand_is_found_out_and_its_address_is_not_published(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, DEMANDS, "").await;
        let ready = json!({"type": "Ready", "status": "True"});
        harvester_says(&cluster, json!({"status": {"conditions": [ready]}})).await;
        allocate(&cluster, "10.0.0.9").await;
        until(&cluster, "the Service is told", async || told(&cluster, "RequestedAddressUnsupported").await == 1).await;
        let now = service(&cluster).await.unwrap();
        assert_eq!((annotation(&now, LOADBALANCER_IPS), ingress(&now)), (None, vec![]));
        demand(&cluster, Value::Null).await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.9"));
        assert_eq!(requests(&cluster).await, (None, None));
        ccm.stop().await;
    }

    async fn a_wish_that_is_not_met_is_told_once_and_the_service_is_served(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "loadBalancerIP: 10.0.0.7").await;
        assert_eq!(requests(&cluster).await, (Some("10.0.0.7".into()), None));
        allocate(&cluster, "10.0.0.9").await;
        announce(&cluster, "10.0.0.9").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.9"));
        until(&cluster, "the Service is told", async || told(&cluster, "RequestedAddressNotUsed").await == 1).await;
        let all = events(&cluster).await;
        let (_, message) = all.iter().find(|(reason, _)| reason == "RequestedAddressNotUsed").unwrap();
        assert!(message.contains("10.0.0.7") && message.contains("10.0.0.9"), "{message}");
        ccm.stop().await;
    }

    async fn an_address_moves_to_the_pool_that_the_service_names_and_stays_when_it_names_none(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ip-pool: edge}", "").await;
        assert_eq!(load_balancer(&cluster).await.unwrap().spec.ip_pool, "edge");
        allocate(&cluster, "10.0.0.7").await;
        let pool = async |name: Value| {
            let annotations = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ip-pool": name}}});
            cluster.guest.patch::<Service>("shop/web", annotations).await;
            cluster.settle().await;
        };
        pool(json!("lab")).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().spec.ip_pool, "lab");
        allocate(&cluster, "10.1.0.7").await;
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.1.0.7"));
        pool(Value::Null).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().spec.ip_pool, "");
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.1.0.7"));
        ccm.stop().await;
    }

    async fn a_service_that_names_a_pool_which_gives_it_none_is_told_so_and_keeps_its_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "10.0.0.7").await;
        let annotations = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ip-pool": "nix"}}});
        cluster.guest.patch::<Service>("shop/web", annotations).await;
        cluster.settle().await;
        refuse(&cluster, "PoolNotFound", "there is no pool nix").await;
        let all = events(&cluster).await;
        let told = ("RequestedAddressNotUsed".to_owned(), "there is no pool nix".to_owned());
        assert_eq!(all.iter().filter(|event| **event == told).count(), 1, "{all:?}");
        assert_eq!(handed_over(&cluster).await.as_deref(), Some("10.0.0.7"));
        ccm.stop().await;
    }

    async fn a_secondary_that_demands_another_address_than_its_primarys_gets_none(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "10.0.0.9").await;
        announce(&cluster, "10.0.0.9").await;
        let secondary = async |name: &str, address: &str| {
            let annotations = format!("{{cloudprovider.harvesterhci.io/primary-service: web, cloudprovider.harvesterhci.io/ip: {address}}}");
            cluster.guest.apply(&format!("
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, annotations: {annotations}}}
spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: {name}, port: 80{}}}]}}
", name.len())).await;
            cluster.settle().await;
            let service = cluster.guest.get::<Service>(&format!("shop/{name}")).await.unwrap();
            annotation(&service, LOADBALANCER_IPS).map(str::to_owned)
        };
        assert_eq!(secondary("other", "10.0.0.7").await, None);
        assert_eq!(secondary("same", "10.0.0.9").await.as_deref(), Some("10.0.0.9"));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#16: kube-vip reads the field while it is asked for no address.
    async fn a_wish_that_kube_vip_announces_by_itself_for_a_service_that_is_refused_is_told(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let refused = "{cloudprovider.harvesterhci.io/ipam: static}";
        create_service(&cluster, refused, "loadBalancerIP: 127.9.0.7").await;
        assert_eq!(told(&cluster, "AddressNotAllocated").await, 0);
        announce(&cluster, "127.9.0.7").await;
        assert_eq!(told(&cluster, "AddressNotAllocated").await, 1);
        assert_eq!(ingress(&service(&cluster).await.unwrap()), ["127.9.0.7"], "kube-vip would write it again");
        ccm.stop().await;
    }

    async fn a_malformed_demand_is_refused_before_anything_is_made(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ip: '10.0.0.7,10.0.0.8'}", "").await;
        assert_eq!((load_balancer(&cluster).await, told(&cluster, "InvalidRequestedAddress").await), (None, 1));
        demand(&cluster, json!("10.0.0.7")).await;
        assert_eq!(requests(&cluster).await, (None, Some("10.0.0.7".into())));
        ccm.stop().await;
    }

    /// Of two addresses the one that there is answers the demand, of a secondary as of a primary.
    async fn a_secondary_that_demands_two_families_shares_the_address_that_there_is(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "10.0.0.7").await;
        let demands = json!({"cloudprovider.harvesterhci.io/primary-service": "web",
            "cloudprovider.harvesterhci.io/ip": "10.0.0.7,fd00::7"});
        let secondary = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "api", "namespace": "shop", "annotations": demands},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 81}],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}});
        cluster.guest.apply(&secondary.to_string()).await;
        cluster.settle().await;
        let secondary = cluster.guest.get::<Service>("shop/api").await.expect("there is a Service");
        assert_eq!(annotation(&secondary, LOADBALANCER_IPS), Some("10.0.0.7"));
        assert_eq!(told(&cluster, "AddressDiffers").await, 0);
        ccm.stop().await;
    }

    async fn annotations_of_metallb_are_read_where_the_flag_says_so(cluster: TestCluster) {
        let ccm = Ccm::start_with(&cluster, |settings| {
            settings.rules.aliases = Aliases { metallb: true, cilium: false };
        }).await;
        create_service(&cluster, "{metallb.io/loadBalancerIPs: 10.0.0.7, metallb.universe.tf/address-pool: edge}", "").await;
        assert_eq!(requests(&cluster).await, (None, Some("10.0.0.7".into())));
        assert_eq!(load_balancer(&cluster).await.unwrap().spec.ip_pool, "edge");
        ccm.stop().await;
    }

    /// A restart, or the first start after the Go program, writes nothing that no Service asks for.
    async fn the_pool_that_somebody_in_harvester_gave_an_object_stays(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let name = load_balancer(&cluster).await.unwrap().name_any();
        let key = format!("{}/{name}", cluster.guest_cluster().vm_namespace);
        cluster.harvester.patch::<LoadBalancer>(&key, json!({"spec": {"ipPool": "edge"}})).await;
        cluster.settle().await;
        cluster.harvester.forget_requests();
        ccm.stop().await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().spec.ip_pool, "edge");
        assert!(!asked(&cluster.harvester).iter().any(|request| request.starts_with("update loadbalancers")));
        ccm.stop().await;
    }
}
