//! The HTTP side: reviews in, answers out.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use futures::FutureExt as _;
use kube::api::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use tokio::sync::Semaphore;

use crate::body::{Budget, Complete};
use crate::limits::Outline;
use crate::review::{self, Write, cut};
use crate::reviewer::{Reviewer, Unseen};

/// So many reviews are parsed and decided at once; the others wait. A review in memory is many times its body.
const REVIEWS_AT_ONCE: usize = 16;

#[derive(Clone, Copy)]
enum Role {
    Validator,
    Mutator,
}

struct Server {
    reviewer: Reviewer,
    bodies: Budget,
    at_once: Semaphore,
}

/// The routes of the webhook.
pub(crate) fn router(reviewer: Reviewer) -> Router {
    let server =
        Arc::new(Server { reviewer, bodies: Budget::new(), at_once: Semaphore::new(REVIEWS_AT_ONCE) });
    let route = |role: Role| {
        post(move |State(server): State<Arc<Server>>, headers: HeaderMap, body: Body| async move {
            let body = match server.bodies.read(&headers, body).await {
                Ok(body) => body,
                Err(refusal) => return refusal.into_response(),
            };
            answer(&server, role, body).await
        })
    };
    Router::new()
        .route("/v1/webhook/validation", route(Role::Validator))
        .route("/v1/webhook/mutation", route(Role::Mutator))
        .with_state(server)
}

async fn answer(Server { reviewer, at_once, .. }: &Server, role: Role, body: Complete<'_>) -> Response {
    let outline = match Outline::read(&body.bytes) {
        Ok(outline) => outline,
        Err(error) => return no_review(&format!("the body is no AdmissionReview: {error}")),
    };
    if let Some(refusal) = outline.refusal(reviewer.policy()) {
        return send(refusal, &cut(outline.user()));
    }
    // taken when the body is complete: a slow sender must not hold up the others
    let turns = outline.turns().min(REVIEWS_AT_ONCE);
    let turns = at_once.acquire_many(u32::try_from(turns).expect("at most sixteen"));
    let _turns = turns.await.expect("nothing closes this semaphore");
    let request = match review::read(&body.bytes) {
        Ok(request) => request,
        Err(why) => return no_review(&why),
    };
    drop(body);
    let response = AdmissionResponse::from(&request);
    let user = cut(request.user_info.username.as_deref().unwrap_or_default()).into_owned();
    // a bug in a rule must not take the connection, and with it other reviews, down
    match AssertUnwindSafe(decide(reviewer, role, request, response)).catch_unwind().await {
        Ok(Ok(response)) => send(response, &user),
        // the configuration's failurePolicy decides the write: the validator's denies, the mutator's admits
        Ok(Err(Failure::Unseen(error))) => {
            let error = error.to_string();
            let error = cut(&error);
            tracing::warn!(%error, "could not decide");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot decide now: {error}")).into_response()
        }
        Ok(Err(Failure::NoReview(why))) => no_review(&why),
        Err(_) => {
            tracing::error!(user, "a rule panicked");
            (StatusCode::INTERNAL_SERVER_ERROR, "a rule of the webhook has a bug").into_response()
        }
    }
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
    Json(review::to_json(response)).into_response()
}

