//! The manifests and values of `examples/install`, which docs/install.md names.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};
use test_cluster::manifests::documents;

use super::{array, container, containers, find, helm, object, output, pods, render, root, text};

pub(crate) fn example(name: &str) -> String {
    root().join("examples/install").join(name).display().to_string()
}

fn values_of(name: &str) -> String {
    format!("--values={}", example(name))
}

pub(crate) fn examples() -> Vec<String> {
    let entries = fs::read_dir(root().join("examples/install")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(name: &str) -> Vec<Value> {
    documents(&fs::read_to_string(example(name)).unwrap()).unwrap()
}

/// The objects that the helm controller of RKE2 and K3s makes of a HelmChart, or of a HelmChartConfig for the chart that
/// RKE2 has.
fn installed(helm: &Path, manifest: &Value, folder: &str) -> Vec<Value> {
    let values = tempfile::NamedTempFile::new().unwrap();
    fs::write(&values, text(manifest, "/spec/valuesContent")).unwrap();
    let name = text(manifest, "/metadata/name");
    let chart =
        root().join(folder).join(manifest.pointer("/spec/chart").and_then(Value::as_str).unwrap_or(name));
    let namespace = text(manifest, "/metadata/namespace");
    let mut command = std::process::Command::new(helm);
    command
        .args(["template", name])
        .arg(chart)
        .args(["--namespace", namespace, "--values"])
        .arg(values.path());
    documents(&output(&mut command).unwrap()).unwrap()
}

#[test]
fn every_example_of_an_installation_is_in_the_document() {
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    for name in examples() {
        assert!(
            document.contains(&format!("examples/install/{name}")),
            "docs/install.md does not name {name}"
        );
    }
}

/// As on the official pages: one HelmChart for RKE2, and one without values for K3s.
#[test]
fn the_manifests_for_rke2_and_k3s_install_both_charts() {
    let Some(helm) = helm() else { return };
    for (name, cluster) in
        [("rke2-helmchart.yaml", Some("--cluster-name=demo")), ("k3s-helmcharts.yaml", None)]
    {
        let manifests = read(name);
        assert_eq!(manifests.len(), 2, "{name}");
        assert_eq!(manifests[0]["spec"]["bootstrap"], true, "{name}: it comes before the network");
        let ccm = installed(&helm, &manifests[0], "deploy/charts");
        let args = super::args(container(
            &ccm,
            "Deployment",
            "harvester-cloud-provider",
            "harvester-cloud-provider",
        ));
        assert_eq!(args.iter().copied().find(|arg| arg.starts_with("--cluster-name")), cluster, "{name}");
        let csi = installed(&helm, &manifests[1], "deploy/charts");
        let snapshots = find(&csi, "VolumeSnapshotClass", "harvester-snapshot").is_some();
        assert_eq!(snapshots, cluster.is_some(), "{name}");
    }
}

#[test]
fn the_charts_of_rke2_run_our_images_by_their_values() {
    let Some(helm) = helm() else { return };
    for manifest in read("rke2-helmchartconfig.yaml") {
        runs_our_image(&installed(&helm, &manifest, "tests/charts/go"), text(&manifest, "/metadata/name"));
    }
}

/// In the cluster of the examples, whose name is `demo`.
fn runs_our_image(objects: &[Value], chart: &str) {
    let images: BTreeSet<_> = containers(objects).map(|(_, container)| text(container, "/image")).collect();
    let ours = format!("registry.example.com/{chart}:v{}", env!("CARGO_PKG_VERSION"));
    assert!(images.contains(ours.as_str()), "{images:?}");
    if chart == "harvester-cloud-provider" {
        let ccm = container(objects, "Deployment", chart, chart);
        assert!(super::args(ccm).contains(&"--cluster-name=demo"), "{:?}", super::args(ccm));
    }
}

/// What Rancher writes into the YAML of a cluster with cloud provider Harvester, for the values of a chart.
/// docs/contract/user-docs.md#chart-values
fn written_by_rancher(chart: &str) -> Value {
    match chart {
        "harvester-cloud-provider" => json!({
            "cloudConfigPath": "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config",
            "global": {"cattle": {"clusterName": "demo", "clusterId": "c-m-abcdefgh"}},
        }),
        _ => json!({"global": {"cattle": {"clusterId": "c-m-abcdefgh"}}}),
    }
}

/// Each chart of an example for the YAML of a cluster, as Rancher gives it to RKE2 beside its own values, with the example's.
fn with_chart_values(file: &str) -> Vec<(String, Value)> {
    let values = read(file)[0]["spec"]["rkeConfig"]["chartValues"].clone();
    let with = |(chart, ours): (&String, &Value)| {
        let mut merged = written_by_rancher(chart);
        for (key, value) in ours.as_object().unwrap() {
            assert_eq!(merged.get(key), None, "{file}: {chart} would lose what Rancher wrote");
            merged[key] = value.clone();
        }
        let manifest = json!({
            "metadata": {"namespace": "kube-system", "name": chart},
            "spec": {"valuesContent": merged.to_string()},
        });
        (chart.clone(), manifest)
    };
    values.as_object().unwrap().iter().map(with).collect()
}

#[test]
fn our_chart_values_beside_those_of_rancher_run_our_images_in_the_cluster_that_rancher_named() {
    let Some(helm) = helm() else { return };
    let charts = with_chart_values("rke2-rancher-values.yaml");
    assert_eq!(charts.len(), 2);
    for (chart, manifest) in charts {
        runs_our_image(&installed(&helm, &manifest, "tests/charts/go"), &chart);
    }
}

/// Rancher makes a HelmChartConfig of each chart's values: of two with one name the later replaces the other.
#[test]
fn no_additional_manifest_replaces_what_rancher_writes() {
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let mut seen = vec![];
    for name in examples() {
        let file = fs::read_to_string(example(&name)).unwrap();
        let link = format!("(../examples/install/{name}) as an Additional Manifest");
        if file.contains("Additional Manifest") || document.replace('\n', " ").contains(&link) {
            let kinds: Vec<_> = read(&name).iter().map(|object| text(object, "/kind").to_owned()).collect();
            assert!(!kinds.contains(&"HelmChartConfig".to_owned()), "{name}: {kinds:?}");
            seen.push(name);
        }
    }
    assert_eq!(seen, ["rke2-helmchart.yaml", "rke2-secret.yaml"]);
}

/// Harvester's chart has the Go program's as a subchart. What is given back is what there was.
#[test]
fn harvesters_own_chart_runs_our_images_by_its_values_and_gives_the_place_back() {
    let Some(helm) = helm() else { return };
    let umbrella = tempfile::tempdir().unwrap();
    let about = "{apiVersion: v2, name: harvester, version: 1.0.0, dependencies: [
        {name: harvester-load-balancer, version: 0.4.0, condition: harvester-load-balancer.enabled}]}";
    fs::write(umbrella.path().join("Chart.yaml"), about).unwrap();
    fs::write(umbrella.path().join("values.yaml"), "harvester-load-balancer: {enabled: true}\n").unwrap();
    fs::create_dir(umbrella.path().join("charts")).unwrap();
    let go = root().join("tests/charts/go/harvester-load-balancer");
    std::os::unix::fs::symlink(go, umbrella.path().join("charts/harvester-load-balancer")).unwrap();
    let images = |options: &[&str]| -> Vec<(String, String)> {
        let mut command = std::process::Command::new(&helm);
        command
            .args(["template", "harvester"])
            .arg(umbrella.path())
            .args(["-n", "harvester-system"])
            .args(options);
        let objects = documents(&output(&mut command).unwrap()).unwrap();
        containers(&objects)
            .map(|(_, it)| (text(it, "/command/0").to_owned(), text(it, "/image").to_owned()))
            .collect()
    };
    let before = images(&[]);
    let patch = &read("harvester-patch.yaml")[0];
    let values = umbrella.path().join("ours.yaml");
    fs::write(&values, patch["spec"]["values"].to_string()).unwrap();
    let ours = images(&["--values", values.to_str().unwrap()]);
    assert_ne!(ours, before);
    let image = format!("registry.example.com/harvester-cloud-provider:v{}", env!("CARGO_PKG_VERSION"));
    let programs = ["harvester-load-balancer", "harvester-load-balancer-webhook"];
    // the name by which it is called chooses the part
    assert_eq!(ours, programs.map(|program| (program.to_owned(), image.clone())));
    assert_eq!(images(&[]), before);
    // and the rights go to the accounts that these Pods have
    let additions = render(&helm, "harvester-load-balancer", &["insideHarvester=true"]);
    for account in programs {
        let binding = object(&additions, "ClusterRoleBinding", &format!("{account}-additions"));
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "namespace": "harvester-system", "name": account}])
        );
    }
}

