//! Update and patch: a newer state of an object that is there.

use std::sync::Arc;

use axum::body::Body;
use http::{Response, StatusCode};
use serde_json::Value;
use sim_apimachinery::kind as api;

use super::{create, differs, follow_definition, key, metadata, object, patch};
use crate::admission::{self, Write};
use crate::kind::{Behaviour, Kind};
use crate::machinery::{self, Operation};
use crate::read::present;
use crate::request::{Media, Verb};
use crate::rules;
use crate::server::{ApiServer, Ask, value_response};
use crate::store::Stored;
use crate::{Failure, conversion};

/// A patch that meets a newer version so often gives up with a conflict, as a real server does.
const ATTEMPTS: usize = 5;

/// Answers PUT and PATCH.
pub(super) async fn modify(server: &ApiServer, ask: &Ask) -> Result<Response<Body>, Failure> {
    match ask.subresource() {
        "" => {}
        "status" if ask.api().has_status() => {}
        "scale" if ask.kind.versions[ask.version].scale.is_some() => {}
        "finalize" if ask.kind.behaviour == Behaviour::Namespace => {}
        "ephemeralcontainers" if ask.kind.behaviour == Behaviour::Pod => {}
        other if ask.api().has_subresource(other) => return Err(Failure::method_not_allowed()),
        _ if ask.kind.is_custom() => return Err(Failure::not_found(ask.api(), ask.name())),
        _ => return Err(Failure::no_such_path()),
    }
    if ask.verb == Verb::Patch && !ask.media.is_patch() {
        let message = "415: Unsupported Media Type".to_owned();
        let details = Value::Object(serde_json::Map::new());
        return Err(Failure { code: 415, reason: "UnsupportedMediaType", message, details });
    }
    if ask.verb == Verb::Update && ask.media.is_patch() {
        return Err(Failure::unsupported_media_type(&["application/json", "application/yaml"]));
    }
    for _ in 0..ATTEMPTS {
        let Some(current) = server.0.store.get(&ask.kind.table, &key(ask)) else {
            if ask.media == Media::ApplyPatch && ask.subresource().is_empty() {
                server.authorize(&ask.user, Verb::Create, &ask.target, ask.name())?;
                let object = patch::applied_to_nothing(server, ask)?;
                let stored = create::store(server, ask, object, Operation::Apply).await?;
                return present(server, ask, StatusCode::CREATED, &stored).await;
            }
            if ask.verb == Verb::Update && ask.api().create_on_update && ask.subresource().is_empty() {
                server.authorize(&ask.user, Verb::Create, &ask.target, ask.name())?;
                let mut object = object(ask)?;
                metadata::made_by_update(ask, &mut object)?;
                let stored = create::store(server, ask, object, Operation::Update).await?;
                return present(server, ask, StatusCode::CREATED, &stored).await;
            }
            return Err(Failure::not_found(ask.api(), ask.name()));
        };
        match attempt(server, ask, &current).await {
            Ok(Some(stored)) if ask.subresource() == "scale" => {
                let stored = conversion::shown(server, &ask.kind, ask.version, &stored).await?;
                let scale = crate::scale::read(&ask.kind, ask.version, &stored.value)?;
                return Ok(value_response(StatusCode::OK, &scale));
            }
            Ok(Some(stored)) => return present(server, ask, StatusCode::OK, &stored).await,
            // somebody else was faster: a patch means the newest state, and a PUT with a version fails on the next try
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::stale(ask.api(), ask.name()))
}

/// One try on one state of the object; `None` when somebody else was faster.
async fn attempt(
    server: &ApiServer,
    ask: &Ask,
    current: &Arc<Stored>,
) -> Result<Option<Arc<Stored>>, Failure> {
    let known = conversion::shown(server, &ask.kind, ask.version, current).await?;
    let old = &known.value;
    let mut new = match ask.subresource() {
        "scale" => crate::scale::write(ask, old, &patch::scale(ask, old)?)?,
        _ if ask.verb == Verb::Update => object(ask)?,
        _ => patch::patched(server, ask, old)?,
    };
    metadata::keep(ask, old, &mut new)?;
    only_what_the_path_may_write(ask, old, &mut new);
    rules::complete(ask, &mut new);
    // before webhooks are asked, and before the server puts back what is its own
    let operation = if ask.media == Media::ApplyPatch { Operation::Apply } else { Operation::Update };
    machinery::own(server, ask, operation, Some(old), &mut new);
    let write = Write {
        operation: admission::Operation::Update,
        name: ask.name(),
        old: Some(old),
        new: None,
        dry_run: ask.is_dry_run(),
    };
    if let Some(mutated) = admission::mutate(server, ask, Write { new: Some(&new), ..write }).await? {
        let before = std::mem::replace(&mut new, super::mutated(ask, mutated)?);
        metadata::keep(ask, old, &mut new)?;
        only_what_the_path_may_write(ask, old, &mut new);
        rules::complete(ask, &mut new);
        machinery::own_after_webhooks(&before, &mut new);
    }
    rules::may_grant(server, ask, Some(old), &new)?;
    rules::prepare_update(server, ask, old, &mut new);
    rules::validate(server, ask, Some(old), &new)?;
    rules::as_stored(ask, &mut new);
    // a write brings an object into the version that is stored: storage migration is a PUT of what is there
    let migrates = ask.kind.is_custom() && current.value["apiVersion"] != ask.kind.stored_as;
    if !differs(old, &new) && !migrates {
        return Ok(Some(known));
    }
    admission::validate(server, ask, Write { new: Some(&new), ..write }).await?;
    if ask.api().keeps_generation && counts(ask.api(), old, &new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        new["metadata"]["generation"] = generation.into();
    }
    let mut new = conversion::kept(server, &ask.kind, new).await?;
    let stored = server.0.store.transact(|inner| {
        let newest = inner.get(&ask.kind.table, &key(ask));
        if newest.is_none_or(|newest| newest.revision != current.revision) {
            return Ok(None);
        }
        rules::allocate(inner, ask, Some(old), &mut new)?;
        if ask.is_dry_run() {
            return Ok(Some(Arc::new(Stored::unkept(new))));
        }
        if current.is_deleting() && !is_held(&ask.kind, &new) {
            // watchers see it go as it was, and the writer gets what was sent, under the version that it had
            inner.remove(&ask.kind.table, &key(ask));
            new["metadata"]["resourceVersion"] = current.revision.to_string().into();
            return Ok(Some(Arc::new(Stored::unkept(new))));
        }
        Ok(Some(inner.put(&ask.kind.table, new)))
    })?;
    if let Some(stored) = &stored
        && ask.kind.behaviour == Behaviour::Definition
        && !ask.is_dry_run()
    {
        follow_definition(server, &stored.value);
    }
    Ok(stored)
}

/// Whether something still keeps a deleted object.
pub(crate) fn is_held(kind: &Kind, object: &Value) -> bool {
    let any = |finalizers: &Value| finalizers.as_array().is_some_and(|list| !list.is_empty());
    any(&object["metadata"]["finalizers"])
        || (kind.behaviour == Behaviour::Namespace && any(&object["spec"]["finalizers"]))
}

/// The main path does not write the status where that has a path of its own, and the status path nothing else.
fn only_what_the_path_may_write(ask: &Ask, old: &Value, new: &mut Value) {
    let take = |new: &mut Value, field: &str| match old.get(field) {
        Some(value) => new[field] = value.clone(),
        None => drop(new.as_object_mut().map(|object| object.remove(field))),
    };
    match ask.subresource() {
        "status" if ask.kind.is_custom() => {
            let status = new.get("status").cloned();
            let fields = new["metadata"].get("managedFields").cloned();
            *new = old.clone();
            match status {
                Some(status) => new["status"] = status,
                None => drop(new.as_object_mut().map(|object| object.remove("status"))),
            }
            if let Some(fields) = fields {
                new["metadata"]["managedFields"] = fields;
            }
        }
        "status" => {
            let others: Vec<String> = old.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
            for field in others.iter().filter(|field| !matches!(field.as_str(), "metadata" | "status")) {
                take(new, field);
            }
        }
        "finalize" => {
            let finalizers = new["spec"]["finalizers"].clone();
            let metadata = new["metadata"].clone();
            *new = old.clone();
            new["metadata"] = metadata;
            new["spec"]["finalizers"] = finalizers;
        }
        "ephemeralcontainers" => {
            let containers = new["spec"]["ephemeralContainers"].clone();
            let metadata = new["metadata"].clone();
            *new = old.clone();
            new["metadata"] = metadata;
            if containers.is_array() {
                new["spec"]["ephemeralContainers"] = containers;
            }
        }
        "" if ask.api().has_status() => take(new, "status"),
        _ => {}
    }
}

/// Whether a change is one that `metadata.generation` counts.
fn counts(kind: &api::Kind, old: &Value, new: &Value) -> bool {
    let has_status = kind.has_status();
    let counted = |field: &str| !(field == "metadata" || (field == "status" && has_status));
    let fields = |object: &Value| -> Vec<String> {
        object.as_object().into_iter().flatten().map(|(field, _)| field.clone()).collect()
    };
    let mut all = fields(old);
    all.extend(fields(new));
    all.iter().any(|field| counted(field) && old.get(field) != new.get(field))
}
