//! The node service: finds the device of a volume, makes and mounts its file system, and says how it is.
//!
//! ```text
//! stage      device ─► file system ─► staging path      find, content, disk      an export: export
//! publish    staging path ─► target path of a pod       plan, system
//! ```
//! Nothing here asks the host. Each call begins from what the machine shows (`/proc/self/mountinfo`, sysfs, the disk's
//! first bytes) and never from what a former call noted, so it may be killed anywhere and called again. Once begun it
//! goes on when its caller gives up: a `mkfs` that is killed halfway and begun again for ever would never end.

mod calls;
mod content;
pub mod device;
mod disk;
pub mod export;
mod find;
pub mod mounts;
mod place;
mod plan;
mod request;
mod size;
mod stats;
mod system;
mod tools;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller_kit::PendingEvent;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};
use tonic::{Code, Request, Response, Status};

use crate::calls::{CALLS_AT_ONCE, deadline};
use crate::csi::node_server::Node;
use crate::csi::node_service_capability::{self, Rpc, rpc};
use crate::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology, VolumeCapability,
};
use crate::guest::Guest;
use crate::host::missing::Missing;
use crate::in_flight::InFlight;
use crate::node_id::Told;
use crate::refusal::Refusal;
use crate::volume::access::Reach;
use crate::volume::topology;
use place::Kind;

/// Reason of the Event on the driver's Pod where `--topology` finds no labels.
pub const NO_TOPOLOGY: &str = "NodeHasNoTopology";
/// NFS exports that are mounted at once. A server that is away lets each of them wait for minutes, and disks are mounted
/// meanwhile.
const EXPORTS_AT_ONCE: usize = CALLS_AT_ONCE / 2;

/// Kubelet keeps how many volumes have room in the machine until the next registration, so that its question waits so long
/// for the host, which has as a rule answered before it comes.
const HOST_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// What the service can do.
const CAPABILITIES: [rpc::Type; 5] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::ExpandVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];

/// Where the machine shows what the service works with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder in which udev makes links to disks by their identifiers.
    pub device_directory: PathBuf,
    /// The folder in which the kernel makes devices.
    pub devices: PathBuf,
    pub sysfs: PathBuf,
    /// Requests name paths below it and no others.
    pub kubelet_root: PathBuf,
    /// At most as many as have room in the machine count; 0 means as many as have room.
    pub max_volumes_per_node: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            device_directory: "/dev/disk/by-id".into(),
            devices: "/dev".into(),
            sysfs: "/sys".into(),
            kubelet_root: "/var/lib/kubelet".into(),
            max_volumes_per_node: 0,
        }
    }
}

impl Settings {
    /// Kubelet's root as the kernel lists mounts below it.
    fn real_root(&self) -> PathBuf {
        std::fs::canonicalize(&self.kubelet_root).unwrap_or_else(|_| self.kubelet_root.clone())
    }
}

/// Answers kubelet's calls.
#[derive(Clone)]
pub struct NodeService {
    settings: Arc<Settings>,
    machine: watch::Receiver<Option<Told>>,
    in_flight: InFlight,
    /// Volumes whose file system is asked how full it is. A server that is away never answers, and holds up no unmount.
    looks: InFlight,
    exports: Arc<Semaphore>,
    topology: Option<ByLabels>,
}

/// The cluster and the Node whose labels say where this is (`--topology`).
#[derive(Clone)]
struct ByLabels {
    guest: Guest,
    node: String,
    events: Missing,
}

impl NodeService {
    /// `machine` has the name of the machine on the host, as soon as it is known.
    pub fn new(settings: Settings, machine: watch::Receiver<Option<Told>>) -> Self {
        Self {
            settings: Arc::new(settings),
            machine,
            in_flight: InFlight::default(),
            looks: InFlight::default(),
            exports: Arc::new(Semaphore::new(EXPORTS_AT_ONCE)),
            topology: None,
        }
    }

    /// The same, that says by the labels of this Node where it is, and by `events` that they say nothing.
    #[must_use]
    pub fn with_topology(self, guest: Guest, node: impl Into<String>, events: Missing) -> Self {
        Self { topology: Some(ByLabels { guest, node: node.into(), events }), ..self }
    }

    /// Where this node is. Kubelet keeps the first answer, so there is none before the Node has its labels.
    async fn place(&self) -> Result<Option<Topology>, Refusal> {
        let Some(ByLabels { guest, node, events }) = &self.topology else { return Ok(None) };
        if node.is_empty() {
            return Err(Refusal::precondition(
                "--topology needs the labels of this Node, and nobody named the Node: start the driver with --nodeid",
            ));
        }
        let segments = guest.topology(node).await;
        match segments
            .map_err(|error| Refusal::of_guest(&format!("read Node {node} for --topology"), &error))?
        {
            Some(segments) => {
                if segments.is_empty() {
                    let message = format!(
                        "Node {node} has neither of the labels {}: with --topology a volume that waits for a Pod there is not \
                         created; label the Node, then delete the driver's Pod on it",
                        topology::KEYS.join(" and ")
                    );
                    events.notice(&PendingEvent::warning(NO_TOPOLOGY, message));
                }
                Ok(topology::message(segments))
            }
            None => Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "Node {node} has not got its labels from the cloud controller manager, or is not there: call again later"
                ),
            )),
        }
    }

    /// A place among the mounts of exports; `None` for a disk, and for a request that is refused anyway.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where as many exports as may be are being mounted.
    fn place_of_export(
        &self,
        capability: Option<&VolumeCapability>,
    ) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        let reach = request::access(capability).ok().and_then(|access| access.reach().ok());
        if reach != Some(Reach::Export) {
            return Ok(None);
        }
        self.exports.clone().try_acquire_owned().map(Some).map_err(|_| {
            Refusal::new(
                Code::ResourceExhausted,
                format!(
                    "{EXPORTS_AT_ONCE} NFS exports are being mounted on this node: look whether their servers answer, and \
                     call again later"
                ),
            )
        })
    }

    /// Runs the one call for a volume to its end, whether its caller waits or not.
    async fn whole<T, W>(&self, volume: &str, work: impl FnOnce(Arc<Settings>) -> W) -> Result<T, Refusal>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let call = self.in_flight.begin(request::volume(volume)?)?;
        let work = work(self.settings.clone());
        let task = tokio::spawn(async move {
            let _call = call;
            work.await
        });
        task.await.unwrap_or_else(|error| Err(Refusal::new(Code::Internal, error.to_string())))
    }
}

