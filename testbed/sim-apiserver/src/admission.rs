//! Admission: the webhooks that the cluster's own configuration objects name, asked before a write is kept.
//!
//! ```text
//! configurations, by name ─► webhooks whose rules and selectors match ─► AdmissionReview ─► patch | denial | warnings
//! ```
//! A webhook is reached by its URL, by the address that the builder's resolver gives for its Service, or in process.
//! One that cannot be reached refuses the write or does not count, as its `failurePolicy` says.

mod call;
mod matching;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::call::Caller;
use self::matching::{Matched, matches};
use crate::endpoint::Endpoint;
use crate::form::in_version;
use crate::kind::{Behaviour, Kind};
use crate::server::{ApiServer, Ask};
use crate::write::metadata::uid;
use crate::{Failure, conversion};

const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";
/// Of webhooks that name none.
const TIMEOUT: Duration = Duration::from_secs(10);

impl ApiServer {
    /// Lets a service in this process answer for the webhooks behind a Service: no socket, so a paused clock is no harm.
    pub fn webhook(&self, namespace: &str, service: &str, endpoint: impl Into<Endpoint>) {
        self.0.admission.register(namespace, service, endpoint.into());
    }
}

/// Returns the address at which a Service of this namespace, name and port listens.
pub(crate) type Resolver = Arc<dyn Fn(&str, &str, u16) -> Option<SocketAddr> + Send + Sync>;

/// The connections to webhooks.
#[derive(Default)]
pub(crate) struct Admission {
    resolver: Option<Resolver>,
    in_process: RwLock<HashMap<(String, String), Endpoint>>,
    caller: Caller,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("in_process", &self.in_process).finish_non_exhaustive()
    }
}

impl Admission {
    pub(crate) fn new(resolver: Option<Resolver>) -> Self {
        Self { resolver, ..Self::default() }
    }

    pub(crate) fn register(&self, namespace: &str, service: &str, endpoint: Endpoint) {
        let key = (namespace.to_owned(), service.to_owned());
        self.in_process.write().expect("no panic while a webhook is registered").insert(key, endpoint);
    }

    fn endpoint(&self, namespace: &str, service: &str) -> Option<Endpoint> {
        let key = (namespace.to_owned(), service.to_owned());
        self.in_process.read().expect("no panic while a webhook is registered").get(&key).cloned()
    }
}

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Delete => "DeleteOptions",
        }
    }
}

/// A write that webhooks are asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) operation: Operation,
    pub(crate) name: &'a str,
    /// Before; none of a create.
    pub(crate) old: Option<&'a Value>,
    /// After; none of a delete.
    pub(crate) new: Option<&'a Value>,
    pub(crate) dry_run: bool,
}

/// Lets mutating webhooks change an object. Answers whether one did.
pub(crate) async fn mutate(
    server: &ApiServer,
    ask: &Ask,
    write: Write<'_>,
) -> Result<Option<Value>, Failure> {
    let mut changed: Option<Value> = None;
    for webhook in webhooks(server, ask, MUTATING) {
        let current = Write { new: changed.as_ref().or(write.new), ..write };
        let Some(Consent { response, version, shown }) = consult(server, ask, &webhook, current).await?
        else {
            continue;
        };
        let Some(patch) = response["patch"].as_str() else { continue };
        let Some(object) = current.new else { continue };
        let translated = ask.kind.conversion.is_some() && version != ask.version;
        let patched = patched(if translated { &shown } else { object }, patch).map_err(|why| {
            let name = webhook["name"].as_str().unwrap_or_default();
            Failure::internal(&format!("failed to apply the patch of webhook {name:?}: {why}"))
        })?;
        changed = Some(match translated {
            true => conversion::in_version(server, &ask.kind, ask.version, &patched).await?,
            false => patched,
        });
    }
    Ok(changed)
}

/// Lets validating webhooks refuse a write.
pub(crate) async fn validate(server: &ApiServer, ask: &Ask, write: Write<'_>) -> Result<(), Failure> {
    for webhook in webhooks(server, ask, VALIDATING) {
        consult(server, ask, &webhook, write).await?;
    }
    Ok(())
}

fn patched(object: &Value, patch: &str) -> Result<Value, String> {
    let patch = STANDARD.decode(patch).map_err(|e| e.to_string())?;
    let patch: json_patch::Patch = serde_json::from_slice(&patch).map_err(|e| e.to_string())?;
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).map_err(|e| e.to_string())?;
    Ok(object)
}

/// The webhooks of all configurations, in the order in which they are asked.
fn webhooks(server: &ApiServer, ask: &Ask, table: &str) -> Vec<Value> {
    // a webhook cannot lock the cluster out of its own configuration; and it would see Events in foreign words
    if ask.kind.group == GROUP || ask.kind.behaviour == Behaviour::NewEvent {
        return vec![];
    }
    let configurations = server.0.store.list(table, None).1;
    let webhooks = configurations.iter().flat_map(|stored| stored.value["webhooks"].as_array());
    webhooks.flatten().cloned().collect()
}

