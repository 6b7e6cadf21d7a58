use std::sync::Arc;

use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations::CSI_ATTACH};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const FRESH: Duration = Duration::from_secs(1);

/// A claim, machine `a`, and its instance.
#[derive(Clone)]
struct Case {
    claim: Value,
    vm: Value,
    vmi: Value,
    usage: Option<Usage>,
    is_fresh: bool,
    is_alone: bool,
    unchanged_for: Duration,
    most: Option<usize>,
    answers: Answers,
}

fn case() -> Case {
    let answers = Answers {
        owner: Some(Ok(())),
        may_be_used: Some(true),
        order: Some(Order::Now),
        there: There::NotAsked,
        elsewhere: Elsewhere::In(vec![]),
    };
    Case {
        claim: json!({"metadata": {"name": "pvc-1", "resourceVersion": "1"}, "spec": {"volumeMode": "Block"}}),
        vm: json!({"metadata": {"name": "a", "uid": "uid-a"},
            "spec": {"template": {"spec": {"volumes": [], "domain": {"devices": {"disks": []}}}}}}),
        vmi: json!({"metadata": {"name": "a"}, "spec": {"volumes": []}, "status": {"phase": "Running"}}),
        usage: None,
        is_fresh: true,
        is_alone: false,
        unchanged_for: FRESH,
        most: None,
        answers,
    }
}

impl Case {
    fn step(self) -> Step {
        fn read<T: serde::de::DeserializeOwned>(value: Value) -> Option<Arc<T>> {
            (!value.is_null()).then(|| Arc::new(serde_json::from_value(value).unwrap()))
        }
        let seen = Seen {
            claim: read::<PersistentVolumeClaim>(self.claim),
            vm: read::<VirtualMachine>(self.vm),
            vmi: read::<VirtualMachineInstance>(self.vmi),
            is_fresh: self.is_fresh,
        };
        let facts = Facts {
            volume: "pvc-1",
            machine: "a",
            usage: self.usage.as_ref(),
            seen: &seen,
            unchanged_for: self.unchanged_for,
            by_subresources: false,
            most: self.most,
            is_alone: self.is_alone,
        };
        decide(&facts, &self.answers)
    }

    fn stale(self) -> Self {
        Self { is_fresh: false, ..self }
    }

    fn deleted(mut self, what: fn(&mut Self) -> &mut Value) -> Self {
        what(&mut self)["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self
    }

    /// The annotation says this machine.
    fn owned(mut self, vm: &str, operation: &str) -> Self {
        let text =
            json!({"vm": vm, "vmUid": format!("uid-{vm}"), "op": operation, "holder": "pod"}).to_string();
        self.claim["metadata"]["annotations"] = json!({CSI_ATTACH: text});
        self
    }

    /// And how it is used there.
    fn used(mut self, access: &str) -> Self {
        let text = json!({"vm": "a", "vmUid": "uid-a", "op": "attach", "holder": "pod",
            "usage": {"access": access, "readOnly": false}})
        .to_string();
        self.claim["metadata"]["annotations"] = json!({CSI_ATTACH: text});
        self
    }

    /// And a machine to which a write may be on its way.
    fn unsettled(mut self) -> Self {
        let text =
            json!({"vm": "a", "vmUid": "uid-a", "op": "attach", "holder": "pod", "from": "b"}).to_string();
        self.claim["metadata"]["annotations"] = json!({CSI_ATTACH: text});
        self
    }

    fn in_template(mut self) -> Self {
        let spec = &mut self.vm["spec"]["template"]["spec"];
        spec["volumes"] =
            json!([{"name": "pvc-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": true}}]);
        spec["domain"]["devices"]["disks"] = json!([{"name": "pvc-1", "disk": {"bus": "scsi"}}]);
        self
    }

    fn in_instance(mut self, phase: &str) -> Self {
        self.vmi["spec"]["volumes"] =
            json!([{"name": "pvc-1", "persistentVolumeClaim": {"claimName": "pvc-1"}}]);
        self.vmi["status"]["volumeStatus"] = json!([{"name": "pvc-1", "phase": phase, "hotplugVolume": {}}]);
        self
    }

    /// By subresources.
    fn removed(mut self) -> Self {
        self.vm["status"] = json!({"volumeRequests": [{"removeVolumeOptions": {"name": "pvc-1"}}]});
        self
    }

    fn migrates(mut self, state: Value) -> Self {
        self.vmi["status"]["migrationState"] = state;
        self
    }

    fn answered(mut self, change: impl FnOnce(&mut Answers)) -> Self {
        change(&mut self.answers);
        self
    }
}

