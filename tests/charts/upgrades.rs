//! What an upgrade, and helm that waits for it, finds in the charts.

use serde_json::{Value, json};

use super::{CHARTS, args, array, containers, helm, object, render, text, try_render, variants};

const CCM: &str = "harvester-cloud-provider";
const CSI: &str = "harvester-csi-driver";
const LB: &str = "harvester-load-balancer";

/// An upgrade on one node has no room for a second Pod beside the first (docs/contract/cloud-controller-manager.md#C6).
#[test]
fn a_single_node_is_upgraded_without_help() {
    let Some(helm) = helm() else { return };
    for (options, strategy) in [
        (&[][..], json!({"type": "Recreate"})),
        (
            &["replicasCount=2"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ),
    ] {
        let rendered = render(&helm, CCM, options);
        let spec = &object(&rendered, "Deployment", CCM)["spec"];
        assert_eq!(spec["strategy"], strategy);
        assert_eq!(spec["template"]["spec"]["hostNetwork"], true);
    }
    // and one replica may be evicted, docs/contract/load-balancer.md#CH-2
    for (says, objects) in variants(&helm) {
        for budget in objects.iter().filter(|object| object["kind"] == "PodDisruptionBudget") {
            assert_eq!(budget["spec"]["maxUnavailable"], 1, "{says}");
            // one that is not ready counts as disrupted already
            assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow", "{says}");
        }
    }
}

/// cluster-autoscaler keeps a node for the files in a Pod, unless the Pod says that nothing is lost with them.
#[test]
fn a_pod_that_anybody_may_move_names_the_volumes_that_go_with_it() {
    let Some(helm) = helm() else { return };
    let mut found = 0;
    for (says, objects) in variants(&helm) {
        for deployment in objects.iter().filter(|object| object["kind"] == "Deployment") {
            let template = &deployment["spec"]["template"];
            let key = "/metadata/annotations/cluster-autoscaler.kubernetes.io~1safe-to-evict-local-volumes";
            let named: Vec<_> = text(template, key).split(',').filter(|name| !name.is_empty()).collect();
            let volumes = array(template, "/spec/volumes").iter();
            let local = volumes.filter(|volume| volume.get("emptyDir").is_some());
            let local: Vec<_> = local.map(|volume| text(volume, "/name")).collect();
            assert_eq!(named, local, "{says}: {}", text(deployment, "/metadata/name"));
            found += local.len();
        }
    }
    assert!(found > 0, "the socket of the CSI sidecars is one");
}

/// helm 3 waits for as many Pods as may not be unavailable: for none it takes a broken upgrade for a good one, and `--atomic`
/// takes nothing back.
#[test]
fn helm_waits_for_a_ready_pod_of_every_deployment() {
    let Some(helm) = helm() else { return };
    for (name, _) in CHARTS {
        for replicas in 1..=3 {
            let count = format!("replicasCount={replicas}");
            let rendered = render(&helm, name, &[&count, &format!("webhook.{count}")]);
            for deployment in rendered.iter().filter(|object| object["kind"] == "Deployment") {
                let spec = &deployment["spec"];
                assert_eq!(spec["replicas"], replicas, "{name}");
                // Kubernetes' default is a quarter, rounded down
                let unavailable = spec["strategy"]["rollingUpdate"]["maxUnavailable"].as_u64();
                let waits_for_one = replicas > unavailable.unwrap_or_default();
                assert!(waits_for_one || spec["strategy"]["type"] == "Recreate", "{name}: {spec}");
            }
        }
    }
}

/// One node after another takes longer than helm waits, and a good upgrade is taken back.
#[test]
fn a_tenth_of_the_nodes_gets_a_new_driver_at_once() {
    let Some(helm) = helm() else { return };
    let update = |options: &[&str]| {
        object(&render(&helm, CSI, options), "DaemonSet", CSI)["spec"]["updateStrategy"].clone()
    };
    let at_once =
        |number: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": number}});
    assert_eq!(update(&[]), at_once("10%".into()));
    assert_eq!(update(&["nodeMaxUnavailable=3"]), at_once(3.into()));
    for refused in ["nodeMaxUnavailable=0", "nodeMaxUnavailable=0%", "nodeMaxUnavailable=many"] {
        assert!(try_render(&helm, CSI, &[refused]).unwrap_err().contains("nodeMaxUnavailable"));
    }
}

/// The Go program does not without the flag, so a release that is there keeps that. helm looks at the cluster for it.
#[test]
fn pools_admit_by_their_selectors_from_a_first_install_on() {
    let Some(helm) = helm() else { return };
    let strict = |options: &[&str]| {
        let rendered = render(&helm, LB, options);
        let has = |(_, container): (&Value, &Value)| args(container).contains(&"--enforce-named-pool-scope");
        containers(&rendered).map(has).collect::<Vec<_>>()
    };
    assert_eq!(strict(&[]), [true, true]);
    assert_eq!(strict(&["--is-upgrade"]), [false, false]);
    for (value, is_strict) in [("true", true), ("false", false)] {
        for kind in ["--set", "--set-string"] {
            let value = format!("{kind}=enforceNamedPoolScope={value}");
            assert_eq!(strict(&[&value]), [is_strict; 2], "{value}");
            assert_eq!(strict(&[&value, "--is-upgrade"]), [is_strict; 2], "{value}");
        }
    }
}
