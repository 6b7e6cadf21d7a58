//! Names, selectors, labels, arguments and values of the Go programs' charts (docs/contract).

use std::{collections::BTreeSet, fs};

use program::flags::Table;
use serde_json::{Value, json};

use super::{
    CHARTS, EVERYTHING, args, array, chart, container, containers, documents, find, helm, object, output,
    pods, render, text, try_render, variants,
};

const CCM: &str = "harvester-cloud-provider";
const CSI: &str = "harvester-csi-driver";
const LB: &str = "harvester-load-balancer";

#[test]
fn helm_finds_nothing_to_complain_of() {
    let Some(helm) = helm() else { return };
    for (name, _) in CHARTS {
        let told = output(std::process::Command::new(&helm).args(["lint", "--strict"]).arg(chart(name)));
        assert!(told.is_ok(), "{name}: {told:?}");
    }
}

// docs/contract/cloud-controller-manager.md#C12
#[test]
fn a_chart_runs_the_image_of_its_own_version() {
    for (name, _) in CHARTS {
        let read = |file: &str| -> Value {
            serde_saphyr::from_str(&fs::read_to_string(chart(name).join(file)).unwrap()).unwrap()
        };
        let (about, values) = (read("Chart.yaml"), read("values.yaml"));
        assert_eq!(about["appVersion"], format!("v{}", env!("CARGO_PKG_VERSION")), "{name}");
        for tag in ["/image/tag", "/webhook/image/tag", "/image/harvester/csiDriver/tag"] {
            assert_eq!(text(&values, tag), "", "{name}: {tag} would not follow the version");
        }
    }
}

/// A selector cannot be changed: another one would end `helm upgrade` from the Go program's chart.
#[test]
fn workloads_have_the_names_and_selectors_of_the_go_charts() {
    let Some(helm) = helm() else { return };
    let workloads = [
        (CCM, "Deployment", CCM, CCM, None),
        (CCM, "DaemonSet", "kube-vip", "kube-vip", None),
        (CSI, "DaemonSet", CSI, CSI, Some("csi-driver")),
        (CSI, "Deployment", "harvester-csi-driver-controllers", CSI, Some("csi-controllers")),
        (LB, "Deployment", LB, LB, None),
        (LB, "Deployment", "harvester-load-balancer-webhook", "harvester-load-balancer-webhook", None),
    ];
    for (chart, kind, name, label, component) in workloads {
        let rendered = render(&helm, chart, &[]);
        let workload = object(&rendered, kind, name);
        let mut selector = json!({"app.kubernetes.io/name": label, "app.kubernetes.io/instance": chart});
        if let Some(component) = component {
            selector["component"] = component.into();
        }
        assert_eq!(workload["spec"]["selector"]["matchLabels"], selector, "{name}");
        for (key, value) in selector.as_object().unwrap() {
            assert_eq!(workload["spec"]["template"]["metadata"]["labels"][key], *value, "{name}: {key}");
        }
        let labels = &workload["metadata"]["labels"];
        for key in ["helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"] {
            assert!(labels[key].is_string(), "{name}: {key}");
        }
        let service = array(workload, "/spec/template/spec/containers").iter();
        assert!(
            service.clone().any(|container| container["name"] == name || container["name"] == chart),
            "{name}"
        );
    }
}

#[test]
fn accounts_and_bindings_have_the_names_of_the_go_charts() {
    let Some(helm) = helm() else { return };
    let accounts =
        [(CCM, CCM), (CCM, "kube-vip"), (CSI, CSI), (LB, LB), (LB, "harvester-load-balancer-webhook")];
    for (chart, account) in accounts {
        let rendered = render(&helm, chart, &[]);
        let namespace = text(object(&rendered, "ServiceAccount", account), "/metadata/namespace");
        object(&rendered, "ClusterRole", account);
        let binding = object(&rendered, "ClusterRoleBinding", account);
        assert_eq!(binding["roleRef"]["name"], account);
        assert_eq!(
            binding["subjects"][0],
            json!({"kind": "ServiceAccount", "namespace": namespace, "name": account}),
            "{account}"
        );
    }
}

