//! How long a call waits for a host that does not get on: the sidecars have few workers for all volumes.

use std::time::Duration;

use csi_driver::{
    attach::BLOCKED_FOR,
    csi::{
        CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
        ControllerPublishVolumeRequest, CreateSnapshotRequest, controller_server::Controller,
        volume_capability::access_mode::Mode,
    },
};
use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::faults::Answer;
use tokio::time::{sleep, timeout};
use tonic::{Code, Request, Status};

use super::bench::{
    Bench, GIB, HARVESTER, NAMESPACE, UID, files, from_snapshot, from_volume, volume, volume_for,
};

/// No call lasts longer while nothing changes.
const SOON: Duration = Duration::from_secs(11);

async fn grow(bench: &Bench, to: i64) -> Result<ControllerExpandVolumeResponse, Status> {
    let request = ControllerExpandVolumeRequest {
        volume_id: UID.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: to, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    };
    bench.service.controller_expand_volume(Request::new(request)).await.map(tonic::Response::into_inner)
}

async fn status(bench: &Bench, claim: &str, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    bench.claims().patch_status(claim, &PatchParams::default(), &patch).await.unwrap();
}

/// The host says each second how far it is, and no more.
async fn uploads(bench: &Bench) {
    let api = bench.api(HARVESTER, "VolumeRemoteBackup", NAMESPACE);
    for percent in 0.. {
        sleep(Duration::from_secs(1)).await;
        let patch = Patch::Merge(json!({"status": {"progress": percent}}));
        drop(api.patch("b", &PatchParams::default(), &patch).await);
    }
}

// docs/contract/csi-driver.md#deadlines
#[tokio::test(start_paused = true)]
async fn a_backup_that_uploads_keeps_no_worker_for_most_of_a_minute() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    for _ in 0..3 {
        let answer = tokio::select! {
            answer = timeout(SOON, bench.snapshot("b", "source", Some("backup"))) => answer.unwrap(),
            () = uploads(&bench) => unreachable!("it goes on for ever"),
        };
        let late = answer.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert!(
            late.message().contains("VolumeRemoteBackup shop/b on the host is not complete, and"),
            "{late}"
        );
    }
}

#[rstest]
#[case::the_volume_is_there(true, "has not grown to 1125899906842624 bytes, and")]
#[case::nobody_makes_the_volume(false, "is not bound, and")]
#[tokio::test(start_paused = true)]
async fn a_growth_that_the_host_cannot_do_keeps_no_worker_for_most_of_a_minute(
    #[case] is_bound: bool,
    #[case] says: &str,
) {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    if is_bound {
        bench.bind(UID, "1Gi").await;
    }
    for _ in 0..3 {
        let late = timeout(SOON, grow(&bench, 1 << 50)).await.unwrap().unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert!(late.message().contains(says), "{late}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_growth_that_gets_on_is_waited_for_while_it_does() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let (answer, ()) = tokio::join!(grow(&bench, 2 * GIB), async {
        for step in ["Resizing", "AlmostThere", "FileSystemResizePending"] {
            sleep(Duration::from_secs(8)).await;
            status(&bench, UID, json!({"conditions": [{"type": step, "status": "True"}]})).await;
        }
    });
    assert_eq!(answer.unwrap().capacity_bytes, 2 * GIB);
}

// docs/contract/csi-driver.md#exports
#[tokio::test(start_paused = true)]
async fn an_export_that_does_not_get_ready_is_answered_as_early_as_a_disk() {
    let bench = Bench::new().await;
    let made = bench.filled(volume_for(UID, GIB, Mode::MultiNodeMultiWriter)).await.unwrap();
    let request = || ControllerPublishVolumeRequest {
        volume_id: made.volume_id.clone(),
        node_id: "node-1".to_owned(),
        volume_capability: Some(files(Mode::MultiNodeMultiWriter)),
        ..ControllerPublishVolumeRequest::default()
    };
    for _ in 0..3 {
        let call = bench.service.controller_publish_volume(Request::new(request()));
        let refusal = timeout(BLOCKED_FOR + Duration::from_secs(1), call).await.unwrap().unwrap_err();
        assert_eq!(refusal.code(), Code::Aborted);
        let says = format!("look at the share manager of Longhorn volume pvc-of-{UID}");
        assert!(refusal.message().contains(&says), "{refusal}");
    }
}

async fn source_grows_to(bench: &Bench, size: &str) {
    let asks = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    bench.patch("v1", "PersistentVolumeClaim", "source", asks).await;
    bench.bind("source", size).await;
}

