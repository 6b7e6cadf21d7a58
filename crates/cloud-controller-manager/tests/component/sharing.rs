//! Services that share the address of `shop/web`.

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::{Event, Service};
use kube::ResourceExt;
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::{
    harness::{
        ALLOCATED_ADDRESS, Ccm, FINALIZER, LOADBALANCER_IPS, allocate, annotation, announce,
        announced_service, asked, create_service, finalizers, harvester_says, ingress, load_balancer,
        service, set_type,
    },
    host_datapath::{CHECKED, IGNORE, start_with_two_nodes},
};

pub(crate) const PRIMARY: &str = "cloudprovider.harvesterhci.io/primary-service";
pub(crate) const ON_HOST: &str = "cloudprovider.harvesterhci.io/data-path: host";

/// `shop/web` is announced, and `shop/api` shares its address.
async fn start_sharing(cluster: &TestCluster) -> Ccm {
    let ccm = Ccm::start(cluster).await;
    announced_service(cluster, "{}").await;
    ask(cluster, "api", 81, "web", "").await;
    ccm
}

/// `shop/web` is on the host datapath and has an address.
pub(crate) async fn start_on_host(cluster: &TestCluster) -> Ccm {
    let ccm = start_with_two_nodes(cluster).await;
    create_service(cluster, CHECKED, "").await;
    harvester_says(cluster, given("127.9.0.1")).await;
    ccm
}

/// Deletes a Service and takes its finalizers away.
async fn tear_away(cluster: &TestCluster, key: &str) {
    cluster.guest.delete::<Service>(key).await;
    cluster.settle().await;
    cluster.guest.patch::<Service>(key, json!({"metadata": {"finalizers": null}})).await;
    cluster.settle().await;
}

/// A Service `shop/<name>` with one port that asks for the address of `primary`; `more` as more annotations in YAML.
pub(crate) async fn ask(cluster: &TestCluster, name: &str, port: u16, primary: &str, more: &str) {
    ask_from(cluster, "shop", name, port, primary, more).await;
}

async fn ask_from(cluster: &TestCluster, namespace: &str, name: &str, port: u16, primary: &str, more: &str) {
    cluster
        .guest
        .apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}, annotations: {{{PRIMARY}: {primary}, {more}}}}}
spec: {{type: LoadBalancer, selector: {{app: web}}, ports: [{{name: http, port: {port}}}]}}
"
        ))
        .await;
    cluster.settle().await;
}

/// Gives a Service another wish, or none.
pub(crate) async fn ask_again(cluster: &TestCluster, key: &str, primary: Value) {
    cluster.guest.patch::<Service>(key, json!({"metadata": {"annotations": {PRIMARY: primary}}})).await;
    cluster.settle().await;
}

pub(crate) async fn at(cluster: &TestCluster, key: &str) -> Service {
    cluster.guest.get(key).await.expect("the Service is there")
}

/// The addresses that kube-vip is asked to announce for the Service, and its label.
pub(crate) async fn shared(cluster: &TestCluster, key: &str) -> (Option<String>, Option<String>) {
    let service = at(cluster, key).await;
    let ips = annotation(&service, LOADBALANCER_IPS).map(str::to_owned);
    (ips, service.labels().get(PRIMARY).cloned())
}

pub(crate) fn is(ips: &str, label: &str) -> (Option<String>, Option<String>) {
    (Some(ips.to_owned()), Some(label.to_owned()))
}

/// Messages of our Events with this reason about the Service.
pub(crate) async fn told_about(cluster: &TestCluster, name: &str, reason: &str) -> Vec<String> {
    let all = cluster.guest.list::<Event>().await.into_iter();
    let about = all.filter(|event| {
        event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
    });
    about.filter_map(|event| event.message).collect()
}

/// The object of a Service.
pub(crate) async fn object_of(cluster: &TestCluster, name: &str) -> Option<LoadBalancer> {
    let all = cluster.harvester.list::<LoadBalancer>().await;
    let label = "cloudprovider.harvesterhci.io/serviceName";
    all.into_iter().find(|object| object.labels().get(label).map(String::as_str) == Some(name))
}

