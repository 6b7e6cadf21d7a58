//! Volumes: the claims that Harvester makes for a VM, the volume that each of them gets, and the end of both.
//!
//! ```text
//! VM ──annotation volumeClaimTemplates──► claims ──storage class, source──► bound ──larger request──► grown
//!  └──annotation removedPersistentVolumeClaims, when it goes──► those claims are deleted, then the VM is let go
//! ```
//! A claim that no annotation names stays when its VM goes: that is what a guest's own volumes live from.

pub(crate) mod controller;
pub(crate) mod export;
pub(crate) mod longhorn;
mod remote;
pub(crate) mod snapshot;

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{
    quota::thousandths,
    settings::FULL,
    vm::{Vm, obstacle::claims},
};

/// The claims that Harvester makes for a VM: a JSON list of them.
const TEMPLATES: &str = "harvesterhci.io/volumeClaimTemplates";
/// The claims that go with a VM, joined by commas.
const REMOVED: &str = "harvesterhci.io/removedPersistentVolumeClaims";
/// Harvester holds a VM until its volumes are put in order.
const FINALIZER: &str = "harvesterhci.io/VMController.CleanupPVCAndSnapshot";
/// Kubernetes holds a claim while a pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Kubernetes' annotation with the name of the driver that makes a claim's volume.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The class of a claim that names none.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// One write for a VM's volumes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    SetFinalizers(Vec<String>),
    CreateClaim(Box<PersistentVolumeClaim>),
    DeleteClaim(String),
    /// A warning on the VM.
    Warn(String),
}

/// The steps for a VM's volumes now. `known` are the claims of its namespace, `runs` says whether it has an instance.
pub(crate) fn of_vm(vm: &Vm, known: &[&PersistentVolumeClaim], runs: bool) -> Vec<Step> {
    let held = vm.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if vm.metadata.deletion_timestamp.is_some() {
        return if held && !runs { removal(vm, known) } else { vec![] };
    }
    let templates = match templates(vm) {
        Ok(templates) => templates,
        Err(error) => return vec![Step::Warn(format!("annotation {TEMPLATES} cannot be read: {error}"))],
    };
    if templates.is_empty() && claims(vm).is_empty() {
        return vec![];
    }
    let mut steps = vec![];
    if !held {
        let finalizers = vm.finalizers().iter().cloned().chain([FINALIZER.to_owned()]);
        steps.push(Step::SetFinalizers(finalizers.collect()));
    }
    let missing =
        templates.into_iter().filter(|claim| known.iter().all(|known| known.name_any() != claim.name_any()));
    steps.extend(missing.map(|claim| Step::CreateClaim(Box::new(claim))));
    steps
}

fn templates(vm: &Vm) -> serde_json::Result<Vec<PersistentVolumeClaim>> {
    let Some(text) = vm.annotations().get(TEMPLATES).filter(|text| !text.is_empty()) else {
        return Ok(vec![]);
    };
    let mut claims: Vec<PersistentVolumeClaim> = serde_json::from_str(text)?;
    for claim in &mut claims {
        claim.metadata.namespace = vm.namespace();
    }
    Ok(claims)
}

fn removal(vm: &Vm, known: &[&PersistentVolumeClaim]) -> Vec<Step> {
    let removed = vm.annotations().get(REMOVED).map(String::as_str).unwrap_or_default();
    let named =
        |claim: &&&PersistentVolumeClaim| removed.split(',').any(|name| name.trim() == claim.name_any());
    let mut left: Vec<_> = known
        .iter()
        .filter(named)
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
        .map(|claim| Step::DeleteClaim(claim.name_any()))
        .collect();
    let others = vm.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).cloned();
    left.push(Step::SetFinalizers(others.collect()));
    left
}

/// The steps for a claim now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClaimStep {
    /// Merge patches of the claim and of its status.
    Bind { spec: Value, status: Value },
    /// The merge patch of the status after which the volume is as large as the request.
    Grow(Value),
    /// It is deleted and nothing uses it: the merge patch that lets it go.
    LetGo(Value),
    /// A warning on the claim: reason and message.
    Warn(&'static str, String),
}

