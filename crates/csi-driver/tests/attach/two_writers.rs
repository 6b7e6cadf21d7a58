//! Two that work on one volume at once: another driver that ignores annotations, or two processes of this one.

use std::{sync::atomic::Ordering, time::Duration};

use csi_driver::attach::Options;
use kube::api::{Patch, PatchParams, PostParams};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::host::{Bed, Mishap, Process};

impl Bed {
    /// While a call has added the disk to `a`, and waits, a driver that ignores annotations adds it to `b`.
    async fn meanwhile_in_b(&self) {
        sleep(Duration::from_secs(1)).await;
        self.go_driver_adds("b").await;
        self.works.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl Process {
    /// From then on all is watched.
    async fn warm_up_by_five_writes(&self) {
        self.publish("b").await.unwrap();
        self.unpublish("b").await.unwrap();
        sleep(Duration::from_secs(3)).await;
    }
}

fn no_patches(user: &str) -> Rule {
    let mut rule = Rule::new(Answer::Code(422));
    rule.user = Some(user.to_owned());
    rule.verb = Some("patch".to_owned());
    rule.resource = Some("virtualmachines".to_owned());
    rule
}

// docs/contract/csi-driver.md#claims
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_disk_that_another_driver_brings_elsewhere_meanwhile_stays_there_alone(
    #[values(true, false)] is_warm: bool,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    if is_warm {
        driver.unpublish("a").await.unwrap();
        sleep(Duration::from_secs(3)).await;
    }
    bed.works.store(false, Ordering::Relaxed);
    let (answer, ()) = tokio::join!(driver.publish("a"), bed.meanwhile_in_b());
    for answer in [answer, driver.publish("a").await] {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code, Code::FailedPrecondition);
        assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
        assert_eq!(bed.with_volume().await, ["b"]);
        assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    }
    driver.unpublish("a").await.unwrap();
    driver.publish("b").await.unwrap();
    driver.unpublish("b").await.unwrap();
    driver.publish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
}

/// Cut after the annotation that says so, or after the disk has left.
#[rstest]
#[tokio::test(start_paused = true)]
async fn what_a_killed_call_was_to_take_back_the_next_call_takes_back(
    #[values(4, 5)] nth: usize,
    #[values((true, "a"), (true, "b"), (false, "a"), (false, "b"))] next: (bool, &str),
) {
    let bed = Bed::new().await;
    let killed = Process::with(&bed, "p1", Some((nth, Mishap::DiesBefore)), Options::new("p1"));
    bed.works.store(false, Ordering::Relaxed);
    let call = timeout(Duration::from_secs(30), killed.publish("a"));
    let (answer, ()) = tokio::join!(call, bed.meanwhile_in_b());
    assert!(answer.is_err(), "it was not killed");
    let has_left = nth == 5;
    assert_eq!(bed.with_volume().await.len(), if has_left { 1 } else { 2 });
    assert_eq!(bed.annotation().await.unwrap()["leaving"], "a");
    let driver = Process::new(&bed, "p2");
    match next {
        (true, "a") => {
            let refusal = driver.publish("a").await.unwrap_err();
            assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
            assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
        }
        (true, machine) => driver.publish(machine).await.unwrap(),
        (false, machine) => driver.unpublish(machine).await.unwrap(),
    }
    let annotation = bed.annotation().await;
    if next == (false, "b") {
        assert_eq!((bed.with_volume().await, annotation), (vec![], None));
    } else {
        let annotation = annotation.unwrap();
        assert_eq!((bed.with_volume().await, annotation["vm"].as_str()), (vec!["b".to_owned()], Some("b")));
        assert_eq!(annotation.get("leaving"), None);
    }
}

/// `p2` sees the volume in `b` for ten more seconds, and joins an attachment whose process died before it had added the disk.
#[tokio::test(start_paused = true)]
async fn an_old_watch_refuses_no_attachment() {
    let bed = Bed::new().await;
    let (other, driver) = (Process::new(&bed, "p1"), Process::new(&bed, "p2"));
    other.publish("b").await.unwrap();
    driver.unpublish("a").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    for resource in ["virtualmachines", "virtualmachineinstances"] {
        bed.server.faults().add(Rule {
            user: Some("p2".to_owned()),
            verb: Some("watch".to_owned()),
            resource: Some(resource.to_owned()),
            ..Rule::new(Answer::Delay(Duration::from_secs(10)))
        });
    }
    bed.server.faults().close_watches();
    sleep(Duration::from_secs(1)).await;
    other.unpublish("b").await.unwrap();
    bed.annotate(&bed.claim_text("a", None, "attach").await).await;
    sleep(Duration::from_secs(1)).await;
    bed.server.audit().clear();
    driver.publish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
    assert!(bed.requests("p2").contains(&"list virtualmachines".to_owned()), "it was no old watch");
}

