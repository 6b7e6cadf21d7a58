//! `--topology`: what nodes and volumes say about where they are.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;

use csi_driver::{
    attach::{Attacher, Options},
    controller::{ControllerService, Settings},
    csi::{
        CreateVolumeRequest, GetPluginCapabilitiesRequest, NodeGetInfoRequest, Topology, TopologyRequirement,
        VolumeCapability,
        controller_server::Controller,
        identity_server::Identity,
        node_server::Node,
        volume_capability::{AccessMode, AccessType, BlockVolume, access_mode::Mode},
    },
    guest::Guest,
    host::{Host, missing::Missing},
    identity::DriverIdentity,
    node::{self, NodeService},
    node_id::Told,
};
use k8s_openapi::api::core::v1::{Event, Node as KubernetesNode};
use program::{Clock, TaskGroup, pod::OwnPod};
use serde_json::json;
use test_cluster::{TestCluster, User, component_tests};
use tokio::sync::watch;
use tonic::{Code, Request, Status};

const ZONE: &str = "topology.kubernetes.io/zone";
const NODES: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: east}}
spec: {taints: [{key: node.cloudprovider.kubernetes.io/uninitialized, effect: NoSchedule}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, labels: {topology.kubernetes.io/zone: west}}
---
apiVersion: v1
kind: Node
metadata: {name: node-c}
";

fn place(zone: &str) -> Topology {
    Topology { segments: HashMap::from([(ZONE.to_owned(), zone.to_owned())]) }
}

/// Where a new volume may be used, when its class asks for these zones.
async fn created(
    cluster: &TestCluster,
    topology: Option<Guest>,
    zones: &[&str],
) -> Result<Vec<Topology>, Status> {
    let host = Host::new(cluster.harvester.client(User::CsiDriver), "team-a");
    let attacher = Attacher::new(host.clone(), &TaskGroup::new(), Options::new("pod-a"));
    let service = ControllerService::new(host, Settings { topology, ..Settings::default() }, attacher);
    let requisite = zones.iter().map(|zone| place(zone)).collect();
    let request = CreateVolumeRequest {
        name: format!("in-{}", zones.join("-")),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        accessibility_requirements: Some(TopologyRequirement { requisite, preferred: vec![place("east")] }),
        ..CreateVolumeRequest::default()
    };
    let answer = service.create_volume(Request::new(request)).await?;
    Ok(answer.into_inner().volume.unwrap().accessible_topology)
}

fn events(cluster: &TestCluster, tasks: &TaskGroup) -> Missing {
    let pod =
        OwnPod { namespace: "kube-system".into(), name: "csi-node-a".into(), uid: Some("uid-1".to_owned()) };
    let clock = Clock::starting_at(cluster.start());
    Missing::new(tasks, cluster.guest.client(User::CsiDriver), clock, Some(pod))
}

async fn capabilities(topology: bool) -> usize {
    let request = Request::new(GetPluginCapabilitiesRequest {});
    let answer = DriverIdentity { topology }.get_plugin_capabilities(request).await.unwrap();
    answer.into_inner().capabilities.len()
}

component_tests! {
    // docs/contract/csi-driver.md#topology
    async fn a_volume_says_where_it_may_be_used_where_its_class_asks_for_less_than_all_nodes(cluster: TestCluster) {
        cluster.guest.apply(NODES).await;
        let guest = || Some(Guest::new(cluster.guest.client(User::CsiDriver)));
        assert_eq!(created(&cluster, guest(), &["east", "west"]).await.unwrap(), []);
        assert_eq!(created(&cluster, guest(), &["east"]).await.unwrap(), [place("east")]);
        // the same call again
        assert_eq!(created(&cluster, guest(), &["east"]).await.unwrap(), [place("east")]);
        assert_eq!(created(&cluster, guest(), &[]).await.unwrap(), []);
        for (topology, zone) in [(guest(), "north"), (None, "east")] {
            assert_eq!(created(&cluster, topology, &[zone]).await.unwrap_err().code(), Code::ResourceExhausted);
        }
        assert_eq!(created(&cluster, None, &[]).await.unwrap(), []);
        assert_eq!((capabilities(false).await, capabilities(true).await), (2, 3));
    }

    // docs/contract/csi-driver.md#topology
    async fn a_node_says_where_it_is_when_it_has_its_labels(cluster: TestCluster) {
        cluster.guest.apply(NODES).await;
        let (_known, node_id) = watch::channel(Some(Told::named("vm-1")));
        let tasks = TaskGroup::new();
        let events = events(&cluster, &tasks);
        let told = async || {
            cluster.settle().await;
            let events = cluster.guest.list::<Event>().await.into_iter();
            events.filter(|it| it.reason.as_deref() == Some(node::NO_TOPOLOGY)).map(|it| it.message.unwrap_or_default()).collect::<Vec<_>>()
        };
        let info = async |node: &str| {
            let guest = Guest::new(cluster.guest.client(User::CsiDriver));
            let service =
                NodeService::new(node::Settings::default(), node_id.clone()).with_topology(guest, node, events.clone());
            let answer = service.node_get_info(Request::new(NodeGetInfoRequest {})).await;
            answer.map(|answer| answer.into_inner().accessible_topology)
        };
        assert_eq!(info("node-b").await.unwrap(), Some(place("west")));
        assert_eq!(told().await, [""; 0]);
        assert_eq!(info("node-c").await.unwrap(), None);
        let said = told().await;
        assert!(said.len() == 1 && said[0].starts_with("Node node-c has neither of the labels"), "{said:?}");
        assert_eq!(info("node-a").await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(info("absent").await.unwrap_err().code(), Code::Unavailable);
        cluster.guest.patch::<KubernetesNode>("node-a", json!({"spec": {"taints": null}})).await;
        assert_eq!(info("node-a").await.unwrap(), Some(place("east")));
        tasks.end().await;
    }

    async fn a_node_without_a_name_is_told_the_flag_that_it_lacks(cluster: TestCluster) {
        let (_known, node_id) = watch::channel(Some(Told::named("vm-1")));
        let guest = Guest::new(cluster.guest.client(User::CsiDriver));
        let tasks = TaskGroup::new();
        let events = events(&cluster, &tasks);
        let service = NodeService::new(node::Settings::default(), node_id).with_topology(guest, "", events);
        let refused = service.node_get_info(Request::new(NodeGetInfoRequest {})).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("--nodeid"), "{refused}");
    }
}
