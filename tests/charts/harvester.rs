//! The chart of the load balancer, and the documented steps, on a real API server that stands for Harvester's.

use std::{fs, path::Path, sync::PoisonError};

use load_balancer_webhook::registration::{self, Address};
use serde_json::{Value, json};

use super::{
    array, chart, helm, object, render, root,
    server::{LOAD_BALANCER, Lab, go, lab},
    text,
};

const LB: &str = "harvester-load-balancer";
const NAMESPACE: &str = "harvester-system";
const SECRETS: [&str; 2] = ["harvester-load-balancer-webhook-ca", "harvester-load-balancer-webhook-tls"];
const FILL: &str = r#"{"stringData": {"tls.crt": "certificate", "tls.key": "key"}}"#;

/// What is in the Secrets; empty where nothing is.
fn contents(lab: &Lab) -> [Value; 2] {
    SECRETS.map(|name| lab.get(NAMESPACE, &format!("secret/{name}"))["data"].clone())
}

/// As the webhook does it.
fn fill(lab: &Lab) -> [Value; 2] {
    for name in SECRETS {
        lab.kubectl(&["-n", NAMESPACE, "patch", "secret", name, "--type=merge", "-p", FILL]);
    }
    contents(lab)
}

/// A release of a chart says which of the fields are its own: what others said of them is in its way.
fn remove_definitions(lab: &Lab) {
    let definitions = definitions();
    lab.kubectl(&["delete", "crd", "--ignore-not-found", &definitions[0], &definitions[1]]);
}

fn definitions() -> [String; 2] {
    ["ippools", "loadbalancers"].map(|kind| format!("{kind}.loadbalancer.harvesterhci.io"))
}

fn remove_secrets(lab: &Lab) {
    let delete = ["-n", NAMESPACE, "delete", "secret", "--ignore-not-found"];
    lab.kubectl(&[&delete[..], &SECRETS].concat());
}

/// Without the certificates the API server could ask no webhook, and no load balancer or pool could be changed.
#[test]
fn nothing_that_helm_or_kubectl_does_empties_the_secrets_of_the_webhook() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = chart(LB);
    // as helm 4 writes, and as helm 3 does
    for how in ["--server-side=true", "--server-side=false"] {
        remove_secrets(lab);
        lab.release("install", &ours, NAMESPACE, &[how]);
        assert_eq!(contents(lab), [Value::Null, Value::Null]);
        let filled = fill(lab);
        assert_eq!(text(&filled[0], "/tls.crt"), "Y2VydGlmaWNhdGU=");
        let more = ["--reset-then-reuse-values", "--set", "replicasCount=1", how];
        lab.release("upgrade", &ours, NAMESPACE, &more);
        assert_eq!(contents(lab), filled, "upgrade {how}");
        lab.helm(&["rollback", LB, "1", "--namespace", NAMESPACE, how]);
        assert_eq!(contents(lab), filled, "rollback {how}");
        let mut rendered = render(&lab.helm, LB, &[]);
        rendered.retain(|object| object["kind"] == "Secret");
        assert_eq!(rendered.len(), 2);
        let file = lab.folder.join("rendered.json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": rendered});
        fs::write(&file, list.to_string()).unwrap();
        for options in [&["--force-conflicts", "--server-side"][..], &[]] {
            lab.kubectl(&[&["apply", "-f", file.to_str().unwrap()][..], options].concat());
            assert_eq!(contents(lab), filled, "apply {options:?}");
        }
        lab.helm(&["uninstall", LB, "--namespace", NAMESPACE]);
        assert_eq!(contents(lab), filled, "uninstall {how}");
        lab.release("install", &ours, NAMESPACE, &[how]);
        assert_eq!(contents(lab), filled, "a release made anew {how}");
        lab.helm(&["uninstall", LB, "--namespace", NAMESPACE]);
    }
    remove_secrets(lab);
}

#[test]
fn the_service_that_the_webhook_registers_leads_to_it_whatever_the_chart_is_called() {
    let Some(helm) = helm() else { return };
    let mut registered = json!({});
    (registration::webhooks(NAMESPACE, &Address::Service)[0].set)(&mut registered, "");
    let service = text(&registered, "/webhooks/0/clientConfig/service/name");
    for (options, webhook) in
        [(&["nameOverride=edge"][..], "edge-webhook"), (&[], "harvester-load-balancer-webhook")]
    {
        let rendered = render(&helm, LB, options);
        let selector = &object(&rendered, "Service", service)["spec"]["selector"];
        let deployment = object(&rendered, "Deployment", webhook);
        assert_eq!(&deployment["spec"]["template"]["metadata"]["labels"], selector, "{options:?}");
    }
}

/// The role of the Go chart lets the webhook make them, and helm refuses to take over what it has not made.
#[test]
fn an_upgrade_leaves_secrets_alone_that_the_webhook_made_itself_and_brings_those_that_are_missing() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = chart(LB);
    for how in ["--server-side=true", "--server-side=false"] {
        remove_secrets(lab);
        lab.release("install", &go(LB), NAMESPACE, &[how]);
        for name in SECRETS {
            lab.kubectl(&["-n", NAMESPACE, "create", "secret", "generic", name]);
        }
        let filled = fill(lab);
        for _ in 0..2 {
            lab.release("upgrade", &ours, NAMESPACE, &["--reset-then-reuse-values"]);
            assert_eq!(contents(lab), filled, "{how}");
        }
        lab.kubectl(&["-n", NAMESPACE, "delete", "secret", SECRETS[1]]);
        lab.release("upgrade", &ours, NAMESPACE, &["--reset-then-reuse-values"]);
        assert_eq!(contents(lab), [filled[0].clone(), Value::Null], "{how}");
        // back to a release that has none: what the webhook of the Go program goes on with stays
        let filled = fill(lab);
        lab.helm(&["rollback", LB, "1", "--namespace", NAMESPACE]);
        assert_eq!(contents(lab), filled, "{how}");
        lab.helm(&["uninstall", LB, "--namespace", NAMESPACE]);
    }
    remove_secrets(lab);
}