fn usage(access: &str) -> Option<Usage> {
    Some(Usage { access: access.to_owned(), read_only: false })
}

fn write(settle: Option<&str>, from: Option<&str>, add: bool) -> Step {
    Step::Write(Write { settle: settle.map(str::to_owned), from: from.map(str::to_owned), add })
}

fn in_b() -> Why {
    Why::InUse(vec!["b".to_owned()])
}

#[rstest]
#[case::no_claim(Case { claim: Value::Null, ..case() }, Step::Refuse(Why::NoClaim))]
#[case::claim_is_deleted(case().deleted(|it| &mut it.claim), Step::Refuse(Why::ClaimIsDeleted))]
#[case::of_another_cluster(
    case().answered(|it| it.owner = Some(Err(Refusal::aborted("blue's")))),
    Step::Refuse(Why::Owner(Refusal::aborted("blue's")))
)]
#[case::no_machine(Case { vm: Value::Null, ..case() }, Step::Refuse(Why::NoMachine))]
#[case::machine_is_deleted(case().deleted(|it| &mut it.vm), Step::Refuse(Why::MachineIsDeleted))]
#[case::full(Case { most: Some(0), ..case() }, Step::Refuse(Why::Full(0, 0)))]
#[case::in_another(
    case().owned("b", "attach").answered(|it| it.there = There::Volume),
    Step::Refuse(in_b())
)]
#[case::of_the_go_driver_in_another(
    case().answered(|it| it.elsewhere = Elsewhere::In(vec!["b".to_owned()])),
    Step::Refuse(in_b())
)]
#[case::for_another_use(
    Case { usage: usage("block"), ..case().used("mount").in_template() },
    Step::Refuse(Why::OtherUse(usage("mount").unwrap()))
)]
#[case::ready(case().owned("a", "attach").in_template().in_instance("Ready"), Step::Done)]
#[case::at_the_next_start(Case { vmi: Value::Null, ..case().owned("a", "attach").in_template() }, Step::Done)]
fn what_a_watch_says_is_no_answer_before_it_is_read_afresh(#[case] case: Case, #[case] expected: Step) {
    assert_eq!(case.clone().step(), expected);
    assert_eq!(case.stale().step(), Step::ReadAfresh);
}

/// In the order in which they are asked.
#[rstest]
#[case::owner(case().answered(|it| *it = Answers::default()), Question::Owner)]
#[case::use_(case().answered(|it| it.may_be_used = None), Question::Use)]
#[case::order(case().answered(|it| it.order = None), Question::Order)]
#[case::order_of_one_that_is_detached(case().owned("a", "detach").answered(|it| it.order = None), Question::Order)]
#[case::there(case().owned("b", "attach"), Question::There)]
#[case::watched(case().owned("a", "attach").answered(|it| it.elsewhere = Elsewhere::NotAsked), Question::Watched)]
#[case::listed(case().answered(|it| it.elsewhere = Elsewhere::NotAsked), Question::Listed)]
#[case::listed_after_a_watch(
    case().owned("a", "attach").answered(|it| it.elsewhere = Elsewhere::Watched(vec!["b".to_owned()])),
    Question::Listed
)]
fn a_question_is_asked_when_all_before_it_let_the_attachment_pass(
    #[case] case: Case,
    #[case] expected: Question,
) {
    assert_eq!(case.clone().step(), Step::Ask(expected));
    assert_eq!(case.stale().step(), Step::Ask(expected));
}

#[rstest]
#[case::there_already(case().owned("a", "attach").in_template().in_instance("Ready"))]
#[case::on_its_way(case().owned("a", "attach").in_template())]
fn what_is_there_is_asked_neither_for_its_use_nor_for_its_order(#[case] case: Case) {
    let case =
        case.answered(|it| (it.may_be_used, it.order, it.elsewhere) = (None, None, Elsewhere::NotAsked));
    assert!(matches!(case.step(), Step::Done | Step::WaitReady));
}

