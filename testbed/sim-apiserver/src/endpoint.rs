//! HTTP services inside this process: webhooks and aggregated APIs that need no socket.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tower::{Service, ServiceExt};

/// A service that answers requests in this process: an `axum::Router`, or any other `tower::Service` that never fails.
#[derive(Clone)]
pub struct Endpoint(Arc<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>);

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Endpoint")
    }
}

impl<S> From<S> for Endpoint
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    fn from(service: S) -> Self {
        Self(Arc::new(move |request| {
            let answer = service.clone().oneshot(request);
            async move {
                match answer.await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            .boxed()
        }))
    }
}

impl Endpoint {
    pub(crate) async fn call(&self, request: Request<Body>) -> Response<Body> {
        (self.0)(request).await
    }
}
