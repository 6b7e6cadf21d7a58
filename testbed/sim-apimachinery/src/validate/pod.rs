//! Pods: what people get wrong in one that they write by hand.

use serde_json::Value;

use super::{elements, named, names, text};
use crate::status::Cause;

pub(super) fn faults(pod: &Value, causes: &mut Vec<Cause>) {
    let spec = &pod["spec"];
    if elements(&spec["containers"]).is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let mut known: Vec<&str> = Vec::new();
    for list in ["containers", "initContainers"] {
        for (index, container) in elements(&spec[list]).iter().enumerate() {
            let path = |field: &str| format!("spec.{list}[{index}].{field}");
            match text(&container["name"]) {
                "" => causes.push(Cause::required(&path("name"), "")),
                name => {
                    named(&path("name"), name, names::dns1123_label(name), causes);
                    if known.contains(&name) {
                        causes.push(Cause::duplicate(&path("name"), &name.into()));
                    }
                    known.push(name);
                }
            }
            match text(&container["image"]) {
                "" => causes.push(Cause::required(&path("image"), "")),
                image if image.trim() != image => {
                    let detail = "must not have leading or trailing whitespace";
                    causes.push(Cause::invalid(&path("image"), &image.into(), detail));
                }
                _ => {}
            }
            one_of(
                &path("imagePullPolicy"),
                &container["imagePullPolicy"],
                &["Always", "IfNotPresent", "Never"],
                causes,
            );
        }
    }
    one_of("spec.restartPolicy", &spec["restartPolicy"], &["Always", "OnFailure", "Never"], causes);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of("spec.dnsPolicy", &spec["dnsPolicy"], &policies, causes);
}

/// Checks a value, if there is one: an absent value has a default.
fn one_of(field: &str, value: &Value, supported: &[&str], causes: &mut Vec<Cause>) {
    if !value.is_null() && !supported.contains(&text(value)) {
        causes.push(Cause::not_supported(field, value, supported));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::fine(json!({"containers": [{"name": "c", "image": "nginx"}]}), &[])]
    #[case::none(json!({}), &["spec.containers: Required value"])]
    #[case::empty(json!({"containers": []}), &["spec.containers: Required value"])]
    #[case::no_name(json!({"containers": [{"image": "nginx"}]}), &["spec.containers[0].name: Required value"])]
    #[case::no_image(json!({"containers": [{"name": "c"}]}), &["spec.containers[0].image: Required value"])]
    #[case::blank(json!({"containers": [{"name": "c", "image": " a"}]}),
        &[r#"spec.containers[0].image: Invalid value: " a": must not have leading or trailing whitespace"#])]
    #[case::twice(
        json!({"containers": [{"name": "a", "image": "a"}, {"name": "a", "image": "b"}], "initContainers": [{"name": "a"}]}),
        &[
            r#"spec.containers[1].name: Duplicate value: "a""#,
            r#"spec.initContainers[0].name: Duplicate value: "a""#,
            "spec.initContainers[0].image: Required value",
        ]
    )]
    #[case::policies(
        json!({"restartPolicy": "x", "dnsPolicy": "y", "containers": [{"name": "a", "image": "a", "imagePullPolicy": "x"}]}),
        &[
            r#"spec.containers[0].imagePullPolicy: Unsupported value: "x": supported values: "Always", "IfNotPresent", "Never""#,
            r#"spec.restartPolicy: Unsupported value: "x": supported values: "Always", "OnFailure", "Never""#,
            r#"spec.dnsPolicy: Unsupported value: "y": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None""#,
        ]
    )]
    fn a_pod_is_refused_in_the_words_of_the_real_server(#[case] spec: Value, #[case] expected: &[&str]) {
        let mut causes = Vec::new();
        faults(&json!({"spec": spec}), &mut causes);
        let texts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        assert_eq!(texts, expected);
    }
}
