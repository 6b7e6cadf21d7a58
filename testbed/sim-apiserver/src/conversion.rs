//! Custom resources in another version than the one in which they are kept, where their definition names a webhook.
//!
//! ```text
//! store (any version) ──shown──► version of the path ──► patches, admission, checks ──kept──► storage version ──► store
//!                                └► answer, watch event
//! ```
//! A definition without webhook is not this module's: its objects have all fields in all versions, and reading prunes.
//! A real server caches what a webhook made of an object; this one asks each time.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sim_apimachinery::conversion;

use crate::admission::reach;
use crate::kind::Kind;
use crate::server::ApiServer;
use crate::store::Stored;
use crate::write::metadata::uid;
use crate::{Failure, machinery};

/// The time that a webhook has, and what the URL says of it.
const TIMEOUT: Duration = Duration::from_secs(30);
const QUERY: &str = "?timeout=30s";

/// A kept object in a served version.
pub(crate) async fn shown(
    server: &ApiServer,
    kind: &Kind,
    version: usize,
    stored: &Arc<Stored>,
) -> Result<Arc<Stored>, Failure> {
    if kind.conversion.is_none() || stored.value["apiVersion"] == kind.api(version).api_version() {
        return Ok(stored.clone());
    }
    let object = in_version(server, kind, version, &stored.value).await?;
    Ok(Arc::new(Stored::unkept(object)))
}

/// An object in a served version.
pub(crate) async fn in_version(
    server: &ApiServer,
    kind: &Kind,
    version: usize,
    object: &Value,
) -> Result<Value, Failure> {
    let mut converted = ask(server, kind, &kind.api(version).api_version(), object).await?;
    machinery::conform(kind, version, &mut converted);
    Ok(converted)
}

/// An object as it is kept.
pub(crate) async fn kept(server: &ApiServer, kind: &Kind, object: Value) -> Result<Value, Failure> {
    if kind.conversion.is_none() {
        return Ok(object);
    }
    let mut converted = ask(server, kind, &kind.stored_as, &object).await?;
    if let Some(storage) = kind.versions.iter().position(|version| version.api.storage) {
        machinery::conform(kind, storage, &mut converted);
    }
    Ok(converted)
}

async fn ask(server: &ApiServer, kind: &Kind, to: &str, object: &Value) -> Result<Value, Failure> {
    let Some(webhook) = &kind.conversion else { return Ok(object.clone()) };
    if object["apiVersion"] == to {
        return Ok(object.clone());
    }
    let uid = uid(server);
    let Some(review) = conversion::review(webhook, &uid, to, object) else {
        return Err(unknown("no supported conversion review versions".to_owned()));
    };
    let failed = |why: String| unknown(format!("{} failed: {why}", conversion::subject(object)));
    let answer = tokio::time::timeout(TIMEOUT, reach(server, webhook, QUERY, &review)).await;
    let answer = answer.map_err(|_| failed("context deadline exceeded".to_owned()))?.map_err(failed)?;
    conversion::converted(object, &uid, to, answer).map_err(unknown)
}

/// The form in which a real server passes on an error that has none.
fn unknown(message: String) -> Failure {
    Failure { code: 500, reason: "", message, details: Value::Null }
}
