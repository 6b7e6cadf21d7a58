use rstest::rstest;

use super::*;

const CLAIM: &str = "pvc-1";

/// A machine with a root disk, and what `volumes` and `disks` add.
fn machine(volumes: &[Value], disks: &[Value]) -> VirtualMachine {
    let mut all = vec![json!({"name": "root", "dataVolume": {"name": "root"}})];
    all.extend_from_slice(volumes);
    let mut plugged = vec![json!({"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1})];
    plugged.extend_from_slice(disks);
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"volumes": all, "domain": {"cpu": {"cores": 2}, "devices": {"disks": plugged}}}});
    serde_json::from_value(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "node-1", "namespace": "shop", "resourceVersion": "7", "uid": "u"},
        "spec": {"runStrategy": "Always", "template": template}}))
    .unwrap()
}

fn volume() -> Value {
    json!({"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM, "hotpluggable": true}})
}

fn plugged() -> Value {
    json!({"name": CLAIM, "disk": {"bus": "scsi"}})
}

fn instance(phase: &str, volumes: &[Value], status: &[Value]) -> VirtualMachineInstance {
    serde_json::from_value(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "node-1", "namespace": "shop"}, "spec": {"volumes": volumes},
        "status": {"phase": phase, "volumeStatus": status}}))
    .unwrap()
}

fn status(phase: &str) -> Value {
    json!({"name": CLAIM, "phase": phase, "hotplugVolume": {}})
}

fn phase(phase: &str) -> Progress {
    Progress { phase: phase.to_owned(), ..Progress::default() }
}

fn with() -> Option<VirtualMachine> {
    Some(machine(&[volume()], &[plugged()]))
}

fn without() -> Option<VirtualMachine> {
    Some(machine(&[], &[]))
}

fn requested_in(kind: &str, vm: Option<VirtualMachine>) -> Option<VirtualMachine> {
    let mut vm = vm?;
    let request = json!([{kind: {"name": CLAIM}}]);
    vm.status.get_or_insert_default().rest.insert("volumeRequests".to_owned(), request);
    Some(vm)
}

#[rstest]
#[case::no_machine(None, None, Disk::Absent)]
#[case::stopped_without(without(), None, Disk::Absent)]
#[case::running_without(without(), Some(instance("Running", &[], &[])), Disk::Absent)]
#[case::stopped_with(with(), None, Disk::InTemplate)]
#[case::ended_with(with(), Some(instance("Succeeded", &[volume()], &[status("Ready")])), Disk::InTemplate)]
#[case::ended_without(without(), Some(instance("Failed", &[volume()], &[status("Ready")])), Disk::Absent)]
#[case::not_taken(with(), Some(instance("Running", &[], &[])), Disk::Adding(phase("")))]
#[case::taken(with(), Some(instance("Running", &[volume()], &[])), Disk::Adding(phase("")))]
#[case::bound(with(), Some(instance("Running", &[volume()], &[status("Bound")])), Disk::Adding(phase("Bound")))]
#[case::ready(with(), Some(instance("Running", &[volume()], &[status("Ready")])), Disk::Ready)]
#[case::leaving_while_it_was_added_again(
    with(), Some(instance("Running", &[], &[status("Ready")])), Disk::Adding(phase("Ready")))]
#[case::in_the_way(with(), Some(instance("Running", &[], &[status("Detaching")])), Disk::Adding(phase("Detaching")))]
#[case::not_let_go(without(), Some(instance("Running", &[volume()], &[status("Ready")])), Disk::Removing(phase("Ready")))]
#[case::spec_alone(without(), Some(instance("Running", &[volume()], &[])), Disk::Removing(phase("")))]
#[case::going(without(), Some(instance("Running", &[], &[status("Detaching")])), Disk::Removing(phase("Detaching")))]
#[case::machine_gone(None, Some(instance("Running", &[volume()], &[status("Ready")])), Disk::Removing(phase("Ready")))]
#[case::disk_alone(Some(machine(&[], &[plugged()])), None, Disk::InTemplate)]
#[case::volume_alone(Some(machine(&[volume()], &[])), None, Disk::InTemplate)]
#[case::to_be_added(
    requested_in("addVolumeOptions", without()), Some(instance("Running", &[], &[])), Disk::Adding(phase("")))]
