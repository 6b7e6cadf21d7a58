use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::{Answer, Rule};
use tokio::time::{Instant, sleep};

use super::host::{Bed, Process, VOLUME};

/// A host and a guest, with an attacher that is called through `rpc`.
async fn bed() -> Arc<Bed> {
    let bed = Arc::new(Bed::new().await);
    bed.stopped_machine().await;
    bed.guest().await;
    let driver = Arc::new(Process::new(&bed, "rpc"));
    bed.start_attacher(&driver);
    bed
}

async fn rest(bed: &Bed) {
    let before = bed.most.load(Ordering::Relaxed);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(bed.most.load(Ordering::Relaxed), before.max(1));
}

const PLACES: [&str; 5] = ["", "a", "b", "c", "a, going"];
const ANNOTATIONS: [&str; 8] =
    ["", "a attach", "a detach", "b attach", "b detach", "c attach", "a former", "nonsense"];

// docs/contract/csi-driver.md#no-healing
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_pod_gets_its_volume_whatever_is_stale_and_no_two_machines_have_it(
    #[values(true, false)] is_attached: bool,
    #[values(0, 1, 2, 3, 4)] place: usize,
    #[values(0, 1, 2, 3, 4, 5, 6, 7)] annotation: usize,
) {
    let bed = bed().await;
    let place = PLACES[place];
    if let Some(machine) = place.chars().next() {
        bed.go_driver_adds(&machine.to_string()).await;
        sleep(Duration::from_secs(1)).await;
    }
    if place.ends_with("going") {
        // a detachment died after its first write of the machine, and virt-controller is at work on it
        bed.go_driver_removes("a").await;
    }
    match ANNOTATIONS[annotation].split_once(' ') {
        Some((machine, "former")) => {
            bed.annotate(&bed.claim_text(machine, Some("uid-former"), "attach").await).await;
        }
        Some((machine, operation)) => bed.annotate(&bed.claim_text(machine, None, operation).await).await,
        None if ANNOTATIONS[annotation].is_empty() => {}
        None => bed.annotate("nonsense").await,
    }
    bed.wants("a", is_attached).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 120).await;
    rest(&bed).await;
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
    assert_eq!(bed.with_volume().await, ["a"]);
}

#[rstest]
#[case::vanished(true, "")]
#[case::orphan(false, "b")]
#[case::late_attacher(false, "a")]
#[tokio::test(start_paused = true)]
async fn what_nobody_stands_in_the_way_of_is_healed_within_five_seconds(
    #[case] is_attached: bool,
    #[case] place: &str,
) {
    let bed = bed().await;
    if !place.is_empty() {
        bed.go_driver_adds(place).await;
    }
    bed.wants("a", is_attached).await;
    sleep(Duration::from_millis(500)).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 5).await;
}

/// Up to Harvester 1.7 the role lets nobody patch machines, and an instance takes nothing from the machine's template.
// docs/contract/csi-driver.md#ways
#[rstest]
#[case::vanished(true, "")]
#[case::orphan(false, "b")]
#[tokio::test(start_paused = true)]
async fn on_a_host_where_nobody_may_patch_machines_a_volume_is_healed_by_subresources(
    #[case] is_attached: bool,
    #[case] place: &str,
) {
    let bed = Arc::new(Bed::old().await);
    bed.stopped_machine().await;
    bed.guest().await;
    let driver = Arc::new(Process::new(&bed, "rpc"));
    bed.start_attacher(&driver);
    bed.may_patch.store(false, Ordering::Relaxed);
    if !place.is_empty() {
        driver.publish(place).await.unwrap();
        assert_eq!(bed.in_instance(place).await, [VOLUME]);
    }
    bed.wants("a", is_attached).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 120).await;
    rest(&bed).await;
    assert_eq!((bed.in_instance("a").await, bed.in_instance("b").await), (vec![VOLUME.to_owned()], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pod_when_the_former_attachment_is_stuck_in_its_deletion() {
    let bed = bed().await;
    bed.go_driver_adds("b").await;
    bed.wants("b", true).await;
    sleep(Duration::from_secs(1)).await;
    bed.no_longer_wants("b").await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 20).await;
    sleep(Duration::from_secs(20)).await;
    assert!(bed.attachments().get_opt("va-b").await.unwrap().is_none());
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attachment_whose_volume_is_gone_is_let_go_without_the_attachers_pause() {
    let bed = bed().await;
    bed.wants("b", true).await;
    sleep(Duration::from_millis(300)).await;
    // the attacher's first look has failed
    let mut rule = Rule::new(Answer::Code(500));
    rule.user = Some("rpc".to_owned());
    bed.server.faults().add(rule);
    bed.no_longer_wants("b").await;
    sleep(Duration::from_secs(1)).await;
    bed.server.faults().clear();
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(20)).await;
    assert!(bed.attachments().get_opt("va-b").await.unwrap().is_none());
}

/// Its call was killed, and the attacher pauses.
#[tokio::test(start_paused = true)]
async fn a_disk_that_was_to_give_way_to_another_driver_leaves_within_seconds() {
    let bed = bed().await;
    for machine in ["a", "b"] {
        bed.go_driver_adds(machine).await;
    }
    bed.wants("a", false).await;
    bed.wants("b", true).await;
    let mut text: serde_json::Value =
        serde_json::from_str(&bed.claim_text("b", None, "attach").await).unwrap();
    text["leaving"] = "a".into();
    bed.annotate(&text.to_string()).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.with_volume().await, ["b"]);
    assert_eq!(bed.annotation().await.unwrap().get("leaving"), None);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_healed_while_twenty_others_hang() {
    let bed = bed().await;
    bed.many_hang(20).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(20)).await;
    bed.wants("a", true).await;
    bed.healed("a", 5).await;
}

