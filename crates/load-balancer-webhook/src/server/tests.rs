//! Who waits for whom, and what a peer gets from the webhook.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::Request;
use futures::channel::mpsc::unbounded;
use kube::Client;
use program::TaskGroup;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tower::ServiceExt as _;

use super::*;
use crate::review::GROUP;
use crate::{Metrics, Policy};

/// An API server without objects but Namespaces that answers a read of `what` only with a permit, and counts those reads.
fn client(what: &'static str, asked: Arc<AtomicUsize>, permits: Arc<Semaphore>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (asked, permits) = (asked.clone(), permits.clone());
        async move {
            let uri = request.uri().to_string();
            let kind = if uri.contains("/namespaces/") { "Namespace" } else { "List" };
            if uri.contains("watch=") {
                std::future::pending::<()>().await;
            }
            if uri.contains(what) {
                asked.fetch_add(1, Ordering::SeqCst);
                permits.acquire().await.expect("nothing closes it").forget();
            }
            let list =
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"}, "items": []});
            Ok::<_, std::convert::Infallible>(Response::new(Body::from(list.to_string())))
        }
    });
    Client::new(service, "default")
}

/// A review of a new pool by `user`. The mutator reads its network, the validator lists the other pools.
fn review(user: &str) -> serde_json::Value {
    let name = |key: &str, value: &str| json!({"group": GROUP, "version": "v1beta1", key: value});
    let spec = json!({"ranges": [{"subnet": "192.0.2.0/24"}], "selector": {"network": "team-a/vlan1"}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": "CREATE", "name": "edge", "userInfo": {"username": user},
        "kind": name("kind", "IPPool"), "resource": name("resource", "ippools"),
        "object": {"metadata": {"name": "edge"}, "spec": spec}}})
}

fn request(review: &serde_json::Value, role: &str) -> Request<Body> {
    let request = Request::post(format!("/v1/webhook/{role}")).body(Body::from(review.to_string()));
    request.expect("a request")
}

fn review_by(user: &str, role: &str) -> Request<Body> {
    request(&review(user), role)
}

/// A review that the peer with this number sends.
fn review_from(peer: u8) -> Request<Body> {
    from(peer, review_by("alice", "mutation"))
}

/// Such a review with nearly as many values as any may have.
fn heavy_from(peer: u8) -> Request<Body> {
    let mut review = review("alice");
    review["request"]["oldObject"] = json!({"status": vec![0; 190_000]});
    from(peer, request(&review, "mutation"))
}

fn from(peer: u8, mut request: Request<Body>) -> Request<Body> {
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, peer], 40_000))));
    request
}

/// Numbers of four peers, in turn.
fn peers(count: usize) -> impl Iterator<Item = u8> {
    (1..=4).cycle().take(count)
}

async fn text(answer: Response) -> String {
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The webhook before such an API server.
async fn router_before(
    what: &'static str,
    asked: &Arc<AtomicUsize>,
    permits: &Arc<Semaphore>,
) -> (Router, TaskGroup) {
    let policy = Policy { status_writer: "writer".to_owned(), ..Policy::default() };
    let tasks = TaskGroup::new();
    let reviewer = Reviewer::start(&tasks, client(what, asked.clone(), permits.clone()), policy).await;
    (router(reviewer), tasks)
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
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let reviews: Vec<_> =
        peers(40).map(|peer| tokio::spawn(router.clone().oneshot(review_from(peer)))).collect();
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
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let given_up: Vec<_> =
        peers(16).map(|peer| tokio::spawn(router.clone().oneshot(review_from(peer)))).collect();
    rest().await;
    given_up.iter().for_each(tokio::task::JoinHandle::abort);
    let next = tokio::spawn(router.oneshot(review_from(1)));
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 17);
    next.abort();
}