/// Longhorn copies between equal sizes only, and such a claim stays Pending for ever.
#[rstest]
#[case::of_the_volume(true)]
#[case::of_a_snapshot(false)]
#[tokio::test(start_paused = true)]
async fn a_pending_copy_of_a_size_that_its_source_has_no_more_is_made_anew(#[case] is_clone: bool) {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let request = || {
        let asked = volume(UID, 2 * GIB);
        if is_clone { from_volume(asked, "source") } else { from_snapshot(asked, "s") }
    };
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::DeadlineExceeded);
    let former = bench.claim(UID).await.metadata.uid;
    // one that may be filled still is left alone
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(bench.claim(UID).await.metadata.uid, former);
    source_grows_to(&bench, "2Gi").await;
    let outdated = bench.create_volume(request()).await.unwrap_err();
    // nothing is left, and the provisioner asks again
    assert_eq!(outdated.code(), Code::FailedPrecondition);
    assert!(outdated.message().contains("it asks for 1073741824 bytes"), "{outdated}");
    assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
    assert_eq!(bench.filled(request()).await.unwrap().capacity_bytes, 2 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_pending_copy_that_is_smaller_than_its_source_by_now_is_removed_and_refused() {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let request = || from_volume(volume(UID, GIB), "source");
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::DeadlineExceeded);
    source_grows_to(&bench, "2Gi").await;
    for code in [Code::FailedPrecondition, Code::OutOfRange] {
        assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), code);
        assert!(bench.claims().get_opt(UID).await.unwrap().is_none());
    }
}

/// The guest has bound what it was answered, and names it by a PersistentVolume.
#[tokio::test(start_paused = true)]
async fn a_copy_that_waits_for_its_first_consumer_is_not_made_anew() {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let classes = bench.api("storage.k8s.io/v1", "StorageClass", "");
    classes.delete("longhorn", &kube::api::DeleteParams::default()).await.unwrap();
    let class = json!({"metadata": {"name": "longhorn"}, "provisioner": "driver.longhorn.io",
        "volumeBindingMode": "WaitForFirstConsumer"});
    bench.create("storage.k8s.io/v1", "StorageClass", "", class).await;
    bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap();
    let former = bench.claim(UID).await.metadata.uid;
    source_grows_to(&bench, "2Gi").await;
    bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap();
    assert_eq!(bench.claim(UID).await.metadata.uid, former);
}

/// Where nobody may read Longhorn's volumes, the claim alone says how large the source is.
#[rstest]
#[case::by_a_condition(json!({"conditions": [{"type": "ControllerResizeError", "status": "True"}]}))]
#[case::by_a_state(json!({"allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"}}))]
#[tokio::test(start_paused = true)]
async fn a_volume_whose_growth_failed_is_copied_where_longhorns_volumes_may_not_be_read(#[case] says: Value) {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let asks = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    bench.patch("v1", "PersistentVolumeClaim", "source", asks).await;
    bench.fault("get", "volumes", None, Answer::Code(403));
    let request = || from_volume(volume(UID, GIB), "source");
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::Aborted);
    status(&bench, "source", says).await;
    assert_eq!(bench.create_volume(request()).await.unwrap_err().code(), Code::DeadlineExceeded);
    let spec = serde_json::to_value(bench.claim(UID).await.spec).unwrap();
    assert_eq!(spec["resources"]["requests"]["storage"], "1Gi");
}

/// What is waited for, before the sidecar gives up: it would tell of the time alone.
const SHORT: Duration = Duration::from_secs(5);

fn short<T>(request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(SHORT);
    request
}

// docs/contract/csi-driver.md#deadlines
#[rstest]
#[case::a_clone(
    true,
    "PersistentVolumeClaim shop/pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11 on the host is not filled"
)]
#[case::an_export(
    false,
    "PersistentVolumeClaim shop/pvc-6f0b2c9e-9f0e-4a6e-8c1d-2b8f6d0a4c11 on the host is not bound"
)]
#[tokio::test(start_paused = true)]
async fn a_creation_says_what_it_waits_for_before_its_caller_is_gone_and_soon_where_nothing_changes(
    #[case] is_clone: bool,
    #[case] says: &str,
) {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let request = || {
        let export = volume_for(UID, GIB, Mode::MultiNodeMultiWriter);
        if is_clone { from_volume(volume(UID, GIB), "source") } else { export }
    };
    let call = bench.service.create_volume(short(request()));
    let late = timeout(SHORT, call).await.unwrap().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains(says), "{late}");
    let late = timeout(SOON, bench.create_volume(request())).await.unwrap().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains(says), "{late}");
}

#[tokio::test(start_paused = true)]
async fn a_growth_and_a_snapshot_say_what_they_wait_for_before_their_caller_is_gone() {
    let bench = Bench::new().await;
    bench.create_volume(volume(UID, GIB)).await.unwrap();
    bench.bind(UID, "1Gi").await;
    let grow = ControllerExpandVolumeRequest {
        volume_id: UID.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 2 * GIB, limit_bytes: 0 }),
        ..ControllerExpandVolumeRequest::default()
    };
    let call = bench.service.controller_expand_volume(short(grow));
    let late = timeout(SHORT, call).await.unwrap().unwrap_err();
    assert!(late.message().contains("has not grown to"), "{late}");
    let take = CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: UID.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let late = timeout(SHORT, bench.service.create_snapshot(short(take))).await.unwrap().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("VolumeSnapshot shop/s on the host has not been taken"), "{late}");
}
