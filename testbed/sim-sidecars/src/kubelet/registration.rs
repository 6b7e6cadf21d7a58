//! node-driver-registrar and what kubelet makes of it: the CSINode says that the driver is on the node, by which name it
//! calls the node, and how many volumes it takes.

use std::sync::Arc;

use controller_kit::{Action, ObjectKey, Queue};
use csi_driver::csi::NodeGetInfoRequest;
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::PostParams;
use program::TaskGroup;
use serde_json::json;

use super::Kubelet;
use crate::{
    plugin::within,
    retries,
    world::{Problem, patch},
};

pub(super) fn start(kubelet: &Arc<Kubelet>, tasks: &TaskGroup) {
    let queue = Queue::<&'static str>::new();
    let add = queue.clone();
    kubelet.world.nodes.on_change(move |_| add.add("registration"));
    let add = queue.clone();
    kubelet.world.csi_nodes.on_change(move |_| add.add("registration"));
    queue.add("registration");
    let (kubelet, in_life) = (kubelet.clone(), tasks.clone());
    tasks.spawn_until_stop(async move {
        kubelet.world.ready().await;
        let pace = kubelet.world.pace;
        retries::run(&queue, pace, &in_life, move |_| {
            let kubelet = kubelet.clone();
            async move { register(&kubelet).await.map(|()| Action::AwaitChange) }
        });
    });
}

async fn register(kubelet: &Kubelet) -> Result<(), Problem> {
    let (world, key) = (&kubelet.world, ObjectKey::new("", &kubelet.node));
    let Some(node) = world.nodes.get(&key) else { return Ok(()) };
    let known = world.csi_nodes.get(&key);
    let is_there =
        known.as_ref().is_some_and(|known| known.spec.drivers.iter().any(|it| it.name == CSI_DRIVER));
    if is_there {
        return Ok(());
    }
    let mut driver = kubelet.plugin.node();
    let call = |request| async move { driver.node_get_info(request).await };
    let info = within(world.pace.call, NodeGetInfoRequest::default(), call).await?;
    let mut entry = json!({"name": CSI_DRIVER, "nodeID": info.node_id, "topologyKeys": null});
    if info.max_volumes_per_node > 0 {
        entry["allocatable"] = json!({"count": info.max_volumes_per_node});
    }
    let api = world.all::<CSINode>();
    if let Some(known) = known {
        let drivers: Vec<_> = known.spec.drivers.iter().map(|driver| json!(driver)).chain([entry]).collect();
        let change = json!({"metadata": {"resourceVersion": known.metadata.resource_version},
            "spec": {"drivers": drivers}});
        return Ok(patch(&api, &world.csi_nodes, &kubelet.node, change).await?);
    }
    let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": kubelet.node, "ownerReferences": [{"apiVersion": "v1", "kind": "Node",
            "name": kubelet.node, "uid": node.metadata.uid}]},
        "spec": {"drivers": [entry]}});
    let object: CSINode = serde_json::from_value(object).expect("what we made is a CSINode");
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        answer => drop(world.csi_nodes.wrote(answer?)),
    }
    Ok(())
}
