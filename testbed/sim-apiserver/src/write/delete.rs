//! Delete: at once, or when the last finalizer goes.

use std::sync::Arc;

use axum::body::Body;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sim_apimachinery::{kind as api, options};

use super::{is_held, removed};
use crate::admission::{self, Write};
use crate::kind::Behaviour;
use crate::read::present;
use crate::selection::Selection;
use crate::server::{ApiServer, Ask, value_response};
use crate::store::{Key, Stored};
use crate::{Failure, conversion};

/// The finalizer of an object that waits for its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are to be left alone.
pub(crate) const ORPHAN: &str = "orphan";

/// Kinds of which a delete answers the object instead of a `Status`.
const ANSWERED_WHOLE: [&str; 6] =
    ["persistentvolumeclaims", "persistentvolumes", "pods", "resourcequotas", "serviceaccounts", "services"];

/// The options of a delete.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Options {
    preconditions: Preconditions,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// What a delete did to the object.
pub(crate) enum Deletion {
    /// It is gone.
    Removed(Arc<Stored>),
    /// It waits for its finalizers.
    Waiting(Arc<Stored>),
}

fn options(ask: &Ask) -> Result<Options, Failure> {
    if !ask.body.is_empty() {
        return Options::of_body(ask.media.document(&ask.body)?);
    }
    let options = Options {
        preconditions: Preconditions::default(),
        propagation_policy: ask.query.propagation_policy.clone(),
        orphan_dependents: ask.query.orphan_dependents,
        dry_run: ask.query.dry_run.clone(),
    };
    options.checked()
}

impl Options {
    /// Reads them from a body, besides which the query does not count.
    pub(super) fn of_body(body: Value) -> Result<Self, Failure> {
        let options: Option<Self> = serde_json::from_value(without_nulls(body))
            .map_err(|e| Failure::bad_request(format!("DeleteOptions: {e}")))?;
        options.unwrap_or_default().checked()
    }

    fn checked(self) -> Result<Self, Failure> {
        let options = options::Delete {
            dry_run: &self.dry_run,
            propagation_policy: self.propagation_policy.as_deref(),
            orphan_dependents: self.orphan_dependents,
        };
        options::refusal("DeleteOptions", &options.faults())?;
        Ok(self)
    }
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, field| !field.is_null());
    }
    value
}

/// Answers DELETE of one object.
pub(super) async fn one(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    if ask.target.subresource.is_some() {
        return Err(Failure::method_not_allowed());
    }
    let options = options(ask)?;
    let key = Key::new(ask.namespace(), ask.name());
    match delete(server, ask, &key, &options).await? {
        Deletion::Removed(stored) if ANSWERED_WHOLE.contains(&ask.kind.plural.as_str()) => {
            present(server, ask, StatusCode::OK, &stored).await
        }
        Deletion::Removed(stored) => Ok(removed(ask, &stored)),
        Deletion::Waiting(stored) => present(server, ask, StatusCode::OK, &stored).await,
    }
}

/// Answers DELETE of a collection.
pub(super) async fn many(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    let options = options(ask)?;
    let selection = Selection::of(ask)?;
    let (revision, objects) = server.0.store.list(&ask.kind.table, selection.namespace());
    let mut items = vec![];
    for stored in objects.iter().filter(|stored| selection.matches(&stored.value)) {
        match delete(server, ask, &Key::of(&stored.value), &options).await {
            Ok(Deletion::Removed(stored) | Deletion::Waiting(stored)) => {
                let stored = conversion::shown(server, &ask.kind, ask.version, &stored).await?;
                items.push(crate::form::in_version(&ask.kind, ask.version, &stored.value));
            }
            Err(failure) if failure.code == 404 => {}
            Err(failure) => return Err(failure),
        }
    }
    let list = json!({
        "kind": ask.api().list_kind, "apiVersion": ask.api().api_version(),
        "metadata": {"resourceVersion": revision.to_string()}, "items": items,
    });
    Ok(value_response(StatusCode::OK, &list))
}

