//! What Rancher's marketplace reads of the charts: the form of questions, and the annotations of the catalog.

use std::fs;

use serde_json::{Value, json};

use super::{CHARTS, chart, helm, text, try_render};

fn read(name: &str, file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(chart(name).join(file)).unwrap()).unwrap()
}

/// The value that a variable of the form names, by its dots.
fn value<'a>(values: &'a Value, variable: &str) -> Option<&'a Value> {
    variable.split('.').try_fold(values, |value, part| value.get(part))
}

/// What somebody may choose or write for a question, as Rancher gives it to helm.
fn answers(question: &Value) -> Vec<Value> {
    match text(question, "/type") {
        // some are paths
        "string" => vec![json!("/a"), question["default"].as_str().unwrap_or_default().into()],
        "boolean" => vec![json!(true), json!(false)],
        "int" => vec![json!(1), json!(3)],
        "array" => vec![json!([]), json!(["--v=2"])],
        "enum" => question["options"].as_array().unwrap().clone(),
        other => panic!("no type of Rancher's form: {other}"),
    }
}

/// A form that asks for a value of another name or type gives helm what nobody reads, or what it refuses.
#[test]
fn each_question_of_the_form_is_about_a_value_of_the_chart_and_takes_what_the_schema_takes() {
    let Some(helm) = helm() else { return };
    for (name, namespace) in CHARTS {
        let (form, values) = (read(name, "questions.yaml"), read(name, "values.yaml"));
        assert_eq!(form["namespace"], namespace, "{name}");
        let questions = form["questions"].as_array().unwrap();
        assert!(!questions.is_empty(), "{name}");
        for question in questions {
            let variable = text(question, "/variable");
            let found = value(&values, variable).unwrap_or_else(|| panic!("{name} has no value {variable}"));
            assert!(
                !text(question, "/label").is_empty() && !text(question, "/group").is_empty(),
                "{variable}"
            );
            if let Some(default) = question.get("default") {
                assert_eq!(default, found, "{name}: {variable}");
            }
            for answer in answers(question) {
                let file = tempfile::NamedTempFile::new().unwrap();
                let nested = variable.rsplit('.').fold(answer.clone(), |value, part| json!({part: value}));
                fs::write(file.path(), nested.to_string()).unwrap();
                let values = format!("--values={}", file.path().display());
                let told = try_render(&helm, name, &[&values]).err().unwrap_or_default();
                // two places at once, say, are refused by the chart and not by its schema
                assert!(!told.contains("of the schema"), "{variable} {answer}: {told}");
            }
        }
    }
}

/// Rancher installs a chart under these names: RKE2, and the documents, look for the release there.
#[test]
fn the_catalog_has_the_names_and_releases_of_the_documents() {
    for (name, namespace) in CHARTS {
        let told = read(name, "Chart.yaml");
        let annotation = |last: &str| told["annotations"][format!("catalog.cattle.io/{last}")].clone();
        assert_eq!(annotation("release-name"), name);
        assert_eq!(annotation("namespace"), namespace, "{name}");
        assert_eq!(annotation("os"), "linux", "{name}");
        assert_eq!(annotation("kube-version"), told["kubeVersion"], "{name}");
        assert!(!annotation("display-name").as_str().unwrap().is_empty(), "{name}");
        // nothing but those that Rancher knows
        let known = [
            "display-name",
            "kube-version",
            "namespace",
            "os",
            "rancher-version",
            "release-name",
            "ui-component",
        ];
        for key in told["annotations"].as_object().unwrap().keys() {
            let last = key.strip_prefix("catalog.cattle.io/").unwrap_or_else(|| panic!("{name}: {key}"));
            assert!(known.contains(&last), "{name}: {key}");
        }
    }
}
