//! The controller service: claims on the host, disks in and out of machines, snapshots.
//!
//! Each call is one function of a module below, which checks the request, decides, and acts. What is not in
//! `ControllerGetCapabilities` is UNIMPLEMENTED.

use tonic::{Request, Response, Status};

use crate::{
    attach::Attacher,
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
    in_flight::InFlight,
};

/// What the service can do.
const CAPABILITIES: [rpc::Type; 1] = [rpc::Type::PublishUnpublishVolume];

/// Answers the calls of the external sidecars.
pub struct ControllerService {
    attacher: Attacher,
    in_flight: InFlight,
}

impl ControllerService {
    pub fn new(attacher: Attacher) -> Self {
        Self { attacher, in_flight: InFlight::default() }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES.map(|one| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let _call = self.in_flight.begin(&request.volume_id)?;
        self.attacher.publish(&request).await?;
        Ok(Response::new(ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let _call = self.in_flight.begin(&request.volume_id)?;
        self.attacher.unpublish(&request).await?;
        Ok(Response::new(ControllerUnpublishVolumeResponse::default()))
    }

    async fn create_volume(
        &self,
        _: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        Err(Status::unimplemented("CreateVolume is not served"))
    }

    async fn delete_volume(
        &self,
        _: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        Err(Status::unimplemented("DeleteVolume is not served"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        Err(Status::unimplemented("ValidateVolumeCapabilities is not served"))
    }

    async fn list_volumes(
        &self,
        _: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Err(Status::unimplemented("ListVolumes is not served"))
    }

    async fn get_capacity(
        &self,
        _: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        Err(Status::unimplemented("GetCapacity is not served"))
    }

    async fn create_snapshot(
        &self,
        _: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        Err(Status::unimplemented("CreateSnapshot is not served"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        Err(Status::unimplemented("DeleteSnapshot is not served"))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Err(Status::unimplemented("ListSnapshots is not served"))
    }

    async fn get_snapshot(
        &self,
        _: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        Err(Status::unimplemented("GetSnapshot is not served"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("ControllerExpandVolume is not served"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(Status::unimplemented("ControllerGetVolume is not served"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(Status::unimplemented("ControllerModifyVolume is not served"))
    }
}