#[test]
fn without_rancher_both_charts_read_one_secret_and_nothing_of_the_nodes() {
    let Some(helm) = helm() else { return };
    let (name, key) = ("harvester-cloud-config", "cloud-config");
    // made on both pages, and never over one that is there
    for page in ["docs/install.md", "docs/credentials.md"] {
        let page = fs::read_to_string(root().join(page)).unwrap();
        let command = format!("--namespace kube-system create secret generic {name} --from-file={key}\n");
        assert!(page.contains(&command), "{command}");
        assert!(!page.contains("apply -f examples/install"));
    }
    for values in ["values-kubeadm.yaml", "values-k0s.yaml"] {
        for (chart, workload) in [
            ("harvester-cloud-provider", "harvester-cloud-provider"),
            ("harvester-csi-driver", "harvester-csi-driver"),
            ("harvester-csi-driver", "harvester-csi-driver-controllers"),
        ] {
            let objects = render(&helm, chart, &[&values_of(values)]);
            let (_, pod) = pods(&objects).find(|(name, _)| *name == workload).unwrap();
            let config =
                array(pod, "/volumes").iter().find(|volume| volume["name"] == "cloud-config").unwrap();
            assert_eq!(
                (&config["secret"]["secretName"], &config["secret"]["items"][0]["key"]),
                (&json!(name), &json!(key))
            );
        }
        let csi = render(&helm, "harvester-csi-driver", &[&values_of(values)]);
        let kubelet = if values.contains("k0s") { "/var/lib/k0s/kubelet" } else { "/var/lib/kubelet" };
        let driver = container(&csi, "DaemonSet", "harvester-csi-driver", "harvester-csi-driver");
        let pods_folder = format!("{kubelet}/pods");
        assert!(
            array(driver, "/volumeMounts").iter().any(|mount| mount["mountPath"] == pods_folder),
            "{values}"
        );
    }
    // k0s has no Nodes of the control plane: an affinity to them would keep kube-vip away from all
    let ccm = render(&helm, "harvester-cloud-provider", &[&values_of("values-k0s.yaml")]);
    assert!(object(&ccm, "DaemonSet", "kube-vip")["spec"]["template"]["spec"].get("affinity").is_none());
}

