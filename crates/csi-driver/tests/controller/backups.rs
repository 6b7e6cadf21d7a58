//! Remote backups: made, listed, restored, deleted.

use std::time::Duration;

use csi_driver::{
    csi::ListSnapshotsRequest,
    volume::record::{SnapshotRecord, VolumeRecord},
};
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::Answer;
use tonic::Code;

use super::{
    bench::{Bench, GIB, HARVESTER, NAMESPACE, SNAPSHOT, UID, from_snapshot, volume},
    snapshots::{by_id, class_of_backups, ids},
};

/// A backup as the Go driver makes it.
async fn backup(bench: &Bench, namespace: &str, name: &str, status: Value) {
    let labels = json!({"harvesterhci.io/backupSourceVolume": "source"});
    bench
        .create(
            HARVESTER,
            "VolumeRemoteBackup",
            namespace,
            json!({"metadata": {"name": name, "labels": labels},
            "spec": {"type": "lh", "source": "source"}, "status": status}),
        )
        .await;
}

fn complete() -> Value {
    json!({"success": true, "sourceSpec": {"resources": {"requests": {"storage": "1Gi"}}}})
}

// docs/contract/csi-driver.md#cut
#[tokio::test(start_paused = true)]
async fn a_remote_backup_is_told_when_it_is_complete_and_until_then_what_the_host_says() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    let (late, ()) = tokio::join!(bench.snapshot("b", "source", Some("backup")), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let condition =
            json!([{"type": "Ready", "status": "False", "reason": "Waiting", "message": "target is away"}]);
        bench.patch(HARVESTER, "VolumeRemoteBackup", "b", json!({"status": {"conditions": condition}})).await;
    });
    let late = late.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("the host says: Waiting target is away"), "{late}");
    bench.patch(HARVESTER, "VolumeRemoteBackup", "b", json!({"status": {"success": true}})).await;
    assert!(bench.snapshot("b", "source", Some("backup")).await.unwrap().ready_to_use);
}

// docs/contract/csi-driver.md#restore
#[tokio::test(start_paused = true)]
async fn backups_of_other_namespaces_are_restored_by_their_id_and_neither_listed_nor_deleted() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "ours", complete()).await;
    backup(&bench, "other", "theirs", complete()).await;
    assert_eq!(ids(&bench, ListSnapshotsRequest::default()).await, ["backup:shop/ours"]);
    assert_eq!(ids(&bench, by_id("backup:shop/ours")).await, ["backup:shop/ours"]);
    assert_eq!(ids(&bench, by_id("absent")).await, Vec::<String>::new());
    assert_eq!(ids(&bench, by_id("backup:other/theirs")).await, ["backup:other/theirs"]);
    let refused = bench.delete_snapshot("backup:other/theirs").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("Retain"), "{refused}");
    assert!(bench.api(HARVESTER, "VolumeRemoteBackup", "other").get_opt("theirs").await.unwrap().is_some());
}

