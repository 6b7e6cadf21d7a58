//! Services with the label of a secondary that this program does not serve: it takes no label off them.

use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::{
    harness::{
        ALLOCATED_ADDRESS, Ccm, LOADBALANCER_IPS, annotation, announced_service, create_service,
        harvester_says, ingress, load_balancer, service,
    },
    host_datapath::IGNORE,
    sharing::{
        ON_HOST, PRIMARY, allocated, ask, at, is, object_of, says_about, shared, start_on_host, told_about,
    },
};

const FOREIGN: &str = "spec: {type: LoadBalancer, loadBalancerClass: example.com/other, ports: [{port: 81}]}";
const OWN: &str = "spec: {type: LoadBalancer, ports: [{port: 81}]}";
const INSIDE: &str = "spec: {type: ClusterIP, ports: [{port: 81}]}";
const RECORD: &str = "{cloudprovider.harvesterhci.io/allocated-address: 127.9.0.1}";

/// `shop/web` is announced at 127.9.0.1. With `restricted` only namespace `admitted` may share that.
async fn start(cluster: &TestCluster, restricted: bool, admitted: &str) -> Ccm {
    let ccm = Ccm::start_with(cluster, |settings| settings.rules.restrict_sharing = restricted).await;
    announced_service(cluster, &format!("{{cloudprovider.harvesterhci.io/allow-shared-from: {admitted}}}"))
        .await;
    ccm
}

/// A Service `lab/docs` with the label of a secondary of `shop/web`.
async fn label(cluster: &TestCluster, spec: &str, annotations: &str) {
    cluster
        .guest
        .apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: lab}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: docs, namespace: lab, labels: {{{PRIMARY}: shop.web}}, annotations: {annotations}}}
{spec}
"
        ))
        .await;
    cluster.settle().await;
}

async fn delete(cluster: &TestCluster, key: &str) {
    cluster.guest.delete::<Service>(key).await;
    cluster.settle().await;
}

async fn is_kept(cluster: &TestCluster) -> bool {
    let object = object_of(cluster, "web").await;
    object.is_some_and(|object| object.metadata.deletion_timestamp.is_none())
}

