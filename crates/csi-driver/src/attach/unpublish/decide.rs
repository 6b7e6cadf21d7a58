//! What a detachment does next. Pure.
//!
//! What a watch says may be old: it is a reason to write, since a write names the version that it is for, and none to be
//! done or refused.

use std::time::Duration;

use super::Own;
use crate::attach::{
    hotplug::{self, Disk},
    ownership::{self, JOINED_FOR, Machine, Recorded, Removal, STALE_AFTER, There},
    session::Seen,
};

/// What is known of a volume that is to leave a machine.
pub(super) struct Facts<'a> {
    pub(super) volume: &'a str,
    pub(super) machine: &'a str,
    pub(super) seen: &'a Seen,
    /// For how long this process has seen the claim at its version.
    pub(super) unchanged_for: Duration,
    /// The annotation that this call wrote.
    pub(super) own: &'a Own,
}

/// What a detachment does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing of the volume is in the machine.
    Done,
    /// Read all of it afresh, then decide again.
    ReadAfresh,
    /// The machine has the volume by this name, and no driver added it.
    Fixed(String),
    /// Take the disk out; the annotation says it already, or is of another machine, or there is none to write.
    Unplug,
    /// Write the annotation, then take the disk out.
    Write(Machine),
    /// The machine was written after the annotation: the instance gives the disk up.
    Leaving,
    /// Remove the annotation.
    Forget,
    /// The annotation is no text of ours: it counts for nothing after so long.
    WaitUnknown(Duration),
    /// Another detachment is under way: it is joined after so long.
    WaitOther(Duration),
    /// The disk leaves when the live migration of the machine has ended.
    WaitMigration,
}

pub(super) fn decide(facts: &Facts<'_>) -> Step {
    match by_all(facts) {
        Step::Done | Step::Fixed(_) if !facts.seen.is_fresh => Step::ReadAfresh,
        Step::Unplug | Step::Write(_) if is_in_one_that_migrates(facts) => Step::WaitMigration,
        step => step,
    }
}

/// Whether the disk is to be taken out of the template of a machine that migrates.
fn is_in_one_that_migrates(facts: &Facts<'_>) -> bool {
    let (vm, vmi) = (facts.seen.vm.as_deref(), facts.seen.vmi.as_deref());
    let disk = hotplug::disk(vm, vmi, facts.volume);
    !matches!(disk, Disk::Absent | Disk::Removing(_)) && vmi.is_some_and(hotplug::migrates)
}

fn by_all(facts: &Facts<'_>) -> Step {
    let Facts { volume, machine, seen, unchanged_for, own } = *facts;
    let disk = hotplug::disk(seen.vm.as_deref(), seen.vmi.as_deref(), volume);
    if let Disk::Fixed(name) = disk {
        return Step::Fixed(name);
    }
    if is_overtaken(facts, &disk) {
        return Step::Done;
    }
    if seen.claim.is_none() {
        // nobody can attach a volume that is gone, so its disk needs no annotation to leave
        return match disk {
            Disk::Absent => Step::Done,
            _ if !seen.is_fresh => Step::ReadAfresh,
            _ => Step::Unplug,
        };
    }
    let there = match (&disk, &seen.vm) {
        (Disk::Absent, None) => There::NoMachine,
        (Disk::Absent, Some(_)) => There::NoVolume,
        _ => There::Volume,
    };
    let recorded = match seen.recorded() {
        Recorded::Unreadable if unchanged_for >= STALE_AFTER => Recorded::Nothing,
        recorded => recorded,
    };
    let former = match &recorded {
        Recorded::Ownership(ownership) => Some(ownership),
        _ => None,
    };
    // a machine that is gone is known by the annotation alone
    let is_gone = seen.vm.is_none();
    let uid = seen.vm.as_ref().and_then(|vm| vm.metadata.uid.clone());
    let uid = uid.or_else(|| former.filter(|it| it.vm == machine).map(|it| it.vm_uid.clone()));
    let this = Machine { name: machine.to_owned(), uid: uid.unwrap_or_default() };
    let is_ours = former.is_some_and(|ownership| ownership.is_for(&this));
    // what this process wrote counts for its own annotation alone
    let is_own = former.is_some_and(|ownership| Some(&ownership.holder) == own.holder.as_ref());
    let is_settled = own.is_settled && is_own;
    match ownership::detach(&this, &recorded, there) {
        Removal::Done => Step::Done,
        Removal::ReadMachine => Step::ReadAfresh,
        Removal::Wait => Step::WaitUnknown(STALE_AFTER.saturating_sub(unchanged_for)),
        // the annotation is another machine's
        Removal::Join if !is_ours => Step::Unplug,
        Removal::Join if disk == Disk::Absent && (is_settled || is_gone) => {
            // the watch of the instance may be late by a whole stay of the volume
            if !seen.is_fresh && (is_gone || !own.has_left) { Step::ReadAfresh } else { Step::Forget }
        }
        Removal::Forget if !seen.is_fresh => Step::ReadAfresh,
        Removal::Forget => Step::Forget,
        Removal::Join if is_settled && matches!(disk, Disk::Removing(_)) => Step::Leaving,
        Removal::Join if !is_own && unchanged_for < JOINED_FOR => {
            Step::WaitOther(JOINED_FOR.saturating_sub(unchanged_for))
        }
        Removal::Join | Removal::Annotate => Step::Write(this),
    }
}

