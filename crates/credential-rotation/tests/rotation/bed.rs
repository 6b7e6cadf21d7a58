//! Two clusters with an account that may renew its own token, and a rotation between them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cloud_config::{CloudConfig, Followed, places, proxy::Environment};
use credential_rotation::{Clusters, Rotation, RotationMetrics, SecretName, token};
use http::{HeaderValue, Request, Response, header::DATE};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, fmt::rfc2822::DateTimePrinter};
use k8s_openapi::{
    ByteString,
    api::{authentication::v1::TokenReview, core::v1::Secret},
};
use kube::{Api, Client, api::PostParams, client::Body};
use program::Clock;
use serde_json::{Value, json};
use test_cluster::{TestCluster, User};
use tokio::{sync::watch, task::JoinHandle, time::sleep};

/// After two thirds of ten minutes.
pub(crate) const DUE: SignedDuration = SignedDuration::from_secs(450);
const SECRET: &str = "harvester-cloud-provider-rotated";
/// The signature of a token that nobody gave out.
const FORGED: &str = ".Zm9yZ2Vk";
/// The roles of the Go programs have nothing of the kind.
const ROLE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: rotates, namespace: kube-system}
rules: [{apiGroups: [''], resources: [secrets], resourceNames: [harvester-cloud-provider-rotated], verbs: [get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: rotates, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: rotates}
subjects: [{kind: ServiceAccount, name: harvester-cloud-controller-manager, namespace: kube-system}]
";

pub(crate) struct Bed<'a> {
    cluster: &'a TestCluster,
    pub(crate) token: String,
    pub(crate) source: String,
    followed: watch::Sender<Followed>,
    told: Arc<Mutex<Vec<String>>>,
    tried: Arc<Mutex<Vec<String>>>,
}

fn account(cluster: &TestCluster) -> (String, String) {
    (cluster.guest_cluster().vm_namespace.clone(), cluster.guest_cluster().account())
}

pub(crate) fn kubeconfig(token: &str) -> String {
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://harvester.example'}}}}],
           users: [{{name: a, user: {{token: '{token}'}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: team-a}}}}]}}"
    )
}

