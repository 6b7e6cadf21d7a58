//! external-attacher: finalizers, ControllerPublishVolume and `attached: true` for a VolumeAttachment;
//! ControllerUnpublishVolume and the end of the finalizer for one that is deleted. First it asks what the driver can; once a
//! minute it compares them with what the driver lists, and works on those that differ once more.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use controller_kit::{Action, ObjectKey, Queue};
use csi_driver::csi::{
    ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    ListVolumesRequest,
};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::VolumeAttachment};
use kube::ResourceExt;
use program::TaskGroup;
use serde_json::json;
use tonic::Status;

use crate::{
    capability,
    plugin::within,
    retries,
    world::{Problem, World, handle, held, is_going, let_go, patch, patch_status},
};

/// On VolumeAttachments and on volumes.
pub(crate) const FINALIZER: &str = "external-attacher/driver-harvesterhci-io";
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

struct Attacher {
    world: Arc<World>,
    /// VolumeAttachments of which the driver tells another state than they do.
    differ: Mutex<BTreeSet<String>>,
}

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let queue = Queue::<ObjectKey>::new();
    let (add, seen) = (queue.clone(), world.clone());
    world.on_change(move || {
        seen.attachments.list().iter().for_each(|one| add.add(ObjectKey::of(&**one)));
        // a volume that goes is let go when nothing is attached any more
        seen.volumes.list().iter().for_each(|one| add.add(ObjectKey::new("", one.name_any())));
    });
    let attacher = Arc::new(Attacher { world: world.clone(), differ: Mutex::default() });
    let (in_life, known, compared) = (tasks.clone(), attacher.clone(), queue.clone());
    tasks.spawn_until_stop(async move {
        known.world.ready().await;
        let (worker, pace) = (known.clone(), known.world.pace);
        let retries = retries::run(&queue, pace, &in_life, move |key: ObjectKey| {
            let worker = worker.clone();
            async move { worker.reconcile(&key.name).await.map(|()| Action::AwaitChange) }
        });
        // an attachment that fails is deleted: the detachment begins at once
        known.world.attachments.on_change(move |change| {
            let was_going = change.old.as_ref().is_some_and(|old| is_going(&**old));
            if change.new.as_ref().is_none_or(|new| is_going(&**new)) && !was_going {
                retries.forget(&change.key);
                queue.add(change.key.clone());
            }
        });
    });
    tasks.spawn_until_stop(async move {
        attacher.world.ready().await;
        while let Err(problem) = attacher.ask().await {
            tracing::debug!(%problem, "the driver does not say what it can");
            tokio::time::sleep(attacher.world.pace.first).await;
        }
        loop {
            tokio::time::sleep(attacher.world.pace.compare).await;
            if let Err(problem) = attacher.compare(&compared).await {
                tracing::debug!(%problem, "the driver does not list its volumes");
            }
        }
    });
}

impl Attacher {
    async fn reconcile(&self, name: &str) -> Result<(), Problem> {
        let world = &self.world;
        if let Some(volume) = world.volume(name) {
            let attached = world
                .attachments
                .list()
                .iter()
                .any(|one| one.spec.source.persistent_volume_name.as_deref() == Some(name));
            if is_going(&*volume)
                && !attached
                && let Some(free) = let_go(&*volume, &[FINALIZER])
            {
                patch(&world.all(), &world.volumes, name, free).await?;
            }
        }
        let Some(one) = world.attachments.get(&ObjectKey::new("", name)) else { return Ok(()) };
        if one.spec.attacher != CSI_DRIVER {
            return Ok(());
        }
        let differs = self.differ.lock().expect("no panic while noting").remove(name);
        let is_attached = one.status.as_ref().is_some_and(|status| status.attached);
        let failed = if is_going(&*one) {
            if !differs && !one.finalizers().iter().any(|it| it == FINALIZER) {
                return Ok(());
            }
            self.detach(&one).await.map_err(|problem| ("detachError", problem))
        } else if differs || !is_attached {
            self.attach(&one).await.map_err(|problem| ("attachError", problem))
        } else {
            return Ok(());
        };
        let Err((field, problem)) = failed else { return Ok(()) };
        let error = json!({"time": world.clock.now_text(), "message": problem.to_string()});
        patch_status(&world.all(), &world.attachments, name, json!({field: error})).await?;
        Err(problem)
    }

    fn volume(&self, one: &VolumeAttachment) -> Result<Arc<PersistentVolume>, Problem> {
        let name = one.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let missing = || Problem::Waits(format!("persistentvolume \"{name}\" not found"));
        self.world.volume(&name).ok_or_else(missing)
    }

