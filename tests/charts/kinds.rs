//! The kinds of other projects on the API server: by their own definitions, or by stand-ins that take any object.

use std::{env, fs, path::Path};

use outside_tools::definitions;
use serde_json::Value;
use test_cluster::manifests::documents;

use super::{leave_out, root, server::lab, text};

/// What no Go module that is pinned here defines.
const ALWAYS_STAND_INS: [&str; 1] = ["managedcharts.management.cattle.io"];

/// Writes all definitions into a file, and says which are stand-ins.
pub(crate) fn write(to: &Path) {
    let stand_ins = fs::read_to_string(root().join("tests/charts/kinds.yaml")).unwrap();
    let (mut all, mut left) = (String::new(), Vec::new());
    for stand_in in documents(&stand_ins).unwrap() {
        let name = text(&stand_in, "/metadata/name");
        let definition = definitions::find(name).map(|file| fs::read_to_string(file).unwrap());
        if definition.is_none() {
            left.push(name.to_owned());
        }
        all += &format!("---\n{}\n", definition.unwrap_or_else(|| stand_in.to_string()));
    }
    fs::write(to, all).unwrap();
    leave_out(&format!(
        "the schemas of {} kinds of other projects: stand-ins take any object for {}",
        left.len(),
        left.join(", ")
    ));
    let is_whole = left == ALWAYS_STAND_INS;
    assert!(is_whole || env::var_os("CI").is_none(), "`cargo xtask tools` brings the definitions: {left:?}");
}

fn object(kind: &str, version: &str, spec: &Value) -> Value {
    serde_json::json!({"apiVersion": version, "kind": kind, "metadata": {"name": "tried", "namespace": "default"}, "spec": spec})
}

/// Else a manifest with a wrong field passes for one that works.
#[test]
fn a_field_that_other_projects_kinds_do_not_have_is_refused() {
    let Some(lab) = lab() else { return };
    for (name, kind, version, good, bad) in [
        (
            "helmcharts.helm.cattle.io",
            "HelmChart",
            "helm.cattle.io/v1",
            r#"{"bootstrap": true}"#,
            r#"{"bootstrp": true}"#,
        ),
        (
            "helmchartconfigs.helm.cattle.io",
            "HelmChartConfig",
            "helm.cattle.io/v1",
            r#"{"valuesContent": ""}"#,
            r#"{"valuesContnt": ""}"#,
        ),
        (
            "servicemonitors.monitoring.coreos.com",
            "ServiceMonitor",
            "monitoring.coreos.com/v1",
            r#"{"selector": {}, "endpoints": [{"port": "metrics"}]}"#,
            r#"{"selector": {}, "endpoints": [{"ports": "metrics"}]}"#,
        ),
        (
            "prometheusrules.monitoring.coreos.com",
            "PrometheusRule",
            "monitoring.coreos.com/v1",
            r#"{"groups": []}"#,
            r#"{"rules": []}"#,
        ),
    ] {
        if definitions::find(name).is_none() {
            continue; // the list of stand-ins is told with the servers' start
        }
        for (spec, is_taken) in [(good, true), (bad, false)] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let tried = object(kind, version, &serde_json::from_str(spec).unwrap());
            fs::write(file.path(), tried.to_string()).unwrap();
            let file = file.path().to_str().unwrap();
            let told =
                lab.try_run(&lab.kubectl, &["apply", "--dry-run=server", "--validate=strict", "-f", file]);
            assert_eq!(told.is_ok(), is_taken, "{kind} {spec}: {told:?}");
        }
    }
}