/// The commands of docs/install.md that install a chart or upgrade a release, by their words.
fn helm_commands() -> Vec<Vec<String>> {
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let joined = document.replace("\\\n", " ");
    let typed = joined.lines().filter(|line| line.starts_with("    "));
    let words = typed.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter(|words| words.starts_with(&["helm".to_owned(), "upgrade".to_owned()])).collect()
}

/// Whether the program is one of this repository: the others' containers have no command.
fn is_ours(container: &Value) -> bool {
    !text(container, "/command/0").is_empty()
}

/// No registry has our images yet: a name without one is looked for at docker.io, while the old Pod is gone already.
#[test]
fn every_helm_command_of_the_document_runs_our_images_from_a_registry_and_asks_it_for_no_others() {
    let Some(helm) = helm() else { return };
    let mut count = 0;
    for words in helm_commands() {
        let of_upgrade = ["--install", "--reset-then-reuse-values", "--atomic", "--timeout", "10m"];
        let options = words[2..].iter().filter(|word| !of_upgrade.contains(&word.as_str()));
        let mut command = std::process::Command::new(&helm);
        command.arg("template").args(options).current_dir(root());
        let objects =
            documents(&output(&mut command).unwrap_or_else(|why| panic!("{words:?}: {why}"))).unwrap();
        for (_, container) in containers(&objects) {
            let from_ours = text(container, "/image").starts_with("registry.example.com/");
            assert_eq!(from_ours, is_ours(container), "{words:?}: {}", container["image"]);
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn an_upgrade_whose_new_pods_do_not_start_is_taken_back() {
    let upgrades: Vec<_> = helm_commands()
        .into_iter()
        .filter(|words| words.contains(&"--reset-then-reuse-values".to_owned()))
        .collect();
    assert_eq!(upgrades.len(), 2, "one for each guest chart: {upgrades:?}");
    assert!(upgrades.iter().all(|words| words.contains(&"--atomic".to_owned())), "{upgrades:?}");
}

#[test]
fn without_an_air_gap_the_manifest_for_rke2_asks_our_registry_for_our_images_alone() {
    let Some(helm) = helm() else { return };
    for manifest in read("rke2-helmchart.yaml") {
        for (_, container) in containers(&installed(&helm, &manifest, "deploy/charts")) {
            let from_ours = text(container, "/image").starts_with("registry.example.com/");
            assert_eq!(from_ours, is_ours(container), "{}", container["image"]);
        }
    }
}

/// As the official pages have it: a Secret by an Additional Manifest, and RKE2's own charts that read it.
#[test]
fn a_pasted_secret_and_an_additional_manifest_give_rke2_its_cloud_config() {
    let Some(helm) = helm() else { return };
    let manifests = read("rke2-secret.yaml");
    assert_eq!(manifests.len(), 1);
    let secret = text(&manifests[0], "/metadata/name");
    let keys: Vec<_> = manifests[0]["data"].as_object().unwrap().keys().collect();
    let charts = with_chart_values("rke2-secret-values.yaml");
    assert_eq!(charts.len(), 2);
    for (name, manifest) in charts {
        let objects = installed(&helm, &manifest, "deploy/charts");
        for (workload, pod) in pods(&objects).filter(|(workload, _)| workload.starts_with(&name)) {
            let volumes = array(pod, "/volumes");
            let config = volumes.iter().find(|volume| volume["name"] == "cloud-config").unwrap();
            // without a key in the values the whole Secret is mounted, and the driver looks for this one
            let key = config.pointer("/secret/items/0/key").and_then(Value::as_str);
            let key = key.unwrap_or("cloud-provider-config");
            assert_eq!(text(config, "/secret/secretName"), secret, "{workload}");
            assert!(keys.iter().any(|it| *it == key), "{workload} reads {key}");
        }
    }
}

/// The Secrets are those of the blocks that the scripts print; the Go programs' manifests in these blocks are left out.
#[test]
fn the_charts_of_rke1_read_the_secrets_of_the_blocks() {
    let Some(helm) = helm() else { return };
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let section = document.split("\n## ").find(|section| section.starts_with("RKE1\n")).unwrap();
    assert!(section.contains("**Leave\n`addons_include` out**"));
    for (chart, script, secret, key) in [
        ("harvester-cloud-provider", "generate_addon.sh", "cloud-config", "cloud-config"),
        ("harvester-csi-driver", "generate_addon_csi.sh", "harvester-csi-config", "cloud-provider-config"),
    ] {
        let row = format!("`cloudConfig.secretName`, `.secretKey` | `{secret}`, `{key}` |");
        assert!(section.contains(&row), "{row}");
        let script = fs::read_to_string(root().join("deploy").join(script)).unwrap();
        let printed = format!("name={secret} key={key}\n");
        assert!(script.contains(&printed), "{printed}");
        let options = [format!("cloudConfig.secretName={secret}"), format!("cloudConfig.secretKey={key}")];
        let objects = render(&helm, chart, &options.each_ref().map(String::as_str));
        for (workload, pod) in pods(&objects).filter(|(workload, _)| workload.starts_with(chart)) {
            let config = &pod["volumes"][0]["secret"];
            let found = (text(config, "/secretName"), text(config, "/items/0/key"));
            assert_eq!(found, (secret, key), "{workload}");
        }
    }
}

/// The patch of the machine configuration.
#[test]
fn talos_expects_a_cloud_provider_and_lets_the_csi_driver_run() {
    let patch = &read("talos-patch.yaml")[0];
    assert_eq!(patch["cluster"]["externalCloudProvider"]["enabled"], true);
    let exempt = patch.pointer("/cluster/apiServer/admissionControl/0/configuration/exemptions/namespaces");
    assert!(exempt.and_then(Value::as_array).unwrap().contains(&json!("kube-system")));
}

#[test]
fn an_air_gap_has_one_registry_for_every_image() {
    let Some(helm) = helm() else { return };
    for (chart, _) in super::CHARTS {
        let objects = render(&helm, chart, &[&values_of("values-air-gap.yaml"), super::EVERYTHING[1]]);
        for (pod, container) in containers(&objects) {
            assert!(
                text(container, "/image").starts_with("registry.example.com/"),
                "{chart}: {}",
                container["image"]
            );
            assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]), "{chart}");
        }
    }
}