/// The host fills a claim, of the size that was backed up.
async fn host_restores(bench: &Bench, name: &str) {
    let restores = bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE);
    let restore = loop {
        match restores.get_opt(name).await.unwrap() {
            Some(restore) => break restore,
            None => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    };
    let owner = json!([{"apiVersion": HARVESTER, "kind": "VolumeRemoteRestore", "name": name, "uid": restore.metadata.uid}]);
    bench
        .create(
            "v1",
            "PersistentVolumeClaim",
            NAMESPACE,
            json!({"metadata": {"name": name, "ownerReferences": owner},
        "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "longhorn",
            "resources": {"requests": {"storage": "1Gi"}}}}),
        )
        .await;
    bench.bind(name, "1Gi").await;
    bench.patch(HARVESTER, "VolumeRemoteRestore", name, json!({"status": {"success": true}})).await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_is_restored_into_a_volume_as_large_as_it_was_asked_for() {
    let bench = Bench::new().await;
    backup(&bench, "other", "theirs", complete()).await;
    let request = from_snapshot(volume(UID, 2 * GIB), "backup:other/theirs");
    let (answer, ()) = tokio::join!(bench.create_volume(request.clone()), async {
        host_restores(&bench, UID).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
        assert_eq!(spec["resources"]["requests"]["storage"], "2Gi");
        bench.bind(UID, "2Gi").await;
    });
    let answer = answer.unwrap();
    assert_eq!(answer.capacity_bytes, 2 * GIB);
    let restore = bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE).get(UID).await.unwrap();
    assert_eq!(restore.data["spec"], json!({"type": "lh", "from": "other/theirs"}));
    assert_eq!(bench.create_volume(request).await.unwrap(), answer);
    let other =
        bench.create_volume(from_snapshot(volume(UID, 2 * GIB), "backup:shop/ours")).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    // the garbage collector would take the claim from the machine
    bench.machine_with("node-1", UID).await;
    assert_eq!(bench.delete_volume(UID).await.unwrap_err().code(), Code::FailedPrecondition);
    let machines = bench.api("kubevirt.io/v1", "VirtualMachine", NAMESPACE);
    machines.delete("node-1", &kube::api::DeleteParams::default()).await.unwrap();
    bench.delete_volume(UID).await.unwrap();
    let restores = bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE);
    assert!(restores.get_opt(UID).await.unwrap().is_none());
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_takes_long_is_joined_by_the_next_call() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "ours", complete()).await;
    let request = from_snapshot(volume(UID, GIB), "backup:shop/ours");
    let late = bench.create_volume(request.clone()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let condition =
        json!([{"type": "Ready", "status": "False", "reason": "Waiting", "message": "target is away"}]);
    bench.patch(HARVESTER, "VolumeRemoteRestore", UID, json!({"status": {"conditions": condition}})).await;
    let late = bench.create_volume(request.clone()).await.unwrap_err();
    assert!(late.message().contains("the host says: Waiting target is away"), "{late}");
    let (answer, ()) = tokio::join!(bench.create_volume(request), host_restores(&bench, UID));
    assert_eq!(answer.unwrap().capacity_bytes, GIB);
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_is_not_there_or_too_large_is_not_restored() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "half", json!({})).await;
    backup(&bench, NAMESPACE, "whole", complete()).await;
    let code = async |size: i64, id: &str| {
        bench.create_volume(from_snapshot(volume(UID, size), id)).await.unwrap_err().code()
    };
    assert_eq!(code(GIB, "backup:shop/absent").await, Code::NotFound);
    assert_eq!(code(GIB, "backup:shop/half").await, Code::FailedPrecondition);
    assert_eq!(code(GIB / 2, "backup:shop/whole").await, Code::OutOfRange);
    assert!(bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE).get_opt(UID).await.unwrap().is_none());
}

// docs/contract/csi-driver.md#restore
#[tokio::test(start_paused = true)]
async fn a_larger_restore_of_a_backup_on_a_class_that_does_not_grow_is_refused_before_anything_is_made() {
    let bench = Bench::new().await;
    let classes = bench.api("storage.k8s.io/v1", "StorageClass", "");
    let fixed = kube::api::Patch::Merge(json!({"allowVolumeExpansion": null}));
    classes.patch("longhorn", &kube::api::PatchParams::default(), &fixed).await.unwrap();
    let mut status = complete();
    status["sourceSpec"]["storageClassName"] = "longhorn".into();
    backup(&bench, NAMESPACE, "ours", status).await;
    let restores = bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE);
    let larger = from_snapshot(volume(UID, 2 * GIB), "backup:shop/ours");
    let refused = bench.create_volume(larger).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("StorageClass longhorn on the host do not grow"), "{refused}");
    assert!(restores.get_opt(UID).await.unwrap().is_none());
    let equal = from_snapshot(volume(UID, GIB), "backup:shop/ours");
    assert_eq!(bench.create_volume(equal).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert!(restores.get_opt(UID).await.unwrap().is_some());
}

/// CSI 1.12, ListSnapshots: what is not cut is in no list. Nothing says of a backup that it is before it is complete.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_not_cut_and_a_backup_that_is_not_complete_are_in_no_list() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    assert_eq!(bench.snapshot("s", "source", None).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(
        bench.snapshot("b", "source", Some("backup")).await.unwrap_err().code(),
        Code::DeadlineExceeded
    );
    for request in [ListSnapshotsRequest::default(), by_id("s"), by_id("backup:shop/b")] {
        assert_eq!(ids(&bench, request).await, Vec::<String>::new());
    }
    let cut = json!({"status": {"creationTime": "2026-01-01T00:00:05Z"}});
    bench.patch(SNAPSHOT, "VolumeSnapshot", "s", cut).await;
    bench.patch(HARVESTER, "VolumeRemoteBackup", "b", json!({"status": {"success": true}})).await;
    assert_eq!(ids(&bench, ListSnapshotsRequest::default()).await, ["backup:shop/b", "s"]);
}

