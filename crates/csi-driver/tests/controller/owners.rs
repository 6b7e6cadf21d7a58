//! Volumes of other guest clusters in the namespace, and exports that nodes use.

use csi_driver::{
    csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest,
        ControllerPublishVolumeRequest, controller_server::Controller, volume_capability::access_mode::Mode,
    },
    node_id::OwnMachine,
};
use serde_json::json;
use sim_apiserver::faults::Answer;
use tonic::{Code, Request, Status};

use super::bench::{
    Bench, GIB, HARVESTER, NAMESPACE, SNAPSHOT, UID, files, from_snapshot, from_volume, volume, volume_for,
};

const LABEL: &str = "guestcluster.harvesterhci.io/name";

async fn machine(bench: &Bench, name: &str, cluster: &str) {
    let labels = if cluster.is_empty() { json!({}) } else { json!({LABEL: cluster}) };
    let json = json!({"metadata": {"name": name, "labels": labels}, "spec": {"template": {"spec": {}}}});
    bench.create("kubevirt.io/v1", "VirtualMachine", NAMESPACE, json).await;
}

/// A cluster `red` of one machine, whose driver is called, and a bound volume with the label of this cluster.
async fn red_with_a_volume_of(cluster: &str) -> Bench {
    let bench = Bench::in_machine("red-1").await;
    machine(&bench, "red-1", "red").await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    bench.patch("v1", "PersistentVolumeClaim", UID, json!({"metadata": {"labels": {LABEL: cluster}}})).await;
    bench
}

async fn publish(bench: &Bench) -> Result<(), Status> {
    let request = ControllerPublishVolumeRequest {
        volume_id: UID.to_owned(),
        node_id: "red-1".to_owned(),
        volume_capability: Some(files(Mode::SingleNodeWriter)),
        ..ControllerPublishVolumeRequest::default()
    };
    let mut request = Request::new(request);
    request.set_timeout(std::time::Duration::from_secs(30));
    bench.service.controller_publish_volume(request).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_another_cluster_of_the_namespace_is_refused_to_each_call() {
    let bench = red_with_a_volume_of("blue").await;
    machine(&bench, "blue-1", "blue").await;
    let capacity_range = Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 });
    let grow =
        ControllerExpandVolumeRequest { volume_id: UID.to_owned(), capacity_range, ..Default::default() };
    let get = ControllerGetVolumeRequest { volume_id: UID.to_owned() };
    let refusals = [
        bench.create_volume(volume(UID, GIB)).await.unwrap_err(),
        publish(&bench).await.unwrap_err(),
        bench.service.controller_expand_volume(Request::new(grow)).await.unwrap_err(),
        bench.service.controller_get_volume(Request::new(get)).await.unwrap_err(),
        bench.create_volume(from_volume(volume("copy", GIB), UID)).await.unwrap_err(),
        bench.snapshot("taken", UID, None).await.unwrap_err(),
        bench.delete_volume(UID).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal}");
        assert!(refusal.message().contains("is a volume of guest cluster blue"), "{refusal}");
    }
    let claim = bench.claim(UID).await;
    assert!(claim.metadata.deletion_timestamp.is_none());
    assert!(!claim.metadata.annotations.unwrap().contains_key("driver.harvesterhci.io/attach"));
}