#[test]
fn an_account_may_have_another_name() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CCM, &["serviceAccount.name=own", "serviceAccount.annotations.team=blue"]);
    assert_eq!(
        object(&rendered, "ServiceAccount", "own")["metadata"]["annotations"],
        json!({"team": "blue"})
    );
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        assert_eq!(object(&rendered, kind, CCM)["subjects"][0]["name"], "own", "{kind}");
    }
    assert_eq!(object(&rendered, "Deployment", CCM)["spec"]["template"]["spec"]["serviceAccountName"], "own");
}

#[test]
fn a_role_binding_names_the_accounts_that_the_pods_have() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        let bound: BTreeSet<_> = objects
            .iter()
            .filter(|object| text(object, "/kind") == "ClusterRoleBinding")
            .flat_map(|binding| array(binding, "/subjects").iter().map(|subject| text(subject, "/name")))
            .collect();
        for (workload, pod) in pods(&objects) {
            let account = text(pod, "/serviceAccountName");
            assert!(find(&objects, "ServiceAccount", account).is_some(), "{says}: {workload}");
            assert!(bound.contains(account), "{says}: {workload} runs as {account}");
        }
    }
}

#[test]
fn every_rendered_flag_is_a_flag_of_the_program() {
    let Some(helm) = helm() else { return };
    let tables = [
        (CCM, &cloud_controller_manager::cli::FLAGS),
        (LB, &load_balancer::cli::FLAGS),
        ("harvester-load-balancer-webhook", &load_balancer_webhook::cli::FLAGS),
        (CSI, &csi_driver::cli::FLAGS),
    ];
    let table = |program: &str| -> &Table { tables.iter().find(|(name, _)| *name == program).unwrap().1 };
    let more = [
        (CCM, vec!["clusterName=lab"]),
        (
            CSI,
            vec![
                "hostStorageClass=fast",
                "maxVolumesPerNode=8",
                "topology=true",
                "kubeletRootDir=/data/kubelet",
            ],
        ),
        (LB, vec!["enforceNamedPoolScope=true", "statusWriter=system:serviceaccount:a:b"]),
    ];
    let mut all = variants(&helm);
    all.extend(more.map(|(chart, options)| (chart.to_owned(), render(&helm, chart, &options))));
    let mut seen = BTreeSet::new();
    for (says, objects) in &all {
        for (_, container) in containers(objects) {
            let program = text(container, "/command/0");
            if program.is_empty() {
                continue; // a sidecar, or kube-vip
            }
            for arg in args(container) {
                let flag = arg.trim_start_matches('-').split('=').next().unwrap();
                assert!(table(program).find(flag).is_some(), "{says}: {program} has no flag {arg}");
                seen.insert(arg);
            }
        }
    }
    // the values above have reached the programs
    for arg in [
        "--cluster-name=lab",
        "--host-storage-class=fast",
        "--max-volumes-per-node=8",
        "--topology",
        "--kubelet-root=/data/kubelet",
        "--enforce-named-pool-scope",
        "--status-writer=system:serviceaccount:a:b",
        "--status-writer=system:serviceaccount:harvester-system:harvester-load-balancer",
    ] {
        assert!(seen.contains(arg), "{arg} is nowhere in {seen:?}");
    }
}

fn ccm_args(helm: &std::path::Path, options: &[&str]) -> Vec<String> {
    let rendered = render(helm, CCM, options);
    args(container(&rendered, "Deployment", CCM, CCM)).into_iter().map(str::to_owned).collect()
}

