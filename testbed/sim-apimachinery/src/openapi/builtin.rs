//! The schemas of built-in kinds in OpenAPI form.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use serde_json::{Map, Value, json};

use super::{gvk, reference};
use crate::{
    kind::Kind,
    types::{Field, Message, MessageId, Type, types},
};

/// `section:Message text` or `section:Message.field text`.
const DESCRIPTIONS: &str = include_str!("descriptions.txt");

static DESCRIBED: LazyLock<HashMap<&str, &str>> =
    LazyLock::new(|| DESCRIPTIONS.lines().filter_map(|line| line.split_once(' ')).collect());

/// Adds the kind's schema and those that it refers to; answers its id.
pub(super) fn kind(kind: &Kind, schemas: &mut BTreeMap<String, Value>) -> Option<String> {
    let id = types().of_kind(&kind.group, &kind.kind)?;
    let name = message(id, schemas);
    if let Some(schema) = schemas.get_mut(&name) {
        schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
    }
    Some(name)
}

/// Puts apiVersion, kind and metadata among the properties of a custom resource.
pub(super) fn own_fields(properties: &mut Value, schemas: &mut BTreeMap<String, Value>) {
    let meta = types().find("meta", "ObjectMeta").expect("the table of meta has ObjectMeta");
    let mut metadata = json!({"allOf": [reference(&message(meta, schemas))], "default": {}});
    describe(&mut metadata, "meta:Kind.metadata");
    properties["metadata"] = metadata;
    for name in ["apiVersion", "kind"] {
        properties[name] = json!({"type": "string"});
        describe(&mut properties[name], &format!("meta:Kind.{name}"));
    }
}

fn describe(schema: &mut Value, key: &str) {
    if let Some(text) = DESCRIBED.get(key) {
        schema["description"] = (*text).into();
    }
}

fn section(message: &Message) -> &'static str {
    crate::types::section(message.package)
}

fn message(id: MessageId, schemas: &mut BTreeMap<String, Value>) -> String {
    let message = types().get(id);
    let name = message.id();
    if schemas.contains_key(&name) {
        return name;
    }
    // first the name, so that a type that holds itself ends here
    schemas.insert(name.clone(), Value::Null);
    let mut schema = json!({"type": "object"});
    describe(&mut schema, &format!("{}:{}", section(message), message.name));
    if message.atomic {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    let mut properties = Map::new();
    let mut required = Vec::new();
    if message.kind {
        for name in ["apiVersion", "kind"] {
            let mut text = json!({"type": "string"});
            describe(&mut text, &format!("meta:Kind.{name}"));
            properties.insert(name.to_owned(), text);
        }
    }
    add_fields(message, &mut properties, &mut required, schemas);
    schema["properties"] = Value::Object(properties);
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schemas.insert(name.clone(), schema);
    name
}

fn add_fields(
    message: &Message,
    properties: &mut Map<String, Value>,
    required: &mut Vec<&'static str>,
    schemas: &mut BTreeMap<String, Value>,
) {
    for field in &message.fields {
        if let (true, Type::Message(inner)) = (field.inline, &field.r#type) {
            add_fields(types().get(*inner), properties, required, schemas);
            continue;
        }
        if field.required {
            required.push(field.name);
        }
        let mut value = of_type(&field.r#type, schemas);
        let own = format!("{}:{}.{}", section(message), message.name, field.name);
        let shared = format!("meta:Kind.{}", field.name);
        describe(
            &mut value,
            if DESCRIBED.contains_key(own.as_str()) || !message.kind { &own } else { &shared },
        );
        extensions(field, &mut value);
        properties.insert(field.name.to_owned(), value);
    }
}

fn extensions(field: &Field, value: &mut Value) {
    if !field.map_keys.is_empty() {
        value["x-kubernetes-list-type"] = "map".into();
        value["x-kubernetes-list-map-keys"] = json!(field.map_keys);
    } else if field.set {
        value["x-kubernetes-list-type"] = "set".into();
    } else if matches!(field.r#type, Type::List(_)) {
        value["x-kubernetes-list-type"] = "atomic".into();
    }
    if field.atomic && !matches!(field.r#type, Type::List(_)) {
        value["x-kubernetes-map-type"] = "atomic".into();
    }
    let strategies = [("merge", field.merge), ("retainKeys", field.retain_keys)];
    let strategies = strategies.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect::<Vec<_>>();
    if !strategies.is_empty() {
        value["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(key) = field.merge_key {
        value["x-kubernetes-patch-merge-key"] = key.into();
    }
    if let Some(default) = &field.default {
        value["default"] = default.clone();
    }
}

fn of_type(r#type: &Type, schemas: &mut BTreeMap<String, Value>) -> Value {
    match r#type {
        Type::String => json!({"type": "string"}),
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Double => json!({"type": "number", "format": "double"}),
        Type::Bytes => json!({"type": "string", "format": "byte"}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::Quantity => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        Type::IntOrString => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        Type::Any => json!({"type": "object"}),
        Type::Union => json!({}),
        Type::List(item) => json!({"type": "array", "items": of_type(item, schemas)}),
        Type::Map(value) => json!({"type": "object", "additionalProperties": of_type(value, schemas)}),
        Type::Message(id) => json!({"allOf": [reference(&message(*id, schemas))]}),
    }
}
