//! The identity service: who this driver is and what it has.

use harvester_api::names;
use tonic::{Request, Response, Status};

use crate::csi::identity_server::Identity;
use crate::csi::plugin_capability::service::Type as Service;
use crate::csi::plugin_capability::volume_expansion::Type as Expansion;
use crate::csi::plugin_capability::{self, Type};
use crate::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// Answers for the process, and asks nobody: a host that is away restarts no driver.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriverIdentity {
    /// Volumes and nodes say where they are (`--topology`).
    pub topology: bool,
}

#[tonic::async_trait]
impl Identity for DriverIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: names::CSI_DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service { r#type: Service::ControllerService.into() };
        let expansion = plugin_capability::VolumeExpansion { r#type: Expansion::Online.into() };
        let place = plugin_capability::Service { r#type: Service::VolumeAccessibilityConstraints.into() };
        let place = self.topology.then_some(Type::Service(place));
        let types = [Type::Service(service), Type::VolumeExpansion(expansion)].into_iter().chain(place);
        let capabilities = types.map(|one| PluginCapability { r#type: Some(one) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Ready if the process answers at all.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
