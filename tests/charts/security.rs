//! What the Pods of the charts may do on their nodes.

use serde_json::{Value, json};

use super::{array, containers, helm, pods, render, text, variants};

#[test]
fn the_cloud_config_is_in_a_folder_that_follows_what_is_replaced() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        for (_, pod) in pods(&objects) {
            for volume in array(pod, "/volumes") {
                assert!(!text(volume, "/hostPath/type").starts_with("File"), "{says}: {volume}");
            }
        }
        for (_, container) in containers(&objects) {
            for mount in array(container, "/volumeMounts") {
                assert!(mount.get("subPath").is_none(), "{says}: {mount}");
            }
        }
    }
}

/// Pods of the Go charts are root with a file system that they may write (docs/contract/load-balancer.md#S-8).
#[test]
fn only_the_container_that_mounts_volumes_is_privileged() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        for (workload, pod) in pods(&objects).filter(|(name, _)| *name != "kube-vip") {
            for container in array(pod, "/containers") {
                let (name, may) = (text(container, "/name"), &container["securityContext"]);
                let says = format!("{says}: {workload}, container {name}");
                if (workload, name) == ("harvester-csi-driver", "harvester-csi-driver") {
                    assert_eq!(may["privileged"], true, "{says}");
                    continue;
                }
                assert_eq!(may.get("privileged"), None, "{says}");
                assert_eq!(may["allowPrivilegeEscalation"], false, "{says}");
                assert_eq!(may["readOnlyRootFilesystem"], true, "{says}");
                assert_eq!(may["capabilities"], json!({"drop": ["ALL"]}), "{says}");
            }
        }
    }
}

/// Kubelet and Pods see no mount without Bidirectional, and a mount of NFS is made in the network of the node's process 1.
#[test]
fn the_node_service_mounts_for_its_node_and_runs_on_each() {
    let Some(helm) = helm() else { return };
    let objects = render(&helm, "harvester-csi-driver", &["kubeletRootDir=/data/kubelet"]);
    let (_, pod) = pods(&objects).find(|(name, _)| *name == "harvester-csi-driver").unwrap();
    let container =
        |name: &str| array(pod, "/containers").iter().find(|container| container["name"] == name).unwrap();
    for folder in ["/data/kubelet/plugins/kubernetes.io/csi", "/data/kubelet/pods"] {
        let mounts = array(container("harvester-csi-driver"), "/volumeMounts");
        let mount = mounts.iter().find(|mount| mount["mountPath"] == folder).unwrap();
        assert_eq!(mount["mountPropagation"], "Bidirectional", "{folder}");
    }
    assert_eq!(pod["hostPID"], true);
    assert!(array(pod, "/tolerations").contains(&json!({"operator": "Exists"})));
    // kubelet's socket for plugins, where SELinux enforces
    let registrar = container("node-driver-registrar");
    assert_eq!(registrar["securityContext"]["seLinuxOptions"], json!({"type": "spc_t"}));
}

#[test]
fn a_pod_is_root_only_where_it_reads_the_cloud_config_of_its_node() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        for (workload, pod) in pods(&objects) {
            if workload == "kube-vip" || workload == "harvester-csi-driver" {
                continue;
            }
            let is_config = |volume: &Value| {
                text(volume, "/name").starts_with("cloud-config") && volume.get("hostPath").is_some()
            };
            let reads_node = array(pod, "/volumes").iter().any(is_config);
            let user = &pod["securityContext"]["runAsUser"];
            assert_eq!(*user == 0, reads_node, "{says}: {workload} as {user}");
            assert_eq!(pod["securityContext"]["runAsNonRoot"] == true, !reads_node, "{says}: {workload}");
        }
    }
}

/// With a Secret nothing of the node is mounted for the cloud-config, so that SELinux and read-only nodes do not mind.
#[test]
fn a_secret_takes_the_place_of_every_folder_of_the_node() {
    let Some(helm) = helm() else { return };
    let options = ["cloudConfig.secretName=own", "cloudConfig.secretKey=key"];
    let ccm = render(&helm, "harvester-cloud-provider", &options);
    let (_, pod) = pods(&ccm).find(|(name, _)| *name == "harvester-cloud-provider").unwrap();
    let wanted = json!({"secretName": "own", "optional": true, "defaultMode": 288,
        "items": [{"key": "key", "path": "cloud-config"}]});
    let rotated =
        json!({"secretName": "harvester-cloud-provider-rotated", "optional": true, "defaultMode": 288});
    let volumes = json!([{"name": "cloud-config", "secret": wanted}, {"name": "rotated-cloud-config", "secret": rotated}]);
    assert_eq!(pod["volumes"], volumes);
    let csi = render(&helm, "harvester-csi-driver", &options);
    for (workload, pod) in pods(&csi) {
        let config = array(pod, "/volumes").iter().find(|volume| volume["name"] == "cloud-config").unwrap();
        assert_eq!(
            config["secret"]["items"],
            json!([{"key": "key", "path": "cloud-provider-config"}]),
            "{workload}"
        );
        assert!(array(pod, "/volumes").iter().all(|volume| volume["name"] != "etc-kubernetes"), "{workload}");
    }
}

