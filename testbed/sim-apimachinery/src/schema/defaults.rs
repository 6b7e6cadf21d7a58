//! Defaults for fields that an object leaves out.

use serde_json::{Map, Value};

use super::Schema;

impl Schema {
    /// Puts defaults where fields are absent, after dropping nulls where null is no value.
    pub fn default_object(&self, object: &mut Value) {
        self.drop_nulls(object);
        self.fill(object);
    }

    fn drop_nulls(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|name, inner| {
                    !(inner.is_null() && self.field(name).is_some_and(|schema| !schema.nullable))
                });
                self.each(map, Self::drop_nulls);
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.drop_nulls(item));
                }
            }
            _ => {}
        }
    }

    fn fill(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, schema) in &self.properties {
                    if let Some(default) = &schema.default
                        && !map.contains_key(name)
                    {
                        map.insert(name.clone(), default.clone());
                    }
                }
                self.each(map, Self::fill);
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.fill(item));
                }
            }
            _ => {}
        }
    }

    fn each(&self, map: &mut Map<String, Value>, act: fn(&Self, &mut Value)) {
        for (name, inner) in map.iter_mut() {
            if let Some(schema) = self.field(name) {
                act(schema, inner);
            }
        }
    }
}
