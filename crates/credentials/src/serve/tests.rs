use axum::body::{Body, Bytes};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloud_config::{CloudConfig, proxy::Environment};
use serde_json::json;
use sim_apiserver::{ApiServer, User};
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use super::*;
use crate::{object, plan};

/// A Harvester with its roles and its VIP, and the API in front of it.
struct Harvester {
    server: ApiServer,
    target: Target,
    router: Router,
}

async fn harvester() -> Harvester {
    // another test may have been quicker
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = ApiServer::builder().namespace("vms").namespace("harvester-system").build();
    let admin = server.client(User::admin());
    for name in [plan::CLOUD_PROVIDER, plan::CSI_DRIVER] {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create"]}]});
        object::create(&admin, &role).await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    let target = Target {
        api_server: format!("https://{address}"),
        ca: STANDARD.encode(server.ca_pem()),
        server: Some(format!("https://{address}")),
        check: true,
        options: Options::named("test"),
    };
    Harvester { server, router: router(target.clone()), target }
}

const QUERY: &str = "/v1/harvester/kubeconfig?namespace=vms&serviceAccountName=demo";

impl Harvester {
    fn bearer(&self, user: &User) -> String {
        format!("Bearer {}", self.server.token(user))
    }

    async fn send(&self, request: http::request::Builder, body: impl Into<Body>) -> (StatusCode, String) {
        let mut request = request.body(body.into()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        let answer = self.router.clone().oneshot(request).await.unwrap();
        assert!(answer.headers()[header::CACHE_CONTROL] == "no-store");
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, user: &User, query: &str) -> (StatusCode, String) {
        self.send(Request::get(query).header("authorization", self.bearer(user)), Body::empty()).await
    }

    /// With these fields besides the two names.
    async fn post(&self, user: &User, more: &str) -> (StatusCode, String) {
        let body = format!(r#"{{"namespace": "vms", "serviceAccountName": "demo"{more}}}"#);
        self.send(Request::post(PATH).header("authorization", self.bearer(user)), body).await
    }

    async fn exists(&self, kind: &str, name: &str) -> bool {
        let like = match kind {
            "ClusterRoleBinding" => {
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}})
            }
            _ => json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "vms"}}),
        };
        object::get(&self.server.client(User::admin()), &like).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn get_and_post_give_the_same_kubeconfig_as_a_json_string() {
    let harvester = harvester().await;
    let admin = User::admin();
    let (status, raw) = harvester.post(&admin, "").await;
    assert_eq!(status, StatusCode::OK, "{raw}");
    let names: Vec<_> = raw.match_indices("name: default").collect();
    assert_eq!(names.len(), 3, "cluster, context and user: {raw}");
    let text: String = serde_json::from_str(&raw).unwrap();
    let config = CloudConfig::parse(&text, "answer", &Environment::default()).unwrap();
    assert_eq!(config.namespace, "vms");
    assert!(!text.contains(&harvester.server.token(&admin)), "the account's token, not the caller's");
    // the driver needs it too
    assert!(harvester.exists("ClusterRoleBinding", "vms-demo").await);
    assert_eq!(harvester.get(&admin, QUERY).await, (StatusCode::OK, raw.clone()));
    assert_eq!(
        harvester.post(&admin, r#", "clusterRoleName": "harvesterhci.io:cloudprovider""#).await.1,
        raw
    );
}

#[tokio::test]
async fn get_makes_nothing_and_says_that_post_does() {
    let harvester = harvester().await;
    let before = harvester.server.revision();
    let (status, text) = harvester.get(&User::admin(), QUERY).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    assert!(text.contains("POST makes it"), "{text}");
    assert_eq!(harvester.server.revision(), before);
}

#[tokio::test]
async fn an_object_of_somebody_else_is_a_conflict_and_no_fault_of_harvester() {
    let harvester = harvester().await;
    let foreign = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-token", "namespace": "vms"},
        "stringData": {"token": "theirs"}});
    object::create(&harvester.server.client(User::admin()), &foreign).await.unwrap();
    let (status, text) = harvester.post(&User::admin(), "").await;
    assert_eq!(status, StatusCode::CONFLICT, "{text}");
    assert!(text.contains("Secret demo-token is there and is not of this account"), "{text}");
}

