//! Nodes whose VM is stopped or deleted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{Client, client::Body};
use serde_json::json;
use test_cluster::{Rights, TestCluster};

use super::harness::{
    Ccm, asked, delete_vm, is_shut_down, join, limited, limited_to, node, rest, set_ready, until,
};

const VM_NAMESPACE: &str = "cloudprovider.harvesterhci.io/vm-namespace";

/// Nodes that are initialised, are not ready, and have VMs of the same names.
async fn joined(cluster: &TestCluster, names: &[&str]) {
    for name in names {
        join(cluster, name, name, "").await;
        until(cluster, "the Node is initialised", async || {
            node(cluster, name).await.is_some_and(|node| node.spec.unwrap_or_default().provider_id.is_some())
        })
        .await;
        set_ready(cluster, name, "Unknown").await;
    }
}

/// Messages of the Events of this reason about a Node, of the controller that removes Nodes.
async fn told(cluster: &TestCluster, node: &str, reason: &str) -> Vec<String> {
    let all = cluster.guest.list::<Event>().await;
    let ours = all.into_iter().filter(|event| {
        let source = event.source.as_ref().and_then(|source| source.component.as_deref());
        source == Some("cloud-node-lifecycle-controller")
            && event.involved_object.name.as_deref() == Some(node)
            && event.reason.as_deref() == Some(reason)
    });
    ours.map(|event| event.message.unwrap_or_default()).collect()
}

/// `client` of a server that knows no questions about rights.
fn without_reviews(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, asks) = (client.clone(), request.uri().path().ends_with("/selfsubjectaccessreviews"));
        async move {
            if !asks {
                return client.send(request).await.map_err(tower::BoxError::from);
            }
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 405});
            let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
            *answer.status_mut() = http::StatusCode::METHOD_NOT_ALLOWED;
            Ok(answer)
        }
    });
    Client::new(service, namespace)
}

