use std::collections::BTreeSet;

use super::*;
use crate::builtin::kinds;

fn core() -> Value {
    let kinds = kinds().iter().filter(|k| k.group.is_empty());
    document(&kinds.map(|kind| Described { kind, schema: None }).collect::<Vec<_>>())
}

#[test]
fn every_reference_leads_somewhere() {
    for described in kinds() {
        let document = document(&[Described { kind: described, schema: None }]);
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.values().all(Value::is_object));
        for part in text.split("#/components/schemas/").skip(1) {
            let id = part.split('"').next().unwrap();
            assert!(schemas.contains_key(id), "{id}");
        }
    }
}

#[test]
fn a_service_is_explained_and_patched_by_its_schema() {
    let document = core();
    let spec = &document["components"]["schemas"]["io.k8s.api.core.v1.ServiceSpec"]["properties"];
    assert_eq!(spec["ports"]["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(spec["ports"]["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
    assert!(spec["loadBalancerIP"]["description"].is_string());
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/services/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Service");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
}

#[test]
fn a_custom_resource_shows_its_schema_and_the_fields_of_every_object() {
    let crd = json!({"spec": {"group": "pools.example.com", "scope": "Namespaced",
        "names": {"kind": "Pool", "plural": "pools"}, "versions": [{"name": "v1beta1", "served": true}]}});
    let kind = &Kind::of_crd(&crd)[0];
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "description": "What is wanted."}}});
    let document = document(&[Described { kind, schema: Some(&schema) }]);
    let published = &document["components"]["schemas"]["com.example.pools.v1beta1.Pool"];
    assert_eq!(published["properties"]["spec"]["description"], "What is wanted.");
    assert!(
        published["properties"]["metadata"]["allOf"][0]["$ref"].as_str().unwrap().ends_with("ObjectMeta")
    );
    assert_eq!(published["x-kubernetes-group-version-kind"][0]["kind"], "Pool");
    assert_eq!(path(kind), "apis/pools.example.com/v1beta1");
}

#[test]
fn every_description_belongs_to_a_field() {
    let document = document(&kinds().iter().map(|kind| Described { kind, schema: None }).collect::<Vec<_>>());
    let text = document.to_string();
    let missing = include_str!("descriptions.txt")
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, description)| !text.contains(&json!(description).to_string()))
        .map(|(key, _)| key)
        .collect::<BTreeSet<_>>();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_index_changes_with_the_document() {
    let index = index([("api/v1", hash("a").as_str())]);
    assert_eq!(
        index["paths"]["api/v1"]["serverRelativeURL"],
        format!("/openapi/v3/api/v1?hash={}", hash("a"))
    );
    assert_ne!(hash("a"), hash("b"));
}
