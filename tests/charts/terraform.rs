//! The chart values of the published Terraform sample, `tests/terraform/chart_values.json`.

use std::fs;

use serde_json::Value;

use super::{args, array, container, helm, object, render, root, text};

// docs/contract/user-docs.md#17d
#[test]
fn the_chart_values_of_the_terraform_sample_name_the_cluster_and_its_file() {
    let Some(helm) = helm() else { return };
    let sample = fs::read_to_string(root().join("tests/terraform/chart_values.json")).unwrap();
    let sample: Value = serde_json::from_str(&sample).unwrap();
    let name = "harvester-cloud-provider";
    // as Rancher gives them: each chart the values under its name
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), sample[name].to_string()).unwrap();
    let rendered = render(&helm, name, &[&format!("--values={}", file.path().display())]);
    let ccm = container(&rendered, "Deployment", name, name);
    let path = text(&sample, "/harvester-cloud-provider/cloudConfigPath");
    assert_eq!(args(ccm)[0], format!("--cloud-config={path}"));
    assert!(args(ccm).contains(&"--cluster-name=rke2-demo"), "{ccm}");
    let pod = &object(&rendered, "Deployment", name)["spec"]["template"]["spec"];
    let folder = path.rsplit_once('/').unwrap().0;
    assert!(array(pod, "/volumes").iter().any(|volume| text(volume, "/hostPath/path") == folder), "{pod}");
}
