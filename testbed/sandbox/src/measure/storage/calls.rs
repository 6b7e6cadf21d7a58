//! The calls of the sidecars and of kubelet.

use std::{collections::HashMap, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use csi_driver::csi::{
    CapacityRange, ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, NodeGetCapabilitiesRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use sim_sidecars::Plugin;
use tokio::time::Instant;

/// Bytes of a volume.
pub(super) const SIZE: i64 = 32 << 20;
/// A process that takes no call by then never will.
const PATIENCE: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(5);
/// Kubelet's first pauses before it stages a volume again.
const STAGE_AGAIN: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

/// What the answer of an attachment says to the node.
pub(super) type Attached = HashMap<String, String>;

/// Waits until a process takes calls. This one needs nothing of Harvester, and is none that a sidecar makes: the process
/// still watches nothing.
pub(super) async fn takes(plugin: &Plugin) -> Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while let Err(status) = plugin.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await {
        ensure!(Instant::now() < give_up, "the CSI driver takes no call: {status}");
        tokio::time::sleep(GLANCE).await;
    }
    Ok(())
}

/// What each sidecar asks when it starts: from then on a process may reconcile.
pub(super) async fn greet(plugin: &Plugin) -> Result<()> {
    let greeting = ControllerGetCapabilitiesRequest {};
    let answer = plugin.controller().controller_get_capabilities(greeting).await;
    answer.map(drop).context("ask what the controller service can do")
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            ..Default::default()
        })),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// Makes a volume, and answers its handle.
pub(super) async fn create(plugin: &Plugin, name: &str) -> Result<String> {
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: SIZE, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        ..CreateVolumeRequest::default()
    };
    let made = plugin.controller().create_volume(request).await.context("make a volume")?;
    Ok(made.into_inner().volume.context("it is named")?.volume_id)
}

/// What the external attacher asks for a VolumeAttachment.
pub(super) async fn attach(plugin: &Plugin, volume: &str, machine: &str) -> Result<Attached> {
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: machine.to_owned(),
        volume_capability: Some(capability()),
        ..ControllerPublishVolumeRequest::default()
    };
    let answer = plugin.controller().controller_publish_volume(request).await;
    Ok(answer.with_context(|| format!("attach {volume} to {machine}"))?.into_inner().publish_context)
}

/// What it asks for one that goes.
pub(super) async fn detach(plugin: &Plugin, volume: &str, machine: &str) -> Result<()> {
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: machine.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    };
    let answer = plugin.controller().controller_unpublish_volume(request).await;
    answer.map(drop).with_context(|| format!("detach {volume} from {machine}"))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Kubelet mounts a volume once for all its pods, and tries again where that fails: a kernel that has just made a loop device
/// may still hold it.
pub(super) async fn stage(plugin: &Plugin, volume: &str, attached: &Attached, at: &Path) -> Result<()> {
    let request = NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        publish_context: attached.clone(),
        staging_target_path: text(at),
        volume_capability: Some(capability()),
        ..NodeStageVolumeRequest::default()
    };
    let mut answer = plugin.node().node_stage_volume(request.clone()).await;
    for pause in STAGE_AGAIN {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(pause).await;
        answer = plugin.node().node_stage_volume(request.clone()).await;
    }
    answer.map(drop).with_context(|| format!("stage {volume}"))
}

/// No pod has it any more.
pub(super) async fn unstage(plugin: &Plugin, volume: &str, at: &Path) -> Result<()> {
    let request = NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: text(at) };
    let answer = plugin.node().node_unstage_volume(request).await;
    answer.map(drop).with_context(|| format!("unstage {volume}"))
}

/// Kubelet gives a staged volume to a pod.
pub(super) async fn publish(
    plugin: &Plugin,
    volume: &str,
    attached: &Attached,
    staged: &Path,
    at: &Path,
) -> Result<()> {
    let request = NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        publish_context: attached.clone(),
        staging_target_path: text(staged),
        target_path: text(at),
        volume_capability: Some(capability()),
        ..NodePublishVolumeRequest::default()
    };
    let answer = plugin.node().node_publish_volume(request).await;
    answer.map(drop).with_context(|| format!("publish {volume}"))
}

/// What kubelet asks for each volume once a minute.
pub(super) async fn stats(plugin: &Plugin, volume: &str, staged: &Path, at: &Path) -> Result<()> {
    let request = NodeGetVolumeStatsRequest {
        volume_id: volume.to_owned(),
        volume_path: text(at),
        staging_target_path: text(staged),
    };
    let answer = plugin.node().node_get_volume_stats(request).await;
    let answer = answer.with_context(|| format!("ask how full {volume} is"))?.into_inner();
    ensure!(answer.usage.iter().any(|usage| usage.total > 0), "{volume} has no size: {answer:?}");
    Ok(())
}