fn no_review(why: &str) -> Response {
    let why = &*cut(why);
    tracing::warn!(%why, "refused a request that is no review");
    let mut response = AdmissionResponse::invalid(why);
    response.result.code = 400;
    (StatusCode::BAD_REQUEST, Json(review::to_json(response))).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::http::Request;
    use kube::Client;
    use program::TaskGroup;
    use serde_json::json;
    use tokio::sync::Semaphore;
    use tower::ServiceExt as _;

    use super::*;
    use crate::Policy;
    use crate::review::GROUP;

    /// An API server without objects that answers a read of `what` only with a permit, and counts those reads.
    fn client(what: &'static str, asked: Arc<AtomicUsize>, permits: Arc<Semaphore>) -> Client {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (asked, permits) = (asked.clone(), permits.clone());
            async move {
                let uri = request.uri().to_string();
                if uri.contains("watch=") {
                    std::future::pending::<()>().await;
                }
                if uri.contains(what) {
                    asked.fetch_add(1, Ordering::SeqCst);
                    permits.acquire().await.expect("nothing closes it").forget();
                }
                let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(list.to_string())))
            }
        });
        Client::new(service, "default")
    }

    /// A review of a new pool by `user`. The mutator reads its network, the validator lists the other pools.
    fn review_by(user: &str, role: &str) -> Request<Body> {
        let name = |key: &str, value: &str| json!({"group": GROUP, "version": "v1beta1", key: value});
        let spec = json!({"ranges": [{"subnet": "192.0.2.0/24"}], "selector": {"network": "team-a/vlan1"}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "CREATE", "name": "edge", "userInfo": {"username": user},
            "kind": name("kind", "IPPool"), "resource": name("resource", "ippools"),
            "object": {"metadata": {"name": "edge"}, "spec": spec}}});
        let request = Request::post(format!("/v1/webhook/{role}")).body(Body::from(review.to_string()));
        request.expect("a request")
    }

    fn review() -> Request<Body> {
        review_by("alice", "mutation")
    }

    /// Lets every task go as far as it can.
    async fn rest() {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn sixteen_reviews_are_decided_at_once_and_the_others_wait() {
        let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let policy = Policy { status_writer: "writer".to_owned() };
        let tasks = TaskGroup::new();
        let reviewer = Reviewer::start(
            &tasks,
            client("/network-attachment-definitions/", asked.clone(), permits.clone()),
            policy,
        )
        .await;
        let router = router(reviewer);
        let reviews: Vec<_> = (0..40).map(|_| tokio::spawn(router.clone().oneshot(review()))).collect();
        for begun in [16, 17, 26, 40] {
            permits.add_permits(begun - 16 - (asked.load(Ordering::SeqCst).saturating_sub(16)));
            rest().await;
            assert_eq!(asked.load(Ordering::SeqCst), begun);
        }
        permits.add_permits(16);
        for review in reviews {
            assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
        }
    }

    #[tokio::test]
    async fn a_review_that_is_given_up_lets_the_next_one_in() {
        let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let policy = Policy { status_writer: "writer".to_owned() };
        let tasks = TaskGroup::new();
        let reviewer = Reviewer::start(
            &tasks,
            client("/network-attachment-definitions/", asked.clone(), permits),
            policy,
        )
        .await;
        let router = router(reviewer);
        let given_up: Vec<_> = (0..16).map(|_| tokio::spawn(router.clone().oneshot(review()))).collect();
        rest().await;
        given_up.iter().for_each(tokio::task::JoinHandle::abort);
        let next = tokio::spawn(router.oneshot(review()));
        rest().await;
        assert_eq!(asked.load(Ordering::SeqCst), 17);
        next.abort();
    }

    #[tokio::test]
    async fn one_list_of_pools_serves_every_review_that_waits_for_it() {
        let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let policy = Policy { status_writer: "writer".to_owned() };
        let tasks = TaskGroup::new();
        let api_server = client("/ippools", asked.clone(), permits.clone());
        let router = router(Reviewer::start(&tasks, api_server, policy).await);
        let start = |count: usize| -> Vec<_> {
            (0..count)
                .map(|_| tokio::spawn(router.clone().oneshot(review_by("alice", "validation"))))
                .collect()
        };
        let reviews = start(16);
        rest().await;
        assert_eq!(asked.load(Ordering::SeqCst), 2, "the others wait for the next list");
        permits.add_permits(1);
        rest().await;
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        permits.add_permits(2);
        for review in reviews {
            assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
        }

        // a list that began before a review came is too old for it, and one that nobody waits for is not made
        let first = start(2);
        rest().await;
        start(14).iter().for_each(tokio::task::JoinHandle::abort);
        let late = start(1);
        rest().await;
        assert_eq!(asked.load(Ordering::SeqCst), 5);
        permits.add_permits(3);
        for review in first.into_iter().chain(late) {
            assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 6);
    }

    #[tokio::test]
    async fn long_texts_of_strangers_are_neither_logged_nor_answered() {
        let policy = Policy { status_writer: "writer".to_owned() };
        let tasks = TaskGroup::new();
        let api_server = client("/ippools", Arc::default(), Arc::new(Semaphore::new(100)));
        let router = router(Reviewer::start(&tasks, api_server, policy).await);
        let long = "x".repeat(1_000_000);
        let review = |change: &serde_json::Value| {
            let mut review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u1", "operation": "CREATE", "name": "edge", "userInfo": {"username": "alice"},
                "kind": {"group": GROUP, "version": "v1beta1", "kind": "LoadBalancer"},
                "object": {"spec": {"listeners": []}}}});
            json_patch::merge(&mut review, change);
            review
        };
        for review in [
            review(&json!({"request": {"namespace": long, "name": long, "userInfo": {"username": long}}})),
            review(
                &json!({"request": {"name": long, "object": {"spec": {"listeners": vec![json!({}); 101]}}}}),
            ),
            review(&json!({"request": {"namespace": long, "object": {"spec": {"workloadType": "cluster"}}}})),
            review(&json!({"request": {"object": {"spec": {"ipam": long}}}})),
            review(&json!({"request": {"operation": long}})),
            review(&json!({"kind": long})),
        ] {
            for role in ["validation", "mutation"] {
                let request =
                    Request::post(format!("/v1/webhook/{role}")).body(Body::from(review.to_string()));
                let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
                let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
                assert!(body.len() < 3_000, "{} bytes", body.len());
            }
        }
    }
}
