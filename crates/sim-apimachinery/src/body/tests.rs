use serde_json::json;

use super::*;
use crate::{builtin, schema};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../tests/vectors/schema.json")).unwrap()
}

fn answer(kind: &Kind, schema: &Schema, text: &str) -> Option<String> {
    Body::read_object(kind, text.as_bytes())
        .and_then(|body| body.into_object(kind, schema, FieldValidation::Strict))
        .err()
        .map(|status| status.message)
}

#[test]
fn bodies_are_refused_in_the_words_of_the_real_server() {
    let vectors = vectors();
    let crd = json!({"spec": {"group": "sim.example.com", "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things"}, "versions": [{"name": "v1", "served": true}]}});
    let thing = Kind::of_crd(&crd).remove(0);
    let of_thing = Schema::of_crd(&vectors["schema"], "").unwrap();
    let core = |name: &str| (builtin::find("v1", name).unwrap(), schema::builtin("", name).unwrap());
    let (config_map, of_config_map) = core("ConfigMap");
    let (service, of_service) = core("Service");
    let mut compared = 0;
    for case in vectors["bodies"].as_array().unwrap() {
        let ours = if let Some(text) = case["raw"].as_str() {
            answer(&thing, &of_thing, text)
        } else if let Some(text) = case["core"].as_str() {
            answer(config_map, &of_config_map, text)
        } else if !case["service"].is_null() {
            let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": case["service"]});
            answer(service, &of_service, &object.to_string())
        } else {
            answer(&thing, &of_thing, &case["body"].to_string())
        };
        let theirs = case["message"].as_str();
        // the words of a JSON parser, of a Go type that we do not know by name, and of the name check are not ours
        let foreign =
            ["json parse error", "v1.ServiceType", "name or generateName", "is registered for version"];
        if theirs.is_some_and(|text| foreign.iter().any(|part| text.contains(part))) {
            assert!(ours.is_some() || theirs.is_some_and(|text| text.contains("generateName")), "{case}");
            continue;
        }
        assert_eq!(ours.as_deref(), theirs, "{case}");
        compared += 1;
    }
    assert!(compared >= 25, "{compared}");
}

#[test]
fn unknown_and_duplicate_fields_are_warned_of_and_dropped() {
    let (kind, schema) =
        (builtin::find("v1", "ConfigMap").unwrap(), schema::builtin("", "ConfigMap").unwrap());
    let text = br#"{"metadata": {"name": "a", "name": "web"}, "dat": {}}"#;
    let read = || Body::read_object(kind, text).unwrap();
    let (object, warnings) = read().into_object(kind, &schema, FieldValidation::Warn).unwrap();
    assert_eq!(object, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}}));
    assert_eq!(warnings, ["duplicate field \"metadata.name\"", "unknown field \"dat\""]);
    assert!(read().into_object(kind, &schema, FieldValidation::Ignore).unwrap().1.is_empty());
}

#[test]
fn whole_numbers_are_integers() {
    assert_eq!(Body::read(b"[2.0, 1e3, 1.5, 9e99, -0.0]").unwrap().value.to_string(), "[2,1000,1.5,9e+99,0]");
}

#[test]
fn depth_is_bounded() {
    assert!(Body::read("[".repeat(100_000).as_bytes()).is_err());
}

proptest::proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes: Vec<u8>, odd in "[\\[\\]{}\",:a1.e-]{0,40}") {
        drop(Body::read(&bytes));
        drop(Body::read(odd.as_bytes()));
    }
}
