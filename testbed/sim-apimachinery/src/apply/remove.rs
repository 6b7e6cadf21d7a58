//! Removes what a manager owned, no longer applies, and nobody else owns.

use serde_json::Value;

use crate::{
    managed_fields::{FieldSet, element},
    schema::{ListType, Schema},
};

/// `last` is what the manager owned before, `owned` what anybody owns now.
pub(super) fn remove(schema: &Schema, value: &mut Value, last: &FieldSet, owned: &FieldSet) {
    let anything = Schema::anything();
    let nothing = FieldSet::default();
    let emptied = match value {
        Value::Object(map) if !schema.atomic => {
            let before = map.len();
            for (name, last) in last.children() {
                let Some(name) = name.strip_prefix("f:") else { continue };
                let owned = owned.child(&format!("f:{name}"));
                if last.is_member() && owned.is_none() {
                    map.remove(name);
                } else if let Some(inner) = map.get_mut(name) {
                    let schema = schema.field(name).map_or(&anything, |s| &**s);
                    remove(schema, inner, last, owned.unwrap_or(&nothing));
                }
            }
            map.is_empty() && before > 0
        }
        Value::Array(items) if schema.list != ListType::Atomic => {
            let before = items.len();
            items.retain_mut(|item| {
                let name = element(schema, item);
                let Some(last) = last.child(&name) else { return true };
                let owned = owned.child(&name);
                if last.is_member() && owned.is_none() {
                    return false;
                }
                if let (Some(inner), ListType::Map(_)) = (&schema.items, &schema.list) {
                    remove(inner, item, last, owned.unwrap_or(&nothing));
                }
                true
            });
            items.is_empty() && before > 0
        }
        _ => false,
    };
    if emptied {
        // as on a real server; where null is no value, validation says so (kinds from CRDs) or it is dropped
        *value = Value::Null;
    }
}
