//! Snapshots: made, listed, restored, deleted.

use std::time::Duration;

use csi_driver::csi::{GetSnapshotRequest, ListSnapshotsRequest, controller_server::Controller};
use futures::future::join_all;
use rstest::rstest;
use serde_json::json;
use sim_apiserver::faults::Answer;
use tonic::{Code, Request};

use super::bench::{Bench, GIB, NAMESPACE, SNAPSHOT, UID, from_snapshot, from_volume, volume, volume_for};
use csi_driver::csi::volume_capability::access_mode::Mode;

async fn ready(bench: &Bench, name: &str) {
    let status = json!({"status": {"readyToUse": true, "restoreSize": "1026Mi", "creationTime": "2026-01-01T00:00:00Z"}});
    bench.patch(SNAPSHOT, "VolumeSnapshot", name, status).await;
}

pub(super) fn by_id(id: &str) -> ListSnapshotsRequest {
    ListSnapshotsRequest { snapshot_id: id.to_owned(), ..ListSnapshotsRequest::default() }
}

fn by_source(id: &str) -> ListSnapshotsRequest {
    ListSnapshotsRequest { source_volume_id: id.to_owned(), ..ListSnapshotsRequest::default() }
}

pub(super) async fn ids(bench: &Bench, request: ListSnapshotsRequest) -> Vec<String> {
    let answer = bench.list_snapshots(request).await.unwrap();
    answer.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
}

// docs/contract/csi-driver.md#cut
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_told_when_the_host_has_cut_it_and_not_before() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB + 1)).await.unwrap();
    let late = bench.snapshot("snap", "source", None).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(
        late.message().contains("VolumeSnapshot shop/snap on the host has not been taken after 50 s"),
        "{late}"
    );
    let object = bench.api(SNAPSHOT, "VolumeSnapshot", NAMESPACE).get("snap").await.unwrap();
    assert_eq!(
        object.data["spec"],
        json!({"source": {"persistentVolumeClaimName": "source"},
        "volumeSnapshotClassName": "longhorn-snapshot"})
    );
    let labels = serde_json::to_value(&object.metadata.labels).unwrap();
    assert_eq!(
        labels,
        json!({"harvesterhci.io/snapHostSC": "longhorn", "harvesterhci.io/snapHostVolumeMode": "Block"})
    );
    let (cut, ()) = tokio::join!(bench.snapshot("snap", "source", None), async {
        tokio::time::sleep(Duration::from_secs(40)).await;
        let status = json!({"status": {"readyToUse": false, "creationTime": "2026-01-01T00:00:05Z"}});
        bench.patch(SNAPSHOT, "VolumeSnapshot", "snap", status).await;
    });
    let cut = cut.unwrap();
    assert_eq!((cut.ready_to_use, cut.size_bytes), (false, GIB + 1));
    assert_eq!(cut.creation_time.unwrap().seconds, 1_767_225_605);
    ready(&bench, "snap").await;
    let again = bench.snapshot("snap", "source", None).await.unwrap();
    assert!(again.ready_to_use);
    assert_eq!((again.snapshot_id, again.size_bytes), (cut.snapshot_id, cut.size_bytes));
}

