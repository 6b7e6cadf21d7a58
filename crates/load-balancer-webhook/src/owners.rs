//! Who made the records of a pool, in its `managedFields`.
//!
//! The API server writes down who changed what before it asks mutating webhooks. A PUT without a record takes it from
//! its owner, and one with another holder makes its sender the owner; the record that the mutator then puts back
//! would be nobody's, or the wrong one's. Records of others would pass for abandoned ones of ours, and be given away.
//! So the owners of a record that stands stay those that it had.

use serde_json::{Map, Value, json};

/// The field of `managedFields` under which all records lie.
const RECORDS: [&str; 2] = ["f:status", "f:allocated"];

/// The `managedFields` of `object` in which these addresses have the owners that they had in `old`. None: they have.
pub(super) fn kept<'a>(
    object: &Value,
    old: &Value,
    addresses: impl IntoIterator<Item = &'a String>,
) -> Option<Value> {
    let before = entries(old);
    let mut now = entries(object);
    let mut changed = false;
    for address in addresses {
        let key = format!("f:{address}");
        for entry in now.iter_mut().filter(|entry| owns(entry, &key)) {
            if !before.iter().any(|had| owns(had, &key) && same(had, entry)) {
                take(entry, &key);
                changed = true;
            }
        }
        for had in before.iter().filter(|had| owns(had, &key)) {
            let at = now.iter().position(|entry| same(had, entry)).unwrap_or_else(|| {
                now.push(bare(had));
                now.len() - 1
            });
            if !owns(&now[at], &key) {
                give(&mut now[at], &key);
                changed = true;
            }
        }
    }
    now.retain(|entry| entry["fieldsV1"].as_object().is_none_or(|fields| !fields.is_empty()));
    changed.then_some(Value::Array(now))
}

fn entries(object: &Value) -> Vec<Value> {
    object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default()
}

/// Whether both are entries of one manager: what the API server tells them apart by.
fn same(one: &Value, other: &Value) -> bool {
    ["manager", "operation", "apiVersion", "subresource"].iter().all(|field| one[*field] == other[*field])
}

fn owns(entry: &Value, key: &str) -> bool {
    let [status, allocated] = RECORDS;
    !entry["fieldsV1"][status][allocated][key].is_null()
}

/// The entry of a manager who owns nothing yet.
fn bare(entry: &Value) -> Value {
    let mut entry = entry.clone();
    entry["fieldsV1"] = json!({});
    entry
}

fn give(entry: &mut Value, key: &str) {
    let mut fields = &mut entry["fieldsV1"];
    for name in RECORDS {
        // what has no fields within is owned as a whole, which is said with a dot where there are some
        if fields[name].as_object().is_some_and(Map::is_empty) {
            fields[name] = json!({".": {}});
        }
        fields = &mut fields[name];
    }
    fields[key] = json!({});
}

fn take(entry: &mut Value, key: &str) {
    remove(&mut entry["fieldsV1"], &[RECORDS[0], RECORDS[1], key]);
}

/// Removes a field, and what held nothing else: an empty set would mean the whole.
fn remove(fields: &mut Value, path: &[&str]) {
    let ([name, rest @ ..], Some(fields)) = (path, fields.as_object_mut()) else { return };
    if let (false, Some(inner)) = (rest.is_empty(), fields.get_mut(*name)) {
        remove(inner, rest);
    }
    if rest.is_empty() || fields.get(*name).and_then(Value::as_object).is_some_and(Map::is_empty) {
        fields.remove(*name);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// `capi=1,2` owns two records, `kubectl=spec` another field.
    fn pool(managers: &str) -> Value {
        let entry = |manager: &str| {
            let (manager, owned) = manager.split_once('=').unwrap();
            let mut entry =
                json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": {}});
            for owned in owned.split(',') {
                match owned {
                    "spec" => entry["fieldsV1"]["f:spec"] = json!({"f:ranges": {}}),
                    address => give(&mut entry, &format!("f:{address}")),
                }
            }
            entry
        };
        json!({"metadata": {"managedFields": managers.split_whitespace().map(entry).collect::<Vec<_>>()}})
    }

    #[rstest]
    #[case::nothing_happened("lb=1 capi=2", "lb=1 capi=2", None)]
    // pitfalls-load-balancer.md IP-16: a replace without status
    #[case::wiped("lb=1 capi=2", "kubectl=spec", Some("kubectl=spec lb=1 capi=2"))]
    #[case::wiped_by_an_owner("capi=spec,2", "capi=spec", Some("capi=spec,2"))]
    #[case::robbed("lb=1,spec", "lb=spec evil=1", Some("lb=spec,1"))]
    #[case::claimed_by_hand("lb=1", "lb=1 evil=1,spec", Some("lb=1 evil=spec"))]
    #[case::not_a_record_that_stands("capi=3", "kubectl=4", None)]
    #[case::nobodys("", "kubectl=spec", None)]
    fn a_record_that_stands_keeps_its_owners(
        #[case] before: &str,
        #[case] now: &str,
        #[case] expected: Option<&str>,
    ) {
        let kept = kept(&pool(now), &pool(before), &["1".to_owned(), "2".to_owned()]);
        assert_eq!(kept, expected.map(|managers| pool(managers)["metadata"]["managedFields"].clone()));
    }

    #[test]
    fn who_owns_the_whole_still_does() {
        let mut entry = json!({"fieldsV1": {"f:status": {"f:allocated": {}}}});
        give(&mut entry, "f:1");
        assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:allocated": {".": {}, "f:1": {}}}}));
        take(&mut entry, "f:1");
        assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:allocated": {".": {}}}}));
    }
}
