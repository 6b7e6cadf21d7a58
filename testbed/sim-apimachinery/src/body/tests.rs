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

#[test]
fn what_a_patch_made_undecodable_is_the_fault_of_the_patch() {
    let service = builtin::find("v1", "Service").unwrap();
    let schema = schema::builtin("", "Service").unwrap();
    let answer = |object: Value, validation| {
        let body = Body { value: object, duplicates: vec![] };
        let patch = json!({"spec": {"ports": [{"port": 80}, "x", null]}});
        let status = body.into_patched(service, &schema, validation, Some(&patch)).unwrap_err();
        assert_eq!((status.code, status.details["causes"][0]["field"].as_str()), (422, Some("patch")));
        status.message
    };
    assert_eq!(
        answer(json!({"spec": {"ports": "x"}}), FieldValidation::Warn),
        " \"\" is invalid: patch: Invalid value: \"map[spec:map[ports:[map[port:80] x <nil>]]]\": json: cannot unmarshal string into Go struct field \
         ServiceSpec.spec.ports of type []v1.ServicePort"
    );
    assert_eq!(
        answer(json!({"spec": {"foo": 5}}), FieldValidation::Strict),
        " \"\" is invalid: patch: Invalid value: \"map[spec:map[ports:[map[port:80] x <nil>]]]\": strict decoding error: unknown field \"spec.foo\""
    );
    assert!(
        answer(json!({"apiVersion": "v1", "kind": "Pod"}), FieldValidation::Warn)
            .ends_with("converting (v1.Pod) to (core.Service): unknown conversion")
    );
    assert!(
        answer(json!({"apiVersion": "v2"}), FieldValidation::Warn).contains("registered for version \"v2\"")
    );
    assert!(answer(json!([]), FieldValidation::Warn).contains("no JSON object"));
}

#[test]
fn a_custom_resource_that_a_patch_gave_another_version_names_the_version() {
    let crd = json!({"spec": {"group": "example.com", "names": {"kind": "Widget", "plural": "widgets"},
        "versions": [{"name": "v1", "served": true}]}});
    let widget = Kind::of_crd(&crd).remove(0);
    let object = json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w"}});
    let body = Body { value: object, duplicates: vec![] };
    let status = body.into_patched(&widget, &Schema::anything(), FieldValidation::Warn, None).unwrap_err();
    assert_eq!(
        status.message,
        "Widget.example.com \"w\" is invalid: apiVersion: Invalid value: \"example.com/v2\": must be example.com/v1"
    );
    let nameless = Body { value: json!({"spec": {}}), duplicates: vec![] };
    let status =
        nameless.into_patched(&widget, &Schema::anything(), FieldValidation::Warn, None).unwrap_err();
    assert_eq!(
        status.message,
        r#" "" is invalid: patch: Invalid value: "{\"spec\":{}}": Object 'Kind' is missing in '{"spec":{}}'"#
    );
}