// docs/contract/csi-driver.md#cluster-label
#[rstest::rstest]
#[case::not_asked(OwnMachine::default(), Code::Unavailable)]
#[case::several(OwnMachine::Several { names: vec!["red-1".to_owned(), "blue-1".to_owned()] }, Code::Unavailable)]
#[case::no_machine_of_the_host(OwnMachine::None { why: String::new() }, Code::Ok)]
#[case::ours(OwnMachine::Confirmed("blue-1".to_owned()), Code::Ok)]
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_named_cluster_waits_until_the_host_has_said_which_machine_is_ours(
    #[case] says: OwnMachine,
    #[case] expected: Code,
) {
    let bench = red_with_a_volume_of("blue").await.where_the_host_says(says);
    machine(&bench, "blue-1", "blue").await;
    let look = ControllerGetVolumeRequest { volume_id: UID.to_owned() };
    let answers = [
        bench.service.controller_get_volume(Request::new(look)).await.map(drop),
        publish(&bench).await,
        bench.delete_volume(UID).await,
    ];
    for answer in answers {
        match answer {
            // nobody plays KubeVirt, and then the volume is in a machine, and nobody says who uses it
            Err(refusal) if expected == Code::Ok => {
                let is_of_machine = refusal.message().contains("which machine this process runs in");
                assert!(!is_of_machine && refusal.code() != Code::PermissionDenied, "{refusal}");
            }
            Err(refusal) => {
                assert_eq!(refusal.code(), expected, "{refusal}");
                assert!(refusal.message().contains("which machine this process runs in"), "{refusal}");
            }
            Ok(()) => assert_eq!(expected, Code::Ok),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn machines_with_the_same_addresses_say_whose_a_volume_is_where_they_are_of_one_cluster() {
    for (of, expected) in [("red", None), ("blue", Some(Code::PermissionDenied))] {
        let names = vec!["red-1".to_owned(), "red-2".to_owned()];
        let bench = red_with_a_volume_of(of).await.where_the_host_says(OwnMachine::Several { names });
        machine(&bench, "red-2", "red").await;
        machine(&bench, "blue-1", "blue").await;
        let look = ControllerGetVolumeRequest { volume_id: UID.to_owned() };
        let answer = bench.service.controller_get_volume(Request::new(look)).await;
        assert_eq!(answer.err().map(|refusal| refusal.code()), expected, "a volume of {of}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_a_cluster_is_served_before_the_host_has_said_which_machine_is_ours() {
    let bench = Bench::new().await.where_the_host_says(OwnMachine::default());
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.delete_volume(UID).await.unwrap();
}

/// What changes or copies the claim of a handle.
async fn changes(bench: &Bench, handle: &str) -> Vec<Status> {
    let capacity_range = Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 });
    let grow =
        ControllerExpandVolumeRequest { volume_id: handle.to_owned(), capacity_range, ..Default::default() };
    vec![
        bench.create_volume(from_volume(volume("copy", GIB), handle)).await.unwrap_err(),
        bench.snapshot("taken", handle, None).await.unwrap_err(),
        bench.snapshot("taken", handle, Some("backup")).await.unwrap_err(),
        bench.service.controller_expand_volume(Request::new(grow)).await.unwrap_err(),
        bench.delete_volume(handle).await.unwrap_err(),
    ]
}

const OWNED: &str = r#"[{"schema":"kubevirt.io.virtualmachine","refs":["shop/plain"]}]"#;

#[rstest::rstest]
#[case::of_its_template(true, json!({}))]
#[case::of_harvesters_annotation(false, json!({"harvesterhci.io/owned-by": OWNED}))]
#[tokio::test(start_paused = true)]
async fn the_disk_of_a_machine_is_neither_copied_nor_changed_by_its_handle(
    #[case] is_in_template: bool,
    #[case] annotations: serde_json::Value,
) {
    const DISK: &str = "plain-disk-0-abcde";
    let bench = Bench::new().await;
    bench.pending(DISK, "longhorn", "VolumeSnapshot", "none").await;
    bench.bind(DISK, "1Gi").await;
    bench.patch("v1", "PersistentVolumeClaim", DISK, json!({"metadata": {"annotations": annotations}})).await;
    if is_in_template {
        bench.machine_with("plain", DISK).await;
    }
    bench.requests();
    for refusal in changes(&bench, DISK).await {
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(
            refusal.message().contains("PersistentVolumeClaim shop/plain-disk-0-abcde on the host"),
            "{refusal}"
        );
    }
    let writes: Vec<_> = bench
        .requests()
        .into_iter()
        .filter(|it| !["get", "list", "watch"].iter().any(|verb| it.starts_with(verb)))
        .collect();
    assert_eq!(writes, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_somebody_made_by_hand_is_copied_and_grown_and_its_deletion_is_left_to_them() {
    let bench = Bench::new().await;
    bench.pending("by-hand", "longhorn", "VolumeSnapshot", "none").await;
    bench.bind("by-hand", "1Gi").await;
    let capacity_range = Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 });
    let grow = ControllerExpandVolumeRequest {
        volume_id: "by-hand".to_owned(),
        capacity_range,
        ..Default::default()
    };
    bench.taken("s", "by-hand", None).await.unwrap();
    let (grown, ()) = tokio::join!(bench.service.controller_expand_volume(Request::new(grow)), async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        bench.bind("by-hand", "2Gi").await;
    });
    grown.unwrap();
    let refusal = bench.delete_volume("by-hand").await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains("Retain"), "{refusal}");
    assert!(bench.claim("by-hand").await.metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_clusters_volume_is_not_deleted_restored_or_told_for_ones_own() {
    let bench = Bench::with_a_snapshot().await.moved_into_machine("red-1");
    machine(&bench, "red-1", "red").await;
    bench.bind("source", "1Gi").await;
    bench.taken("b", "source", Some("backup")).await.unwrap();
    let label = |cluster: &str| json!({"metadata": {"labels": {LABEL: cluster}}});
    bench.patch("v1", "PersistentVolumeClaim", "source", label("blue")).await;
    machine(&bench, "blue-1", "blue").await;
    let refusals = [
        bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap_err(),
        bench.snapshot("s", "source", None).await.unwrap_err(),
        bench.snapshot("b", "source", Some("backup")).await.unwrap_err(),
        bench.delete_snapshot("s").await.unwrap_err(),
        bench.delete_snapshot("backup:shop/b").await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal}");
        assert!(refusal.message().contains("is a volume of guest cluster blue"), "{refusal}");
    }
    for (kind, version, name) in [("VolumeSnapshot", SNAPSHOT, "s"), ("VolumeRemoteBackup", HARVESTER, "b")] {
        assert!(bench.api(version, kind, NAMESPACE).get_opt(name).await.unwrap().is_some(), "{kind}");
    }
    bench.patch("v1", "PersistentVolumeClaim", "source", label("red")).await;
    bench.delete_snapshot("s").await.unwrap();
    bench.delete_snapshot("backup:shop/b").await.unwrap();
}

// backups are made for the day when the volume is gone
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_another_clusters_volume_stays_that_clusters_when_the_volume_is_gone() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    let label = json!({"metadata": {"labels": {LABEL: "blue"}}});
    bench.patch("v1", "PersistentVolumeClaim", "source", label).await;
    bench.taken("s", "source", None).await.unwrap();
    bench.taken("b", "source", Some("backup")).await.unwrap();
    let status = json!({"status": {"readyToUse": true, "restoreSize": "1Gi"}});
    bench.patch(SNAPSHOT, "VolumeSnapshot", "s", status).await;
    bench.claims().delete("source", &kube::api::DeleteParams::default()).await.unwrap();
    let bench = bench.moved_into_machine("red-1");
    machine(&bench, "red-1", "red").await;
    machine(&bench, "blue-1", "blue").await;
    let refusals = [
        bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap_err(),
        bench.snapshot("s", "source", None).await.unwrap_err(),
        bench.snapshot("b", "source", Some("backup")).await.unwrap_err(),
        bench.delete_snapshot("s").await.unwrap_err(),
        bench.delete_snapshot("backup:shop/b").await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.code(), Code::PermissionDenied, "{refusal}");
        assert!(refusal.message().contains("taken of a volume of guest cluster blue"), "{refusal}");
    }
    let machines = bench.api("kubevirt.io/v1", "VirtualMachine", NAMESPACE);
    machines.delete("blue-1", &kube::api::DeleteParams::default()).await.unwrap();
    bench.delete_snapshot("s").await.unwrap();
    bench.delete_snapshot("backup:shop/b").await.unwrap();
}