/// A token of the account that lasts so many seconds, made to rotate or bound to nothing.
pub(crate) async fn bounded(cluster: &TestCluster, seconds: i64, bound: Option<&str>) -> String {
    let (namespace, name) = account(cluster);
    let mut question = token::request(&name, SignedDuration::from_secs(seconds));
    if bound.is_none() {
        question["spec"].as_object_mut().unwrap().remove("boundObjectRef");
    }
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let request = Request::post(path).header("Content-Type", "application/json");
    let request = request.body(question.to_string().into_bytes()).unwrap();
    let answer: Value = cluster.harvester.client(User::Driver).request(request).await.unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Puts a copy into the Secret, or empties it.
pub(crate) async fn put(driver: &Client, copy: Option<&str>) {
    let secrets: Api<Secret> = Api::namespaced(driver.clone(), "kube-system");
    let mut secret = secrets.get(SECRET).await.unwrap();
    let bytes = copy.map(|copy| ByteString(copy.as_bytes().to_vec()));
    secret.data = bytes.map(|bytes| [(places::COPY_KEY.to_owned(), bytes)].into());
    secrets.replace(SECRET, &PostParams::default(), &secret).await.unwrap();
}

impl<'a> Bed<'a> {
    /// With a token in the cloud-config that lasts so many seconds, and the chart's role for the Secret.
    pub(crate) async fn new(cluster: &'a TestCluster, seconds: i64) -> Self {
        cluster.guest.apply(ROLE).await;
        Self::bare(cluster, seconds).await
    }

    /// With the roles of the test alone.
    pub(crate) async fn bare(cluster: &'a TestCluster, seconds: i64) -> Self {
        let (namespace, name) = account(cluster);
        let anchor = token::anchor_name(&name);
        cluster
            .harvester
            .apply(&format!(
                "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}, namespace: {namespace}}}}}
---
{{apiVersion: v1, kind: Secret, metadata: {{name: {anchor}, namespace: {namespace}}}}}
"
            ))
            .await;
        cluster
            .guest
            .apply(&format!(
                "{{apiVersion: v1, kind: Secret, metadata: {{name: {SECRET}, namespace: kube-system}}}}"
            ))
            .await;
        let token = bounded(cluster, seconds, Some("blue")).await;
        let source = kubeconfig(&token);
        let config = CloudConfig::parse(&source, "cloud-config", &Environment::default()).unwrap();
        let followed = watch::Sender::new(Followed { config, fault: None });
        let bed = Self { cluster, token, source, followed, told: Arc::default(), tried: Arc::default() };
        bed.give_right().await;
        bed
    }

    pub(crate) fn replace_source(&mut self, token: &str) {
        self.replace_source_text(&kubeconfig(token));
    }

    pub(crate) fn replace_source_text(&mut self, text: &str) {
        text.clone_into(&mut self.source);
        let config = CloudConfig::parse(&self.source, "cloud-config", &Environment::default()).unwrap();
        self.followed.send_replace(Followed { config, fault: None });
    }

    /// As who follows the mounted copy does when it changes.
    pub(crate) fn wake(&self) {
        self.followed.send_modify(|_| ());
    }

    pub(crate) async fn give_right(&self) {
        let (namespace, name) = account(self.cluster);
        self.cluster
            .harvester
            .apply(&format!(
                "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: rotates, namespace: {namespace}}}
rules: [{{apiGroups: [''], resources: [serviceaccounts/token], resourceNames: [{name}], verbs: [create]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: rotates, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: rotates}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}]
"
            ))
            .await;
    }

    pub(crate) async fn take_right(&self) {
        let (namespace, _) = account(self.cluster);
        let key = format!("{namespace}/rotates");
        self.cluster.harvester.delete::<k8s_openapi::api::rbac::v1::RoleBinding>(&key).await;
    }

    pub(crate) fn guest(&self) -> Client {
        self.cluster.guest.client(User::CloudControllerManager)
    }

    pub(crate) fn clock(&self) -> Clock {
        Clock::starting_at(self.cluster.start())
    }

    /// A leader, while Harvester's clock shows so much more than the beginning of the test.
    pub(crate) fn start(&self, later: SignedDuration) -> JoinHandle<()> {
        self.start_with(later, SignedDuration::ZERO, |client| client)
    }

    pub(crate) fn start_on(&self, guest: Client, later: SignedDuration) -> JoinHandle<()> {
        let harvester = self.cluster.harvester.client(User::CloudControllerManager);
        self.start_between(guest, at_time(harvester, self.clock(), later), self.clock())
    }

    /// The clock of the leader is `ahead` of Harvester's.
    pub(crate) fn start_with(
        &self,
        later: SignedDuration,
        ahead: SignedDuration,
        through: impl FnOnce(Client) -> Client,
    ) -> JoinHandle<()> {
        let harvester = through(self.cluster.harvester.client(User::CloudControllerManager));
        let clock = Clock::starting_at(self.cluster.start() + later + ahead);
        self.start_between(self.guest(), at_time(harvester, self.clock(), later), clock)
    }

    pub(crate) fn start_between(&self, guest: Client, harvester: Client, clock: Clock) -> JoinHandle<()> {
        let (told, tried) = (self.told.clone(), self.tried.clone());
        // what is tried is looked at by the tests: these clients go by names, not by tokens
        let trial = self.cluster.harvester.client(User::CloudControllerManager);
        let rotation = Rotation {
            followed: self.followed.subscribe(),
            secret: SecretName::read(&format!("kube-system/{SECRET}")).unwrap(),
            clock,
            metrics: RotationMetrics::default(),
            tell: Arc::new(move |event| {
                told.lock().unwrap().push(format!("{} {}", event.reason, event.message));
            }),
            connect: Arc::new(move |config| {
                let token = config.token().unwrap().to_owned();
                let is_forged = token.ends_with(FORGED);
                tried.lock().unwrap().push(token);
                Ok(if is_forged { refusing() } else { trial.clone() })
            }),
        };
        tokio::spawn(rotation.run(Clusters { guest, harvester }))
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    pub(crate) fn tried(&self) -> Vec<String> {
        self.tried.lock().unwrap().clone()
    }

    /// A token of the account that nobody has signed, and that says that it never ends.
    pub(crate) fn forged(&self) -> String {
        let (namespace, account) = account(self.cluster);
        let claims = json!({"sub": format!("system:serviceaccount:{namespace}:{account}"), "iat": 4_000_000_000_u64,
            "exp": 9_000_000_000_u64, "kubernetes.io": {"secret": {"name": token::anchor_name(&account)}}});
        format!("e30.{}{FORGED}", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    pub(crate) fn copy_with(&self, token: &str) -> String {
        places::copy(&self.source, &self.source.replace(&self.token, token))
    }

    /// The token of the copy, where there is one of the source.
    pub(crate) async fn token_of_copy(&self) -> Option<String> {
        let secret = self.cluster.guest.get::<Secret>(&format!("kube-system/{SECRET}")).await.unwrap();
        let copy = secret.data?.remove(places::COPY_KEY)?;
        let copy = String::from_utf8(copy.0).unwrap();
        places::is_copy_of(&copy, &self.source).then(|| token::of_kubeconfig(&copy, None).unwrap())
    }

    /// Whether Harvester takes the token.
    pub(crate) async fn is_good(&self, token: &str) -> bool {
        let reviews: Api<TokenReview> = Api::all(self.cluster.harvester.client(User::Driver));
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
            "spec": {"token": token}});
        let review = serde_json::from_value(review).unwrap();
        let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
        answer.status.and_then(|status| status.authenticated) == Some(true)
    }

    pub(crate) fn asked_for_tokens(&self) -> bool {
        let asked = self.cluster.harvester.work_of(User::CloudControllerManager);
        asked.iter().any(|request| format!("{request:?}").contains("token"))
    }

    pub(crate) async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        for _ in 0..200 {
            self.cluster.settle().await;
            if is_so().await {
                return;
            }
            // a pause of the real servers; simulated time passes by itself
            sleep(Duration::from_millis(20)).await;
        }
        panic!("it does not come to pass that {what}; told: {:?}", self.told());
    }
}

/// A request that does not arrive.
#[derive(Clone)]
pub(crate) struct Pause {
    method: &'static str,
    reached: Arc<Mutex<bool>>,
}

impl Pause {
    pub(crate) fn never() -> Self {
        Self::at("")
    }

    pub(crate) fn at(method: &'static str) -> Self {
        Self { method, reached: Arc::default() }
    }

    pub(crate) fn is_reached(&self) -> bool {
        *self.reached.lock().unwrap()
    }
}

/// `client`, but `hook` runs before each request, and those at which there is a pause never arrive.
pub(crate) fn hooked<F, A>(client: Client, pause: Pause, hook: F) -> Client
where
    F: Fn(String, String) -> A + Send + Sync + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, pause) = (client.clone(), pause.clone());
        let hook = hook(request.method().to_string(), request.uri().path().to_owned());
        async move {
            hook.await;
            if request.method() == pause.method {
                *pause.reached.lock().unwrap() = true;
                std::future::pending::<()>().await;
            }
            client.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, "default")
}

/// `client`, whose answers say that it is so much later than `clock` shows.
pub(crate) fn at_time(client: Client, clock: Clock, later: SignedDuration) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let mut answer: Response<Body> = client.send(request).await?;
            let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&(clock.now() + later)).unwrap();
            answer.headers_mut().insert(DATE, HeaderValue::from_str(&date).unwrap());
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, "default")
}

/// A server that knows no token.
fn refusing() -> Client {
    let service = tower::service_fn(|_: Request<Body>| async {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized",
            "message": "Unauthorized", "code": 401});
        let answer = Response::builder().status(401).body(Body::from(status.to_string().into_bytes()));
        Ok::<_, std::io::Error>(answer.unwrap())
    });
    Client::new(service, "default")
}

/// `client`, which gives tokens of ten minutes at most.
pub(crate) fn stingy(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(tower::BoxError::from)?.to_bytes();
            let mut question: Value = serde_json::from_slice(&body).unwrap_or_default();
            let body = if question["kind"] == "TokenRequest" {
                question["spec"]["expirationSeconds"] = 600.into();
                question.to_string().into_bytes()
            } else {
                body.to_vec()
            };
            client.send(Request::from_parts(head, Body::from(body))).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, "default")
}
