use std::{
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};

use csi_driver::{
    attach::{Options, worker::Workers},
    csi::ControllerPublishVolumeRequest,
    volume::name::HostName,
};
use futures::future::join_all;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::host::{Bed, Process, VOLUME, request};

#[tokio::test(start_paused = true)]
async fn a_disk_comes_into_a_machine_and_leaves_it_with_two_and_three_requests() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    assert_eq!(bed.with_volume().await, ["a"]);
    assert_eq!(bed.annotation().await.unwrap()["op"], "attach");
    sleep(Duration::from_secs(1)).await;

    bed.server.audit().clear();
    driver.unpublish("a").await.unwrap();
    let detach = ["patch persistentvolumeclaims", "patch virtualmachines", "patch persistentvolumeclaims"];
    assert_eq!(bed.requests("p1"), detach);
    assert_eq!(bed.annotation().await, None);
    assert!(bed.with_volume().await.is_empty());

    bed.server.audit().clear();
    driver.publish("b").await.unwrap();
    assert_eq!(bed.requests("p1"), ["patch persistentvolumeclaims", "patch virtualmachines"]);
    assert_eq!(bed.with_volume().await, ["b"]);
}

/// Lists of the watches among them, also of that which the next call needs.
#[rstest]
#[tokio::test(start_paused = true)]
async fn the_first_call_of_a_process_takes_six_requests(#[values(true, false)] is_labelled: bool) {
    let bed = Bed::new().await;
    if is_labelled {
        let label =
            Patch::Merge(json!({"metadata": {"labels": {harvester_api::labels::GUEST_CLUSTER: "prod"}}}));
        for machine in ["a", "b"] {
            bed.machines().patch(machine, &PatchParams::default(), &label).await.unwrap();
        }
        bed.claims().patch(VOLUME, &PatchParams::default(), &label).await.unwrap();
    }
    let driver = Process::new(&bed, "p1");
    bed.server.audit().clear();
    driver.publish("b").await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let mut cold = bed.requests("p1");
    cold.retain(|request| !request.starts_with("watch"));
    cold.sort();
    let expected = [
        "get persistentvolumeclaims",
        "list persistentvolumeclaims",
        "list virtualmachineinstances",
        "list virtualmachines",
        "patch persistentvolumeclaims",
        "patch virtualmachines",
    ];
    assert_eq!(cold, expected);
}

#[tokio::test(start_paused = true)]
async fn each_call_may_be_repeated() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    for _ in 0..3 {
        driver.publish("a").await.unwrap();
    }
    for _ in 0..3 {
        driver.unpublish("a").await.unwrap();
    }
    let vm = bed.machines().get("a").await.unwrap();
    assert_eq!(csi_driver::attach::hotplug::count(&vm), (1, 0));
}

