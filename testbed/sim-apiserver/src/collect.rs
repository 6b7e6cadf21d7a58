//! The controllers that live inside the server: garbage collection by owners, the end of namespaces, ClusterRoles that
//! gather the rules of others, and tokens of service accounts.
//!
//! All run after the write that gives them work, as a task of their own: a client that goes away does not stop them.

use std::sync::Arc;

use serde_json::Value;
use sim_apimachinery::rbac;

use crate::kind::{Behaviour, Kind};
use crate::request::{Target, Verb};
use crate::rights::CLUSTER_ROLES;
use crate::server::{ApiServer, Ask};
use crate::store::{Chore, Key, Stored};
use crate::tokens;
use crate::user::User;
use crate::write::delete::{Deletion, FOREGROUND, ORPHAN, Options, delete};
use crate::write::is_held;

/// Does what the last writes have left to do.
pub(crate) fn start(server: &ApiServer) {
    let chores = server.0.store.take_chores();
    if !chores.is_empty() {
        let server = server.clone();
        tokio::spawn(async move { work(&server, chores).await });
    }
}

async fn work(server: &ApiServer, mut chores: Vec<Chore>) {
    while !chores.is_empty() {
        for chore in chores {
            match chore {
                Chore::Dependents { owner } => lost_owner(server, &owner).await,
                Chore::Orphan { table, key } => orphan(server, &table, &key).await,
                Chore::Deleting { table, key } => deleting(server, &table, &key).await,
                Chore::Namespace { name } => namespace(server, &name).await,
                Chore::Roles => roles(server),
                Chore::Token { key } => token(server, &key).await,
            }
        }
        chores = server.0.store.take_chores();
    }
}

/// An owner is gone.
async fn lost_owner(server: &ApiServer, owner: &str) {
    for (table, key) in server.0.store.dependents(owner) {
        orphan(server, &table, &key).await;
    }
}

/// Deletes an object all of whose owners are gone, or drops the references to those that are.
async fn orphan(server: &ApiServer, table: &Arc<str>, key: &Key) {
    let Some(object) = server.0.store.get(table, key) else { return };
    let lives = |owner: &Value| is_alive(server, &object, owner["uid"].as_str().unwrap_or_default());
    let owners = object.value["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
    let living: Vec<Value> = owners.iter().filter(|owner| lives(owner)).cloned().collect();
    if owners.is_empty() || living.len() == owners.len() {
        return;
    }
    if living.is_empty() {
        remove(server, table, key).await;
    } else {
        rewrite(server, table, key, |object| object["metadata"]["ownerReferences"] = living.clone().into());
    }
}

/// Owners are in the same namespace or in none.
fn is_alive(server: &ApiServer, dependent: &Stored, owner: &str) -> bool {
    server.0.store.place(owner).is_some_and(|(_, key)| {
        key.namespace.is_empty() || dependent.value["metadata"]["namespace"] == key.namespace.as_str()
    })
}

/// An object waits for the garbage collector.
async fn deleting(server: &ApiServer, table: &Arc<str>, key: &Key) {
    let Some(object) = server.0.store.get(table, key) else { return };
    let finalizers = object.value["metadata"]["finalizers"].as_array();
    let has = |name: &str| finalizers.is_some_and(|list| list.iter().any(|finalizer| finalizer == name));
    let uid = object.uid();
    if has(ORPHAN) {
        for (table, key) in server.0.store.dependents(uid) {
            rewrite(server, &table, &key, |dependent| drop_owner(dependent, uid));
        }
        finalize(server, table, key, ORPHAN);
    }
    if has(FOREGROUND) {
        for (table, key) in server.0.store.dependents(uid) {
            remove(server, &table, &key).await;
        }
        let blocked = server.0.store.dependents(uid).iter().any(|(table, key)| {
            server.0.store.get(table, key).is_some_and(|dependent| blocks(&dependent.value, uid))
        });
        if !blocked {
            finalize(server, table, key, FOREGROUND);
        }
    }
}

fn blocks(dependent: &Value, owner: &str) -> bool {
    let owners = dependent["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|o| o["uid"] == owner && o["blockOwnerDeletion"] == true)
}

fn drop_owner(dependent: &mut Value, uid: &str) {
    if let Some(owners) = dependent.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut) {
        owners.retain(|owner| owner["uid"] != uid);
    }
}

/// Takes a finalizer away, and the object with the last one.
fn finalize(server: &ApiServer, table: &Arc<str>, key: &Key, finalizer: &str) {
    rewrite(server, table, key, |object| {
        if let Some(finalizers) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|f| f != finalizer);
        }
    });
}

