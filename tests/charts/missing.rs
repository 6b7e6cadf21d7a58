//! A cloud-config that is not there: the containers start all the same, and say what is missing where people look.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use super::{args, array, container, containers, helm, object, render, text, variants};

const SECRET: [&str; 1] = ["cloudConfig.secretName=harvester-cloud-config"];
const KEY: [&str; 2] = ["cloudConfig.secretName=harvester-cloud-config", "cloudConfig.secretKey=own"];
/// What kubelet takes of a log into the status of a Pod.
const LINES: usize = 80;
const BYTES: usize = 2048;

/// The built binary. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name.
fn binary() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_harvester-cloud-provider").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("harvester-cloud-provider")
    })
}

/// kubelet starts no container while a Secret of its volumes, or a key of it, is not there and not optional: the Pod would
/// wait in `ContainerCreating`.
#[test]
fn no_missing_secret_or_key_keeps_a_container_from_starting() {
    let Some(helm) = helm() else { return };
    for (chart, workloads) in [("harvester-cloud-provider", 1), ("harvester-csi-driver", 2)] {
        for options in [&SECRET[..], &KEY] {
            let rendered = render(&helm, chart, options);
            let mut found = 0;
            for (workload, pod) in super::pods(&rendered) {
                for volume in array(pod, "/volumes").iter().filter_map(|volume| volume.get("secret")) {
                    assert_eq!(volume["optional"], true, "{workload}: {volume}");
                    found += usize::from(volume["secretName"] == "harvester-cloud-config");
                }
            }
            assert_eq!(found, workloads, "{chart}");
        }
    }
}

/// `kubectl describe pod` shows the reason then, and not the exit code alone.
#[test]
fn a_program_that_ends_leaves_its_reason_in_the_status_of_its_pod() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        for (_, container) in containers(&objects).filter(|(_, one)| !text(one, "/command/0").is_empty()) {
            let name = text(container, "/name");
            assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError", "{says}: {name}");
        }
    }
}

/// As the Go program: it ends, and kubelet starts it again until the file is there.
// docs/contract/cloud-controller-manager.md#5.2
#[test]
fn without_its_file_the_cloud_controller_manager_ends_with_255_and_its_last_words_name_the_place() {
    let Some(helm) = helm() else { return };
    let name = "harvester-cloud-provider";
    let rendered = render(&helm, name, &SECRET);
    let pod = &object(&rendered, "Deployment", name)["spec"]["template"]["spec"];
    let ccm = container(&rendered, "Deployment", name, name);
    let folder = tempfile::tempdir().unwrap();
    let place = |mount: &Value| folder.path().join(text(mount, "/name"));
    // what kubelet makes of optional volumes whose Secrets are not there
    for mount in array(ccm, "/volumeMounts") {
        assert!(array(pod, "/volumes").iter().any(|volume| volume["name"] == mount["name"]));
        std::fs::create_dir(place(mount)).unwrap();
    }
    let here = |arg: &str| {
        let (flag, value) = arg.split_once('=').unwrap_or((arg, ""));
        let mounts = array(ccm, "/volumeMounts");
        match mounts.iter().find(|mount| text(mount, "/mountPath") == value) {
            Some(mount) => format!("{flag}={}", place(mount).display()),
            None => arg.to_owned(),
        }
    };
    let mut command = Command::new(binary());
    let ended =
        command.arg("cloud-controller-manager").args(args(ccm).into_iter().map(here)).output().unwrap();
    let log = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(255), "{log}");
    let lines: Vec<_> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    let last = String::from_utf8_lossy(&last.as_bytes()[last.len().saturating_sub(BYTES)..]).into_owned();
    let place = folder.path().join("cloud-config").display().to_string();
    assert!(last.contains(&place) && last.contains("a directory without a kubeconfig"), "{last}");
}