#[case::to_be_removed(
    requested_in("removeVolumeOptions", with()), Some(instance("Running", &[volume()], &[status("Ready")])),
    Disk::Removing(phase("Ready")))]
fn a_volume_is_gone_when_template_instance_and_status_have_it_no_more(
    #[case] vm: Option<VirtualMachine>,
    #[case] vmi: Option<VirtualMachineInstance>,
    #[case] expected: Disk,
) {
    assert_eq!(disk(vm.as_ref(), vmi.as_ref(), CLAIM), expected);
    // what is kept in memory is enough to see the same
    let (mut vm, mut vmi) = (vm, vmi);
    vm.iter_mut().for_each(trim_machine);
    vmi.iter_mut().for_each(trim_instance);
    assert_eq!(disk(vm.as_ref(), vmi.as_ref(), CLAIM), expected);
}

#[rstest]
#[case::not_taken(with(), "Running", &[], &[], Some(Unfollowed::Added))]
#[case::taken(with(), "Running", &[volume()], &[], None)]
#[case::on_its_way_out_and_asked_for_again(with(), "Running", &[], &[status("Detaching")], None)]
#[case::in_it(with(), "Running", &[volume()], &[status("Ready")], None)]
#[case::it_does_not_run_yet(with(), "Scheduling", &[], &[], None)]
#[case::asked_for(requested_in("addVolumeOptions", with()), "Running", &[], &[], None)]
#[case::kept(without(), "Running", &[volume()], &[status("Ready")], Some(Unfollowed::Removed))]
#[case::on_its_way_out(without(), "Running", &[], &[status("Detaching")], None)]
#[case::asked_away(requested_in("removeVolumeOptions", without()), "Running", &[volume()], &[status("Ready")], None)]
#[case::nowhere(without(), "Running", &[], &[], None)]
fn template_and_instance_show_of_each_volume_whether_the_host_follows_the_template(
    #[case] vm: Option<VirtualMachine>,
    #[case] phase: &str,
    #[case] volumes: &[Value],
    #[case] told: &[Value],
    #[case] expected: Option<Unfollowed>,
) {
    let (mut vm, mut vmi) = (vm.unwrap(), instance(phase, volumes, told));
    assert_eq!(unfollowed(&vm, Some(&vmi), CLAIM), expected);
    assert_eq!(unfollowed(&vm, None, CLAIM), None);
    trim_machine(&mut vm);
    trim_instance(&mut vmi);
    assert_eq!(unfollowed(&vm, Some(&vmi), CLAIM), expected);
}

#[rstest]
#[case::runs("Running", Value::Null, false)]
#[case::starting("Scheduling", Value::Null, true)]
#[case::host_node_silent("Unknown", Value::Null, true)]
#[case::migrating("Running", json!({"startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": null}), true)]
#[case::handed_over("Running", json!({"migrationUid": "m1", "targetNode": "host-2"}), false)]
#[case::handed_over_anew("Running", json!({"startTimestamp": null, "completed": false}), false)]
#[case::migrated("Running", json!({"completed": true}), false)]
#[case::migration_failed("Running", json!({"startTimestamp": "2026-01-01T00:00:00Z", "failed": true}), false)]
#[case::migration_has_an_end(
    "Running",
    json!({"startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": "2026-01-01T00:00:00Z"}),
    false
)]
fn the_host_says_that_no_volume_gets_on(
    #[case] of_instance: &str,
    #[case] migration_state: Value,
    #[case] expected: bool,
) {
    let mut json =
        serde_json::to_value(instance(of_instance, &[volume()], &[status("AttachedToNode")])).unwrap();
    json["status"]["migrationState"] = migration_state;
    let mut vmi = serde_json::from_value(json).unwrap();
    trim_instance(&mut vmi);
    assert_eq!(is_blocked(Some(&vmi)), expected);
    assert_eq!(on_their_way(with().as_ref(), Some(&vmi)).is_empty(), expected, "nothing is plugged now");
}

#[rstest]
#[case::running("Running", true)]
#[case::host_node_silent("Unknown", false)]
#[case::at_its_end("Failed", false)]
fn only_an_instance_that_runs_migrates(#[case] phase: &str, #[case] expected: bool) {
    let mut vmi = instance(phase, &[], &[]);
    let state = json!({"startTimestamp": "2026-01-01T00:00:00Z"});
    vmi.status.as_mut().unwrap().migration_state = Some(serde_json::from_value(state).unwrap());
    assert_eq!(migrates(&vmi), expected);
}

