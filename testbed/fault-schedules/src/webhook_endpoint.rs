//! The endpoint at which the API server calls the admission webhook. The webhook's current process answers there; while
//! there is none, the calls fail.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Request, StatusCode};
use tower::ServiceExt as _;

use crate::process::{Interruption, Process};

/// Clones are the same endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct WebhookEndpoint(Arc<Mutex<Option<(Process, Router)>>>);

impl WebhookEndpoint {
    /// `router` answers from now on, as long as `process` lives.
    pub(crate) fn serve(&self, process: Process, router: Router) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((process, router));
    }

    /// Answers a review; without a living process, as a Service without endpoints does.
    pub(crate) async fn answer(self, request: Request<Body>) -> Result<Response, Infallible> {
        let nobody = || StatusCode::SERVICE_UNAVAILABLE.into_response();
        let inside = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((process, router)) = inside.filter(|(process, _)| !process.is_dead()) else {
            return Ok(nobody());
        };
        // a review counts as a write: the webhook's own writes are too few for a crash
        let interruption = process.interrupt(request.method(), request.uri().path());
        let answer = async {
            process.goes_on().await;
            router.oneshot(request).await
        };
        let answer = process.run_until_dead(answer).await.unwrap_or_else(|| Ok(nobody()));
        if interruption == Some(Interruption::DieAfter) {
            process.die();
        }
        answer
    }
}