/// K3s' HelmChart has no values, and the script wrote the old path (docs/contract/user-docs.md#17e and #17g).
#[test]
fn without_values_both_usual_places_of_the_cloud_config_are_mounted() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CCM, &[]);
    let ccm = container(&rendered, "Deployment", CCM, CCM);
    let mounts: Vec<_> = array(ccm, "/volumeMounts").iter().map(|mount| text(mount, "/mountPath")).collect();
    // the last one has the copy with a newer token
    assert_eq!(
        mounts,
        ["/etc/kubernetes", "/var/lib/rancher/rke2/etc/config-files", "/run/rotated-cloud-config"]
    );
    for (_, pod) in pods(&render(&helm, CSI, &[])) {
        let places: Vec<_> =
            array(pod, "/volumes").iter().map(|volume| text(volume, "/hostPath/path")).collect();
        assert_eq!(places[..2], ["/var/lib/rancher/rke2/etc/config-files", "/etc/kubernetes"]);
    }
}

#[test]
fn a_secret_comes_before_the_path_and_the_path_before_the_host_path() {
    let Some(helm) = helm() else { return };
    let place = |options: &[&str]| -> String {
        let rendered = render(&helm, CCM, options);
        let pod = &object(&rendered, "Deployment", CCM)["spec"]["template"]["spec"];
        let volume = &pod["volumes"][0];
        let folder = text(volume, "/hostPath/path");
        if folder.is_empty() { text(volume, "/secret/secretName").to_owned() } else { folder.to_owned() }
    };
    let (path, host) = ("cloudConfigPath=/data/rke2/a", "cloudConfig.hostPath=/opt/harvester/b");
    assert_eq!(place(&["cloudConfig.secretName=own", path, host]), "own");
    assert_eq!(place(&[path, host]), "/data/rke2");
    assert_eq!(place(&["cloudConfigPath=", host]), "/opt/harvester");
    assert_eq!(
        ccm_args(&helm, &["cloudConfigPath=", host])[0],
        "--cloud-config=/etc/kubernetes/cloud-config/b"
    );
    let none = try_render(&helm, CCM, &["cloudConfigPath=", "cloudConfig.hostPath="]).unwrap_err();
    assert!(none.contains("no cloud-config: set cloudConfig.secretName to a Secret"), "{none}");
}

/// The form of the Go chart offers the path of a file for a value that is a folder.
#[test]
fn the_csi_driver_takes_the_path_of_a_file_too() {
    let Some(helm) = helm() else { return };
    for (path, folder, file) in [
        ("/etc/kubernetes/cloud-config", "/etc/kubernetes", "cloud-config"),
        ("/data/rke2/cloud-provider-config", "/data/rke2", "cloud-provider-config"),
        ("/data/rke2/", "/data/rke2", "cloud-provider-config"),
    ] {
        let rendered = render(&helm, CSI, &[&format!("cloudConfig.hostPath={path}")]);
        for (workload, pod) in pods(&rendered) {
            assert_eq!(pod["volumes"][0]["hostPath"]["path"], folder, "{workload}: {path}");
            let driver = array(pod, "/containers").iter().find(|container| container["name"] == CSI).unwrap();
            let wanted = format!("--kubeconfig=/var/lib/harvester/{file}");
            assert!(args(driver).contains(&wanted.as_str()), "{workload}: {:?}", args(driver));
        }
    }
}

// docs/contract/user-docs.md#17d
#[test]
fn the_cluster_name_is_taken_from_either_value() {
    let Some(helm) = helm() else { return };
    let name = |options: &[&str]| {
        let args = ccm_args(&helm, options);
        args.iter().find_map(|arg| arg.strip_prefix("--cluster-name=")).map(str::to_owned)
    };
    assert_eq!(name(&["clusterName=terraform"]).as_deref(), Some("terraform"));
    let both = ["clusterName=terraform", "global.cattle.clusterName=rancher"];
    assert_eq!(name(&both).as_deref(), Some("rancher"));
    assert_eq!(name(&[]), None);
}