#[rstest]
#[case::not_taken(with(), &[], &[], Some(Direction::In))]
#[case::in_its_pod(with(), &[volume()], &[status("AttachedToNode")], Some(Direction::In))]
#[case::mounted(with(), &[volume()], &[status("MountedToPod")], None)]
#[case::there(with(), &[volume()], &[status("Ready")], None)]
#[case::leaves(without(), &[volume()], &[status("Ready")], Some(Direction::Out))]
#[case::is_not_let_go(without(), &[], &[status("Detaching")], Some(Direction::Out))]
#[case::gone(without(), &[], &[], None)]
#[case::another_disk(without(), &[], &[json!({"name": "root", "phase": ""})], None)]
fn a_volume_is_on_its_way_until_it_is_mounted_and_until_it_is_let_go(
    #[case] vm: Option<VirtualMachine>,
    #[case] volumes: &[Value],
    #[case] statuses: &[Value],
    #[case] expected: Option<Direction>,
) {
    let vmi = instance("Running", volumes, statuses);
    assert_eq!(on_their_way(vm.as_ref(), Some(&vmi)).remove(CLAIM), expected);
}

#[rstest]
#[case::not_hotpluggable(json!({"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}), CLAIM)]
#[case::by_another_name(json!({"name": "data", "persistentVolumeClaim": {"claimName": CLAIM, "hotpluggable": true}}), "data")]
#[case::data_volume(json!({"name": "data", "dataVolume": {"name": CLAIM}}), "data")]
#[case::name_of_something_else(json!({"name": CLAIM, "cloudInitNoCloud": {"userData": ""}}), CLAIM)]
fn what_somebody_else_gave_a_machine_is_not_ours(#[case] volume: Value, #[case] name: &str) {
    let vm = machine(&[volume], &[]);
    assert_eq!(disk(Some(&vm), None, CLAIM), Disk::Fixed(name.to_owned()));
}

#[rstest]
#[case::both(machine(&[], &[]), 2)]
#[case::volume(machine(&[], &[plugged()]), 1)]
#[case::disk(machine(&[volume()], &[]), 1)]
fn only_the_missing_half_is_added(#[case] vm: VirtualMachine, #[case] added: usize) {
    let patch = add(&vm, CLAIM).unwrap();
    let after = apply(&vm, &patch);
    assert_eq!(patch.as_array().unwrap().len(), 1 + added);
    assert_eq!(after, machine(&[volume()], &[plugged()]));
    assert_eq!(add(&after, CLAIM), None);
}

// docs/contract/csi-driver.md#detach-patch
#[test]
fn a_removal_changes_no_other_volume_and_no_field_that_this_program_does_not_know() {
    let other =
        json!({"name": "pvc-2", "persistentVolumeClaim": {"claimName": "pvc-2", "hotpluggable": true}});
    let new = json!({"name": "pvc-2", "disk": {"bus": "scsi"}, "fieldOfTomorrow": {"a": [1]}});
    let vm = machine(&[volume(), other.clone()], &[new.clone(), plugged()]);
    let mut trimmed = vm.clone();
    trim_machine(&mut trimmed);
    let patch = remove(&trimmed, CLAIM).unwrap();
    assert_eq!(apply(&vm, &patch), machine(&[other], &[new]));
    assert_eq!(remove(&machine(&[], &[]), CLAIM), None);
    let paths: Vec<_> = patch.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    let (volume, disk) = ("/spec/template/spec/volumes/1", "/spec/template/spec/domain/devices/disks/2");
    assert_eq!(paths, ["/metadata/resourceVersion", volume, volume, disk, disk]);
}

#[test]
fn a_machine_without_any_disk_gets_its_first() {
    let mut vm = machine(&[], &[]);
    vm.spec.rest = json!({"template": {"spec": {"domain": {}}}}).as_object().unwrap().clone();
    let after = apply(&vm, &add(&vm, CLAIM).unwrap());
    assert_eq!(disk(Some(&after), None, CLAIM), Disk::InTemplate);
    assert_eq!(count(&after), (1, 1));
}