/// The Secret is empty, stays, and is written by who leads and by no node.
#[test]
fn a_chart_makes_the_secret_of_the_rotated_token_empty_and_keeps_it() {
    let Some(helm) = helm() else { return };
    let charts = [
        ("harvester-cloud-provider", "harvester-cloud-provider", "harvester-cloud-provider"),
        ("harvester-csi-driver", "harvester-csi-driver-controllers", "harvester-csi-driver-controllers"),
    ];
    for (chart, writer, account) in charts {
        let (name, place) = (format!("{chart}-rotated"), format!("kube-system/{chart}-rotated"));
        let objects = render(&helm, chart, &[]);
        let secret = super::object(&objects, "Secret", &name);
        assert_eq!(secret["metadata"]["annotations"]["helm.sh/resource-policy"], "keep", "{chart}");
        assert_eq!((secret.get("data"), secret.get("stringData")), (None, None), "{chart}");
        let rules = &super::object(&objects, "Role", &format!("{chart}-credential"))["rules"];
        assert_eq!(rules[0]["resourceNames"], json!([name]), "{chart}");
        let binding = super::object(&objects, "RoleBinding", &format!("{chart}-credential"));
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": account}])
        );
        let flag = format!("--rotated-credential-secret={place}");
        for (workload, pod) in pods(&objects).filter(|(name, _)| *name != "kube-vip") {
            let of_ours = array(pod, "/containers").iter().filter(|one| !text(one, "/command/0").is_empty());
            for container in of_ours {
                let args = super::args(container);
                assert_eq!(args.contains(&flag.as_str()), workload == writer, "{workload}: {args:?}");
                let folder = args.iter().find_map(|arg| arg.strip_prefix("--rotated-cloud-config=")).unwrap();
                let mounts = array(container, "/volumeMounts");
                let mount = mounts.iter().find(|mount| mount["mountPath"] == folder).unwrap();
                assert_eq!(mount["readOnly"], true, "{workload}");
                let volume = array(pod, "/volumes").iter().find(|one| one["name"] == mount["name"]).unwrap();
                assert_eq!(text(volume, "/secret/secretName"), name, "{workload}");
            }
        }
        let off = serde_json::to_string(&render(&helm, chart, &["cloudConfig.rotate=false"])).unwrap();
        assert!(!off.contains("rotated"), "{chart}: it can be switched off");
    }
}

/// The folder of a file at the top of a node would be all of the node.
#[test]
fn a_cloud_config_at_the_top_of_the_node_is_refused() {
    let Some(helm) = helm() else { return };
    let ccm =
        super::try_render(&helm, "harvester-cloud-provider", &["cloudConfigPath=/kubeconfig"]).unwrap_err();
    assert!(ccm.contains("all of the node"), "{ccm}");
    let csi =
        super::try_render(&helm, "harvester-csi-driver", &["cloudConfig.hostPath=/kubeconfig"]).unwrap_err();
    assert!(csi.contains("all of the node"), "{csi}");
}

