//! JSON patches that name single keys, so that entries of other admission webhooks beside them stay.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use serde_json::Value;

/// Sets the field at `path`.
pub(crate) fn set(path: &[&str], value: impl Into<Value>) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(path.iter().copied()),
        value: value.into(),
    })
}

/// Gives the map `metadata.<map>`, which is `found` now, these entries. Skips entries that it has already.
pub(crate) fn set_entries(
    found: Option<&BTreeMap<String, String>>,
    map: &str,
    entries: Vec<(&str, String)>,
) -> Vec<PatchOperation> {
    let Some(found) = found else {
        let entries: Value = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        return vec![set(&["metadata", map], entries)];
    };
    let missing = entries.into_iter().filter(|(key, value)| found.get(*key) != Some(value));
    missing.map(|(key, value)| set(&["metadata", map, key], value)).collect()
}

/// Makes the field `status`, which is `found` now, `wanted`; null means absent.
pub(crate) fn set_status(found: &Value, wanted: Value) -> Option<PatchOperation> {
    let path = ["status"];
    match (*found == wanted, wanted.is_null()) {
        (true, _) => None,
        (false, true) => {
            Some(PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) }))
        }
        (false, false) => Some(set(&path, wanted)),
    }
}

#[cfg(test)]
pub(crate) fn patched(object: &Value, operations: &[PatchOperation]) -> Value {
    let mut object = object.clone();
    json_patch::patch(&mut object, operations).unwrap();
    object
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use kube::api::DynamicObject;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::no_map(json!({"metadata": {}}), 1, json!({"a/b": "1", "c~": ""}))]
    #[case::null_map(json!({"metadata": {"annotations": null}}), 1, json!({"a/b": "1", "c~": ""}))]
    #[case::empty_map(json!({"metadata": {"annotations": {}}}), 2, json!({"a/b": "1", "c~": ""}))]
    #[case::beside_others(json!({"metadata": {"annotations": {"x": "y", "c~": ""}}}), 1, json!({"x": "y", "a/b": "1", "c~": ""}))]
    #[case::other_value(json!({"metadata": {"annotations": {"a/b": "2", "c~": ""}}}), 1, json!({"a/b": "1", "c~": ""}))]
    #[case::so_already(json!({"metadata": {"annotations": {"a/b": "1", "c~": ""}}}), 0, json!({"a/b": "1", "c~": ""}))]
    fn entries_are_added_one_by_one(#[case] json: Value, #[case] count: usize, #[case] expected: Value) {
        // docs/contract/load-balancer.md#WH-5: in the Go program the whole map is replaced
        let object: DynamicObject = serde_json::from_value(json.clone()).unwrap();
        let found = object.metadata.annotations.as_ref();
        let operations =
            set_entries(found, "annotations", vec![("a/b", "1".to_owned()), ("c~", String::new())]);
        assert_eq!(operations.len(), count);
        let after = patched(&json, &operations);
        assert_eq!(after["metadata"]["annotations"], expected);
        assert_eq!(
            serde_json::from_value::<DynamicObject>(after).unwrap().annotations().len(),
            expected.as_object().unwrap().len()
        );
    }

    #[rstest]
    #[case::so_already(json!({"a": 1}), json!({"a": 1}), 0)]
    #[case::none(json!(null), json!(null), 0)]
    #[case::removed(json!({"a": 1}), json!(null), 1)]
    #[case::changed(json!({"a": 1}), json!({"a": 2}), 1)]
    #[case::added(json!(null), json!({"a": 2}), 1)]
    fn a_status_is_made_what_it_should_be(#[case] found: Value, #[case] wanted: Value, #[case] count: usize) {
        let operation = set_status(&found, wanted.clone());
        assert_eq!(operation.iter().len(), count);
        let mut object = json!({"spec": {}});
        if !found.is_null() {
            object["status"] = found;
        }
        let after = patched(&object, &operation.into_iter().collect::<Vec<_>>());
        assert_eq!(after["status"], wanted);
    }
}
