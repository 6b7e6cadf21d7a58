//! The charts of `deploy/charts`, in helm itself: what they render, and what a real API server makes of it.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod air_gap;
mod contract;
mod documented;
mod environment;
mod examples;
mod first_install;
mod generated;
mod harvester;
mod kinds;
mod marketplace;
mod missing;
mod notes;
mod places;
mod security;
mod server;
mod terraform;
mod upgrades;
mod values;

use std::{
    env,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use outside_tools::Tool;
use serde_json::Value;
use test_cluster::manifests::documents;

/// The charts, and the namespace that each is for.
const CHARTS: [(&str, &str); 3] = [
    ("harvester-cloud-provider", "kube-system"),
    ("harvester-csi-driver", "kube-system"),
    ("harvester-load-balancer", "harvester-system"),
];

/// Values that turn on what the defaults leave out.
const EVERYTHING: [&str; 2] =
    ["--api-versions=monitoring.coreos.com/v1", "--api-versions=snapshot.storage.k8s.io/v1"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn chart(name: &str) -> PathBuf {
    root().join("deploy/charts").join(name)
}

/// helm, if this machine has it; that it does not is said.
fn helm() -> Option<PathBuf> {
    let found = Tool::Helm.find();
    if found.is_none() {
        assert!(env::var_os("CI").is_none(), "no helm here: run `cargo xtask tools`");
        leave_out("the charts: helm is not on this machine: `cargo xtask tools` builds it");
    }
    found
}

fn leave_out(why: &str) {
    // past the test harness, which shows nothing of a test that passes
    let said = writeln!(std::io::stderr(), "left out: {why}");
    said.unwrap();
}

/// What a program prints, or what it complains of.
fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if done.status.success() { Ok(text(done.stdout)) } else { Err(text(done.stderr)) }
}

/// The objects of a chart as release of its own name, or helm's complaint. `options` are `--set` where they do not begin
/// with a dash.
fn try_render(helm: &Path, name: &str, options: &[&str]) -> Result<Vec<Value>, String> {
    let namespace = CHARTS.iter().find(|(chart, _)| *chart == name).unwrap().1;
    let mut command = Command::new(helm);
    command.args(["template", name]).arg(chart(name)).args(["--namespace", namespace]);
    for option in options {
        if option.starts_with('-') {
            command.arg(option)
        } else {
            command.args(["--set", option])
        };
    }
    output(&mut command).map(|text| documents(&text).unwrap())
}

fn render(helm: &Path, name: &str, options: &[&str]) -> Vec<Value> {
    try_render(helm, name, options).unwrap_or_else(|why| panic!("{name} {options:?}: {why}"))
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind && text(object, "/metadata/name") == name)
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    find(objects, kind, name).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn array<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The Pod specifications, with the name of what makes them.
fn pods(objects: &[Value]) -> impl Iterator<Item = (&str, &Value)> {
    objects
        .iter()
        .filter_map(|object| Some((text(object, "/metadata/name"), object.pointer("/spec/template/spec")?)))
}

/// Containers with their Pods.
fn containers(objects: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    pods(objects).flat_map(|(_, pod)| array(pod, "/containers").iter().map(move |container| (pod, container)))
}

fn container<'a>(objects: &'a [Value], kind: &str, workload: &str, name: &str) -> &'a Value {
    let found = array(object(objects, kind, workload), "/spec/template/spec/containers").iter();
    let mut found = found.filter(|container| container["name"] == name);
    found.next().unwrap_or_else(|| panic!("no container {name} in {workload}"))
}

fn args(container: &Value) -> Vec<&str> {
    array(container, "/args").iter().filter_map(Value::as_str).collect()
}

/// Each chart with its defaults, with everything on, and with a Secret.
fn variants(helm: &Path) -> Vec<(String, Vec<Value>)> {
    let secret = ["cloudConfig.secretName=harvester-cloud-config"];
    let all_on: Vec<_> = EVERYTHING.into_iter().chain(["kube-vip.podMonitor.enabled=true"]).collect();
    let options: [(&str, &[&str]); 3] = [("defaults", &[]), ("everything", &all_on), ("a Secret", &secret)];
    let mut found = vec![];
    for (name, _) in CHARTS {
        for (says, options) in options {
            found.push((format!("{name} with {says}"), render(helm, name, options)));
        }
    }
    found
}
