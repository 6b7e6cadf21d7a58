use serde_json::json;

use super::*;
use crate::builtin;

#[test]
fn wrong_objects_are_told_what_the_real_server_tells_them() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests/vectors/bad_input.json")).unwrap();
    let mut compared = 0;
    for case in vectors.as_array().unwrap() {
        let object = &case["body"];
        let kind = builtin::find(text(&object["apiVersion"]), text(&object["kind"])).unwrap();
        let texts = |causes: &[Value]| {
            let mut texts = causes.iter().map(Value::to_string).collect::<Vec<_>>();
            texts.sort();
            texts
        };
        let ours = faults(kind, None, object).iter().map(|cause| json!(cause)).collect::<Vec<_>>();
        assert_eq!(texts(&ours), texts(elements(&case["causes"])), "{object}");
        compared += 1;
    }
    assert!(compared >= 15, "{compared}");
}

#[test]
fn values_that_are_too_large_together_are_refused() {
    let kind = builtin::find("v1", "ConfigMap").unwrap();
    let half = "x".repeat(600_000);
    let causes = faults(kind, None, &json!({"data": {"a": half, "b": half}}));
    assert_eq!(causes, [Cause::too_long("", 1 << 20)]);
}
