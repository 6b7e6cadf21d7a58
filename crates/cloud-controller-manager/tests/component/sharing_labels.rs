//! Services with the label of a secondary that this program does not serve: it takes no label off them.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::{
    harness::{Ccm, announced_service, harvester_says, load_balancer, service},
    sharing::{PRIMARY, object_of},
};

const FOREIGN: &str = "spec: {type: LoadBalancer, loadBalancerClass: example.com/other, ports: [{port: 81}]}";
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
        label(&cluster, "spec: {type: LoadBalancer, ports: [{port: 81}]}", "{}").await;
        delete(&cluster, "lab/docs").await;
        assert_eq!(cluster.guest.get::<Service>("lab/docs").await, None);
        assert!(is_kept(&cluster).await);
        ccm.stop().await;
    }
}
