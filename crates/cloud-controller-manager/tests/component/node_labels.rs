//! The labels of Nodes that their VMs give: where they run, and what kind of machine they are.

use std::collections::BTreeMap;

use harvester_api::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Event, Node};
use serde_json::{Value, json};
use test_cluster::TestCluster;

use super::harness::{Ccm, asked, join, until};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const RACK: &str = "example.com/rack";
const TYPE: &str = "node.kubernetes.io/instance-type";

async fn labels(cluster: &TestCluster) -> BTreeMap<String, String> {
    let node = cluster.guest.get::<Node>("worker-1").await.expect("the Node is there");
    node.metadata.labels.unwrap_or_default()
}

async fn until_label(cluster: &TestCluster, key: &str, value: Option<&str>) {
    until(cluster, &format!("{key} is {value:?}"), async || {
        labels(cluster).await.get(key).map(String::as_str) == value
    })
    .await;
}

async fn patch_instance(cluster: &TestCluster, patch: Value) {
    cluster.harvester.patch::<VirtualMachineInstance>("team-a/worker-1", patch).await;
    cluster.settle().await;
}

async fn annotate(cluster: &TestCluster, annotations: Value) {
    patch_instance(cluster, json!({"metadata": {"annotations": annotations}})).await;
}

async fn connect_agent(cluster: &TestCluster) {
    patch_instance(
        cluster,
        json!({"status": {"conditions": [{"type": "AgentConnected", "status": "True"}]}}),
    )
    .await;
}

test_cluster::component_tests! {
    /// docs/contract/cloud-controller-manager.md#N16 and #V4, also after a restart; user demand 37.
    async fn a_label_that_is_no_longer_true_goes_where_it_was_written_here(cluster: TestCluster) {
        let start = async || {
            Ccm::start_with(&cluster, |settings| {
                settings.topology.insert(RACK.to_owned(), "kubernetes.io/hostname".to_owned());
            }).await
        };
        let ccm = start().await;
        join(&cluster, "worker-1", "worker-1", "").await;
        annotate(&cluster, json!({"kubernetes.io/hostname": "host-1"})).await;
        until_label(&cluster, RACK, Some("host-1")).await;
        cluster.guest.patch::<Node>("worker-1", json!({"metadata": {"labels": {REGION: "of-a-person"}}})).await;
        until_label(&cluster, REGION, Some("region-1")).await;
        // an instance that has just started has none yet, and its agent does not answer
        annotate(&cluster, json!({ZONE: null})).await;
        annotate(&cluster, json!({"kubernetes.io/hostname": "host-2"})).await;
        until_label(&cluster, RACK, Some("host-2")).await;
        assert_eq!(labels(&cluster).await[ZONE], "zone-a");
        ccm.stop().await;

        cluster.guest.forget_requests();
        let ccm = start().await;
        connect_agent(&cluster).await;
        until_label(&cluster, ZONE, None).await;
        let left = labels(&cluster).await;
        assert!(!left.contains_key("failure-domain.beta.kubernetes.io/zone"), "{left:?}");
        assert_eq!((&*left[REGION], &*left[RACK]), ("region-1", "host-2"));
        assert_eq!(asked(&cluster.guest), ["patch nodes 200"]);
        ccm.stop().await;
        // without the flag it is none of the labels of Nodes
        let ccm = Ccm::start(&cluster).await;
        until_label(&cluster, RACK, None).await;
        ccm.stop().await;
    }

    async fn a_label_that_somebody_else_wrote_stays(cluster: TestCluster) {
        cluster.guest.apply(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: worker-1, labels: {{{RACK}: mine, {TYPE}: k3s}}}}}}"
        )).await;
        let ccm = Ccm::start_with(&cluster, |settings| {
            settings.topology.insert(RACK.to_owned(), RACK.to_owned());
        }).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        connect_agent(&cluster).await;
        patch_instance(&cluster, json!({"spec": {"domain": {"cpu": {"cores": 4}, "memory": {"guest": "8Gi"}}}})).await;
        annotate(&cluster, json!({ZONE: "zone-b"})).await;
        until_label(&cluster, ZONE, Some("zone-b")).await;
        let left = labels(&cluster).await;
        assert_eq!((&*left[RACK], &*left[TYPE]), ("mine", "k3s"));
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N17
    async fn a_node_is_labelled_with_the_type_of_its_machine(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        patch_instance(&cluster, json!({"spec": {"domain": {"cpu": {"cores": 4}, "memory": {"guest": "8Gi"}}}})).await;
        until_label(&cluster, TYPE, Some("4vcpu-8Gi")).await;
        annotate(&cluster, json!({"kubevirt.io/cluster-instancetype-name": "u1.large"})).await;
        until_label(&cluster, TYPE, Some("u1.large")).await;
        assert_eq!(labels(&cluster).await["beta.kubernetes.io/instance-type"], "u1.large");
        ccm.stop().await;
    }

    async fn a_place_that_is_no_label_value_is_told_and_keeps_nothing_else_back(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        join(&cluster, "worker-1", "worker-1", "").await;
        // one that is connected has said everything, so labels that it does not name would go
        connect_agent(&cluster).await;
        annotate(&cluster, json!({ZONE: "Zone A", REGION: "region-2"})).await;
        until_label(&cluster, REGION, Some("region-2")).await;
        assert_eq!(labels(&cluster).await[ZONE], "zone-a");
        until(&cluster, "the Node is told", async || {
            let events = cluster.guest.list::<Event>().await;
            events.iter().any(|event| event.reason.as_deref() == Some("InvalidTopologyLabel"))
        }).await;
        ccm.stop().await;
    }
}