// docs/contract/csi-driver.md#publish-codes
#[rstest]
#[case("", "a", Code::InvalidArgument)]
#[case(VOLUME, "", Code::InvalidArgument)]
#[case("pvc-2", "a", Code::NotFound)]
#[case("../secrets/x", "a", Code::NotFound)]
#[case(VOLUME, "c", Code::NotFound)]
#[case(VOLUME, "../a", Code::NotFound)]
#[tokio::test(start_paused = true)]
async fn a_call_for_what_is_not_there_is_answered_at_once(
    #[case] volume: &str,
    #[case] machine: &str,
    #[case] code: Code,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    assert_eq!(driver.publish_volume(volume, machine).await.unwrap_err().code, code);
    assert!(bed.requests("p1").iter().all(|request| !request.starts_with("patch")));
    if !volume.is_empty() {
        driver.unpublish("c").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_capability_is_invalid() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let mut request = request(VOLUME, "a");
    request.volume_capability = None;
    let within = Duration::from_secs(10);
    assert_eq!(driver.attacher.publish(&request, within).await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_another_machine_stays_there_and_the_machine_is_named() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    let refusal = driver.publish("b").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    assert!(refusal.message.contains("VirtualMachine shop/a"), "{refusal}");
}

// docs/contract/csi-driver.md#claims
#[tokio::test(start_paused = true)]
async fn a_volume_of_the_go_driver_is_found_where_it_is() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    bed.go_driver_adds("b").await;
    assert_eq!(driver.publish("a").await.unwrap_err().code, Code::FailedPrecondition);
    driver.publish("b").await.unwrap();
    assert_eq!(bed.annotation().await.unwrap()["vm"], "b");
    driver.unpublish("b").await.unwrap();
    driver.publish("a").await.unwrap();
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_there_for_reading_is_not_given_for_writing() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    let mut request = request(VOLUME, "a");
    request.readonly = true;
    let refusal = driver.attacher.publish(&request, Duration::from_secs(100)).await.unwrap_err();
    assert_eq!(refusal.code, Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn an_unpublish_without_a_node_means_all_machines() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    driver.unpublish("").await.unwrap();
    assert!(bed.with_volume().await.is_empty());
    assert_eq!(bed.annotation().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_unpublish_of_a_machine_that_is_gone_frees_the_volume() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    bed.machines().delete("a", &DeleteParams::default()).await.unwrap();
    bed.instances().delete("a", &DeleteParams::default()).await.unwrap();
    driver.unpublish("a").await.unwrap();
    assert_eq!(bed.annotation().await, None);
    driver.publish("b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_machine_is_said_to_be_full() {
    let bed = Bed::new().await;
    let mut options = Options::new("p1");
    options.max_volumes_per_node = Some(1);
    let driver = Process::with(&bed, "p1", None, options);
    bed.volume("pvc-2").await;
    driver.publish("a").await.unwrap();
    assert_eq!(driver.publish_volume("pvc-2", "a").await.unwrap_err().code, Code::ResourceExhausted);
    driver.publish("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_run_gets_the_volume_with_its_next_start() {
    let bed = Bed::new().await;
    bed.machine("c", false).await;
    let driver = Process::new(&bed, "p1");
    driver.publish("c").await.unwrap();
    assert_eq!(bed.with_volume().await, ["c"]);
    driver.unpublish("c").await.unwrap();
    assert!(bed.with_volume().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_hears_what_its_volume_waits_for_and_goes_on_with_the_next_call() {
    let bed = Bed::new().await;
    bed.works.store(false, Ordering::Relaxed);
    let driver = Process::new(&bed, "p1");
    // the sidecar's few workers have other volumes to serve
    let within = csi_driver::attach::SILENT_FOR + Duration::from_secs(1);
    let refusal = timeout(within, driver.publish("a")).await.unwrap().unwrap_err();
    assert_eq!(refusal.code, Code::Aborted);
    assert!(refusal.message.contains("VirtualMachineInstance shop/a"), "{refusal}");
    bed.works.store(true, Ordering::Relaxed);
    bed.wake();
    driver.publish("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_a_deadline_of_its_own_is_answered_by_then() {
    let bed = Bed::new().await;
    bed.works.store(false, Ordering::Relaxed);
    let driver = Process::new(&bed, "p1");
    let answer = driver.attacher.publish(&request(VOLUME, "a"), Duration::from_secs(4)).await;
    assert_eq!(answer.unwrap_err().code, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_answers_too_late_is_told_with_the_volume_that_it_was_asked_about() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let rule = Rule::new(Answer::Delay(Duration::from_secs(20)));
    bed.server.faults().add(Rule { user: Some("p1".to_owned()), ..rule });
    let answer = driver.attacher.publish(&request(VOLUME, "a"), Duration::from_secs(4)).await;
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code, Code::DeadlineExceeded, "{refusal}");
    assert!(refusal.message.contains("PersistentVolumeClaim shop/pvc-1 on the host"), "{refusal}");
}

/// A sidecar has ten workers, and waits 110 s for each answer.
#[rstest]
#[case::migration(json!({"status": {"migrationState": {"startTimestamp": "2026-01-01T00:00:00Z"}}}), "live migration")]
#[case::host_node(json!({"status": {"phase": "Unknown", "nodeName": "host-9"}}), "VirtualMachineInstance shop/a")]
#[tokio::test(start_paused = true)]
async fn a_volume_that_the_host_says_is_blocked_holds_no_caller_for_long(
    #[case] status: Value,
    #[case] why: &str,
    #[values(true, false)] is_publish: bool,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    if !is_publish {
        driver.publish("a").await.unwrap();
    }
    bed.works.store(false, Ordering::Relaxed);
    bed.instances().patch("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let within = csi_driver::attach::BLOCKED_FOR + Duration::from_secs(1);
    for _ in 0..3 {
        let call = async { if is_publish { driver.publish("a").await } else { driver.unpublish("a").await } };
        let refusal = timeout(within, call).await.unwrap().unwrap_err();
        assert_eq!(refusal.code, Code::Aborted, "{refusal}");
        assert!(is_publish == refusal.message.contains("is not in VirtualMachine shop/a"), "{refusal}");
        assert!(!is_publish || refusal.message.contains(why), "{refusal}");
    }
}

// docs/contract/csi-driver.md#conflicts
#[tokio::test(start_paused = true)]
async fn twenty_volumes_at_once_come_into_one_machine_without_an_error() {
    let bed = Bed::new().await;
    let drivers = [Process::new(&bed, "p1"), Process::new(&bed, "p2")];
    let names: Vec<_> = (10..30).map(|number| format!("pvc-{number}")).collect();
    for name in &names {
        bed.volume(name).await;
    }
    let calls = names.iter().enumerate().map(|(index, name)| drivers[index % 2].publish_volume(name, "a"));
    for answer in join_all(calls).await {
        answer.unwrap();
    }
    let vm = bed.machines().get("a").await.unwrap();
    assert_eq!(csi_driver::attach::hotplug::count(&vm), (21, 20));
}

#[tokio::test(start_paused = true)]
async fn volumes_that_come_at_once_come_by_one_write_of_their_machine() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let names: Vec<_> = (10..30).map(|number| format!("pvc-{number}")).collect();
    for name in &names {
        bed.volume(name).await;
    }
    driver.publish("b").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    bed.server.audit().clear();
    for answer in join_all(names.iter().map(|name| driver.publish_volume(name, "a"))).await {
        answer.unwrap();
    }
    let requests = bed.requests("p1");
    assert_eq!(requests.iter().filter(|request| *request == "patch virtualmachines").count(), 1);
    assert_eq!(requests.len(), 21, "{requests:?}");
}

/// The host's webhook refuses a write for one of several volumes, or fails.
#[rstest]
#[case(422, Code::FailedPrecondition)]
#[case(400, Code::FailedPrecondition)]
#[case(500, Code::Unavailable)]
#[tokio::test(start_paused = true)]
async fn a_volume_that_the_host_refuses_keeps_out_none_that_comes_with_it(
    #[case] status: u16,
    #[case] code: Code,
) {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    for name in ["pvc-2", "pvc-3"] {
        bed.volume(name).await;
    }
    driver.publish("b").await.unwrap();
    driver.unpublish("b").await.unwrap();
    bed.host_refuses(Some(("pvc-2", status)));
    let (one, two, three) = tokio::join!(
        driver.publish("a"),
        driver.publish_volume("pvc-2", "a"),
        driver.publish_volume("pvc-3", "a")
    );
    one.unwrap();
    three.unwrap();
    assert_eq!(two.unwrap_err().code, code);
    bed.host_refuses(None);
    driver.publish_volume("pvc-2", "a").await.unwrap();
}

/// Healing attaches for whoever wants it; the first caller says for what.
#[tokio::test(start_paused = true)]
async fn a_disk_that_was_attached_without_a_caller_is_for_the_use_of_the_first_one() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let worker = Workers::new(1).take().await;
    let (name, waits_for) = (HostName::from_handle(VOLUME).unwrap(), Mutex::default());
    let within = Duration::from_secs(100);
    driver.attacher.attach(&name, "a", &waits_for, &worker, within).await.unwrap();
    for _ in 0..2 {
        driver.publish("a").await.unwrap();
    }
    let read_only = ControllerPublishVolumeRequest { readonly: true, ..request(VOLUME, "a") };
    assert_eq!(driver.attacher.publish(&read_only, within).await.unwrap_err().code, Code::AlreadyExists);
    driver.attacher.attach(&name, "a", &waits_for, &worker, within).await.unwrap();
    driver.publish("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_host_is_passed_on_and_not_repeated() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let mut rule = Rule::new(Answer::Code(422));
    rule.user = Some("p1".to_owned());
    rule.verb = Some("patch".to_owned());
    rule.resource = Some("virtualmachines".to_owned());
    bed.server.faults().add(rule);
    let refusal = driver.publish("a").await.unwrap_err();
    assert_eq!(refusal.code, Code::FailedPrecondition);
    let patches = bed.requests("p1").into_iter().filter(|request| request == "patch virtualmachines");
    assert_eq!(patches.count(), 1);
    bed.server.faults().clear();
    driver.publish("a").await.unwrap();
}

/// An Immediate class whose claim nobody can bind: in a machine it would keep all later volumes out.
#[rstest]
#[case::failed(Answer::Code(500))]
#[case::gone(Answer::Code(404))]
#[tokio::test(start_paused = true)]
async fn a_class_that_could_not_be_read_lets_no_unbound_claim_into_a_machine(#[case] answer: Answer) {
    let bed = Bed::new().await;
    let pending = json!({"status": {"phase": "Pending"}});
    let claim = json!({"metadata": {"name": "pvc-2"}, "spec": {"volumeMode": "Block", "storageClassName": "full",
        "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = serde_json::from_value(claim).unwrap();
    bed.claims().create(&PostParams::default(), &claim).await.unwrap();
    bed.claims().patch_status("pvc-2", &PatchParams::default(), &Patch::Merge(pending)).await.unwrap();
    let mut rule = Rule::new(answer);
    rule.resource = Some("storageclasses".to_owned());
    bed.server.faults().add(rule);
    Process::new(&bed, "p1").publish_volume("pvc-2", "a").await.unwrap_err();
    assert_eq!(bed.requests("p1").iter().filter(|it| *it == "patch virtualmachines").count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_host_is_watched_while_there_are_calls_and_for_ten_minutes_more() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    assert!(!driver.attacher.watches().are_running());
    driver.publish("a").await.unwrap();
    sleep(Duration::from_secs(599)).await;
    assert!(driver.attacher.watches().are_running());
    sleep(Duration::from_secs(2)).await;
    assert!(!driver.attacher.watches().are_running());
    driver.unpublish("a").await.unwrap();
    driver.tasks.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_nobody_changes_for_a_minute_holds_up_nobody() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    let uid = bed.machines().get("b").await.unwrap().metadata.uid.unwrap();
    let text = json!({"vm": "b", "vmUid": uid, "op": "attach", "holder": "dead"}).to_string();
    let patch = json!({"metadata": {"annotations": {harvester_api::annotations::CSI_ATTACH: text}}});
    bed.claims().patch(VOLUME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let begun = tokio::time::Instant::now();
    driver.publish("a").await.unwrap();
    assert!(begun.elapsed() >= csi_driver::attach::ownership::STALE_AFTER);
    let fenced = bed.machines().get("b").await.unwrap().metadata.annotations.unwrap();
    assert!(fenced.contains_key(harvester_api::annotations::CSI_FENCE));
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_is_no_text_of_the_driver_is_said_to_end_by_itself_and_does() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    bed.go_driver_adds("a").await;
    let patch = json!({"metadata": {"annotations": {harvester_api::annotations::CSI_ATTACH: "x"}}});
    bed.claims().patch(VOLUME, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let (name, waits_for) = (HostName::from_handle(VOLUME).unwrap(), Mutex::default());
    let call = driver.attacher.detach(&name, "a", &waits_for, Duration::from_secs(30));
    let refusal = call.await.unwrap_err();
    let said = "it counts for nothing when nobody has written the claim for 60 s";
    assert!(refusal.message.contains(said), "{refusal}");
    driver.unpublish("a").await.unwrap();
    assert!(bed.with_volume().await.is_empty());
}

// docs/contract/csi-driver.md#exits
#[tokio::test(start_paused = true)]
async fn a_call_under_way_at_sigterm_is_answered_as_soon_as_the_host_has_done_its_work() {
    let bed = Bed::new().await;
    let driver = Process::new(&bed, "p1");
    driver.publish("a").await.unwrap();
    driver.unpublish("a").await.unwrap();
    bed.works.store(false, Ordering::Relaxed);
    let host = async {
        sleep(Duration::from_millis(500)).await;
        driver.tasks.stop.cancel();
        sleep(Duration::from_secs(1)).await;
        bed.works.store(true, Ordering::Relaxed);
        bed.wake();
        // the process gives its calls two seconds after SIGTERM
        sleep(Duration::from_millis(900)).await;
    };
    tokio::select! {
        biased;
        answer = driver.publish("a") => answer.unwrap(),
        () = host => panic!("the call waits for a watch that has ended"),
    }
}
