//! Reviews over TLS, as an API server sends them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::client::Body;
use program::TaskGroup;
use rstest::rstest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster};

use super::fixtures::{NAME, bundle, http, start, web};
use super::secrets::make_empty;

/// A client that trusts `bundle` and nothing else.
pub(crate) fn trusting(port: u16, bundle: &[u8]) -> Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    let authorities = CertificateDer::pem_slice_iter(bundle).map(|one| one.unwrap().to_vec()).collect();
    config.root_cert = Some(authorities);
    Client::try_from(config).unwrap()
}

/// Posts a body, and returns status code and body of the answer.
pub(crate) async fn ask(client: &Client, path: &str, body: impl Into<Vec<u8>>) -> (u16, String) {
    let request =
        http::Request::post(format!("/v1/webhook/{path}")).header("content-type", "application/json");
    let response = client.send(request.body(Body::from(body.into())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status.as_u16(), String::from_utf8(body.collect_bytes().await.unwrap().to_vec()).unwrap())
}

pub(crate) async fn answer(client: &Client, path: &str, body: Vec<u8>) -> Value {
    let (code, text) = ask(client, path, body).await;
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn review(operation: &str, object: &Value) -> Vec<u8> {
    let kind = json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "kind": "LoadBalancer"});
    let resource =
        json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "resource": "loadbalancers"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "operation": operation, "kind": kind, "resource": resource, "namespace": "team-a", "name": "web",
        "userInfo": {"username": "alice"}, "object": object, "oldObject": null, "dryRun": true}})
    .to_string()
    .into_bytes()
}

#[rstest]
#[tokio::test]
async fn reviews_are_answered_over_tls_and_replicas_agree(
    #[values(Rights::Ours, Rights::Existing)] rights: Rights,
) {
    let cluster = TestCluster::simulated(rights).await;
    let (tasks, second) = (TaskGroup::new(), TaskGroup::new());
    let port = start(&cluster, &tasks);
    let trusted = bundle(&cluster, port).await;
    let client = trusting(port, &trusted);

    let denied = answer(&client, "validation", review("CREATE", &web(&json!([])))).await;
    assert_eq!(denied["response"]["uid"], "u1");
    assert_eq!(denied["response"]["status"]["code"], 422);
    let message = denied["response"]["status"]["message"].as_str().unwrap();
    let first = "create loadbalancer team-a/web failed: the load balancer needs at least one listener; ";
    assert!(message.starts_with(first), "{message}");
    assert!(
        message.contains("healthyCheck: port 8080 is not in the listener backend port list"),
        "{message}"
    );
    let completed = answer(&client, "mutation", review("CREATE", &web(&http()))).await;
    let response = &completed["response"];
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));

    for nonsense in
        ["", "[", "null", "{\"kind\": \"Pod\"}", "{\"kind\": \"AdmissionReview\", \"request\": 7}"]
    {
        assert_eq!(ask(&client, "validation", nonsense).await.0, 400, "{nonsense}");
    }
    assert_eq!(ask(&client, "mutation", vec![b' '; 9 << 20]).await.0, 413);
    assert_eq!(ask(&client, "other", "{}").await.0, 404);
    let conversion = json!({"request": {"uid": "u2", "desiredAPIVersion": "loadbalancer.harvesterhci.io/v1alpha1",
        "objects": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer", "metadata": {"name": "web"},
            "spec": {"listeners": [{"port": 80, "protocol": "TCP", "backendPort": 8080}]}}]}});
    let converted = answer(&client, "conversion", conversion.to_string().into_bytes()).await;
    assert_eq!(converted["response"]["convertedObjects"][0]["spec"]["ipam"], "pool", "{converted}");
    let refused = answer(&client, "conversion", b"{}".to_vec()).await;
    assert_eq!(refused["response"]["result"]["status"], "Failure");
    answer(&client, "validation", review("CREATE", &web(&http()))).await;

    // another replica takes the same certificates, and puts its own address into the configurations
    let secrets = [format!("harvester-system/{NAME}-ca"), format!("harvester-system/{NAME}-tls")];
    let versions = async || {
        let mut versions = Vec::new();
        for secret in &secrets {
            versions.push(cluster.harvester.get::<Secret>(secret).await.unwrap().metadata.resource_version);
        }
        versions
    };
    let before = versions().await;
    tasks.end().await;
    let port = start(&cluster, &second);
    assert_eq!(bundle(&cluster, port).await, trusted);
    assert_eq!(versions().await, before);

    // certificates that were deleted are made anew, and served in place
    for secret in &secrets {
        cluster.harvester.delete::<Secret>(secret).await;
    }
    if rights == Rights::Ours {
        make_empty(&cluster).await;
    }
    for _ in 0..200 {
        if bundle(&cluster, port).await != trusted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let renewed = bundle(&cluster, port).await;
    assert_ne!(renewed, trusted);
    let client = trusting(port, &renewed);
    answer(&client, "validation", review("CREATE", &web(&http()))).await;
    second.end().await;
}
