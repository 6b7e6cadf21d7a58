//! Manifests as people write them: many documents, any kind that the server knows.

use anyhow::{Context, Result, bail};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{ApiResource, Scope, pinned_kind},
    error::DiscoveryError,
};
use serde::Deserialize;
use serde_json::Value;

/// Field manager of what the sandbox applies.
const MANAGER: &str = "sandbox";

/// The objects of `text`: its documents without empty ones, and the items of a `List` each for itself.
///
/// # Errors
/// When a document is not YAML.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("not YAML")?;
    let objects = documents.into_iter().flat_map(|mut document| match document.get("kind") {
        Some(kind) if kind == "List" => match document["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        },
        _ => vec![document],
    });
    Ok(objects.filter(|document| !document.is_null()).collect())
}

/// Creates the objects of `text`, or merges them into those that are there; `source` names the text in errors.
///
/// # Errors
/// The first document that is not an object of a known kind, or that the server refuses, with the server's words.
pub(crate) async fn apply(client: &Client, source: &str, text: &str) -> Result<usize> {
    let documents = documents(text).with_context(|| format!("{source}: cannot be read"))?;
    for (index, document) in documents.iter().enumerate() {
        let what = || format!("{source}: document {} ({})", index + 1, title(document));
        apply_one(client, document).await.with_context(what)?;
    }
    Ok(documents.len())
}

pub(crate) async fn apply_one(client: &Client, document: &Value) -> Result<()> {
    let object = DynamicObject::deserialize(document).context("is not a Kubernetes object")?;
    let types = object.types.clone().context("has no apiVersion and kind")?;
    let gvk = GroupVersionKind::try_from(&types).context("has no readable apiVersion")?;
    let (resource, capabilities) = match pinned_kind(client, &gvk).await {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            bail!("the server knows no API {}", types.api_version)
        }
        Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => {
            bail!("the server knows no kind {} in {}", types.kind, types.api_version)
        }
        Err(error) => return Err(plain(error)).with_context(|| format!("look up kind {}", types.kind)),
    };
    let name = object.metadata.name.clone().context("has no metadata.name")?;
    let api = api_for(client, &resource, &capabilities.scope, object.namespace().as_deref());
    let how = PatchParams::apply(MANAGER).force();
    api.patch(&name, &how, &Patch::Apply(document)).await.map_err(plain)?;
    Ok(())
}

/// An API for objects of a kind known at run time; namespaced ones without namespace are those of `default`.
pub(crate) fn api_for(
    client: &Client,
    resource: &ApiResource,
    scope: &Scope,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    match scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), resource),
    }
}

/// The server's own words, without the rest of its Status.
pub(crate) fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        error => error.into(),
    }
}

fn title(document: &Value) -> String {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{} {}", text("/kind"), text("/metadata/name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_its_items_and_empty_documents_are_nothing() {
        let text =
            "---\n---\n{kind: List, items: [{kind: A}, {kind: B}]}\n---\n{kind: List}\n---\n{kind: C}\n";
        let kinds: Vec<_> = documents(text).unwrap().iter().map(|object| object["kind"].clone()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }
}
