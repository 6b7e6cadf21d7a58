//! Claims of the namespace that are no volumes.
//!
//! Whoever writes PersistentVolumes or VolumeSnapshotContents in a guest cluster can write the name of any claim into one,
//! and disks of machines are claims of the same namespace. Their owners have them copied and grown by Harvester. A claim
//! that somebody made by hand for a PersistentVolume is served, but its deletion is left to whom it belongs to.

use harvester_api::annotations::{CSI_ATTACH, OWNED_BY};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{create, published::Machines};
use crate::{host::Host, refusal::Refusal, volume::record};

/// Whether this driver or the Go driver made the claim, or the host for one of them.
pub(super) fn is_volume(claim: &PersistentVolumeClaim) -> bool {
    record::is_volume(claim) || create::is_restored(claim)
}

/// # Errors
/// FAILED_PRECONDITION for the disk of a machine, which `doing`, as in "take a snapshot of", is not done to.
pub(super) async fn refuse(host: &Host, claim: &PersistentVolumeClaim, doing: &str) -> Result<(), Refusal> {
    if is_volume(claim) {
        return Ok(());
    }
    let Some(owner) = owner(claim, &Machines::list(host).await?) else { return Ok(()) };
    Err(Refusal::precondition(format!(
        "{} is a disk of {owner} and no volume of this driver, which does not {doing} it: do that in Harvester",
        host.claim_name(claim.name_any())
    )))
}

/// # Errors
/// FAILED_PRECONDITION for a claim that is no volume.
pub(super) fn refuse_deletion(host: &Host, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
    if is_volume(claim) {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "{} was not made by this driver: set the persistentVolumeReclaimPolicy of its PersistentVolume to Retain, and delete \
         the claim on the host if nobody needs it",
        host.claim_name(claim.name_any())
    )))
}

/// Whose disk a claim is that is no volume. Harvester writes the annotation on what is plugged in too, by this driver
/// for one.
fn owner(claim: &PersistentVolumeClaim, machines: &Machines) -> Option<String> {
    if let Some(machine) = machines.with_own_disk(&claim.name_any()) {
        return Some(format!("VirtualMachine {machine}"));
    }
    let owners = claim.annotations().get(OWNED_BY)?;
    let is_none = matches!(owners.as_str(), "" | "[]" | "null");
    (!is_none && !claim.annotations().contains_key(CSI_ATTACH))
        .then(|| format!("another machine by annotation {OWNED_BY}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{super::published::tests::machine, *};

    const OWNED: &str = r#"[{"schema":"kubevirt.io.virtualmachine","refs":["shop/b"]}]"#;

    #[rstest]
    #[case::made_by_hand("hand-made", json!({}), None)]
    #[case::brought_by_a_template("root", json!({}), Some("VirtualMachine a"))]
    #[case::attached_and_brought_by_a_template(
        "root", json!({OWNED_BY: OWNED, CSI_ATTACH: "{}"}), Some("VirtualMachine a")
    )]
    #[case::plugged_in_by_us("plugged", json!({OWNED_BY: OWNED, CSI_ATTACH: "{}"}), None)]
    #[case::plugged_in_by_others(
        "plugged", json!({OWNED_BY: OWNED}), Some("another machine by annotation harvesterhci.io/owned-by")
    )]
    #[case::given_up("hand-made", json!({OWNED_BY: "[]"}), None)]
    fn a_claim_is_a_machines_disk_by_its_template_or_by_harvesters_annotation(
        #[case] name: &str,
        #[case] annotations: Value,
        #[case] expected: Option<&str>,
    ) {
        let claim = json!({"metadata": {"name": name, "annotations": annotations}});
        let machines = Machines::of(&[machine(
            "a",
            &json!([{"persistentVolumeClaim": {"claimName": "root"}},
                {"persistentVolumeClaim": {"claimName": "plugged", "hotpluggable": true}}]),
        )]);
        assert_eq!(owner(&serde_json::from_value(claim).unwrap(), &machines).as_deref(), expected);
    }
}
