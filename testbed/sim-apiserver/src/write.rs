//! Create, update, patch, delete.
//!
//! ```text
//! body ─► object ─► defaults ─► owners ─► mutating webhooks ─► defaults, pruning ─► validation ─► validating webhooks
//!                                                              ─► one transaction: still the same? addresses, commit
//! ```
//! Webhooks are asked without a lock. If the object has changed meanwhile, a patch starts again on the newer one.

mod create;
pub(crate) mod delete;
mod evict;
pub(crate) mod metadata;
mod modify;
mod patch;

pub(crate) use self::modify::is_held;

use std::sync::Arc;

use axum::body::Body as Answer;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use sim_apimachinery::body::{Body, FieldValidation};

use crate::Failure;
use crate::kind::{Behaviour, custom};
use crate::machinery;
use crate::read::present;
use crate::request::{Media, Verb};
use crate::server::{ApiServer, Ask, value_response};
use crate::store::{Key, Stored};

/// Answers a request that changes something.
pub(crate) async fn answer(server: &ApiServer, ask: &Ask) -> Result<Response<Answer>, Failure> {
    let answer = match ask.verb {
        Verb::Create if ask.kind.behaviour == Behaviour::Pod && ask.subresource() == "eviction" => {
            evict::evict(server, ask).await
        }
        Verb::Create => {
            let stored = create::create(server, ask).await?;
            present(server, ask, StatusCode::CREATED, &stored).await
        }
        Verb::Update | Verb::Patch => modify::modify(server, ask).await,
        Verb::Delete => delete::one(server, ask).await,
        Verb::DeleteCollection => delete::many(server, ask).await,
        Verb::Get | Verb::List | Verb::Watch => Err(Failure::method_not_allowed()),
    };
    crate::collect::start(server);
    answer
}

/// The object in a request's body, in the words of the storage version where no webhook converts.
fn object(ask: &Ask) -> Result<Value, Failure> {
    let body = match ask.media {
        Media::Json => Body::read_object(ask.api(), &ask.body)?,
        media => Body { value: media.document(&ask.body)?, duplicates: vec![] },
    };
    if ask.kind.is_custom() && !body.value["kind"].is_string() {
        let message = format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing",
            ask.kind.kind
        );
        return Err(Failure::bad_request(message));
    }
    checked(ask, body)
}

/// Refuses what is not an object of the kind that the path names, and drops what the kind does not know.
fn checked(ask: &Ask, body: Body) -> Result<Value, Failure> {
    if !body.value.is_object() {
        return Err(Failure::bad_request("the object provided is unrecognized: it is no JSON object"));
    }
    let (object, warnings) = body.into_object(ask.api(), ask.schema(), validation(ask))?;
    Ok(in_kept_words(ask, object, warnings))
}

/// Returns the strictness that the client asks for.
fn validation(ask: &Ask) -> FieldValidation {
    let text = ask.query.field_validation.as_deref().unwrap_or_default();
    FieldValidation::parse(text).expect("options are checked before objects are read")
}

/// An object as it is kept, after what its reading has to say was said.
fn in_kept_words(ask: &Ask, mut object: Value, warnings: Vec<String>) -> Value {
    ask.warn(warnings);
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    if ask.kind.behaviour == Behaviour::NewEvent {
        return sim_apimachinery::event::from_new(&object);
    }
    if ask.kind.conversion.is_none() {
        object["apiVersion"] = ask.kind.stored_as.clone().into();
    }
    object
}

/// An object as a webhook has changed it: it may have become anything.
fn mutated(ask: &Ask, mut object: Value) -> Result<Value, Failure> {
    if object.is_object() {
        object["apiVersion"] = ask.api().api_version().into();
    }
    checked(ask, Body { value: object, duplicates: vec![] })
}

/// Writes an object before there are clients: no users, no webhooks, no checks.
pub(crate) fn bootstrap(server: &ApiServer, table: &str, mut object: Value) -> Arc<Stored> {
    object["metadata"]["uid"] = metadata::uid(server).into();
    object["metadata"]["creationTimestamp"] = server.0.clock.text().into();
    let stored = server.0.store.transact(|inner| inner.put(&table.into(), object));
    // nobody owns what is there first
    drop(server.0.store.take_chores());
    stored
}

impl ApiServer {
    pub(crate) fn bootstrap(&self, table: &str, object: Value) -> Arc<Stored> {
        bootstrap(self, table, object)
    }
}

/// Updates the kinds that the server knows after a definition was written or removed.
fn follow_definition(server: &ApiServer, definition: &Value) {
    let deleting = definition["metadata"]["deletionTimestamp"].is_string();
    if let (false, Some(kind)) = (deleting, custom::kind(definition)) {
        server.change_kinds(|kinds| kinds.insert(kind));
    }
}

/// Whether two states of an object differ for a reader: in anything but the revision and who wrote what when.
fn differs(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return true };
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
    for key in keys {
        if key != "metadata" {
            if old.get(key) != new.get(key) {
                return true;
            }
            continue;
        }
        let (Some(old), Some(new)) = (old[key].as_object(), new.get(key).and_then(Value::as_object)) else {
            return true;
        };
        let written = |field: &&String| !matches!(field.as_str(), "resourceVersion" | "managedFields");
        let fields = old.keys().chain(new.keys().filter(|field| !old.contains_key(*field)));
        if fields.filter(written).any(|field| old.get(field) != new.get(field)) {
            return true;
        }
    }
    // who applies what is part of the state: an apply that only claims fields must be kept
    machinery::ownership_differs(old, new)
}

/// The answer of a delete that removed the object.
fn removed(ask: &Ask, stored: &Stored) -> Response<Answer> {
    let name = stored.value["metadata"]["name"].as_str().unwrap_or_default();
    let status = Failure::deleted(ask.api(), name, stored.uid());
    value_response(StatusCode::OK, &status.to_value())
}

/// The key of the object that the path names.
fn key(ask: &Ask) -> Key {
    Key::new(ask.namespace(), ask.name())
}
