//! What others write in the namespace, and what of it keeps a volume or a snapshot (docs/contract/csi-driver.md#needed).

use rstest::rstest;
use serde_json::{Value, json};
use tonic::Code;

use super::{
    bench::{Bench, GIB, UID, from_snapshot, volume},
    snapshots::with_status,
};

#[rstest]
#[case::gone("fast")]
#[case::none_at_all("")]
#[tokio::test(start_paused = true)]
async fn a_claim_whose_class_is_gone_holds_neither_snapshot_nor_source(#[case] class: &str) {
    let bench = Bench::with_a_snapshot().await;
    bench.pending("of-the-snapshot", class, "VolumeSnapshot", "s").await;
    bench.pending("of-the-volume", class, "PersistentVolumeClaim", "source").await;
    bench.delete_snapshot("s").await.unwrap();
    bench.delete_volume("source").await.unwrap();
    assert!(bench.claims().get_opt("source").await.unwrap().is_none());
}

/// The guest counts it as bound, and the host fills it when the class is there again.
#[tokio::test(start_paused = true)]
async fn a_claim_of_ours_holds_its_snapshot_and_source_while_its_class_is_made_anew() {
    let bench = Bench::with_a_snapshot().await;
    bench.bind("source", "1Gi").await;
    let classes = bench.api("storage.k8s.io/v1", "StorageClass", "");
    let class = json!({"metadata": {"name": "longhorn"}, "provisioner": "driver.longhorn.io",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let remove = async || classes.delete("longhorn", &kube::api::DeleteParams::default()).await.unwrap();
    remove().await;
    bench.create("storage.k8s.io/v1", "StorageClass", "", class.clone()).await;
    bench.create_volume(from_snapshot(volume(UID, GIB), "s")).await.unwrap();
    for is_there in [true, false, true] {
        if !is_there {
            remove().await;
        } else if classes.get_opt("longhorn").await.unwrap().is_none() {
            bench.create("storage.k8s.io/v1", "StorageClass", "", class.clone()).await;
        }
        let refused = bench.delete_snapshot("s").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(&format!("into PersistentVolumeClaim {UID}")), "{refused}");
    }
    bench.delete_volume(UID).await.unwrap();
    bench.delete_snapshot("s").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_class_that_many_claims_name_is_read_once() {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    for number in 0..5 {
        bench.pending(&format!("claim-{number}"), "longhorn", "PersistentVolumeClaim", "source").await;
    }
    bench.requests();
    bench.delete_volume("source").await.unwrap();
    let reads = bench.requests().iter().filter(|request| *request == "get longhorn").count();
    assert_eq!(reads, 1);
}

/// Nobody takes one whose class is not there.
#[rstest]
#[case::nobody_has_looked_at_it(json!({}), false)]
#[case::it_failed(json!({"error": {"message": "no class nope"}, "readyToUse": false}), false)]
#[case::it_is_begun(json!({"boundVolumeSnapshotContentName": "content"}), true)]
#[case::it_is_cut(json!({"creationTime": "2026-01-01T00:00:05Z"}), true)]
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_was_never_cut_does_not_hold_its_volume(
    #[case] status: Value,
    #[case] is_kept: bool,
) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    with_status(&bench, "of-somebody", "nope", status).await;
    let answer = bench.delete_volume("source").await;
    assert_eq!(answer.err().map(|refused| refused.code()), is_kept.then_some(Code::FailedPrecondition));
}

#[rstest]
#[case::a_watch("nope?watch=1")]
#[case::elsewhere("../../../../api/v1/nodes")]
#[tokio::test(start_paused = true)]
async fn a_class_name_that_is_none_is_asked_of_no_server(#[case] class: &str) {
    let bench = Bench::new().await;
    bench.create_volume(volume("source", GIB)).await.unwrap();
    with_status(&bench, "of-somebody", class, json!({"readyToUse": true})).await;
    bench.requests();
    let refused = bench.delete_volume("source").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(bench.requests(), ["get source", "list volumesnapshots"]);
}
