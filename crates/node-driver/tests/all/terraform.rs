//! The machine of the published Terraform sample, `tests/terraform/machine_config.json`: numbers as text, and user data without
//! its first line.

use serde_json::{Map, Value};

use crate::wire::program;

const CONFIG: &str = include_str!("../../../../tests/terraform/machine_config.json");

#[test]
fn the_machine_of_the_terraform_sample_is_made_as_it_stands() {
    let config: Map<String, Value> = serde_json::from_str(CONFIG).unwrap();
    // as Rancher makes flags of the fields
    let flag = |(name, value): (&String, &Value)| {
        format!("--harvester-{}={}", name.replace('_', "-"), value.as_str().unwrap())
    };
    let told =
        program().arg("render").args(config.iter().map(flag)).arg("rke2-demo-pool1-x7k2m-9d4tq").output();
    let told = told.unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let rendered = String::from_utf8(told.stdout).unwrap();
    for part in [
        "          cores: 2\n",
        "memory: 4Gi\n",
        r#"\"harvesterhci.io/imageId\":\"harvester-public/image-57hzg\""#,
        r#"\"storage\":\"40Gi\""#,
        "networkName: harvester-public/vlan1\n",
        "  namespace: default\n",
        "#cloud-config\n",
        "- qemu-guest-agent\n",
        "- iptables\n",
        "- systemctl\n",
    ] {
        assert!(rendered.contains(part), "{part:?} is not in\n{rendered}");
    }
}