#[rstest]
#[case::not_bound(case().answered(|it| it.may_be_used = Some(false)), For::Binding)]
#[case::after_another(
    case().answered(|it| it.order = Some(Order::After("bad".to_owned()))),
    For::Other("bad".to_owned())
)]
#[case::migration(case().migrates(begun()), For::Migration)]
#[case::migration_of_one_that_was_joined(
    case().owned("a", "attach").migrates(begun()),
    For::Migration
)]
#[case::leaves_here(
    case().owned("a", "attach").in_template().in_instance("Ready").removed(),
    For::Removal(Progress { phase: "Ready".to_owned(), ..Progress::default() })
)]
#[case::leaves_another(
    case().owned("b", "detach").answered(|it| it.there = There::Volume),
    For::Leaves("b".to_owned())
)]
#[case::another_process(
    case().owned("b", "attach").answered(|it| it.there = There::NoVolume),
    For::Process(Some("b".to_owned()), STALE_AFTER - FRESH)
)]
fn an_attachment_waits_for_somebody_with_a_name(#[case] case: Case, #[case] expected: For) {
    assert_eq!(case.clone().step(), Step::Wait(expected.clone()));
    assert_eq!(case.stale().step(), Step::Wait(expected));
}

#[rstest]
#[case::nobody_has_it(case(), write(None, None, true))]
#[case::joined(case().owned("a", "attach"), write(None, None, true))]
#[case::detached_here(case().owned("a", "detach").answered(|it| it.there = There::NoVolume), write(None, None, true))]
#[case::detached_elsewhere(
    case().owned("b", "detach").answered(|it| it.there = There::NoVolume),
    write(None, Some("b"), false)
)]
#[case::of_a_machine_that_is_gone(
    case().owned("b", "attach").answered(|it| it.there = There::NoMachine),
    write(None, None, true)
)]
#[case::left_behind(
    Case { unchanged_for: STALE_AFTER, ..case().owned("b", "attach").answered(|it| it.there = There::NoVolume) },
    write(None, Some("b"), false)
)]
#[case::to_be_settled(case().unsettled(), write(Some("b"), None, false))]
#[case::its_use_is_not_known(
    Case { usage: usage("mount"), ..case().owned("a", "attach").in_template() },
    write(None, None, false)
)]
#[case::of_the_go_driver_and_there(case().in_template().in_instance("Ready"), write(None, None, false))]
fn the_annotation_is_written_before_the_machine_and_settled_before_a_disk_is_added(
    #[case] case: Case,
    #[case] expected: Step,
) {
    assert_eq!(case.clone().step(), expected);
    assert_eq!(case.stale().step(), expected);
}

/// The state of a live migration that is under way.
fn begun() -> Value {
    json!({"startTimestamp": "2026-01-01T00:00:00Z"})
}

/// What is written into no template is written all the same, and a refusal is no matter of the migration.
#[rstest]
#[case::settled(case().unsettled(), write(Some("b"), None, false))]
#[case::on_its_way(case().owned("a", "attach").in_template(), Step::WaitReady)]
#[case::ready(case().owned("a", "attach").in_template().in_instance("Ready"), Step::Done)]
#[case::in_another(case().owned("b", "attach").answered(|it| it.there = There::Volume), Step::Refuse(in_b()))]
fn a_migration_keeps_only_the_template_as_it_is(#[case] case: Case, #[case] expected: Step) {
    assert_eq!(case.migrates(begun()).step(), expected);
}

#[rstest]
#[case::completed(json!({"completed": true}))]
#[case::failed(json!({"startTimestamp": "2026-01-01T00:00:00Z", "failed": true}))]
#[case::ended(json!({"startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": "2026-01-01T00:00:00Z"}))]
#[case::never_begun(json!({"migrationUid": "gone", "targetNode": "host-2"}))]
fn a_migration_that_is_not_under_way_keeps_no_disk_out(#[case] state: Value) {
    assert_eq!(case().migrates(state).step(), write(None, None, true));
}

#[test]
fn a_doubtful_disk_comes_while_nobody_else_writes_the_machine() {
    let doubtful = case().answered(|it| it.order = Some(Order::Alone));
    assert_eq!(doubtful.clone().step(), Step::Alone);
    assert_eq!(Case { is_alone: true, ..doubtful }.step(), write(None, None, true));
}

#[test]
fn a_disk_that_is_on_its_way_is_waited_for() {
    assert_eq!(case().owned("a", "attach").in_template().step(), Step::WaitReady);
    assert_eq!(case().owned("a", "attach").in_template().in_instance("Bound").step(), Step::WaitReady);
}

#[rstest]
#[case::empty((0, 0), None, 256)]
#[case::limited((3, 2), Some(8), 6)]
#[case::full_of_others((256, 0), Some(8), 0)]
#[case::over((300, 20), Some(8), 0)]
fn a_machine_takes_as_many_as_kubevirt_and_the_flag_allow(
    #[case] count: (usize, usize),
    #[case] most: Option<usize>,
    #[case] expected: usize,
) {
    assert_eq!(room(count, most), expected);
}
