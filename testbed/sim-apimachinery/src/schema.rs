//! Schemas of kinds: what an object may contain, what stands in for what it leaves out, who may own which part.
//!
//! ```text
//! CRD's openAPIV3Schema ──Schema::of_crd──┐
//!                                         ├─► Schema ─► unknown fields, pruning, defaults, faults,
//! types of the built-in kinds ─builtin()──┘             list and map types (managed fields, apply, patches)
//! ```
//! The order of the real server: read (unknown fields), prune, default, validate.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

pub use builtin::{builtin, object_meta};
pub use prune::unknown_fields;

mod builtin;
mod crd;
mod defaults;
mod formats;
mod go;
mod prune;
mod validate;

/// JSON type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Type {
    /// Anything (`x-kubernetes-preserve-unknown-fields` without a type).
    #[default]
    Any,
    /// Named properties, or a map.
    Object,
    /// A list.
    Array,
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// true or false.
    Boolean,
    /// A port or a percentage: integer or text.
    IntOrString,
}

/// The rule by which lists are merged and owned (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// As a whole.
    #[default]
    Atomic,
    /// Each value for itself.
    Set,
    /// Each item for itself, known by these keys.
    Map(Vec<String>),
}

/// The rule by which a strategic merge patch treats a field; nothing for kinds from CRDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategy {
    /// Lists are merged instead of replaced.
    pub merge: bool,
    /// By which key the items of a merged list are known; none for lists of scalars.
    pub merge_key: Option<String>,
    /// `$retainKeys` is understood.
    pub retain_keys: bool,
}

/// The schema of a value.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// JSON type.
    pub r#type: Type,
    /// Named fields.
    pub properties: BTreeMap<String, Arc<Self>>,
    /// Schema of every other field.
    pub additional: Option<Arc<Self>>,
    /// Schema of every item of a list.
    pub items: Option<Arc<Self>>,
    /// Fields that must be there.
    pub required: Vec<String>,
    /// Default for an absent value.
    pub default: Option<Value>,
    /// null is a value.
    pub nullable: bool,
    /// Unknown fields are kept.
    pub preserve_unknown: bool,
    /// The value is itself an object with apiVersion, kind and metadata.
    pub embedded: bool,
    /// Rule by which lists are merged and owned.
    pub list: ListType,
    /// A map or struct that is owned as a whole (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// Rule by which a strategic merge patch treats the value.
    pub strategy: Strategy,
    /// Bounds and forms of values; only kinds from CRDs have them.
    rules: Rules,
    /// Name of the Go type for decoding errors; only built-in kinds have it.
    go: &'static str,
}

#[derive(Clone, Debug, Default)]
struct Rules {
    r#enum: Vec<Value>,
    pattern: Option<(String, regex::Regex)>,
    format: String,
    minimum: Option<(f64, bool)>,
    maximum: Option<(f64, bool)>,
    multiple_of: Option<f64>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    min_properties: Option<usize>,
    max_properties: Option<usize>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
}

impl Schema {
    /// A schema that allows everything and keeps it.
    pub fn anything() -> Self {
        Self { preserve_unknown: true, nullable: true, ..Self::default() }
    }

    /// The schema of a field or map value.
    pub fn field(&self, name: &str) -> Option<&Arc<Self>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}

/// Extends the path of an object's field.
fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests;