    /// What kubelet noted of the driver on this node, else what was noted at the attachment: the Node may be gone.
    fn node_id(&self, one: &VolumeAttachment) -> Result<String, Problem> {
        let node = &one.spec.node_name;
        let noted = self.world.csi_nodes.get(&ObjectKey::new("", node));
        let driver =
            noted.and_then(|noted| noted.spec.drivers.iter().find(|it| it.name == CSI_DRIVER).cloned());
        let id = driver.map(|driver| driver.node_id).or_else(|| one.annotations().get(NODE_ID).cloned());
        id.ok_or_else(|| Problem::Waits(format!("CSINode {node} does not contain driver {CSI_DRIVER}")))
    }

    async fn attach(&self, one: &VolumeAttachment) -> Result<(), Problem> {
        let (world, name) = (&self.world, one.name_any());
        let volume = self.volume(one)?;
        if is_going(&*volume) {
            let why = format!("PersistentVolume \"{}\" is marked for deletion", volume.name_any());
            return Err(Problem::Waits(why));
        }
        if let Some(hold) = held(&*volume, &[FINALIZER]) {
            patch(&world.all(), &world.volumes, &volume.name_any(), hold).await?;
        }
        let node_id = self.node_id(one)?;
        if let Some(mut hold) = held(one, &[FINALIZER]) {
            hold["metadata"]["annotations"] = json!({NODE_ID: node_id});
            patch(&world.all::<VolumeAttachment>(), &world.attachments, &name, hold).await?;
        }
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.clone());
        let request = ControllerPublishVolumeRequest {
            volume_id: handle(&volume).unwrap_or_default().to_owned(),
            node_id,
            volume_capability: Some(capability::of(&volume)),
            readonly: source.as_ref().and_then(|csi| csi.read_only).unwrap_or_default(),
            volume_context: source
                .and_then(|csi| csi.volume_attributes)
                .unwrap_or_default()
                .into_iter()
                .collect(),
            ..ControllerPublishVolumeRequest::default()
        };
        let mut driver = world.controller.controller();
        let call = |request| async move { driver.controller_publish_volume(request).await };
        let published = within(world.pace.call, request, call).await?;
        let status = json!({"attached": true, "attachError": null, "detachError": null,
            "attachmentMetadata": published.publish_context});
        Ok(patch_status(&world.all::<VolumeAttachment>(), &world.attachments, &name, status).await?)
    }

    async fn detach(&self, one: &VolumeAttachment) -> Result<(), Problem> {
        let world = &self.world;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: handle(&*self.volume(one)?).unwrap_or_default().to_owned(),
            node_id: self.node_id(one)?,
            ..ControllerUnpublishVolumeRequest::default()
        };
        let mut driver = world.controller.controller();
        let call = |request| async move { driver.controller_unpublish_volume(request).await };
        within(world.pace.call, request, call).await?;
        let (api, name) = (world.all::<VolumeAttachment>(), one.name_any());
        let known = world.attachments.get(&ObjectKey::new("", &name));
        if let Some(free) = known.and_then(|one| let_go(&*one, &[FINALIZER])) {
            patch(&api, &world.attachments, &name, free).await?;
        }
        Ok(())
    }

    /// As every sidecar does at its start.
    async fn ask(&self) -> Result<(), Status> {
        let mut driver = self.world.controller.controller();
        let call = |request| async move { driver.controller_get_capabilities(request).await };
        within(self.world.pace.call, ControllerGetCapabilitiesRequest::default(), call).await.map(drop)
    }

    async fn compare(&self, queue: &Queue<ObjectKey>) -> Result<(), Status> {
        let mut driver = self.world.controller.controller();
        let call = |request| async move { driver.list_volumes(request).await };
        let listed = within(self.world.pace.call, ListVolumesRequest::default(), call).await?;
        for one in self.world.attachments.list() {
            let (Ok(volume), Ok(node)) = (self.volume(&one), self.node_id(&one)) else { continue };
            let entry = listed.entries.iter().find(|entry| {
                entry.volume.as_ref().map(|volume| volume.volume_id.as_str()) == handle(&volume)
            });
            let nodes =
                entry.and_then(|entry| entry.status.as_ref()).map(|status| &status.published_node_ids);
            let is_there = nodes.is_some_and(|nodes| nodes.contains(&node));
            if one.spec.attacher == CSI_DRIVER
                && one.status.as_ref().is_some_and(|status| status.attached) != is_there
            {
                self.differ.lock().expect("no panic while noting").insert(one.name_any());
                queue.add(ObjectKey::of(&*one));
            }
        }
        Ok(())
    }
}
