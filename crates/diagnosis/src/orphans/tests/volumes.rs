//! Which claims are volumes that nobody needs.

use harvester_api::annotations;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn in_volumes() -> Value {
    json!({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": VOLUME}}]})
}

#[rstest]
#[case::volume(facts::VOLUMES.to_owned(), json!({"spec": {"csi": {"volumeHandle": VOLUME}}}))]
#[case::snapshot(facts::snapshots("vms"), json!({"spec": {"source": {"persistentVolumeClaimName": VOLUME}}}))]
#[case::machine(read::machines("vms"), json!({"metadata": {"uid": "vm-1"}, "spec": {"template": {"spec": in_volumes()}}}))]
#[case::instance(read::instances("vms"), json!({"spec": in_volumes()}))]
#[case::pod(facts::pods("vms"), json!({"spec": in_volumes()}))]
#[case::export(facts::EXPORTS.to_owned(), json!({"metadata": {"name": VOLUME}, "spec": {"desiredState": "Enabled"}}))]
#[case::export_under_another_name(facts::EXPORTS.to_owned(), json!({"metadata": {"name": "x"},
    "spec": {"networkFSName": VOLUME, "desiredState": "Enabled"}}))]
#[case::export_of_an_interrupted_call(facts::EXPORTS.to_owned(), json!({"metadata": {"name": VOLUME,
    "annotations": {annotations::CSI_EXPORT_ON_FOR: "green"}}, "spec": {"desiredState": "Disabled"}}))]
#[case::template(read::machines("vms"), json!({"metadata": {"uid": "vm-1", "annotations":
    {annotations::CLAIM_TEMPLATES: format!(r#"[{{"metadata": {{"name": "{VOLUME}"}}}}]"#)}}}))]
fn a_volume_that_something_names_is_used(#[case] path: String, #[case] object: Value) {
    let facts = facts().claim(claim(VOLUME, Some("blue")));
    assert_eq!(found(&facts), one(VOLUME, Deletion::Typed));
    let is_guests = path == facts::VOLUMES;
    let facts = if is_guests { facts.guest(&path, &[object]) } else { facts.harvester(&path, &[object]) };
    assert_eq!(decide(&facts), nothing());
}

#[rstest]
#[case::in_a_machine("/metadata/annotations", json!({annotations::CSI_ATTACH: "{}"}))]
#[case::young("/metadata/creationTimestamp", json!("2026-11-23T11:30:00Z"))]
#[case::of_no_age("/metadata/creationTimestamp", json!(null))]
fn a_volume_that_may_be_on_its_way_is_kept(#[case] field: &str, #[case] value: Value) {
    let mut claim = claim(VOLUME, Some("blue"));
    let (_, name) = field.rsplit_once('/').unwrap();
    claim["metadata"][name] = value;
    let report = decide(&facts().claim(claim));
    assert_eq!((report.orphans.len(), report.kept.len()), (0, 1), "{report:#?}");
}

/// The annotation stays when a machine is deleted with its disk.
#[rstest]
#[case::of_a_machine_that_is_gone(json!({"vm": "gone", "vmUid": "vm-0", "op": "attach"}), true)]
#[case::of_its_name(json!({"vm": "n1", "vmUid": "vm-0", "op": "attach"}), false)]
#[case::of_its_uid(json!({"vm": "former", "vmUid": "vm-1", "op": "detach"}), false)]
#[case::of_an_instance(json!({"vm": "i1", "vmUid": "vm-0", "op": "attach"}), false)]
#[case::on_its_way_from_one(json!({"vm": "gone", "vmUid": "vm-0", "op": "attach", "from": "n1"}), false)]
#[case::leaving_one(json!({"vm": "gone", "vmUid": "vm-0", "op": "attach", "leaving": "n1"}), false)]
fn a_volume_is_in_a_machine_only_while_that_machine_is_there(#[case] attached: Value, #[case] is_left: bool) {
    let mut claim = claim(VOLUME, Some("blue"));
    claim["metadata"]["annotations"] = json!({annotations::CSI_ATTACH: attached.to_string()});
    let facts = facts().claim(claim).harvester(
        &read::instances("vms"),
        &[json!({"metadata": {"name": "i1", "uid": "vmi-1"}, "spec": {}})],
    );
    let report = decide(&facts);
    let expected = if is_left { (1, 0) } else { (0, 1) };
    assert_eq!((report.orphans.len(), report.kept.len()), expected, "{report:#?}");
}

/// The CSI driver labels the claims of volumes that their PersistentVolumes delete, and no others.
#[rstest]
#[case(Some("blue"), false)]
#[case(None, true)]
fn a_volume_without_a_label_is_said_to_be_retained_perhaps(#[case] of: Option<&str>, #[case] expected: bool) {
    let sentence = decide(&facts().claim(claim(VOLUME, of))).orphans.remove(0).sentence;
    assert_eq!(sentence.contains("retained"), expected, "{sentence}");
}

#[rstest]
#[case::ours(VOLUME, Some("blue"), 1)]
#[case::of_nobody_beside_us_alone(VOLUME, None, 1)]
#[case::a_disk_of_a_machine("root-disk", Some("blue"), 0)]
fn only_volumes_of_the_csi_driver_are_looked_at(
    #[case] name: &str,
    #[case] of: Option<&str>,
    #[case] count: usize,
) {
    assert_eq!(found(&facts().claim(claim(name, of))).len(), count);
}

#[test]
fn a_volume_of_nobody_beside_another_cluster_may_be_that_clusters() {
    for label in [Some("green"), None] {
        let facts = facts().claim(claim(VOLUME, None)).machine("m", "vm-7", label);
        assert_eq!((found(&facts), decide(&facts).kept.len()), (vec![], 1), "{label:?}");
    }
}

/// A cluster of another name may have taken over what one that is gone left, and its PersistentVolumes are not read.
#[test]
fn a_volume_of_a_cluster_that_is_gone_may_be_used_by_another_one_and_the_question_says_so() {
    let facts = facts().claim(claim(VOLUME, Some("red"))).machine("g1", "vm-9", Some("green"));
    let doubt = doubted(&facts, VOLUME).doubt.unwrap();
    assert_eq!(doubt, "VirtualMachine vms/g1 is of cluster green, which may use it");
}
