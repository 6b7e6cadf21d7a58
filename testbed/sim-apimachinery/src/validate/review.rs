//! Questions about rights that cannot be answered.

use serde_json::{Value, json};

use super::{elements, text};
use crate::json::in_order;
use crate::status::Cause;

/// Returns the faults of the `spec` of an access review of that kind; `namespace` is that of the path.
pub fn faults(kind: &str, namespace: &str, spec: &Value) -> Vec<Cause> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut causes = Vec::new();
    let mut refuse_path = |detail: &str| {
        let shown = in_order([("Path", text(&path["path"]).into()), ("Verb", text(&path["verb"]).into())]);
        let message = format!("Invalid value: {shown}: {detail}");
        causes.push(Cause::new("FieldValueInvalid", "spec.nonResourceAttributes", message));
    };
    if !path.is_null() {
        if !resource.is_null() {
            refuse_path("cannot be specified in combination with resourceAttributes");
        }
        if kind == "LocalSubjectAccessReview" {
            refuse_path("disallowed on this kind of request");
        }
    } else if resource.is_null() {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.push(Cause::invalid("spec.resourceAttributes", &json!(null), detail));
    }
    if kind != "SelfSubjectAccessReview"
        && text(&spec["user"]).is_empty()
        && elements(&spec["groups"]).is_empty()
    {
        let detail = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", &"".into(), detail));
    }
    let asked = text(&resource["namespace"]);
    if kind == "LocalSubjectAccessReview" && !resource.is_null() && asked != namespace {
        let field = "spec.resourceAttributes.namespace";
        causes.push(Cause::invalid(field, &asked.into(), "must match metadata.namespace"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOTHING: &str = "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or \
                           resourceAttributes must be specified";
    const BOTH: &str = r#"spec.nonResourceAttributes: Invalid value: {"Path":"","Verb":""}: cannot be specified in combination with resourceAttributes"#;
    const NOBODY: &str = r#"spec.user: Invalid value: "": at least one of user or group must be specified"#;

    #[rstest]
    #[case("SelfSubjectAccessReview", json!({"resourceAttributes": {}}), &[])]
    #[case("SelfSubjectAccessReview", json!({}), &[NOTHING])]
    #[case("SelfSubjectAccessReview", json!(null), &[NOTHING])]
    #[case("SelfSubjectAccessReview", json!({"resourceAttributes": {}, "nonResourceAttributes": {}}), &[BOTH])]
    #[case("SubjectAccessReview", json!({}), &[NOTHING, NOBODY])]
    #[case("SubjectAccessReview", json!({"groups": ["a"], "nonResourceAttributes": {"path": "/"}}), &[])]
    #[case("LocalSubjectAccessReview", json!({"user": "a", "resourceAttributes": {"namespace": "shop"}}), &[])]
    #[case("LocalSubjectAccessReview", json!({"user": "a", "resourceAttributes": {"namespace": "other"}}),
        &[r#"spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace"#])]
    #[case("LocalSubjectAccessReview", json!({"user": "a", "nonResourceAttributes": {"path": "/"}}),
        &[r#"spec.nonResourceAttributes: Invalid value: {"Path":"/","Verb":""}: disallowed on this kind of request"#])]
    fn a_question_without_sense_is_refused(
        #[case] kind: &str,
        #[case] spec: Value,
        #[case] expected: &[&str],
    ) {
        let faults = faults(kind, "shop", &spec);
        let texts: Vec<String> =
            faults.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(texts, expected);
    }
}
