//! Where the API server finds the admission webhook: a place in this process, at which one life of it after another
//! answers, or nobody.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Request, StatusCode};
use tower::ServiceExt as _;

use crate::process::{Process, Turn};

/// Clones are the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door(Arc<Mutex<Option<(Process, Router)>>>);

impl Door {
    /// `router` answers from now on, as long as `process` lives.
    pub(crate) fn open(&self, process: Process, router: Router) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((process, router));
    }

    /// Answers a review, or as a Service without endpoints does.
    pub(crate) async fn knock(self, request: Request<Body>) -> Result<Response, Infallible> {
        let nobody = || StatusCode::SERVICE_UNAVAILABLE.into_response();
        let inside = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((process, router)) = inside.filter(|(process, _)| !process.is_dead()) else {
            return Ok(nobody());
        };
        // a review counts as a write: the webhook writes too little to die of that
        let turn = process.meet(request.method(), request.uri().path());
        let answer = async {
            process.goes_on().await;
            router.oneshot(request).await
        };
        let answer = process.run_until_dead(answer).await.unwrap_or_else(|| Ok(nobody()));
        if turn == Some(Turn::DieAfter) {
            process.die();
        }
        answer
    }
}