#[tokio::test]
async fn one_peer_takes_a_quarter_of_the_turns_and_its_other_reviews_wait_in_a_line_of_their_own() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let start = |peer| tokio::spawn(router.clone().oneshot(review_from(peer)));
    let of_one: Vec<_> = (0..40).map(|_| start(66)).collect();
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    // as many as konnectivity sends from one address
    let api_servers: Vec<_> = (0..40).map(|_| start(1)).collect();
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 8);
    permits.add_permits(80);
    for review in of_one.into_iter().chain(api_servers) {
        assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn heavy_reviews_wait_for_each_other_and_keep_no_turn_from_ordinary_ones() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let heavy = |peer| tokio::spawn(router.clone().oneshot(heavy_from(peer)));
    let mut reviews = vec![heavy(1), heavy(1), heavy(2), heavy(3)];
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "two of two peers are decided at once");
    reviews.push(tokio::spawn(router.clone().oneshot(review_from(4))));
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 3, "the turns of the others are free");
    permits.add_permits(5);
    for review in reviews {
        assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_heavy_review_that_waits_for_others_holds_up_no_ordinary_one_of_its_peer() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let start = |request| tokio::spawn(router.clone().oneshot(request));
    let mut reviews = vec![start(heavy_from(2)), start(heavy_from(3))];
    rest().await;
    reviews.extend([start(heavy_from(1)), start(heavy_from(1))]);
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "those of two other peers are stuck");
    reviews.extend((0..4).map(|_| start(review_from(1))));
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 6, "all turns of the peer are free for its ordinary reviews");
    permits.add_permits(8);
    for review in reviews {
        assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn peers_are_told_apart_by_the_address_of_their_connection() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    program::serving::http_on(&tasks, listener, router);
    let body = review_by("alice", "mutation").into_body();
    let body = String::from_utf8(axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap();
    let head = format!("POST /v1/webhook/mutation HTTP/1.1\r\nHost: a\r\nContent-Length: {}", body.len());
    let mut connections = Vec::new();
    for last in [2, 2, 2, 2, 2, 1, 1, 1, 1] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        let mut connection = socket.connect(address).await.unwrap();
        connection.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        connections.push(connection);
    }
    let eight = async {
        while asked.load(Ordering::SeqCst) < 8 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), eight).await.expect("four of each are decided");
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 8);
    tasks.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_review_is_answered_before_the_api_server_gives_up_and_a_slow_body_holds_no_turn() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let slow = || {
        let (sender, parts) = unbounded::<Result<Vec<u8>, std::convert::Infallible>>();
        let request = review_from(1).map(|_| Body::from_stream(parts));
        (sender, tokio::spawn(router.clone().oneshot(request)))
    };
    let (sender, waiting) = slow();
    let others: Vec<_> = (0..4).map(|_| slow()).collect();
    rest().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    let decided: Vec<_> = (0..4).map(|_| tokio::spawn(router.clone().oneshot(review_from(1)))).collect();
    rest().await;
    assert_eq!(asked.load(Ordering::SeqCst), 4, "slow bodies hold no turn");
    let start = Instant::now();
    let body = axum::body::to_bytes(review_from(1).into_body(), usize::MAX).await.unwrap();
    sender.unbounded_send(Ok(body.to_vec())).unwrap();
    drop(sender);

    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let answer = text(answer).await;
    assert!(answer.contains("too many reviews are waiting"), "{answer}");
    for review in decided {
        let answer = review.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let answer = text(answer).await;
        assert!(answer.contains("the API server has not answered in time"), "{answer}");
    }
    assert!(start.elapsed() < TIMEOUT);
    assert_eq!(asked.load(Ordering::SeqCst), 4);
    drop(others);
}

#[tokio::test(start_paused = true)]
async fn large_answers_that_a_peer_does_not_take_keep_its_part_of_the_memory_for_five_seconds() {
    let (router, _tasks) = router_before("/ippools", &Arc::default(), &Arc::new(Semaphore::new(0))).await;
    // the mutator gives the status back whole
    let mut wipe = review("alice");
    wipe["request"]["operation"] = "UPDATE".into();
    wipe["request"]["oldObject"] = wipe["request"]["object"].clone();
    wipe["request"]["oldObject"]["status"] = json!({"note": "x".repeat(100_000)});
    let start = || tokio::spawn(router.clone().oneshot(from(1, request(&wipe, "mutation"))));
    let mut untaken = Vec::new();
    for _ in 0..4 {
        untaken.push(start().await.unwrap().unwrap());
    }
    let (fifth, sixth) = (start(), start());
    rest().await;
    assert!(!fifth.is_finished() && !sixth.is_finished(), "four answers keep the part of the peer");
    let taken = text(untaken.pop().unwrap()).await;
    assert!(taken.len() > 130_000 && serde_json::from_str::<serde_json::Value>(&taken).is_ok());
    untaken.push(fifth.await.unwrap().unwrap());
    rest().await;
    assert!(!sixth.is_finished());

    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(sixth.await.unwrap().unwrap().status(), StatusCode::OK);
    for answer in untaken {
        assert!(axum::body::to_bytes(answer.into_body(), usize::MAX).await.is_err(), "it is given up");
    }
}

