//! Whether a merge patch would change anything. A write that changes nothing is not sent: it would wake everybody who
//! watches, us included.

use serde_json::Value;

/// The patch, or nothing when the object already is as it says.
pub(crate) fn needed(object: &Value, patch: Value) -> Option<Value> {
    let mut after = object.clone();
    json_patch::merge(&mut after, &patch);
    (after != *object).then_some(patch)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_patch_that_changes_something_is_needed() {
        let object = json!({"metadata": {"labels": {"a": "1"}}});
        assert_eq!(needed(&object, json!({"metadata": {"labels": {"a": "1", "b": null}}})), None);
        let patch = json!({"metadata": {"labels": {"a": null}}});
        assert_eq!(needed(&object, patch.clone()), Some(patch));
    }
}
