//! Services on the host datapath.

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::{Node, Service};
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::harness::{
    Ccm, LOADBALANCER_IPS, allocate, annotation, asked, create_service, events, finalizers, harvester_says,
    ingress, join, load_balancer, service, set_type, told, until,
};

pub(crate) const CHECKED: &str = "{cloudprovider.harvesterhci.io/healthcheck-port: '80'}";
pub(crate) const IGNORE: &str = "kube-vip.io/ignore";

pub(crate) async fn start_with_two_nodes(cluster: &TestCluster) -> Ccm {
    let ccm = Ccm::start(cluster).await;
    join(cluster, "worker-1", "worker-1", "").await;
    join(cluster, "worker-2", "worker-2", "").await;
    ccm
}

pub(crate) fn spec(balancer: &LoadBalancer) -> Value {
    serde_json::to_value(&balancer.spec).expect("a spec is JSON")
}

test_cluster::component_tests! {
    async fn a_host_service_is_published_by_us_and_goes_after_its_load_balancer(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        let port = service(&cluster).await.unwrap().spec.unwrap().ports.unwrap()[0].node_port.unwrap();
        let made = load_balancer(&cluster).await.unwrap();
        let expected = json!({
            "workloadType": "vm", "ipam": "pool",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": port}],
            "backendServerSelector": {"guestcluster.harvesterhci.io/name": ["blue"]},
            "healthCheck": {"port": port, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5,
                "timeoutSeconds": 3},
        });
        assert_eq!(spec(&made), expected);
        let before = service(&cluster).await.unwrap();
        assert_eq!((annotation(&before, IGNORE), ingress(&before)), (Some("true"), vec![]));

        let finalizer = json!({"metadata": {"finalizers": ["wrangler.cattle.io/harvester-lb-controller"]}});
        harvester_says(&cluster, finalizer).await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(ingress(&service(&cluster).await.unwrap()), Vec::<String>::new());
        harvester_says(&cluster, json!({"status": {"address": "127.9.0.1"}})).await;
        let published = service(&cluster).await.unwrap();
        assert_eq!(ingress(&published), ["127.9.0.1"]);
        assert_eq!(annotation(&published, LOADBALANCER_IPS), None);
        harvester_says(&cluster, json!({"status": {"address": "127.9.0.2"}})).await;
        assert_eq!(ingress(&service(&cluster).await.unwrap()), ["127.9.0.2"]);

        // node ports are reused: the Service stays until the balancer is gone
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        let leaving = service(&cluster).await.unwrap();
        assert_eq!((finalizers(&leaving).len(), ingress(&leaving)), (1, vec!["127.9.0.2".to_owned()]));
        harvester_says(&cluster, json!({"metadata": {"finalizers": null}})).await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201", "delete loadbalancers 200"]);
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-2: kube-vip would announce the address a second time.
    async fn the_finalizer_and_the_annotation_for_kube_vip_come_in_one_write_before_the_object(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        cluster.guest.forget_requests();
        create_service(&cluster, CHECKED, "").await;
        assert_eq!(asked(&cluster.guest), ["patch services 200"]);
        ccm.stop().await;
    }

    async fn a_host_service_that_becomes_a_cluster_ip_is_free_again(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, json!({"status": {"address": "127.9.0.1"}})).await;
        set_type(&cluster, "ClusterIP").await;
        let service = service(&cluster).await.unwrap();
        assert_eq!((load_balancer(&cluster).await, finalizers(&service), ingress(&service)), (None, &[][..], vec![]));
        assert_eq!(annotation(&service, IGNORE), None);
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-5.
    async fn listeners_follow_ports_by_one_write(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        cluster.harvester.forget_requests();
        let ports = json!({"spec": {"ports": [{"name": "http", "port": 80, "nodePort": 31080},
            {"name": "", "port": 53, "protocol": "UDP", "nodePort": 31053}]}});
        let ports = json!({"spec": {"ports": [ports["spec"]["ports"][0], {"name": "dns", "port": 53, "protocol": "UDP",
            "nodePort": 31053}]}});
        cluster.guest.patch::<Service>("shop/web", ports).await;
        cluster.settle().await;
        let listeners = spec(&load_balancer(&cluster).await.unwrap())["listeners"].clone();
        let expected = json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 31080},
            {"name": "dns", "port": 53, "protocol": "UDP", "backendPort": 31053}]);
        assert_eq!(listeners, expected);
        assert_eq!(asked(&cluster.harvester), ["update loadbalancers 200"]);
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-7.
    async fn the_selector_names_vms_only_while_the_cluster_label_means_others(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        let exclude = |value: Value| json!({"metadata": {"labels": {
            "node.kubernetes.io/exclude-from-external-load-balancers": value}}});
        cluster.harvester.forget_requests();
        let selects = async |selector: Value| {
            until(&cluster, "the selector follows the Nodes", async || {
                spec(&load_balancer(&cluster).await.unwrap())["backendServerSelector"] == selector
            }).await;
        };
        cluster.guest.patch::<Node>("worker-2", exclude(json!("true"))).await;
        selects(json!({"harvesterhci.io/vmName": ["worker-1"]})).await;
        cluster.guest.patch::<Node>("worker-2", exclude(Value::Null)).await;
        selects(json!({"guestcluster.harvesterhci.io/name": ["blue"]})).await;
        assert_eq!(asked(&cluster.harvester), ["update loadbalancers 200", "update loadbalancers 200"]);
        ccm.stop().await;
    }

    async fn a_node_whose_vm_no_label_selects_is_named(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        join(&cluster, "by-hand", "by-hand", "{made: by-hand}").await;
        create_service(&cluster, CHECKED, "").await;
        let all = events(&cluster).await;
        let named = all.iter().find(|(reason, _)| reason == "NodesNotSelectable");
        assert!(named.is_some_and(|(_, message)| message.contains("by-hand")), "{all:?}");
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-1, everything in one Event.
    async fn what_the_host_datapath_cannot_carry_is_refused_with_every_reason(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        let annotations = "{cloudprovider.harvesterhci.io/healthcheck-port: '81',
            cloudprovider.harvesterhci.io/healthcheck-periodseconds: often, cloudprovider.harvesterhci.io/network: a/b}";
        create_service(&cluster, annotations, "allocateLoadBalancerNodePorts: false").await;
        let all = events(&cluster).await;
        assert_eq!(all.len(), 1, "{all:?}");
        for part in ["node port", "\"81\"", "\"often\"", "cloudprovider.harvesterhci.io/network"] {
            assert!(all[0].1.contains(part), "{part} is not in {all:?}");
        }
        assert_eq!((load_balancer(&cluster).await, finalizers(&service(&cluster).await.unwrap())), (None, &[][..]));
        ccm.stop().await;
    }

    async fn a_service_that_kube_vip_announced_cannot_become_a_host_one(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        let annotations = "{cloudprovider.harvesterhci.io/healthcheck-port: '80', kube-vip.io/vipHost: worker-1}";
        create_service(&cluster, annotations, "").await;
        assert_eq!((told(&cluster, "AnnouncedInGuest").await, load_balancer(&cluster).await), (1, None));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#choice: a later request changes nothing.
    async fn the_datapath_is_fixed_when_the_object_is_made(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, "{}", "").await;
        cluster.harvester.forget_requests();
        let request = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/data-path": "host"}}});
        cluster.guest.patch::<Service>("shop/web", request).await;
        cluster.settle().await;
        assert_eq!((told(&cluster, "DataPathFixed").await, asked(&cluster.harvester)), (1, vec![]));
        ccm.stop().await;
    }

    async fn our_class_takes_the_host_datapath(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, "{}", "loadBalancerClass: harvesterhci.io/load-balancer").await;
        assert_eq!(spec(&load_balancer(&cluster).await.unwrap())["workloadType"], "vm");
        ccm.stop().await;
    }

    async fn a_local_policy_needs_a_health_check(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        let host = "{cloudprovider.harvesterhci.io/data-path: host}";
        create_service(&cluster, host, "externalTrafficPolicy: Local").await;
        assert_eq!((told(&cluster, "HealthCheckNeeded").await, load_balancer(&cluster).await), (1, None));
        assert_eq!(events(&cluster).await.len(), 1, "one message says it");
        let check = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/healthcheck-port": "80"}}});
        cluster.guest.patch::<Service>("shop/web", check).await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.is_some());
        assert_eq!(told(&cluster, "ClientAddressNotPreserved").await, 1);
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-14.
    #[simulated_only("waits a minute")]
    async fn an_address_that_nobody_announces_is_told_after_a_minute(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.advance(std::time::Duration::from_secs(50)).await;
        assert_eq!(told(&cluster, "HostNotAnnouncing").await, 0);
        cluster.advance(std::time::Duration::from_secs(11)).await;
        assert_eq!(told(&cluster, "HostNotAnnouncing").await, 1);
        ccm.stop().await;
    }
}
