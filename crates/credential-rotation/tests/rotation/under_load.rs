//! Requests go on while tokens change: over TLS, by tokens that the server checks.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use cloud_config::{Connection, Followed, Options, Places, places};
use credential_rotation::{Clusters, Rotation, RotationMetrics, SecretName, token};
use http::Request;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use program::Clock;
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use super::bed::at_time;

/// At least.
const WRITES: usize = 200;
const ROTATIONS: usize = 3;

async fn post(client: &Client, path: &str, object: &Value) -> Value {
    let request = Request::post(path).header("Content-Type", "application/json");
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap()
}

/// Puts the Secret's copy into a folder, as kubelet does.
fn mount(folder: &Path, version: usize, copy: &[u8]) {
    let own = folder.join(format!("..{version}"));
    fs::create_dir(&own).unwrap();
    fs::write(own.join(places::COPY_KEY), copy).unwrap();
    symlink(&own, folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    if version == 1 {
        symlink("..data/cloud-config", folder.join(places::COPY_KEY)).unwrap();
    }
}

/// Issue: `rotate-failed-requests` is 0.
#[tokio::test]
async fn no_request_fails_while_the_token_is_renewed_again_and_again() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let harvester = ApiServer::builder().namespace("vms").build();
    let admin = harvester.client(User::admin());
    for (path, object) in [
        ("serviceaccounts", json!({"metadata": {"name": "demo"}})),
        ("secrets", json!({"metadata": {"name": "demo-credentials"}})),
    ] {
        let mut object = object;
        object["apiVersion"] = "v1".into();
        object["kind"] = if path == "secrets" { "Secret" } else { "ServiceAccount" }.into();
        post(&admin, &format!("/api/v1/namespaces/vms/{path}"), &object).await;
    }
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/vms";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "demo"},
        "rules": [{"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
                  {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]});
    post(&admin, &format!("{rbac}/roles"), &role).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "demo"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "demo"},
        "subjects": [{"kind": "ServiceAccount", "name": "demo", "namespace": "vms"}]});
    post(&admin, &format!("{rbac}/rolebindings"), &binding).await;
    let question = token::request("demo", SignedDuration::from_hours(1));
    let given = post(&admin, "/api/v1/namespaces/vms/serviceaccounts/demo/token", &question).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (user, address) = (User::service_account("vms", "demo"), listener.local_addr().unwrap());
    let source = harvester.kubeconfig(user.clone(), address);
    let source = source.replace(&harvester.token(&user), given["status"]["token"].as_str().unwrap());
    let serving = harvester.clone();
    tokio::spawn(async move { serving.serve(listener).await });

    let folder = tempfile::tempdir().unwrap();
    let (given, rotated) = (folder.path().join("cloud-config"), folder.path().join("rotated"));
    fs::create_dir(&rotated).unwrap();
    fs::write(&given, &source).unwrap();
    let places = Places { given: Some(given), rotated: Some(rotated.clone()) };
    let connection = Connection::open(&places.read().unwrap(), &Options::named("test")).unwrap();
    let (client, followed, stop) = (connection.client(), connection.followed(), CancellationToken::new());
    tokio::spawn(connection.follow(places, stop.clone()));

    let guest = ApiServer::builder().namespace("kube-system").build().client(User::admin());
    let secrets: Api<Secret> = Api::namespaced(guest.clone(), "kube-system");
    let name = ObjectMeta { name: Some("rotated".to_owned()), ..ObjectMeta::default() };
    let empty = Secret { metadata: name, ..Secret::default() };
    secrets.create(&PostParams::default(), &empty).await.unwrap();

    let (stopped, maps) = (CancellationToken::new(), Api::<ConfigMap>::namespaced(client.clone(), "vms"));
    let until = stopped.clone();
    let load = tokio::spawn(async move {
        let (mut done, mut failed) = (0, Vec::new());
        while done < WRITES || !until.is_cancelled() {
            let name = ObjectMeta { name: Some(format!("map-{done}")), ..ObjectMeta::default() };
            let map = ConfigMap { metadata: name, ..ConfigMap::default() };
            failed.extend(maps.create(&PostParams::default(), &map).await.err());
            done += 1;
        }
        failed
    });
    let mut last = source;
    for version in 1..=ROTATIONS {
        let copy = renewed(&secrets, &guest, &client, &followed, &last).await;
        mount(&rotated, version, copy.as_bytes());
        let new = token::of_kubeconfig(&copy, None).unwrap();
        let mut changes = followed.clone();
        changes.wait_for(|now| now.config.token() == Some(new.as_str())).await.unwrap();
        last = copy;
    }
    stopped.cancel();
    let failed = load.await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    stop.cancel();
}

/// What a leader puts into the Secret when two thirds of the life of the last token are over.
async fn renewed(
    secrets: &Api<Secret>,
    guest: &Client,
    harvester: &Client,
    followed: &watch::Receiver<Followed>,
    last: &str,
) -> String {
    let clock = Clock::system();
    let rotation = Rotation::new(
        followed.clone(),
        SecretName::read("kube-system/rotated").unwrap(),
        Options::named("test"),
        clock,
        RotationMetrics::default(),
        Arc::new(|_| ()),
    );
    let harvester = at_time(harvester.clone(), clock, SignedDuration::from_mins(50));
    let leader = tokio::spawn(rotation.run(Clusters { guest: guest.clone(), harvester }));
    loop {
        let secret = secrets.get("rotated").await.unwrap();
        let copy = secret.data.and_then(|mut data| data.remove(places::COPY_KEY));
        let copy = copy.map(|copy| String::from_utf8(copy.0).unwrap());
        match copy {
            Some(copy) if copy != last => {
                leader.abort();
                return copy;
            }
            _ => tokio::task::yield_now().await,
        }
    }
}