/// Each of them waits for the host's answer to a request.
#[tokio::test(start_paused = true)]
async fn an_attacher_is_woken_while_sixteen_volumes_hang() {
    let bed = bed().await;
    bed.many_hang(20).await;
    bed.wants("b", true).await;
    let no_answer = || Rule {
        user: Some("healer".to_owned()),
        verb: Some("patch".to_owned()),
        ..Rule::new(Answer::Delay(Duration::from_secs(1_000)))
    };
    bed.server.faults().add(no_answer());
    bed.go_driver_adds("b").await;
    sleep(Duration::from_secs(1)).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(10)).await;
    // the volume leaves, and the attacher's look after that fails
    bed.server.faults().add(Rule { user: Some("rpc".to_owned()), ..Rule::new(Answer::Code(500)) });
    bed.go_driver_removes("b").await;
    bed.no_longer_wants("b").await;
    sleep(Duration::from_secs(1)).await;
    bed.server.faults().clear();
    bed.server.faults().add(no_answer());
    sleep(Duration::from_secs(5)).await;
    assert!(bed.attachments().get_opt("va-b").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn of_two_machines_the_one_without_an_attachment_loses_the_volume() {
    let bed = bed().await;
    bed.go_driver_adds("a").await;
    bed.go_driver_adds("b").await;
    bed.wants("a", true).await;
    sleep(Duration::from_secs(1)).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 10).await;
}

#[tokio::test(start_paused = true)]
async fn two_machines_that_both_have_an_attachment_keep_the_volume_and_both_are_told() {
    let bed = bed().await;
    for machine in ["a", "b"] {
        bed.go_driver_adds(machine).await;
        bed.wants(machine, true).await;
    }
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(11)).await;
    let said = bed.said().await;
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said.iter().all(|(_, reason, _, message)| reason == "VolumeInTwoMachines"
        && message.contains("shop/a")
        && message.contains("shop/b")));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(bed.with_volume().await, ["a", "b"]);
    assert_eq!(bed.said().await, said);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_attachment_has_stays_there_and_the_second_is_told() {
    let bed = bed().await;
    bed.wants("b", false).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("b", 20).await;
    bed.wants("a", false).await;
    sleep(Duration::from_secs(12)).await;
    let said = bed.said().await;
    assert!(
        said.iter().any(|(kind, reason, _, message)| kind == "VolumeAttachment"
            && reason == "VolumeNotAttached"
            && message.contains("va-b")
            && message.contains("shop/b")),
        "{said:?}"
    );
    rest(&bed).await;
    assert_eq!((bed.with_volume().await, bed.said().await), (vec!["b".to_owned()], said));
}

#[rstest]
#[case::no_node(None)]
#[case::a_node(Some("node-b"))]
#[tokio::test(start_paused = true)]
async fn a_machine_that_is_no_node_of_this_cluster_keeps_the_volume(#[case] node: Option<&str>) {
    let bed = bed().await;
    if node.is_none() {
        bed.nodes().delete("node-b", &DeleteParams::default()).await.unwrap();
    }
    bed.go_driver_adds("b").await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    if node.is_some() {
        return bed.healed("a", 10).await;
    }
    sleep(Duration::from_secs(12)).await;
    let said = bed.said().await;
    assert!(
        said.iter()
            .any(|it| it.0 == "PersistentVolumeClaim"
                && it.3.contains("which no CSINode of this cluster names")),
        "{said:?}"
    );
    assert_eq!(bed.with_volume().await, ["b"]);
}

