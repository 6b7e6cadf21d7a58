//! Reads and writes of Services and EndpointSlices, and the meaning of the server's answers.

use std::fmt::Debug;
use std::sync::Arc;

use controller_kit::{Cache, ObjectKey, RawObject, refusal, replace};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    caches::{is_of_kubernetes, is_trimmed},
    condition::MESSAGE_MAX,
    ownership::is_labelled,
};

/// The write that an object needs, if it needs one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Write {
    Nothing,
    Create(Value),
    Replace(Value),
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Written {
    Done,
    /// The object had changed; the cache now has the newer version. Decide again.
    Stale,
    /// The server will not store it, for this reason.
    Refused {
        /// In the server's words.
        why: String,
        /// Nothing but another write, or another rule, ends it. A right may be granted and a quota freed at any time.
        for_good: bool,
    },
}

/// How a DELETE ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deleted {
    Gone,
    /// It has finalizers of others.
    Going,
    /// Our role may not.
    Forbidden,
}

/// A request that failed and may succeed when it is repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{doing} {kind} {key}")]
    Request {
        doing: &'static str,
        kind: String,
        key: ObjectKey,
        #[source]
        source: kube::Error,
    },
}

/// A Service or an EndpointSlice.
pub(crate) trait DatapathKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + DeserializeOwned
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> DatapathKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// Sends `write`; the answer is known to `cache` at once.
pub(crate) async fn carry_out<K: DatapathKind>(
    client: &Client,
    cache: &Cache<RawObject<K>>,
    key: &ObjectKey,
    write: &Write,
) -> Result<Written, Error> {
    let failed = |doing| move |source| error::<K>(doing, key, source);
    let (doing, answer) = match write {
        Write::Nothing => return Ok(Written::Done),
        Write::Create(json) => {
            let object =
                RawObject::<K>::from_json(json.clone()).expect("we made it of the fields of its kind");
            ("create", api(client, key).create(&PostParams::default(), &object).await)
        }
        Write::Replace(json) => ("update", replace::<K>(client, json).await),
    };
    match answer {
        Ok(object) => {
            remember(cache, object);
            Ok(Written::Done)
        }
        Err(kube::Error::Api(status)) if refusal::is_lasting(&status) => {
            let for_good = refusal::is_about_the_object(&status);
            // it repeats the values that it refuses, which a tenant makes as long as the object may be
            let why = status.message.chars().take(4 * MESSAGE_MAX).collect();
            Ok(Written::Refused { why, for_good })
        }
        // a 404 for a POST is not about the object: its namespace is not there
        Err(kube::Error::Api(status)) if status.code == 409 || (status.code == 404 && doing == "update") => {
            refresh(client, cache, key).await.map_err(failed("read"))?;
            Ok(Written::Stale)
        }
        Err(source) => Err(failed(doing)(source)),
    }
}

/// The newest version known of an object. The watch tells only of those with our label: one of somebody else's, and one
/// of ours that lost the label or was given that of Kubernetes' slices, is read from the server, and so is one of which
/// the cache does not hold all.
pub(crate) async fn find<K: DatapathKind>(
    client: &Client,
    cache: &Cache<RawObject<K>>,
    key: &ObjectKey,
) -> Result<Option<Arc<RawObject<K>>>, Error> {
    if let Some(object) = cache.get(key).filter(|object| !is_trimmed(&**object)) {
        return Ok(Some(object));
    }
    let found = api::<K>(client, key).get_opt(&key.name).await;
    Ok(found.map_err(|source| error::<K>("read", key, source))?.map(Arc::new))
}

/// Reads a Service past the watch and the cache.
pub(crate) async fn read_service(
    client: &Client,
    key: &ObjectKey,
) -> Result<Option<RawObject<Service>>, Error> {
    let found = api::<Service>(client, key).get_opt(&key.name).await;
    found.map_err(|source| error::<Service>("read", key, source))
}

/// Reads an object past the watch, into the cache.
async fn refresh<K: DatapathKind>(
    client: &Client,
    cache: &Cache<RawObject<K>>,
    key: &ObjectKey,
) -> kube::Result<()> {
    match api::<K>(client, key).get_opt(&key.name).await? {
        Some(object) if is_watched(&object) => remember(cache, object),
        _ => {
            if let Some(uid) = cache.get(key).and_then(|object| object.uid()) {
                cache.gone(key, &uid);
            }
        }
    }
    Ok(())
}

/// Only objects that the watch tells of get into the cache: it would never learn the end of others.
pub(crate) fn remember<K: DatapathKind>(cache: &Cache<RawObject<K>>, object: RawObject<K>) {
    if is_watched(&object) {
        cache.wrote(object);
    }
}

fn is_watched<K: DatapathKind>(object: &RawObject<K>) -> bool {
    let is_slice = K::kind(&()) == EndpointSlice::kind(&());
    is_labelled(object.meta()) && !(is_slice && is_of_kubernetes(object))
}

/// Deletes a Service, if it still is the one that `cache` knows.
pub(crate) async fn delete(
    client: &Client,
    cache: &Cache<RawObject<Service>>,
    key: &ObjectKey,
    uid: &str,
) -> Result<Deleted, Error> {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api::<Service>(client, key).delete(&key.name, &params).await {
        Ok(answer) => match answer.left().filter(|object| !object.finalizers().is_empty()) {
            Some(object) => {
                remember(cache, object);
                Ok(Deleted::Going)
            }
            None => {
                cache.gone(key, uid);
                Ok(Deleted::Gone)
            }
        },
        // gone already, or another object of that name by now
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            cache.gone(key, uid);
            Ok(Deleted::Gone)
        }
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Deleted::Forbidden),
        Err(source) => Err(error::<Service>("delete", key, source)),
    }
}

fn api<K: DatapathKind>(client: &Client, key: &ObjectKey) -> Api<RawObject<K>> {
    Api::namespaced(client.clone(), &key.namespace)
}

fn error<K: Resource<DynamicType = ()>>(doing: &'static str, key: &ObjectKey, source: kube::Error) -> Error {
    Error::Request { doing, kind: K::kind(&()).into_owned(), key: key.clone(), source }
}
