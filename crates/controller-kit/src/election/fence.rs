//! Writes stop when the Lease is stale.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use tokio::time::Instant;
use tower::BoxError;

/// The right to write: it lasts for the renew deadline after the start of the last renewal that succeeded.
#[derive(Clone, Debug)]
pub struct Leadership {
    renew_deadline: Duration,
    until: Arc<Mutex<Option<Instant>>>,
}

/// The error of a write that came too late.
#[derive(Debug, thiserror::Error)]
#[error("not written: the Lease is not ours any more, or was not renewed in time")]
struct NotLeading;

impl Leadership {
    pub(super) fn new(renew_deadline: Duration) -> Self {
        Self { renew_deadline, until: Arc::default() }
    }

    /// Whether a write may start now.
    pub(super) fn is_current(&self) -> bool {
        self.deadline().is_some()
    }

    /// When the right ends unless it is renewed; `None`: there is none now.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = *self.until.lock().expect("no panic while the deadline is locked");
        until.filter(|until| Instant::now() < *until)
    }

    /// For how long the last renewal is older than the Lease lasts; `None` while the Lease lasts or where there is
    /// none.
    pub(super) fn overdue(&self, lease: Duration) -> Option<Duration> {
        let until = (*self.until.lock().expect("no panic while the deadline is locked"))?;
        let renewed = until.checked_sub(self.renew_deadline)?;
        Instant::now().checked_duration_since(renewed + lease)
    }

    pub(super) fn renewed(&self, started: Instant) {
        *self.until.lock().expect("no panic while the deadline is locked") =
            Some(started + self.renew_deadline);
    }

    pub(super) fn end(&self) {
        *self.until.lock().expect("no panic while the deadline is locked") = None;
    }

    /// `client`, but refusing every request that could change something while the right to write is not there.
    pub fn client(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(Fence { inner: client, leadership: self.clone() }, namespace)
    }
}

#[derive(Clone)]
struct Fence {
    inner: Client,
    leadership: Leadership,
}

impl tower::Service<Request<Body>> for Fence {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        // an access review is a question, although it is sent by POST
        let reads = reads || request.uri().path().starts_with("/apis/authorization.k8s.io/");
        if !reads && !self.leadership.is_current() {
            return async { Err(NotLeading.into()) }.boxed();
        }
        let client = self.inner.clone();
        async move { client.send(request).await }.map_err(Into::into).boxed()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, api::PostParams};
    use sim_apiserver::ApiServer;

    use super::*;

    // with a clock that stands still two looks at it are one
    #[tokio::test]
    async fn nothing_is_written_before_the_lease_is_had_and_after_it_ended_on_a_clock_that_runs() {
        let server = ApiServer::builder().build();
        let leadership = Leadership::new(Duration::from_secs(3600));
        let fenced = leadership.client(server.client("admin"));
        let write = async |name: &str| {
            let mut config = ConfigMap::default();
            config.metadata.name = Some(name.to_owned());
            let api = Api::<ConfigMap>::namespaced(fenced.clone(), "kube-system");
            let written = api.create(&PostParams::default(), &config).await;
            written.map(drop).map_err(|error| crate::error_message(&error))
        };
        let refused = Err(crate::error_message(&kube::Error::Service(NotLeading.into())));
        assert_eq!((leadership.is_current(), write("before").await), (false, refused.clone()));
        leadership.renewed(Instant::now());
        assert_eq!((leadership.is_current(), write("meanwhile").await), (true, Ok(())));
        leadership.end();
        assert_eq!((leadership.is_current(), write("after").await), (false, refused));
    }
}
