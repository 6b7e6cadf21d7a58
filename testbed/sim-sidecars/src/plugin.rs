//! The way to a driver.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use csi_driver::csi::{controller_client::ControllerClient, node_client::NodeClient};
use futures::{FutureExt as _, future::BoxFuture};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::http,
    transport::{Endpoint, Uri},
};
use tower::{BoxError, Service, ServiceExt as _, util::BoxCloneSyncService};

type Way = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// A driver that can be called. Cheap to clone.
#[derive(Clone)]
pub struct Plugin(Way);

impl Plugin {
    /// The driver that listens on this socket, now or later; a broken connection is made anew.
    pub fn at(socket: &Path) -> Self {
        let socket: PathBuf = socket.to_owned();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // the address is required, and the connector goes by the path alone
        let channel = Endpoint::from_static("http://socket").connect_with_connector_lazy(connect);
        Self::of(channel)
    }

    /// The services of a driver in this process, as `tonic::service::Routes`, or what stands before them.
    pub fn of<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        let told = |error: S::Error| {
            Status::try_from_error(error.into())
                .unwrap_or_else(|other| Status::unavailable(other.to_string()))
        };
        Self(BoxCloneSyncService::new(service.map_err(told)))
    }

    /// Its controller service.
    pub fn controller(&self) -> ControllerClient<Way> {
        ControllerClient::new(self.0.clone())
    }

    /// Its node service.
    pub fn node(&self) -> NodeClient<Way> {
        NodeClient::new(self.0.clone())
    }
}

/// Makes a call with this deadline, which the driver is told, and at which its answer is not awaited any longer.
pub(crate) fn within<Q, A: 'static, W>(
    deadline: Duration,
    question: Q,
    call: impl FnOnce(Request<Q>) -> W,
) -> BoxFuture<'static, Result<A, Status>>
where
    W: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    let mut request = Request::new(question);
    request.set_timeout(deadline);
    let answer = tokio::time::timeout(deadline, call(request));
    let answer = answer.map(|answer| match answer {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    });
    answer.boxed()
}
