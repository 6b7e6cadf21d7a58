//! Services on the guest datapath. Longer than 600 lines, because it is one list of cases on one harness.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use test_cluster::{TestCluster, User};

use super::harness::{
    Ccm, allocate, annotation, announce, asked, create_service, events, finalizers, harvester_says, ingress,
    interposed, load_balancer, service, told, until,
};

const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
const ALLOCATED_ADDRESS: &str = "cloudprovider.harvesterhci.io/allocated-address";
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

test_cluster::component_tests! {
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

    async fn a_cloud_config_that_may_do_nothing_is_told_on_every_service_that_waits(cluster: TestCluster) {
        let elsewhere = "not-ours".to_owned();
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.namespace = elsewhere).await;
        create_service(&cluster, "{}", "").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SyncLoadBalancerFailed").await == 1).await;
        let (_, message) = events(&cluster).await.remove(0);
        assert!(message.contains("in namespace not-ours of Harvester cannot be listed: loadbalancers"), "{message}");
        assert!(message.contains("correct the cloud-config"), "{message}");
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

    /// The Go program repairs no drift.
    async fn an_object_deleted_in_harvester_comes_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let key = format!("team-a/{}", load_balancer(&cluster).await.unwrap().metadata.name.unwrap());
        cluster.harvester.delete::<LoadBalancer>(&key).await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    /// The labels are how a change of the object finds its Service.
    async fn labels_that_somebody_takes_off_an_object_come_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let labels = load_balancer(&cluster).await.unwrap().metadata.labels;
        harvester_says(&cluster, json!({"metadata": {"labels": null}})).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().metadata.labels, labels);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L8, #L9, #L32 and #7.2.
    async fn changes_that_mean_nothing_cost_nothing(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
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

    /// docs/contract/cloud-controller-manager.md#L8: conflicts with Harvester's own writes surface as failed syncs in
    /// the Go program.
    async fn a_conflict_is_repeated_on_the_newer_object_and_nobody_hears_of_it(cluster: TestCluster) {
        let driver = cluster.harvester.client(User::Driver);
        let first = Arc::new(AtomicBool::new(true));
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, first) = (driver.clone(), first.clone());
            async move {
                let put = method == http::Method::PUT && path.contains("/loadbalancers/");
                if put && first.swap(false, Ordering::SeqCst) {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let change = Patch::Merge(json!({"metadata": {"annotations": {"foreign": "newer"}}}));
                    let api = Api::<LoadBalancer>::namespaced(driver, "team-a");
                    api.patch(name, &PatchParams::default(), &change).await.expect("the driver may do everything");
                }
                None
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
        let balancer = load_balancer(&cluster).await.unwrap();
        assert_eq!(balancer.status.unwrap().address, "127.9.0.1");
        assert_eq!(balancer.metadata.annotations.unwrap()["foreign"], "newer");
        assert_eq!(
            asked(&cluster.harvester),
            ["create loadbalancers 201", "update loadbalancers 409", "update loadbalancers 200"]
        );
        assert_eq!(told(&cluster, "SyncLoadBalancerFailed").await, 0);
        ccm.stop().await;
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

    async fn what_harvester_waits_for_is_told_and_success_comes_by_itself(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        assert_eq!(told(&cluster, "SyncLoadBalancerFailed").await, 0);
        let ready = json!({"type": "Ready", "status": "False", "message": "no pool matches, add a range"});
        harvester_says(&cluster, json!({"status": {"conditions": [ready]}})).await;
        let all = events(&cluster).await;
        let failed = all.iter().find(|(reason, _)| reason == "SyncLoadBalancerFailed");
        assert!(failed.is_some_and(|(_, message)| message.contains("no pool matches, add a range")), "{all:?}");
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [FINALIZER]);
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_changed_ipam_is_told_and_the_address_stays(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.harvester.forget_requests();
        let change = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ipam": "dhcp"}}});
        cluster.guest.patch::<Service>("shop/web", change).await;
        cluster.settle().await;
        assert_eq!(told(&cluster, "IPAMFixed").await, 1);
        assert_eq!(asked(&cluster.harvester), Vec::<String>::new());
        ccm.stop().await;
    }

    /// A webhook that undoes what we write answers as if it were done: two would write for ever, and tell of it each
    /// time.
    async fn a_change_that_admission_takes_back_is_a_failed_sync_and_is_made_when_it_may(cluster: TestCluster) {
        let (driver, undoes) = (cluster.harvester.client(User::Driver), Arc::new(AtomicBool::new(true)));
        let webhook = undoes.clone();
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, webhook) = (driver.clone(), webhook.clone());
            async move {
                let put = method == http::Method::PUT && path.contains("/loadbalancers/");
                if !put || !webhook.load(Ordering::SeqCst) {
                    return None;
                }
                let name = path.rsplit('/').next().unwrap_or_default();
                let stored = Api::<LoadBalancer>::namespaced(driver, "team-a").get(name).await;
                Some(json!(stored.expect("it is there to be changed")))
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
        until(&cluster, "the Service is told", async || told(&cluster, "SyncLoadBalancerFailed").await == 1).await;
        let (_, message) = events(&cluster).await.into_iter().find(|(reason, _)| reason == "SyncLoadBalancerFailed").unwrap();
        assert!(message.ends_with("in Harvester: admission there took the change back"), "{message}");
        assert_eq!(told(&cluster, "EnsuredLoadBalancer").await, 1);
        assert_eq!(asked(&cluster.harvester), ["create loadbalancers 201"]);
        undoes.store(false, Ordering::SeqCst);
        let published = async || load_balancer(&cluster).await.unwrap().status.unwrap().address == "127.9.0.1";
        until(&cluster, "the address is written", published).await;
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L26: two would announce it, once the pool has given it to another.
    async fn an_address_that_was_taken_back_is_published_no_more(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
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
        create_service(&cluster, "{foreign: stays}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": "ClusterIP"}})).await;
        cluster.settle().await;
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
    async fn a_service_that_kube_vip_should_ignore_keeps_the_data_path_of_the_flags(cluster: TestCluster) {
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
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": "ClusterIP"}})).await;
        cluster.settle().await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), "kube-vip.io/ignore"), Some("true"));
        ccm.stop().await;
    }

    async fn a_wrong_service_gets_one_event_with_every_fault_and_no_object(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let wrong = "{cloudprovider.harvesterhci.io/ipam: static, cloudprovider.harvesterhci.io/primary-service: a/b,
            cloudprovider.harvesterhci.io/data-path: host}";
        create_service(&cluster, wrong, "loadBalancerSourceRanges: [10.0.0.0/8]").await;
        let all = events(&cluster).await;
        assert_eq!(all.len(), 1, "{all:?}");
        for part in ["ipam", "\"static\"", "primary-service", "spec.loadBalancerSourceRanges"] {
            assert!(all[0].1.contains(part), "{part} is not in {all:?}");
        }
        assert_eq!(load_balancer(&cluster).await, None);
        // corrected, it is served
        let right = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/ipam": "ippool",
            "cloudprovider.harvesterhci.io/primary-service": null, "cloudprovider.harvesterhci.io/data-path": "guest"}},
            "spec": {"loadBalancerSourceRanges": null}});
        cluster.guest.patch::<Service>("shop/web", right).await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    async fn keys_of_later_versions_are_named_once_and_the_service_is_served(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let keys = "{cloudprovider.harvesterhci.io/ip: 10.0.0.1, cloudprovider.harvesterhci.io/ip-pool: lab}";
        create_service(&cluster, keys, "").await;
        allocate(&cluster, "127.9.0.1").await;
        let all = events(&cluster).await;
        let named: Vec<_> = all.iter().filter(|(reason, _)| reason == "NotSupported").collect();
        assert!(named.len() == 1 && named[0].1.contains("/ip,") && named[0].1.contains("/ip-pool"), "{all:?}");
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_cluster_without_nodes_is_told_and_has_its_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(told(&cluster, "UnAvailableLoadBalancer").await, 1);
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    async fn a_health_check_on_the_guest_datapath_names_the_flag(cluster: TestCluster) {
        let policy = cloud_controller_manager::data_path::Policy::Guest;
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.policy = policy).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/healthcheck-port: nonsense}", "").await;
        let all = events(&cluster).await;
        let told = all.iter().filter(|(reason, text)| reason == "HealthCheckNotEnforced" && text.contains("--data-path"));
        assert_eq!(told.count(), 1, "{all:?}");
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    /// As a program leaves it that was stopped in front of its POST, and as somebody does who strips finalizers.
    #[simulated_only("half a minute of patience")]
    async fn an_object_whose_service_is_gone_is_told_and_kept(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        ccm.stop().await;
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": null}})).await;
        cluster.guest.delete::<Service>("shop/web").await;
        let ccm = Ccm::start(&cluster).await;
        cluster.advance(std::time::Duration::from_secs(25)).await;
        let mark = async || {
            let notes = load_balancer(&cluster).await.expect("nobody deletes it").metadata.annotations.unwrap();
            notes.get("cloudprovider.harvesterhci.io/without-service").cloned()
        };
        assert_eq!(mark().await, None);
        cluster.advance(std::time::Duration::from_secs(10)).await;
        let sentence = mark().await.unwrap();
        assert!(sentence.starts_with("Service shop/web of guest cluster blue is gone: delete LoadBalancer"), "{sentence}");
        assert_eq!(told(&cluster, "LoadBalancerWithoutService").await, 1);

        ccm.stop().await;
        cluster.harvester.forget_requests();
        let ccm = Ccm::start(&cluster).await;
        cluster.advance(std::time::Duration::from_secs(3600)).await;
        assert_eq!(asked(&cluster.harvester), Vec::<String>::new(), "told once");
        ccm.stop().await;
    }

    /// The object of the Go program has our computed name and none of our annotations.
    async fn an_object_of_the_go_program_is_taken_over_with_its_address(cluster: TestCluster) {
        create_service(&cluster, "{}", "").await;
        let uid = service(&cluster).await.unwrap().metadata.uid.unwrap();
        let name = cloud_controller_manager::cluster::GuestCluster::new("blue").load_balancer_name("shop", "web", &uid);
        let yaml = format!(
            "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: {name}
  namespace: team-a
  annotations: {{loadbalancer.harvesterhci.io/network: default/mgmt, loadbalancer.harvesterhci.io/cluster: blue}}
  labels:
    cloudprovider.harvesterhci.io/cluster: blue
    cloudprovider.harvesterhci.io/serviceNamespace: shop
    cloudprovider.harvesterhci.io/serviceName: web
spec: {{workloadType: cluster, ipam: pool}}
status: {{allocatedAddress: {{ipPool: lab, ip: 127.9.0.3}}}}
"
        );
        cluster.harvester.apply(&yaml).await;
        let ccm = Ccm::start(&cluster).await;
        let taken = load_balancer(&cluster).await.unwrap();
        let notes = taken.metadata.annotations.unwrap();
        assert_eq!(notes["cloudprovider.harvesterhci.io/service-uid"], uid);
        assert_eq!(notes["loadbalancer.harvesterhci.io/network"], "default/mgmt");
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
        ccm.stop().await;
    }

    /// docs/contract/addresses.md#4: made while nobody had given the cluster a name.
    async fn an_object_that_was_made_under_the_name_kubernetes_is_taken_over(cluster: TestCluster) {
        for labels in [true, false] {
            create_service(&cluster, "{}", "").await;
            let uid = service(&cluster).await.unwrap().metadata.uid.unwrap();
            let nameless = cloud_controller_manager::cluster::GuestCluster::new("kubernetes");
            let name = nameless.load_balancer_name("shop", "web", &uid);
            let labels = if labels {
                "{cloudprovider.harvesterhci.io/cluster: kubernetes, cloudprovider.harvesterhci.io/serviceNamespace: shop,
                  cloudprovider.harvesterhci.io/serviceName: web}"
            } else {
                "{}"
            };
            cluster.harvester.apply(&format!(
                "{{apiVersion: loadbalancer.harvesterhci.io/v1beta1, kind: LoadBalancer, metadata: {{name: {name}, namespace: \
                 team-a, annotations: {{loadbalancer.harvesterhci.io/cluster: kubernetes}}, labels: {labels}}}, spec: \
                 {{workloadType: cluster, ipam: pool}}, status: {{allocatedAddress: {{ipPool: lab, ip: 127.9.0.3}}}}}}"
            )).await;
            let ccm = Ccm::start(&cluster).await;
            let taken = load_balancer(&cluster).await.unwrap();
            assert_eq!(taken.metadata.name.as_deref(), Some(&*name));
            assert_eq!(taken.metadata.annotations.unwrap()["cloudprovider.harvesterhci.io/service-uid"], uid);
            assert_eq!(taken.metadata.labels.unwrap()["cloudprovider.harvesterhci.io/cluster"], "blue");
            assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
            cluster.guest.delete::<Service>("shop/web").await;
            cluster.settle().await;
            assert_eq!(load_balancer(&cluster).await, None);
            ccm.stop().await;
        }
    }

    /// docs/contract/addresses.md#4: restored from a backup, it has a new UID.
    async fn an_object_of_this_cluster_serves_the_service_that_was_made_again(cluster: TestCluster) {
        create_service(&cluster, "{}", "").await;
        cluster.harvester.apply(
            "apiVersion: loadbalancer.harvesterhci.io/v1beta1
kind: LoadBalancer
metadata:
  name: blue-shop-web-0
  namespace: team-a
  annotations: {loadbalancer.harvesterhci.io/cluster: blue}
  labels:
    cloudprovider.harvesterhci.io/cluster: blue
    cloudprovider.harvesterhci.io/serviceNamespace: shop
    cloudprovider.harvesterhci.io/serviceName: web
spec: {workloadType: cluster, ipam: pool}
status: {allocatedAddress: {ipPool: lab, ip: 127.9.0.3}}
",
        ).await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(load_balancer(&cluster).await.unwrap().metadata.name.as_deref(), Some("blue-shop-web-0"));
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.3"));
        ccm.stop().await;
    }

    /// docs/contract/addresses.md#4: an object without Service is never deleted on its own.
    async fn a_cluster_ip_with_the_name_of_a_former_service_does_not_take_its_object_away(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        ccm.stop().await;
        cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"finalizers": null}})).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}",
        ).await;
        let ccm = Ccm::start(&cluster).await;
        harvester_says(&cluster, json!({"metadata": {"annotations": {"foreign": "x"}}})).await;
        assert!(load_balancer(&cluster).await.unwrap().metadata.deletion_timestamp.is_none());
        // the next one that asks for a load balancer gets the address
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": "LoadBalancer"}})).await;
        cluster.settle().await;
        assert_eq!(annotation(&service(&cluster).await.unwrap(), LOADBALANCER_IPS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    /// Somebody deletes the object and makes one under its name before our DELETE arrives.
    async fn an_object_made_again_under_the_name_is_not_deleted_for_the_one_before(cluster: TestCluster) {
        let (driver, first) = (cluster.harvester.client(User::Driver), Arc::new(AtomicBool::new(true)));
        let client = interposed(cluster.harvester.client(User::CloudControllerManager), move |method, path| {
            let (driver, first) = (driver.clone(), first.clone());
            async move {
                let delete = method == http::Method::DELETE && path.contains("/loadbalancers/");
                if delete && first.swap(false, Ordering::SeqCst) {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let api = Api::<LoadBalancer>::namespaced(driver, "team-a");
                    let mut object = api.get(name).await.expect("it is there to be deleted");
                    api.delete(name, &DeleteParams::default()).await.expect("the driver may do everything");
                    (object.metadata.uid, object.metadata.resource_version) = (None, None);
                    api.create(&PostParams::default(), &object).await.expect("the name is free");
                }
                None
            }
        });
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        create_service(&cluster, "{}", "").await;
        cluster.harvester.forget_requests();
        cluster.guest.delete::<Service>("shop/web").await;
        until(&cluster, "the Service is gone", async || service(&cluster).await.is_none()).await;
        assert_eq!(asked(&cluster.harvester), ["delete loadbalancers 409", "delete loadbalancers 200"]);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#12.5; the Go program made the secondary.
    async fn a_primary_keeps_its_object_while_a_secondary_names_it(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        cluster.guest.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop, labels: \
             {cloudprovider.harvesterhci.io/primary-service: shop.web}, annotations: \
             {cloudprovider.harvesterhci.io/primary-service: shop/web, kube-vip.io/loadbalancerIPs: 127.9.0.1}}, \
             spec: {type: LoadBalancer, ports: [{port: 81}]}}",
        ).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert!(load_balancer(&cluster).await.unwrap().metadata.deletion_timestamp.is_none());
        assert_eq!(finalizers(&service(&cluster).await.unwrap()), [FINALIZER]);
        let all = events(&cluster).await;
        let used = |message: &str| message.contains("failed to delete load balancer: ") && message.contains("shop/api");
        assert!(all.iter().any(|(reason, message)| reason == "SyncLoadBalancerFailed" && used(message)), "{all:?}");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
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
        let guest_only = cloud_controller_manager::data_path::Allowed { guest: true, host: false };
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
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        announce(&cluster, "127.9.0.1").await;
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"type": "ClusterIP"}})).await;
        cluster.settle().await;
        let all = events(&cluster).await;
        let told: Vec<_> = all.iter().filter(|(reason, _)| reason == "VipStillAnnounced").collect();
        assert!(told.len() == 1 && told[0].1.contains("on node worker-1 does not let go of 127.9.0.1"), "{all:?}");
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L34: in Go another cluster name orphans every object.
    async fn another_cluster_name_keeps_the_objects(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        let name = load_balancer(&cluster).await.unwrap().metadata.name;
        ccm.stop().await;
        let green = cloud_controller_manager::cluster::GuestCluster::new("green");
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.cluster = green).await;
        let kept = load_balancer(&cluster).await.unwrap();
        assert_eq!(kept.metadata.name, name);
        assert_eq!(kept.metadata.labels.unwrap()["cloudprovider.harvesterhci.io/cluster"], "green");
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }
}
