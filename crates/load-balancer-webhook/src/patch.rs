//! JSON patches that name single keys, so that what other admission webhooks put beside them stays.

use serde_json::{Value, json};

/// The operations that give the string map `metadata.<map>` these entries. None for entries that are so already.
pub(super) fn set_entries(object: &Value, map: &str, entries: &[(&str, String)]) -> Vec<Value> {
    let path = format!("/metadata/{map}");
    let Some(found) = object.pointer(&path).and_then(Value::as_object) else {
        let entries: Value =
            entries.iter().map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))).collect();
        return vec![json!({"op": "add", "path": path, "value": entries})];
    };
    entries
        .iter()
        .filter(|(key, value)| found.get(*key).and_then(Value::as_str) != Some(value))
        .map(|(key, value)| json!({"op": "add", "path": format!("{path}/{}", escaped(key)), "value": value}))
        .collect()
}

/// The operations that make `field` of the object's root `wanted`; null means absent.
pub(super) fn set_root(object: &Value, field: &str, wanted: &Value) -> Vec<Value> {
    let found = &object[field];
    let path = format!("/{field}");
    match (found == wanted, wanted.is_null()) {
        (true, _) => vec![],
        (false, true) => vec![json!({"op": "remove", "path": path})],
        (false, false) => vec![json!({"op": "add", "path": path, "value": wanted})],
    }
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
pub(super) fn patched(object: &Value, operations: &[Value]) -> Value {
    let mut object = object.clone();
    let patch: json_patch::Patch = serde_json::from_value(operations.to_vec().into()).unwrap();
    json_patch::patch(&mut object, &patch).unwrap();
    object
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_map(json!({"metadata": {}}), 1, json!({"a/b": "1", "c": ""}))]
    #[case::null_map(json!({"metadata": {"annotations": null}}), 1, json!({"a/b": "1", "c": ""}))]
    #[case::beside_others(json!({"metadata": {"annotations": {"x": "y", "c": ""}}}), 1, json!({"x": "y", "a/b": "1", "c": ""}))]
    #[case::so_already(json!({"metadata": {"annotations": {"a/b": "1", "c": ""}}}), 0, json!({"a/b": "1", "c": ""}))]
    fn entries_are_added_one_by_one(#[case] object: Value, #[case] count: usize, #[case] expected: Value) {
        // pitfalls-load-balancer.md WH-5: there, the whole map is replaced
        let operations =
            set_entries(&object, "annotations", &[("a/b", "1".to_owned()), ("c", String::new())]);
        assert_eq!(operations.len(), count);
        assert_eq!(patched(&object, &operations)["metadata"]["annotations"], expected);
    }
}
