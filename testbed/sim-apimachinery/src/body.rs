//! Request bodies: JSON with its duplicate fields noticed, held against the kind's schema.
//!
//! The real server's order: not JSON, wrong kind, a value that its Go type cannot hold, duplicate and unknown fields
//! (`fieldValidation`); what remains is pruned. Defaults and validation come later, after the status is dropped.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    json::{in_go, text},
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
    /// Reads the query parameter; none if it is none of the three words.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
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
    /// The text's fault.
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
        let warnings = self.warnings(kind, schema, validation).map_err(|misfit| misfit.of_a_body(kind))?;
        Ok((self.settled(kind, schema), warnings))
    }

    /// [`Body::into_object`] for what a patch made of an object: where the result cannot be decoded, it is the patch that
    /// is wrong, with a 422 that kubectl's editor shows. As the wrong value the answer names a `strategic` merge patch
    /// itself, and of other patches the result.
    ///
    /// # Errors
    /// As for [`Body::into_object`].
    pub fn into_patched(
        self,
        kind: &Kind,
        schema: &Schema,
        validation: FieldValidation,
        strategic: Option<&Value>,
    ) -> Result<(Value, Vec<String>), Status> {
        let nameless =
            kind.origin == Origin::Custom && self.value.is_object() && !self.value["kind"].is_string();
        let warnings = if nameless {
            Err(Misfit::undecodable(kind, format!("Object 'Kind' is missing in '{}'", self.value)))
        } else {
            self.warnings(kind, schema, validation)
        };
        let warnings = warnings.map_err(|misfit| {
            let blamed = strategic.map_or_else(|| self.value.to_string(), in_go);
            misfit.of_a_patch(kind, text(&self.value["metadata"]["name"]), &blamed)
        })?;
        Ok((self.settled(kind, schema), warnings))
    }

    /// Returns warnings about fields that the kind does not know.
    fn warnings(
        &self,
        kind: &Kind,
        schema: &Schema,
        validation: FieldValidation,
    ) -> Result<Vec<String>, Misfit> {
        let Self { value: object, duplicates } = self;
        if !object.is_object() {
            return Err(Misfit::undecodable(kind, "it is no JSON object".to_owned()));
        }
        check_kind(kind, object)?;
        let wrong = match kind.origin {
            Origin::Builtin => undecodable(schema, object, &kind.kind, ""),
            Origin::Custom => wrong_metadata(schema, object),
        };
        if let Some(why) = wrong {
            return Err(Misfit::undecodable(kind, why));
        }
        if validation == FieldValidation::Ignore {
            return Ok(Vec::new());
        }
        let unknown = unknown_fields(schema, object);
        let duplicates = duplicates.iter().map(|field| format!("duplicate field {field:?}"));
        let warnings: Vec<String> =
            duplicates.chain(unknown.iter().map(|field| format!("unknown field {field:?}"))).collect();
        if validation == FieldValidation::Strict && !warnings.is_empty() {
            let why = format!("strict decoding error: {}", warnings.join(", "));
            return Err(Misfit::undecodable(kind, why));
        }
        Ok(warnings)
    }

    /// The object, with the kind that it is of and without what the kind does not know.
    fn settled(self, kind: &Kind, schema: &Schema) -> Value {
        let mut object = self.value;
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        schema.prune(&mut object);
        object
    }
}

/// Why a document is no object of the kind.
enum Misfit {
    /// It cannot be decoded; with the kind and version that it names, and Go's words.
    Undecodable { kind: String, version: String, why: String },
    /// It is of the kind in another version than that of the path.
    Version(String),
    /// A custom resource of another kind: refused alike wherever it comes from.
    Kind(Status),
}

impl Misfit {
    fn undecodable(kind: &Kind, why: String) -> Self {
        Self::Undecodable { kind: kind.kind.clone(), version: kind.version.clone(), why }
    }

    fn of_a_body(self, wanted: &Kind) -> Status {
        match self {
            Self::Undecodable { kind, version, why } => Status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {}: {why}",
                wanted.kind
            )),
            Self::Version(given) => Status::bad_request(format!(
                "the API version in the data ({given}) does not match the expected API version ({})",
                wanted.api_version()
            )),
            Self::Kind(status) => status,
        }
    }

    fn of_a_patch(self, wanted: &Kind, name: &str, blamed: &str) -> Status {
        let why = match self {
            Self::Undecodable { why, .. } => why,
            Self::Version(given) if wanted.origin == Origin::Custom => {
                let detail = format!("must be {}", wanted.api_version());
                let cause = Cause::invalid("apiVersion", &given.as_str().into(), &detail);
                let group = crate::kind::group_version(&given).0;
                return Status::invalid_kind(group, &wanted.kind, name, &[cause]);
            }
            Self::Version(given) => format!("no kind {:?} is registered for version {given:?}", wanted.kind),
            Self::Kind(status) => return status,
        };
        Status::invalid_kind("", "", "", &[Cause::invalid("patch", &blamed.into(), &why)])
    }
}

/// Refuses objects that say that they are of another kind.
fn check_kind(kind: &Kind, object: &Value) -> Result<(), Misfit> {
    let (api_version, name) = (text(&object["apiVersion"]), text(&object["kind"]));
    let wanted = &kind.kind;
    if !name.is_empty() && name != wanted {
        if kind.origin == Origin::Custom {
            let cause = Cause::invalid("kind", &name.into(), &format!("must be {wanted}"));
            let metadata = text(&object["metadata"]["name"]);
            return Err(Misfit::Kind(Status::invalid_kind(&kind.group, name, metadata, &[cause])));
        }
        let version = crate::kind::group_version(api_version).1.to_owned();
        let why = format!("converting ({version}.{name}) to (core.{wanted}): unknown conversion");
        return Err(Misfit::Undecodable { kind: name.to_owned(), version, why });
    }
    if !api_version.is_empty() && api_version != kind.api_version() {
        return Err(Misfit::Version(api_version.to_owned()));
    }
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

/// A place in the document; needs no allocation.
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