/// The host makes a snapshot of the volume for the backup, and reads from it until it is complete.
#[tokio::test(start_paused = true)]
async fn a_volume_is_not_deleted_while_a_remote_backup_of_it_is_made() {
    let bench = Bench::new().await;
    class_of_backups(&bench).await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    assert_eq!(
        bench.snapshot("b", "source", Some("backup")).await.unwrap_err().code(),
        Code::DeadlineExceeded
    );
    let uid = bench.api(HARVESTER, "VolumeRemoteBackup", NAMESPACE).get("b").await.unwrap().metadata.uid;
    let owner = json!([{"apiVersion": HARVESTER, "kind": "VolumeRemoteBackup", "name": "b", "uid": uid, "controller": true}]);
    let spec =
        json!({"source": {"persistentVolumeClaimName": "source"}, "volumeSnapshotClassName": "backups"});
    let status = json!({"boundVolumeSnapshotContentName": "content"});
    let metadata = json!({"name": "b", "ownerReferences": owner});
    let snapshot = json!({"metadata": metadata, "spec": spec, "status": status});
    bench.create(SNAPSHOT, "VolumeSnapshot", NAMESPACE, snapshot).await;
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("wait until VolumeRemoteBackup b is complete"), "{refused}");
    bench.patch(SNAPSHOT, "VolumeSnapshot", "b", json!({"status": {"readyToUse": true}})).await;
    bench.delete_volume("source").await.unwrap();
}

// docs/contract/csi-driver.md#restore
#[tokio::test(start_paused = true)]
async fn a_backup_without_a_mark_of_either_driver_is_not_deleted() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "of-somebody", complete()).await;
    bench.patch(HARVESTER, "VolumeRemoteBackup", "of-somebody", json!({"metadata": {"labels": null}})).await;
    let refused = bench.delete_snapshot("backup:shop/of-somebody").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("was not made by this driver"), "{refused}");
    let backups = bench.api(HARVESTER, "VolumeRemoteBackup", NAMESPACE);
    assert!(backups.get_opt("of-somebody").await.unwrap().is_some());
}

/// The host protects it by nothing.
#[tokio::test(start_paused = true)]
async fn a_backup_is_not_deleted_while_a_volume_is_restored_from_it() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "ours", complete()).await;
    let restore = json!({"metadata": {"name": "pvc-new"}, "spec": {"type": "lh", "from": "shop/ours"}});
    bench.create(HARVESTER, "VolumeRemoteRestore", NAMESPACE, restore).await;
    let refused = bench.delete_snapshot("backup:shop/ours").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("is being restored into volume pvc-new"), "{refused}");
    let done = json!({"status": {"success": true}});
    bench.patch(HARVESTER, "VolumeRemoteRestore", "pvc-new", done).await;
    bench.delete_snapshot("backup:shop/ours").await.unwrap();
}

/// A POST carries no condition: that of a process which was stopped in front of it may come after the deletion of what it
/// makes. People find it by the mark.
#[rstest]
#[case::of_a_snapshot(None, "volumesnapshots", SNAPSHOT, "VolumeSnapshot", "late")]
#[case::of_a_backup(
    Some("backup"),
    "volumeremotebackups",
    HARVESTER,
    "VolumeRemoteBackup",
    "backup:shop/late"
)]
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_made_after_its_deletion_says_whose_it_is(
    #[case] kind: Option<&str>,
    #[case] resource: &str,
    #[case] version: &str,
    #[case] object: &str,
    #[case] id: &str,
) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    bench.fault("create", resource, Some(1), Answer::Delay(Duration::from_secs(30)));
    let (_, ()) = tokio::join!(bench.snapshot("late", "source", kind), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        bench.in_another_process().delete_snapshot(id).await.unwrap();
    });
    let left = bench.api(version, object, NAMESPACE).get("late").await.unwrap();
    let mark = SnapshotRecord::of(&left.metadata).unwrap();
    assert_eq!(mark.name, "late");
}

/// CreateSnapshot knows the name, DeleteSnapshot the ID.
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_not_deleted_while_it_is_made_by_the_same_process() {
    let bench = Bench::new().await;
    class_of_backups(&bench).await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    for (kind, id) in [(Some("backup"), "backup:shop/one"), (None, "one")] {
        let (_, refused) = tokio::join!(bench.snapshot("one", "source", kind), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            bench.delete_snapshot(id).await.unwrap_err()
        });
        assert_eq!(refused.code(), Code::Aborted, "{refused}");
        bench.delete_snapshot(id).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_is_made_after_the_deletion_of_its_volume_says_whose_it_is() {
    let bench = Bench::new().await;
    backup(&bench, NAMESPACE, "ours", complete()).await;
    bench.fault("create", "volumeremoterestores", Some(1), Answer::Delay(Duration::from_secs(30)));
    let request = from_snapshot(volume("late", GIB), "backup:shop/ours");
    let (_, ()) = tokio::join!(bench.create_volume(request), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        bench.in_another_process().delete_volume("late").await.unwrap();
    });
    let left = bench.api(HARVESTER, "VolumeRemoteRestore", NAMESPACE).get("late").await.unwrap();
    let mark: VolumeRecord =
        serde_json::from_str(&left.annotations()["driver.harvesterhci.io/volume"]).unwrap();
    assert_eq!((mark.name.as_str(), mark.source.as_deref()), ("late", Some("snapshot/backup:shop/ours")));
}
