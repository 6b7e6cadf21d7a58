//! The controller service: claims on the host, disks in and out of machines, snapshots.
//!
//! Each call is one function of a module below, or of [`crate::attach`] where a volume is attached or detached. Of calls
//! that change one volume or snapshot one is under way at a time, and the others are ABORTED; an export is published to many
//! nodes at once. GetCapacity and
//! ControllerModifyVolume are UNIMPLEMENTED.

mod classes;
mod create;
mod delete;
mod expand;
mod inspect;
mod machine_disk;
mod needed;
mod page;
mod published;
mod snapshots;
mod wait;

use std::sync::Arc;

use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::{
    attach::Attacher,
    calls::deadline,
    csi::{
        ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
        ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
        ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
        ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
        ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
        CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
        DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse,
        GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
        ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
        ValidateVolumeCapabilitiesResponse,
        controller_server::Controller,
        controller_service_capability::{self, Rpc, rpc},
    },
    guest::Guest,
    host::Host,
    in_flight::InFlight,
    refusal::Refusal,
    volume::{
        access::{Access, Reach},
        name::HostName,
    },
};
use needed::Needed;

/// What the service can do.
const CAPABILITIES: [rpc::Type; 13] = [
    rpc::Type::PublishUnpublishVolume,
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ExpandVolume,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::GetSnapshot,
    rpc::Type::CloneVolume,
    rpc::Type::ListVolumes,
    rpc::Type::ListVolumesPublishedNodes,
    rpc::Type::GetVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::PublishReadonly,
];

/// What the command line says about volumes.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The host's StorageClass for volumes whose class of the guest names none (`--host-storage-class`).
    pub host_storage_class: Option<String>,
    /// The guest cluster whose Nodes decide where a volume may be used (`--topology`).
    pub topology: Option<Guest>,
}

/// Answers the calls of the external sidecars.
pub struct ControllerService {
    host: Host,
    settings: Settings,
    attacher: Arc<Attacher>,
    in_flight: InFlight,
    needed: Needed,
}

impl ControllerService {
    pub fn new(host: Host, settings: Settings, attacher: impl Into<Arc<Attacher>>) -> Self {
        let attacher = attacher.into();
        Self { host, settings, attacher, in_flight: InFlight::default(), needed: Needed::default() }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        self.attacher.note_call();
        let capabilities = CAPABILITIES.map(|one| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let within = deadline::of(request.metadata());
        let request = request.into_inner();
        // the attacher publishes an export for all of its nodes again each minute
        let _call = match Access::of(request.volume_capability.as_ref()).map(|access| access.reach()) {
            Ok(Ok(Reach::Export)) => self.in_flight.begin_part(&request.volume_id, &request.node_id)?,
            _ => self.in_flight.begin(&request.volume_id)?,
        };
        self.attacher.note_call();
        let publish_context = self.attacher.publish(&request, within).await?;
        Ok(Response::new(ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let within = deadline::of(request.metadata());
        let request = request.into_inner();
        // the request does not say whether the volume is an export; calls that know it do
        let _call = self.in_flight.begin_beside(&request.volume_id, &request.node_id)?;
        self.attacher.unpublish(&request, within).await?;
        Ok(Response::new(ControllerUnpublishVolumeResponse::default()))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let until = ends(&request);
        let mut asked = create::request::Asked::of(request.get_ref(), &self.settings)?;
        let _call = self.in_flight.begin(asked.name.as_str())?;
        if let Some(guest) = &self.settings.topology {
            asked.confine(guest).await?;
        }
        Ok(Response::new(Box::pin(create::create_volume(&self.host, &self.needed, &asked, until)).await?))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let until = ends(&request);
        let handle = &request.get_ref().volume_id;
        if handle.is_empty() {
            return Err(Refusal::invalid("the ID of the volume is missing").into());
        }
        if let Some(name) = HostName::from_handle(handle) {
            let _call = self.in_flight.begin(handle)?;
            delete::delete_volume(&self.host, &self.attacher, &self.needed, &name, until).await?;
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        Ok(Response::new(inspect::validate(&self.host, request.into_inner()).await?))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Ok(Response::new(inspect::list(&self.host, self.attacher.exports(), request.get_ref()).await?))
    }

    async fn get_capacity(
        &self,
        _: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        Err(Status::unimplemented("GetCapacity is not served"))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let until = ends(&request);
        let asked = snapshots::Asked::of(request.get_ref())?;
        let _call = self.in_flight.begin(&format!("snapshot/{}", asked.name))?;
        // a volume that grows or is being deleted is no source
        let of_volume = self.in_flight.begin(asked.source.as_str())?;
        let snapshot = snapshots::create_snapshot(&self.host, &asked, of_volume, until).await?;
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let id = &request.get_ref().snapshot_id;
        require_snapshot(id)?;
        let _call = self.in_flight.begin(&format!("snapshot/{}", snapshots::object(id)))?;
        snapshots::delete_snapshot(&self.host, &self.needed, id).await?;
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Ok(Response::new(snapshots::list_snapshots(&self.host, request.get_ref()).await?))
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let id = &request.get_ref().snapshot_id;
        require_snapshot(id)?;
        let snapshot = snapshots::get_snapshot(&self.host, id).await?;
        Ok(Response::new(GetSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let until = ends(&request);
        let request = request.get_ref();
        let name = inspect::name_of(&request.volume_id)?;
        let _call = self.in_flight.begin(name.as_str())?;
        Ok(Response::new(expand::expand(&self.host, &name, request, until).await?))
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let handle = &request.get_ref().volume_id;
        Ok(Response::new(inspect::get(&self.host, self.attacher.exports(), handle).await?))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("ControllerModifyVolume is not served"))
    }
}

/// When a call has to have its answer.
fn ends<T>(request: &Request<T>) -> Instant {
    Instant::now() + deadline::of(request.metadata())
}

fn require_snapshot(id: &str) -> Result<(), Refusal> {
    if id.is_empty() { Err(Refusal::invalid("the ID of the snapshot is missing")) } else { Ok(()) }
}