/// Another process has written that it brings the volume into `b`: for a minute it is waited for.
#[tokio::test(start_paused = true)]
async fn changes_of_others_make_a_call_that_waits_ask_nothing() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.unpublish("a").await.unwrap();
    bed.volume("pvc-2").await;
    bed.machine("c", true).await;
    bed.annotate(&bed.claim_text("b", None, "attach").await).await;
    sleep(Duration::from_secs(3)).await;
    let others = async {
        // it has compared the watches with the host
        sleep(Duration::from_secs(7)).await;
        bed.server.audit().clear();
        for number in 0..50 {
            let label = Patch::Merge(json!({"metadata": {"labels": {"n": number.to_string()}}}));
            bed.claims().patch("pvc-2", &PatchParams::default(), &label).await.unwrap();
            bed.machines().patch("c", &PatchParams::default(), &label).await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        bed.requests("p1")
    };
    let (answer, requests) = tokio::join!(driver.publish("a"), others);
    answer.unwrap();
    assert_eq!(requests, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_taken_back_is_never_called_attached() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    bed.works.store(false, Ordering::Relaxed);
    let meanwhile = async {
        bed.meanwhile_in_b().await;
        bed.server.faults().add(no_patches("p1"));
    };
    let (answer, ()) = tokio::join!(driver.publish("a"), meanwhile);
    // the attacher must not take it for detached
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code, Code::Aborted, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/b on the host: it is in one machine"), "{refusal}");
    assert!(
        refusal.message.contains("could not be taken out of VirtualMachine shop/a on the host again"),
        "{refusal}"
    );
    for process in [&driver, &Process::new(&bed, "p2")] {
        assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
        let refusal = process.publish("a").await.unwrap_err();
        assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
    }
    bed.server.faults().clear();
    driver.unpublish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["b"]);
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
}

/// A process died that had taken the volume over from `b`, and the Go driver has brought it into `c` since.
#[rstest]
#[case::for_the_same_machine("a")]
#[case::for_a_machine_that_is_gone("gone")]
#[tokio::test(start_paused = true)]
async fn a_takeover_that_was_settled_looks_at_all_machines_before_it_adds(#[case] recorded: &str) {
    let bed = Bed::new().await;
    bed.machine("c", true).await;
    let uid = (recorded == "gone").then_some("uid-of-gone");
    let mut text: Value = serde_json::from_str(&bed.claim_text(recorded, uid, "attach").await).unwrap();
    text["from"] = "b".into();
    bed.annotate(&text.to_string()).await;
    bed.go_driver_adds("c").await;
    let refusal = Process::new(&bed, "p1").publish("a").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
    assert!(refusal.message.contains("VirtualMachine shop/c"), "{refusal}");
    assert_eq!(bed.most.load(Ordering::Relaxed), 1, "machines that had it at once");
}

/// A process died when it had added the disk: nobody knows whether a Pod uses it.
#[tokio::test(start_paused = true)]
async fn a_disk_that_this_call_did_not_add_stays_and_is_not_called_attached_either() {
    let bed = Bed::new().await;
    Process::new(&bed, "p1").publish("a").await.unwrap();
    bed.go_driver_adds("b").await;
    let driver = Process::new(&bed, "p2");
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await;
        let refusal = driver.publish("a").await.unwrap_err();
        assert_eq!(refusal.code, Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message.contains("VirtualMachine shop/b"), "{refusal}");
        assert_eq!(bed.with_volume().await, ["a", "b"]);
    }
}

