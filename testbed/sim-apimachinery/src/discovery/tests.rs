use std::collections::BTreeMap;

use super::*;
use crate::builtin;

fn kinds() -> Vec<&'static Kind> {
    builtin::kinds().iter().collect()
}

/// Resources by name, without what we do not serve.
fn resources(document: &Value) -> BTreeMap<(String, String, String), Value> {
    let mut all = BTreeMap::new();
    for group in document["items"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            for resource in version["resources"].as_array().unwrap() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = text(&group["metadata"]["name"]);
                all.insert((name, text(&version["version"]), text(&resource["resource"])), resource.clone());
            }
        }
    }
    all
}

#[test]
fn what_we_serve_is_described_as_the_real_server_describes_it() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/discovery.json")).unwrap();
    for (core, key) in [(true, "api"), (false, "apis")] {
        let theirs = resources(&vectors[key]);
        let ours = resources(&aggregated(&kinds(), core));
        for (name, ours) in &ours {
            let theirs = &theirs[name];
            for field in ["scope", "singularResource", "shortNames", "categories", "verbs"] {
                assert_eq!(ours.get(field), theirs.get(field), "{name:?} {field}");
            }
            assert_eq!(ours["responseKind"]["kind"], theirs["responseKind"]["kind"]);
            for subresource in ours["subresources"].as_array().into_iter().flatten() {
                let same = theirs["subresources"].as_array().into_iter().flatten();
                let same =
                    same.filter(|s| s["subresource"] == subresource["subresource"]).collect::<Vec<_>>();
                assert_eq!(same.len(), 1, "{name:?} {subresource}");
                assert_eq!(same[0]["verbs"], subresource["verbs"], "{name:?}");
                assert_eq!(same[0]["responseKind"]["kind"], subresource["responseKind"]["kind"], "{name:?}");
            }
        }
    }
}

#[test]
fn the_old_documents_say_the_same() {
    let kinds = kinds();
    let list = resource_list(&kinds, "", "v1").unwrap();
    assert_eq!(list["groupVersion"], "v1");
    let token =
        list["resources"].as_array().unwrap().iter().find(|r| r["name"] == "serviceaccounts/token").unwrap();
    assert_eq!((&token["kind"], &token["group"]), (&json!("TokenRequest"), &json!("authentication.k8s.io")));
    assert_eq!(group(&kinds, "apps").unwrap()["preferredVersion"]["groupVersion"], "apps/v1");
    assert!(group(&kinds, "").is_none() && group(&kinds, "absent").is_none());
    assert!(resource_list(&kinds, "apps", "v2").is_none());
    assert!(group_list(&kinds)["groups"].as_array().unwrap().iter().all(|g| g["name"] != ""));
}

#[test]
fn the_stable_version_is_preferred() {
    let mut versions = vec!["v1alpha1", "foo", "v1", "v1beta2", "v10", "v1beta10", "v2"];
    versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then(a.cmp(b)));
    assert_eq!(versions, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]);
}
