//! Rules and dashboard of deploy/monitoring: what they ask for exists, and each rule fires.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use super::root;

/// Documents with tables of metrics.
const DOCUMENTS: [&str; 2] = ["docs/messages.md", "docs/storage.md"];
/// What Prometheus adds to the name of a counter or histogram.
const SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Prometheus' own words with an underscore.
const FUNCTIONS: [&str; 3] = ["histogram_quantile", "max_over_time", "present_over_time"];

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
}

#[derive(Deserialize)]
struct Cases {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alert_rule_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    alertname: String,
    exp_alerts: Vec<Value>,
}

fn folder() -> PathBuf {
    root().join("deploy/monitoring")
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_saphyr::from_str(&fs::read_to_string(folder().join(name)).unwrap()).unwrap()
}

fn rules() -> Vec<Rule> {
    read::<Rules>("rules.yaml").groups.into_iter().flat_map(|group| group.rules).collect()
}

/// The metrics in an expression: names with an underscore that nothing calls and that are no label's.
fn metrics(expression: &str) -> BTreeSet<String> {
    let labels = |text: &str| -> BTreeSet<String> {
        let inside = text.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
        inside.flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect()
    };
    let labels = labels(expression);
    let mut bare = String::new();
    let mut depth = 0_usize;
    for character in expression.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => bare.push(character),
            _ => {}
        }
    }
    let words = bare.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let is_metric = |word: &&str| word.contains('_') && !labels.contains(*word) && !FUNCTIONS.contains(word);
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Each name in the documents' tables of metrics.
fn documented() -> BTreeSet<String> {
    let texts = DOCUMENTS.map(|name| fs::read_to_string(root().join(name)).unwrap());
    let ticked = texts.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
    ticked.filter_map(|name| name.split('{').next()).map(str::to_owned).collect()
}

fn unknown(expression: &str) -> Vec<String> {
    let documented = documented();
    let is_known = |name: &String| {
        let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
        documented.contains(name) || base.is_some_and(|base| documented.contains(base))
    };
    metrics(expression).into_iter().filter(|name| !is_known(name)).collect()
}

#[test]
fn every_metric_of_a_rule_is_documented() {
    for Rule { alert, expr } in rules() {
        assert!(!metrics(&expr).is_empty(), "{alert}: {expr}");
        assert_eq!(unknown(&expr), [""; 0], "{alert}");
    }
}

#[test]
fn every_metric_of_the_dashboard_is_documented() {
    let text = fs::read_to_string(folder().join("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions: Vec<_> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(expressions.len() > panels.len() / 2, "panels without a question");
    for expression in expressions {
        assert_eq!(unknown(expression), [""; 0], "{expression}");
    }
}

#[test]
fn every_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let cases: Vec<_> =
        read::<Cases>("rules-test.yaml").tests.into_iter().flat_map(|case| case.alert_rule_test).collect();
    for Rule { alert, .. } in rules() {
        let fires: BTreeSet<_> = cases
            .iter()
            .filter(|expected| expected.alertname == alert)
            .map(|expected| !expected.exp_alerts.is_empty())
            .collect();
        assert_eq!(fires, [false, true].into(), "{alert}");
    }
}

/// `cargo xtask test` has promtool, or says that it left this out.
#[test]
fn prometheus_itself_fires_each_rule_in_its_case() {
    let script = root().join("tests/debian-program.sh");
    let found = Command::new("sh").arg(script).arg("promtool").output().unwrap();
    if !found.status.success() {
        eprintln!("left out: {}", String::from_utf8_lossy(&found.stderr).trim());
        return;
    }
    let promtool = String::from_utf8(found.stdout).unwrap();
    let mut command = Command::new(promtool.trim());
    let checked = command.current_dir(folder()).args(["test", "rules", "rules-test.yaml"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}
