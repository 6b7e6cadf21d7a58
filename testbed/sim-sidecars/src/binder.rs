//! What kube-controller-manager and admission do for claims: the finalizer, the default class, the annotation that asks a
//! provisioner for a volume, the binding, and its end.

use std::{fmt, sync::Arc};

use controller_kit::ObjectKey;
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use program::TaskGroup;
use serde_json::json;

use crate::{
    retries,
    world::{Problem, World, held, is_going, let_go, node_of, patch, patch_status, used},
};

const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
pub(crate) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Asks a provisioner for a volume.
pub(crate) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The scheduler's choice for a claim that waits for its first pod.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Claim(ObjectKey),
    Volume(String),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(key) => write!(out, "claim {key}"),
            Self::Volume(name) => write!(out, "volume {name}"),
        }
    }
}

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| {
        let claims = world.claims.list().into_iter().map(|claim| Item::Claim(ObjectKey::of(&*claim)));
        let volumes = world.volumes.list().into_iter().map(|volume| Item::Volume(volume.name_any()));
        claims.chain(volumes).collect()
    };
    retries::start(world, tasks, items, |world, item| async move {
        match item {
            Item::Claim(key) => claim(&world, &key).await,
            Item::Volume(name) => volume(&world, &name).await,
        }
    });
}

async fn claim(world: &World, key: &ObjectKey) -> Result<(), Problem> {
    let Some(claim) = world.claims.get(key) else { return Ok(()) };
    let api = world.claims_in(&key.namespace);
    let change = |change| patch(&api, &world.claims, &key.name, change);
    if is_going(&*claim) {
        let pods = world.pods.list();
        // a pod that has no node yet will not get one
        let is_used = pods
            .iter()
            .any(|pod| node_of(pod).is_some() && used(pod).any(|used| used.claim == *key) && !is_done(pod));
        if !is_used && let Some(free) = let_go(&*claim, &[CLAIM_PROTECTION]) {
            change(free).await?;
        }
        return Ok(());
    }
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.storage_class_name.is_none() {
        let classes = world.classes.list();
        let is_default = |class: &&Arc<_>| {
            ResourceExt::annotations(&***class).get(DEFAULT_CLASS).is_some_and(|it| it == "true")
        };
        if let Some(class) = classes.iter().find(is_default) {
            return Ok(change(json!({"spec": {"storageClassName": class.name_any()}})).await?);
        }
    }
    if let Some(hold) = held(&*claim, &[CLAIM_PROTECTION]) {
        return Ok(change(hold).await?);
    }
    if let Some(volume) = volume_of(world, &claim) {
        return bind(world, &claim, &volume).await;
    }
    let Some(class) = world.class_of(&claim) else { return Ok(()) };
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && !claim.annotations().contains_key(SELECTED_NODE);
    if spec.volume_name.is_none() && !waits && !claim.annotations().contains_key(PROVISIONER) {
        let asks = json!({"metadata": {"annotations": {PROVISIONER: CSI_DRIVER,
            "volume.beta.kubernetes.io/storage-provisioner": CSI_DRIVER}}});
        change(asks).await?;
    }
    Ok(())
}

fn is_done(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The volume that names the claim.
fn volume_of(world: &World, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
    world.volumes.list().into_iter().find(|volume| {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        reference.is_some_and(|reference| {
            (&reference.namespace, &reference.name) == (&claim.metadata.namespace, &claim.metadata.name)
                && reference.uid.as_ref().is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
        })
    })
}

/// The volume first, then the claim, each with its status after it.
async fn bind(
    world: &World,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<(), Problem> {
    let (name, spec) = (volume.name_any(), volume.spec.clone().unwrap_or_default());
    let volumes = world.all::<PersistentVolume>();
    if spec.claim_ref.as_ref().is_none_or(|reference| reference.uid.is_none()) {
        let change = json!({"spec": {"claimRef": {"uid": claim.metadata.uid}}});
        patch(&volumes, &world.volumes, &name, change).await?;
    }
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        patch_status(&volumes, &world.volumes, &name, json!({"phase": "Bound"})).await?;
    }
    let namespace = claim.namespace().unwrap_or_default();
    let claims = world.claims_in(&namespace);
    if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) != Some(&name) {
        let change = json!({"spec": {"volumeName": name}, "metadata": {"annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}}});
        patch(&claims, &world.claims, &claim.name_any(), change).await?;
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        let status = json!({"phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity});
        patch_status(&claims, &world.claims, &claim.name_any(), status).await?;
    }
    Ok(())
}

async fn volume(world: &World, name: &str) -> Result<(), Problem> {
    let Some(volume) = world.volumes.get(&ObjectKey::new("", name)) else { return Ok(()) };
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()) else { return Ok(()) };
    let volumes = world.all::<PersistentVolume>();
    let key = ObjectKey::new(reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
    let claim = world
        .claims
        .get(&key)
        .filter(|claim| reference.uid.as_ref().is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref()));
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    if claim.is_none() && reference.uid.is_some() && phase != Some("Released") {
        // a claim that is unknown here may be young
        if world.claims_in(&key.namespace).get_opt(&key.name).await?.map(|claim| claim.metadata.uid)
            != Some(reference.uid)
        {
            patch_status(&volumes, &world.volumes, name, json!({"phase": "Released"})).await?;
        }
        return Ok(());
    }
    if is_going(&*volume)
        && phase != Some("Bound")
        && let Some(free) = let_go(&*volume, &[VOLUME_PROTECTION])
    {
        patch(&volumes, &world.volumes, name, free).await?;
    }
    Ok(())
}