#[rstest]
#[case::beside_the_volume(None)]
#[case::remote(Some("backup"))]
#[tokio::test(start_paused = true)]
async fn other_calls_for_a_volume_are_served_while_its_snapshot_is_waited_for(#[case] kind: Option<&str>) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    let (late, again) = tokio::join!(bench.snapshot("s", "source", kind), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        bench.create_volume(volume("source", GIB)).await
    });
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(again.unwrap().capacity_bytes, GIB);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_needs_a_name_and_a_volume_that_is_there() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.create_volume(volume("other", GIB)).await.unwrap();
    for kind in [None, Some("backup")] {
        let code =
            async |name: &str, source: &str| bench.snapshot(name, source, kind).await.unwrap_err().code();
        assert_eq!(code("", "source").await, Code::InvalidArgument);
        assert_eq!(code("s", "").await, Code::InvalidArgument);
        assert_eq!(code("s", "absent").await, Code::NotFound);
        assert_eq!(code("s", "../x").await, Code::NotFound);
        bench.taken("s", "source", kind).await.unwrap();
        bench.taken("s", "source", kind).await.unwrap();
        assert_eq!(code("s", "other").await, Code::AlreadyExists);
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_the_host_from_a_snapshot_is_told() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.fault("get", "settings", Some(1), Answer::Code(403));
    let refused = bench.snapshot("s", "source", None).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("setting csi-driver-config"), "{refused}");
    bench.taken("s", "source", None).await.unwrap();
    bench
        .patch(SNAPSHOT, "VolumeSnapshot", "s", json!({"status": {"error": {"message": "no space left"}}}))
        .await;
    let refused = bench.snapshot("s", "source", None).await.unwrap_err();
    assert!(refused.message().contains("no space left"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_filtered_before_they_are_paged_and_tokens_survive_another_size() {
    let bench = Bench::new().await;
    for source in ["one", "two"] {
        bench.create_volume(volume(source, GIB)).await.unwrap();
        for number in 0..5 {
            bench.taken(&format!("{source}-{number}"), source, None).await.unwrap();
        }
    }
    // docs/contract/csi-driver.md#odd-objects
    for (name, body) in [("odd", json!({})), ("strange", json!({"spec": 5, "status": "x"}))] {
        let mut object = json!({"metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        bench.create(SNAPSHOT, "VolumeSnapshot", NAMESPACE, object).await;
    }
    assert_eq!(ids(&bench, ListSnapshotsRequest::default()).await.len(), 10);
    let first =
        bench.list_snapshots(ListSnapshotsRequest { max_entries: 2, ..by_source("two") }).await.unwrap();
    assert_eq!(first.entries.len(), 2);
    let rest = ListSnapshotsRequest { starting_token: first.next_token, ..by_source("two") };
    assert_eq!(ids(&bench, rest).await, ["two-2", "two-3", "two-4"]);
    assert_eq!(ids(&bench, by_id("one-3")).await, ["one-3"]);
    for nothing in [by_id("absent"), by_id("../x"), by_id("backup:shop/absent"), by_source("absent")] {
        assert!(ids(&bench, nothing).await.is_empty());
    }
    let bad = ListSnapshotsRequest { starting_token: "one-3".to_owned(), ..ListSnapshotsRequest::default() };
    assert_eq!(bench.list_snapshots(bad).await.unwrap_err().code(), Code::Aborted);
    let bad = ListSnapshotsRequest { max_entries: -1, ..ListSnapshotsRequest::default() };
    assert_eq!(bench.list_snapshots(bad).await.unwrap_err().code(), Code::InvalidArgument);
    bench.delete_snapshot("two-4").await.unwrap();
    assert_eq!(ids(&bench, ListSnapshotsRequest::default()).await.len(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_deleted_at_once_and_gone_however_often_it_is_asked_for() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.taken("s", "source", None).await.unwrap();
    bench.taken("b", "source", Some("backup")).await.unwrap();
    for id in ["s", "s", "backup:shop/b", "backup:shop/b", "absent", "backup:x", "../x"] {
        bench.delete_snapshot(id).await.unwrap();
    }
    assert!(ids(&bench, ListSnapshotsRequest::default()).await.is_empty());
    assert_eq!(bench.delete_snapshot("").await.unwrap_err().code(), Code::InvalidArgument);
    let get = |id: &str| {
        Request::new(GetSnapshotRequest { snapshot_id: id.to_owned(), ..GetSnapshotRequest::default() })
    };
    assert_eq!(bench.service.get_snapshot(get("")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(bench.service.get_snapshot(get("s")).await.unwrap_err().code(), Code::NotFound);
}

// docs/contract/csi-driver.md#restore
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_somebody_else_is_not_deleted() {
    let bench = Bench::new().await;
    taken_with(&bench, "of-a-machine", "longhorn-snapshot").await;
    let refused = bench.delete_snapshot("of-a-machine").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("Retain"), "{refused}");
    let snapshots = bench.api(SNAPSHOT, "VolumeSnapshot", NAMESPACE);
    assert!(snapshots.get_opt("of-a-machine").await.unwrap().is_some());
}

#[rstest]
#[case("volumeremotebackups")]
#[case("volumesnapshots")]
#[tokio::test(start_paused = true)]
async fn a_host_that_lacks_one_kind_of_snapshot_lists_the_other(#[case] resource: &str) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.taken("s", "source", None).await.unwrap();
    bench.taken("s", "source", Some("backup")).await.unwrap();
    bench.fault("list", resource, None, Answer::Code(403));
    assert_eq!(ids(&bench, ListSnapshotsRequest::default()).await.len(), 1);
    bench.server.faults().clear();
    bench.fault("list", resource, None, Answer::Code(500));
    let failed = bench.list_snapshots(ListSnapshotsRequest::default()).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_restored_with_the_class_and_the_mode_of_its_volume() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB + 1)).await.unwrap();
    bench.taken("s", "source", None).await.unwrap();
    let early = bench.create_volume(from_snapshot(volume(UID, GIB + 1), "s")).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition);
    ready(&bench, "s").await;
    let restored = bench.filled(from_snapshot(volume(UID, GIB + 1), "s")).await.unwrap();
    assert_eq!(restored.capacity_bytes, GIB + 1);
    assert!(restored.content_source.is_some());
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(
        spec["dataSource"],
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"})
    );
    assert_eq!((&spec["storageClassName"], &spec["volumeMode"]), (&json!("longhorn"), &json!("Block")));
    assert_eq!(spec["resources"]["requests"]["storage"], "1026Mi");
    // the snapshot may be gone when the same call comes again
    bench.delete_snapshot("s").await.unwrap();
    assert_eq!(bench.create_volume(from_snapshot(volume(UID, GIB + 1), "s")).await.unwrap(), restored);
    let absent = bench.create_volume(from_snapshot(volume("b", GIB), "s")).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_the_go_driver_is_restored_by_its_labels() {
    let bench = Bench::new().await;
    let labels =
        json!({"harvesterhci.io/snapHostSC": "longhorn", "harvesterhci.io/snapHostVolumeMode": "Filesystem"});
    let status = json!({"readyToUse": true, "restoreSize": "1Gi"});
    bench
        .create(
            SNAPSHOT,
            "VolumeSnapshot",
            NAMESPACE,
            json!({"metadata": {"name": "s", "labels": labels},
        "spec": {"source": {"persistentVolumeClaimName": "source"}}, "status": status}),
        )
        .await;
    bench
        .create(
            SNAPSHOT,
            "VolumeSnapshot",
            NAMESPACE,
            json!({"metadata": {"name": "strange"}, "status": status}),
        )
        .await;
    bench.filled(from_snapshot(volume(UID, GIB), "s")).await.unwrap();
    assert_eq!(bench.claim(UID).await.spec.unwrap().volume_mode.as_deref(), Some("Filesystem"));
    let small = bench.create_volume(from_snapshot(volume("a", GIB / 2), "s")).await.unwrap_err();
    assert_eq!(small.code(), Code::OutOfRange);
    let many = bench
        .create_volume(from_snapshot(volume_for("b", GIB, Mode::MultiNodeMultiWriter), "s"))
        .await
        .unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    let strange = bench.create_volume(from_snapshot(volume("c", GIB), "strange")).await.unwrap_err();
    assert_eq!(strange.code(), Code::FailedPrecondition);
}

/// A snapshot of `source` that somebody made with this class of the host.
async fn taken_with(bench: &Bench, name: &str, class: &str) {
    with_status(bench, name, class, json!({"boundVolumeSnapshotContentName": "content"})).await;
}

pub(super) async fn with_status(bench: &Bench, name: &str, class: &str, status: serde_json::Value) {
    let spec = json!({"source": {"persistentVolumeClaimName": "source"}, "volumeSnapshotClassName": class});
    let snapshot = json!({"metadata": {"name": name}, "spec": spec, "status": status});
    bench.create(SNAPSHOT, "VolumeSnapshot", NAMESPACE, snapshot).await;
}

pub(super) async fn class_of_backups(bench: &Bench) {
    let class = json!({"metadata": {"name": "backups"}, "driver": "driver.longhorn.io", "deletionPolicy": "Delete",
        "parameters": {"type": "bak"}});
    bench.create(SNAPSHOT, "VolumeSnapshotClass", "", class).await;
}

// docs/contract/csi-driver.md#needed
#[tokio::test(start_paused = true)]
async fn a_volume_with_a_snapshot_is_kept_until_the_snapshot_is_gone() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.create_volume(volume("other", GIB)).await.unwrap();
    bench.taken("before", "source", None).await.unwrap();
    bench.requests();
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("VolumeSnapshot before"), "{refused}");
    // the caller comes again for as long as the snapshot is there
    assert_eq!(bench.requests(), ["get source", "list volumesnapshots", "get longhorn-snapshot"]);
    bench.delete_volume("other").await.unwrap();
    assert!(bench.claims().get_opt("source").await.unwrap().is_some());
    bench.delete_snapshot("before").await.unwrap();
    bench.delete_volume("source").await.unwrap();
    assert!(bench.claims().get_opt("source").await.unwrap().is_none());
}

// docs/contract/csi-driver.md#needed
#[tokio::test(start_paused = true)]
async fn a_volume_goes_before_its_snapshots_where_they_are_complete_backups() {
    let bench = Bench::new().await;
    class_of_backups(&bench).await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    taken_with(&bench, "saved", "backups").await;
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("wait until VolumeSnapshot saved is complete"), "{refused}");
    ready(&bench, "saved").await;
    bench.fault("get", "volumesnapshotclasses", Some(1), Answer::Code(403));
    assert_eq!(bench.delete_volume("source").await.unwrap_err().code(), Code::FailedPrecondition);
    bench.delete_volume("source").await.unwrap();
    assert!(bench.claims().get_opt("source").await.unwrap().is_none());
}

// docs/contract/csi-driver.md#needed
#[tokio::test(start_paused = true)]
async fn a_hundred_volumes_that_are_deleted_at_once_need_a_few_lists_of_the_namespace() {
    let bench = Bench::new().await;
    let names: Vec<_> = (0..100).map(|number| format!("volume-{number}")).collect();
    for name in &names {
        bench.create_volume(volume(name, GIB)).await.unwrap();
    }
    // from its first deletion on the process watches the machines
    bench.create_volume(volume("first", GIB)).await.unwrap();
    bench.delete_volume("first").await.unwrap();
    for resource in ["persistentvolumeclaims", "volumesnapshots"] {
        bench.fault("list", resource, None, Answer::Delay(Duration::from_secs(1)));
    }
    bench.requests();
    for answer in join_all(names.iter().map(|name| bench.delete_volume(name))).await {
        answer.unwrap();
    }
    let lists = bench.requests().iter().filter(|request| request.starts_with("list")).count();
    assert!(lists <= 6, "{lists} lists");
}

// docs/contract/csi-driver.md#optional
#[rstest]
#[case(403)]
#[case(404)]
#[tokio::test(start_paused = true)]
async fn a_host_without_snapshots_deletes_volumes(#[case] code: u16) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.fault("list", "volumesnapshots", None, Answer::Code(code));
    bench.delete_volume("source").await.unwrap();
    assert!(bench.claims().get_opt("source").await.unwrap().is_none());
}

/// Longhorn's volume behind a claim that `bind` gave one.
async fn longhorn_volume(bench: &Bench, of: &str, state: &str) {
    let metadata = json!({"name": format!("pvc-of-{of}")});
    let spec = json!({"dataSource": "snap://pvc-of-source/s"});
    let status = json!({"cloneStatus": {"state": state}});
    let volume = json!({"metadata": metadata, "spec": spec, "status": status});
    bench.create("longhorn.io/v1beta2", "Volume", "longhorn-system", volume).await;
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_restored_volume_is_there_when_the_host_has_filled_it() {
    let bench = Bench::with_a_snapshot().await;
    let request = || from_snapshot(volume(UID, GIB), "s");
    let late = bench.create_volume(request()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("is not filled, and"), "{late}");
    longhorn_volume(&bench, UID, "initiated").await;
    bench.bind(UID, "1Gi").await;
    let late = bench.create_volume(request()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("Longhorn has not copied all of"), "{late}");
    let api = bench.api("longhorn.io/v1beta2", "Volume", "longhorn-system");
    let done = kube::api::Patch::Merge(json!({"status": {"cloneStatus": {"state": "completed"}}}));
    let (answer, _) = tokio::join!(bench.create_volume(request()), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        api.patch(&format!("pvc-of-{UID}"), &kube::api::PatchParams::default(), &done).await.unwrap()
    });
    assert_eq!(answer.unwrap().capacity_bytes, GIB);
}

/// A claim whose copy Longhorn could not make.
async fn with_a_failed_copy() -> Bench {
    let bench = Bench::with_a_snapshot().await;
    let late = bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    longhorn_volume(&bench, UID, "failed").await;
    let condition = json!([{"type": "Scheduled", "status": "False", "message": "no disk has room"}]);
    let volumes = bench.api("longhorn.io/v1beta2", "Volume", "longhorn-system");
    let patch = kube::api::Patch::Merge(json!({"status": {"conditions": condition}}));
    volumes.patch(&format!("pvc-of-{UID}"), &kube::api::PatchParams::default(), &patch).await.unwrap();
    bench.bind(UID, "1Gi").await;
    bench
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_copy_that_longhorn_could_not_make_is_told_with_the_reason_and_begun_anew_by_the_next_call() {
    let bench = with_a_failed_copy().await;
    let request = || from_snapshot(volume(UID, GIB), "s");
    let failed = bench.create_volume(request()).await.unwrap_err();
    // for the provisioner nothing is under way: it asks again, unless nobody wants the volume any more
    assert_eq!(failed.code(), Code::FailedPrecondition);
    assert!(failed.message().contains("no disk has room"), "{failed}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
    let volumes = bench.api("longhorn.io/v1beta2", "Volume", "longhorn-system");
    volumes.delete(&format!("pvc-of-{UID}"), &kube::api::DeleteParams::default()).await.unwrap();
    bench.filled(request()).await.unwrap();
}

#[rstest]
#[case::on_its_way_into_a_machine(json!({"driver.harvesterhci.io/attach": "{}"}))]
#[case::of_the_go_driver(json!({"driver.harvesterhci.io/volume": null}))]
#[tokio::test(start_paused = true)]
async fn a_failed_copy_that_a_persistent_volume_may_name_stays(#[case] annotations: serde_json::Value) {
    let bench = with_a_failed_copy().await;
    let metadata = json!({"metadata": {"annotations": annotations}});
    bench.patch("v1", "PersistentVolumeClaim", UID, metadata).await;
    let failed = bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("no disk has room"), "{failed}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_failed_copy_that_has_a_snapshot_stays() {
    let bench = with_a_failed_copy().await;
    bench.taken("of-the-copy", UID, None).await.unwrap();
    let failed = bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(failed.message().contains("VolumeSnapshot of-the-copy"), "{failed}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_some());
}

// docs/contract/csi-driver.md#optional
#[tokio::test(start_paused = true)]
async fn a_restored_volume_is_there_when_it_is_bound_where_longhorns_volumes_may_not_be_read() {
    let bench = Bench::with_a_snapshot().await;
    longhorn_volume(&bench, UID, "initiated").await;
    bench.fault("get", "volumes", None, Answer::Code(403));
    bench.filled(from_snapshot(volume(UID, 2 * GIB), "s")).await.unwrap();
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_a_claim_waits_for_is_not_deleted() {
    let bench = Bench::with_a_snapshot().await;
    bench.waits_for_its_first_consumer(UID, "VolumeSnapshot", "s").await;
    let refused = bench.delete_snapshot("s").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains(&format!("into PersistentVolumeClaim {UID}")), "{refused}");
    bench.bind(UID, "1Gi").await;
    bench.delete_snapshot("s").await.unwrap();
}

// CreateVolume has not answered, so the guest cluster keeps the snapshot as long as somebody wants the volume
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_deleted_though_a_claim_of_it_never_came_to_be() {
    let bench = Bench::with_a_snapshot().await;
    let request = from_snapshot(volume(UID, 2 * GIB), "s");
    assert_eq!(bench.create_volume(request).await.unwrap_err().code(), Code::DeadlineExceeded);
    bench.delete_snapshot("s").await.unwrap();
    bench.delete_volume("source").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_larger_copy_on_a_class_that_does_not_grow_is_refused_before_anything_is_made() {
    let bench = Bench::with_a_snapshot().await;
    let classes = bench.api("storage.k8s.io/v1", "StorageClass", "");
    let fixed = kube::api::Patch::Merge(json!({"allowVolumeExpansion": null}));
    classes.patch("longhorn", &kube::api::PatchParams::default(), &fixed).await.unwrap();
    let refused = bench.create_volume(from_snapshot(volume(UID, 2 * GIB), "s")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("StorageClass longhorn on the host do not grow"), "{refused}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

// Longhorn compares with the volume, not with the snapshot
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_before_a_growth_is_copied_into_the_size_that_its_volume_has_now() {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "2Gi").await;
    let late = bench.create_volume(from_snapshot(volume(UID, 3 * GIB), "s")).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    // a volume of the snapshot's size becomes as large as that one, unless it may not
    let equal = bench.filled(from_snapshot(volume("equal", GIB), "s")).await.unwrap();
    assert_eq!(equal.capacity_bytes, 2 * GIB);
    let mut limited = from_snapshot(volume("limited", GIB), "s");
    limited.capacity_range.as_mut().unwrap().limit_bytes = GIB;
    let refused = bench.create_volume(limited).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

/// What is made of the growing volume asks for 2 GiB, which Longhorn has, while the claim still has 1 GiB.
#[rstest]
#[case::of_the_volume(true)]
#[case::of_a_snapshot(false)]
#[tokio::test(start_paused = true)]
async fn a_volume_that_grows_is_copied_into_the_size_that_longhorn_has(#[case] is_clone: bool) {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let grows = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    bench.patch("v1", "PersistentVolumeClaim", "source", grows).await;
    let request = || {
        let asked = volume(UID, GIB);
        if is_clone { from_volume(asked, "source") } else { from_snapshot(asked, "s") }
    };
    // nobody says how far it is
    let early = bench.create_volume(request()).await.unwrap_err();
    assert_eq!(early.code(), Code::Aborted);
    assert!(early.message().contains("shop/source on the host is growing"), "{early}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
    let metadata = json!({"name": "pvc-of-source"});
    let source = json!({"metadata": metadata, "spec": {"size": (2 * GIB).to_string()}});
    bench.create("longhorn.io/v1beta2", "Volume", "longhorn-system", source).await;
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::DeadlineExceeded);
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
    assert_eq!(bench.filled(request()).await.unwrap().capacity_bytes, 2 * GIB);
}

// docs/contract/csi-driver.md#filled
#[tokio::test(start_paused = true)]
async fn a_restore_into_a_larger_volume_is_copied_first_and_grown_then() {
    let bench = Bench::with_a_snapshot().await;
    let request = || from_snapshot(volume(UID, 2 * GIB), "s");
    let asks_for = async || {
        let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
        spec["resources"]["requests"]["storage"].as_str().unwrap().to_owned()
    };
    let (answer, ()) = tokio::join!(bench.create_volume(request()), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(asks_for().await, "1Gi");
        longhorn_volume(&bench, UID, "completed").await;
        bench.bind(UID, "1Gi").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(asks_for().await, "2Gi");
        bench.bind(UID, "2Gi").await;
    });
    let answer = answer.unwrap();
    assert_eq!(answer.capacity_bytes, 2 * GIB);
    assert_eq!(bench.create_volume(request()).await.unwrap(), answer);
}