/// The VolumeAttachment of a Pod that still runs was removed by force.
#[rstest]
#[case::until_the_pod_has_ended(json!({"status": {"volumesInUse": []}}), Some("status"))]
#[case::until_somebody_vouches_for_the_node(
    json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}}), None)]
#[tokio::test(start_paused = true)]
async fn a_volume_that_kubelet_has_mounted_stays_where_it_is(
    #[case] end: serde_json::Value,
    #[case] subresource: Option<&str>,
) {
    let bed = bed().await;
    let nodes: Api<Node> = Api::all(bed.admin.clone());
    let mounted = format!("kubernetes.io/csi/driver.harvesterhci.io^{VOLUME}");
    let node = json!({"metadata": {"name": "node-b"}, "status": {"volumesInUse": [mounted]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node.clone()).unwrap()).await.unwrap();
    nodes.patch_status("node-b", &PatchParams::default(), &Patch::Merge(node)).await.unwrap();
    bed.go_driver_adds("b").await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(bed.with_volume().await, ["b"]);
    let said = bed.said().await;
    let is_told = |kind: &str| {
        let mut of_kind = said.iter().filter(|it| it.0 == kind);
        of_kind.any(|it| it.1 == "VolumeNotDetached" && it.3.contains("kubelet of Node node-b"))
    };
    assert!(is_told("PersistentVolumeClaim") && is_told("VolumeAttachment"), "{said:?}");
    match subresource {
        Some(_) => nodes.patch_status("node-b", &PatchParams::default(), &Patch::Merge(end)).await.unwrap(),
        None => nodes.patch("node-b", &PatchParams::default(), &Patch::Merge(end)).await.unwrap(),
    };
    bed.healed("a", 80).await;
}

/// The registrar takes the driver out of the CSINode when the Pod of the driver is replaced.
#[rstest]
#[case::of_the_cluster("prod", "node-b", false)]
#[case::of_the_cluster_by_its_name("prod", "b", true)]
#[case::of_another("test", "b", false)]
#[case::of_nobody("kubernetes", "b", false)]
#[tokio::test(start_paused = true)]
async fn a_node_whose_driver_restarts_is_a_node_still(
    #[case] label: &str,
    #[case] node: &str,
    #[case] is_healed: bool,
) {
    let bed = bed().await;
    let own = if label == "kubernetes" { label } else { "prod" };
    for (machine, label) in [("a", own), ("b", label)] {
        let labels = json!({"metadata": {"labels": {harvester_api::labels::GUEST_CLUSTER: label}}});
        bed.machines().patch(machine, &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    }
    let nodes: Api<Node> = Api::all(bed.admin.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": node}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let csi_node = Patch::Merge(json!({"spec": {"drivers": []}}));
    bed.nodes().patch("node-b", &PatchParams::default(), &csi_node).await.unwrap();
    bed.go_driver_adds("b").await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    if is_healed {
        return bed.healed("a", 10).await;
    }
    sleep(Duration::from_secs(20)).await;
    let said = bed.said().await;
    let is_ours = said.iter().any(|it| it.3.contains("nothing says which Node VirtualMachine b is"));
    let is_not = said.iter().any(|it| it.3.contains("which no CSINode of this cluster names"));
    assert_eq!((is_ours, is_not), (label == "prod", label != "prod"), "{said:?}");
    assert_eq!(bed.with_volume().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_made_again_gets_its_volume_again() {
    let bed = bed().await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    bed.healed("a", 20).await;
    bed.instances().delete("a", &DeleteParams::default()).await.unwrap();
    bed.machines().delete("a", &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(12)).await;
    let said = bed.said().await;
    assert!(said.iter().any(|it| it.3.contains("there is no VirtualMachine shop/a")), "{said:?}");
    bed.machine("a", true).await;
    bed.healed("a", 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_run_has_the_volume_in_its_template() {
    let bed = bed().await;
    bed.wants("c", false).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(15)).await;
    assert!(bed.is_attached("c").await);
    assert_eq!((bed.with_volume().await, bed.said().await), (vec!["c".to_owned()], vec![]));
}

// docs/contract/csi-driver.md#no-healing
#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_host_is_told_within_ten_seconds_and_once() {
    let bed = bed().await;
    let mut rule = Rule::new(Answer::Code(422));
    rule.user = Some("healer".to_owned());
    rule.verb = Some("patch".to_owned());
    rule.resource = Some("virtualmachines".to_owned());
    bed.server.faults().add(rule);
    bed.wants("a", true).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(10)).await;
    let said = bed.said().await;
    let kinds: Vec<_> = said.iter().map(|it| it.0.as_str()).collect();
    assert_eq!(kinds.len(), 2, "{said:?}");
    assert!(kinds.contains(&"PersistentVolumeClaim") && kinds.contains(&"VolumeAttachment"));
    assert!(said.iter().all(|it| it.1 == "VolumeNotAttached" && it.3.contains("VirtualMachine shop/a")));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(bed.said().await, said);
    let patches = bed.requests("healer").into_iter().filter(|request| request == "patch virtualmachines");
    assert!(patches.count() <= 15);
    bed.server.faults().clear();
    bed.healed("a", 70).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_late_is_told_with_what_it_waits_for() {
    let bed = bed().await;
    bed.wants("a", false).await;
    bed.works.store(false, Ordering::Relaxed);
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(12)).await;
    let said = bed.said().await;
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|it| it.3.contains("VirtualMachineInstance shop/a")), "{said:?}");
    sleep(Duration::from_secs(240)).await;
    assert_eq!(bed.said().await, said);
    bed.works.store(true, Ordering::Relaxed);
    bed.wake();
    bed.healed("a", 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_live_migration_is_named_as_what_is_waited_for() {
    let bed = bed().await;
    bed.wants("a", true).await;
    bed.go_driver_adds("a").await;
    sleep(Duration::from_secs(1)).await;
    bed.works.store(false, Ordering::Relaxed);
    let status = json!({"status": {"migrationState": {"startTimestamp": "2026-01-01T00:00:00Z"},
        "volumeStatus": [{"name": VOLUME, "phase": "MountedToPod", "hotplugVolume": {}}]}});
    bed.instances().patch("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(10)).await;
    let said = bed.said().await;
    assert!(said.len() == 2 && said.iter().all(|it| it.3.contains("live migration")), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn at_rest_the_host_is_asked_nothing() {
    let bed = bed().await;
    bed.wants("a", false).await;
    let reconciler = bed.start_reconciler("healer");
    bed.healed("a", 20).await;
    sleep(Duration::from_secs(5)).await;
    bed.server.audit().clear();
    sleep(Duration::from_secs(1_800)).await;
    let asked = |user: &str| -> Vec<String> {
        bed.requests(user).into_iter().filter(|request| !request.starts_with("watch")).collect()
    };
    assert_eq!((asked("healer"), asked("healer-guest")), (vec![], vec![]));
    reconciler.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn two_that_reconcile_at_once_do_no_harm() {
    let bed = bed().await;
    let _reconcilers = [bed.start_reconciler("healer"), bed.start_reconciler("other")];
    for (from, to) in [("c", "a"), ("a", "b"), ("b", "a"), ("a", "b")] {
        if bed.attachments().get_opt(&format!("va-{from}")).await.unwrap().is_some() {
            bed.no_longer_wants(from).await;
        }
        bed.wants(to, false).await;
        let begun = Instant::now();
        bed.healed(to, 120).await;
        assert!(begun.elapsed() < Duration::from_secs(120));
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(bed.most.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_nobody_calls_stands_for_no_election_and_a_leader_that_ends_has_a_successor() {
    let bed = bed().await;
    let (first, second) = (bed.start_candidate("first"), bed.start_candidate("second"));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.leader().await, None);
    first.call();
    bed.wants("a", true).await;
    bed.healed("a", 10).await;
    assert_eq!(bed.leader().await.as_deref(), Some("first"));
    second.call();
    first.tasks.end().await;
    bed.no_longer_wants("a").await;
    sleep(Duration::from_secs(1)).await;
    bed.wants("b", true).await;
    bed.healed("b", 20).await;
    assert_eq!(bed.leader().await.as_deref(), Some("second"));
    // another process wrote the Lease
    bed.steal_the_lease().await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.leader().await.as_deref(), Some("second"));
}

// docs/contract/csi-driver.md#no-healing
#[tokio::test(start_paused = true)]
async fn a_volume_that_a_lost_host_node_does_not_give_back_is_told_of_with_that_node() {
    let bed = bed().await;
    bed.go_driver_adds("b").await;
    bed.wants("b", true).await;
    sleep(Duration::from_secs(1)).await;
    bed.works.store(false, Ordering::Relaxed);
    let status = json!({"status": {"nodeName": "host-9"}});
    bed.instances().patch("b", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    bed.no_longer_wants("b").await;
    bed.wants("a", false).await;
    let _reconciler = bed.start_reconciler("healer");
    sleep(Duration::from_secs(20)).await;
    let said = bed.said().await;
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said.iter().all(|it| it.1 == "VolumeNotDetached" && it.3.contains("host node host-9")),
        "{said:?}"
    );
    assert_eq!(bed.phase("a").await, None);
}