#[test]
fn several_disks_come_by_one_patch_and_those_that_are_there_are_left_out() {
    let names = ["pvc-2", CLAIM, "pvc-3"].map(str::to_owned);
    let empty = json!({"template": {"spec": {"domain": {}}}}).as_object().unwrap().clone();
    for (vm, expected) in [(machine(&[], &[]), (4, 3)), (machine(&[volume()], &[plugged()]), (4, 3))] {
        let mut bare = vm.clone();
        bare.spec.rest.clone_from(&empty);
        for (vm, expected) in [(vm, expected), (bare, (3, 3))] {
            let after = apply(&vm, &add_all(&vm, &names).unwrap());
            assert_eq!(count(&after), expected);
            assert_eq!(add_all(&after, &names), None);
        }
    }
}

#[test]
fn a_fence_changes_nothing_that_runs() {
    let vm = machine(&[], &[]);
    let after = apply(&vm, &fence(&vm, "driver.harvesterhci.io/x", "1"));
    assert_eq!(after.spec, vm.spec);
    assert_eq!(after.metadata.annotations.unwrap()["driver.harvesterhci.io/x"], "1");
}

#[test]
fn what_is_kept_of_a_machine_is_small() {
    let mut vm =
        machine(&[json!({"name": "cloud", "cloudInitNoCloud": {"userData": "x".repeat(9000)}})], &[]);
    trim_machine(&mut vm);
    assert!(serde_json::to_string(&vm).unwrap().len() < 600);
}

#[rstest]
#[case(json!({}))]
#[case(json!({"template": null}))]
#[case(json!({"template": {"spec": {"volumes": "x", "domain": []}}}))]
#[case(json!({"template": {"spec": {"volumes": [null, 1, {"name": {}}, {"persistentVolumeClaim": 3}]}}}))]
fn strange_machines_have_no_volume_and_panic_nowhere(#[case] rest: Value) {
    let mut vm = machine(&[], &[]);
    vm.spec.rest = rest.as_object().unwrap().clone();
    assert_eq!(disk(Some(&vm), None, CLAIM), Disk::Absent);
    assert!(add(&vm, CLAIM).is_some());
    assert_eq!(remove(&vm, CLAIM), None);
    trim_machine(&mut vm);
    assert_eq!(disk(Some(&vm), None, CLAIM), Disk::Absent);
}

/// The machine after a JSON patch, by the rules of RFC 6902 that the patches here use.
fn apply(vm: &VirtualMachine, patch: &Value) -> VirtualMachine {
    let mut json = serde_json::to_value(vm).unwrap();
    for operation in patch.as_array().unwrap() {
        let (path, value) = (operation["path"].as_str().unwrap(), operation["value"].clone());
        if operation["op"] == "test" {
            assert_eq!(json.pointer(path), Some(&value));
            continue;
        }
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/").replace("~0", "~");
        match (operation["op"].as_str().unwrap(), json.pointer_mut(parent).unwrap()) {
            ("add", Value::Array(list)) if last == "-" => list.push(value),
            ("add", Value::Object(map)) => drop(map.insert(last, value)),
            ("remove", Value::Array(list)) => drop(list.remove(last.parse().unwrap())),
            other => panic!("{other:?}"),
        }
    }
    serde_json::from_value(json).unwrap()
}

// the server stores the status with which a user makes an instance
#[test]
fn what_a_user_writes_into_the_status_of_an_instance_fills_no_memory() {
    let long = "x".repeat(1_000_000);
    let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({"metadata": {"name": "web-1"},
        "spec": {"networks": [{"name": long}]}, "status": {"phase": long, "nodeName": long, "more": long,
            "volumeStatus": vec![json!({"name": "disk", "target": long, "message": long,
                "hotplugVolume": {"attachPodName": "hp-1", "attachPodUID": long}}); 2_000],
            "migrationState": {"startTimestamp": "then", "migrationUid": long, "more": long}}}))
    .unwrap();
    let status = vmi.status.as_mut().unwrap();
    status.interfaces.resize(100_000, Default::default());
    status.conditions.resize(100_000, Default::default());
    trim_instance(&mut vmi);
    let status = vmi.status.as_ref().unwrap();
    assert_eq!([status.interfaces.capacity(), status.conditions.capacity()], [0; 2]);
    let size = serde_json::to_string(&vmi).unwrap().len();
    assert!(size < 100 * MOST_VOLUME_STATUSES, "{size}");
    assert_eq!(how_far(Some(&vmi), "disk").pod, "hp-1");
}
