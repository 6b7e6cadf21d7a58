//! Objects as the server sent them: only the name is decoded.
//!
//! All caches watch this one type, or its twin for metadata, and read their own from it, each object by itself: one that cannot
//! be read hides no other, and the machinery of lists and watches is compiled for these two instead of for every kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Watched;
use crate::{ObjectKey, json_text::without_managed_fields};

/// The JSON of an object without its `managedFields`, and of its metadata what a watch goes by. With `METADATA` an API is asked
/// for the metadata alone.
#[derive(Clone, Debug)]
pub(super) struct Undecoded<const METADATA: bool = false> {
    metadata: ObjectMeta,
    json: String,
}

/// The part of an object that tells which one it is.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Value,
}

/// An object that is there but is not what its kind should be.
#[derive(Clone, Debug)]
pub(super) struct DecodeError {
    pub(super) key: ObjectKey,
    pub(super) error: String,
}

impl Undecoded<true> {
    /// What was answered, however it was asked for.
    pub(super) fn erase_form(self) -> Undecoded {
        let Self { metadata, json } = self;
        Undecoded { metadata, json }
    }
}

impl Undecoded {
    pub(super) fn key(&self) -> ObjectKey {
        let ObjectMeta { namespace, name, .. } = &self.metadata;
        ObjectKey::new(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
    }

    pub(super) fn read<K: Watched>(self) -> Result<K, DecodeError> {
        serde_json::from_str(&self.json)
            .map_err(|error| DecodeError { key: self.key(), error: error.to_string() })
    }
}

impl<'de, const METADATA: bool> Deserialize<'de> for Undecoded<METADATA> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = without_managed_fields(deserializer)?;
        // metadata of a wrong type counts as empty: decoding this object reports it, and the others go on
        let Head { metadata } = serde_json::from_str(&json).unwrap_or_default();
        let text = |field: &str| Some(metadata.get(field)?.as_str()?.to_owned());
        let metadata = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, json })
    }
}

impl<const METADATA: bool> Resource for Undecoded<METADATA> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        METADATA
    }

    fn kind(kind: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&kind.kind)
    }

    fn group(kind: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&kind.group)
    }

    fn version(kind: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&kind.version)
    }

    fn api_version(kind: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&kind.api_version)
    }

    fn plural(kind: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&kind.plural)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
