//! The rules for a PersistentVolumeClaim.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

use super::{Cluster, Refusal, vm::lists};
use crate::{
    harvester_version,
    quota::thousandths,
    volumes::{claim, is_hot, name, volumes},
};

/// Harvester refuses to delete what a VM lists.
pub(super) fn deletion(old: &Value, cluster: &Cluster) -> Option<Refusal> {
    let pvc = name(&old["metadata"]);
    let stays = |vm: &&Value| vm["metadata"]["deletionTimestamp"].is_null() && lists(vm, pvc);
    let vms: Vec<_> = cluster.vms.iter().filter(stays).map(vm_name).collect();
    (!vms.is_empty()).then(|| Refusal {
        code: 409,
        message: format!(
            "can not delete the volume {pvc} which is currently attached to VMs: {}",
            vms.join(", ")
        ),
    })
}

fn vm_name(vm: &Value) -> String {
    format!("{}/{}", vm["metadata"]["namespace"].as_str().unwrap_or_default(), name(&vm["metadata"]))
}

fn request(claim: &Value) -> Option<i128> {
    thousandths(claim["spec"]["resources"]["requests"]["storage"].as_str()?)
}

/// Whether an update asks for another size.
pub(super) fn resizes(old: &Value, new: &Value) -> bool {
    request(new) != request(old)
}

/// Whether an update asks for more.
pub(super) fn grows(old: &Value, new: &Value) -> bool {
    request(new) > request(old)
}

/// What a real API server refuses by itself, with its codes: it never asks a webhook about this.
pub(super) fn by_kubernetes(old: &Value, new: &Value, cluster: &Cluster) -> Option<Refusal> {
    if old["status"]["phase"] != "Bound" {
        return Some(Refusal::invalid(
            "spec: Forbidden: spec is immutable after creation except resources.requests and \
             volumeAttributesClassName for bound claims",
        ));
    }
    let capacity = thousandths(old["status"]["capacity"]["storage"].as_str().unwrap_or_default());
    if !grows(old, new) && request(new) <= capacity {
        let why = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
        return Some(Refusal::invalid(why));
    }
    let class = new["spec"]["storageClassName"].as_str().unwrap_or_default();
    (grows(old, new) && !cluster.growing_classes.contains(class)).then(|| Refusal {
        code: 403,
        message: "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                  support resize"
            .to_owned(),
    })
}

/// Whether a release lets volumes of VMs that run grow: KubeVirt's gate `ExpandDisks`.
fn expands_disks(version: &str) -> bool {
    harvester_version::numbers(version).is_none_or(|numbers| numbers >= (1, 6))
}

