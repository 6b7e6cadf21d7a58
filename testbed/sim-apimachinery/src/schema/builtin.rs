//! Schemas of the built-in kinds, made from the table in [`crate::types`].

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex},
};

use super::{ListType, Schema, Strategy, Type};
use crate::types::{self, MessageId, types};

static MADE: LazyLock<Mutex<HashMap<MessageId, Arc<Schema>>>> = LazyLock::new(Mutex::default);

/// The schema of a built-in kind; none if the table does not have it.
pub fn builtin(group: &str, kind: &str) -> Option<Arc<Schema>> {
    types().of_kind(group, kind).map(message)
}

/// The schema of `metadata`, which all kinds share.
pub fn object_meta() -> Arc<Schema> {
    message(types().find("meta", "ObjectMeta").expect("the table of meta has ObjectMeta"))
}

fn message(id: MessageId) -> Arc<Schema> {
    let mut made = MADE.lock().expect("no panic while schemas are made");
    make(id, &mut made, &mut Vec::new())
}

fn make(
    id: MessageId,
    made: &mut HashMap<MessageId, Arc<Schema>>,
    parents: &mut Vec<MessageId>,
) -> Arc<Schema> {
    if let Some(schema) = made.get(&id) {
        return schema.clone();
    }
    if parents.contains(&id) {
        // JSONSchemaProps holds itself: below the first level everything goes
        return Arc::new(Schema { r#type: Type::Object, ..Schema::anything() });
    }
    parents.push(id);
    let message = types().get(id);
    let mut schema =
        Schema { r#type: Type::Object, atomic: message.atomic, go: message.name, ..Schema::default() };
    if message.kind {
        for name in ["apiVersion", "kind"] {
            schema.properties.insert(name.to_owned(), Arc::new(of(Type::String)));
        }
    }
    for field in &message.fields {
        let mut value = of_type(&field.r#type, made, parents);
        if field.inline {
            schema.properties.extend(value.properties.iter().map(|(k, v)| (k.clone(), v.clone())));
            continue;
        }
        let own = field.atomic || field.set || field.merge || field.retain_keys || field.default.is_some();
        if own || !field.map_keys.is_empty() {
            let mut changed = Schema::clone(&value);
            changed.atomic |= field.atomic;
            changed.default.clone_from(&field.default);
            if field.set {
                changed.list = ListType::Set;
            } else if !field.map_keys.is_empty() {
                changed.list = ListType::Map(field.map_keys.iter().map(|key| (*key).to_owned()).collect());
            }
            changed.strategy = Strategy {
                merge: field.merge,
                merge_key: field.merge_key.map(str::to_owned),
                retain_keys: field.retain_keys,
            };
            value = Arc::new(changed);
        }
        if field.required {
            schema.required.push(field.name.to_owned());
        }
        schema.properties.insert(field.name.to_owned(), value);
    }
    parents.pop();
    let schema = Arc::new(schema);
    if parents.is_empty() {
        made.insert(id, schema.clone());
    }
    schema
}

fn of(r#type: Type) -> Schema {
    Schema { r#type, ..Schema::default() }
}

fn of_type(
    r#type: &types::Type,
    made: &mut HashMap<MessageId, Arc<Schema>>,
    parents: &mut Vec<MessageId>,
) -> Arc<Schema> {
    let go = |r#type, go| Schema { go, ..of(r#type) };
    let schema = match r#type {
        types::Type::String => go(Type::String, "string"),
        types::Type::Bool => go(Type::Boolean, "bool"),
        types::Type::Int32 => go(Type::Integer, "int32"),
        types::Type::Int64 => go(Type::Integer, "int64"),
        types::Type::Double => go(Type::Number, "float64"),
        types::Type::Bytes => go(Type::String, "bytes"),
        types::Type::Time => go(Type::String, "time"),
        types::Type::MicroTime => go(Type::String, "microtime"),
        types::Type::Quantity => go(Type::Any, "quantity"),
        types::Type::IntOrString => go(Type::IntOrString, "int32"),
        types::Type::Any | types::Type::Union => Schema::anything(),
        types::Type::List(item) => Schema { items: Some(of_type(item, made, parents)), ..of(Type::Array) },
        types::Type::Map(value) => {
            Schema { additional: Some(of_type(value, made, parents)), ..of(Type::Object) }
        }
        types::Type::Message(id) => return make(*id, made, parents),
    };
    Arc::new(schema)
}