/// A volume with this annotation of ours, which is in no machine any more.
async fn left_behind(operation: &str) -> Bench {
    let bench = Bench::in_machine("red-1").await;
    machine(&bench, "red-1", "red").await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let vm = bench.api("kubevirt.io/v1", "VirtualMachine", NAMESPACE).get("red-1").await.unwrap();
    let text = json!({"vm": "red-1", "vmUid": vm.metadata.uid, "op": operation, "holder": "pod"}).to_string();
    let annotation = json!({"metadata": {"annotations": {"driver.harvesterhci.io/attach": text}}});
    bench.patch("v1", "PersistentVolumeClaim", UID, annotation).await;
    bench
}

// the Go driver writes no annotation, and leaves ours as it is
#[tokio::test(start_paused = true)]
async fn a_volume_that_the_go_driver_detached_is_deleted_though_our_annotation_is_left() {
    let bench = left_behind("attach").await;
    bench.delete_volume(UID).await.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

/// Up to Harvester 1.7 nobody makes a write to a machine fail that is on its way: it has a minute to arrive.
#[rstest::rstest]
#[case::attached("attach")]
#[case::half_detached("detach")]
#[tokio::test(start_paused = true)]
async fn one_call_deletes_a_volume_when_no_write_to_its_machine_can_be_on_its_way(#[case] operation: &str) {
    let bench = left_behind(operation).await.where_machines_are_not_patched();
    let (answer, ()) = tokio::join!(bench.delete_volume(UID), async {
        tokio::time::sleep(std::time::Duration::from_secs(50)).await;
        assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
    });
    answer.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

// the Go driver writes no annotation; somebody may have removed ours
#[rstest::rstest]
#[case::by_its_template(true)]
#[case::by_its_instance_alone(false)]
#[tokio::test(start_paused = true)]
async fn a_volume_without_an_annotation_is_not_deleted_while_a_machine_has_it(#[case] is_in_template: bool) {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let kind = if is_in_template { "VirtualMachine" } else { "VirtualMachineInstance" };
    if is_in_template {
        bench.machine_with("node-1", UID).await;
    } else {
        let volumes =
            json!([{"name": UID, "persistentVolumeClaim": {"claimName": UID, "hotpluggable": true}}]);
        let instance = json!({"metadata": {"name": "node-1"}, "spec": {"volumes": volumes},
            "status": {"phase": "Running", "volumeStatus": [{"name": UID, "phase": "Ready", "hotplugVolume": {}}]}});
        bench.create("kubevirt.io/v1", kind, NAMESPACE, instance).await;
    }
    let refused = bench.delete_volume(UID).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("VirtualMachine shop/node-1 on the host"), "{refused}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
    let gone = kube::api::DeleteParams::default();
    bench.api("kubevirt.io/v1", kind, NAMESPACE).delete("node-1", &gone).await.unwrap();
    bench.delete_volume(UID).await.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

/// Harvester's webhook keeps the claim that a machine's template lists.
#[tokio::test(start_paused = true)]
async fn a_volume_is_deleted_where_the_machines_may_not_be_listed() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    for resource in ["virtualmachines", "virtualmachineinstances"] {
        bench.fault("list", resource, None, Answer::Code(403));
    }
    bench.delete_volume(UID).await.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

/// A process that says meanwhile that the volume is its machine's would put a claim there that is gone.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_given_to_a_machine_while_it_is_deleted_stays() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let late = Answer::Delay(std::time::Duration::from_secs(10));
    bench.fault("delete", "persistentvolumeclaims", Some(1), late);
    let annotation = json!({"metadata": {"annotations": {"driver.harvesterhci.io/attach": "{}"}}});
    let (refused, ()) = tokio::join!(bench.delete_volume(UID), async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        bench.patch("v1", "PersistentVolumeClaim", UID, annotation).await;
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
    bench.delete_volume(UID).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_the_host_binds_while_it_is_deleted_goes_with_the_same_call() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    let late = Answer::Delay(std::time::Duration::from_secs(10));
    bench.fault("delete", "persistentvolumeclaims", Some(1), late);
    let (answer, ()) = tokio::join!(bench.delete_volume(UID), async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        bench.bind(UID, "1Gi").await;
    });
    answer.unwrap();
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

// docs/contract/csi-driver.md#cluster-label
#[rstest::rstest]
#[case::of_our_cluster("red", "red")]
#[case::of_a_cluster_without_machines("gone", "red")]
#[case::of_a_machine_without_a_label("blue", "")]
#[tokio::test(start_paused = true)]
async fn a_volume_that_no_other_cluster_of_the_namespace_has_is_served(
    #[case] of: &str,
    #[case] machine_of: &str,
) {
    let bench = Bench::in_machine("red-1").await;
    machine(&bench, "red-1", machine_of).await;
    machine(&bench, "blue-1", "blue").await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.patch("v1", "PersistentVolumeClaim", UID, json!({"metadata": {"labels": {LABEL: of}}})).await;
    bench.delete_volume(UID).await.unwrap();
}

#[rstest::rstest]
#[case::of_a_cluster_without_machines("red", 2)]
#[case::of_a_machine_without_a_label("", 1)]
#[tokio::test(start_paused = true)]
async fn whose_a_served_volume_is_is_asked_for_once_a_minute(
    #[case] machine_of: &str,
    #[case] requests: usize,
) {
    let bench = Bench::in_machine("red-1").await;
    machine(&bench, "red-1", machine_of).await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let label = json!({"metadata": {"labels": {LABEL: "gone"}}});
    bench.patch("v1", "PersistentVolumeClaim", UID, label).await;
    let look = async || {
        bench.requests();
        let get = ControllerGetVolumeRequest { volume_id: UID.to_owned() };
        let answer = bench.service.controller_get_volume(Request::new(get)).await;
        let of_machines =
            |request: &String| ["red-1", "virtualmachines"].iter().any(|it| request.ends_with(it));
        (answer.is_ok(), bench.requests().into_iter().filter(of_machines).count())
    };
    // the call asks for machines on its own account too
    let (is_served, first) = look().await;
    assert!(is_served);
    for _ in 0..10 {
        assert_eq!(look().await, (true, first - requests));
    }
    machine(&bench, "gone-1", "gone").await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let (is_served, _) = look().await;
    assert_eq!(is_served, machine_of.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_export_that_is_on_and_used_is_not_deleted_and_its_nodes_are_named() {
    let mut bench = Bench::new().await;
    bench.used_by(Ok(vec!["node-b".to_owned()]));
    let exported = volume_for(UID, GIB, Mode::MultiNodeMultiWriter);
    assert!(bench.create_volume(exported.clone()).await.is_err(), "its claim is not bound");
    bench.bind(UID, "1Gi").await;
    bench.create_volume(exported).await.unwrap();
    let export = bench.api("harvesterhci.io/v1beta1", "NetworkFilesystem", "harvester-system");
    let on = kube::api::Patch::Merge(json!({"spec": {"desiredState": "Enabled"}}));
    export.patch(&format!("pvc-of-{UID}"), &kube::api::PatchParams::default(), &on).await.unwrap();
    let refusal = bench.delete_volume(UID).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains("node-b"), "{refusal}");
    bench.used_by(Err("the guest is away".to_owned()));
    assert_eq!(bench.delete_volume(UID).await.unwrap_err().code(), Code::Unavailable);
    assert!(bench.claim(UID).await.metadata.deletion_timestamp.is_none());
    bench.used_by(Ok(vec![]));
    bench.delete_volume(UID).await.unwrap();
    assert_eq!(export.get_opt(&format!("pvc-of-{UID}")).await.unwrap(), None);
}

// a PersistentVolume may name the claim of another cluster, whose Pods this one does not see
#[tokio::test(start_paused = true)]
async fn an_export_that_another_cluster_has_on_is_not_deleted() {
    let bench = Bench::new().await;
    let exported = volume_for(UID, GIB, Mode::MultiNodeMultiWriter);
    assert!(bench.create_volume(exported.clone()).await.is_err(), "its claim is not bound");
    bench.bind(UID, "1Gi").await;
    bench.create_volume(exported).await.unwrap();
    let bench = bench.moved_where_nobody_uses_a_volume("red-1");
    machine(&bench, "red-1", "red").await;
    machine(&bench, "blue-1", "blue").await;
    let export = bench.api("harvesterhci.io/v1beta1", "NetworkFilesystem", "harvester-system");
    let name = format!("pvc-of-{UID}");
    let on_for = async |clusters: &str| {
        let on = json!({"metadata": {"annotations": {"driver.harvesterhci.io/on-for": clusters}},
            "spec": {"desiredState": "Enabled"}});
        export.patch(&name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(on)).await.unwrap();
    };
    for clusters in ["blue", "blue,red"] {
        on_for(clusters).await;
        let refusal = bench.delete_volume(UID).await.unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
        assert!(refusal.message().contains("guest cluster blue has the export"), "{refusal}");
        assert!(bench.claim(UID).await.metadata.deletion_timestamp.is_none());
    }
    on_for("gone,red").await;
    bench.delete_volume(UID).await.unwrap();
    assert_eq!(export.get_opt(&name).await.unwrap(), None);
}
