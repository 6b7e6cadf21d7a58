//! Loose JSON, read and filled in the way that Go's structs do it: what is absent is an empty text or an empty list.

use serde_json::Value;

/// The elements of a list; none where there is no list.
pub fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The entries of a map in order of their keys; none where there is no map.
pub fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// A text; the empty one where there is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether a field says nothing: absent, null, empty text.
pub fn is_unset(value: &Value) -> bool {
    value.is_null() || value == ""
}

/// The objects in a list at a JSON pointer, to change. Nothing is made where there is none.
pub fn items_mut<'a>(object: &'a mut Value, pointer: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = object.pointer_mut(pointer).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter(|item| item.is_object())
}

/// Writes a default where a field says nothing.
pub fn set_default(object: &mut Value, field: &str, default: impl Into<Value>) {
    if object.is_object() && is_unset(&object[field]) {
        object[field] = default.into();
    }
}

/// Removes a field.
pub fn unset(object: &mut Value, field: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(field);
    }
}

/// A value as Go's `%v` prints it: `map[spec:map[ports:[80]]]`.
pub(crate) fn in_go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(in_go).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}:{}", in_go(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// JSON of an object with its fields in the given order: error texts show structs, whose fields have one, and a map here
/// has not.
pub(crate) fn in_order<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> String {
    let fields: Vec<String> =
        fields.into_iter().map(|(name, value)| format!("{}:{value}", Value::from(name))).collect();
    format!("{{{}}}", fields.join(","))
}