#[tokio::test]
async fn yaml_is_user_data_that_writes_the_kubeconfig_to_both_places() {
    let harvester = harvester().await;
    let (_, raw) = harvester.post(&User::admin(), "").await;
    let kubeconfig: String = serde_json::from_str(&raw).unwrap();
    let (status, text) = harvester.get(&User::admin(), &format!("{QUERY}&outputFormat=yaml")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let get = Request::get(format!("{QUERY}&outputFormat=yaml"))
        .header("authorization", harvester.bearer(&User::admin()));
    let mut get = get.body(Body::empty()).unwrap();
    get.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
    let answer = harvester.router.clone().oneshot(get).await.unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/x-yaml; charset=utf-8");
    let content = format!("  content: {}\n", STANDARD.encode(&kubeconfig));
    assert_eq!(text.matches(&content).count(), 2, "{text}");
    for path in
        ["/etc/kubernetes/cloud-config", "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config"]
    {
        assert!(text.contains(&format!("  path: {path}\n")), "{text}");
    }
}

#[tokio::test]
async fn a_caller_makes_nothing_that_its_own_token_may_not() {
    let harvester = harvester().await;
    for (status, text) in [
        harvester.post(&User::named("somebody"), "").await,
        harvester.get(&User::named("somebody"), QUERY).await,
    ] {
        assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
    }
    let forged = Request::get(QUERY).header("authorization", "Bearer forged");
    let (status, text) = harvester.send(forged, Body::empty()).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
    assert!(!text.contains("forged"), "{text}");
    let somebody = Request::get(QUERY)
        .header("authorization", harvester.bearer(&User::named("somebody")))
        .header("Impersonate-User", "admin")
        .header("Impersonate-Group", "system:masters");
    assert_eq!(harvester.send(somebody, Body::empty()).await.0, StatusCode::BAD_REQUEST);
    let basic = Request::get(QUERY).header("authorization", "Basic YTpi");
    assert_eq!(harvester.send(basic, Body::empty()).await.0, StatusCode::UNAUTHORIZED);
    assert!(!harvester.exists("ServiceAccount", "demo").await);
}

#[tokio::test]
async fn other_methods_and_paths_and_wrong_names_reach_nobody() {
    let harvester = harvester().await;
    let admin = harvester.bearer(&User::admin());
    for method in ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let request = Request::builder().method(method).uri(QUERY).header("authorization", &admin);
        assert_eq!(
            harvester.send(request, Body::empty()).await.0,
            StatusCode::METHOD_NOT_ALLOWED,
            "{method}"
        );
    }
    for names in
        ["namespace=vms&serviceAccountName=../demo", "namespace=vms", "namespace=VMS&serviceAccountName=demo"]
    {
        assert_eq!(
            harvester.get(&User::admin(), &format!("{PATH}?{names}")).await.0,
            StatusCode::BAD_REQUEST
        );
    }
    assert!(!harvester.exists("ServiceAccount", "demo").await);
}

#[tokio::test]
async fn a_body_of_more_than_four_kib_is_refused_whether_it_is_announced_or_not() {
    let harvester = harvester().await;
    let admin = harvester.bearer(&User::admin());
    let post = || Request::post(PATH).header("authorization", &admin);
    let body =
        format!(r#"{{"namespace": "vms", "serviceAccountName": "demo", "more": "{}"}}"#, "a".repeat(4 << 10));
    let announced = post().header("content-length", body.len());
    assert_eq!(harvester.send(announced, body.clone()).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let parts: Vec<io::Result<Bytes>> =
        body.as_bytes().chunks(512).map(|part| Ok(part.to_vec().into())).collect();
    let stream = Body::from_stream(futures::stream::iter(parts));
    assert_eq!(harvester.send(post(), stream).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(harvester.send(post(), "no json").await.0, StatusCode::BAD_REQUEST);
}

/// Without a server: nothing of these requests gets so far.
fn lonely() -> Harvester {
    let server = ApiServer::builder().build();
    let target = Target {
        api_server: "https://127.0.0.1:1".to_owned(),
        ca: String::new(),
        server: None,
        check: false,
        options: Options::named("test"),
    };
    Harvester { server, router: router(target.clone()), target }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_waited_for_for_five_seconds() {
    let harvester = lonely();
    let stalled = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
    let post = Request::post(PATH).header("authorization", "Bearer a");
    assert_eq!(harvester.send(post, stalled).await.0, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_sends_more_than_thirty_requests_in_a_minute_is_told_to_wait_and_no_other_one() {
    let harvester = lonely();
    for _ in 0..100 {
        let (status, _) = harvester.send(Request::get(QUERY), Body::empty()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "without a token nothing is counted");
    }
    let with = |token: &str| Request::get(PATH).header("authorization", format!("Bearer {token}"));
    for _ in 0..30 {
        assert_eq!(harvester.send(with("a"), Body::empty()).await.0, StatusCode::BAD_REQUEST);
    }
    let mut request = with("a").body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 1))));
    let answer = harvester.router.clone().oneshot(request).await.unwrap();
    assert_eq!(
        (answer.status(), answer.headers()[header::RETRY_AFTER].to_str().unwrap()),
        (StatusCode::TOO_MANY_REQUESTS, "60")
    );
    let other = harvester.send(with("b"), Body::empty()).await.0;
    assert_eq!(other, StatusCode::BAD_REQUEST, "from the same address");
}

#[tokio::test]
async fn a_request_that_finds_no_room_is_told_to_wait() {
    let api = Api::of(lonely().target);
    let digest = api.rate.lock().unwrap().digest("a");
    let _held = [api.work.begin(digest).unwrap(), api.work.begin(digest).unwrap()];
    let request = Request::get(QUERY).header("authorization", "Bearer a").body(Body::empty()).unwrap();
    let Err(answer) = api.kubeconfig(SocketAddr::from(([192, 0, 2, 1], 1)), request).await else { panic!() };
    assert_eq!(answer.refusal.status, StatusCode::TOO_MANY_REQUESTS);
}