/// A namespace that is being deleted takes everything in it along, and goes last.
async fn namespace(server: &ApiServer, name: &str) {
    let key = Key::new("", name);
    let ending = server.0.store.get("namespaces", &key).is_some_and(|namespace| namespace.is_deleting());
    if !ending {
        return;
    }
    for (table, object) in server.0.store.contents(name) {
        if !object.is_deleting() {
            remove(server, &table, &Key::of(&object.value)).await;
        }
    }
    if server.0.store.contents(name).is_empty() {
        rewrite(server, &"namespaces".into(), &key, |namespace| {
            namespace["spec"]["finalizers"] = Value::Array(vec![]);
        });
    }
}

/// ClusterRoles that gather the rules of others get those that there are now.
fn roles(server: &ApiServer) {
    let roles = server.0.store.list(CLUSTER_ROLES, None).1;
    for (name, rules) in rbac::gather(roles.iter().map(|role| &role.value)) {
        rewrite(server, &CLUSTER_ROLES.into(), &Key::new("", &name), |role| role["rules"] = rules);
    }
}

/// A Secret gets the token of its service account, or goes the way that the account went.
async fn token(server: &ApiServer, key: &Key) {
    let table: Arc<str> = "secrets".into();
    let Some(secret) = server.0.store.get(&table, key) else { return };
    match tokens::fill(server, &secret) {
        Some(change) => rewrite(server, &table, key, change),
        None => remove(server, &table, key).await,
    }
}

fn rewrite(server: &ApiServer, table: &Arc<str>, key: &Key, change: impl FnOnce(&mut Value)) {
    let Some(kind) = kind_of(server, table) else { return };
    server.0.store.transact(|inner| {
        let Some(current) = inner.get(table, key) else { return };
        let mut object = current.value.clone();
        change(&mut object);
        if object == current.value {
            return;
        }
        let stored = inner.put(table, object);
        if stored.is_deleting() && !is_held(&kind, &stored.value) {
            inner.remove(table, key);
        }
    });
    if kind.behaviour == Behaviour::Definition && server.0.store.get(table, key).is_none() {
        server.change_kinds(|kinds| {
            if let Some((plural, group)) = key.name.split_once('.') {
                kinds.remove(group, plural);
            }
        });
    }
}

fn kind_of(server: &ApiServer, table: &str) -> Option<Arc<Kind>> {
    let kinds = server.kinds();
    kinds.iter().find(|kind| &*kind.table == table && kind.behaviour != Behaviour::NewEvent).cloned()
}

/// Deletes as the garbage collector does: as a user of its own, through the same rules as everybody.
async fn remove(server: &ApiServer, table: &Arc<str>, key: &Key) {
    let Some(kind) = kind_of(server, table) else {
        // the definition went first
        server.0.store.transact(|inner| inner.remove(table, key));
        return;
    };
    let version = kind.versions.iter().position(|v| v.api.storage).unwrap_or(0);
    let target = Target {
        group: kind.group.clone(),
        version: kind.api(version).version.clone(),
        namespace: kind.namespaced.then(|| key.namespace.clone()),
        plural: kind.plural.clone(),
        name: Some(key.name.clone()),
        ..Target::default()
    };
    let user = User::service_account("kube-system", "generic-garbage-collector").with_group(rbac::MASTERS);
    let ask = Ask::internal(user, Verb::Delete, target, kind, version);
    match delete(server, &ask, key, &Options::default()).await {
        Ok(Deletion::Removed(_) | Deletion::Waiting(_)) => {}
        // gone already, or refused by a webhook, which the next change asks again
        Err(failure) => tracing::debug!(%failure, ?key, "not collected"),
    }
}

/// A definition is gone: so are its objects, and then its kind.
pub(crate) fn forget_kind(server: &ApiServer, definition: &Value) {
    let (group, plural) = (&definition["spec"]["group"], &definition["spec"]["names"]["plural"]);
    let (Some(group), Some(plural)) = (group.as_str(), plural.as_str()) else { return };
    let mut kind = None;
    server.change_kinds(|kinds| kind = kinds.remove(group, plural));
    let Some(kind) = kind else { return };
    for object in server.0.store.list(&kind.table, None).1 {
        server.0.store.transact(|inner| inner.remove(&kind.table, &Key::of(&object.value)));
    }
}
