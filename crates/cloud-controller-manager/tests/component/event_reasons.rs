//! Reasons of Events that no other test here provokes: what docs/reference/events.md promises was seen.

use std::time::Duration;

use cloud_config::{Answered, CloudConfig, Followed, Options, proxy::Environment};
use cloud_controller_manager::{
    answers::Answers, cluster::GuestCluster, datapath::AllowedDatapaths, notices::Notices,
};
use credential_rotation::life::{self, Life};
use harvester_api::{LoadBalancer, annotations, labels};
use http::{HeaderMap, Method};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::Client;
use program::{Clock, TaskGroup, pod::OwnPod};
use serde_json::json;
use test_cluster::{TestCluster, User};
use tokio::sync::watch;

use super::{
    harness::{
        Ccm, allocate, create_service, delete_vm, harvester_says, join, load_balancer, node, service,
        set_ready, told, until,
    },
    host_datapath::{CHECKED, start_with_two_nodes},
    sharing::{ask, told_about},
};

/// A Service `shop/<name>`; annotations and spec in YAML.
async fn create(cluster: &TestCluster, name: &str, annotations: &str, spec: &str) {
    let yaml = format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: shop}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop, annotations: {{{annotations}}}}},
  spec: {{type: LoadBalancer, selector: {{app: web}}, {spec}}}}}
"
    );
    cluster.guest.apply(&yaml).await;
    cluster.settle().await;
}

/// Waits for an Event with this reason about an object of this name.
pub(super) async fn hears(cluster: &TestCluster, name: &str, reason: &str) {
    let what = format!("{name} hears {reason}");
    until(cluster, &what, async || !told_about(cluster, name, reason).await.is_empty()).await;
}

const PORT: &str = "ports: [{name: http, port: 80}]";
const HOST: &str = "cloudprovider.harvesterhci.io/data-path: host";

fn clients(cluster: &TestCluster) -> [Client; 2] {
    [&cluster.guest, &cluster.harvester].map(|side| side.client(User::CloudControllerManager))
}

/// Notices on a Pod of this name.
pub(super) fn on_pod(cluster: &TestCluster, tasks: &TaskGroup, name: &str) -> Notices {
    let (notices, clock) = (Notices::default(), Clock::starting_at(cluster.start()));
    let pod = OwnPod { namespace: "kube-system".into(), name: name.into(), uid: Some("a-1".to_owned()) };
    notices.write_to(tasks, cluster.guest.client(User::CloudControllerManager), clock, Some(pod));
    notices
}

