//! The client for a cluster, with an eye on its answers: each request is a line of the log with `--debug`, and a right
//! that is refused is told, as is one that the answer to a question about it denies.
//!
//! Neither bodies nor headers nor queries are in any line: names of objects are all that a path has.

use std::sync::Arc;

use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::{Client, client::Body};
use tokio::time::Instant;
use tonic::codegen::http::{Request, Response, StatusCode};
use tower::BoxError;

use super::rights::Grant;

/// A refusal of an API server is no longer, nor is its answer to a question about a right.
const LONGEST_REFUSAL: usize = 64 << 10;
const QUESTIONS: &str = "/selfsubjectaccessreviews";

/// Hears of a right that was refused.
pub type Tell = Arc<dyn Fn(&'static Grant) + Send + Sync>;

/// The same client, observed; `cluster` is its name in the log.
pub fn client(client: Client, cluster: &'static str, tell: Tell) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| -> BoxFuture<'static, _> {
        let (client, tell) = (client.clone(), tell.clone());
        Box::pin(send(client, cluster, tell, request))
    });
    Client::new(service, namespace)
}

async fn send(
    client: Client,
    cluster: &'static str,
    tell: Tell,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let begun = Instant::now();
    let (verb, path) = (request.method().clone(), request.uri().path().to_owned());
    let answer = client.send(request).await;
    let ms = begun.elapsed().as_millis();
    match &answer {
        Ok(answer) => {
            tracing::debug!(%verb, path, status = answer.status().as_u16(), ms, "request to {cluster}");
        }
        Err(error) => {
            tracing::debug!(%verb, path, %error, ms, "request to {cluster}");
        }
    }
    let answer = answer?;
    let read = match answer.status() {
        StatusCode::FORBIDDEN => refused,
        status if status.is_success() && path.ends_with(QUESTIONS) => denied,
        _ => return Ok(answer),
    };
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST_REFUSAL).collect().await?.to_bytes();
    if let Some(grant) = read(&body) {
        tell(grant);
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

fn refused(body: &[u8]) -> Option<&'static Grant> {
    let status: kube::core::Status = serde_json::from_slice(body).ok()?;
    Grant::refused_by(&status.message)
}

/// Whoever asks before a request makes none without the right.
fn denied(body: &[u8]) -> Option<&'static Grant> {
    let review: SelfSubjectAccessReview = serde_json::from_slice(body).ok()?;
    let asked = review.spec.resource_attributes.filter(|_| review.status.is_some_and(|it| !it.allowed))?;
    Grant::asked_about(&asked)
}
