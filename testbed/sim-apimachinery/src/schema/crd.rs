//! Reads the structural schema of a CustomResourceDefinition.

use std::sync::Arc;

use serde_json::Value;

use super::{ListType, Rules, Schema, Type, child, object_meta};
use crate::json::elements;
use crate::status::Cause;

impl Schema {
    /// Reads `openAPIV3Schema`; `path` is where it stands in the definition.
    ///
    /// # Errors
    /// Everything in it that is malformed, or that the simulated server does not check (CEL rules).
    pub fn of_crd(schema: &Value, path: &str) -> Result<Self, Vec<Cause>> {
        let mut causes = Vec::new();
        let mut root = read(schema, path, &mut causes);
        root.r#type = Type::Object;
        own_object(&mut root);
        if causes.is_empty() { Ok(root) } else { Err(causes) }
    }
}

/// Every object has these fields, whatever its schema says of them.
fn own_object(schema: &mut Schema) {
    let text = Arc::new(Schema { r#type: Type::String, ..Schema::default() });
    schema.properties.insert("apiVersion".to_owned(), text.clone());
    schema.properties.insert("kind".to_owned(), text);
    schema.properties.insert("metadata".to_owned(), object_meta());
}

fn read(value: &Value, path: &str, causes: &mut Vec<Cause>) -> Schema {
    let flag = |key: &str| value[key] == true;
    let int_or_string = flag("x-kubernetes-int-or-string");
    let mut schema = Schema {
        nullable: flag("nullable"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        atomic: value["x-kubernetes-map-type"] == "atomic",
        default: value.get("default").cloned(),
        required: texts(&value["required"]),
        ..Schema::default()
    };
    schema.r#type = match value["type"].as_str() {
        Some("object") => Type::Object,
        Some("array") => Type::Array,
        Some("string") => Type::String,
        Some("integer") => Type::Integer,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        _ if int_or_string => Type::IntOrString,
        None | Some("") if schema.preserve_unknown => Type::Any,
        None | Some("") => {
            causes
                .push(Cause::required(&child(path, "type"), "must not be empty for specified object fields"));
            Type::Any
        }
        Some(other) => {
            let supported = ["array", "boolean", "integer", "number", "object", "string"];
            causes.push(Cause::not_supported(&child(path, "type"), &other.into(), &supported));
            Type::Any
        }
    };
    for (name, property) in value["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.properties[{name}]");
        schema.properties.insert(name.clone(), Arc::new(read(property, &path, causes)));
    }
    match &value["additionalProperties"] {
        Value::Bool(true) => schema.additional = Some(Arc::new(Schema::anything())),
        Value::Object(_) => {
            let path = child(path, "additionalProperties");
            schema.additional = Some(Arc::new(read(&value["additionalProperties"], &path, causes)));
        }
        _ => {}
    }
    match &value["items"] {
        Value::Object(_) => {
            schema.items = Some(Arc::new(read(&value["items"], &child(path, "items"), causes)));
        }
        _ if schema.r#type == Type::Array => {
            causes.push(Cause::required(&child(path, "items"), "must be specified"));
        }
        _ => {}
    }
    match value["x-kubernetes-list-type"].as_str() {
        None | Some("atomic") => {}
        Some("set") => schema.list = ListType::Set,
        Some("map") => {
            let keys = texts(&value["x-kubernetes-list-map-keys"]);
            if keys.is_empty() {
                let detail = "must not be empty if x-kubernetes-list-type is map";
                causes.push(Cause::required(&child(path, "x-kubernetes-list-map-keys"), detail));
            }
            schema.list = ListType::Map(keys);
        }
        Some(other) => {
            let path = child(path, "x-kubernetes-list-type");
            causes.push(Cause::not_supported(&path, &other.into(), &["atomic", "map", "set"]));
        }
    }
    if !elements(&value["x-kubernetes-validations"]).is_empty() {
        let detail = "the simulated API server does not evaluate CEL rules; take them out of the definition for it, \
                      or use a real API server";
        causes.push(Cause::forbidden(&child(path, "x-kubernetes-validations"), detail));
    }
    schema.rules = rules(value, path, causes);
    if int_or_string {
        // the two branches that such a schema repeats say nothing new
        schema.rules.any_of.clear();
    }
    if schema.embedded {
        own_object(&mut schema);
        for name in ["apiVersion", "kind"] {
            if !schema.required.iter().any(|r| r == name) {
                schema.required.push(name.to_owned());
            }
        }
    }
    schema
}

fn rules(value: &Value, path: &str, causes: &mut Vec<Cause>) -> Rules {
    let number = |key: &str| value[key].as_f64();
    let count = |key: &str| value[key].as_u64().and_then(|n| usize::try_from(n).ok());
    let bound = |key: &str, exclusive: &str| number(key).map(|n| (n, value[exclusive] == true));
    let pattern =
        value["pattern"].as_str().filter(|p| !p.is_empty()).and_then(
            |pattern| match regex::RegexBuilder::new(pattern).size_limit(1 << 20).build() {
                Ok(regex) => Some((pattern.to_owned(), regex)),
                Err(_) => {
                    let detail = "must be a valid regular expression";
                    causes.push(Cause::invalid(&child(path, "pattern"), &pattern.into(), detail));
                    None
                }
            },
        );
    let mut branches = |key: &str| {
        let path = child(path, key);
        elements(&value[key]).iter().map(|branch| junctor(branch, &path, causes)).collect::<Vec<_>>()
    };
    let (all_of, any_of, one_of) = (branches("allOf"), branches("anyOf"), branches("oneOf"));
    let not = value["not"].is_object().then(|| Box::new(junctor(&value["not"], &child(path, "not"), causes)));
    Rules {
        r#enum: elements(&value["enum"]).to_vec(),
        pattern,
        format: value["format"].as_str().unwrap_or_default().to_owned(),
        minimum: bound("minimum", "exclusiveMinimum"),
        maximum: bound("maximum", "exclusiveMaximum"),
        multiple_of: number("multipleOf").filter(|n| *n > 0.0),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        all_of,
        any_of,
        one_of,
        not,
    }
}

/// A branch of allOf, anyOf, oneOf or not: only value rules, types may be left out.
fn junctor(value: &Value, path: &str, causes: &mut Vec<Cause>) -> Schema {
    let mut ignored = Vec::new();
    let mut schema = read(value, path, &mut ignored);
    causes.extend(ignored.into_iter().filter(|cause| cause.field.ends_with(".pattern")));
    schema.nullable = true;
    schema
}

fn texts(value: &Value) -> Vec<String> {
    elements(value).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
