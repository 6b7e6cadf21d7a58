//! The HTTP side: reviews in, answers out.

use std::net::{Ipv6Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures::FutureExt as _;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use program::serving::PeerAddress;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::body::{Budget, Complete, LARGEST, LARGEST_LIST};
use crate::conversion;
use crate::limits::{LONGEST_REPEATED, Outline, Weight};
use crate::peers::{Peer, Peers, TURNS};
use crate::registration::TIMEOUT;
use crate::review::{self, Write, cut};
use crate::reviewer::{Reviewer, Unseen};

/// So many heavy reviews are decided at once, beside the others. Each takes memory for up to ten ordinary ones; a second
/// one finds a turn where the first of another peer is stuck.
const HEAVY_AT_ONCE: usize = 2;
/// How long a review may take, from its head to its decision: an API server that gives up does not learn why.
const REVIEW_WITHIN: Duration = TIMEOUT.saturating_sub(Duration::from_secs(1));

#[derive(Clone, Copy)]
enum Role {
    Validator,
    Mutator,
}

pub(crate) struct Server {
    pub(crate) reviewer: Reviewer,
    bodies: Budget,
    turns: Semaphore,
    /// The turns of heavy reviews.
    heavy: Semaphore,
    peers: Peers,
}

/// The routes of the webhook.
pub(crate) fn router(reviewer: Reviewer) -> Router {
    let (bodies, peers) = (Budget::new(), Peers::default());
    let (turns, heavy) = (Semaphore::new(TURNS), Semaphore::new(HEAVY_AT_ONCE));
    let server = Arc::new(Server { reviewer, bodies, turns, heavy, peers });
    // without a role it is a review of conversion
    let route = |role: Option<Role>| {
        let largest = if role.is_some() { LARGEST } else { LARGEST_LIST };
        post(
            move |State(server): State<Arc<Server>>,
                  connection: Option<Extension<ConnectInfo<SocketAddr>>>,
                  headers: HeaderMap,
                  body: Body| async move {
                let until = Instant::now() + REVIEW_WITHIN;
                let peer = server.peers.at(peer_address(connection));
                let Complete { bytes, memory } =
                    match server.bodies.read(&peer, &headers, body, largest).await {
                        Ok(complete) => complete,
                        Err(refusal) => return refusal.into_response(),
                    };
                let answer = match role {
                    Some(role) => answer(&server, role, &peer, bytes, until).await,
                    None => conversion::converted(&server, &peer, bytes, until).await,
                };
                memory.kept_by(answer, peer).await
            },
        )
    };
    Router::new()
        .route("/v1/webhook/validation", route(Some(Role::Validator)))
        .route("/v1/webhook/mutation", route(Some(Role::Mutator)))
        .route("/v1/webhook/conversion", route(None))
        .with_state(server)
}

/// The peer that sends a request. Without socket, inside of one process, all requests come from one.
fn peer_address(connection: Option<Extension<ConnectInfo<SocketAddr>>>) -> PeerAddress {
    let address =
        connection.map_or(Ipv6Addr::UNSPECIFIED.into(), |Extension(ConnectInfo(address))| address.ip());
    address.into()
}

async fn answer(server: &Server, role: Role, peer: &Peer, body: Vec<u8>, until: Instant) -> Response {
    let reviewer = &server.reviewer;
    let outline = match Outline::read(&body) {
        Ok(outline) => outline,
        Err(error) => return no_review(&format!("the body is no AdmissionReview: {error}")),
    };
    if let Some(text) = outline.too_long() {
        return no_review(&format!(
            "the AdmissionReview has more than {LONGEST_REPEATED} bytes in its {text}"
        ));
    }
    if let Some(refusal) = outline.refusal(reviewer.policy()) {
        return send(refusal, &cut(outline.user()));
    }
    // taken when the body is complete: a slow peer must not hold up the others
    let Ok(_turns) = timeout_at(until, turns(server, peer, outline.weight())).await else {
        tracing::warn!(peer = %peer.address, "a review waited too long for its turn");
        let why = "too many reviews are waiting, of this peer or of all: try again";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let request = match review::read(&body) {
        Ok(request) => request,
        Err(why) => return no_review(&why),
    };
    drop(body);
    let response = AdmissionResponse::from(&request);
    let user = cut(request.user_info.username.as_deref().unwrap_or_default());
    // a bug in a rule must not take the connection, and with it other reviews, down
    let decision = AssertUnwindSafe(decide(reviewer, role, request, response)).catch_unwind();
    match timeout_at(until, decision).await {
        Ok(Ok(Ok(response))) => send(response, &user),
        // the configuration's failurePolicy decides the write: the validator's denies, the mutator's admits
        Ok(Ok(Err(Failure::Unseen(error)))) => cannot_decide(&error.to_string()),
        Ok(Ok(Err(Failure::NoReview(why)))) => no_review(&why),
        Ok(Err(_)) => {
            tracing::error!(user, "a rule panicked");
            (StatusCode::INTERNAL_SERVER_ERROR, "a rule of the webhook has a bug").into_response()
        }
        Err(_) => cannot_decide("the API server has not answered in time what the rules need"),
    }
}

/// Waits for the turns of a review: in the line of its peer, then in that of all. Heavy ones have lines of their own,
/// where they hold up no others.
pub(crate) async fn turns<'a>(
    server: &'a Server,
    peer: &'a Peer,
    weight: Weight,
) -> [SemaphorePermit<'a>; 2] {
    let (count, of_peer, of_all) = match weight {
        Weight::Turns(count) => (count, &peer.turns, &server.turns),
        Weight::Heavy => (1, &peer.heavy, &server.heavy),
    };
    let take =
        async |line: &'a Semaphore| line.acquire_many(count).await.expect("nothing closes this semaphore");
    [take(of_peer).await, take(of_all).await]
}

pub(crate) fn cannot_decide(why: &str) -> Response {
    let error = cut(why);
    tracing::warn!(%error, "could not decide");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot decide now: {error}")).into_response()
}

enum Failure {
    Unseen(Unseen),
    NoReview(String),
}

async fn decide(
    reviewer: &Reviewer,
    role: Role,
    request: AdmissionRequest<DynamicObject>,
    response: AdmissionResponse,
) -> Result<AdmissionResponse, Failure> {
    let Some(write) = Write::of(request).map_err(Failure::NoReview)? else { return Ok(response) };
    match role {
        Role::Validator => {
            let denial = reviewer.validate(&write).await.map_err(Failure::Unseen)?;
            Ok(match denial {
                Some((reason, message)) => review::deny(response, reason, message),
                None => response,
            })
        }
        Role::Mutator => match reviewer.mutate(&write).await.map_err(Failure::Unseen)? {
            Ok(operations) if operations.is_empty() => Ok(response),
            Ok(operations) => {
                Ok(response.with_patch(json_patch::Patch(operations)).expect("a patch always becomes JSON"))
            }
            Err((reason, message)) => Ok(review::deny(response, reason, message)),
        },
    }
}

fn send(response: AdmissionResponse, user: &str) -> Response {
    if !response.allowed {
        tracing::info!(user, code = response.result.code, message = response.result.message, "denied");
    }
    crate::metrics::decided(response.allowed, Json(review::to_json(response)))
}

fn no_review(why: &str) -> Response {
    let why = &*cut(why);
    tracing::warn!(%why, "refused a request that is no review");
    let mut response = AdmissionResponse::invalid(why);
    response.result.code = 400;
    (StatusCode::BAD_REQUEST, Json(review::to_json(response))).into_response()
}

#[cfg(test)]
mod tests;
