//! The owners of a pool's records, in its `managedFields`.
//!
//! The API server notes who changed which field before it asks mutating webhooks. A PUT without a record takes the
//! record from its owner, and a PUT with another holder makes its sender the owner; the record that the mutator then
//! restores would have no owner, or the wrong one. The load balancer would take records of other programs for
//! abandoned ones of its own, and give the addresses away. So the mutator restores the owners too.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value, json};

/// The field of `managedFields` that holds all records.
const RECORDS: [&str; 2] = ["f:status", "f:allocated"];

/// Returns the `managedFields` of `now` with the owners that these addresses had in `before`, or nothing if they have
/// them.
pub(crate) fn restored<'a>(
    now: &[ManagedFieldsEntry],
    before: &[ManagedFieldsEntry],
    addresses: impl IntoIterator<Item = &'a str>,
) -> Option<Vec<ManagedFieldsEntry>> {
    let mut now = now.to_vec();
    let records: BTreeSet<String> = addresses.into_iter().map(|address| format!("f:{address}")).collect();
    let before_by_name: HashMap<_, _> = before.iter().map(|entry| (name(entry), entry)).collect();
    let mut changed = false;
    for entry in &mut now {
        let had = before_by_name.get(&name(entry));
        let owned =
            owned(entry).filter(|key| records.contains(*key) && !had.is_some_and(|had| owns(had, key)));
        for key in owned.cloned().collect::<Vec<_>>() {
            take(entry, &key);
            changed = true;
        }
    }
    let mut now_by_name: HashMap<_, _> =
        now.iter().enumerate().map(|(place, entry)| (name(entry).map(ToOwned::to_owned), place)).collect();
    for had in before {
        let mut keys = owned(had).filter(|key| records.contains(*key)).peekable();
        if keys.peek().is_none() {
            continue;
        }
        // once for each entry: the name may be as long as the whole review, and the records many
        let place = *now_by_name.entry(name(had).map(ToOwned::to_owned)).or_insert_with(|| {
            now.push(ManagedFieldsEntry { fields_v1: Some(FieldsV1(json!({}))), ..had.clone() });
            now.len() - 1
        });
        for key in keys {
            if !owns(&now[place], key) {
                give(&mut now[place], key);
                changed = true;
            }
        }
    }
    let is_empty = |entry: &ManagedFieldsEntry| fields(entry).as_object().is_some_and(Map::is_empty);
    now.retain(|entry| !is_empty(entry));
    changed.then_some(now)
}

/// The fields that tell the entries of one list apart for the API server.
fn name(entry: &ManagedFieldsEntry) -> [&Option<String>; 4] {
    [&entry.manager, &entry.operation, &entry.api_version, &entry.subresource]
}

/// The keys of the records that an entry owns.
fn owned(entry: &ManagedFieldsEntry) -> impl Iterator<Item = &String> {
    let [status, allocated] = RECORDS;
    fields(entry)[status][allocated].as_object().into_iter().flat_map(Map::keys)
}

fn fields(entry: &ManagedFieldsEntry) -> &Value {
    entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0)
}

fn owns(entry: &ManagedFieldsEntry, key: &str) -> bool {
    let [status, allocated] = RECORDS;
    !fields(entry)[status][allocated][key].is_null()
}

fn give(entry: &mut ManagedFieldsEntry, key: &str) {
    let mut fields = &mut entry.fields_v1.get_or_insert_with(|| FieldsV1(json!({}))).0;
    for name in RECORDS {
        // an empty set of fields owns the whole; once it has fields, a dot stands for the whole
        if fields[name].as_object().is_some_and(Map::is_empty) {
            fields[name] = json!({".": {}});
        }
        fields = &mut fields[name];
    }
    fields[key] = json!({});
}

fn take(entry: &mut ManagedFieldsEntry, key: &str) {
    if let Some(fields) = &mut entry.fields_v1 {
        remove(&mut fields.0, &[RECORDS[0], RECORDS[1], key]);
    }
}

/// Removes a field, and every field around it that is empty then: an empty set would own the whole.
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
    fn entries(managers: &str) -> Vec<ManagedFieldsEntry> {
        let entry = |manager: &str| {
            let (manager, owned) = manager.split_once('=').unwrap();
            let json = json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": {}});
            let mut entry: ManagedFieldsEntry = serde_json::from_value(json).unwrap();
            for owned in owned.split(',') {
                match owned {
                    "spec" => entry.fields_v1.as_mut().unwrap().0["f:spec"] = json!({"f:ranges": {}}),
                    address => give(&mut entry, &format!("f:{address}")),
                }
            }
            entry
        };
        managers.split_whitespace().map(entry).collect()
    }

    #[rstest]
    #[case::nothing_happened("lb=1 capi=2", "lb=1 capi=2", None)]
    // docs/contract/load-balancer.md#IP-16: a replace without status
    #[case::wiped("lb=1 capi=2", "kubectl=spec", Some("kubectl=spec lb=1 capi=2"))]
    #[case::wiped_by_an_owner("capi=spec,2", "capi=spec", Some("capi=spec,2"))]
    #[case::robbed("lb=1,spec", "lb=spec evil=1", Some("lb=spec,1"))]
    #[case::claimed_by_hand("lb=1", "lb=1 evil=1,spec", Some("lb=1 evil=spec"))]
    #[case::not_a_record_that_stands("capi=3", "kubectl=4", None)]
    #[case::without_owner("", "kubectl=spec", None)]
    fn a_record_that_stands_keeps_its_owners(
        #[case] before: &str,
        #[case] now: &str,
        #[case] expected: Option<&str>,
    ) {
        let restored = restored(&entries(now), &entries(before), ["1", "2"]);
        assert_eq!(restored, expected.map(entries));
    }

    // a forged review of 7 MB that compares its manager with itself for each record keeps the webhook busy for minutes
    #[test]
    fn the_owner_of_many_records_is_looked_for_once() {
        let records: Vec<_> = (0..20_000).map(|number: u32| number.to_string()).collect();
        let owned: Map<_, _> = records.iter().map(|record| (format!("f:{record}"), json!({}))).collect();
        let before = [ManagedFieldsEntry {
            manager: Some("x".repeat(6_000_000)),
            fields_v1: Some(FieldsV1(json!({"f:status": {"f:allocated": owned}}))),
            ..ManagedFieldsEntry::default()
        }];
        let restored = restored(&[], &before, records.iter().map(String::as_str));
        assert!(
            restored.is_some_and(|restored| restored == before),
            "the owner comes back with all its records"
        );
    }

    #[test]
    fn an_owner_of_the_whole_stays_it() {
        let fields = Some(FieldsV1(json!({"f:status": {"f:allocated": {}}})));
        let mut entry = ManagedFieldsEntry { fields_v1: fields, ..ManagedFieldsEntry::default() };
        give(&mut entry, "f:1");
        assert_eq!(super::fields(&entry), &json!({"f:status": {"f:allocated": {".": {}, "f:1": {}}}}));
        take(&mut entry, "f:1");
        assert_eq!(super::fields(&entry), &json!({"f:status": {"f:allocated": {".": {}}}}));
    }
}