/// Whether the annotation that was left behind is another one by now, or the volume is in its machine after all.
fn is_overtaken(facts: &Facts<'_>, disk: &Disk) -> bool {
    let Some(left_by) = &facts.own.left_by else { return false };
    match facts.seen.recorded() {
        Recorded::Ownership(it) if Some(&it.holder) == facts.own.holder.as_ref() => false,
        Recorded::Ownership(it) => it.holder != *left_by || *disk != Disk::Absent,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use harvester_api::annotations::CSI_ATTACH;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// A claim with an annotation, machine `a`, and its instance, which are running unless they are null.
    #[derive(Clone)]
    struct Case {
        annotation: Value,
        has_claim: bool,
        has_vm: bool,
        in_template: bool,
        in_instance: bool,
        unchanged_for: Duration,
        own: Own,
        /// Of the instance.
        migration_state: Value,
    }

    fn case(annotation: Value) -> Case {
        let own = Own::default();
        let (has_claim, has_vm, in_template, in_instance) = (true, true, false, false);
        let (unchanged_for, migration_state) = (JOINED_FOR, Value::Null);
        Case { annotation, has_claim, has_vm, in_template, in_instance, unchanged_for, own, migration_state }
    }

    fn says(vm: &str, operation: &str) -> Value {
        json!(json!({"vm": vm, "vmUid": format!("uid-{vm}"), "op": operation, "holder": "pod"}).to_string())
    }

    impl Case {
        fn has(self, in_template: bool, in_instance: bool) -> Self {
            Self { in_template, in_instance, ..self }
        }

        /// This call wrote the annotation, and the machine after it.
        fn settled(self, has_left: bool) -> Self {
            let holder = Some("pod".to_owned());
            Self { own: Own { holder, is_settled: true, has_left, left_by: None }, ..self }
        }

        fn step(&self, is_fresh: bool) -> Step {
            let annotations = match &self.annotation {
                Value::Null => json!({}),
                text => json!({CSI_ATTACH: text}),
            };
            let claim = json!({"metadata": {"name": "pvc-1", "annotations": annotations}});
            let volumes = json!([{"name": "pvc-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": true}}]);
            let (none, disks) = (json!([]), json!([{"name": "pvc-1", "disk": {"bus": "scsi"}}]));
            let of = |has: bool, some: &Value| if has { some.clone() } else { none.clone() };
            let template = json!({"spec": {"volumes": of(self.in_template, &volumes),
                "domain": {"devices": {"disks": of(self.in_template, &disks)}}}});
            let vm = json!({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {"template": template}});
            let vmi = json!({"metadata": {"name": "a"}, "spec": {"volumes": of(self.in_instance, &volumes)},
                "status": {"phase": "Running", "migrationState": self.migration_state}});
            fn read<T: serde::de::DeserializeOwned>(is_there: bool, value: Value) -> Option<Arc<T>> {
                is_there.then(|| Arc::new(serde_json::from_value(value).unwrap()))
            }
            let (claim, vm, vmi) =
                (read(self.has_claim, claim), read(self.has_vm, vm), read(self.has_vm, vmi));
            let seen = Seen { claim, vm, vmi, is_fresh };
            let facts = Facts {
                volume: "pvc-1",
                machine: "a",
                seen: &seen,
                unchanged_for: self.unchanged_for,
                own: &self.own,
            };
            decide(&facts)
        }
    }

    fn write() -> Step {
        Step::Write(Machine { name: "a".to_owned(), uid: "uid-a".to_owned() })
    }

    #[rstest]
    #[case::nowhere(case(Value::Null))]
    #[case::anothers(case(says("b", "attach")))]
    #[case::no_claim(Case { has_claim: false, ..case(Value::Null) })]
    fn a_detachment_is_done_when_a_fresh_look_finds_nothing(#[case] case: Case) {
        assert_eq!((case.step(true), case.step(false)), (Step::Done, Step::ReadAfresh));
    }

    #[rstest]
    #[case::attached(case(says("a", "attach")).has(true, true))]
    #[case::attached_and_not_there(case(says("a", "attach")))]
    #[case::of_the_go_driver(case(Value::Null).has(true, true))]
    #[case::of_a_detachment_that_died(case(says("a", "detach")).has(true, true))]
    #[case::strange_text_for_long(Case { unchanged_for: STALE_AFTER, ..case(json!("?")).has(true, true) })]
    fn the_annotation_is_written_before_the_disk_leaves(#[case] case: Case) {
        assert_eq!((case.step(true), case.step(false)), (write(), write()));
    }

    #[rstest]
    #[case::attached(case(says("a", "attach")).has(true, true), Step::WaitMigration)]
    #[case::of_the_go_driver(case(Value::Null).has(true, true), Step::WaitMigration)]
    #[case::anothers_annotation(case(says("b", "attach")).has(true, true), Step::WaitMigration)]
    #[case::not_there(case(says("a", "attach")), write())]
    #[case::leaves(case(says("a", "detach")).has(false, true).settled(false), Step::Leaving)]
    #[case::of_a_detachment_that_died(case(says("a", "detach")).has(false, true), write())]
    #[case::has_left(case(says("a", "detach")).settled(true), Step::Forget)]
    fn a_machine_that_migrates_keeps_its_disk_until_it_has_arrived(
        #[case] case: Case,
        #[case] expected: Step,
    ) {
        let in_state = |state: Value| Case { migration_state: state, ..case.clone() };
        let migrates = in_state(json!({"startTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!((migrates.step(true), migrates.step(false)), (expected.clone(), expected));
        let arrived = in_state(json!({"completed": true}));
        assert_eq!(arrived.step(true), case.step(true));
        let handed_over = in_state(json!({"targetNode": "host-2"}));
        assert_eq!(handed_over.step(true), case.step(true));
    }

    #[rstest]
    #[case::anothers_annotation(case(says("b", "attach")).has(true, true), Step::Unplug)]
    #[case::leaves(case(says("a", "detach")).has(false, true).settled(false), Step::Leaving)]
    #[case::has_left(case(says("a", "detach")).settled(true), Step::Forget)]
    #[case::strange_text(Case { unchanged_for: Duration::ZERO, ..case(json!("?")).has(true, true) }, Step::WaitUnknown(STALE_AFTER))]
    #[case::under_way_elsewhere(
        Case { unchanged_for: Duration::ZERO, ..case(says("a", "detach")).has(true, true) },
        Step::WaitOther(JOINED_FOR)
    )]
    fn what_a_watch_says_is_enough_for_a_write_and_a_wait(#[case] case: Case, #[case] expected: Step) {
        assert_eq!((case.step(true), case.step(false)), (expected.clone(), expected));
    }

    #[rstest]
    #[case::as_it_was_left(case(says("a", "attach")), "pod", write())]
    #[case::joined(case(says("a", "attach")), "former", Step::Done)]
    #[case::joined_and_added(case(says("a", "attach")).has(true, true), "former", Step::Done)]
    #[case::added_late(case(says("a", "attach")).has(true, false), "pod", Step::Done)]
    #[case::removed(case(Value::Null), "pod", Step::Done)]
    #[case::of_this_call_by_now(case(says("a", "detach")).settled(true), "former", Step::Forget)]
    fn what_was_left_behind_goes_and_no_disk_that_another_call_brings(
        #[case] case: Case,
        #[case] left_by: &str,
        #[case] expected: Step,
    ) {
        let own = Own { left_by: Some(left_by.to_owned()), ..case.own.clone() };
        assert_eq!(Case { own, ..case }.step(true), expected);
    }

    #[rstest]
    #[case::no_claim(Case { has_claim: false, ..case(Value::Null).has(true, true) }, Step::Unplug)]
    #[case::written_and_gone(case(says("a", "detach")).settled(false), Step::Forget)]
    #[case::machine_is_gone(Case { has_vm: false, ..case(says("a", "attach")) }, write())]
    #[case::detached_and_gone(Case { has_vm: false, ..case(says("a", "detach")) }, Step::Forget)]
    #[case::of_a_former_machine(
        case(json!(r#"{"vm":"a","vmUid":"uid-former","op":"attach","holder":"pod"}"#)),
        Step::Forget
    )]
    fn an_annotation_goes_after_a_fresh_look(#[case] case: Case, #[case] expected: Step) {
        let by_watch = if expected == write() { write() } else { Step::ReadAfresh };
        assert_eq!((case.step(true), case.step(false)), (expected, by_watch));
    }

    #[test]
    fn a_disk_of_the_machine_is_no_disk_of_ours() {
        let vm = json!({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {"template": {"spec": {
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "pvc-1"}}]}}}});
        let seen = |is_fresh| Seen {
            claim: None,
            vm: Some(Arc::new(serde_json::from_value(vm.clone()).unwrap())),
            vmi: None,
            is_fresh,
        };
        let step = |is_fresh| {
            let (seen, own) = (seen(is_fresh), Own::default());
            let facts =
                Facts { volume: "pvc-1", machine: "a", seen: &seen, unchanged_for: JOINED_FOR, own: &own };
            decide(&facts)
        };
        assert_eq!((step(true), step(false)), (Step::Fixed("data".to_owned()), Step::ReadAfresh));
    }
}
