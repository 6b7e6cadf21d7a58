use serde_json::json;

use super::*;
use crate::schema::builtin;

const AGENT: Writer<'static> =
    Writer { manager: "agent", api_version: "v1", subresource: "", now: "2026-01-01T00:00:00Z" };

#[test]
fn a_write_that_changes_nothing_keeps_the_list_as_it_is() {
    let schema = builtin("", "ConfigMap").unwrap();
    let mut old =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"a": "b"}});
    track(&schema, None, &mut old, &AGENT);
    let mut new = old.clone();
    track(&schema, Some(&old), &mut new, &Writer { manager: "other", now: "2027-01-01T00:00:00Z", ..AGENT });
    assert_eq!(new, old);
}

#[test]
fn an_empty_list_drops_all_ownership() {
    let schema = builtin("", "ConfigMap").unwrap();
    let mut old = json!({"metadata": {"name": "web"}, "data": {"a": "b"}});
    track(&schema, None, &mut old, &AGENT);
    let mut new = json!({"metadata": {"name": "web", "managedFields": [{}]}, "data": {"a": "b"}});
    track(&schema, Some(&old), &mut new, &AGENT);
    assert!(new["metadata"].get("managedFields").is_none());
}

#[test]
fn many_updaters_are_folded_into_one_entry() {
    let schema = builtin("", "ConfigMap").unwrap();
    let mut object = json!({"metadata": {"name": "web"}, "data": {}});
    for n in 0..30 {
        let old = object.clone();
        object["data"][format!("k{n}")] = "v".into();
        let (manager, now) = (format!("m{n}"), format!("2026-01-01T00:00:{n:02}Z"));
        track(&schema, Some(&old), &mut object, &Writer { manager: &manager, now: &now, ..AGENT });
    }
    let list = object["metadata"]["managedFields"].as_array().unwrap();
    assert!(list.len() <= 10, "{}", list.len());
    let owned = entries(&object["metadata"]["managedFields"])
        .unwrap()
        .iter()
        .fold(FieldSet::default(), |all, entry| all.union(&entry.fields));
    assert_eq!(owned.paths().len(), 30);
}

#[test]
fn an_unreadable_list_is_replaced_by_the_old_one() {
    let schema = builtin("", "ConfigMap").unwrap();
    let mut old = json!({"metadata": {"name": "web"}, "data": {"a": "b"}});
    track(&schema, None, &mut old, &AGENT);
    let mut new =
        json!({"metadata": {"name": "web", "managedFields": [{"operation": "?"}]}, "data": {"a": "b"}});
    track(&schema, Some(&old), &mut new, &AGENT);
    assert_eq!(new["metadata"]["managedFields"], old["metadata"]["managedFields"]);
}

proptest::proptest! {
    #[test]
    fn sets_survive_their_json(paths in proptest::collection::vec(proptest::collection::vec("[fkv]:[a-c]", 1..4), 0..8)) {
        let mut set = FieldSet::default();
        for path in &paths {
            set.insert(path);
        }
        proptest::prop_assert_eq!(FieldSet::of_json(&set.to_json()), Some(set.clone()));
        proptest::prop_assert!(set.difference(&set).is_empty());
        proptest::prop_assert_eq!(set.union(&set), set.clone());
        proptest::prop_assert_eq!(set.intersection(&set), set);
    }
}