test_cluster::component_tests! {
    async fn each_mistake_in_a_service_has_a_reason_of_its_own(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        let ports: Vec<_> = (1..=101).map(|port| format!("{{name: p{port}, port: {port}}}")).collect();
        let many = format!("allocateLoadBalancerNodePorts: false, ports: [{}]", ports.join(", "));
        let ranges = format!("{PORT}, loadBalancerSourceRanges: ['fd00::/8']");
        let families = format!("{PORT}, ipFamilyPolicy: PreferDualStack");
        let on_network = format!("{HOST}, cloudprovider.harvesterhci.io/network: a/b");
        let cases = [
            ("InvalidDataPath", "cloudprovider.harvesterhci.io/data-path: sideways", PORT),
            ("InvalidIPPool", "cloudprovider.harvesterhci.io/ip-pool: 'no name'", PORT),
            ("UnknownAnnotation", "cloudprovider.harvesterhci.io/ipma: pool", PORT),
            ("HealthCheckWithoutPort", "cloudprovider.harvesterhci.io/healthcheck-periodseconds: '5'", PORT),
            ("InvalidSourceRanges", HOST, &ranges),
            ("NetworkNotSupported", &on_network, PORT),
            ("ProtocolNotSupported", HOST, "ports: [{name: sctp, port: 80, protocol: SCTP}]"),
            ("TooManyPorts", HOST, &many),
            ("IPFamilyNotSupported", HOST, &families),
        ];
        for (number, (reason, annotations, spec)) in cases.into_iter().enumerate() {
            let name = format!("wrong-{number}");
            create(&cluster, &name, annotations, spec).await;
            hears(&cluster, &name, reason).await;
        }
        ccm.stop().await;
    }

    async fn a_data_path_that_is_not_allowed_is_told(cluster: TestCluster) {
        let allowed = AllowedDatapaths { guest: true, host: false };
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.allowed = allowed).await;
        create(&cluster, "asks", HOST, PORT).await;
        hears(&cluster, "asks", "DataPathNotAllowed").await;
        let class = format!("{PORT}, loadBalancerClass: harvesterhci.io/load-balancer");
        create(&cluster, "of-class", "", &class).await;
        hears(&cluster, "of-class", "ClassNeedsHostPath").await;
        ccm.stop().await;
    }

    async fn a_secondary_that_its_primary_cannot_carry_is_told_why(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": "127.9.0.1"},
            "address": "127.9.0.1"}})).await;
        let annotations = format!("{HOST}, cloudprovider.harvesterhci.io/primary-service: web");
        let spec = "ports: [{name: api, port: 81}], loadBalancerSourceRanges: [10.0.0.0/8]";
        create(&cluster, "narrow", &annotations, spec).await;
        hears(&cluster, "narrow", "NotSupported").await;
        ccm.stop().await;
    }

    async fn a_secondary_on_another_network_is_told_so(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        allocate(&cluster, "127.9.0.1").await;
        ask(&cluster, "api", 81, "web", "cloudprovider.harvesterhci.io/network: a/b").await;
        hears(&cluster, "api", "NetworkDiffers").await;
        ccm.stop().await;
    }

    async fn a_node_that_is_no_known_vm_is_told_on_the_services_that_it_would_serve(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: stranger}}").await;
        create_service(&cluster, CHECKED, "").await;
        until(&cluster, "the Service is told", async || told(&cluster, "NodeWithoutVM").await == 1).await;
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    async fn a_host_service_that_kube_vip_in_the_guest_announces_too_is_told(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        let host = json!({"metadata": {"annotations": {annotations::KUBE_VIP_VIP_HOST: "worker-1"}}});
        cluster.guest.patch::<Service>("shop/web", host).await;
        until(&cluster, "the Service is told", async || told(&cluster, "VipAnnouncedTwice").await == 1).await;
        ccm.stop().await;
    }

    #[simulated_only("waits for a time-out")]
    async fn a_service_with_an_address_is_told_what_hinders_its_source_ranges(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        harvester_says(&cluster, json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": "10.0.0.9"},
            "address": "10.0.0.9"}})).await;
        let ranges = json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}});
        cluster.guest.patch::<Service>("shop/web", ranges).await;
        cluster.settle().await;
        let hindrance = json!({"type": "Ready", "status": "False", "reason": "ServiceRefused", "message": "no room"});
        harvester_says(&cluster, json!({"status": {"conditions": [hindrance]}})).await;
        cluster.advance(Duration::from_secs(11)).await;
        until(&cluster, "the Service is told", async || told(&cluster, "SourceRangesNotInForce").await == 1).await;
        ccm.stop().await;
    }

    async fn a_service_whose_former_object_is_not_gone_waits_and_says_so(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{}", "").await;
        harvester_says(&cluster, json!({"metadata": {"finalizers": ["wrangler.cattle.io/harvester-lb-controller"]}})).await;
        let name = load_balancer(&cluster).await.unwrap().metadata.name.unwrap();
        cluster.harvester.delete::<LoadBalancer>(&format!("team-a/{name}")).await;
        until(&cluster, "the Service is told", async || told(&cluster, "WaitingForRemoval").await == 1).await;
        harvester_says(&cluster, json!({"metadata": {"finalizers": null}})).await;
        until(&cluster, "there is a new one", async || load_balancer(&cluster).await.is_some()).await;
        assert!(service(&cluster).await.is_some());
        ccm.stop().await;
    }

    async fn a_node_whose_vm_was_made_again_is_told_on_the_node(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        until(&cluster, "the Node has a provider ID", async || {
            node(&cluster, "worker-1").await.and_then(|node| node.spec?.provider_id).is_some()
        }).await;
        // one that is not ready is removed with its VM
        set_ready(&cluster, "worker-1", "True").await;
        delete_vm(&cluster, "worker-1").await;
        join(&cluster, "worker-1", "worker-1", "").await;
        hears(&cluster, "worker-1", "ProviderIdOutdated").await;
        ccm.stop().await;
    }

    async fn a_cluster_without_a_name_is_told_on_its_services_and_on_the_pod(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let notices = on_pod(&cluster, &tasks, "ccm-1");
        let ccm = Ccm::start_telling(&cluster, clients(&cluster), notices, |settings| {
            settings.rules.cluster = GuestCluster::new("kubernetes");
        }).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        create_service(&cluster, "{}", "").await;
        until(&cluster, "the Service is told", async || told(&cluster, "ClusterNameNotSet").await == 1).await;
        hears(&cluster, "ccm-1", "ClusterNameNotSet").await;
        ccm.stop().await;
        tasks.end().await;
    }

    async fn a_name_that_another_cluster_has_is_told_on_the_pod(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let notices = on_pod(&cluster, &tasks, "ccm-1");
        let ccm = Ccm::start_telling(&cluster, clients(&cluster), notices, |_| ()).await;
        let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "of-another", "namespace": "team-a",
                "labels": {labels::CLUSTER: cluster.guest_cluster().name, labels::SERVICE_NAMESPACE: "default",
                    labels::SERVICE_NAME: "web"},
                "annotations": {annotations::CLUSTER_UID: "00000000-0000-4000-8000-00000000000f"}},
            "spec": {"workloadType": "cluster", "ipam": "pool"}});
        cluster.harvester.apply(&object.to_string()).await;
        hears(&cluster, "ccm-1", "ClusterNameTaken").await;
        ccm.stop().await;
        tasks.end().await;
    }

    async fn a_changed_cloud_config_that_is_of_no_use_is_told_on_the_pod(cluster: TestCluster) {
        let tasks = TaskGroup::new();
        let (notices, clock) = (on_pod(&cluster, &tasks, "ccm-1"), Clock::starting_at(cluster.start()));
        let kubeconfig = "{current-context: a, clusters: [{name: a, cluster: {server: 'https://harvester.example'}}],
            users: [{name: a, user: {token: t}}], contexts: [{name: a, context: {cluster: a, user: a}}]}";
        let config = CloudConfig::parse(kubeconfig, "cloud-config", &Environment::default()).expect("it is good");
        let fault = Some("its current-context names nothing".to_owned());
        let (_file, followed) = watch::channel(Followed { config, fault });
        let tell = move |event: &_| notices.tell(event);
        tasks.spawn_until_stop(life::follow(followed, Options::named("part/1"), clock, Life::new(clock), false, tell));
        hears(&cluster, "ccm-1", "CloudConfigNotUsed").await;
        tasks.end().await;
    }

    #[simulated_only("waits for a time-out")]
    async fn a_refused_credential_and_a_wrong_clock_are_told_on_the_pod(cluster: TestCluster) {
        let (tasks, clock) = (TaskGroup::new(), Clock::starting_at(cluster.start()));
        let answers = Answers::new("Harvester", "a file".into(), clock, on_pod(&cluster, &tasks, "ccm-1"));
        let mut headers = HeaderMap::new();
        headers.insert("date", "Thu, 01 Jan 1998 00:00:00 GMT".parse().unwrap());
        let saw = |code: u16, headers: &HeaderMap| {
            answers.saw(&Answered { method: &Method::GET, host: "h", code: Some(code), headers: Some(headers),
                took: Duration::ZERO, queued: Duration::ZERO });
        };
        saw(200, &headers);
        hears(&cluster, "ccm-1", "ClockSkew").await;
        saw(401, &HeaderMap::new());
        cluster.advance(Duration::from_secs(11)).await;
        assert_eq!(told_about(&cluster, "ccm-1", "CredentialRefused").await, [""; 0]);
        saw(401, &HeaderMap::new());
        hears(&cluster, "ccm-1", "CredentialRefused").await;
        let about: Vec<_> = cluster.guest.list::<Event>().await.into_iter().map(|it| it.involved_object.kind).collect();
        assert_eq!(about, [Some("Pod".to_owned()), Some("Pod".to_owned())]);
        tasks.end().await;
    }
}
