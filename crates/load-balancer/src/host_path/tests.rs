use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn owned_by(uid: &str) -> Value {
    let owner = json!({"apiVersion": LoadBalancer::api_version(&()), "kind": "LoadBalancer", "name": "web", "uid": uid});
    json!({"ownerReferences": [owner]})
}

fn going_away(mut meta: Value) -> Value {
    meta["deletionTimestamp"] = "2026-08-20T10:00:00Z".into();
    meta
}

fn object<K: serde::de::DeserializeOwned>(api_version: &str, kind: &str, meta: &Value) -> RawObject<K> {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": meta});
    object["metadata"]["namespace"] = "shop".into();
    object["metadata"]["name"] = "web".into();
    if kind == "EndpointSlice" {
        json_patch::merge(&mut object, &json!({"addressType": "IPv4", "endpoints": [], "ports": []}));
    }
    RawObject::from_json(object).unwrap()
}

#[rstest]
#[case::nothing_there(None, None, None)]
#[case::ours(Some(owned_by("u1")), Some(owned_by("u1")), None)]
#[case::ours_on_its_way_out(Some(going_away(owned_by("u1"))), None, Some("ServiceGoing"))]
#[case::a_former_ones(Some(owned_by("u0")), None, Some("FormerServiceGoing"))]
#[case::a_former_ones_slice(None, Some(owned_by("u0")), Some("FormerServiceGoing"))]
#[case::somebody_elses(Some(json!({})), None, Some("NameTaken"))]
#[case::somebody_elses_slice(Some(owned_by("u1")), Some(json!({})), Some("NameTaken"))]
fn what_is_not_ours_or_on_its_way_out_stands_in_the_way(
    #[case] service: Option<Value>,
    #[case] slice: Option<Value>,
    #[case] expected: Option<&str>,
) {
    let owner = Owner { key: ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
    let service = service.map(|meta| object::<Service>("v1", "Service", &meta));
    let slice = slice.map(|meta| object::<EndpointSlice>("discovery.k8s.io/v1", "EndpointSlice", &meta));
    let waiting = obstacle(&owner, service.as_ref(), slice.as_ref());
    assert_eq!(waiting.map(|waiting| waiting.reason), expected);
}
