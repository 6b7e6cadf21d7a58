//! Request bodies: JSON with its duplicate fields noticed, held against the kind's schema.
//!
//! The real server's order: not JSON, wrong kind, a value that its Go type cannot hold, duplicate and unknown fields
//! (`fieldValidation`); what remains is pruned. Defaults and validation come later, after the status is dropped.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    kind::{Kind, Origin},
    schema::{Schema, unknown_fields},
    status::{Cause, Status},
};

/// The query parameter `fieldValidation`; absent is `Warn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Unknown and duplicate fields are dropped in silence.
    Ignore,
    /// They are dropped, and named in `Warning` headers.
    #[default]
    Warn,
    /// They are an error.
    Strict,
}

impl FieldValidation {
    /// Reads the query parameter.
    ///
    /// # Errors
    /// If it is none of the three words.
    pub fn parse(text: &str) -> Result<Self, Status> {
        match text {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                let cause = Cause::not_supported("fieldValidation", &other.into(), &supported);
                Err(Status::invalid_kind("meta.k8s.io", "CreateOptions", "", &[cause]))
            }
        }
    }
}

/// A document, and what its text said twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// The document; of fields given twice the last counts. Whole numbers are integers however they are written.
    pub value: Value,
    /// Paths of the fields given twice.
    pub duplicates: Vec<String>,
}

impl Body {
    /// Reads JSON.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut duplicates = Vec::new();
        let mut json = serde_json::Deserializer::from_slice(text);
        let value = Node { path: &Path::Root, duplicates: &mut duplicates }.deserialize(&mut json)?;
        json.end()?;
        Ok(Self { value, duplicates })
    }

    /// Reads an object of that kind as [`Body::read`] does.
    ///
    /// # Errors
    /// The server's 400.
    pub fn read_object(kind: &Kind, text: &[u8]) -> Result<Self, Status> {
        let unrecognized = |why: &dyn fmt::Display| {
            Status::bad_request(format!(
                "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse \
                 error: {why}",
                kind.kind
            ))
        };
        let body = Self::read(text).map_err(|error| unrecognized(&error))?;
        if !body.value.is_object() {
            return Err(unrecognized(&"not an object"));
        }
        for key in ["apiVersion", "kind"] {
            match &body.value[key] {
                Value::Null | Value::String(_) => {}
                other => {
                    let given = shape(other);
                    let why =
                        format!("json: cannot unmarshal {given} into Go struct field .{key} of type string");
                    return Err(unrecognized(&why));
                }
            }
        }
        Ok(body)
    }

    /// Holds the object against its kind and takes out what the kind does not know. Answers the warnings to send.
    ///
    /// # Errors
    /// If the object is of another kind, holds a value of a wrong type, or unknown fields under `Strict`.
    pub fn into_object(
        self,
        kind: &Kind,
        schema: &Schema,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), Status> {
        let Self { value: mut object, duplicates } = self;
        name_kind(kind, &mut object)?;
        let wrong = match kind.origin {
            Origin::Builtin => undecodable(schema, &object, &kind.kind, ""),
            Origin::Custom => wrong_metadata(schema, &object),
        };
        if let Some(why) = wrong {
            return Err(cannot_be_handled(kind, &why));
        }
        let warnings = if validation == FieldValidation::Ignore {
            Vec::new()
        } else {
            let unknown = unknown_fields(schema, &object);
            let duplicates = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
            duplicates.chain(unknown.iter().map(|field| format!("unknown field {field:?}"))).collect()
        };
        if validation == FieldValidation::Strict && !warnings.is_empty() {
            let why = format!("strict decoding error: {}", warnings.join(", "));
            return Err(cannot_be_handled(kind, &why));
        }
        schema.prune(&mut object);
        Ok((object, warnings))
    }
}

fn cannot_be_handled(kind: &Kind, why: &str) -> Status {
    let Kind { kind, version, .. } = kind;
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}

/// Puts apiVersion and kind into the object, or refuses those of another kind.
fn name_kind(kind: &Kind, object: &mut Value) -> Result<(), Status> {
    let given = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let (api_version, name) = (given("apiVersion"), given("kind"));
    if !name.is_empty() && name != kind.kind {
        let wanted = &kind.kind;
        if kind.origin == Origin::Custom {
            let cause = Cause::invalid("kind", &name.as_str().into(), &format!("must be {wanted}"));
            let metadata = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Status::invalid_kind(&kind.group, &name, metadata, &[cause]));
        }
        let version = crate::kind::group_version(&api_version).1;
        return Err(Status::bad_request(format!(
            "{name} in version {version:?} cannot be handled as a {wanted}: converting ({version}.{name}) to \
             (core.{wanted}): unknown conversion"
        )));
    }
    if !api_version.is_empty() && api_version != kind.api_version() {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            kind.api_version()
        )));
    }
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.as_str().into();
    Ok(())
}

/// `metadata` is decoded into a Go type for custom resources, too.
fn wrong_metadata(schema: &Schema, object: &Value) -> Option<String> {
    let meta = schema.field("metadata")?;
    match object.get("metadata")? {
        Value::Object(_) => undecodable(meta, &object["metadata"], "ObjectMeta", ""),
        Value::Null => None,
        other => {
            Some(format!("json: cannot unmarshal {} into Go value of type {}", shape(other), meta.go_type()))
        }
    }
}

/// Why Go could not decode the value, in Go's words. `path` is dotted and without indices, as there.
fn undecodable(schema: &Schema, value: &Value, owner: &str, path: &str) -> Option<String> {
    let mismatch = |given: &str| {
        Some(format!(
            "json: cannot unmarshal {given} into Go struct field {owner}.{path} of type {}",
            schema.go_type()
        ))
    };
    match value {
        Value::Null => None,
        Value::Object(map) if schema.holds_object() => {
            let owner = schema.go_struct().unwrap_or(owner);
            map.iter().find_map(|(name, inner)| {
                let field = schema.field(name)?;
                // a map's values are named like the map
                match schema.go_struct() {
                    Some(_) if path.is_empty() => undecodable(field, inner, owner, name),
                    Some(_) => undecodable(field, inner, owner, &format!("{path}.{name}")),
                    None => undecodable(field, inner, owner, path),
                }
            })
        }
        Value::Array(items) if schema.holds_list() => {
            let inner = schema.items.as_ref()?;
            items.iter().find_map(|item| undecodable(inner, item, owner, path))
        }
        _ => match schema.go_scalar_fault(value) {
            None => None,
            Some(fault) if fault.is_empty() => match value {
                Value::Number(n) if schema.is_go_integer() => mismatch(&format!("number {n}")),
                _ => mismatch(shape(value)),
            },
            Some(fault) => Some(fault),
        },
    }
}

/// The JSON type in Go's words.
fn shape(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Where in the document we are, without allocating for it.
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Builds a value and collects duplicate fields; serde_json limits the depth.
struct Node<'a> {
    path: &'a Path<'a>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        // Go prints 2.0 as 2; up to 2^53 that loses nothing
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() <= EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
            return Ok(Value::from(value as i64));
        }
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path::Item(self.path, items.len());
            match list.next_element_seed(Node { path: &path, duplicates: self.duplicates })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key_seed(Name)? {
            let path = Path::Field(self.path, &name);
            if fields.contains_key(&name) {
                self.duplicates.push(path.to_string());
            }
            let value = map.next_value_seed(Node { path: &path, duplicates: self.duplicates })?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        String::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests;
