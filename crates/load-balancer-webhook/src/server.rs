//! The HTTP side: reviews in, answers out.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use futures::FutureExt as _;
use serde_json::Value;

use super::judge::Judge;
use crate::review::{Answer, Request};

/// A review holds an object twice, each at most what etcd takes (1.5 MiB), with room for the rest.
const LARGEST_REVIEW: usize = 8 << 20;

#[derive(Clone, Copy)]
enum Role {
    Validator,
    Mutator,
}

/// The routes of the webhook.
pub(super) fn router(judge: Arc<Judge>) -> Router {
    let route = |role: Role| {
        post(
            move |State(judge): State<Arc<Judge>>, body: Bytes| async move { answer(&judge, role, &body).await },
        )
    };
    Router::new()
        .route("/v1/webhook/validation", route(Role::Validator))
        .route("/v1/webhook/mutation", route(Role::Mutator))
        .layer(DefaultBodyLimit::max(LARGEST_REVIEW))
        .with_state(judge)
}

async fn answer(judge: &Judge, role: Role, body: &[u8]) -> Response {
    let review: Value = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not JSON: {error}")).into_response(),
    };
    let request = match Request::of_review(&review) {
        Ok(request) => request,
        Err(why) => {
            tracing::warn!(%why, "refused a review that is none");
            return (StatusCode::BAD_REQUEST, Json(Answer::Deny(400, why).into_review(&review)))
                .into_response();
        }
    };
    let judging = async {
        match role {
            Role::Validator => judge.validate(&request).await,
            Role::Mutator => judge.mutate(&request).await,
        }
    };
    // a bug in a rule must not take the connection, and with it other reviews, down
    match AssertUnwindSafe(judging).catch_unwind().await {
        Ok(Ok(answer)) => {
            if let Answer::Deny(code, message) = &answer {
                tracing::info!(user = request.user, code, message, "denied");
            }
            Json(answer.into_review(&review)).into_response()
        }
        // the configuration's failurePolicy says what that means: the validator's denies, the mutator's lets pass
        Ok(Err(error)) => {
            tracing::warn!(%error, "could not judge");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot judge now: {error}")).into_response()
        }
        Err(_) => {
            tracing::error!(object = %request.object, "a rule panicked");
            (StatusCode::INTERNAL_SERVER_ERROR, "a rule of the webhook has a bug").into_response()
        }
    }
}
