//! The leader renews the program's own credential.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cloud_config::{CloudConfig, Followed, places, proxy::Environment};
use cloud_controller_manager::{ElectionSettings, Parts, notices::Notices};
use credential_rotation::{Rotation, RotationMetrics, SecretName, token};
use http::{Method, Request};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use program::{Clock, TaskGroup};
use serde_json::Value;
use test_cluster::{TestCluster, User};
use tokio::sync::watch;

use super::{
    event_reasons::{hears, on_pod},
    harness::{Ccm, interposed, until},
};

/// The Secret and the role of the chart; roles of the Go programs have nothing of the kind.
const GUEST: &str = "
{apiVersion: v1, kind: Secret, metadata: {name: harvester-cloud-provider-rotated, namespace: kube-system}}
---
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
pub(super) const SECRET: &str = "kube-system/harvester-cloud-provider-rotated";

/// A kubeconfig whose token was made to rotate, and its rights in Harvester for that.
pub(super) async fn source(cluster: &TestCluster) -> String {
    let (namespace, name) = (&cluster.guest_cluster().vm_namespace, cluster.guest_cluster().account());
    let anchor = token::anchor_name(&name);
    let objects = format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}, namespace: {namespace}}}}}
---
{{apiVersion: v1, kind: Secret, metadata: {{name: {anchor}, namespace: {namespace}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
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
    );
    cluster.harvester.apply(&objects).await;
    let question = token::request(&name, SignedDuration::from_mins(10)).to_string().into_bytes();
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let request = Request::post(path).header("Content-Type", "application/json").body(question).unwrap();
    let answer: Value = cluster.harvester.client(User::Driver).request(request).await.unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    format!(
        "{{current-context: a, clusters: [{{name: a, cluster: {{server: 'https://harvester.example'}}}}],
           users: [{{name: a, user: {{token: '{token}'}}}}],
           contexts: [{{name: a, context: {{cluster: a, user: a, namespace: {namespace}}}}}]}}"
    )
}

pub(super) async fn token_of_copy(cluster: &TestCluster, source: &str) -> Option<String> {
    let secret = cluster.guest.get::<Secret>(SECRET).await.unwrap();
    let copy = String::from_utf8(secret.data?.remove(places::COPY_KEY)?.0).unwrap();
    places::is_copy_of(&copy, source).then(|| token::of_kubeconfig(&copy, None).unwrap())
}

/// A candidate whose clock says that the token is due; `guest` is its way to the guest cluster.
pub(super) async fn candidate(
    cluster: &TestCluster,
    name: &str,
    source: &str,
    guest: Client,
    notices: Notices,
) -> Ccm {
    let config = CloudConfig::parse(source, "cloud-config", &Environment::default()).unwrap();
    let (follows, followed) = watch::channel(Followed { config, fault: None });
    // nobody changes it, and the program has it until the end of the test
    std::mem::forget(follows);
    // without the time that answers tell
    let harvester = without_date(cluster.harvester.client(User::CloudControllerManager));
    let trial = harvester.clone();
    let teller = notices.clone();
    let rotation = Rotation {
        followed,
        secret: SecretName::read(SECRET).unwrap(),
        clock: Clock::starting_at(cluster.start() + SignedDuration::from_secs(450)),
        metrics: RotationMetrics::default(),
        tell: Arc::new(move |event| teller.tell(event)),
        connect: Arc::new(move |_| Ok(trial.clone())),
    };
    let parts = Parts::new(guest, harvester, Clock::starting_at(cluster.start()));
    let parts = Parts { rotation: Some(rotation), notices, ..parts };
    let identity = name.to_owned();
    Ccm::start_parts(cluster, parts, move |settings| {
        settings.election = Some(ElectionSettings::usual(identity));
    })
    .await
}

fn without_date(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let mut answer = client.send(request).await?;
            answer.headers_mut().remove(http::header::DATE);
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, "default")
}

test_cluster::component_tests! {
    /// The first leader goes while its write is on the way, and the write arrives nowhere.
    async fn a_lease_that_moves_during_a_rotation_leaves_one_good_token(cluster: TestCluster) {
        let source = source(&cluster).await;
        cluster.guest.apply(GUEST).await;
        let tasks = TaskGroup::new();
        let held = Arc::new(AtomicBool::new(false));
        let saw = held.clone();
        let guest = interposed(cluster.guest.client(User::CloudControllerManager), move |method, path| {
            let saw = saw.clone();
            async move {
                if method == Method::PUT && path.ends_with("/harvester-cloud-provider-rotated") {
                    saw.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }
                None
            }
        });
        let first = candidate(&cluster, "first", &source, guest, Notices::default()).await;
        until(&cluster, "the first one has a token and writes it", async || held.load(Ordering::SeqCst)).await;
        let guest = cluster.guest.client(User::CloudControllerManager);
        let notices = on_pod(&cluster, &tasks, "second");
        let second = candidate(&cluster, "second", &source, guest, notices).await;
        assert_eq!(token_of_copy(&cluster, &source).await, None, "who does not lead writes nothing");
        first.stop().await;
        until(&cluster, "the next one has renewed it", async || token_of_copy(&cluster, &source).await.is_some()).await;
        let copy = token_of_copy(&cluster, &source).await;
        cluster.settle().await;
        assert_eq!(token_of_copy(&cluster, &source).await, copy);
        hears(&cluster, "second", "CredentialRotated").await;
        second.stop().await;
        tasks.end().await;
    }

    async fn a_token_that_may_not_be_written_is_told_on_the_pod(cluster: TestCluster) {
        let source = source(&cluster).await;
        let tasks = TaskGroup::new();
        let (guest, notices) = (cluster.guest.client(User::CloudControllerManager), on_pod(&cluster, &tasks, "first"));
        let only = candidate(&cluster, "first", &source, guest, notices).await;
        hears(&cluster, "first", "CredentialNotRotated").await;
        only.stop().await;
        tasks.end().await;
    }
}
