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

use crate::WrongInput;

/// Field manager of what the sandbox applies.
const MANAGER: &str = "sandbox";

/// The group that an example of Harvester's documentation names for pools (docs/contract/user-docs.md#17c), and what it means.
const MISNAMED: (&str, &str) = ("networking.harvesterhci.io", "loadbalancer.harvesterhci.io/v1beta1");

/// The objects of one text, each with its place in it.
#[derive(Debug)]
pub(crate) struct Manifest {
    objects: Vec<(String, Value)>,
}

impl Manifest {
    /// Reads `text`, of which errors speak as `source`: its documents without empty ones, and the items of a `List`
    /// each for itself.
    ///
    /// # Errors
    /// All that is wrong with it as far as can be told without a server, one line for each document.
    pub(crate) fn read(source: &str, text: &str) -> Result<Self, WrongInput> {
        let (mut objects, mut faults) = (Vec::new(), Vec::new());
        let mut bytes = text.as_bytes();
        for (index, document) in serde_saphyr::read::<_, Value>(&mut bytes).enumerate() {
            let place = format!("{source}: document {}", index + 1);
            match document {
                Ok(document) => objects.extend(items(place, document)),
                Err(error) => faults.push(format!("{place}: not YAML: {}", error.without_snippet())),
            }
        }
        for (place, object) in &mut objects {
            *place = format!("{place} ({})", title(object));
            faults.extend(fault(object).map(|fault| format!("{place}: {fault}")));
        }
        if faults.is_empty() { Ok(Self { objects }) } else { Err(WrongInput(faults.join("\n"))) }
    }

    /// Creates the objects, or merges them into those that are there.
    ///
    /// # Errors
    /// The first that the server does not know or refuses, with the server's words.
    pub(crate) async fn apply(&self, client: &Client) -> Result<()> {
        for (place, object) in &self.objects {
            apply_one(client, object).await.with_context(|| place.clone())?;
        }
        Ok(())
    }
}

/// Reads and applies `text`; `source` names it in errors.
///
/// # Errors
/// As [`Manifest::read`] and [`Manifest::apply`].
pub(crate) async fn apply(client: &Client, source: &str, text: &str) -> Result<()> {
    Manifest::read(source, text)?.apply(client).await
}

fn items(place: String, mut document: Value) -> Vec<(String, Value)> {
    if document.get("kind").is_none_or(|kind| kind != "List") {
        return vec![(place, document)];
    }
    let Value::Array(items) = document["items"].take() else { return Vec::new() };
    let numbered = items.into_iter().enumerate();
    numbered.map(|(index, item)| (format!("{place}, item {}", index + 1), item)).collect()
}

/// A mistake that needs no server to be found, and its remedy.
fn fault(object: &Value) -> Option<String> {
    let text =
        |pointer: &str| object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let Some(version) = text("/apiVersion") else {
        return Some("has no apiVersion: write one, for example apiVersion: v1".to_owned());
    };
    let (wrong, right) = MISNAMED;
    if version.split_once('/').is_some_and(|(group, _)| group == wrong) {
        return Some(format!("there is no group {wrong}: write apiVersion: {right}"));
    }
    if text("/kind").is_none() {
        return Some("has no kind: write one, for example kind: Service".to_owned());
    }
    text("/metadata/name").is_none().then(|| "has no metadata.name: give it one".to_owned())
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
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_list_is_its_items_and_empty_documents_are_nothing() {
        let object = |kind: &str| format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: a}}}}");
        let (a, b, c) = (object("A"), object("B"), object("C"));
        let text = format!("---\n---\n{{kind: List, items: [{a}, {b}]}}\n---\n{{kind: List}}\n---\n{c}\n");
        let places: Vec<_> =
            Manifest::read("f", &text).unwrap().objects.into_iter().map(|(place, _)| place).collect();
        assert_eq!(
            places,
            ["f: document 1, item 1 (A a)", "f: document 1, item 2 (B a)", "f: document 3 (C a)"]
        );
    }

    #[rstest]
    #[case::no_object(
        "hello",
        "f: document 1 (? ?): has no apiVersion: write one, for example apiVersion: v1"
    )]
    #[case::no_kind(
        "{apiVersion: v1}",
        "f: document 1 (? ?): has no kind: write one, for example kind: Service"
    )]
    #[case::no_name(
        "{apiVersion: v1, kind: Service}",
        "f: document 1 (Service ?): has no metadata.name: give it one"
    )]
    #[case::misnamed_group_of_the_documentation(
        "{apiVersion: networking.harvesterhci.io/v1beta1, kind: IPPool, metadata: {name: lab}}",
        "f: document 1 (IPPool lab): there is no group networking.harvesterhci.io: \
         write apiVersion: loadbalancer.harvesterhci.io/v1beta1"
    )]
    #[case::each_fault_has_a_line(
        "{apiVersion: v1}\n---\n{apiVersion: v1, kind: A, metadata: {name: a}}\n---\n{apiVersion: v1, kind: B}\n",
        "f: document 1 (? ?): has no kind: write one, for example kind: Service\n\
         f: document 3 (B ?): has no metadata.name: give it one"
    )]
    fn a_wrong_document_is_told_with_its_place_and_what_to_do(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(Manifest::read("f", text).unwrap_err().to_string(), expected);
    }

    #[test]
    fn what_is_not_yaml_is_told_with_its_document_and_line() {
        let text = "{apiVersion: v1, kind: A, metadata: {name: a}}\n---\nkind: [\n";
        let error = Manifest::read("f", text).unwrap_err().to_string();
        assert!(error.starts_with("f: document 2: not YAML: ") && !error.contains('\n'), "{error}");
    }
}
