//! external-provisioner: a claim that asks for a volume gets one, and a volume that nobody claims any more goes.
//!
//! A call that may still be under way in the driver is made again with the same claim, even when the claim is gone meanwhile:
//! what it makes would be lost.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use controller_kit::ObjectKey;
use csi_driver::csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeContentSource,
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{ResourceExt, api::PostParams};
use program::TaskGroup;
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    binder::{PROVISIONER, VOLUME_PROTECTION},
    capability::capability,
    plugin::within,
    retries,
    snapshotter::{self, is_ready},
    world::{Problem, World, capacity, delete, handle, is_going, let_go, patch, quantity, requested},
};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Of `--default-fstype`.
const DEFAULT_FILE_SYSTEM: &str = "ext4";
/// Parameters that are for the sidecar alone.
const OWN: &str = "csi.storage.k8s.io/";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Claim(String),
    Volume(String),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(uid) => write!(out, "claim {uid}"),
            Self::Volume(name) => write!(out, "volume {name}"),
        }
    }
}

struct Provisioner {
    world: Arc<World>,
    /// Claims whose volume the driver may be making, by UID.
    under_way: Mutex<HashMap<String, Arc<PersistentVolumeClaim>>>,
}

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| {
        let claims = world.claims.list().into_iter().filter_map(|claim| claim.uid()).map(Item::Claim);
        let volumes = world.volumes.list().into_iter().map(|volume| Item::Volume(volume.name_any()));
        claims.chain(volumes).collect()
    };
    let provisioner = Arc::new(Provisioner { world: world.clone(), under_way: Mutex::default() });
    retries::start(world, tasks, items, move |world, item| {
        let provisioner = provisioner.clone();
        async move {
            match item {
                Item::Claim(uid) => provisioner.claim(&uid).await,
                Item::Volume(name) => remove(&world, &name).await,
            }
        }
    });
}

/// Codes after which the driver may still be at work.
pub(crate) fn may_go_on(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

impl Provisioner {
    async fn claim(&self, uid: &str) -> Result<(), Problem> {
        let known = self.world.claims.list().into_iter().find(|claim| claim.uid().as_deref() == Some(uid));
        let wants = |claim: &Arc<PersistentVolumeClaim>| {
            !is_going(&**claim)
                && claim.annotations().get(PROVISIONER).is_some_and(|driver| driver == CSI_DRIVER)
                && claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_none())
        };
        let under_way = || self.under_way.lock().expect("no panic while noting");
        let Some(claim) = known.filter(wants).or_else(|| under_way().get(uid).cloned()) else {
            return Ok(());
        };
        let name = format!("pvc-{uid}");
        if self.world.volume(&name).is_some() {
            under_way().remove(uid);
            return Ok(());
        }
        match provision(&self.world, &claim, &name).await {
            Ok(()) => {
                under_way().remove(uid);
                Ok(())
            }
            Err(problem) => {
                match &problem {
                    Problem::Call(status) if !may_go_on(status.code()) => under_way().remove(uid),
                    _ => under_way().insert(uid.to_owned(), claim.clone()),
                };
                let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
                let why = format!("failed to provision volume with StorageClass {class:?}: {problem}");
                self.world.warn(&*claim, "ProvisioningFailed", why);
                Err(problem)
            }
        }
    }
}

/// Calls the driver, and makes the object for what it made.
async fn provision(world: &World, claim: &PersistentVolumeClaim, name: &str) -> Result<(), Problem> {
    let Some(class) = world.class_of(claim) else {
        return Err(Problem::Waits("its StorageClass is gone".to_owned()));
    };
    let spec = claim.spec.clone().unwrap_or_default();
    let (modes, parameters) =
        (spec.access_modes.unwrap_or_default(), class.parameters.clone().unwrap_or_default());
    let is_block = spec.volume_mode.as_deref() == Some("Block");
    let fs_type = parameters.get(&format!("{OWN}fstype")).map_or(DEFAULT_FILE_SYSTEM, String::as_str);
    let flags = class.mount_options.clone().unwrap_or_default();
    let namespace = claim.namespace().unwrap_or_default();
    let of_claim =
        [("pvc/name", claim.name_any()), ("pvc/namespace", namespace), ("pv/name", name.to_owned())];
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: requested(claim), limit_bytes: 0 }),
        volume_capabilities: vec![capability(&modes, is_block, fs_type, &flags)],
        // of `--extra-create-metadata`
        parameters: parameters
            .iter()
            .filter(|(key, _)| !key.starts_with(OWN))
            .map(|(key, value)| (key.clone(), value.clone()))
            .chain(of_claim.map(|(key, value)| (format!("{OWN}{key}"), value)))
            .collect(),
        volume_content_source: source(world, claim)?,
        ..CreateVolumeRequest::default()
    };
    let mut driver = world.controller.controller();
    let call = |request| async move { driver.create_volume(request).await };
    let made = within(world.pace.call, request, call).await?.volume;
    let made = made.ok_or_else(|| Status::internal("the driver answers without a volume"))?;
    let size = if made.capacity_bytes > 0 { made.capacity_bytes } else { requested(claim) };
    let attributes: HashMap<_, _> = made
        .volume_context
        .into_iter()
        .chain([("storage.kubernetes.io/csiProvisionerIdentity".to_owned(), format!("0-0-{CSI_DRIVER}"))])
        .collect();
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "finalizers": [VOLUME_PROTECTION, FINALIZER], "annotations": {
            PROVISIONED_BY: CSI_DRIVER, "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}},
        "spec": {"accessModes": modes, "capacity": {"storage": quantity(size)}, "mountOptions": class.mount_options,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name_any(),
                "namespace": claim.namespace(), "uid": claim.uid(), "resourceVersion": claim.resource_version()},
            "csi": {"driver": CSI_DRIVER, "volumeHandle": made.volume_id, "volumeAttributes": attributes,
                "fsType": if is_block { None } else { Some(fs_type) }},
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(), "volumeMode": if is_block { "Block" } else { "Filesystem" }}});
    let volume: PersistentVolume =
        serde_json::from_value(volume).expect("what we made is a PersistentVolume");
    match world.all::<PersistentVolume>().create(&PostParams::default(), &volume).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        answer => drop(world.volumes.wrote(answer?)),
    }
    world.tell(claim, "ProvisioningSucceeded", format!("Successfully provisioned volume {name}"));
    Ok(())
}

