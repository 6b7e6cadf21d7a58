//! A node service that mounts nothing: for tests of what calls one, and of the rest of the driver.

use std::sync::Arc;

use csi_driver::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
    node_server::{Node, NodeServer},
};
use futures::future::BoxFuture;
use tonic::{Request, Response, Status, service::Routes};

/// Whether a volume is staged now, or why it is not.
type Stages = dyn Fn(String) -> BoxFuture<'static, Result<(), Status>> + Send + Sync;

/// Answers each call with OK, but where a volume may not be staged.
pub struct NodeStub {
    node_id: String,
    max_volumes: i64,
    stages: Arc<Stages>,
}

impl NodeStub {
    /// One that stages every volume.
    pub fn new(node_id: impl Into<String>) -> Self {
        Self { node_id: node_id.into(), max_volumes: 0, stages: Arc::new(|_| Box::pin(async { Ok(()) })) }
    }

    /// One that takes so many volumes.
    #[must_use]
    pub fn taking(self, max_volumes: i64) -> Self {
        Self { max_volumes, ..self }
    }

    /// One that asks this about each volume before it stages it.
    #[must_use]
    pub fn staging<W>(self, stages: impl Fn(String) -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = Result<(), Status>> + Send + 'static,
    {
        Self { stages: Arc::new(move |volume| Box::pin(stages(volume))), ..self }
    }

    /// For [`crate::Plugin::of`].
    pub fn routes(self) -> Routes {
        Routes::new(NodeServer::new(self)).prepare()
    }
}

#[tonic::async_trait]
impl Node for NodeStub {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        (self.stages)(request.into_inner().volume_id).await?;
        Ok(Response::new(Default::default()))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_publish_volume(
        &self,
        _: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_unpublish_volume(
        &self,
        _: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(Default::default()))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: self.max_volumes,
            ..Default::default()
        }))
    }
}
