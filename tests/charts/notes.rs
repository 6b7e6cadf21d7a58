//! What helm says after an installation.

use std::{fs, path::Path, process::Command};

use super::{CHARTS, chart, helm, output, root};

/// As `helm install` prints them.
fn notes(helm: &Path, name: &str, namespace: &str, options: &str) -> String {
    let mut command = Command::new(helm);
    command.args(["install", name]).arg(chart(name)).args(["--namespace", namespace]);
    let told = output(command.args(["--dry-run=client", "--set", options])).unwrap();
    told.split_once("\nNOTES:\n").unwrap_or_else(|| panic!("{name}: {told}")).1.to_owned()
}

/// zsh, the shell of macOS, starts no command with a pattern that no file has.
#[test]
fn the_commands_of_the_notes_are_typed_in_any_shell() {
    let Some(helm) = helm() else { return };
    for (name, namespace) in CHARTS {
        let notes = notes(&helm, name, namespace, "cloudConfig.secretName=own");
        let commands: Vec<_> = notes.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert!(commands.len() >= 2, "{name}: {notes}");
        for command in commands {
            let outside_quotes: String = command.split('\'').step_by(2).collect();
            assert!(!outside_quotes.contains(['*', '?', '[', '{', '$']), "{name}: {command}");
        }
    }
}

#[test]
fn the_notes_name_the_key_of_the_secret_that_the_chart_asks_for() {
    let Some(helm) = helm() else { return };
    for (name, without) in
        [("harvester-cloud-provider", "cloud-config"), ("harvester-csi-driver", "cloud-provider-config")]
    {
        for (key, asked) in [("", without), ("own", "own")] {
            let options = format!("cloudConfig.secretName=lab,cloudConfig.secretKey={key}");
            let notes = notes(&helm, name, "kube-system", &options);
            assert!(notes.contains(&format!("from Secret kube-system/lab, key {asked}.")), "{notes}");
        }
    }
}

/// No chart gives Harvester's Pods the variable by which they serve them.
#[test]
fn inside_harvester_the_notes_say_how_its_pods_serve_the_metrics_that_are_asked_for() {
    let Some(helm) = helm() else { return };
    let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let mut lines = lines.filter(|line| line.ends_with("-webhook METRICS_ADDRESS=:9402"));
    let line = lines.next().unwrap();
    let notes = |more: &str| {
        notes(&helm, "harvester-load-balancer", "harvester-system", &format!("insideHarvester=true{more}"))
    };
    let on = ",metrics.serviceMonitor.enabled=true";
    for (port, expected) in [("", "9402"), (",metrics.port=9500", "9500")] {
        let told = notes(&format!("{on}{port}"));
        let expected = line.replace("9402", expected);
        assert!(told.lines().any(|line| line.strip_prefix("  ") == Some(&*expected)), "{told}");
    }
    for off in ["", &format!("{on},metrics.enabled=false")] {
        assert!(!notes(off).contains("METRICS_ADDRESS"), "{off}");
    }
}
