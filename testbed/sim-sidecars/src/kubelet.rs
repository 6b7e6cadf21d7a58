//! Kubelet of one Node, as far as volumes go.
//!
//! ```text
//! start    NodeGetInfo ──► CSINode
//! pod      in the Node's volumesInUse ──► attached, says the Node's status ──► NodeStage ──► NodeExpand, if its claim waits
//!          ──► NodePublish ──► the pod is told: annotation [`MOUNTED`]
//! no pod   NodeUnpublish ──► NodeUnstage ──► out of volumesInUse
//! ```
//! What was begun is noted before the call: a call that failed may have done its work, and is undone too.

mod paths;
mod registration;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use controller_kit::{Action, ObjectKey, Queue};
use csi_driver::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, ResourceExt};
use program::TaskGroup;
use serde_json::json;

use crate::{
    Plugin,
    attach_detach::{attachment_name, is_reported, unique_name},
    capability,
    plugin::within,
    resizer, retries,
    world::{Problem, World, capacity, granted, handle, has, is_over, node_of, patch, patch_status, used},
};
use paths::{Places, text};

pub(crate) use paths::OwnFiles;
pub use paths::{Files, publish_path, staging_path};
pub use sim_harvester::guest::MOUNTED;

/// What is on the node of one volume.
#[derive(Clone, Debug)]
struct Held {
    places: Places,
    unique_name: String,
    /// NodeStageVolume was answered.
    is_staged: bool,
    /// UIDs of the pods for which it was published, or may have been.
    begun: BTreeSet<String>,
    published: BTreeSet<String>,
}

struct Kubelet {
    world: Arc<World>,
    node: String,
    plugin: Plugin,
    root: PathBuf,
    files: Arc<dyn Files>,
    held: Mutex<BTreeMap<String, Held>>,
}

/// A pod and how it uses a volume.
struct User {
    pod: Arc<Pod>,
    read_only: bool,
}

pub(crate) fn start(
    world: &Arc<World>,
    node: &str,
    plugin: Plugin,
    root: &Path,
    files: Arc<dyn Files>,
    tasks: &TaskGroup,
) {
    let (node, root) = (node.to_owned(), root.to_owned());
    let kubelet = Kubelet { world: world.clone(), node, plugin, root, files, held: Mutex::default() };
    let kubelet = Arc::new(kubelet);
    registration::start(&kubelet, tasks);
    let queue = Queue::<String>::new();
    let (add, seen) = (queue.clone(), kubelet.clone());
    world.on_change(move || seen.known().into_iter().for_each(|volume| add.add(volume)));
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        kubelet.world.ready().await;
        let (pace, worker) = (kubelet.world.pace, kubelet.clone());
        retries::run(&queue, pace, &in_life, move |volume: String| {
            let worker = worker.clone();
            async move { worker.reconcile(&volume).await.map(|()| Action::AwaitChange) }
        });
        kubelet.known().into_iter().for_each(|volume| queue.add(volume));
    });
}