/// What the line of a block of docs/install.md that begins so prints, as somebody types it in the folder of this repository.
fn typed(lab: &Lab, beginning: &str) -> String {
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let line =
        document.lines().find(|line| line.strip_prefix("    ").is_some_and(|it| it.starts_with(beginning)));
    let line = line.unwrap_or_else(|| panic!("docs/install.md has no {beginning}")).trim();
    let with = line.replacen("kubectl", &format!("'{}'", lab.kubectl.display()), 1);
    let line = format!("cd '{}' && {with}", root().display());
    lab.try_run(Path::new("sh"), &["-c", &line]).unwrap_or_else(|why| panic!("{line}: {why}"))
}

/// Harvester's own chart has the definitions, so that no chart of ours can.
#[test]
fn the_documented_commands_give_harvesters_definitions_our_fields_and_fleet_lets_them() {
    let Some(lab) = lab() else { return };
    let _turn = LOAD_BALANCER.lock().unwrap_or_else(PoisonError::into_inner);
    lab.kubectl(&["create", "namespace", "fleet-local"]);
    let managed = json!({
        "apiVersion": "management.cattle.io/v3", "kind": "ManagedChart",
        "metadata": {"namespace": "fleet-local", "name": "harvester"},
        "spec": {
            "values": {"harvester-load-balancer": {"enabled": true}, "longhorn": {"enabled": true}},
            "diff": {"comparePatches": [{"kind": "CustomResourceDefinition", "name": "volumes.longhorn.io"}]},
        },
        // as Fleet tells it of a bundle, and no column of kubectl's table
        "status": {"display": {"readyClusters": "0/1", "state": "Modified"}},
    });
    let file = lab.folder.join("managed.json");
    fs::write(&file, managed.to_string()).unwrap();
    lab.kubectl(&["create", "-f", file.to_str().unwrap()]);
    let chart = || lab.get("fleet-local", "managedchart/harvester")["spec"].clone();
    let before = chart();

    typed(lab, "kubectl patch managedchart harvester -n fleet-local --type=merge --patch-file");
    let values = &chart()["values"];
    assert_eq!(values["longhorn"], before["values"]["longhorn"]);
    assert_eq!(values["harvester-load-balancer"]["enabled"], true, "or the definitions go");
    let image = values["harvester-load-balancer"]["webhook"]["image"].clone();
    assert_eq!(text(&image, "/repository"), "registry.example.com/harvester-cloud-provider");
    typed(lab, "kubectl patch managedchart harvester -n fleet-local --type=json");
    let patches = chart()["diff"]["comparePatches"].clone();
    assert_eq!(patches[0], before["diff"]["comparePatches"][0]);
    let names: Vec<_> = array(&patches, "").iter().skip(1).map(|one| text(one, "/name").to_owned()).collect();
    let definitions = definitions();
    assert_eq!(names, definitions);

    // the definitions, as helm 3 keeps them, which is in Fleet
    remove_definitions(lab);
    let how = "--server-side=false";
    lab.release("install", &go(LB), NAMESPACE, &[how]);
    let conversion = r#"{"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/v1/webhook/conversion"}}}}}"#;
    lab.kubectl(&["patch", "crd", &definitions[1], "--type=merge", "-p", conversion]);
    typed(lab, "kubectl -n harvester-system set env ");
    assert_eq!(typed(lab, "kubectl get managedchart harvester -n fleet-local "), "Modified");
    let of = |name: &str| lab.get(NAMESPACE, &format!("crd/{name}"))["spec"].clone();
    let quota = "/versions/0/schema/openAPIV3Schema/properties/spec/properties/quota";
    for round in 0..2 {
        assert_eq!(of(&definitions[0]).pointer(quota), None);
        typed(lab, "kubectl apply --server-side --force-conflicts -f deploy/crds");
        assert!(of(&definitions[0]).pointer(quota).is_some(), "round {round}");
        assert_eq!(of(&definitions[1])["conversion"]["strategy"], "Webhook", "the webhook writes it");
        // an upgrade of Harvester writes its own back
        lab.release("upgrade", &go(LB), NAMESPACE, &["--set", &format!("image.tag=v{round}"), how]);
        for name in [LB, "harvester-load-balancer-webhook"] {
            let deployment = lab.get(NAMESPACE, &format!("deployment/{name}"));
            let variable = &deployment["spec"]["template"]["spec"]["containers"][0]["env"][0];
            assert_eq!(*variable, json!({"name": "METRICS_ADDRESS", "value": ":9402"}), "{name}: {round}");
        }
    }
    typed(lab, "kubectl patch managedchart harvester -n fleet-local --type=merge -p");
    assert_eq!(chart()["values"]["harvester-load-balancer"]["image"], Value::Null);
    assert_eq!(chart()["values"]["harvester-load-balancer"]["enabled"], true);
    lab.helm(&["uninstall", LB, "--namespace", NAMESPACE]);
    remove_definitions(lab);
    lab.kubectl(&["delete", "namespace", "fleet-local", "--wait=false"]);
}
