//! Webhooks: whom they are asked about, what they may do, what happens without them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sim_apiserver::ApiServer;

use crate::support::{cluster, config_map, object, refusal};

type Asked = Arc<Mutex<Vec<Value>>>;

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

/// A webhook in this process that answers by a function of the request, and what it was asked.
fn webhook(server: &ApiServer, answer: impl Fn(&Value) -> Value + Clone + Send + Sync + 'static) -> Asked {
    let asked = Asked::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, log) = (answer.clone(), log.clone());
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let request = review["request"].take();
            let mut response = answer(&request);
            response["uid"] = request["uid"].clone();
            log.lock().unwrap().push(request);
            let review =
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Ok::<_, Infallible>(Response::new(Body::from(review.to_string())))
        }
    });
    server.webhook("system", "hooks", service);
    asked
}

fn rules(operations: &[&str], more: Value) -> Value {
    let mut webhook = json!({
        "name": "maps.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"service": {"namespace": "system", "name": "hooks", "path": "/maps"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": operations}],
    });
    json_patch::merge(&mut webhook, &more);
    json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]})
}

async fn mutating(client: &Client, configuration: Value) {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.create(&PostParams::default(), &object(configuration)).await.unwrap();
}

async fn validating(client: &Client, configuration: Value) {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    api.create(&PostParams::default(), &object(configuration)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_mutating_webhook_changes_what_is_kept() {
    let (server, client) = cluster();
    let asked = webhook(&server, |_| {
        let patch = json!([{"op": "add", "path": "/data/added", "value": "by webhook"}]).to_string();
        json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch)})
    });
    mutating(&client, rules(&["CREATE"], json!({}))).await;
    let made = maps(&client).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert_eq!(made.data.unwrap()["added"], "by webhook");
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 1);
    assert_eq!((&asked[0]["operation"], &asked[0]["namespace"]), (&json!("CREATE"), &json!("shop")));
    assert_eq!(asked[0]["userInfo"]["username"], "admin");
    assert_eq!(asked[0]["oldObject"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn what_a_mutating_webhook_changes_is_nobodys_and_it_may_correct_who_owns_what() {
    let fields = |map: &ConfigMap| {
        let entries = map.metadata.managed_fields.clone().unwrap_or_default();
        let data = |entry: ManagedFieldsEntry| {
            let fields = entry.fields_v1.map(|fields| fields.0["f:data"].clone()).unwrap_or_default();
            (entry.manager.unwrap_or_default(), fields)
        };
        entries.into_iter().map(data).collect::<Vec<_>>()
    };
    let (server, client) = cluster();
    let owners = |manager: &str, operation: &str| {
        json!([{"manager": manager, "operation": operation, "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:added": {}}}}])
    };
    let (theirs, unreadable) = (owners("hook", "Update"), owners("hook", "Guess"));
    webhook(&server, move |request| {
        let mut patch = vec![json!({"op": "add", "path": "/data/added", "value": "by webhook"})];
        let owners = match request["name"].as_str().unwrap_or_default() {
            "corrected" => Some(theirs.clone()),
            "broken" => Some(unreadable.clone()),
            _ => None,
        };
        patch.extend(
            owners.map(|owners| json!({"op": "add", "path": "/metadata/managedFields", "value": owners})),
        );
        json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(json!(patch).to_string())})
    });
    mutating(&client, rules(&["CREATE"], json!({}))).await;
    let post = PostParams { field_manager: Some("web".to_owned()), ..PostParams::default() };
    let as_sent = vec![("web".to_owned(), json!({".": {}, "f:key": {}}))];
    let corrected = vec![("hook".to_owned(), json!({"f:added": {}}))];
    for (name, expected) in [("left", &as_sent), ("broken", &as_sent), ("corrected", &corrected)] {
        let made = maps(&client).create(&post, &config_map(name, "1")).await.unwrap();
        assert_eq!(fields(&made), *expected, "{name}");
        assert_eq!(made.data.unwrap()["added"], "by webhook");
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_cannot_make_of_an_object_what_is_none() {
    for patch in [
        json!([{"op": "replace", "path": "/metadata", "value": {"labels": "none"}}]),
        json!([{"op": "replace", "path": "", "value": 7}]),
        json!([{"op": "replace", "path": "/data", "value": "text"}]),
        json!([{"op": "remove", "path": "/nothing"}]),
    ] {
        let (server, client) = cluster();
        let patch = STANDARD.encode(patch.to_string());
        webhook(&server, move |_| json!({"allowed": true, "patchType": "JSONPatch", "patch": patch}));
        mutating(&client, rules(&["*"], json!({}))).await;
        let status = refusal(maps(&client).create(&PostParams::default(), &config_map("a", "1")).await);
        assert!([400, 500].contains(&status.code), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_validating_webhook_refuses_with_its_own_words_and_code() {
    let (server, client) = cluster();
    let asked = webhook(&server, |request| {
        let kept = request["operation"] == "DELETE" && request["oldObject"]["data"]["key"] == "kept";
        json!({"allowed": !kept, "status": {"code": 403, "message": "it is in use"}})
    });
    validating(&client, rules(&["DELETE"], json!({}))).await;
    maps(&client).create(&PostParams::default(), &config_map("a", "kept")).await.unwrap();
    maps(&client).create(&PostParams::default(), &config_map("b", "free")).await.unwrap();
    maps(&client).delete("b", &DeleteParams::default()).await.unwrap();
    let status = refusal(maps(&client).delete("a", &DeleteParams::default()).await);
    assert_eq!(status.code, 403);
    assert_eq!(status.message, "admission webhook \"maps.example.com\" denied the request: it is in use");
    assert_eq!(asked.lock().unwrap().len(), 2, "creates were none of its business");
}

/// A webhook behind TLS that allows what it is asked, and the certificate by which it is trusted.
async fn behind_tls() -> (std::net::SocketAddr, String) {
    let made =
        rcgen::generate_simple_self_signed(["hooks.system.svc".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let response =
                    json!({"uid": review["request"]["uid"], "allowed": review["request"]["name"] != "bad"});
                let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
                Ok::<_, Infallible>(Response::new(answer.to_string()))
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    (address, STANDARD.encode(made.cert.pem()))
}

#[tokio::test]
async fn a_webhook_over_tls_is_reached_by_url_and_by_service_and_trusted_by_its_bundle_only() {
    let (address, bundle) = behind_tls().await;
    let server = ApiServer::builder()
        .namespace("shop")
        .webhook_resolver(move |namespace, name, port| {
            (namespace == "system" && name == "hooks" && port == 443).then_some(address)
        })
        .build();
    let client = server.client("admin");
    let with_bundle = json!({"clientConfig": {"caBundle": bundle}});
    validating(&client, rules(&["CREATE"], with_bundle)).await;
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("good", "1")).await.unwrap();
    let status = refusal(maps.create(&PostParams::default(), &config_map("bad", "1")).await);
    assert_eq!(
        (status.code, status.message.ends_with("without explanation")),
        (400, true),
        "{}",
        status.message
    );

    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let by_url = json!({"url": format!("https://{address}/maps"), "caBundle": bundle});
    let by_url: json_patch::Patch =
        object(json!([{"op": "replace", "path": "/webhooks/0/clientConfig", "value": by_url}]));
    api.patch("hooks", &PatchParams::default(), &Patch::<()>::Json(by_url)).await.unwrap();
    maps.create(&PostParams::default(), &config_map("fine", "1")).await.unwrap();
    assert_eq!(refusal(maps.create(&PostParams::default(), &config_map("bad", "1")).await).code, 400);

    let (_, other) = behind_tls().await;
    let distrusted: json_patch::Patch =
        object(json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": other}]));
    api.patch("hooks", &PatchParams::default(), &Patch::<()>::Json(distrusted)).await.unwrap();
    let status = refusal(maps.create(&PostParams::default(), &config_map("good2", "1")).await);
    assert!(status.code == 500 && status.message.contains("certificate"), "{}", status.message);
}

#[tokio::test(start_paused = true)]
async fn an_absent_webhook_refuses_or_does_not_count_as_its_policy_says() {
    let (_server, client) = cluster();
    validating(&client, rules(&["CREATE"], json!({}))).await;
    let status = refusal(maps(&client).create(&PostParams::default(), &config_map("a", "1")).await);
    assert_eq!(status.code, 500);
    assert!(status.message.contains("failed calling webhook \"maps.example.com\""), "{}", status.message);
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let ignore: json_patch::Patch =
        object(json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]));
    api.patch("hooks", &PatchParams::default(), &Patch::<()>::Json(ignore)).await.unwrap();
    maps(&client).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_in_time_is_an_absent_one() {
    let (server, client) = cluster();
    let silent =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    server.webhook("system", "hooks", silent);
    validating(&client, rules(&["CREATE"], json!({"timeoutSeconds": 3}))).await;
    let begin = tokio::time::Instant::now();
    let status = refusal(maps(&client).create(&PostParams::default(), &config_map("a", "1")).await);
    assert!(status.message.contains("context deadline exceeded"), "{}", status.message);
    assert_eq!(begin.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn selectors_and_dry_runs_are_respected() {
    let (server, client) = cluster();
    let asked = webhook(&server, |_| json!({"allowed": true, "warnings": ["careful"]}));
    let selected = json!({"objectSelector": {"matchLabels": {"watched": "yes"}}, "sideEffects": "Some"});
    validating(&client, rules(&["CREATE"], selected)).await;
    maps(&client).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(asked.lock().unwrap().is_empty());
    let mut watched = config_map("b", "1");
    watched.metadata.labels = Some([("watched".to_owned(), "yes".to_owned())].into());
    let dry = PostParams { dry_run: true, ..Default::default() };
    assert_eq!(refusal(maps(&client).create(&dry, &watched).await).code, 400);
    maps(&client).create(&PostParams::default(), &watched).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_selector_reads_the_namespaces_labels() {
    let (server, client) = cluster();
    let asked = webhook(&server, |_| json!({"allowed": true}));
    let selector = json!({"namespaceSelector": {"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["shop"]},
    ]}});
    validating(&client, rules(&["*"], selector)).await;
    maps(&client).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let elsewhere: Api<ConfigMap> = Api::namespaced(client, "default");
    elsewhere.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.iter().map(|request| &request["namespace"]).collect::<Vec<_>>(), ["default"]);
}
