//! Where the Pods find the cloud-config, what of a node they see for it, and where they are asked for their health.

use std::fs;

use serde_json::{Value, json};

use super::{args, array, chart, container, helm, object, output, pods, render, text, try_render};

const CCM: &str = "harvester-cloud-provider";
const CSI: &str = "harvester-csi-driver";
const RKE2: &str = "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config";

/// The flag of the cloud controller manager, and the folders of the node in its Pod.
fn seen(helm: &std::path::Path, options: &[&str]) -> (String, Vec<String>) {
    let rendered = render(helm, CCM, options);
    let ccm = container(&rendered, "Deployment", CCM, CCM);
    let pod = &object(&rendered, "Deployment", CCM)["spec"]["template"]["spec"];
    let of_node = |volume: &Value| Some(volume.pointer("/hostPath/path")?.as_str()?.to_owned());
    (args(ccm)[0].to_owned(), array(pod, "/volumes").iter().filter_map(of_node).collect())
}

/// A file that was forgotten on a node would be read before the one that Rancher keeps fresh.
#[test]
fn with_both_usual_files_on_a_node_the_cloud_provider_reads_the_one_that_the_value_names() {
    let Some(helm) = helm() else { return };
    let both = ["/etc/kubernetes", "/var/lib/rancher/rke2/etc/config-files"];
    for (options, file) in [
        (&[][..], RKE2),
        (&["cloudConfigPath=/etc/kubernetes/cloud-config"], "/etc/kubernetes/cloud-config"),
        (&["cloudConfigPath=/etc/kubernetes"], "/etc/kubernetes/cloud-config"),
        (&["cloudConfigPath=/var/lib/rancher/rke2/etc/config-files/"], RKE2),
    ] {
        let (flag, folders) = seen(&helm, options);
        assert_eq!(flag, format!("--cloud-config={file}"), "{options:?}");
        assert_eq!(folders, both, "{options:?}");
    }
}

/// The documents call the path a folder in one place and a file in another (docs/contract/user-docs.md#17f).
#[test]
fn a_folder_given_as_the_path_is_mounted_itself_and_the_file_in_it_is_found() {
    let Some(helm) = helm() else { return };
    let (flag, folders) = seen(&helm, &["cloudConfigPath=/data/harvester/"]);
    assert_eq!(
        (flag.as_str(), folders),
        ("--cloud-config=/etc/kubernetes/cloud-config", vec!["/data/harvester".to_owned()])
    );
    let (flag, folders) = seen(&helm, &["cloudConfigPath=/data/harvester/blue"]);
    assert_eq!(
        (flag.as_str(), folders),
        ("--cloud-config=/etc/kubernetes/cloud-config/blue", vec!["/data/harvester".to_owned()])
    );
    // and the driver takes a file that is called otherwise
    for path in ["/etc/harvester/harvester.yaml", "/etc/harvester/", "/etc/harvester"] {
        let rendered = render(&helm, CSI, &[&format!("cloudConfig.hostPath={path}")]);
        for (workload, pod) in pods(&rendered) {
            assert_eq!(pod["volumes"][0]["hostPath"]["path"], "/etc/harvester", "{workload}: {path}");
        }
    }
}

#[test]
fn no_value_mounts_the_secrets_of_a_node() {
    let Some(helm) = helm() else { return };
    for path in [
        "/cloud-config",
        "/etc/cloud-config",
        "/etc/",
        "/etc/../cloud-config",
        "/root/cloud-config",
        "/home/rancher/cloud-config",
        "/etc/rancher/rke2/cloud-config",
        "/etc/kubernetes/pki/cloud-config",
        "/var/lib/cloud-config",
        "/var/lib/rancher/rke2/cloud-config",
        "/var/lib/rancher/rke2/etc/",
        "/var/lib/rancher/rke2/server/",
    ] {
        for (chart, value) in [(CCM, "cloudConfigPath"), (CSI, "cloudConfig.hostPath")] {
            let told = try_render(&helm, chart, &[&format!("{value}={path}")]).unwrap_err();
            assert!(told.contains("put the file into a folder of its own"), "{chart} {path}: {told}");
        }
    }
}