/// docs/contract/cloud-controller-manager.md#C7. The Node has these taints until the cloud controller manager and the network have come: the one waits for the other.
#[test]
fn the_cloud_controller_manager_runs_on_a_node_that_is_new() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CCM, &[]);
    let tolerated: Vec<_> = array(object(&rendered, "Deployment", CCM), "/spec/template/spec/tolerations")
        .iter()
        .filter(|toleration| toleration["operator"] == "Exists")
        .map(|toleration| text(toleration, "/key"))
        .collect();
    for taint in [
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node-role.kubernetes.io/control-plane",
        "node-role.kubernetes.io/etcd",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/network-unavailable",
    ] {
        assert!(tolerated.contains(&taint), "{taint}: {tolerated:?}");
    }
}

// docs/contract/cloud-controller-manager.md#C5
#[test]
fn every_image_comes_from_one_registry_with_its_pull_secrets() {
    let Some(helm) = helm() else { return };
    for (name, _) in CHARTS {
        for registry in [
            "global.cattle.systemDefaultRegistry=registry.lab:5000",
            "global.systemDefaultRegistry=registry.lab:5000/",
        ] {
            // the packages that `cargo xtask charts --registry` makes have it in the name, as values from before Go chart 0.2.9 do
            let mut options = vec![
                registry,
                "image.repository=registry.lab:5000/ours",
                "webhook.image.repository=registry.lab:5000/ours",
                "image.csi.attacher.repository=registry.lab:5000/rancher/attacher",
                "kube-vip.image.repository=registry.lab:5000/rancher/kube-vip",
                "global.cattle.imagePullSecrets={one}",
                "imagePullSecrets[0].name=two",
            ];
            options.extend(EVERYTHING);
            options.push("imagePullSecrets[1]=one");
            let rendered = render(&helm, name, &options);
            for (pod, container) in containers(&rendered) {
                let image = text(container, "/image");
                assert_eq!(image.matches("registry.lab:5000/").count(), 1, "{name}: {image}");
                assert!(image.starts_with("registry.lab:5000/") && !image.contains("//"), "{name}: {image}");
                let secrets = &pod["imagePullSecrets"];
                // a subchart has the global ones alone
                let wanted = if image.contains("kube-vip") {
                    json!([{"name": "one"}])
                } else {
                    json!([{"name": "two"}, {"name": "one"}])
                };
                assert_eq!(*secrets, wanted, "{name}: {image}");
            }
        }
    }
}

#[test]
fn kube_vip_has_the_environment_and_capabilities_of_the_contract() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CCM, &["kube-vip.env.lb_port=6444", "kube-vip.env.vip_interface=enp1s0"]);
    let kube_vip = container(&rendered, "DaemonSet", "kube-vip", "kube-vip");
    assert_eq!(args(kube_vip), ["manager"]);
    let env: Vec<_> =
        array(kube_vip, "/env").iter().map(|entry| (text(entry, "/name"), text(entry, "/value"))).collect();
    let wanted = [
        ("cp_enable", "false"),
        ("lb_enable", "true"),
        ("lb_port", "6444"),
        ("prometheus_server", ":2112"),
        ("svc_election", "false"),
        ("svc_enable", "true"),
        ("vip_arp", "true"),
        ("vip_interface", "enp1s0"),
        ("vip_leaderelection", "false"),
        ("vip_subnet", "32"),
    ];
    assert_eq!(env, wanted);
    assert_eq!(
        kube_vip["securityContext"]["capabilities"],
        json!({"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]})
    );
    assert_eq!(object(&rendered, "DaemonSet", "kube-vip")["spec"]["template"]["spec"]["hostNetwork"], true);
    let without = render(&helm, CCM, &["kube-vip.enabled=false"]);
    assert!(find(&without, "DaemonSet", "kube-vip").is_none());
}

#[test]
fn the_classes_of_the_csi_driver_are_those_of_the_go_chart() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CSI, &EVERYTHING);
    assert_eq!(
        object(&rendered, "CSIDriver", "driver.harvesterhci.io")["spec"],
        json!({
            "attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "ReadWriteOnceWithFSType",
            "volumeLifecycleModes": ["Persistent"],
        })
    );
    let class = object(&rendered, "StorageClass", "harvester");
    assert_eq!(class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(
        (class["provisioner"].as_str(), &class["allowVolumeExpansion"]),
        (Some("driver.harvesterhci.io"), &json!(true))
    );
    assert_eq!(
        (&class["reclaimPolicy"], &class["volumeBindingMode"]),
        (&json!("Delete"), &json!("Immediate"))
    );
    let snapshots = object(&rendered, "VolumeSnapshotClass", "harvester-snapshot");
    assert_eq!(
        (&snapshots["driver"], &snapshots["deletionPolicy"]),
        (&json!("driver.harvesterhci.io"), &json!("Delete"))
    );
}