/// Why a volume may not grow now: only one that a VM has which is not stopped is looked at.
pub(super) fn growth(new: &Value, cluster: &Cluster) -> Option<Refusal> {
    let pvc: PersistentVolumeClaim = serde_json::from_value(new.clone()).ok()?;
    let of = name(&new["metadata"]);
    let stopped =
        |vm: &Value| matches!(vm["status"]["printableStatus"].as_str(), Some("Stopped" | "Provisioning"));
    let vm = cluster.vms.iter().find(|vm| lists(vm, of) && !stopped(vm))?;
    let refuse = |why: String| Some(Refusal::invalid(format!("PVC_EXPAND_{why} (VM {})", vm_name(vm))));
    if !expands_disks(&cluster.version) {
        return refuse(format!("NOT_SUPPORTED: volume {of} is in use, and KubeVirt's ExpandDisks is off"));
    }
    let is_hot = volumes(&vm["spec"]["template"]["spec"])
        .iter()
        .any(|volume| claim(volume) == Some(of) && is_hot(volume));
    let is_block = new["spec"]["volumeMode"] == "Block";
    if is_hot && !is_block {
        return refuse(format!("HOTPLUG_FILESYSTEM: volume {of} is hotplugged and of mode Filesystem"));
    }
    let driver = cluster.driver(&pvc);
    if cluster.expand.get(driver) != Some(&true) {
        return refuse(format!("PROVISIONER: volume {of} is of {driver:?}, which is not validated for it"));
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn cluster(vm_status: &str, deleted: bool, version: &str) -> Cluster {
        let mut vm = json!({"metadata": {"name": "one", "namespace": "shop"}, "status": {"printableStatus": vm_status},
            "spec": {"template": {"spec": {"volumes": [
                {"name": "root", "persistentVolumeClaim": {"claimName": "root"}},
                {"name": "a", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": true}}]}}}});
        if deleted {
            vm["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z".into();
        }
        let driver = |name: &str| (name.to_owned(), name.to_owned());
        Cluster {
            vms: vec![vm],
            drivers: [driver("lh"), driver("lvm")].into(),
            growing_classes: ["lh".to_owned()].into(),
            version: version.to_owned(),
            expand: [("lh".to_owned(), true), ("lvm".to_owned(), false)].into(),
            ..Cluster::default()
        }
    }

    fn pvc(name: &str, class: &str, mode: &str, size: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "volumeMode": mode,
            "resources": {"requests": {"storage": size}}}})
    }

    #[rstest]
    #[case("a", false, true)]
    #[case::vm_goes("a", true, false)]
    #[case::nobodys("b", false, false)]
    fn what_a_vm_lists_is_not_deleted(#[case] name: &str, #[case] deleted: bool, #[case] refused: bool) {
        let refusal = deletion(&pvc(name, "lh", "Block", "1Gi"), &cluster("Running", deleted, ""));
        assert_eq!(refusal.map(|refusal| refusal.code), refused.then_some(409));
    }

    #[rstest]
    #[case::block("a", "lh", "Block", "Running", "", None)]
    #[case::hotplugged_filesystem(
        "a",
        "lh",
        "Filesystem",
        "Running",
        "",
        Some("PVC_EXPAND_HOTPLUG_FILESYSTEM")
    )]
    #[case::filesystem_from_the_start("root", "lh", "Filesystem", "Running", "", None)]
    #[case::vm_is_stopped("a", "lh", "Filesystem", "Stopped", "", None)]
    #[case::in_no_vm("b", "lvm", "Filesystem", "Running", "v1.5.0", None)]
    #[case::other_driver("a", "lvm", "Block", "Running", "", Some("PVC_EXPAND_PROVISIONER"))]
    #[case::unknown_class("a", "gold", "Block", "Running", "", Some("PVC_EXPAND_PROVISIONER"))]
    #[case::first_release("a", "lh", "Block", "Running", "v1.6.0", None)]
    #[case::old_release("a", "lh", "Block", "Running", "v1.5.1", Some("PVC_EXPAND_NOT_SUPPORTED"))]
    fn a_volume_in_use_grows_where_everything_under_it_can(
        #[case] name: &str,
        #[case] class: &str,
        #[case] mode: &str,
        #[case] vm_status: &str,
        #[case] version: &str,
        #[case] expected: Option<&str>,
    ) {
        let refusal = growth(&pvc(name, class, mode, "2Gi"), &cluster(vm_status, false, version));
        assert_eq!(refusal.is_some(), expected.is_some(), "{refusal:?}");
        if let (Some(refusal), Some(expected)) = (refusal, expected) {
            assert!(refusal.code == 422 && refusal.message.starts_with(expected), "{refusal:?}");
        }
    }

    #[rstest]
    #[case("1Gi", "2Gi", true, true)]
    #[case("1Gi", "1024Mi", false, false)]
    #[case("1Gi", "1073741825", true, true)]
    #[case("2Gi", "1Gi", true, false)]
    fn sizes_are_compared_and_not_their_texts(
        #[case] old: &str,
        #[case] new: &str,
        #[case] resized: bool,
        #[case] grown: bool,
    ) {
        let (old, new) = (pvc("a", "lh", "Block", old), pvc("a", "lh", "Block", new));
        assert_eq!((resizes(&old, &new), grows(&old, &new)), (resized, grown));
    }

    #[rstest]
    #[case::grows("Bound", "lh", "2Gi", None)]
    #[case::not_bound("Pending", "lh", "2Gi", Some(422))]
    #[case::class_does_not_grow("Bound", "lvm", "2Gi", Some(403))]
    #[case::shrinks("Bound", "lh", "512Mi", Some(422))]
    fn kubernetes_lets_bound_claims_grow_where_their_class_does(
        #[case] phase: &str,
        #[case] class: &str,
        #[case] size: &str,
        #[case] expected: Option<u16>,
    ) {
        let mut old = pvc("a", class, "Block", "1Gi");
        old["status"] = json!({"phase": phase, "capacity": {"storage": "1Gi"}});
        let refusal = by_kubernetes(&old, &pvc("a", class, "Block", size), &cluster("Running", false, ""));
        assert_eq!(refusal.map(|refusal| refusal.code), expected);
    }
}