/// Deletes one object under the rules of its kind and its finalizers.
pub(crate) async fn delete(
    server: &ApiServer,
    ask: &Ask,
    key: &Key,
    options: &Options,
) -> Result<Deletion, Failure> {
    let kind = &ask.kind;
    let not_found = || Failure::not_found(ask.api(), &key.name);
    let current = server.0.store.get(&kind.table, key).ok_or_else(not_found)?;
    check(ask, &current, key, options)?;
    let dry_run = ask.is_dry_run() || !options.dry_run.is_empty();
    let write = Write {
        operation: admission::Operation::Delete,
        name: &key.name,
        old: Some(&current.value),
        new: None,
        dry_run,
    };
    admission::mutate(server, ask, write).await?;
    admission::validate(server, ask, write).await?;
    let time = server.0.clock.text();
    let outcome = server.0.store.transact(|inner| {
        let current = inner.get(&kind.table, key).ok_or_else(not_found)?;
        check(ask, &current, key, options)?;
        let mut object = current.value.clone();
        propagate(&mut object, options);
        if !is_held(kind, &object) {
            let gone =
                if dry_run { current } else { inner.remove(&kind.table, key).ok_or_else(not_found)? };
            return Ok(Deletion::Removed(gone));
        }
        if !current.is_deleting() {
            let metadata = &mut object["metadata"];
            metadata["deletionTimestamp"] = time.into();
            if kind.behaviour != Behaviour::Namespace {
                metadata["deletionGracePeriodSeconds"] = 0.into();
            }
            if let Some(generation) = metadata["generation"].as_i64() {
                metadata["generation"] = (generation + 1).into();
            }
            if kind.behaviour == Behaviour::Namespace {
                object["status"]["phase"] = "Terminating".into();
            }
        }
        if object == current.value || dry_run {
            return Ok(Deletion::Waiting(current));
        }
        Ok(Deletion::Waiting(inner.put(&kind.table, object)))
    })?;
    if kind.behaviour == Behaviour::Definition
        && !dry_run
        && let Deletion::Removed(definition) = &outcome
    {
        crate::collect::forget_kind(server, &definition.value);
    }
    Ok(outcome)
}

fn check(ask: &Ask, current: &Stored, key: &Key, options: &Options) -> Result<(), Failure> {
    let Preconditions { uid, resource_version } = &options.preconditions;
    let differs = |field: &str, asked: &str, kept: &str, how: &str| {
        let why = format!(
            "the {field} in the precondition ({asked}) does not match the {field} in record ({kept}). \
             The object might have been {how}"
        );
        // it names the kind here where it names the resource everywhere else
        let kind = api::Kind { plural: ask.kind.kind.clone(), ..ask.api().clone() };
        Err(Failure::conflict(&kind, &key.name, &why))
    };
    if let Some(uid) = uid.as_deref().filter(|uid| *uid != current.uid()) {
        return differs("UID", uid, current.uid(), "deleted and then recreated");
    }
    let kept = current.revision.to_string();
    if let Some(version) = resource_version.as_deref().filter(|version| *version != kept) {
        return differs("ResourceVersion", version, &kept, "modified");
    }
    let protected = ["default", "kube-system", "kube-public"];
    if ask.kind.behaviour == Behaviour::Namespace && protected.contains(&key.name.as_str()) {
        return Err(Failure::forbidden(ask.api(), &key.name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// Puts the finalizer there that makes the garbage collector do what the client asked for.
fn propagate(object: &mut Value, options: &Options) {
    let wanted = match (options.propagation_policy.as_deref(), options.orphan_dependents) {
        (Some("Foreground"), _) => Some(FOREGROUND),
        (Some("Orphan"), _) | (None, Some(true)) => Some(ORPHAN),
        _ => None,
    };
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    let mut finalizers: Vec<Value> =
        metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    if wanted.is_some() || options.propagation_policy.is_some() {
        finalizers.retain(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
    }
    finalizers.extend(wanted.map(Value::from));
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}
