use serde_json::json;

use super::*;
use crate::{
    kind::{Kind, Origin, Scope},
    status::Status,
};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../tests/vectors/schema.json")).unwrap()
}

fn thing() -> Kind {
    let crd = json!({"spec": {"group": "sim.example.com", "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things"}, "versions": [{"name": "v1", "served": true}]}});
    let kind = Kind::of_crd(&crd).remove(0);
    assert_eq!((kind.scope, kind.origin), (Scope::Namespaced, Origin::Custom));
    kind
}

/// Runs the parts of this module on an object, in the order of the real server.
fn answer(schema: &Schema, mut object: Value, strict: bool) -> Result<Value, String> {
    let unknown = unknown_fields(schema, &object);
    if strict && !unknown.is_empty() {
        let list = unknown.iter().map(|field| format!("unknown field {field:?}")).collect::<Vec<_>>();
        return Err(format!(
            "Thing in version \"v1\" cannot be handled as a Thing: strict decoding error: {}",
            list.join(", ")
        ));
    }
    schema.prune(&mut object);
    schema.default_object(&mut object);
    let causes = schema.validate(&object);
    if causes.is_empty() { Ok(object) } else { Err(Status::invalid(&thing(), "t", &causes).message) }
}

/// Go visits maps in no order: the same faults in another order are the same answer.
fn faults(message: &str) -> Vec<String> {
    let (head, list) = message.split_once(" is invalid: ").unwrap_or((message, ""));
    let mut faults = list.trim_matches(['[', ']']).split(", ").map(str::to_owned).collect::<Vec<_>>();
    faults.push(head.to_owned());
    faults.sort();
    faults
}

/// Answers that we do not imitate: Go's peculiarities with fractions, and which branch of a junctor it shows.
fn peculiar(message: &str) -> bool {
    ["MultipleOf", "float64", "anyOf", "\"spec.one\" must validate one and only one schema (oneOf). Found 2"]
        .iter()
        .any(|text| message.contains(text))
}

#[test]
fn objects_of_a_crd_are_answered_as_by_the_real_server() {
    let vectors = vectors();
    let schema = Schema::of_crd(&vectors["schema"], "").unwrap();
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let mut object =
            json!({"apiVersion": "sim.example.com/v1", "kind": "Thing", "metadata": {"name": "t"}});
        if !case["spec"].is_null() {
            object["spec"] = case["spec"].clone();
        }
        let object = crate::body::Body::read(object.to_string().as_bytes()).unwrap().value;
        let ours = answer(&schema, object, case["validation"] == "Strict");
        match (&ours, case["message"].as_str()) {
            (Ok(object), None) => assert_eq!(object["spec"], case["answer"], "{case}"),
            (Err(_), Some(theirs)) if peculiar(theirs) => {}
            (Err(ours), Some(theirs)) => assert_eq!(faults(ours), faults(theirs), "{case}"),
            // Go reads the factor of multipleOf as an integer
            (Ok(_), Some(theirs)) => assert!(theirs.contains("MultipleOf"), "{case} {ours:?}"),
            (Err(ours), None) => panic!("{case} {ours}"),
        }
        compared += 1;
    }
    assert!(compared >= 80, "{compared}");
}

#[test]
fn a_definition_that_cannot_be_checked_is_refused() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [{"rule": "self.a > 1"}],
        "properties": {"a": {"type": "strange"}, "b": {}, "c": {"type": "string", "pattern": "("},
            "d": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}}}}});
    let causes = Schema::of_crd(&schema, "spec.versions[0].schema.openAPIV3Schema").unwrap_err();
    let fields = causes.iter().map(|c| c.field.rsplit_once("[spec].").unwrap().1).collect::<Vec<_>>();
    assert_eq!(
        fields,
        [
            "properties[a].type",
            "properties[b].type",
            "properties[c].pattern",
            "properties[d].x-kubernetes-list-map-keys",
            "x-kubernetes-validations"
        ]
    );
    assert!(causes[4].message.contains("does not evaluate CEL"));
}

#[test]
fn a_service_knows_its_fields_and_how_its_lists_merge() {
    let service = builtin("", "Service").unwrap();
    let ports = &service.properties["spec"].properties["ports"];
    assert_eq!(ports.list, ListType::Map(vec!["port".into(), "protocol".into()]));
    assert_eq!(ports.strategy.merge_key.as_deref(), Some("port"));
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "labels": {"a": "b"}, "x": 1},
        "spec": {"ports": [{"port": 80, "prot": "TCP"}], "selektor": {}}});
    assert_eq!(unknown_fields(&service, &object), ["metadata.x", "spec.ports[0].prot", "spec.selektor"]);
}