#[test]
fn the_probes_ask_where_the_extra_arguments_say_that_health_is() {
    let Some(helm) = helm() else { return };
    let probe = |options: &[&str]| {
        let rendered = render(&helm, CCM, options);
        let ccm = container(&rendered, "Deployment", CCM, CCM);
        let found = |probe: &str| {
            let asked = &ccm[probe]["httpGet"];
            (asked["host"].clone(), asked["port"].clone())
        };
        assert_eq!(found("livenessProbe"), found("readinessProbe"));
        found("livenessProbe")
    };
    assert_eq!(probe(&[]), (json!("127.0.0.1"), json!(10258)));
    assert_eq!(probe(&["extraArgs={--bind-address=192.168.1.5}"]), (json!("192.168.1.5"), json!(10258)));
    assert_eq!(probe(&["extraArgs={--bind-address,::}"]), (json!("127.0.0.1"), json!(10258)));
    let two_words = "extraArgs={--secure-port,10300,-bind-address=fd00::5}";
    assert_eq!(probe(&[two_words]), (json!("fd00::5"), json!(10300)));
    for nobody_knows in ["extraArgs={--bind-address=$(HOST_IP)}", "extraArgs={--secure-port=0}"] {
        assert_eq!(probe(&[nobody_knows]), (Value::Null, Value::Null), "{nobody_knows}");
    }
}

/// A number where the API server expects text is refused.
#[test]
fn a_name_of_digits_stays_text() {
    fn numbers(value: &Value, found: &mut Vec<u64>) {
        match value {
            Value::Object(map) => map.values().for_each(|value| numbers(value, found)),
            Value::Array(list) => list.iter().for_each(|value| numbers(value, found)),
            _ => found.extend(value.as_u64()),
        }
    }
    let Some(helm) = helm() else { return };
    for (name, _) in super::CHARTS {
        let mut command = std::process::Command::new(&helm);
        command
            .args(["template", "70001"])
            .arg(chart(name))
            .args(["--namespace", "70002"])
            .args(super::EVERYTHING);
        let names = "nameOverride=70003,serviceAccount.name=70004,cloudConfig.secretName=70005,hostStorageClass=70006";
        command.args(["--set-string", names]);
        let mut found = vec![];
        let rendered = test_cluster::manifests::documents(&output(&mut command).unwrap()).unwrap();
        rendered.iter().for_each(|object| numbers(object, &mut found));
        found.retain(|number| (70001..=70006).contains(number));
        assert_eq!(found, Vec::<u64>::new(), "{name}");
    }
}

/// `--reuse-values` puts the former chart's defaults in the place of ours. Sidecars came one by one.
#[test]
fn the_values_of_a_former_chart_reused_give_each_container_an_image_with_a_name() {
    let Some(helm) = helm() else { return };
    for (name, missing) in [
        (CSI, vec!["/image/csi/snapshotter"]),
        (CSI, vec!["/image/csi/snapshotter", "/cloudConfig/secretName", "/image/pullPolicy"]),
        (CCM, vec!["/image/tag", "/cloudConfig/secretName", "/cloudConfig/hostPath"]),
        ("harvester-load-balancer", vec!["/webhook/image/tag", "/webhook/httpsPort"]),
    ] {
        let file = super::root().join(format!("tests/charts/values/go-{name}.yaml"));
        let mut values: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for pointer in &missing {
            let (map, key) = pointer.rsplit_once('/').unwrap();
            if let Some(map) = values.pointer_mut(map) {
                map.as_object_mut().unwrap().remove(key);
            }
        }
        // what helm renders then: our templates with their values
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(name);
        output(std::process::Command::new("cp").arg("-R").arg(chart(name)).arg(&copy)).unwrap();
        fs::write(copy.join("values.yaml"), values.to_string()).unwrap();
        let mut command = std::process::Command::new(&helm);
        command.args(["template", name]).arg(&copy).args(["-n", "kube-system", super::EVERYTHING[1]]);
        let objects = test_cluster::manifests::documents(&output(&mut command).unwrap()).unwrap();
        let mut count = 0;
        for (_, container) in super::containers(&objects) {
            let image = text(container, "/image");
            let (repository, tag) = image.rsplit_once(':').unwrap_or_default();
            assert!(!repository.is_empty() && !tag.is_empty(), "{name} without {missing:?}: {image:?}");
            count += 1;
        }
        assert!(count > 0, "{name}");
    }
}
