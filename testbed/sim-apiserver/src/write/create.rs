//! Create: POST, and an apply patch to a name that is not there.

use std::sync::Arc;

use serde_json::Value;
use sim_apimachinery::{builtin, kind as api};

use super::{follow_definition, metadata, object};
use crate::admission::{self, Write};
use crate::kind::Behaviour;
use crate::machinery::{self, Operation};
use crate::request::Target;
use crate::rules;
use crate::server::{ApiServer, Ask};
use crate::store::{Inner, Key, Lifetime, Stored};
use crate::{Failure, conversion, seen_events};

/// Makes the object in the body of a POST.
pub(super) async fn create(server: &ApiServer, ask: &Ask) -> Result<Arc<Stored>, Failure> {
    match &ask.target {
        Target { name: None, .. } => {}
        Target { subresource: Some(name), .. } if !ask.api().has_subresource(name) => {
            return Err(Failure::no_such_path());
        }
        _ => return Err(Failure::method_not_allowed()),
    }
    if ask.media.is_patch() {
        return Err(Failure::unsupported_media_type(&["application/json", "application/yaml"]));
    }
    let object = object(ask)?;
    store(server, ask, object, Operation::Update).await
}

/// Makes an object: the common part of both ways.
pub(super) async fn store(
    server: &ApiServer,
    ask: &Ask,
    mut object: Value,
    operation: Operation,
) -> Result<Arc<Stored>, Failure> {
    let kind = &ask.kind;
    if kind.namespaced && ask.namespace().is_empty() {
        return Err(Failure::method_not_allowed());
    }
    metadata::stamp(server, ask, &mut object)?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if kind.namespaced {
        server.0.store.transact(|inner| in_a_living_namespace(inner, ask, &name))?;
    }
    rules::complete(ask, &mut object);
    // before webhooks are asked, and before the server adds what is its own
    machinery::own(server, ask, operation, None, &mut object);
    let dry_run = ask.is_dry_run();
    let write = Write { operation: admission::Operation::Create, name: &name, old: None, new: None, dry_run };
    if let Some(mutated) = admission::mutate(server, ask, Write { new: Some(&object), ..write }).await? {
        let before = std::mem::replace(&mut object, super::mutated(ask, mutated)?);
        rules::complete(ask, &mut object);
        machinery::own_after_webhooks(&before, &mut object);
    }
    rules::may_grant(server, ask, None, &object)?;
    rules::prepare_create(server, ask, &mut object)?;
    rules::validate(server, ask, None, &object)?;
    admission::validate(server, ask, Write { new: Some(&object), ..write }).await?;
    rules::as_stored(ask, &mut object);
    let mut object = conversion::kept(server, kind, object).await?;
    let table = &kind.table;
    let stored = server.0.store.transact(|inner| {
        // again, under the lock: it may have gone while webhooks were asked
        if kind.namespaced {
            in_a_living_namespace(inner, ask, &name)?;
        }
        if inner.get(table, &Key::of(&object)).is_some() {
            return Err(Failure::already_exists(ask.api(), &name));
        }
        rules::allocate(inner, ask, None, &mut object)?;
        if dry_run {
            return Ok(Arc::new(Stored::unkept(object)));
        }
        Ok(inner.put(table, object))
    })?;
    if kind.behaviour == Behaviour::Definition && !dry_run {
        follow_definition(server, &stored.value);
    }
    if !dry_run && kind.plural == "events" {
        seen_events::note(&stored.value);
    }
    Ok(stored)
}

fn in_a_living_namespace(inner: &Inner, ask: &Ask, name: &str) -> Result<(), Failure> {
    let namespace = ask.namespace();
    match inner.namespace(namespace) {
        Some(Lifetime::Active) => Ok(()),
        Some(Lifetime::Ending) => Err(Failure::namespace_terminating(ask.api(), name, namespace)),
        None => Err(Failure::not_found(namespaces(), namespace)),
    }
}

fn namespaces() -> &'static api::Kind {
    builtin::find("v1", "Namespace").expect("every cluster has namespaces")
}