test_cluster::component_tests! {
    /// What else the author of a Service writes counts only where the primary admits the namespace.
    async fn a_label_on_a_service_that_has_no_address_of_ours_keeps_no_primary(cluster: TestCluster) {
        let forged = [
            (false, FOREIGN, "{}"),
            (false, INSIDE, "{kube-vip.io/vipHost: worker-1}"),
            (false, FOREIGN, "{kube-vip.io/loadbalancerIPs: 127.9.0.9}"),
            (true, INSIDE, "{kube-vip.io/loadbalancerIPs: 127.9.0.1, kube-vip.io/vipHost: worker-1}"),
            (true, FOREIGN, RECORD),
        ];
        for (restricted, spec, annotations) in forged {
            let ccm = start(&cluster, restricted, "test").await;
            label(&cluster, spec, annotations).await;
            delete(&cluster, "shop/web").await;
            let left = (service(&cluster).await, load_balancer(&cluster).await);
            assert_eq!(left, (None, None), "{spec} {annotations}");
            delete(&cluster, "lab/docs").await;
            ccm.stop().await;
        }
    }

    async fn the_record_of_an_admitted_service_keeps_its_primary(cluster: TestCluster) {
        let ccm = start(&cluster, true, "lab").await;
        label(&cluster, FOREIGN, RECORD).await;
        delete(&cluster, "shop/web").await;
        assert!(is_kept(&cluster).await);
        delete(&cluster, "lab/docs").await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// No author of a Service writes its status: it says that the address may be announced.
    async fn a_service_that_is_admitted_no_more_keeps_its_primary_while_it_shows_the_address(cluster: TestCluster) {
        let ccm = start(&cluster, true, "test").await;
        label(&cluster, FOREIGN, RECORD).await;
        let show = async |ingress: Value| {
            let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
            cluster.guest.patch_status::<Service>("lab/docs", status).await;
            cluster.settle().await;
        };
        show(json!([{"ip": "127.9.0.1"}])).await;
        delete(&cluster, "shop/web").await;
        assert!(is_kept(&cluster).await);
        show(Value::Null).await;
        assert_eq!((service(&cluster).await, load_balancer(&cluster).await), (None, None));
        ccm.stop().await;
    }

    /// Listeners in an object of the guest datapath are anybody's, and nobody takes them away.
    async fn a_service_that_goes_waits_for_no_listener_on_the_guest_datapath(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        let name = format!("docs-{:08x}-tcp-81", crc32fast::hash(b"lab/docs"));
        let forged = json!([{"name": name, "port": 81, "protocol": "TCP", "backendPort": 30001}]);
        harvester_says(&cluster, json!({"spec": {"listeners": forged}})).await;
        label(&cluster, OWN, "{}").await;
        delete(&cluster, "lab/docs").await;
        assert_eq!(cluster.guest.get::<Service>("lab/docs").await, None);
        assert!(is_kept(&cluster).await);
        ccm.stop().await;
    }

    /// Its object would go while kube-vip in the guest announces the address.
    async fn a_label_brings_no_service_with_an_address_onto_another_datapath(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "''", "").await;
        says_about(&cluster, "api", allocated("127.9.0.2")).await;
        let metadata = json!({"labels": {PRIMARY: "shop.web"}, "annotations": {PRIMARY: "shop/web"}});
        cluster.guest.patch::<Service>("shop/api", json!({"metadata": metadata})).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.2", ""));
        assert_eq!(annotation(&at(&cluster, "shop/api").await, IGNORE), None);
        assert_eq!(told_about(&cluster, "api", "DataPathDiffers").await.len(), 1);
        assert!(object_of(&cluster, "api").await.is_some_and(|it| it.metadata.deletion_timestamp.is_none()));
        // it keeps nobody
        delete(&cluster, "shop/web").await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// kube-vip in the guest follows after the write that asks it for the other address.
    async fn a_service_with_another_address_keeps_its_former_primary_until_its_status_shows_that(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        let patch = async |key: &str, metadata: Value| {
            cluster.guest.patch::<Service>(key, json!({"metadata": metadata})).await;
            cluster.settle().await;
        };
        let show = async |ip: &str| {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
            cluster.guest.patch_status::<Service>("lab/docs", status).await;
            cluster.settle().await;
        };
        let give = async |name: &str, ip: &str| {
            let key = object_of(&cluster, name).await.expect("it has an object").name_any();
            let key = format!("{}/{key}", cluster.guest_cluster().vm_namespace);
            let status = json!({"status": {"allocatedAddress": {"ipPool": "lab", "ip": ip}}});
            cluster.harvester.patch::<LoadBalancer>(&key, status).await;
            cluster.settle().await;
        };
        label(&cluster, OWN, &format!("{{{PRIMARY}: shop/web}}")).await;
        show("127.9.0.1").await;
        delete(&cluster, "shop/web").await;
        // it gets one of its own
        patch("lab/docs", json!({"annotations": {PRIMARY: null}})).await;
        give("docs", "127.9.0.2").await;
        let docs = cluster.guest.get::<Service>("lab/docs").await.unwrap();
        assert_eq!(annotation(&docs, LOADBALANCER_IPS), Some("127.9.0.2"));
        assert!(is_kept(&cluster).await, "kube-vip announces the shared address still");
        show("127.9.0.2").await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));

        // it shares that of another one
        create_service(&cluster, "{}", "").await;
        give("web", "127.9.0.3").await;
        patch("lab/docs", json!({"annotations": {PRIMARY: "shop/web"}})).await;
        assert!(object_of(&cluster, "docs").await.is_some());
        show("127.9.0.3").await;
        assert_eq!(object_of(&cluster, "docs").await, None);
        let other = "{apiVersion: v1, kind: Service, metadata: {name: next, namespace: shop}, \
                     spec: {type: LoadBalancer, ports: [{port: 80}]}}";
        cluster.guest.apply(other).await;
        cluster.settle().await;
        give("next", "127.9.0.4").await;
        patch("lab/docs", json!({"annotations": {PRIMARY: "shop/next"}})).await;
        for name in ["web", "next"] {
            delete(&cluster, &format!("shop/{name}")).await;
            assert!(object_of(&cluster, name).await.is_some_and(|it| it.metadata.deletion_timestamp.is_none()), "{name}");
        }
        show("127.9.0.4").await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        assert!(object_of(&cluster, "next").await.is_some_and(|it| it.metadata.deletion_timestamp.is_none()));
        delete(&cluster, "lab/docs").await;
        assert_eq!(object_of(&cluster, "next").await, None);
        ccm.stop().await;
    }

    async fn services_that_go_and_show_each_others_addresses_do_not_wait_for_each_other(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        label(&cluster, OWN, "{}").await;
        says_about(&cluster, "docs", allocated("127.9.0.2")).await;
        let labels = json!({"metadata": {"labels": {PRIMARY: ""}}});
        cluster.guest.patch::<Service>("shop/web", labels).await;
        for (key, ip) in [("shop/web", "127.9.0.2"), ("lab/docs", "127.9.0.1")] {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
            cluster.guest.patch_status::<Service>(key, status).await;
        }
        cluster.settle().await;
        delete(&cluster, "shop/web").await;
        assert!(is_kept(&cluster).await, "the other one stays and shows the address");
        delete(&cluster, "lab/docs").await;
        assert_eq!((service(&cluster).await, cluster.guest.get::<Service>("lab/docs").await), (None, None));
        assert_eq!((object_of(&cluster, "web").await, object_of(&cluster, "docs").await), (None, None));
        ccm.stop().await;
    }

    /// The one waits for the status of the other, and that one for its label.
    async fn services_that_go_and_use_or_show_each_others_addresses_do_not_wait_for_each_other(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        label(&cluster, OWN, "{}").await;
        says_about(&cluster, "docs", allocated("127.9.0.2")).await;
        let former = json!({"metadata": {"labels": {PRIMARY: ""}}});
        cluster.guest.patch::<Service>("shop/web", former).await;
        for key in ["shop/web", "lab/docs"] {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.2"}]}}});
            cluster.guest.patch_status::<Service>(key, status).await;
        }
        let asks = json!({"metadata": {"annotations": {PRIMARY: "shop/web"}}});
        cluster.guest.patch::<Service>("lab/docs", asks).await;
        cluster.settle().await;
        assert_eq!(shared(&cluster, "lab/docs").await, is("127.9.0.1", "shop.web"));
        assert!(object_of(&cluster, "docs").await.is_some(), "its own address is shown");
        delete(&cluster, "lab/docs").await;
        delete(&cluster, "shop/web").await;
        assert_eq!((service(&cluster).await, cluster.guest.get::<Service>("lab/docs").await), (None, None));
        assert_eq!((object_of(&cluster, "web").await, object_of(&cluster, "docs").await), (None, None));
        ccm.stop().await;
    }

    /// docs/contract/data-paths.md#row-12: at that address its port leads to the other Service.
    async fn a_service_that_waits_for_its_own_address_shows_none_where_its_port_is_anothers(cluster: TestCluster) {
        let ccm = start_on_host(&cluster).await;
        ask(&cluster, "api", 81, "web", ON_HOST).await;
        let asks_no_more = json!({"metadata": {"annotations": {PRIMARY: null}}});
        cluster.guest.patch::<Service>("shop/api", asks_no_more).await;
        cluster.settle().await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), ["127.9.0.1"], "until it has its own");
        let port = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        cluster.guest.patch::<Service>("shop/api", port).await;
        cluster.settle().await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        let told = told_about(&cluster, "api", "PortConflict").await;
        assert!(told.len() == 1 && told[0].contains("lost 127.9.0.1"), "{told:?}");
        delete(&cluster, "shop/web").await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// Its own object cannot be given an address, or has none yet; Harvester took nothing back.
    async fn a_service_whose_port_became_anothers_at_its_former_address_is_told_that(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        ask(&cluster, "api", 81, "web", "").await;
        let show = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.1"}]}}});
        cluster.guest.patch_status::<Service>("shop/api", show).await;
        let asks_no_more = json!({"metadata": {"annotations": {PRIMARY: null}}});
        cluster.guest.patch::<Service>("shop/api", asks_no_more).await;
        cluster.settle().await;
        let ready = json!({"type": "Ready", "status": "False", "message": "no address is free"});
        says_about(&cluster, "api", json!({"status": {"conditions": [ready]}})).await;
        assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.1", "shop.web"));
        let port = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        cluster.guest.patch::<Service>("shop/api", port).await;
        cluster.settle().await;
        let told = told_about(&cluster, "api", "PortConflict").await;
        assert!(told.len() == 1 && told[0].contains("lost 127.9.0.1"), "{told:?}");
        assert_eq!(shared(&cluster, "shop/api").await, (None, Some(String::new())));
        // whatever happens to it later
        says_about(&cluster, "api", json!({"metadata": {"annotations": {"touched": "yes"}}})).await;
        assert_eq!(told_about(&cluster, "api", "AddressTakenBack").await, [""; 0]);
        assert_eq!(annotation(&at(&cluster, "shop/api").await, ALLOCATED_ADDRESS), None);
        ccm.stop().await;
    }

    /// kube-vip in the guest announces its address still, and the label may be anybody's: of an exported manifest.
    async fn a_label_brings_no_secondary_of_the_guest_datapath_onto_the_host_datapath(cluster: TestCluster) {
        let recorded = json!({"cloudprovider.harvesterhci.io/recorded-data-path": "host", IGNORE: "true"});
        for (manifest, reason) in [(json!({}), "DataPathDiffers"), (recorded, "AnnouncedInGuest")] {
            let ccm = start_on_host(&cluster).await;
            ask(&cluster, "docs", 82, "''", "").await;
            says_about(&cluster, "docs", allocated("127.9.0.2")).await;
            ask(&cluster, "api", 81, "docs", "").await;
            let host = json!({"metadata": {"annotations": {"kube-vip.io/vipHost": "worker-1"}}});
            cluster.guest.patch::<Service>("shop/api", host).await;
            let show = json!({"status": {"loadBalancer": {"ingress": [{"ip": "127.9.0.2"}]}}});
            cluster.guest.patch_status::<Service>("shop/api", show).await;
            cluster.settle().await;
            assert_eq!(shared(&cluster, "shop/api").await, is("127.9.0.2", "shop.docs"));
            let mut annotations = manifest;
            annotations[PRIMARY] = json!("shop/web");
            let metadata = json!({"labels": {PRIMARY: "shop.web"}, "annotations": annotations});
            cluster.guest.patch::<Service>("shop/api", json!({"metadata": metadata})).await;
            cluster.settle().await;
            assert!(!told_about(&cluster, "api", reason).await.is_empty(), "{reason}");
            assert_eq!(object_of(&cluster, "web").await.unwrap().spec.listeners.len(), 1);
            let api = at(&cluster, "shop/api").await;
            assert_eq!(ingress(&api), [""; 0]);
            if reason == "DataPathDiffers" {
                assert_eq!((annotation(&api, IGNORE), annotation(&api, LOADBALANCER_IPS)), (None, None));
            }
            for name in ["docs", "web", "api"] {
                delete(&cluster, &format!("shop/{name}")).await;
                assert_eq!(cluster.guest.get::<Service>(&format!("shop/{name}")).await, None, "{name}");
            }
            ccm.stop().await;
        }
    }

    /// By the status that changes: it does not wait for somebody to look at all Services again.
    async fn a_primary_that_shows_nothing_goes_when_nobody_shows_its_address(cluster: TestCluster) {
        let ccm = start(&cluster, false, "test").await;
        label(&cluster, OWN, "{}").await;
        says_about(&cluster, "docs", allocated("127.9.0.2")).await;
        let show = async |key: &str, ingress: Value| {
            let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
            cluster.guest.patch_status::<Service>(key, status).await;
            cluster.settle().await;
        };
        show("shop/web", Value::Null).await;
        show("lab/docs", json!([{"ip": "127.9.0.1"}])).await;
        delete(&cluster, "shop/web").await;
        assert!(is_kept(&cluster).await, "a status shows its address");
        show("lab/docs", json!([{"ip": "127.9.0.2"}])).await;
        assert_eq!((service(&cluster).await, object_of(&cluster, "web").await), (None, None));
        ccm.stop().await;
    }

    /// Without an object of the primary. Who writes Services writes all of that, and no status.
    async fn no_author_of_services_has_an_address_written_into_a_status(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        let wish = "cloudprovider.harvesterhci.io/ipam: static, kube-vip.io/loadbalancerIPs: 192.0.2.53";
        create_service(&cluster, &format!("{{{wish}}}"), "").await;
        let forged = "cloudprovider.harvesterhci.io/allocated-address: 192.0.2.53, kube-vip.io/vipHost: x";
        ask(&cluster, "api", 81, "web", forged).await;
        let label = json!({"metadata": {"labels": {PRIMARY: "shop.web"}}});
        cluster.guest.patch::<Service>("shop/api", label).await;
        cluster.settle().await;
        assert_eq!(ingress(&at(&cluster, "shop/api").await), [""; 0]);
        ccm.stop().await;
    }
}
