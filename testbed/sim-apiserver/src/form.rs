//! The forms in which an object can be asked for: whole, its metadata alone, or rows of a table.

use bytes::Bytes;
use serde_json::{Value, json};
use sim_apimachinery::event;

use crate::Failure;
use crate::kind::{Behaviour, Kind};

/// The part of an object that an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
    /// A table for kubectl, and what each row holds of its object.
    Table(Include),
}

/// `includeObject` of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

/// A shape in one version of a kind: objects are serialised once for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    dialect: usize,
    shape: Shape,
}

/// The second group that serves Events has a dialect of its own in the same storage.
const NEW_EVENT: usize = usize::MAX;

impl Form {
    pub(crate) fn of(kind: &Kind, version: usize, shape: Shape) -> Self {
        let dialect = if kind.behaviour == Behaviour::NewEvent { NEW_EVENT } else { version };
        Self { dialect, shape }
    }

    #[cfg(test)]
    pub(crate) fn json(version: usize) -> Self {
        Self { dialect: version, shape: Shape::Whole }
    }
}

impl Shape {
    /// The first form of an `Accept` header that the server has.
    pub(crate) fn negotiate(accept: &str, include: Option<&str>) -> Result<Self, Failure> {
        if accept.trim().is_empty() {
            return Ok(Self::Whole);
        }
        for choice in accept.split(',') {
            let mut parts = choice.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(media, "application/json" | "*/*" | "application/*" | "application/yaml") {
                continue;
            }
            let shape = parts.find_map(|part| part.strip_prefix("as="));
            return Ok(match shape {
                Some("Table") => Self::Table(match include {
                    Some("None") => Include::None,
                    Some("Object") => Include::Object,
                    _ => Include::Metadata,
                }),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Self::Metadata,
                Some(_) => continue,
                None => Self::Whole,
            });
        }
        Err(Failure::not_acceptable(&["application/json"]))
    }
}

/// An object as it is kept, in the words of one version.
pub(crate) fn in_version(kind: &Kind, version: usize, stored: &Value) -> Value {
    if kind.behaviour == Behaviour::NewEvent {
        return event::to_new(stored);
    }
    let mut object = stored.clone();
    let known = object["apiVersion"] == kind.api(version).api_version();
    object["apiVersion"] = kind.api(version).api_version().into();
    if kind.is_custom() && !known {
        kind.versions[version].schema.prune(&mut object);
    }
    object
}

/// The metadata of an object, with the kind that says so.
pub(crate) fn metadata_only(stored: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"],
    })
}

/// The bytes of an object that is not a table.
pub(crate) fn bytes(kind: &Kind, version: usize, shape: Shape, stored: &Value) -> Bytes {
    match shape {
        Shape::Metadata => to_bytes(&metadata_only(stored)),
        _ if stored["apiVersion"] == kind.api(version).api_version() => to_bytes(stored),
        _ => to_bytes(&in_version(kind, version, stored)),
    }
}

/// The JSON of a value.
pub(crate) fn to_bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a JSON value can be written").into()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", Some(Shape::Whole))]
    #[case::anything("*/*", Some(Shape::Whole))]
    #[case::kubectl_get(
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
        Some(Shape::Table(Include::Metadata))
    )]
    #[case::metadata(
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        Some(Shape::Metadata)
    )]
    #[case::protobuf_first("application/vnd.kubernetes.protobuf,application/json", Some(Shape::Whole))]
    #[case::protobuf_only("application/vnd.kubernetes.protobuf", None)]
    fn the_first_form_that_the_server_has_is_answered(#[case] accept: &str, #[case] shape: Option<Shape>) {
        assert_eq!(Shape::negotiate(accept, None).ok(), shape);
    }
}