/// `used` says whether an instance has the claim, `obstacle` why its volume cannot be made of what it names.
pub(crate) fn of_claim(
    claim: &PersistentVolumeClaim,
    classes: &[&StorageClass],
    used: bool,
    obstacle: Option<String>,
) -> Option<ClaimStep> {
    if claim.metadata.deletion_timestamp.is_some() {
        let held = claim.finalizers().iter().any(|finalizer| finalizer == PROTECTION);
        let others: Vec<_> = claim.finalizers().iter().filter(|finalizer| *finalizer != PROTECTION).collect();
        return (held && !used).then(|| ClaimStep::LetGo(json!({"metadata": {"finalizers": others}})));
    }
    if is_bound(claim) {
        return growth(claim).map(ClaimStep::Grow);
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let default =
        |class: &&&StorageClass| class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true");
    let class = match &spec.storage_class_name {
        Some(name) => classes.iter().find(|class| class.name_any() == *name),
        None => classes.iter().find(default),
    };
    let Some(class) = class else {
        return Some(match spec.storage_class_name {
            Some(name) => ClaimStep::Warn(
                "ProvisioningFailed",
                format!("storageclass.storage.k8s.io \"{name}\" not found"),
            ),
            None => ClaimStep::Warn(
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set".to_owned(),
            ),
        });
    };
    if class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") && !used {
        let message = "waiting for first consumer to be created before binding".to_owned();
        return Some(ClaimStep::Warn("WaitForFirstConsumer", message));
    }
    let full = || class.annotations().contains_key(FULL).then(|| "no disk has room for it".to_owned());
    if let Some(why) = obstacle.or_else(full) {
        return Some(ClaimStep::Warn("ProvisioningFailed", why));
    }
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let volume = spec.volume_name.unwrap_or_else(|| format!("pvc-{}", claim.uid().unwrap_or_default()));
    Some(ClaimStep::Bind {
        // a real server has written the default class into the claim
        spec: json!({"metadata": {"annotations": {PROVISIONER: class.provisioner}},
            "spec": {"volumeName": volume, "storageClassName": class.name_any()}}),
        status: json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": requests}}),
    })
}

pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// The merge patch of the status of a claim that asks for more than its volume has.
fn growth(claim: &PersistentVolumeClaim) -> Option<Value> {
    let request = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    (thousandths(&request.0)? > thousandths(&has.0)?)
        .then(|| json!({"status": {"capacity": {"storage": request}}}))
}

#[cfg(test)]
mod tests {
    use controller_kit::RawObject;
    use rstest::rstest;

    use super::*;