test_cluster::component_tests! {
    /// docs/contract/cloud-controller-manager.md#N11: by its run strategy, not because it is not ready.
    async fn a_node_is_tainted_while_its_vm_is_stopped(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1"]).await;
        rest(&cluster).await;
        assert!(!is_shut_down(&cluster, "worker-1").await, "its VM runs");
        let halted = json!({"spec": {"runStrategy": "Halted"}});
        cluster.harvester.patch::<VirtualMachine>("team-a/worker-1", halted).await;
        rest(&cluster).await;
        assert!(!is_shut_down(&cluster, "worker-1").await, "its instance is still there");
        cluster.harvester.delete::<VirtualMachineInstance>("team-a/worker-1").await;
        until(&cluster, "the Node is tainted", async || is_shut_down(&cluster, "worker-1").await).await;
        let always = json!({"spec": {"runStrategy": "Always"}});
        cluster.harvester.patch::<VirtualMachine>("team-a/worker-1", always).await;
        set_ready(&cluster, "worker-1", "True").await;
        until(&cluster, "the taint goes", async || !is_shut_down(&cluster, "worker-1").await).await;
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#18.5, and #C1 under the role of the charts.
    #[each_role]
    async fn a_node_goes_with_its_vm_once_it_is_not_ready(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1"]).await;
        set_ready(&cluster, "worker-1", "True").await;
        delete_vm(&cluster, "worker-1").await;
        rest(&cluster).await;
        assert!(node(&cluster, "worker-1").await.is_some(), "it is ready");
        cluster.guest.forget_requests();
        set_ready(&cluster, "worker-1", "Unknown").await;
        if cluster.rights() == Rights::Ours {
            until(&cluster, "the Node goes", async || node(&cluster, "worker-1").await.is_none()).await;
            assert_eq!(told(&cluster, "worker-1", "DeletingNode").await.len(), 1);
            assert_eq!(asked(&cluster.guest), ["delete nodes 200"]);
        } else {
            until(&cluster, "the Node is told", async || {
                !told(&cluster, "worker-1", "DeletingNodeFailed").await.is_empty()
            }).await;
            rest(&cluster).await;
            let told = told(&cluster, "worker-1", "DeletingNodeFailed").await;
            let part = "ClusterRole harvester-cloud-controller-manager does not grant verb delete on resource nodes";
            assert!(told.len() == 1 && told[0].contains(part), "{told:?}");
            assert!(node(&cluster, "worker-1").await.is_some());
        }
        ccm.stop().await;
    }

    /// docs/contract/cloud-controller-manager.md#N18: as with a cloud-config that names another namespace.
    async fn a_harvester_without_any_vm_of_ours_removes_no_node_and_each_is_told_once(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1", "worker-2"]).await;
        ccm.stop().await;
        for name in ["worker-1", "worker-2"] {
            delete_vm(&cluster, name).await;
        }
        // of another guest cluster, which shows nothing
        join(&cluster, "foreign", "vm-x", "{guestcluster.harvesterhci.io/name: other}").await;
        cluster.guest.patch::<Node>("foreign", json!({"spec": {"providerID": "harvester://vm-x"}})).await;
        let ccm = Ccm::start(&cluster).await;
        rest(&cluster).await;
        for name in ["worker-1", "worker-2"] {
            assert!(node(&cluster, name).await.is_some());
            let told = told(&cluster, name, "NodeKept").await;
            assert!(told.len() == 1 && told[0].contains("no VM of any other node is there"), "{told:?}");
        }
        ccm.stop().await;
    }

    // docs/contract/cloud-controller-manager.md#N18
    /// As with a cloud-config that names the namespace of other VMs of the cluster, before and after a restart.
    async fn a_node_whose_vm_was_never_seen_in_this_namespace_stays_where_vms_of_other_nodes_are(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1", "worker-2", "worker-3", "worker-4"]).await;
        let noted = async |name: &str| {
            let annotations = node(&cluster, name).await.expect("it is there").metadata.annotations;
            annotations.unwrap_or_default().remove(VM_NAMESPACE)
        };
        assert_eq!(noted("worker-1").await.as_deref(), Some("team-a"));
        ccm.stop().await;
        let elsewhere = |namespace: Option<&str>| json!({"metadata": {"annotations": {VM_NAMESPACE: namespace}}});
        cluster.guest.patch::<Node>("worker-1", elsewhere(Some("team-b"))).await;
        // initialised by the Go program
        for name in ["worker-2", "worker-3"] {
            cluster.guest.patch::<Node>(name, elsewhere(None)).await;
        }
        for name in ["worker-1", "worker-2"] {
            delete_vm(&cluster, name).await;
        }
        let ccm = Ccm::start(&cluster).await;
        for (name, why) in [("worker-1", "it was in namespace \"team-b\" before"), ("worker-2", "lacks the annotation")] {
            until(&cluster, "the Node is told", async || !told(&cluster, name, "NodeKept").await.is_empty()).await;
            rest(&cluster).await;
            let told = told(&cluster, name, "NodeKept").await;
            assert!(told.len() == 1 && told[0].contains(why), "{told:?}");
            assert!(node(&cluster, name).await.is_some(), "{name}");
        }
        assert_eq!(noted("worker-3").await.as_deref(), Some("team-a"), "its VM was seen by now");
        cluster.guest.forget_requests();
        rest(&cluster).await;
        assert_eq!(asked(&cluster.guest), [""; 0], "noted once");
        ccm.stop().await;
    }

    /// What survives a restart: the provider ID of the Node, and the VMs of other Nodes.
    #[each_role]
    async fn a_vm_that_was_deleted_while_nobody_watched_is_missed_where_others_are_there(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1", "worker-2", "metal"]).await;
        ccm.stop().await;
        let owned = json!({"metadata": {"labels": {"cloudprovider.harvesterhci.io/externally-managed": "true"}}});
        cluster.guest.patch::<Node>("metal", owned).await;
        cluster.guest.apply("{apiVersion: v1, kind: Node, metadata: {name: worker-9}, spec: {providerID: 'aws://i-1'}}").await;
        for name in ["worker-1", "metal"] {
            delete_vm(&cluster, name).await;
        }
        let ccm = Ccm::start(&cluster).await;
        let told = async || {
            let reason = if cluster.rights() == Rights::Ours { "DeletingNode" } else { "DeletingNodeFailed" };
            told(&cluster, "worker-1", reason).await
        };
        until(&cluster, "the Node is told", async || !told().await.is_empty()).await;
        rest(&cluster).await;
        assert!(told().await[0].contains("where VMs of other nodes are"), "{:?}", told().await);
        assert_eq!(node(&cluster, "worker-1").await.is_none(), cluster.rights() == Rights::Ours);
        for name in ["worker-2", "metal", "worker-9"] {
            assert!(node(&cluster, name).await.is_some(), "{name}");
            assert!(!is_shut_down(&cluster, name).await, "{name}");
        }
        ccm.stop().await;
    }

    async fn no_node_goes_while_vms_cannot_be_listed(cluster: TestCluster) {
        let ccm = Ccm::start(&cluster).await;
        joined(&cluster, &["worker-1", "worker-2"]).await;
        ccm.stop().await;
        delete_vm(&cluster, "worker-1").await;
        let client = limited(&cluster, |_, path| path.ends_with("/virtualmachines"));
        let ccm = Ccm::start_on(&cluster, client, |_| ()).await;
        rest(&cluster).await;
        assert!(node(&cluster, "worker-1").await.is_some());
        ccm.stop().await;
    }

    async fn nodes_are_left_alone_when_their_life_is_no_duty(cluster: TestCluster) {
        let ccm = Ccm::start_with(&cluster, |settings| settings.node_lifecycle = false).await;
        joined(&cluster, &["worker-1", "worker-2"]).await;
        delete_vm(&cluster, "worker-1").await;
        rest(&cluster).await;
        assert!(node(&cluster, "worker-1").await.is_some());
        ccm.stop().await;
    }

    /// Once where the server answers for rights, and once where only the request itself can tell.
    #[simulated_only("half a minute until the next question")]
    async fn a_lost_node_goes_within_a_minute_of_the_grant(cluster: TestCluster) {
        if cluster.rights() == Rights::Existing {
            return;
        }
        for (lost, answers) in [("worker-1", true), ("worker-2", false)] {
            let granted = Arc::new(AtomicBool::new(false));
            let refused = granted.clone();
            let guest = limited_to(&cluster.guest, move |method, path| {
                let deletes = method == http::Method::DELETE && path.starts_with("/api/v1/nodes/");
                let asks = answers && path.ends_with("/selfsubjectaccessreviews");
                (deletes || asks) && !refused.load(Ordering::SeqCst)
            });
            let guest = if answers { guest } else { without_reviews(guest) };
            let harvester = cluster.harvester.client(test_cluster::User::CloudControllerManager);
            let ccm = Ccm::start_between(&cluster, guest, harvester, |_| ()).await;
            joined(&cluster, &[lost, "worker-3"]).await;
            delete_vm(&cluster, lost).await;
            cluster.advance(Duration::from_secs(120)).await;
            assert!(node(&cluster, lost).await.is_some(), "{lost}");
            // who is refused every right may write no Events either
            let failures = told(&cluster, lost, "DeletingNodeFailed").await;
            assert_eq!(failures.len(), usize::from(!answers), "{failures:?}");
            granted.store(true, Ordering::SeqCst);
            cluster.advance(Duration::from_secs(60)).await;
            assert!(node(&cluster, lost).await.is_none(), "{lost}");
            ccm.stop().await;
        }
    }
}