/// Secrets, ConfigMaps and Leases of others are in the same namespaces, those of CoreDNS and of Kubernetes' controllers among
/// them; whoever takes a registration of another webhook over reads all that it judges.
#[test]
fn what_others_have_too_is_read_and_written_by_name_alone() {
    let Some(helm) = helm() else { return };
    let shared = ["secrets", "leases", "validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
    for (chart, _) in super::CHARTS {
        let rendered = render(&helm, chart, &[]);
        let is_role = |object: &&Value| {
            let name = text(object, "/metadata/name");
            text(object, "/kind").ends_with("Role") && name != "kube-vip" && !name.ends_with("-controllers")
        };
        for role in rendered.iter().filter(is_role) {
            for rule in array(role, "/rules") {
                let resources = array(rule, "/resources").iter().filter_map(Value::as_str);
                let verbs: Vec<_> = array(rule, "/verbs").iter().filter_map(Value::as_str).collect();
                // no rule can name what is to be created, and a Secret may be a token of any account
                let on_secrets = array(rule, "/resources").contains(&"secrets".into());
                assert!(!(on_secrets && verbs.contains(&"create")), "{chart} {}", role["metadata"]["name"]);
                let writes = verbs.iter().any(|verb| !["get", "list", "watch", "create"].contains(verb));
                let is_shared = |it: &str| shared.contains(&it) && verbs != ["create"];
                for resource in resources.filter(|it| is_shared(it) || *it == "configmaps" && writes) {
                    let names = array(rule, "/resourceNames");
                    assert!(!names.is_empty(), "{chart} {}: {verbs:?} {resource}", role["metadata"]["name"]);
                }
            }
        }
    }
    let secrets = |role: &Value| {
        let of = array(role, "/rules").iter().filter(|rule| rule["resources"][0] == "secrets");
        of.flat_map(|rule| array(rule, "/resourceNames").to_vec()).collect::<Vec<_>>()
    };
    let webhook = "harvester-load-balancer-webhook";
    let lb = render(&helm, "harvester-load-balancer", &[]);
    let own = [format!("{webhook}-ca"), format!("{webhook}-tls")].map(Value::from);
    assert_eq!(secrets(super::object(&lb, "Role", webhook)), own);
    // and those are there, with nothing that an upgrade or an apply would write over the certificates
    for name in own.iter().filter_map(Value::as_str) {
        let secret = super::object(&lb, "Secret", name);
        let fields: Vec<_> = secret.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["apiVersion", "kind", "metadata"], "{name}");
        assert_eq!(secret["metadata"]["annotations"]["helm.sh/resource-policy"], "keep", "{name}");
    }
}

#[test]
fn the_cloud_controller_manager_may_write_the_lease_that_the_extra_arguments_name() {
    let Some(helm) = helm() else { return };
    let lease = |options: &[&str]| {
        let rendered = render(&helm, "harvester-cloud-provider", options);
        super::object(&rendered, "Role", "harvester-cloud-provider")["rules"][0]["resourceNames"].clone()
    };
    assert_eq!(lease(&[]), json!(["cloud-controller-manager"]));
    assert_eq!(lease(&["extraArgs={--leader-elect-resource-name=own}"]), json!(["own"]));
    assert_eq!(lease(&["extraArgs={--leader-elect-resource-name,own}"]), json!(["own"]));

    let rendered =
        render(&helm, "harvester-cloud-provider", &["extraArgs={--leader-elect-resource-namespace=own}"]);
    for (namespace, resources) in [("own", ["leases"; 2]), ("kube-system", ["configmaps"; 2])] {
        let there = |kind: &str| {
            let mut found = rendered.iter().filter(|object| {
                object["kind"] == kind
                    && text(object, "/metadata/namespace") == namespace
                    && text(object, "/metadata/name") == "harvester-cloud-provider"
            });
            found.next().unwrap_or_else(|| panic!("no {kind} in {namespace}"))
        };
        let granted: Vec<_> =
            array(there("Role"), "/rules").iter().map(|rule| text(rule, "/resources/0")).collect();
        assert_eq!(granted, resources, "{namespace}");
        assert_eq!(there("RoleBinding")["subjects"][0]["namespace"], "kube-system", "{namespace}");
    }
}

// docs/contract/cloud-controller-manager.md#C4
#[test]
fn every_container_of_ours_is_asked_for_its_life() {
    let Some(helm) = helm() else { return };
    for (says, objects) in variants(&helm) {
        for (_, container) in containers(&objects) {
            if text(container, "/command/0").is_empty() {
                continue; // a sidecar
            }
            let (name, probe) = (text(container, "/name"), &container["livenessProbe"]["httpGet"]);
            assert_eq!(probe["path"], "/livez", "{says}: {name}");
            if name == "harvester-cloud-provider" {
                // in the node's network, where anybody may have the port of an address
                assert_eq!(
                    *probe,
                    json!({"scheme": "HTTPS", "host": "127.0.0.1", "port": 10258, "path": "/livez"})
                );
                continue;
            }
            let port = array(container, "/ports").iter().find(|port| port["name"] == probe["port"]).unwrap();
            let address = format!("address=:{}", port["containerPort"]);
            let endpoint = format!("--http-endpoint=:{}", port["containerPort"]);
            let args = super::args(container);
            assert!(
                args.iter().any(|arg| arg.ends_with(&address) || *arg == endpoint),
                "{says}: {name} {args:?}"
            );
        }
    }
}