#[tokio::test]
async fn one_list_of_pools_serves_every_review_that_waits_for_it() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/ippools", &asked, &permits).await;
    let start = |count: usize| -> Vec<_> {
        let review = |peer| from(peer, review_by("alice", "validation"));
        peers(count).map(|peer| tokio::spawn(router.clone().oneshot(review(peer)))).collect()
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

#[rstest]
#[case::of_kubernetes(36, StatusCode::OK)]
#[case::longest(256, StatusCode::OK)]
#[case::longer(257, StatusCode::BAD_REQUEST)]
#[tokio::test]
async fn a_uid_that_no_api_server_sends_is_refused(#[case] length: usize, #[case] expected: StatusCode) {
    let (router, _tasks) = router_before("/ippools", &Arc::default(), &Arc::new(Semaphore::new(100))).await;
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u".repeat(length), "operation": "CREATE", "userInfo": {},
        "kind": {"group": GROUP, "version": "v1beta1", "kind": "LoadBalancer"},
        "resource": {"group": GROUP, "version": "v1beta1", "resource": "loadbalancers"},
        "object": {"spec": {"listeners": []}}}});
    let request = Request::post("/v1/webhook/validation").body(Body::from(review.to_string())).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), expected);
    assert_eq!(text(answer).await.contains(&"u".repeat(length)), expected == StatusCode::OK);
}

#[tokio::test]
async fn a_forged_review_of_a_load_balancer_makes_the_webhook_read_one_namespace_at_the_most() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(100)));
    let (router, _tasks) = router_before("/api/v1/namespaces/", &asked, &permits).await;
    for (namespace, role, reads) in [
        ("team-a", "validation", 0),
        ("kube-system/secrets/token", "mutation", 0),
        ("kube-system?watch=true", "mutation", 0),
        ("team-a", "mutation", 1),
    ] {
        let name = |key: &str, value: &str| json!({"group": GROUP, "version": "v1beta1", key: value});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "CREATE", "name": "web", "namespace": namespace, "userInfo": {},
            "kind": name("kind", "LoadBalancer"), "resource": name("resource", "loadbalancers"),
            "object": {"metadata": {"name": "web"}, "spec": {"workloadType": "cluster"}}}});
        let request = Request::post(format!("/v1/webhook/{role}")).body(Body::from(review.to_string()));
        router.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(asked.swap(0, Ordering::SeqCst), reads, "{role} {namespace}");
    }
}

