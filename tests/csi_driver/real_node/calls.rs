//! The calls of kubelet and of the sidecars, in their order and with their paths.

use std::{collections::HashMap, time::Duration};

use csi_driver::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, NodeExpandVolumeRequest, NodeGetInfoRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
    controller_client::ControllerClient,
    node_client::NodeClient,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};
use tonic::{Request, Status, transport::Channel};

use super::machine::Machine;

/// As kubelet and the sidecars wait for an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// Callers repeat a call that was refused.
const TRIES: usize = 60;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// A driver in a machine.
#[derive(Clone)]
pub(crate) struct Driver {
    node: NodeClient<Channel>,
    controller: ControllerClient<Channel>,
}

/// Repeats a call until it is answered, as its callers do.
async fn answered<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let mut refusals = Vec::new();
    while refusals.len() < TRIES {
        match call().await {
            Ok(answer) => return answer,
            Err(status) => refusals.push(status),
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    panic!("{:?}", refusals.last());
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(ANSWERS_WITHIN);
    request
}

/// Files on a file system of this name, for writing.
pub(crate) fn files(file_system: &str, mode: Mode) -> VolumeCapability {
    let mount = MountVolume { fs_type: file_system.to_owned(), ..MountVolume::default() };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// Where kubelet has a volume for all pods of the node.
pub(crate) fn staging(volume: &str) -> String {
    format!("/var/lib/kubelet/plugins/kubernetes.io/csi/driver.harvesterhci.io/{volume}/globalmount")
}

/// Where kubelet has a volume for a pod.
pub(crate) fn target(volume: &str) -> String {
    format!("/var/lib/kubelet/pods/5f4c/volumes/kubernetes.io~csi/{volume}/mount")
}

impl Driver {
    pub(crate) fn of(machine: &Machine) -> Self {
        let channel = Channel::from_shared(machine.driver()).unwrap().connect_lazy();
        Self { node: NodeClient::new(channel.clone()), controller: ControllerClient::new(channel) }
    }

    /// As kubelet registers the driver.
    pub(crate) async fn node_id(&self) -> String {
        let call = async || self.node.clone().node_get_info(request(NodeGetInfoRequest {})).await;
        answered(call).await.into_inner().node_id
    }

    pub(crate) async fn create(&self, name: &str, bytes: i64, used: &VolumeCapability) -> String {
        let message = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![used.clone()],
            ..CreateVolumeRequest::default()
        };
        let call = async || self.controller.clone().create_volume(request(message.clone())).await;
        answered(call).await.into_inner().volume.unwrap().volume_id
    }

    pub(crate) async fn attach(
        &self,
        volume: &str,
        node_id: &str,
        used: &VolumeCapability,
    ) -> HashMap<String, String> {
        let message = ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node_id.to_owned(),
            volume_capability: Some(used.clone()),
            ..ControllerPublishVolumeRequest::default()
        };
        let call = async || self.controller.clone().controller_publish_volume(request(message.clone())).await;
        answered(call).await.into_inner().publish_context
    }

    pub(crate) async fn detach(&self, volume: &str, node_id: &str) {
        let message = ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node_id.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        let call =
            async || self.controller.clone().controller_unpublish_volume(request(message.clone())).await;
        answered(call).await;
    }

    /// Stages and publishes, as for the first pod of a node.
    pub(crate) async fn mount(
        &self,
        machine: &Machine,
        volume: &str,
        context: &HashMap<String, String>,
        used: &VolumeCapability,
    ) {
        machine.run(&format!("mkdir -p {}", staging(volume)));
        let stage = NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: context.clone(),
            staging_target_path: staging(volume),
            volume_capability: Some(used.clone()),
            ..NodeStageVolumeRequest::default()
        };
        answered(async || self.node.clone().node_stage_volume(request(stage.clone())).await).await;
        machine.run(&format!("mkdir -p $(dirname {})", target(volume)));
        let publish = NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: context.clone(),
            staging_target_path: staging(volume),
            target_path: target(volume),
            volume_capability: Some(used.clone()),
            ..NodePublishVolumeRequest::default()
        };
        answered(async || self.node.clone().node_publish_volume(request(publish.clone())).await).await;
    }

    /// As after the last pod of a node.
    pub(crate) async fn unmount(&self, volume: &str) {
        let unpublish =
            NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: target(volume) };
        answered(async || self.node.clone().node_unpublish_volume(request(unpublish.clone())).await).await;
        let unstage =
            NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: staging(volume) };
        answered(async || self.node.clone().node_unstage_volume(request(unstage.clone())).await).await;
    }

    /// Grows the volume on the host, then its file system where a pod uses it.
    pub(crate) async fn expand(&self, volume: &str, bytes: i64, used: &VolumeCapability) {
        let range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
        let on_host = ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: range,
            volume_capability: Some(used.clone()),
            ..ControllerExpandVolumeRequest::default()
        };
        let call = async || self.controller.clone().controller_expand_volume(request(on_host.clone())).await;
        assert!(answered(call).await.into_inner().node_expansion_required);
        let on_node = NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: target(volume),
            staging_target_path: staging(volume),
            capacity_range: range,
            volume_capability: Some(used.clone()),
            ..NodeExpandVolumeRequest::default()
        };
        answered(async || self.node.clone().node_expand_volume(request(on_node.clone())).await).await;
    }
}