/// What a webhook answered that allowed a write.
struct Consent {
    response: Value,
    /// The version in which it was asked, and the object in it.
    version: usize,
    shown: Value,
}

/// Asks one webhook, if it wants to be asked; nothing else when it allowed the write.
async fn consult(
    server: &ApiServer,
    ask: &Ask,
    webhook: &Value,
    write: Write<'_>,
) -> Result<Option<Consent>, Failure> {
    let Some(matched) = matches(server, ask, webhook, write) else { return Ok(None) };
    let name = webhook["name"].as_str().unwrap_or_default();
    let harmless = matches!(webhook["sideEffects"].as_str(), Some("None" | "NoneOnDryRun"));
    if write.dry_run && !harmless {
        return Err(Failure::bad_request(format!("admission webhook {name:?} does not support dry run")));
    }
    let mut review = review(server, ask, &matched, write).await?;
    let id = review["request"]["uid"].clone();
    let timeout = webhook["timeoutSeconds"].as_u64().map_or(TIMEOUT, Duration::from_secs);
    let answer = tokio::time::timeout(timeout, reach(server, webhook, "", &review)).await;
    let response = match answer {
        Ok(Ok(answer)) if answer["response"]["uid"] == id => Ok(answer["response"].clone()),
        Ok(Ok(_)) => Err("expected response.uid to be that of the request".to_owned()),
        Ok(Err(why)) => Err(why),
        Err(_) => Err("context deadline exceeded".to_owned()),
    };
    let response = match response {
        Ok(response) => response,
        Err(why) if webhook["failurePolicy"] == "Ignore" => {
            tracing::debug!(webhook = name, why, "webhook ignored");
            return Ok(None);
        }
        Err(why) => {
            let message = format!("failed calling webhook {name:?}: failed to call webhook: {why}");
            return Err(Failure::internal(&message));
        }
    };
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ask.warn(warnings.map(str::to_owned).collect());
    if response["allowed"] == true {
        let shown = review["request"]["object"].take();
        return Ok(Some(Consent { response, version: matched.version, shown }));
    }
    let status = &response["status"];
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
    let message = status["message"].as_str().or_else(|| status["reason"].as_str()).unwrap_or_default();
    Err(Failure::denied_by_webhook(name, code, message, &status["details"]))
}

/// An object in the version in which a webhook wants to see it.
async fn shown(
    server: &ApiServer,
    kind: &Kind,
    version: usize,
    object: Option<&Value>,
) -> Result<Value, Failure> {
    match object {
        None => Ok(Value::Null),
        Some(object) if kind.conversion.is_none() => Ok(in_version(kind, version, object)),
        Some(object) => conversion::in_version(server, kind, version, object)
            .await
            .map_err(|failure| Failure::internal(&failure.message)),
    }
}

async fn review(
    server: &ApiServer,
    ask: &Ask,
    matched: &Matched,
    write: Write<'_>,
) -> Result<Value, Failure> {
    let api = ask.kind.api(matched.version);
    let asked = ask.api();
    let kind = |api: &sim_apimachinery::kind::Kind| json!({"group": api.group, "version": api.version, "kind": api.kind});
    let resource = |api: &sim_apimachinery::kind::Kind| json!({"group": api.group, "version": api.version, "resource": api.plural});
    let mut request = json!({
        "uid": uid(server), "kind": kind(api), "resource": resource(api),
        "requestKind": kind(asked), "requestResource": resource(asked),
        "name": write.name, "operation": write.operation.as_str(),
        "userInfo": {"username": ask.user.name, "groups": ask.user.groups},
        "object": shown(server, &ask.kind, matched.version, write.new).await?,
        "oldObject": shown(server, &ask.kind, matched.version, write.old).await?,
        "dryRun": write.dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": write.operation.options()},
    });
    if !ask.namespace().is_empty() {
        request["namespace"] = ask.namespace().into();
    }
    if !ask.subresource().is_empty() {
        request["subResource"] = ask.subresource().into();
        request["requestSubResource"] = ask.subresource().into();
    }
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}))
}

/// Sends a review to where the webhook is.
pub(crate) async fn reach(
    server: &ApiServer,
    webhook: &Value,
    query: &str,
    review: &Value,
) -> Result<Value, String> {
    let config = &webhook["clientConfig"];
    let admission = &server.0.admission;
    let bundle = config["caBundle"].as_str().unwrap_or_default();
    if let Some(url) = config["url"].as_str() {
        return admission.caller.post(&format!("{url}{query}"), None, bundle, review).await;
    }
    let service = &config["service"];
    let text = |field: &str| service[field].as_str().unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let path = text("path").trim_start_matches('/');
    let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
    let url = format!("https://{name}.{namespace}.svc:{port}/{path}{query}");
    if let Some(endpoint) = admission.endpoint(namespace, name) {
        return call::in_process(&endpoint, &url, review).await;
    }
    let address = admission.resolver.as_ref().and_then(|resolve| resolve(namespace, name, port));
    match address {
        Some(address) => admission.caller.post(&url, Some(address), bundle, review).await,
        None => Err(format!("Post {url:?}: service {name:?} not found")),
    }
}