/// What the volume is to be made of.
fn source(world: &World, claim: &PersistentVolumeClaim) -> Result<Option<VolumeContentSource>, Problem> {
    let spec = claim.spec.clone().unwrap_or_default();
    let source = spec.data_source.map(|source| (source.kind, source.name));
    let Some((kind, name)) = source.or(spec.data_source_ref.map(|source| (source.kind, source.name))) else {
        return Ok(None);
    };
    let key = ObjectKey::new(claim.namespace().unwrap_or_default(), &name);
    let of = match kind.as_str() {
        "VolumeSnapshot" => {
            let snapshot = world.snapshots.get(&key);
            let handle = snapshot
                .filter(|snapshot| is_ready(snapshot))
                .and_then(|snapshot| snapshotter::content_of(world, &snapshot))
                .and_then(|content| snapshotter::handle(&content));
            handle.map(|snapshot_id| Type::Snapshot(SnapshotSource { snapshot_id }))
        }
        "PersistentVolumeClaim" => {
            let volume = world.bound(&key);
            let id = volume.as_ref().and_then(|volume| handle(volume));
            id.map(|id| Type::Volume(VolumeSource { volume_id: id.to_owned() }))
        }
        _ => return Err(Problem::Waits(format!("a volume is not made of a {kind}"))),
    };
    match of {
        Some(of) => Ok(Some(VolumeContentSource { r#type: Some(of) })),
        None => Err(Problem::Waits(format!(
            "error getting handle for DataSource Type {kind} by Name {name}: it is not ready"
        ))),
    }
}

/// The end of a volume that was released.
async fn remove(world: &World, name: &str) -> Result<(), Problem> {
    let Some(volume) = world.volume(name) else { return Ok(()) };
    let spec = volume.spec.clone().unwrap_or_default();
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|driver| driver == CSI_DRIVER);
    let keeps = spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete");
    if phase != Some("Released") || !ours || keeps || !volume.finalizers().iter().any(|one| one == FINALIZER)
    {
        return Ok(());
    }
    let attached = world
        .attachments
        .list()
        .into_iter()
        .find(|attachment| attachment.spec.source.persistent_volume_name.as_deref() == Some(name));
    if let Some(attached) = attached {
        let why = format!("persistentvolume {name} is still attached to node {}", attached.spec.node_name);
        world.warn(&*volume, "VolumeFailedDelete", why.clone());
        return Err(Problem::Waits(why));
    }
    let request = DeleteVolumeRequest {
        volume_id: handle(&volume).unwrap_or_default().to_owned(),
        ..DeleteVolumeRequest::default()
    };
    let mut driver = world.controller.controller();
    let done =
        within(world.pace.call, request, |request| async move { driver.delete_volume(request).await }).await;
    if let Err(status) = done {
        world.warn(&*volume, "VolumeFailedDelete", Problem::Call(status.clone()).to_string());
        return Err(status.into());
    }
    tracing::debug!(volume = name, bytes = capacity(&volume), "deleted");
    let volumes = world.all::<PersistentVolume>();
    delete(&volumes, &volume).await?;
    match volumes.get_opt(name).await? {
        Some(left) => match let_go(&left, &[FINALIZER]) {
            Some(free) => Ok(patch(&volumes, &world.volumes, name, free).await?),
            None => Ok(()),
        },
        None => Ok(()),
    }
}
