//! The fields of an object, and the fields in which two objects differ.

use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};

use serde_json::Value;

use super::FieldSet;
use crate::schema::{ListType, Schema};

/// In which fields two objects differ.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) added: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

static ANYTHING: LazyLock<Schema> = LazyLock::new(Schema::anything);

/// The parts of a value that are owned one by one: path element, schema, value. None if it is owned as a whole.
pub(crate) fn elements<'a>(
    schema: &'a Schema,
    value: &'a Value,
) -> Option<Vec<(String, &'a Schema, &'a Value)>> {
    match value {
        Value::Object(map) if !schema.atomic => Some(
            map.iter()
                .map(|(name, inner)| {
                    (format!("f:{name}"), schema.field(name).map_or(&*ANYTHING, |s| &**s), inner)
                })
                .collect(),
        ),
        Value::Array(items) if schema.list != ListType::Atomic => {
            let inner = schema.items.as_deref().unwrap_or(&ANYTHING);
            Some(items.iter().map(|item| (element(schema, item), inner, item)).collect())
        }
        _ => None,
    }
}

/// The path element of a list item.
pub(crate) fn element(list: &Schema, item: &Value) -> String {
    match &list.list {
        ListType::Map(keys) => {
            let default = |key: &String| list.items.as_ref()?.field(key)?.default.as_ref();
            let keys = keys
                .iter()
                .filter_map(|key| {
                    Some((key, item.get(key).filter(|v| !v.is_null()).or_else(|| default(key))?))
                })
                .collect::<BTreeMap<_, _>>();
            format!("k:{}", serde_json::to_string(&keys).unwrap_or_default())
        }
        _ => format!("v:{item}"),
    }
}

/// The fields that an applied object names.
pub(crate) fn set_of(schema: &Schema, object: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(schema, object, &mut Vec::new(), &mut set);
    strip(&mut set);
    set
}

fn collect(schema: &Schema, value: &Value, path: &mut Vec<String>, set: &mut FieldSet) {
    let Some(parts) = elements(schema, value) else {
        if !path.is_empty() {
            set.insert(path);
        }
        return;
    };
    let is_list = value.is_array();
    for (element, inner, part) in parts {
        let declared = element.strip_prefix("f:").is_some_and(|name| schema.properties.contains_key(name));
        let empty = part.is_null() || part.as_object().is_some_and(serde_json::Map::is_empty);
        path.push(element);
        collect(inner, part, path, set);
        if is_list || empty || !declared {
            set.insert(path);
        }
        path.pop();
    }
}

/// In which fields the objects differ; none stands for no object.
pub(crate) fn compare(schema: &Schema, old: Option<&Value>, new: Option<&Value>) -> Changes {
    let mut changes = Changes::default();
    let empty = Value::Object(serde_json::Map::new());
    let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
    differ(schema, Some(old), Some(new), &mut Vec::new(), &mut changes);
    for set in [&mut changes.added, &mut changes.modified, &mut changes.removed] {
        strip(set);
    }
    changes
}

fn differ(
    schema: &Schema,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<String>,
    changes: &mut Changes,
) {
    match (old, new) {
        (None, None) => {}
        (Some(old), Some(new)) if old == new => {}
        (Some(old), Some(new)) => match (elements(schema, old), elements(schema, new)) {
            (Some(before), Some(after)) => {
                let mut before_at: HashMap<String, (&Schema, &Value)> = HashMap::with_capacity(before.len());
                for (element, inner, part) in before {
                    before_at.entry(element).or_insert((inner, part));
                }
                for (element, inner, part) in after {
                    let was = before_at.remove(&element).map(|(_, value)| value);
                    path.push(element);
                    differ(inner, was, Some(part), path, changes);
                    path.pop();
                }
                for (element, (inner, part)) in before_at {
                    path.push(element);
                    differ(inner, Some(part), None, path, changes);
                    path.pop();
                }
            }
            (Some(before), None) if new.is_null() => {
                for (element, inner, part) in before {
                    path.push(element);
                    differ(inner, Some(part), None, path, changes);
                    path.pop();
                }
            }
            (Some(_), None) | (None, Some(_)) => {
                differ(schema, Some(old), None, path, changes);
                differ(schema, None, Some(new), path, changes);
            }
            (None, None) => changes.modified.insert(path),
        },
        (None, Some(value)) => {
            if !always_there(schema, path) {
                changes.added.insert(path);
            }
            for (element, inner, part) in elements(schema, value).unwrap_or_default() {
                path.push(element);
                differ(inner, None, Some(part), path, changes);
                path.pop();
            }
        }
        (Some(value), None) => {
            changes.removed.insert(path);
            for (element, inner, part) in elements(schema, value).unwrap_or_default() {
                path.push(element);
                differ(inner, Some(part), None, path, changes);
                path.pop();
            }
        }
    }
}

/// Structs that Go's types hold by value are there in every object, so nobody adds them.
fn always_there(schema: &Schema, path: &[String]) -> bool {
    const BY_VALUE: [&str; 9] = [
        "f:metadata",
        "f:spec",
        "f:status",
        "f:loadBalancer",
        "f:template",
        "f:strategy",
        "f:updateStrategy",
        "f:jobTemplate",
        "f:involvedObject",
    ];
    schema.go_struct().is_some() && path.last().is_some_and(|element| BY_VALUE.contains(&element.as_str()))
}

/// Nobody owns what identifies an object and what the server itself writes.
fn strip(set: &mut FieldSet) {
    for name in ["f:apiVersion", "f:kind", "f:metadata"] {
        set.remove(&[name]);
    }
    const SERVERS: [&str; 8] = [
        "f:name",
        "f:namespace",
        "f:uid",
        "f:creationTimestamp",
        "f:selfLink",
        "f:generation",
        "f:resourceVersion",
        "f:clusterName",
    ];
    for name in SERVERS {
        set.remove(&["f:metadata", name]);
    }
    set.remove_below(&["f:metadata", "f:managedFields"]);
}