/// How many volumes the scheduler may give this node, 0 for any number. What kubelet noted is of an earlier start, perhaps
/// with another `flag`, so it stands in for the host alone.
fn most_volumes(flag: u32, told: &Told) -> u32 {
    match (flag, told.room) {
        (0, room) => room.or(told.noted).unwrap_or_default(),
        (flag, room) => room.map_or(flag, |room| room.min(flag)),
    }
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES.map(|one| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let mut machine = self.machine.clone();
        let asked = machine.wait_for(|told| told.as_ref().is_some_and(|told| told.is_asked));
        // whatever came of it, what is known counts
        drop(timeout(HOST_ANSWERS_WITHIN, asked).await);
        let Some(told) = self.machine.borrow().clone() else {
            return Err(Status::unavailable(
                "the VirtualMachine of this node is not known yet: the host has to answer once; call again later",
            ));
        };
        Ok(Response::new(NodeGetInfoResponse {
            max_volumes_per_node: most_volumes(self.settings.max_volumes_per_node, &told).into(),
            node_id: told.name,
            accessible_topology: self.place().await?,
        }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let until = Instant::now() + deadline::of(request.metadata());
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let mounting = self.place_of_export(request.volume_capability.as_ref())?;
        let work = |settings: Arc<Settings>| async move {
            let _mounting = mounting;
            calls::stage(&settings, &request, until).await
        };
        self.whole(&id, work).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.whole(&id, |settings| async move { calls::unstage(&settings, &request).await }).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let until = Instant::now() + deadline::of(request.metadata());
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let mounting = self.place_of_export(request.volume_capability.as_ref())?;
        let work = |settings: Arc<Settings>| async move {
            let _mounting = mounting;
            calls::publish(&settings, &request, until).await
        };
        self.whole(&id, work).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.whole(&id, |settings| async move { calls::unpublish(&settings, &request).await }).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let id = request::volume(&request.volume_id)?;
        let path = self.settings.existing("volume_path", &request.volume_path)?;
        let place = self.settings.place(&path, &system::mounts()?)?;
        if place.kind == Kind::Absent {
            return Err(stats::absent(path.display()).into());
        }
        Ok(Response::new(stats::of(&self.settings, id, &place.path, &self.looks).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        let required = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        let size =
            self.whole(&id, |settings| async move { calls::expand(&settings, &request).await }).await?;
        let capacity_bytes = if required > 0 { required } else { i64::try_from(size).unwrap_or(i64::MAX) };
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::csi::volume_capability::access_mode::Mode;
    use crate::csi::volume_capability::{AccessMode, AccessType, MountVolume};

    // docs/contract/csi-driver.md#limits
    #[rstest]
    #[case::of_the_host(0, Some(253), Some(250), 253)]
    #[case::of_the_flag(8, Some(253), None, 8)]
    #[case::more_than_have_room(256, Some(253), None, 253)]
    #[case::host_away(0, None, Some(253), 253)]
    #[case::host_away_at_the_first_start(0, None, None, 0)]
    #[case::host_away_after_the_flag_was_raised(16, None, Some(8), 16)]
    fn a_node_takes_as_many_volumes_as_have_room_in_its_machine(
        #[case] flag: u32,
        #[case] room: Option<u32>,
        #[case] noted: Option<u32>,
        #[case] expected: u32,
    ) {
        assert_eq!(most_volumes(flag, &Told { room, noted, ..Told::named("web-1") }), expected);
    }

    #[tokio::test]
    async fn a_disk_is_mounted_while_as_many_exports_as_may_be_wait_for_their_servers() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { kubelet_root: folder.path().to_owned(), ..Settings::default() };
        let node = NodeService::new(settings, watch::channel(None).1);
        let _waiting = node.exports.acquire_many(u32::try_from(EXPORTS_AT_ONCE).unwrap()).await.unwrap();
        let stage = async |mode: Mode| {
            let request = NodeStageVolumeRequest {
                volume_id: "pvc-1".to_owned(),
                staging_target_path: folder.path().join("absent").display().to_string(),
                volume_capability: Some(VolumeCapability {
                    access_type: Some(AccessType::Mount(MountVolume::default())),
                    access_mode: Some(AccessMode { mode: mode.into() }),
                }),
                ..NodeStageVolumeRequest::default()
            };
            node.node_stage_volume(Request::new(request)).await.unwrap_err().code()
        };
        assert_eq!(stage(Mode::MultiNodeMultiWriter).await, Code::ResourceExhausted);
        // that call came to look at its folder
        assert_eq!(stage(Mode::SingleNodeWriter).await, Code::FailedPrecondition);
    }
}
