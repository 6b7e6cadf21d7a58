//! A LoadBalancer object in both of its versions, as `kubectl get --raw` prints it.

use anyhow::{Context, Result, ensure};
use harvester_api::load_balancer::API_VERSIONS;
use kube::ResourceExt;
use serde_json::Value;

use super::Tour;
use crate::manifests::plain;

/// What a client that speaks the former version alone reads and writes back loses nothing of the object: the webhook of the
/// load balancer converts each time.
pub(super) async fn both(tour: &Tour<'_>) -> Result<String> {
    let observer = tour.observer();
    let balancer = observer.balancer("checked").await?;
    let name = balancer.name_any();
    let [now, former] = API_VERSIONS;
    let path = |version: &str| format!("/apis/{version}/namespaces/{}/loadbalancers", crate::VM_NAMESPACE);
    let of = |version: &str| format!("{}/{name}", path(version));
    // the API server goes by what the webhook wrote into the definition a moment later
    let alpha = observer.wait("an answer in the former version", || raw(tour, of(former), None)).await?;
    let beta = raw(tour, of(now), None).await?;
    for (object, version) in [(&beta, now), (&alpha, former)] {
        ensure!(object["apiVersion"] == version, "asked for {version}: {}", object["apiVersion"]);
    }
    ensure!(alpha["metadata"]["uid"] == beta["metadata"]["uid"], "these are two objects");
    let address = alpha["status"]["address"].as_str().unwrap_or_default();
    ensure!(!address.is_empty() && beta["status"]["address"] == address, "the address is {address:?}");
    let servers = alpha["spec"]["backendServers"].as_array().map_or(0, Vec::len);
    ensure!(servers == tour.environment.vms.len(), "{servers} backend servers in the former version");
    ensure!(alpha["spec"].get("backendServerSelector").is_none(), "the former version has no selector");
    let listed = raw(tour, path(former), None).await?;
    let items = listed["items"].as_array().context("the list has no items")?;
    ensure!(items.iter().all(|item| item["kind"].is_null() || item["apiVersion"] == former), "a mixed list");

    observer
        .wait("the object to be written back in the former version", || async {
            let read = raw(tour, of(former), None).await?;
            raw(tour, of(former), Some(&read)).await
        })
        .await?;
    let after = raw(tour, of(now), None).await?;
    ensure!(after["spec"] == beta["spec"], "the spec was {}, and is {}", beta["spec"], after["spec"]);
    Ok(format!(
        "{name} at {address} with {servers} backendServers in v1alpha1, with a selector in v1beta1; written back as \
         v1alpha1 it lost nothing"
    ))
}

/// `kubectl get --raw`, or `kubectl replace --raw` of an object.
async fn raw(tour: &Tour<'_>, path: String, replace: Option<&Value>) -> Result<Value> {
    let body = replace.map(serde_json::to_vec).transpose()?;
    let request = match &body {
        Some(_) => http::Request::put(path).header("content-type", "application/json"),
        None => http::Request::get(path),
    };
    let request = request.body(body.unwrap_or_default()).context("describe a request")?;
    tour.harvester.request(request).await.map_err(plain)
}
