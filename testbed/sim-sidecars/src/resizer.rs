//! external-resizer: a bound claim that asks for more gets it from the driver, then from its volume; what is left is kubelet's.

use std::sync::Arc;

use controller_kit::ObjectKey;
use csi_driver::csi::{CapacityRange, ControllerExpandVolumeRequest};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use program::TaskGroup;
use serde_json::json;

use crate::{
    capability,
    plugin::within,
    retries,
    world::{
        Problem, World, capacity, granted, handle, has, is_going, patch, patch_status, quantity, requested,
    },
};

/// What kubelet does next.
pub(crate) const PENDING: &str = "FileSystemResizePending";
const RESIZING: &str = "Resizing";

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let items = |world: &World| world.claims.list().into_iter().map(|claim| ObjectKey::of(&*claim)).collect();
    retries::start(world, tasks, items, |world, key| async move { resize(&world, &key).await });
}

async fn resize(world: &World, key: &ObjectKey) -> Result<(), Problem> {
    let (Some(claim), Some(volume)) = (world.claims.get(key), world.bound(key)) else { return Ok(()) };
    let wanted = requested(&claim);
    if is_going(&*claim) || wanted <= granted(&claim) || has(&claim, PENDING) {
        return Ok(());
    }
    if !has(&claim, RESIZING) {
        condition(world, &claim, RESIZING).await?;
    }
    let request = ControllerExpandVolumeRequest {
        volume_id: handle(&volume).unwrap_or_default().to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: wanted, limit_bytes: 0 }),
        volume_capability: Some(capability::of(&volume)),
        ..ControllerExpandVolumeRequest::default()
    };
    let mut driver = world.controller.controller();
    let call = |request| async move { driver.controller_expand_volume(request).await };
    let grown = match within(world.pace.call, request, call).await {
        Ok(grown) => grown,
        Err(status) => {
            let why = format!(
                "resize volume \"{}\" by resizer failed: {}",
                volume.name_any(),
                Problem::Call(status.clone())
            );
            world.warn(&*claim, "VolumeResizeFailed", why);
            return Err(status.into());
        }
    };
    if capacity(&volume) < grown.capacity_bytes {
        let change = json!({"spec": {"capacity": {"storage": quantity(grown.capacity_bytes)}}});
        patch(&world.all::<PersistentVolume>(), &world.volumes, &volume.name_any(), change).await?;
    }
    if grown.node_expansion_required {
        condition(world, &claim, PENDING).await
    } else {
        done(world, &claim, grown.capacity_bytes).await
    }
}

async fn condition(world: &World, claim: &PersistentVolumeClaim, kind: &str) -> Result<(), Problem> {
    let message = if kind == PENDING {
        "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
    } else {
        ""
    };
    let condition = json!({"type": kind, "status": "True", "lastProbeTime": null, "message": message,
        "lastTransitionTime": world.clock.now_text()});
    status(world, claim, json!({"conditions": [condition]})).await
}

/// The claim has its new size.
pub(crate) async fn done(world: &World, claim: &PersistentVolumeClaim, bytes: i64) -> Result<(), Problem> {
    status(world, claim, json!({"capacity": {"storage": quantity(bytes)}, "conditions": null})).await
}

async fn status(
    world: &World,
    claim: &PersistentVolumeClaim,
    status: serde_json::Value,
) -> Result<(), Problem> {
    let api = world.claims_in(&claim.namespace().unwrap_or_default());
    Ok(patch_status(&api, &world.claims, &claim.name_any(), status).await?)
}