#[tokio::test]
async fn long_texts_of_peers_are_neither_logged_nor_answered() {
    let (router, _tasks) = router_before("/ippools", &Arc::default(), &Arc::new(Semaphore::new(100))).await;
    let long = "x".repeat(1_000_000);
    let review = |change: &serde_json::Value| {
        let mut review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": "CREATE", "name": "edge", "userInfo": {"username": "alice"},
            "kind": {"group": GROUP, "version": "v1beta1", "kind": "LoadBalancer"},
            "resource": {"group": GROUP, "version": "v1beta1", "resource": "loadbalancers"},
            "object": {"spec": {"listeners": []}}}});
        json_patch::merge(&mut review, change);
        review
    };
    for review in [
        review(&json!({"request": {"namespace": long, "name": long, "userInfo": {"username": long}}})),
        review(&json!({"request": {"name": long, "userInfo": {"username": long}}})),
        review(&json!({"request": {"name": long, "object": {"spec": {"listeners": vec![json!({}); 101]}}}})),
        review(&json!({"request": {"namespace": long, "object": {"spec": {"workloadType": "cluster"}}}})),
        review(&json!({"request": {"object": {"spec": {"ipam": long}}}})),
        review(&json!({"request": {"operation": long}})),
        review(&json!({"kind": long})),
        review(&json!({"apiVersion": long})),
        review(&json!({"request": {"uid": long}})),
        review(&json!({"request": {"uid": long, "object": {"spec": {"listeners": vec![json!({}); 101]}}}})),
    ] {
        for role in ["validation", "mutation"] {
            let request = Request::post(format!("/v1/webhook/{role}")).body(Body::from(review.to_string()));
            let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
            let body = text(answer).await;
            assert!(body.len() < 3_000, "{} bytes", body.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn load_balancers_that_name_a_pool_one_after_the_other_cost_one_list_of_pools() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(100)));
    let policy = Policy { enforce_named_pool_scope: true, ..Policy::default() };
    let tasks = TaskGroup::new();
    let reviewer = Reviewer::start(&tasks, client("/ippools", asked.clone(), permits), policy).await;
    let router = router(reviewer);
    let mut review = review("alice");
    review["request"]["kind"]["kind"] = "LoadBalancer".into();
    review["request"]["resource"]["resource"] = "loadbalancers".into();
    review["request"]["namespace"] = "team-a".into();
    review["request"]["object"] = json!({"metadata": {"name": "edge"}, "spec": {"ipPool": "lab"}});
    for _ in 0..10 {
        let answer = router.clone().oneshot(request(&review, "validation")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// The lines of the metric of reviews after reviews of conversion: of the version, and the objects, that each asks for.
async fn counted(reviews: impl IntoIterator<Item = (&'static str, serde_json::Value)>) -> Vec<String> {
    let (router, _tasks) = router_before("/ippools", &Arc::default(), &Arc::new(Semaphore::new(100))).await;
    let metrics = Metrics::default();
    let router = metrics.count(router);
    for (desired, objects) in reviews {
        let review = json!({"request": {"uid": "u", "desiredAPIVersion": desired, "objects": objects}});
        let answer = router.clone().oneshot(request(&review, "conversion")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let of_reviews = |line: &&str| line.starts_with("harvester_load_balancer_webhook_reviews_total{");
    let mut lines: Vec<_> = text.lines().filter(of_reviews).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn line(outcome: &str, count: usize) -> String {
    format!(
        "harvester_load_balancer_webhook_reviews_total{{review=\"conversion\",outcome=\"{outcome}\"}} {count}"
    )
}

const BETA: &str = "loadbalancer.harvesterhci.io/v1beta1";

#[tokio::test]
async fn a_review_of_conversion_that_is_refused_counts_as_failed() {
    let pod = json!([{"apiVersion": "v1", "kind": "Pod"}]);
    let lines = counted([(BETA, json!([])), (BETA, pod), ("none", json!([]))]).await;
    assert_eq!(lines, [line("answered", 1), line("failed", 2)]);
}

// whoever may create a LoadBalancer can have an API server ask for it: no fault of the webhook
#[tokio::test]
async fn a_review_of_conversion_whose_object_is_too_large_counts_as_denied() {
    let annotations: serde_json::Value = (0..200_001).map(|n| (n.to_string(), json!(""))).collect();
    let large = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "LoadBalancer",
        "metadata": {"namespace": "team-a", "name": "web", "annotations": annotations}});
    assert_eq!(counted([(BETA, json!([large]))]).await, [line("denied", 1)]);
}

#[tokio::test]
async fn a_large_review_of_conversion_is_not_read_before_its_turn() {
    let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _tasks) = router_before("/network-attachment-definitions/", &asked, &permits).await;
    let start = |request| tokio::spawn(router.clone().oneshot(request));
    let stuck = [start(heavy_from(2)), start(heavy_from(3))];
    rest().await;
    let zeros = json!({"request": {"uid": "u", "desiredAPIVersion": "none", "objects": vec![0; 200_000]}});
    let conversion = start(from(1, request(&zeros, "conversion")));
    rest().await;
    assert!(!conversion.is_finished(), "the heavy reviews of two other peers are stuck");
    permits.add_permits(2);
    let answer = conversion.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(text(answer).await.contains("200000 objects are asked for"));
    for review in stuck {
        assert_eq!(review.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}
