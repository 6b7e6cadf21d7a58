//! Services on the guest datapath.

use cloud_controller_manager::datapath::AllowedDatapaths;
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use test_cluster::TestCluster;

use super::harness::{
    ALLOCATED_ADDRESS, Ccm, FINALIZER, LOADBALANCER_IPS, allocate, annotation, announce, announced_service,
    asked, create_service, events, finalizers, harvester_says, ingress, load_balancer, service, set_type,
    told,
};

test_cluster::component_tests! {
    // docs/contract/cloud-controller-manager.md#L7
    /// The requests are the benchmark's aim: one POST, one PUT, one DELETE, and no GET.
    async fn a_service_costs_three_requests_in_harvester_over_its_life(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let before = cluster.objects(test_cluster::Side::Harvester).await;
        create_service(&cluster, "{}", "").await;
        let made = load_balancer(&cluster).await.unwrap();
        let uid = service(&cluster).await.unwrap().metadata.uid.unwrap();
        assert!(made.metadata.name.clone().unwrap().starts_with("blue-shop-web-"));
        assert_eq!(made.metadata.annotations.as_ref().unwrap()["cloudprovider.harvesterhci.io/service-uid"], uid);
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [FINALIZER]);

        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        assert_eq!(told(&cluster, "EnsuredLoadBalancer").await, 1);
        announce(&cluster, "127.9.0.1").await;
        assert_eq!(load_balancer(&cluster).await.unwrap().status.unwrap().address, "127.9.0.1");

        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(service(&cluster).await, None);
        assert_eq!(cluster.objects(test_cluster::Side::Harvester).await, before);
        assert_eq!(
            asked(&cluster.harvester),
            ["create loadbalancers 201", "update loadbalancers 200", "delete loadbalancers 200"]
        );
        assert_eq!(asked(&cluster.guest), ["patch services 200", "patch services 200", "patch services 200"]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L1: in the Go program this leaves the object and its address behind.
    async fn a_service_that_never_had_an_address_leaves_nothing_behind(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        assert!(load_balancer(&cluster).await.is_some());
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L8, #L9, #L32 and #7.2.
    async fn changes_that_mean_nothing_cost_nothing(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"annotations": {"foreign": "x"}}})).await;
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"ports": [{"name": "http", "port": 81}]}})).await;
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "b"}}})).await;
        cluster.settle().await;
        ccm.stop().await;
        let again = Ccm::start(&cluster).await;
        assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (vec![], vec![]));
        again.stop().await;
    }

    async fn dhcp_hands_over_the_marker_and_takes_back_the_lease(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ipam: dhcp}", "").await;
        harvester_says(&cluster, json!({"status": {"allocatedAddress": {"ip": "0.0.0.0"}}})).await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("0.0.0.0"));
        announce(&cluster, "127.9.0.7").await;
        announce(&cluster, "127.9.0.8").await;
        assert_eq!(load_balancer(&cluster).await.unwrap().status.unwrap().address, "127.9.0.8");
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L26: two would announce it, once the pool has given it to another.
    async fn an_address_that_was_taken_back_is_published_no_more(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        assert_eq!(load_balancer(&cluster).await.unwrap().status.unwrap().address, "127.9.0.1");
        let ready = json!({"type": "Ready", "status": "False", "message": "no address is free"});
        harvester_says(&cluster, json!({"status": {"allocatedAddress": null, "conditions": [ready]}})).await;
        let service = service(&cluster).await.unwrap();
        assert_eq!((annotation(&service, LOADBALANCER_IPS), ingress(&service)), (None, vec![]));
        assert_eq!(annotation(&service, ALLOCATED_ADDRESS), Some("127.9.0.1"));
        assert_eq!(told(&cluster, "AddressTakenBack").await, 1);
        assert_eq!(load_balancer(&cluster).await.unwrap().status.unwrap().address, "");
        assert_eq!(finalizers(&service), [FINALIZER]);
        // kube-vip had not yet seen that it is asked for it no more
        announce(&cluster, "127.9.0.1").await;
        assert_eq!(ingress(&self::service(&cluster).await.unwrap()), Vec::<String>::new());
        allocate(&cluster, "127.9.0.2").await;
        let service = self::service(&cluster).await.unwrap();
        let given = [LOADBALANCER_IPS, ALLOCATED_ADDRESS].map(|key| annotation(&service, key));
        assert_eq!(given, [Some("127.9.0.2"); 2]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L15.
    async fn a_service_that_becomes_a_cluster_ip_keeps_nothing_of_ours(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{foreign: stays}").await;
        set_type(&cluster, "ClusterIP").await;
        let service = service(&cluster).await.unwrap();
        assert_eq!((load_balancer(&cluster).await, finalizers(&service), ingress(&service)), (None, &[][..], vec![]));
        assert_eq!((annotation(&service, LOADBALANCER_IPS), annotation(&service, "foreign")), (None, Some("stays")));
        ccm.stop().await;
    }

    async fn a_service_of_another_class_is_left_alone(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "loadBalancerClass: kube-vip.io/kube-vip-class").await;
        // the finalizer is a common one
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": [FINALIZER]}})).await;
        announce(&cluster, "127.9.0.1").await;
        assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (vec![], vec![]));
        let service = service(&cluster).await.unwrap();
        assert_eq!((finalizers(&service), ingress(&service)), (&[FINALIZER.to_owned()][..], vec!["127.9.0.1".into()]));
        ccm.stop().await;
    }

    /// K3s' servicelb writes the nodes' addresses into every Service; Harvester's webhook would put them back.
    async fn an_address_that_another_program_wrote_is_nothing_to_harvester(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        announce(&cluster, "192.168.1.50").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201"]);
        assert_eq!(told(&cluster, "EnsuredLoadBalancer").await, 1);
        assert_eq!(ingress(&service(&cluster).await.unwrap()), ["192.168.1.50"]);
        ccm.stop().await;
    }

    /// Users work around a missing pool this way; the Go program leaves the address alone too.
    async fn an_address_that_the_user_gave_stays_while_harvester_gives_none(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{kube-vip.io/loadbalancerIPs: 127.9.0.7}", "").await;
        announce(&cluster, "127.9.0.7").await;
        let ready = json!({"type": "Ready", "status": "False", "message": "no pool matches"});
        harvester_says(&cluster, json!({"status": {"conditions": [ready]}})).await;
        let service = service(&cluster).await.unwrap();
        assert_eq!((annotation(&service, LOADBALANCER_IPS), ingress(&service)), (Some("127.9.0.7"), vec!["127.9.0.7".into()]));
        assert_eq!(told(&cluster, "AddressTakenBack").await, 0);
        ccm.stop().await;
    }

    /// The annotation is the users' own (docs/contract/cloud-controller-manager.md#16); only with our record beside it
    /// does it tell the datapath.
    async fn a_service_that_kube_vip_should_ignore_keeps_the_datapath_of_the_flags(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{kube-vip.io/ignore: 'true'}", "").await;
        let path = |of: LoadBalancer| serde_json::to_value(&of.spec).expect("a spec is JSON")["workloadType"].clone();
        assert_eq!(path(load_balancer(&cluster).await.unwrap()), "cluster");
        let name = load_balancer(&cluster).await.unwrap().metadata.name.unwrap();
        let key = format!("{}/{name}", cluster.guest_cluster().vm_namespace);
        allocate(&cluster, "127.9.0.1").await;
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        assert_eq!(path(load_balancer(&cluster).await.unwrap()), "cluster");
        set_type(&cluster, "ClusterIP").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), "kube-vip.io/ignore"), Some("true"));
        ccm.stop().await;
    }

    /// The guest's kube-proxy enforces the ranges, as with the Go program.
    async fn source_ranges_are_served(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        assert_eq!(told(&cluster, "NotSupported").await, 0);
        ccm.stop().await;
    }

    async fn a_new_service_cannot_bring_a_datapath_that_the_flags_exclude(cluster: TestCluster) {
        let guest_only = AllowedDatapaths { guest: true, host: false };
        create_service(&cluster, "{cloudprovider.harvesterhci.io/recorded-data-path: host}", "").await;
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": [FINALIZER]}})).await;
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.allowed = guest_only).await;
        let made = serde_json::to_value(&load_balancer(&cluster).await.unwrap().spec).unwrap();
        assert_eq!(made["workloadType"], "cluster");
        let service = service(&cluster).await.unwrap();
        assert_eq!(annotation(&service, "cloudprovider.harvesterhci.io/recorded-data-path"), None);
        ccm.stop().await;
    }

    /// docs/contract/kube-vip.md#withdrawal: kube-vip passes over every event of a Service of another type, its
    /// deletion included.
    async fn an_address_that_kube_vip_goes_on_announcing_is_told_when_the_type_changes(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        set_type(&cluster, "ClusterIP").await;
        let all = events(&cluster).await;
        let told: Vec<_> = all.iter().filter(|(reason, _)| reason == "VipStillAnnounced").collect();
        assert!(told.len() == 1 && told[0].1.contains("on node worker-1 does not let go of 127.9.0.1"), "{all:?}");
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }
}
