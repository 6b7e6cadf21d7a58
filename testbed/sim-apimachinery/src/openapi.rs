//! OpenAPI v3, as much of it as kubectl reads: it looks up field validation and patch strategies before it applies,
//! and `kubectl explain` prints the schemas.
//!
//! ```text
//! /openapi/v3          index: group version -> path with a hash (kubectl keeps what it has read)
//! /openapi/v3/api/v1   document: the patch and get of each kind, and the schemas
//! ```
//! The schemas of built-in kinds are made from the table in `types.rs`; they know every field, its type and its
//! patch strategy, and describe the fields that people look up here (`openapi/descriptions.txt`), not all.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::kind::{Kind, Origin};

mod builtin;

/// A kind of a document; `schema` is `openAPIV3Schema` of a CRD, none for built-in kinds.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The kind.
    pub kind: &'a Kind,
    /// Its schema, if it comes from a CRD.
    pub schema: Option<&'a Value>,
}

/// The path of a group version under `/openapi/v3/`: `api/v1` or `apis/apps/v1`.
pub fn path(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", kind.api_version())
}

/// `/openapi/v3`: the documents there are, each as path (see [`path`]) and hash (see [`hash`]).
pub fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let paths = documents
        .into_iter()
        .map(|(path, hash)| {
            (path.to_owned(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}))
        })
        .collect::<Map<_, _>>();
    json!({"paths": paths})
}

/// A hash for the index: another text has another one.
pub fn hash(document: &str) -> String {
    // FNV-1a; nothing depends on it but whether kubectl reads again
    let hash = document.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016X}")
}

/// The document of one group version.
pub fn document(kinds: &[Described<'_>]) -> Value {
    let mut paths = Map::new();
    let mut schemas: BTreeMap<String, Value> = BTreeMap::new();
    for Described { kind, schema } in kinds {
        let id = match schema {
            Some(schema) => custom(kind, schema, &mut schemas),
            None => builtin::kind(kind, &mut schemas),
        };
        let Some(id) = id else { continue };
        let collection = kind.path(Some("{namespace}"));
        paths.insert(collection.clone(), collection_operations(kind, &id));
        if kind.offers("get") {
            paths.insert(format!("{collection}/{{name}}"), object_operations(kind, &id));
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes (simulated)", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn gvk(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn reference(id: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{id}")})
}

fn operation(kind: &Kind, action: &str, id: &str, media: &[&str]) -> Value {
    let query =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let parameters = match action {
        "get" | "list" => Vec::new(),
        _ => ["dryRun", "fieldManager", "fieldValidation"].map(query).to_vec(),
    };
    let mut operation = json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference(id)}}}},
    });
    if !media.is_empty() {
        let content = media
            .iter()
            .map(|media| ((*media).to_owned(), json!({"schema": reference(id)})))
            .collect::<Map<_, _>>();
        operation["requestBody"] = json!({"content": content, "required": true});
    }
    operation
}

fn collection_operations(kind: &Kind, id: &str) -> Value {
    let mut operations = json!({});
    if kind.offers("list") {
        operations["get"] = operation(kind, "list", id, &[]);
    }
    operations["post"] = operation(kind, "post", id, &["application/json"]);
    operations
}

fn object_operations(kind: &Kind, id: &str) -> Value {
    const PATCHES: [&str; 4] = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ];
    let patches = if kind.origin == Origin::Builtin { &PATCHES[..] } else { &PATCHES[..3] };
    json!({
        "get": operation(kind, "get", id, &[]),
        "put": operation(kind, "put", id, &["application/json"]),
        "patch": operation(kind, "patch", id, patches),
        "delete": operation(kind, "delete", id, &[]),
    })
}

/// The schema of a CRD as published: with the fields that every object has.
fn custom(kind: &Kind, schema: &Value, schemas: &mut BTreeMap<String, Value>) -> Option<String> {
    let reversed = kind.group.split('.').rev().collect::<Vec<_>>().join(".");
    let id = format!("{reversed}.{}.{}", kind.version, kind.kind);
    let mut published = schema.clone();
    let root = published.as_object_mut()?;
    root.insert("type".to_owned(), "object".into());
    root.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk(kind)]));
    if !root.get("properties").is_some_and(Value::is_object) {
        root.insert("properties".to_owned(), json!({}));
    }
    builtin::own_fields(&mut published["properties"], schemas);
    schemas.insert(id.clone(), published);
    Some(id)
}

#[cfg(test)]
mod tests;
