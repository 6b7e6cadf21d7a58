//! Eviction: `kubectl drain` asks for a Pod's end by a create of its `eviction`.
//!
//! It is a delete. PodDisruptionBudgets hold nothing up: what they count is written by a controller that is not here.

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::Value;
use sim_apimachinery::kind::group_version;

use super::delete::{Options, delete};
use crate::Failure;
use crate::request::{Target, Verb};
use crate::server::{ApiServer, Ask, value_response};
use crate::store::Key;

const GROUP: &str = "policy";

/// Answers POST to the `eviction` of a Pod.
pub(super) async fn evict(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    let eviction = ask.media.document(&ask.body)?;
    check(ask, &eviction)?;
    let options = Options::of_body(eviction.get("deleteOptions").cloned().unwrap_or_default())?;
    let target = Target { subresource: None, ..ask.target.clone() };
    let mut end =
        Ask::internal(ask.user.as_ref().clone(), Verb::Delete, target, ask.kind.clone(), ask.version);
    end.query.dry_run.clone_from(&ask.query.dry_run);
    delete(server, &end, &Key::new(ask.namespace(), ask.name()), &options).await?;
    Ok(value_response(StatusCode::CREATED, &Failure::created().to_value()))
}

/// Refuses what is no eviction of the Pod that the path names.
fn check(ask: &Ask, eviction: &Value) -> Result<(), Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&eviction["apiVersion"]), text(&eviction["kind"]));
    let (group, version) = group_version(&api_version);
    if (!kind.is_empty() && kind != "Eviction") || (!group.is_empty() && group != GROUP) {
        let message = format!(
            "{kind} in version {version:?} cannot be handled as a Eviction: converting ({version}.{kind}) to \
             ({GROUP}.Eviction): unknown conversion"
        );
        return Err(Failure::bad_request(message));
    }
    let metadata = &eviction["metadata"];
    let namespace = text(&metadata["namespace"]);
    if !namespace.is_empty() && namespace != ask.namespace() {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(message));
    }
    if metadata["name"] != ask.name() {
        return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
    }
    Ok(())
}
