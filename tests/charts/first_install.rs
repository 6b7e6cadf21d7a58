//! What counts as a first install on a real API server, and what an earlier one has left there.

use std::sync::PoisonError;

use super::{
    args, chart, container,
    server::{CLOUD_PROVIDER, CSI, LOAD_BALANCER, Lab, data_path, lab},
};

const CCM: &str = "harvester-cloud-provider";
const LB: &str = "harvester-load-balancer";

/// As the documents have it, whether a release is there or not.
fn upgrade_or_install(lab: &Lab, name: &str, namespace: &str, options: &[&str]) -> Result<String, String> {
    let folder = chart(name);
    let command = ["upgrade", "--install", name, folder.to_str().unwrap(), "--namespace", namespace];
    lab.try_run(&lab.helm, &[&command[..], options].concat())
}

/// A quota, an admission policy or a typing error refuses the Deployment, and the release is there without it.
fn fail_at_first(lab: &Lab, name: &str, namespace: &str) {
    let refused =
        upgrade_or_install(lab, name, namespace, &["--set", "resources.requests.cpu=-1"]).unwrap_err();
    assert!(refused.contains("must be greater than or equal to 0"), "{refused}");
}

/// helm calls the second attempt an upgrade, and what upgrades of the Go programs' releases keep is not there to be kept.
#[test]
fn a_first_install_that_failed_is_done_again_with_the_defaults_of_a_first_install() {
    let Some(lab) = lab() else { return };
    let strict = || {
        [LB, "harvester-load-balancer-webhook"].map(|name| {
            let found = [lab.get("harvester-system", &format!("deployment/{name}"))];
            args(container(&found, "Deployment", name, name)).contains(&"--enforce-named-pool-scope")
        })
    };
    {
        let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = "harvester-system";
        fail_at_first(lab, LB, namespace);
        upgrade_or_install(lab, LB, namespace, &["--reset-values"]).unwrap();
        assert_eq!(strict(), [true; 2]);
        lab.helm(&["uninstall", LB, "--namespace", namespace]);
        // and where pools are, nobody knows under which rule they gave addresses
        let definition = "crd/ippools.loadbalancer.harvesterhci.io";
        lab.kubectl(&["wait", "--for=condition=Established", definition, "--timeout=30s"]);
        let pool = super::root().join("examples/harvester/ip-pool.yaml");
        lab.kubectl(&["create", "-f", pool.to_str().unwrap()]);
        fail_at_first(lab, LB, namespace);
        upgrade_or_install(lab, LB, namespace, &["--reset-values"]).unwrap();
        assert_eq!(strict(), [false; 2], "a load balancer would lose its address");
        lab.helm(&["uninstall", LB, "--namespace", namespace]);
        lab.kubectl(&["delete", "-f", pool.to_str().unwrap()]);
    }
    let _turn = CLOUD_PROVIDER.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = "kube-system";
    fail_at_first(lab, CCM, namespace);
    upgrade_or_install(lab, CCM, namespace, &["--reset-values"]).unwrap();
    assert_eq!(data_path(lab).as_deref(), Some("annotation"));
    lab.helm(&["uninstall", CCM, "--namespace", namespace]);
}

/// A chart keeps the Secret of the rotated token when its release goes, and helm takes over nothing that another release made.
#[test]
fn what_a_former_release_kept_is_in_the_way_of_no_release_of_another_name() {
    let Some(lab) = lab() else { return };
    // other tests hold manifests against what they find in kube-system
    let namespace = "harvester-system";
    for (name, turn) in [(CCM, &CLOUD_PROVIDER), ("harvester-csi-driver", &CSI)] {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, secret) = (chart(name), format!("secret/{name}-rotated"));
        lab.release("install", &folder, namespace, &[]);
        lab.helm(&["uninstall", name, "--namespace", namespace]);
        // a token that was given once is given by nobody again
        let fill = r#"{"stringData": {"cloud-config": "renewed"}}"#;
        lab.kubectl(&["-n", namespace, "patch", &secret, "--type=merge", "-p", fill]);
        let kept = lab.get(namespace, &secret);
        for verb in ["install", "upgrade"] {
            lab.helm(&[verb, "other", folder.to_str().unwrap(), "--namespace", namespace]);
            assert_eq!(lab.get(namespace, &secret), kept, "{verb} {name}");
        }
        let role = lab.get(namespace, &format!("role/{name}-credential"));
        assert_eq!(role["rules"][0]["resourceNames"][0], format!("{name}-rotated"));
        lab.helm(&["uninstall", "other", "--namespace", namespace]);
        assert_eq!(lab.get(namespace, &secret), kept, "uninstall {name}");
        lab.kubectl(&["-n", namespace, "delete", &secret]);
    }
}