impl Kubelet {
    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().expect("no panic while noting")
    }

    /// The volumes that pods of the node use, and those that are on it.
    fn known(&self) -> BTreeSet<String> {
        let mut known: BTreeSet<String> = self.held().keys().cloned().collect();
        for pod in self.pods() {
            let volumes = used(&pod).filter_map(|used| self.world.bound(&used.claim));
            known.extend(volumes.map(|volume| volume.name_any()));
        }
        known
    }

    fn pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.world.pods.list();
        pods.retain(|pod| node_of(pod) == Some(&self.node) && !is_over(pod));
        pods
    }

    fn users(&self, volume: &PersistentVolume) -> Vec<User> {
        let name = volume.name_any();
        let of = |pod: &Arc<Pod>| {
            let used = used(pod)
                .find(|used| self.world.bound(&used.claim).is_some_and(|volume| volume.name_any() == name))?;
            Some(User { pod: pod.clone(), read_only: used.read_only })
        };
        self.pods().iter().filter_map(of).collect()
    }

    async fn reconcile(&self, name: &str) -> Result<(), Problem> {
        let volume = self.world.volume(name);
        let users = volume.as_ref().map(|volume| self.users(volume)).unwrap_or_default();
        self.leave(name, &users).await?;
        let Some(volume) = volume.filter(|_| !users.is_empty()) else { return Ok(()) };
        let mounted = self.mount(&volume, &users).await;
        if let Err(problem) = &mounted {
            for user in &users {
                let why = format!("MountVolume failed for volume \"{name}\" : {problem}");
                self.world.warn(&*user.pod, "FailedMount", why);
            }
        }
        mounted
    }

    /// Takes the volume from pods that are gone, and from the node when no pod is left.
    async fn leave(&self, name: &str, users: &[User]) -> Result<(), Problem> {
        let Some(held) = self.held().get(name).cloned() else { return Ok(()) };
        let wanted: BTreeSet<_> = users.iter().filter_map(|user| user.pod.uid()).collect();
        let call = self.world.pace.call;
        for pod in held.begun.difference(&wanted) {
            let target = held.places.target(pod);
            let request = NodeUnpublishVolumeRequest {
                volume_id: held.places.handle.clone(),
                target_path: text(&target),
            };
            let mut driver = self.plugin.node();
            within(call, request, |request| async move { driver.node_unpublish_volume(request).await })
                .await?;
            held.places.clear_target(&*self.files, pod)?;
            if let Some(held) = self.held().get_mut(name) {
                held.begun.remove(pod);
                held.published.remove(pod);
            }
        }
        if !wanted.is_empty() {
            return Ok(());
        }
        let request = NodeUnstageVolumeRequest {
            volume_id: held.places.handle.clone(),
            staging_target_path: text(&held.places.staging),
        };
        let mut driver = self.plugin.node();
        within(call, request, |request| async move { driver.node_unstage_volume(request).await }).await?;
        held.places.clear_staging(&*self.files)?;
        self.held().remove(name);
        self.report().await
    }

    async fn mount(&self, volume: &PersistentVolume, users: &[User]) -> Result<(), Problem> {
        let (name, world) = (volume.name_any(), &self.world);
        let begins = {
            let mut held = self.held();
            let begins = !held.contains_key(&name);
            held.entry(name.clone()).or_insert_with(|| Held {
                places: Places::new(&self.root, volume),
                unique_name: unique_name(volume),
                is_staged: false,
                begun: BTreeSet::new(),
                published: BTreeSet::new(),
            });
            begins
        };
        if begins {
            self.report().await?;
        }
        let held = self.held().get(&name).cloned();
        let Some(held) = held else { return Ok(()) };
        let node = world.nodes.get(&ObjectKey::new("", &self.node));
        let attachment = attachment_name(&held.places.handle, &self.node);
        let attachment = world.attachments.get(&ObjectKey::new("", attachment));
        let is_attached =
            |one: &&Arc<VolumeAttachment>| one.status.as_ref().is_some_and(|status| status.attached);
        let Some(attachment) = attachment
            .as_ref()
            .filter(is_attached)
            .filter(|_| node.is_some_and(|node| is_reported(&node, volume)))
        else {
            // the attachment brings us back
            return Ok(());
        };
        if !held.is_staged {
            self.stage(volume, &held, attachment).await?;
            if let Some(held) = self.held().get_mut(&name) {
                held.is_staged = true;
            }
        }
        for user in users {
            let uid = user.pod.uid().unwrap_or_default();
            if !held.published.contains(&uid) {
                if let Some(held) = self.held().get_mut(&name) {
                    held.begun.insert(uid.clone());
                }
                self.publish(volume, &held, attachment, user).await?;
                if let Some(held) = self.held().get_mut(&name) {
                    held.published.insert(uid.clone());
                }
            }
            self.expand(volume, &held.places, &uid).await?;
            self.tell(&user.pod).await?;
        }
        Ok(())
    }

    async fn stage(
        &self,
        volume: &PersistentVolume,
        held: &Held,
        attachment: &VolumeAttachment,
    ) -> Result<(), Problem> {
        held.places.make_staging(&*self.files)?;
        let request = NodeStageVolumeRequest {
            volume_id: held.places.handle.clone(),
            publish_context: context(attachment),
            staging_target_path: text(&held.places.staging),
            volume_capability: Some(capability::of(volume)),
            volume_context: attributes(volume),
            ..NodeStageVolumeRequest::default()
        };
        let mut driver = self.plugin.node();
        let call = |request| async move { driver.node_stage_volume(request).await };
        within(self.world.pace.call, request, call).await?;
        Ok(())
    }

    async fn publish(
        &self,
        volume: &PersistentVolume,
        held: &Held,
        attachment: &VolumeAttachment,
        user: &User,
    ) -> Result<(), Problem> {
        let (pod, uid) = (&user.pod, user.pod.uid().unwrap_or_default());
        let target = held.places.target(&uid);
        held.places.make_target(&*self.files, &uid)?;
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let of_pod = [
            ("pod.name", pod.name_any()),
            ("pod.namespace", pod.namespace().unwrap_or_default()),
            ("pod.uid", uid),
            ("serviceAccount.name", account.unwrap_or_default()),
            ("ephemeral", "false".to_owned()),
        ];
        let of_pod = of_pod.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value));
        let request = NodePublishVolumeRequest {
            volume_id: held.places.handle.clone(),
            publish_context: context(attachment),
            staging_target_path: text(&held.places.staging),
            target_path: text(&target),
            volume_capability: Some(capability::of(volume)),
            readonly: user.read_only,
            volume_context: attributes(volume).into_iter().chain(of_pod).collect(),
            ..NodePublishVolumeRequest::default()
        };
        let mut driver = self.plugin.node();
        let call = |request| async move { driver.node_publish_volume(request).await };
        within(self.world.pace.call, request, call).await?;
        Ok(())
    }

    /// What the resizer leaves to the node.
    async fn expand(&self, volume: &PersistentVolume, places: &Places, pod: &str) -> Result<(), Problem> {
        let claim = self.world.claims.list().into_iter().find(|claim| {
            claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) == volume.metadata.name.as_ref()
        });
        let waits = |claim: &Arc<PersistentVolumeClaim>| {
            has(claim, resizer::PENDING) && granted(claim) < capacity(volume)
        };
        let Some(claim) = claim.filter(waits) else { return Ok(()) };
        let request = NodeExpandVolumeRequest {
            volume_id: places.handle.clone(),
            volume_path: text(&places.target(pod)),
            staging_target_path: text(&places.staging),
            capacity_range: Some(CapacityRange { required_bytes: capacity(volume), limit_bytes: 0 }),
            volume_capability: Some(capability::of(volume)),
            ..NodeExpandVolumeRequest::default()
        };
        let mut driver = self.plugin.node();
        let call = |request| async move { driver.node_expand_volume(request).await };
        within(self.world.pace.call, request, call).await?;
        resizer::done(&self.world, &claim, capacity(volume)).await
    }

    /// Lets a pod start whose volumes are all there.
    async fn tell(&self, pod: &Pod) -> Result<(), Problem> {
        let uid = pod.uid().unwrap_or_default();
        let is_there = |claim: &ObjectKey| {
            let volume = self.world.bound(claim);
            volume.is_some_and(|volume| {
                self.held().get(&volume.name_any()).is_some_and(|held| held.published.contains(&uid))
            })
        };
        if pod.annotations().contains_key(MOUNTED) || !used(pod).all(|used| is_there(&used.claim)) {
            return Ok(());
        }
        let api = Api::<Pod>::namespaced(self.world.guest.clone(), &pod.namespace().unwrap_or_default());
        let mark = json!({"metadata": {"annotations": {MOUNTED: "true"}, "uid": uid}});
        Ok(patch(&api, &self.world.pods, &pod.name_any(), mark).await?)
    }

    /// Writes into the Node's status which volumes kubelet uses: nobody detaches them.
    async fn report(&self) -> Result<(), Problem> {
        let names: BTreeSet<_> = self.held().values().map(|held| held.unique_name.clone()).collect();
        let status = json!({"volumesInUse": names});
        let api = self.world.all::<Node>();
        Ok(patch_status(&api, &self.world.nodes, &self.node, status).await?)
    }
}

fn context(attachment: &VolumeAttachment) -> std::collections::HashMap<String, String> {
    let metadata = attachment.status.as_ref().and_then(|status| status.attachment_metadata.clone());
    metadata.unwrap_or_default().into_iter().collect()
}

fn attributes(volume: &PersistentVolume) -> std::collections::HashMap<String, String> {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.and_then(|csi| csi.volume_attributes.clone()).unwrap_or_default().into_iter().collect()
}
