//! What charts carry of other files of this repository is those files. `UPDATE_CHARTS=1 cargo test --test charts` copies them
//! anew.

use std::{env, fs, path::Path};

use serde_json::Value;
use test_cluster::manifests::documents;

use super::{CHARTS, chart, helm, object, render, root};

const HEAD: &str =
    "{{- /* Made from deploy/rbac/ours.yaml by `UPDATE_CHARTS=1 cargo test --test charts`. */}}\n";

/// Which roles of `deploy/rbac/ours.yaml` a chart has: their kind and name there, and their name in the chart.
const ROLES: [(&str, &str, &str, &str); 10] = [
    (
        "harvester-cloud-provider",
        "ClusterRole",
        "harvester-cloud-controller-manager",
        "harvester-cloud-provider",
    ),
    ("harvester-cloud-provider", "Role", "harvester-cloud-controller-manager", "harvester-cloud-provider"),
    (
        "harvester-cloud-provider",
        "Role",
        "harvester-cloud-controller-manager-credential",
        "harvester-cloud-provider-credential",
    ),
    ("harvester-csi-driver", "ClusterRole", "harvester-csi-driver", "harvester-csi-driver"),
    ("harvester-csi-driver", "Role", "harvester-csi-driver", "harvester-csi-driver"),
    ("harvester-csi-driver", "Role", "harvester-csi-driver-credential", "harvester-csi-driver-credential"),
    ("harvester-load-balancer", "ClusterRole", "harvester-load-balancer", "harvester-load-balancer"),
    ("harvester-load-balancer", "Role", "harvester-load-balancer", "harvester-load-balancer"),
    (
        "harvester-load-balancer",
        "ClusterRole",
        "harvester-load-balancer-webhook",
        "harvester-load-balancer-webhook",
    ),
    ("harvester-load-balancer", "Role", "harvester-load-balancer-webhook", "harvester-load-balancer-webhook"),
];

const COPIES: [(&str, &str); 9] = [
    // helm shows templates the values, and not what the chart says of them
    ("deploy/charts/harvester-cloud-provider/values.yaml", "harvester-cloud-provider/files/values.yaml"),
    ("deploy/charts/harvester-csi-driver/values.yaml", "harvester-csi-driver/files/values.yaml"),
    ("deploy/charts/harvester-load-balancer/values.yaml", "harvester-load-balancer/files/values.yaml"),
    ("deploy/monitoring/rules.yaml", "harvester-cloud-provider/files/rules.yaml"),
    ("deploy/monitoring/rules.yaml", "harvester-csi-driver/files/rules.yaml"),
    ("deploy/monitoring/rules.yaml", "harvester-load-balancer/files/rules.yaml"),
    ("deploy/monitoring/grafana-dashboard.json", "harvester-load-balancer/files/grafana-dashboard.json"),
    ("deploy/crds/ippools.yaml", "harvester-load-balancer/files/crds/ippools.yaml"),
    ("deploy/crds/loadbalancers.yaml", "harvester-load-balancer/files/crds/loadbalancers.yaml"),
];

fn ours() -> String {
    fs::read_to_string(root().join("deploy/rbac/ours.yaml")).unwrap()
}

/// The rules of a role as they stand in `ours.yaml`, comments included.
fn rules<'a>(ours: &'a str, kind: &str, name: &str) -> &'a str {
    let is_wanted = |document: &&str| {
        document.contains(&format!("\nkind: {kind}\n")) && document.contains(&format!("\n  name: {name}\n"))
    };
    let found = ours.split("\n---\n").find(is_wanted).unwrap_or_else(|| panic!("no {kind} {name}"));
    found.split_once("\nrules:\n").unwrap().1.trim_end()
}

fn assert_is(file: &Path, wanted: &str) {
    if env::var_os("UPDATE_CHARTS").is_some() {
        fs::write(file, wanted).unwrap();
    }
    let found = fs::read_to_string(file).unwrap_or_default();
    assert!(found == wanted, "{} is out of date: UPDATE_CHARTS=1 cargo test --test charts", file.display());
}

#[test]
fn the_rules_in_the_charts_are_made_from_one_source() {
    let ours = ours();
    for (name, _) in CHARTS {
        let mut wanted = HEAD.to_owned();
        for (_, kind, role, _) in ROLES.iter().filter(|(chart, ..)| *chart == name) {
            let rules = rules(&ours, kind, role);
            wanted += &format!("\n{{{{- define \"rules.{kind}.{role}\" }}}}\n{rules}\n{{{{- end }}}}\n");
        }
        assert_is(&chart(name).join("templates/_rules.tpl"), &wanted);
    }
}

#[test]
fn files_in_the_charts_are_those_of_the_repository() {
    for (from, to) in COPIES {
        let wanted = fs::read_to_string(root().join(from)).unwrap();
        assert_is(&chart(to), &wanted);
    }
}

/// The one source is for nothing where a template has rules besides.
#[test]
fn a_rendered_role_grants_exactly_what_our_roles_grant() {
    let Some(helm) = helm() else { return };
    let ours = documents(&ours()).unwrap();
    for (chart, kind, role, name) in ROLES {
        let rendered = render(&helm, chart, &[]);
        assert_eq!(
            object(&rendered, kind, name)["rules"],
            object(&ours, kind, role)["rules"],
            "{chart}: {kind} {name}"
        );
    }
    // and nobody has more: these are the sidecars' and kube-vip's
    let others = ["harvester-csi-driver-controllers", "kube-vip"];
    for (chart, _) in CHARTS {
        let rendered = render(&helm, chart, &[]);
        let is_role = |object: &&Value| object["kind"] == "ClusterRole" || object["kind"] == "Role";
        for role in rendered.iter().filter(is_role) {
            let name = super::text(role, "/metadata/name");
            assert!(
                others.contains(&name) || ROLES.iter().any(|(.., ours)| *ours == name),
                "{chart}: {name}"
            );
        }
    }
}

#[test]
fn the_definitions_in_the_chart_are_those_that_the_tests_run_with_and_stay_without_the_release() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, "harvester-load-balancer", &[]);
    for name in ["ippools", "loadbalancers"] {
        let ours =
            documents(&fs::read_to_string(root().join(format!("deploy/crds/{name}.yaml"))).unwrap()).unwrap();
        let definition =
            object(&rendered, "CustomResourceDefinition", &format!("{name}.loadbalancer.harvesterhci.io"));
        assert_eq!(definition["spec"], ours[0]["spec"], "{name}");
        assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep", "{name}");
    }
}
