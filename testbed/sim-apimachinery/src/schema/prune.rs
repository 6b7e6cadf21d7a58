//! Unknown fields: found (for `fieldValidation`) and removed.

use serde_json::Value;

use super::{Schema, child};

/// The paths of all fields that the schema does not know, in the order in which the server names them.
pub fn unknown_fields(schema: &Schema, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    find(schema, object, "", &mut found);
    found
}

fn find(schema: &Schema, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let mut names = map.keys().collect::<Vec<_>>();
            names.sort_unstable();
            for name in names {
                let at = child(path, name);
                match schema.field(name) {
                    Some(inner) => find(inner, &map[name], &at, found),
                    None if schema.keeps_unknown() => {}
                    None => found.push(at),
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    find(inner, item, &format!("{path}[{index}]"), found);
                }
            }
        }
        _ => {}
    }
}

impl Schema {
    /// Removes all fields that the schema does not know.
    pub fn prune(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, _| self.keeps_unknown() || self.field(name).is_some());
                for (name, inner) in map.iter_mut() {
                    if let Some(schema) = self.field(name) {
                        schema.prune(inner);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.prune(item));
                }
            }
            _ => {}
        }
    }

    /// A value of the wrong type is left for validation to refuse.
    fn keeps_unknown(&self) -> bool {
        self.preserve_unknown || !matches!(self.r#type, super::Type::Object | super::Type::Any)
    }
}