/// The Go driver's chart fails to install where the kinds of snapshots are missing.
#[test]
fn a_cluster_without_snapshots_has_all_else_of_the_csi_driver() {
    let Some(helm) = helm() else { return };
    let names = |options: &[&str]| {
        let rendered = render(&helm, CSI, options);
        let controllers = object(&rendered, "Deployment", "harvester-csi-driver-controllers");
        let names = array(controllers, "/spec/template/spec/containers").iter();
        names.map(|container| text(container, "/name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["csi-resizer", "csi-provisioner", "csi-attacher", CSI]);
    let with = ["csi-resizer", "csi-provisioner", "csi-attacher", "csi-snapshotter", CSI];
    assert_eq!(names(&EVERYTHING), with);
    assert_eq!(names(&["snapshots.enabled=true"]), with);
    let rendered = render(&helm, CSI, &[]);
    assert!(find(&rendered, "VolumeSnapshotClass", "harvester-snapshot").is_none());
}

#[test]
fn every_sidecar_is_elected_and_calls_the_driver_beside_it() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, CSI, &EVERYTHING);
    let controllers = object(&rendered, "Deployment", "harvester-csi-driver-controllers");
    for sidecar in array(controllers, "/spec/template/spec/containers") {
        let args = args(sidecar);
        if sidecar["name"] == CSI {
            assert!(args.contains(&"--endpoint=unix:///csi/csi.sock"), "{args:?}");
            continue;
        }
        for arg in ["--csi-address=/csi/csi.sock", "--timeout=1m50s", "--leader-election"] {
            assert!(args.contains(&arg), "{}: {args:?}", sidecar["name"]);
        }
    }
    let socket = array(controllers, "/spec/template/spec/volumes")
        .iter()
        .find(|volume| volume["name"] == "socket-dir");
    assert_eq!(socket.unwrap()["emptyDir"], json!({}));
    let node = container(&rendered, "DaemonSet", CSI, "node-driver-registrar");
    assert!(args(node).contains(
        &"--kubelet-registration-path=/var/lib/kubelet/harvester-plugins/driver.harvesterhci.io/csi.sock"
    ));
}

/// Its own chart has the workloads there: two of them would fight for the Lease and the webhook's certificate.
#[test]
fn inside_harvester_the_release_is_the_missing_rights_alone() {
    let Some(helm) = helm() else { return };
    let rendered = render(&helm, LB, &["insideHarvester=true", EVERYTHING[0]]);
    let kinds: BTreeSet<_> = rendered.iter().map(|object| text(object, "/kind")).collect();
    assert_eq!(kinds, BTreeSet::from(["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]));
    for object in &rendered {
        // the names without it are Harvester's own objects
        assert!(text(object, "/metadata/name").ends_with("-additions"), "{object}");
    }
    let binding = object(&rendered, "ClusterRoleBinding", "harvester-load-balancer-additions");
    assert_eq!(binding["subjects"][0]["name"], LB);
}

/// Its Pods serve them where somebody said so by a variable, and Prometheus would call those down that serve none.
#[test]
fn inside_harvester_the_metrics_of_its_pods_are_asked_for_by_whoever_says_that_they_are_served() {
    let Some(helm) = helm() else { return };
    let on = ["insideHarvester=true", "metrics.serviceMonitor.enabled=true", EVERYTHING[0]];
    let rendered = render(&helm, LB, &on);
    for (kind, name) in [("PrometheusRule", LB), ("ConfigMap", "harvester-load-balancer-dashboard")] {
        object(&rendered, kind, name);
    }
    let monitor = object(&rendered, "ServiceMonitor", LB);
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let mut template = std::process::Command::new(&helm);
    template.args(["template", "harvester"]).arg(super::root().join("tests/charts/go").join(LB));
    let of_harvester = documents(&output(&mut template).unwrap()).unwrap();
    for name in [LB, "harvester-load-balancer-webhook"] {
        let service = object(&rendered, "Service", &format!("{name}-metrics"));
        assert!(wanted.iter().all(|(key, value)| service["metadata"]["labels"][key] == *value), "{service}");
        let pod = &object(&of_harvester, "Deployment", name)["spec"]["template"]["metadata"]["labels"];
        let selector = service["spec"]["selector"].as_object().unwrap();
        assert!(selector.iter().all(|(key, value)| pod[key] == *value), "{service}");
        // Harvester's containers name no port
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 9402);
    }
    let off = render(&helm, LB, &[&on[..], &["metrics.enabled=false"]].concat());
    assert!(find(&off, "ServiceMonitor", LB).is_none());
}

#[test]
fn prometheus_and_grafana_get_what_is_ours_where_they_are() {
    let Some(helm) = helm() else { return };
    for (name, _) in CHARTS {
        assert!(find(&render(&helm, name, &[]), "ServiceMonitor", name).is_none(), "{name}");
        let rendered = render(&helm, name, &EVERYTHING);
        let monitor = object(&rendered, "ServiceMonitor", name);
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
        let services: Vec<_> = rendered
            .iter()
            .filter(|object| object["kind"] == "Service")
            .filter(|service| wanted.iter().all(|(key, value)| service["metadata"]["labels"][key] == *value))
            .filter(|service| service["spec"]["ports"][0]["name"] == "metrics")
            .collect();
        assert_eq!(services.len(), if name == LB { 2 } else { 1 }, "{name}");
    }
    let rules = |chart: &str| {
        object(&render(&helm, chart, &EVERYTHING), "PrometheusRule", chart)["spec"]["groups"].clone()
    };
    let of = |group: &Value| (group[0]["name"].clone(), group.as_array().unwrap().len());
    let groups = fs::read_to_string(super::root().join("deploy/monitoring/rules.yaml")).unwrap();
    let groups = serde_saphyr::from_str::<Value>(&groups).unwrap();
    let mut names: Vec<_> = array(&groups, "/groups").iter().map(|group| group["name"].clone()).collect();
    names.sort_by_key(Value::to_string);
    // those of each program are its chart's, and none is left over
    let installed: Vec<_> = CHARTS.iter().map(|(name, _)| of(&rules(name))).collect();
    assert_eq!(installed, names.into_iter().map(|name| (name, 1_usize)).collect::<Vec<_>>());
    // the words in braces are Prometheus', not helm's
    assert!(rules(LB).to_string().contains("{{ $labels.pool }}"));
    let lb = render(&helm, LB, &EVERYTHING);
    let dashboard = text(
        object(&lb, "ConfigMap", "harvester-load-balancer-dashboard"),
        "/data/harvester-cloud-provider.json",
    );
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let ours = fs::read_to_string(super::root().join("deploy/monitoring/grafana-dashboard.json")).unwrap();
    assert_eq!(dashboard, serde_json::from_str::<Value>(&ours).unwrap());
}
