//! What a write that means harm costs the webhook.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use harvester_api::LoadBalancer;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, Client, Config, CustomResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::percentile;
use crate::{commands, manifests::plain};

const LISTENERS: usize = 4_000;
const TIMES: usize = 7;

/// What the webhook needed for reviews of an object with 4,000 equal listeners.
pub(super) struct Cost {
    /// Of the median answer.
    pub(super) milliseconds: f64,
    /// Its memory at the highest, above what it was before.
    pub(super) mebibytes: f64,
}

pub(super) async fn cost(harvester: &Client, pid: u32) -> Result<Cost> {
    let (client, path) = webhook(harvester).await?;
    let before = memory(pid, "VmRSS:")?;
    let mut times = Vec::new();
    for number in 0..TIMES {
        let review = review(number).to_string().into_bytes();
        let request = http::Request::post(&path).header("content-type", "application/json").body(review)?;
        let begun = Instant::now();
        let answer: Value = client.request(request).await.map_err(plain)?;
        times.push(begun.elapsed());
        ensure!(answer["response"]["allowed"] == false, "the webhook allows 4,000 listeners: {answer}");
    }
    let mut times: Vec<f64> =
        times.iter().map(Duration::as_secs_f64).map(|seconds| seconds * 1_000.0).collect();
    Ok(Cost {
        milliseconds: percentile(&mut times, 0.50),
        mebibytes: (memory(pid, "VmHWM:")? - before).max(0.0),
    })
}

/// Milliseconds of the median answer to a list of a thousand objects in the other version.
pub(super) async fn conversion(harvester: &Client) -> Result<f64> {
    const OBJECTS: usize = 1_000;
    let (client, _) = webhook(harvester).await?;
    let mut object = review(0)["request"]["object"].take();
    object["spec"]["listeners"].as_array_mut().expect("it has some").truncate(3);
    object["status"] = json!({"address": "192.0.2.7", "backendServers": ["10.0.0.1", "10.0.0.2"],
        "allocatedAddress": {"ipPool": "edge", "ip": "192.0.2.7", "mask": "255.255.255.0"}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "list", "desiredAPIVersion": "loadbalancer.harvesterhci.io/v1alpha1", "objects": vec![object; OBJECTS]}})
    .to_string()
    .into_bytes();
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let request =
            http::Request::post("/v1/webhook/conversion").header("content-type", "application/json");
        let begun = Instant::now();
        let answer: Value = client.request(request.body(review.clone())?).await.map_err(plain)?;
        times.push(begun.elapsed().as_secs_f64() * 1_000.0);
        let converted = answer["response"]["convertedObjects"].as_array().map_or(0, Vec::len);
        ensure!(
            converted == OBJECTS,
            "the webhook converts {converted} objects: {}",
            answer["response"]["result"]
        );
    }
    Ok(percentile(&mut times, 0.50))
}

/// A client for the webhook, and the path of its reviews of LoadBalancer objects.
async fn webhook(harvester: &Client) -> Result<(Client, String)> {
    let configurations = Api::<ValidatingWebhookConfiguration>::all(harvester.clone());
    let configuration = configurations.get(commands::WEBHOOK).await.map_err(plain)?;
    let plural = LoadBalancer::crd().spec.names.plural;
    let ours = configuration.webhooks.unwrap_or_default().into_iter().find(|webhook| {
        let rules = webhook.rules.iter().flatten();
        rules.flat_map(|rule| rule.resources.iter().flatten()).any(|resource| *resource == plural)
    });
    let url = ours
        .and_then(|webhook| webhook.client_config.url)
        .context("no webhook for LoadBalancers has a URL")?;
    let url: http::Uri = url.parse().context("the webhook's URL")?;
    let path = url.path().to_owned();
    let mut config =
        Config::new(format!("https://{}", url.authority().context("a URL has a host")?).parse()?);
    // its certificate is the API server's business
    config.accept_invalid_certs = true;
    Ok((Client::try_from(config).map_err(plain)?, path))
}

fn review(number: usize) -> Value {
    let listener = json!({"name": "a", "port": 80, "protocol": "TCP", "backendPort": 8080});
    let object = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "hostile", "namespace": "default"},
        "spec": {"workloadType": "vm", "listeners": vec![listener; LISTENERS]},
    });
    let resource =
        json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "resource": "loadbalancers"});
    let kind = json!({"group": "loadbalancer.harvesterhci.io", "version": "v1beta1", "kind": "LoadBalancer"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": format!("hostile-{number}"), "kind": kind, "resource": resource, "name": "hostile",
        "namespace": "default", "operation": "CREATE", "userInfo": {"username": "tenant"}, "object": object,
        "oldObject": null, "dryRun": true, "options": null,
    }})
}

/// A line of `/proc/<pid>/status`, in MiB.
fn memory(pid: u32, line: &str) -> Result<f64> {
    let file = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let value = status
        .lines()
        .find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(value.with_context(|| format!("{file} has no {line}"))? / 1024.0)
}
