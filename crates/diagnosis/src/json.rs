//! Fields of objects as they were read. Text, lists and arrays that are missing are empty; what may be absent on purpose is `None`.

use serde_json::Value;

/// The items of a list; anything else has none.
pub(crate) fn items_or_none(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The members of an array.
pub(crate) fn members(array: &Value) -> &[Value] {
    array.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// `namespace/name`.
pub(crate) fn key(object: &Value) -> String {
    format!("{}/{}", text(object, "/metadata/namespace"), name(object))
}

/// An empty one is as none.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str().filter(|text| !text.is_empty())
}

/// An empty one is as none.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str().filter(|text| !text.is_empty())
}

pub(crate) fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    members(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind)
}

/// Whether the condition is there and true.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}