    fn vm(extra: &Value) -> Vm {
        let template = |name: &str| {
            json!({"metadata": {"name": name, "annotations": {"harvesterhci.io/imageId": "shop/leap"}},
                "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "longhorn-leap",
                    "resources": {"requests": {"storage": "40Gi"}}}})
        };
        let mut json = json!({"metadata": {"name": "demo-4", "namespace": "shop",
                "annotations": {TEMPLATES: json!([template("root"), template("data")]).to_string()}},
            "spec": {"template": {"spec": {"volumes": [
                {"name": "disk-0", "persistentVolumeClaim": {"claimName": "root"}}]}}}});
        json_patch::merge(&mut json, &json!({"metadata": extra}));
        RawObject::from_json(json).unwrap()
    }

    fn claim(name: &str, extra: &Value) -> PersistentVolumeClaim {
        let mut json = json!({"metadata": {"name": name, "namespace": "shop", "uid": "u"}, "spec": {"accessModes":
            ["ReadWriteMany"], "storageClassName": "longhorn-leap", "resources": {"requests": {"storage": "40Gi"}}}});
        json_patch::merge(&mut json, extra);
        serde_json::from_value(json).unwrap()
    }

    fn told(steps: &[Step]) -> Vec<String> {
        let told = |step: &Step| match step {
            Step::SetFinalizers(finalizers) => format!("finalizers {}", finalizers.len()),
            Step::CreateClaim(claim) => format!("create {}/{}", claim.namespace().unwrap(), claim.name_any()),
            Step::DeleteClaim(name) => format!("delete {name}"),
            Step::Warn(_) => "warn".to_owned(),
        };
        steps.iter().map(told).collect()
    }

    #[rstest]
    #[case::new(json!({}), &[], false, &["finalizers 1", "create shop/root", "create shop/data"])]
    #[case::half(json!({"finalizers": [FINALIZER]}), &["root"], false, &["create shop/data"])]
    #[case::done(json!({"finalizers": [FINALIZER]}), &["root", "data"], true, &[])]
    #[case::unreadable(json!({"annotations": {TEMPLATES: "[{]"}}), &[], false, &["warn"])]
    #[case::going_and_running(json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-11-21T12:00:00Z"}),
        &["root", "data"], true, &[])]
    #[case::going(json!({"finalizers": [FINALIZER, "foregroundDeletion"], "deletionTimestamp": "2026-11-21T12:00:00Z",
            "annotations": {REMOVED: "root,plugged"}}),
        &["root", "data", "plugged"], false, &["delete root", "delete plugged", "finalizers 1"])]
    #[case::going_with_nothing_named(json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-11-21T12:00:00Z"}),
        &["root", "data"], false, &["finalizers 0"])]
    fn a_vm_has_its_claims_and_takes_those_named_with_it(
        #[case] metadata: Value,
        #[case] known: &[&str],
        #[case] runs: bool,
        #[case] expected: &[&str],
    ) {
        let known: Vec<_> = known.iter().map(|name| claim(name, &json!({}))).collect();
        let known: Vec<_> = known.iter().collect();
        assert_eq!(told(&of_vm(&vm(&metadata), &known, runs)), expected);
    }

    #[test]
    fn a_vm_without_volumes_is_left_alone() {
        let vm = RawObject::from_json(json!({"metadata": {"name": "guest-1"}, "spec": {}})).unwrap();
        assert_eq!(of_vm(&vm, &[], false), []);
    }

    #[rstest]
    #[case::binds(json!({}), false, "bind")]
    #[case::bound(json!({"status": {"phase": "Bound"}}), false, "")]
    #[case::default_class(json!({"spec": {"storageClassName": null}}), false, "bind")]
    #[case::grown(json!({"status": {"phase": "Bound", "capacity": {"storage": "20Gi"}}}), false, "grow")]
    #[case::as_large(json!({"status": {"phase": "Bound", "capacity": {"storage": "42949672960"}}}), false, "")]
    #[case::unknown_class(json!({"spec": {"storageClassName": "gold"}}), false, "ProvisioningFailed")]
    #[case::waits_for_a_vm(json!({"spec": {"storageClassName": "local"}}), false, "WaitForFirstConsumer")]
    #[case::has_its_vm(json!({"spec": {"storageClassName": "local"}}), true, "bind")]
    #[case::going(json!({"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": [PROTECTION]}}), false, "go")]
    #[case::in_use(json!({"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": [PROTECTION]}}), true, "")]
    #[case::no_longer_ours(json!({"metadata": {"deletionTimestamp": "2026-11-21T12:00:00Z", "finalizers": ["a/b"]}}), false, "")]
    fn a_claim_gets_its_volume_from_its_class(
        #[case] extra: Value,
        #[case] used: bool,
        #[case] expected: &str,
    ) {
        let class = |name: &str, default: &str| -> StorageClass {
            let json = json!({"metadata": {"name": name, "annotations": {DEFAULT_CLASS: default}}, "provisioner": "driver.longhorn.io"});
            serde_json::from_value(json).unwrap()
        };
        let mut local = class("local", "false");
        local.volume_binding_mode = Some("WaitForFirstConsumer".to_owned());
        let classes = [class("longhorn-leap", "false"), class("harvester-longhorn", "true"), local];
        let step = of_claim(&claim("root", &extra), &classes.iter().collect::<Vec<_>>(), used, None);
        let told = match &step {
            None => "",
            Some(ClaimStep::Bind { spec, status }) => {
                assert_eq!(spec["spec"]["volumeName"], "pvc-u");
                assert_eq!(spec["metadata"]["annotations"][PROVISIONER], "driver.longhorn.io");
                assert_eq!(status["status"]["capacity"]["storage"], "40Gi");
                "bind"
            }
            Some(ClaimStep::Grow(status)) => {
                assert_eq!(status["status"]["capacity"]["storage"], "40Gi");
                "grow"
            }
            Some(ClaimStep::LetGo(_)) => "go",
            Some(ClaimStep::Warn(reason, _)) => reason,
        };
        assert_eq!(told, expected);
    }
}
