//! The HelmCharts of the published documents as they are printed there, with our chart under the version that they name.

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;
use test_cluster::manifests::documents;

use super::{args, array, chart, container, helm, object, output, root, server::lab, text};

const NAME: &str = "harvester-cloud-provider";

fn printed(file: &str) -> PathBuf {
    root().join("tests/charts/documented").join(file)
}

/// What the helm controller installs: the package of this version, whose address alone is another one.
fn installed(helm: &std::path::Path, manifest: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let version = text(manifest, "/spec/version");
    let mut package = Command::new(helm);
    package.arg("package").arg(chart(text(manifest, "/spec/chart"))).args([
        "--version",
        version,
        "--destination",
    ]);
    output(package.arg(folder.path())).unwrap();
    let file = folder.path().join(format!("{NAME}-{version}.tgz"));
    let values = folder.path().join("values.yaml");
    fs::write(&values, text(manifest, "/spec/valuesContent")).unwrap();
    let mut template = Command::new(helm);
    template.args(["template", text(manifest, "/metadata/name")]).arg(file).arg("--values").arg(values);
    output(template.args(["--namespace", text(manifest, "/spec/targetNamespace")])).unwrap()
}

// docs/contract/user-docs.md#17e, #17g
#[test]
fn the_printed_helm_charts_install_our_chart_as_they_stand() {
    let Some(helm) = helm() else { return };
    for (file, cluster, labelled) in [
        (
            "rke2-external.yaml",
            Some("--cluster-name=<cluster-name>"),
            "harvester-cloud-provider-104.0.2_up0.2.6",
        ),
        ("k3s.yaml", None, "harvester-cloud-provider-0.2.2"),
    ] {
        let manifest = documents(&fs::read_to_string(printed(file)).unwrap()).unwrap().remove(0);
        let rendered = installed(&helm, &manifest);
        let objects = documents(&rendered).unwrap();
        let deployment = object(&objects, "Deployment", NAME);
        assert_eq!(text(deployment, "/metadata/labels/helm.sh~1chart"), labelled);
        // it comes before there is a network, on a node that has the taint
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(
            (&manifest["spec"]["bootstrap"], &pod["hostNetwork"]),
            (&true.into(), &true.into()),
            "{file}"
        );
        let taint = "node.cloudprovider.kubernetes.io/uninitialized";
        assert!(array(pod, "/tolerations").iter().any(|it| it["key"] == taint), "{file}: {pod}");
        let given = args(container(&objects, "Deployment", NAME, NAME));
        assert_eq!(given.iter().copied().find(|arg| arg.starts_with("--cluster-name")), cluster, "{file}");
        let folders: Vec<_> = array(pod, "/volumes").iter().map(|it| text(it, "/hostPath/path")).collect();
        for usual in ["/var/lib/rancher/rke2/etc/config-files", "/etc/kubernetes"] {
            assert!(folders.contains(&usual), "{file}: {folders:?}");
        }
        let Some(lab) = lab() else { continue };
        let all = tempfile::NamedTempFile::new().unwrap();
        fs::write(all.path(), rendered).unwrap();
        for applied in [printed(file), all.path().to_owned()] {
            let applied = applied.to_str().unwrap();
            lab.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", applied]);
        }
    }
}