/// A volume of which nobody wrote whether it is a disk, while the host does not say whether it is exported.
#[rstest]
#[case::of_the_call_that_failed(false)]
#[case::of_a_process_whose_write_may_be_on_its_way(true)]
#[tokio::test(start_paused = true)]
async fn an_attachment_that_may_not_begin_removes_no_annotation_but_the_first(#[case] is_of_another: bool) {
    use harvester_api::annotations::CSI_ATTACH;

    let bed = Bed::new().await;
    let annotations = if is_of_another {
        json!({CSI_ATTACH: bed.claim_text("a", None, "attach").await})
    } else {
        json!({})
    };
    let claim = json!({"metadata": {"name": "pvc-2", "annotations": annotations}, "spec": {"volumeMode": "Filesystem",
        "volumeName": "pv-pvc-2", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    bed.claims().create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Bound"}}));
    bed.claims().patch_status("pvc-2", &PatchParams::default(), &status).await.unwrap();
    let driver = Process::new(&bed, "p1");
    bed.server.faults().add(Rule {
        user: Some("p1".to_owned()),
        verb: Some("get".to_owned()),
        resource: Some("networkfilesystems".to_owned()),
        ..Rule::new(Answer::Code(500))
    });
    let refusal = driver.publish_volume("pvc-2", "a").await.unwrap_err();
    assert!(refusal.message.contains("read NetworkFilesystem"), "{refusal}");
    let claim = bed.claims().get("pvc-2").await.unwrap();
    let is_annotated = claim.metadata.annotations.is_some_and(|all| all.contains_key(CSI_ATTACH));
    assert_eq!(is_annotated, is_of_another);
    bed.server.faults().clear();
    driver.publish_volume("pvc-2", "a").await.unwrap();
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn of_two_detachments_at_once_both_are_true_and_one_removes_the_annotation(
    #[values(0, 1, 2, 5, 100)] later: u64,
    #[values(true, false)] is_in_one_process: bool,
    #[values(true, false)] is_slow: bool,
) {
    let bed = Bed::new().await;
    let (first, second) = (Process::new(&bed, "p1"), Process::new(&bed, "p2"));
    first.publish("a").await.unwrap();
    bed.works.store(!is_slow, Ordering::Relaxed);
    let other = if is_in_one_process { &first } else { &second };
    let late = async {
        sleep(Duration::from_millis(later)).await;
        other.unpublish("a").await
    };
    let host = async {
        sleep(Duration::from_secs(5)).await;
        bed.works.store(true, Ordering::Relaxed);
        bed.wake();
    };
    let (one, two, ()) = tokio::join!(first.unpublish("a"), late, host);
    one.unwrap();
    two.unwrap();
    assert_eq!((bed.annotation().await, bed.with_volume().await), (None, vec![]));
    assert_eq!(bed.removals(), ["no machine has it"]);
}

#[tokio::test(start_paused = true)]
async fn a_detachment_that_was_late_with_its_last_write_takes_nothing_away_that_came_after() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    let late = Process::with(&bed, "p2", Some((3, Mishap::StopsFor(20))), Options::new("p2"));
    let meanwhile = async {
        sleep(Duration::from_secs(2)).await;
        driver.unpublish("a").await.unwrap();
        driver.publish("a").await.unwrap();
    };
    let (answer, ()) = tokio::join!(late.unpublish("a"), meanwhile);
    answer.unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
    assert_eq!(bed.annotation().await.unwrap()["op"], "attach");
}

/// One call never ends its annotation, so the other one waits; both callers go away.
#[tokio::test(start_paused = true)]
async fn a_call_that_ended_before_the_write_is_in_nobodys_write() {
    let bed = Bed::new().await;
    for name in ["pvc-2", "pvc-3"] {
        bed.volume(name).await;
    }
    let driver = Process::with(&bed, "p1", Some((7, Mishap::DiesBefore)), Options::new("p1"));
    driver.warm_up_by_five_writes().await;
    let both = Box::pin(async { tokio::join!(driver.publish("a"), driver.publish_volume("pvc-2", "a")) });
    assert!(timeout(Duration::from_millis(500), both).await.is_err());
    let claims = bed.claims().list(&Default::default()).await.unwrap().items;
    let is_annotated = |claim: &&k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        let annotations = claim.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(harvester_api::annotations::CSI_ATTACH))
    };
    assert_eq!(claims.iter().filter(is_annotated).count(), 1, "one was about to be added");
    driver.publish_volume("pvc-3", "a").await.unwrap();
    let vm = bed.machines().get("a").await.unwrap();
    assert_eq!(csi_driver::attach::hotplug::count(&vm), (2, 1));
}

/// A call that was cut, and its repetition; another one keeps them waiting for one another.
#[tokio::test(start_paused = true)]
async fn two_calls_for_one_volume_add_it_once() {
    let bed = Bed::new().await;
    bed.volume("pvc-2").await;
    let driver = Process::with(&bed, "p1", Some((7, Mishap::StopsFor(20))), Options::new("p1"));
    driver.warm_up_by_five_writes().await;
    let again = async {
        sleep(Duration::from_millis(300)).await;
        driver.publish("a").await
    };
    let (one, slow, again) = tokio::join!(driver.publish("a"), driver.publish_volume("pvc-2", "a"), again);
    one.unwrap();
    slow.unwrap();
    again.unwrap();
    let vm = bed.machines().get("a").await.unwrap();
    assert_eq!(csi_driver::attach::hotplug::count(&vm), (3, 2));
}