pub(crate) async fn says_about(cluster: &TestCluster, name: &str, patch: Value) {
    let object = object_of(cluster, name).await.expect("it has a LoadBalancer");
    let key = format!("{}/{}", cluster.guest_cluster().vm_namespace, object.name_any());
    cluster.harvester.patch::<LoadBalancer>(&key, patch).await;
    cluster.settle().await;
}

pub(crate) fn allocated(ip: &str) -> Value {
    json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": ip}}})
}

/// On the host datapath, where Harvester announces it.
pub(crate) fn given(ip: &str) -> Value {
    json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": ip}, "address": ip}})
}

/// Listeners of the only object.
async fn listeners(cluster: &TestCluster) -> Vec<(i32, i32)> {
    let object = load_balancer(cluster).await.expect("there is a LoadBalancer");
    object.spec.listeners.iter().map(|listener| (listener.port, listener.backend_port)).collect()
}

async fn port_of(cluster: &TestCluster, key: &str) -> (i32, i32) {
    let ports = at(cluster, key).await.spec.and_then(|spec| spec.ports);
    let port = ports.expect("the Service has ports").remove(0);
    (port.port, port.node_port.expect("the server gave it a node port"))
}

test_cluster::component_tests! {
    /// The figure shared-create-p50-ms is this one write. docs/contract/cloud-controller-manager.md#9.3 says which.
    async fn a_secondary_costs_one_write(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        let more = "cloudprovider.harvesterhci.io/ipam: dhcp, kube-vip.io/serviceInterface: eth7";
        ask(&cluster, "api", 81, "web", more).await;
        assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (vec!["patch services 200".to_owned()], vec![]));
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        let service = at(&cluster, "shop/api").await;
        assert_eq!(finalizers(&service), [FINALIZER]);
        let gone = ["cloudprovider.harvesterhci.io/ipam", "kube-vip.io/serviceInterface"];
        assert_eq!(gone.map(|key| annotation(&service, key)), [None, None]);
        assert_eq!(told_about(&cluster, "api", "EnsuredLoadBalancer").await.len(), 1);
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L19: in Go it waits for its backoff.
    async fn a_secondary_that_is_there_first_gets_the_address_with_its_primary(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        ask(&cluster, "api", 81, "shop/web", "").await;
        let waits = told_about(&cluster, "api", "WaitingForPrimary").await;
        assert!(waits.len() == 1 && waits[0].contains("service shop/web, whose address it asks for, is not there"), "{waits:?}");
        assert_eq!(load_balancer(&cluster).await, None);
        create_service(&cluster, "{}", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, (None, None));
        allocate(&cluster, "127.9.0.1").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L19 and #L20.
    async fn a_secondary_follows_its_primary_to_another_address(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        allocate(&cluster, "127.9.0.2").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.2", "shop.web"));
        let ready = json!({"type": "Ready", "status": "False", "message": "no address is free"});
        harvester_says(&cluster, json!({"status": {"allocatedAddress": null, "conditions": [ready]}})).await;
        assert_eq!(shared(&cluster, "shop/api").await.0, None, "taken back");
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await.len(), 1);
        allocate(&cluster, "127.9.0.3").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.3", "shop.web"));
        ccm.stop().await;
    }

    async fn the_lease_of_a_primary_is_shared_and_not_its_marker(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        create_service(&cluster, "{cloudprovider.harvesterhci.io/ipam: dhcp}", "").await;
        harvester_says(&cluster, json!({"status": {"allocatedAddress": {"ip": "0.0.0.0"}}})).await;
        ask(&cluster, "api", 81, "web", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, (None, None));
        announce(&cluster, "127.9.0.7").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.7", "shop.web"));
        ccm.stop().await;
    }

    async fn a_primary_becomes_a_secondary_and_a_primary_again(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "''", "").await;
        says_about(&cluster, "api", allocated("127.9.0.2")).await;
        assert_eq!(shared(&cluster, "shop/api").await, (Some("127.9.0.2".into()), None));
        ask_again(&cluster, "shop/api", json!("shop/web")).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        assert_eq!(object_of(&cluster, "api").await, None);

        // the shared address serves until it has one of its own, and so long the primary keeps it
        ask_again(&cluster, "shop/api", Value::Null).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        let ready = json!({"type": "Ready", "status": "False", "message": "no address is free"});
        says_about(&cluster, "api", json!({"status": {"conditions": [ready]}})).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert!(object_of(&cluster, "web").await.unwrap().metadata.deletion_timestamp.is_none());
        says_about(&cluster, "api", allocated("127.9.0.3")).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.3", ""));
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#12.5, #L16 and #L17.
    async fn primary_and_secondaries_go_in_any_order(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        for first in ["shop/web", "shop/api"] {
            announced_service(&cluster, "{}").await;
            ask(&cluster, "api", 81, "web", "").await;
            cluster.guest.delete::<Service>(first).await;
            cluster.settle().await;
            assert!(service(&cluster).await.is_some(), "it waits, or nobody deleted it");
            for other in ["shop/api", "shop/web"] {
                if cluster.guest.get::<Service>(other).await.is_some_and(|it| it.metadata.deletion_timestamp.is_none()) {
                    cluster.guest.delete::<Service>(other).await;
                    cluster.settle().await;
                }
            }
            for key in ["shop/web", "shop/api"] {
                assert_eq!(cluster.guest.get::<Service>(key).await, None, "{key}, {first} first");
            }
            assert_eq!(load_balancer(&cluster).await, None);
        }
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L15.
    async fn a_secondary_of_another_type_keeps_nothing_of_ours(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        cluster.guest.patch::<Service>("shop/api", json!({"spec": {"type": "ClusterIP"}})).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/api").await, (None, None));
        assert_eq!(finalizers(&at(&cluster, "shop/api").await).len(), 0);
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L12 and #L14.
    async fn of_two_secondaries_with_one_port_the_second_waits_for_the_first_to_go(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        ask(&cluster, "docs", 81, "web", "").await;
        assert_eq!(shared(&cluster, "shop/docs").await, (None, None));
        let told = told_about(&cluster, "docs", "PortConflict").await;
        assert!(told.len() == 1 && told[0].contains("service shop/api has port 81/TCP"), "{told:?}");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/docs").await, is("127.9.0.1", "shop.web"));
        // a port that its primary gets later
        let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"ports": ports}})).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/docs").await, (None, Some(String::new())));
        assert_eq!(shared(&cluster, "shop/web").await, (Some("127.9.0.1".into()), None));
        ccm.stop().await;
    }

    /// It asks no more, and leaves the shared address for one of its own.
    async fn the_port_of_a_secondary_that_leaves_goes_to_the_next(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        ask_again(&cluster, "shop/api", Value::Null).await;
        ask(&cluster, "docs", 81, "web", "").await;
        assert_eq!(told_about(&cluster, "docs", "PortConflict").await.len(), 1);
        says_about(&cluster, "api", allocated("127.9.0.2")).await;
        assert_eq!(shared(&cluster, "shop/docs").await, is("127.9.0.1", "shop.web"));
        ccm.stop().await;
    }

    /// Anybody may write the labels; and two Services that change their parts have them for a moment.
    async fn services_that_use_each_others_address_can_be_deleted(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        for (name, other, port) in [("web", "api", 80), ("api", "web", 81)] {
            ask(&cluster, name, port, "''", "").await;
            let labels = json!({"metadata": {"labels": {PRIMARY: format!("shop.{other}")}}});
            cluster.guest.patch::<Service>(&format!("shop/{name}"), labels).await;
            cluster.settle().await;
        }
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert!(service(&cluster).await.is_some(), "it waits for the one that stays");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        for key in ["shop/web", "shop/api"] {
            assert_eq!(cluster.guest.get::<Service>(key).await, None, "{key}");
        }
        assert_eq!(load_balancer(&cluster).await, None);
        ccm.stop().await;
    }

    async fn a_chain_ends_at_the_service_that_has_the_address(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "docs", 82, "api", "").await;
        ask(&cluster, "api", 81, "''", "").await;
        says_about(&cluster, "api", allocated("127.9.0.2")).await;
        assert_eq!(shared(&cluster, "shop/docs").await, is("127.9.0.2", "shop.api"));
        // its own object is used until its secondary has left it
        ask_again(&cluster, "shop/api", json!("web")).await;
        for key in ["shop/api", "shop/docs"] {
            assert_eq!(shared(&cluster, key).await, is("127.9.0.1", "shop.web"), "{key}");
        }
        assert_eq!(object_of(&cluster, "api").await, None);
        ccm.stop().await;
    }

    async fn sharing_with_oneself_or_in_a_ring_is_refused_and_changes_nothing(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ask(&cluster, "api", 81, "api", "").await;
        ask(&cluster, "docs", 82, "web", "").await;
        ask(&cluster, "admin", 83, "lab/shop/web", "").await;
        let refusal = async |name| told_about(&cluster, name, "InvalidPrimaryService").await.concat();
        assert!(refusal("api").await.contains("cannot share its own address"), "{}", refusal("api").await);
        assert!(refusal("admin").await.contains("namespace/name"), "{}", refusal("admin").await);
        ask_again(&cluster, "shop/web", json!("docs")).await;
        for name in ["web", "docs"] {
            assert!(refusal(name).await.contains("in a ring of Services"), "{}", refusal(name).await);
        }
        assert_eq!(shared(&cluster, "shop/web").await.0.as_deref(), Some("127.9.0.1"));
        assert_eq!(shared(&cluster, "shop/docs").await, is("127.9.0.1", "shop.web"));
        assert!(load_balancer(&cluster).await.is_some());
        ccm.stop().await;
    }

    async fn an_address_is_shared_across_namespaces_as_its_owner_says(cluster: TestCluster) {
        create_service(&cluster, "{}", "").await;
        let ccm = Ccm::start_with(&cluster, |settings| settings.rules.restrict_sharing = true).await;
        allocate(&cluster, "127.9.0.1").await;
        ask(&cluster, "api", 81, "web", "").await;
        ask_from(&cluster, "lab", "docs", 82, "shop/web", "").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        assert_eq!(shared(&cluster, "lab/docs").await, (None, None));
        let told = told_about(&cluster, "docs", "SharingNotAllowed").await;
        assert!(told.len() == 1 && told[0].contains("allow-shared-from"), "{told:?}");
        let key = "cloudprovider.harvesterhci.io/allow-shared-from";
        for (listed, expected) in [("test, lab", is("127.9.0.1", "shop.web")), ("test", (None, Some(String::new())))] {
            cluster.guest.patch::<Service>("shop/web", json!({"metadata": {"annotations": {key: listed}}})).await;
            cluster.settle().await;
            assert_eq!(shared(&cluster, "lab/docs").await, expected, "{listed}");
        }
        ccm.stop().await;
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(shared(&cluster, "lab/docs").await, is("127.9.0.1", "shop.web"), "as with the Go program");
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#12.4: nothing is to be written.
    async fn a_secondary_of_the_go_program_is_taken_over_without_a_write(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        announced_service(&cluster, "{}").await;
        ccm.stop().await;
        cluster.guest.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: api, namespace: shop, finalizers: [{FINALIZER}], \
             labels: {{{PRIMARY}: shop.web}}, annotations: {{{PRIMARY}: shop/web, {LOADBALANCER_IPS}: 127.9.0.1}}}}, \
             spec: {{type: LoadBalancer, ports: [{{port: 81}}]}}}}"
        )).await;
        cluster.guest.forget_requests();
        let ccm = Ccm::start(&cluster).await;
        assert_eq!(asked(&cluster.guest), Vec::<String>::new());
        allocate(&cluster, "127.9.0.2").await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.2", "shop.web"));
        ccm.stop().await;
    }

    /// Somebody took the finalizer off the primary: its record may be anybody's.
    async fn a_secondary_whose_primary_is_gone_announces_nothing(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}});
        cluster.guest.patch_status::<Service>("shop/api", status).await;
        tear_away(&cluster, "shop/web").await;
        let left = at(&cluster, "shop/api").await;
        assert_eq!((annotation(&left, LOADBALANCER_IPS), ingress(&left)), (None, vec![]));
        assert_eq!(annotation(&left, ALLOCATED_ADDRESS), Some("127.9.0.1"));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-10 and #row-12.
    async fn the_ports_of_a_secondary_join_the_listeners_and_leave_them_before_it_goes(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        cluster.guest.forget_requests();
        cluster.harvester.forget_requests();
        ask(&cluster, "api", 80, "web", ON_HOST).await;
        assert_eq!(told_about(&cluster, "api", "PortConflict").await.len(), 1);
        assert_eq!((asked(&cluster.guest), asked(&cluster.harvester)), (vec![], vec![]));
        let ports = json!([{"name": "http", "port": 81}]);
        cluster.guest.patch::<Service>("shop/api", json!({"spec": {"ports": ports}})).await;
        cluster.settle().await;
        assert_eq!(asked(&cluster.harvester), ["update loadbalancers 200"]);
        assert_eq!(asked(&cluster.guest), ["patch services 200", "patch services/status 200"]);
        let both = [port_of(&cluster, "shop/web").await, port_of(&cluster, "shop/api").await];
        assert_eq!(listeners(&cluster).await, both);
        let names = load_balancer(&cluster).await.unwrap().spec.listeners.into_iter().map(|it| it.name);
        assert!(names.skip(1).all(|name| name.starts_with("api-") && name.ends_with("-tcp-81")));
        let secondary = at(&cluster, "shop/api").await;
        assert_eq!((annotation(&secondary, IGNORE), annotation(&secondary, LOADBALANCER_IPS)), (Some("true"), None));
        assert_eq!(ingress(&secondary), ["127.9.0.1"]);
        harvester_says(&cluster, json!({"status": {"address": "127.9.0.2"}})).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.2"]);

        // the primary waits for its secondary, and carries it no more when that goes
        ask(&cluster, "docs", 82, "web", ON_HOST).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!(listeners(&cluster).await.len(), 3);
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!(cluster.guest.get::<Service>("shop/api").await, None);
        let left = [port_of(&cluster, "shop/web").await, port_of(&cluster, "shop/docs").await];
        assert_eq!(listeners(&cluster).await, left);
        cluster.guest.delete::<Service>("shop/docs").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    async fn a_secondary_on_another_datapath_is_refused(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        ask(&cluster, "api", 81, "web", "").await;
        let told = told_about(&cluster, "api", "DataPathDiffers").await;
        assert!(told.len() == 1 && told[0].contains("data-path: host"), "{told:?}");
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        create_service(&cluster, "{}", "").await;
        ask(&cluster, "docs", 82, "web", ON_HOST).await;
        assert_eq!(told_about(&cluster, "docs", "DataPathDiffers").await.len(), 1);
        ccm.stop().await;
    }

    /// Nobody takes listeners from an object without Service, and such an object is not deleted.
    async fn a_secondary_goes_although_its_primary_left_its_object_behind(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        tear_away(&cluster, "shop/web").await;
        assert_eq!(listeners(&cluster).await.len(), 2);
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!(cluster.guest.get::<Service>("shop/api").await, None);
        ccm.stop().await;
    }

    /// The listeners of `shop/docs` are named by the digest of its key, which anybody can compute.
    async fn a_port_that_is_named_like_a_listener_of_a_secondary_holds_nobody(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        let name = format!("docs-{:08x}-tcp-82", crc32fast::hash(b"shop/docs"));
        let ports = json!([{"name": name, "port": 80}]);
        cluster.guest.patch::<Service>("shop/web", json!({"spec": {"ports": ports}})).await;
        ask(&cluster, "docs", 82, "web", ON_HOST).await;
        ask_again(&cluster, "shop/docs", json!("nobody")).await;
        cluster.guest.delete::<Service>("shop/docs").await;
        cluster.settle().await;
        assert_eq!(cluster.guest.get::<Service>("shop/docs").await, None);
        assert_eq!(listeners(&cluster).await.len(), 1);
        ccm.stop().await;
    }

    /// A host Service leaves its primary for an address of its own.
    async fn a_secondary_on_the_host_datapath_becomes_a_primary(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        ask_again(&cluster, "shop/api", Value::Null).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        says_about(&cluster, "api", given("127.9.0.3")).await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.3"]);
        assert_eq!(shared(&cluster, "shop/api").await.1.as_deref(), Some(""));
        assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 1);
        set_type(&cluster, "ClusterIP").await;
        assert_eq!(object_of(&cluster, "web").await, None);
        ccm.stop().await;
    }

    /// The next primary may wait for its address for ever.
    async fn a_secondary_on_the_host_datapath_leaves_its_primary_when_the_next_has_an_address(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        ask(&cluster, "docs", 82, "''", ON_HOST).await;
        let of = async |name| object_of(&cluster, name).await.map_or(0, |object| object.spec.listeners.len());
        ask_again(&cluster, "shop/api", json!("docs")).await;
        assert_eq!((of("web").await, of("docs").await), (2, 1));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        assert_eq!(told_about(&cluster, "api", "WaitingForPrimary").await.len(), 1);
        // neither does one with an object of its own
        ask_again(&cluster, "shop/web", json!("docs")).await;
        assert_eq!((of("web").await, of("docs").await), (2, 1));
        ask_again(&cluster, "shop/web", Value::Null).await;
        says_about(&cluster, "docs", given("127.9.0.2")).await;
        assert_eq!((of("web").await, of("docs").await), (1, 2));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.2"]);
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-10: its object stays for them.
    async fn a_primary_that_is_being_deleted_follows_the_ports_of_its_secondaries(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        cluster.guest.delete::<Service>("shop/web").await;
        let spec = json!({"spec": {"ports": [{"name": "http", "port": 83}]}});
        cluster.guest.patch::<Service>("shop/api", spec).await;
        cluster.settle().await;
        let both = [port_of(&cluster, "shop/web").await, port_of(&cluster, "shop/api").await];
        assert_eq!((listeners(&cluster).await, both[1].0), (both.to_vec(), 83));
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"]);
        // one that cannot be carried any more does not go on showing the address
        let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
        cluster.guest.patch::<Service>("shop/api", local).await;
        cluster.settle().await;
        assert!(!told_about(&cluster, "api", "HealthCheckNeeded").await.is_empty());
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-12: another Service may get its node ports.
    async fn a_primary_of_another_type_leads_nobody_to_its_former_node_ports(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        set_type(&cluster, "ClusterIP").await;
        assert_eq!(listeners(&cluster).await, [port_of(&cluster, "shop/api").await]);
        set_type(&cluster, "LoadBalancer").await;
        let both = [port_of(&cluster, "shop/web").await, port_of(&cluster, "shop/api").await];
        assert_eq!(listeners(&cluster).await, both);
        ccm.stop().await;
    }

    /// It waits with the reason, and nobody waits for it.
    async fn a_service_that_asks_for_the_address_of_one_that_goes_gets_none_and_does_not_keep_it(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        ask(&cluster, "docs", 82, "web", "").await;
        assert_eq!(shared(&cluster, "shop/docs").await, (None, None));
        let told = told_about(&cluster, "docs", "WaitingForPrimary").await;
        assert!(told.len() == 1 && told[0].contains("is being deleted; until then it has no address"), "{told:?}");
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// Its ports have joined the listeners, and Harvester has given no address.
    async fn a_secondary_that_never_had_an_address_does_not_keep_its_primary(cluster: TestCluster) {
        let ccm = start_with_two_nodes(&cluster).await;
        create_service(&cluster, CHECKED, "").await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        assert_eq!(listeners(&cluster).await.len(), 2);
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        assert_eq!(shared(&cluster, "shop/api").await.1.as_deref(), Some(""));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#L15 and docs/contract/kube-vip.md#withdrawal.
    async fn a_secondary_of_another_type_keeps_its_primary_while_kube_vip_may_announce_the_address(cluster: TestCluster) {
        let ccm = start_sharing(&cluster).await;
        let host = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
        cluster.guest.patch::<Service>("shop/api", host).await;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}});
        cluster.guest.patch_status::<Service>("shop/api", status).await;
        cluster.settle().await;
        let of_type = async |spec_type: &str| {
            cluster.guest.patch::<Service>("shop/api", json!({"spec": {"type": spec_type}})).await;
            cluster.settle().await;
            at(&cluster, "shop/api").await
        };
        let inside = of_type("ClusterIP").await;
        assert_eq!((annotation(&inside, LOADBALANCER_IPS), annotation(&inside, ALLOCATED_ADDRESS)), (None, Some("127.9.0.1")));
        cluster.guest.delete::<Service>("shop/web").await;
        cluster.settle().await;
        assert!(object_of(&cluster, "web").await.unwrap().metadata.deletion_timestamp.is_none());
        let again = of_type("LoadBalancer").await;
        assert_eq!(ingress(&again), ["127.9.0.1"], "kube-vip does not write it a second time");
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        cluster.guest.delete::<Service>("shop/api").await;
        cluster.settle().await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }
}
