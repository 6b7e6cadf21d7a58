//! Services are made while the token of the cloud controller manager is replaced again and again.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use credential_rotation::token;
use http::Request;
use jiff::SignedDuration;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{ccm::Probe, service_batch::ServiceBatch};
use crate::{commands::CLOUD_CONTROLLER_MANAGER, environment::Environment, manifests::plain};

/// Of the Services of the figure, so many come together, …
const BATCHES: usize = 10;
const OF_BATCH: usize = 100;
/// … and between two of them a new token comes.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(3);
const FLAG: &str = "--cloud-config=";

/// Requests of the cloud controller manager that failed meanwhile.
pub(super) async fn failed_requests(environment: &Environment, batch: &mut ServiceBatch) -> Result<f64> {
    let command = environment.command(CLOUD_CONTROLLER_MANAGER)?;
    let probe = Probe::of(&command)?;
    let file = command.args.iter().find_map(|flag| flag.strip_prefix(FLAG)).context("no cloud-config")?;
    let usual = fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let old = token::of_kubeconfig(&usual, None).with_context(|| format!("{file} has no token"))?;
    let account = format!("harvester-cloud-provider-{}", crate::GUEST_CLUSTER);
    let harvester = &environment.harvester;
    let anchor = token::anchor_name(&account);
    make(
        harvester,
        "serviceaccounts",
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}),
    )
    .await?;
    make(harvester, "secrets", &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": anchor}}))
        .await?;
    let before = failures(&probe.metrics().await?);
    for number in 0..BATCHES {
        replace(file.as_ref(), &usual.replace(&old, &new_token(harvester, &account).await?))?;
        // the change is taken over while these are made
        let name = format!("rotated-{number}");
        let made = batch.create(&name, OF_BATCH);
        let (made, ()) = tokio::join!(made, sleep(FOLLOWED_WITHIN));
        made?;
    }
    let failed = failures(&probe.metrics().await?) - before;
    replace(file.as_ref(), &usual)?;
    sleep(FOLLOWED_WITHIN).await;
    Ok(failed)
}

/// What client-go's metric of requests says of refusals and of answers that did not come.
fn failures(metrics: &str) -> f64 {
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix("rest_client_requests_total{")?.split_once("} ")?;
        let failed =
            ["401", "403", "<error>"].iter().any(|code| labels.contains(&format!("code=\"{code}\"")));
        if failed { value.parse::<f64>().ok() } else { None }
    };
    metrics.lines().filter_map(of).sum()
}

async fn new_token(harvester: &Client, account: &str) -> Result<String> {
    let question = token::request(account, SignedDuration::from_hours(1));
    let answer =
        post(harvester, &format!("serviceaccounts/{account}/token"), &question).await.map_err(plain)?;
    let new = answer["status"]["token"].as_str().unwrap_or_default().to_owned();
    ensure!(!new.is_empty(), "Harvester gives no token for {account}");
    Ok(new)
}

/// Makes an object, or finds it there.
async fn make(harvester: &Client, plural: &str, object: &Value) -> Result<()> {
    match post(harvester, plural, object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        outcome => outcome.map(|_| ()).map_err(plain),
    }
}

async fn post(harvester: &Client, path: &str, object: &Value) -> kube::Result<Value> {
    let path = format!("/api/v1/namespaces/{}/{path}", crate::VM_NAMESPACE);
    let request = Request::post(path).header("Content-Type", "application/json");
    let request = request.body(object.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    harvester.request(request).await
}

/// As a whole, as kubelet does.
fn replace(file: &Path, text: &str) -> Result<()> {
    let beside = file.with_extension("new");
    fs::write(&beside, text).with_context(|| format!("write {}", beside.display()))?;
    fs::rename(&beside, file).with_context(|| format!("replace {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_answers_that_did_not_come_are_counted() {
        let metrics = "# TYPE rest_client_requests counter
rest_client_requests_total{code=\"200\",method=\"GET\",host=\"h\"} 7
rest_client_requests_total{code=\"401\",method=\"GET\",host=\"h\"} 2
rest_client_requests_total{code=\"<error>\",method=\"POST\",host=\"h\"} 1
rest_client_requests_total{code=\"409\",method=\"PUT\",host=\"h\"} 5
";
        assert!((failures(metrics) - 3.0).abs() < f64::EPSILON);
    }
}
