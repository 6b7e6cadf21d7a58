//! VolumeSnapshots of the host, in the namespace of the volumes.

use std::collections::BTreeMap;

use harvester_api::{annotations::CSI_SNAPSHOT, labels};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, api::PostParams};
use tokio::time::Instant;
use tonic::Code;

use super::{Asked, Found, class, timestamp};
use crate::{
    controller::{inspect, machine_disk, needed::Needed, wait},
    csi::Snapshot,
    host::{self, Host, kinds::VolumeSnapshot},
    refusal::Refusal,
    volume::{name::HostName, record::SnapshotRecord},
};

/// The snapshot of this name, which the host is asked for if it is not there.
///
/// # Errors
/// As [`inspect::source`], of one that is there.
pub(super) async fn ask(host: &Host, asked: &Asked) -> Result<VolumeSnapshot, Refusal> {
    let object = || host.name_of("VolumeSnapshot", &asked.name);
    let existing = host.snapshots().get_opt(asked.name.as_str()).await;
    let existing = existing.map_err(|error| Refusal::of_host(&format!("read {}", object()), &error))?;
    if let Some(snapshot) = existing {
        let source = snapshot.spec.source.persistent_volume_claim_name.as_deref();
        inspect::source(host, &snapshot.metadata, source).await?;
        return Ok(snapshot);
    }
    let claim = inspect::existing(host, &asked.source).await?;
    machine_disk::refuse(host, &claim, "take a snapshot of").await?;
    let class = class::of(host, &claim).await?;
    let manifest = manifest(asked, &claim, class);
    match host.snapshots().create(&PostParams::default(), &manifest).await {
        Ok(snapshot) => Ok(snapshot),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            Err(Refusal::aborted(format!("{} was created by somebody else just now: call again", object())))
        }
        Err(error) if host::is_not_found(&error) => {
            Err(Refusal::precondition("the host has no VolumeSnapshots: snapshots need Harvester 1.7"))
        }
        Err(error) => Err(Refusal::of_host(&format!("create {}", object()), &error)),
    }
}

/// The snapshot when the host has cut it, though it may still work on it. At our answer an application that was stopped for
/// it writes on.
pub(super) async fn cut(
    host: &Host,
    asked: &Asked,
    snapshot: VolumeSnapshot,
    end: Instant,
) -> Result<Snapshot, Refusal> {
    matches(asked, &snapshot)?;
    if is_settled(&snapshot) {
        return matches(asked, &snapshot);
    }
    let object = host.name_of("VolumeSnapshot", &asked.name);
    let what = format!("{object} has not been taken");
    let (api, name) = (host.snapshots(), asked.name.as_str());
    match wait::until(end, api, name, &what, is_settled).await? {
        Some(snapshot) => matches(asked, &snapshot),
        None => Err(Refusal::aborted(format!("{object} was deleted: call again"))),
    }
}

/// Whether the host has cut the snapshot, or says why it has not.
fn is_settled(snapshot: &VolumeSnapshot) -> bool {
    is_cut(snapshot) || snapshot.status.error.is_some() || snapshot.metadata.deletion_timestamp.is_some()
}

fn is_cut(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.ready_to_use == Some(true) || snapshot.status.creation_time.is_some()
}

fn manifest(asked: &Asked, claim: &PersistentVolumeClaim, class: String) -> VolumeSnapshot {
    let record = asked.record(claim);
    let mut snapshot = VolumeSnapshot::named(asked.name.as_str());
    // the Go driver restores by the labels; a class with a longer name than a label takes is in the annotation alone
    let mut marks = BTreeMap::from([(labels::SNAPSHOT_VOLUME_MODE.to_owned(), record.volume_mode.clone())]);
    if let Some(name) = record.class.as_ref().filter(|name| labels::is_value(name)) {
        marks.insert(labels::SNAPSHOT_CLASS.to_owned(), name.clone());
    }
    snapshot.metadata.labels = Some(marks);
    let text = serde_json::to_string(&record).expect("a struct of texts and numbers");
    snapshot.metadata.annotations = Some(BTreeMap::from([(CSI_SNAPSHOT.to_owned(), text)]));
    snapshot.spec.source.persistent_volume_claim_name = Some(asked.source.to_string());
    snapshot.spec.volume_snapshot_class_name = Some(class);
    snapshot
}

/// The snapshot that is there, if it is the one that is asked for. One that is cut and not ready is no fault: the caller
/// asks again. What the host could not do is one.
fn matches(asked: &Asked, snapshot: &VolumeSnapshot) -> Result<Snapshot, Refusal> {
    let name = &asked.name;
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::aborted(format!(
            "snapshot {name} is being deleted: call again when it is gone"
        )));
    }
    let differs = |why: String| {
        Refusal::new(
            Code::AlreadyExists,
            format!("snapshot {name} is there already, and {why}: take another name"),
        )
    };
    if let Some(record) =
        SnapshotRecord::of(&snapshot.metadata).filter(|record| record.name != asked.csi_name)
    {
        return Err(differs(format!("it was created as {:?}", record.name)));
    }
    let Some(shown) = shown(snapshot) else {
        return Err(differs("it was not made by this driver".to_owned()));
    };
    if shown.source_volume_id != asked.source.as_str() {
        return Err(differs(format!("it is of volume {}", shown.source_volume_id)));
    }
    let error = snapshot.status.error.as_ref().and_then(|error| error.message.as_deref());
    match error.filter(|_| !shown.ready_to_use) {
        Some(message) => Err(Refusal::new(
            Code::Unavailable,
            format!(
                "the host has not made snapshot {name} so far: {message}: look at VolumeSnapshot {}/{name} there",
                snapshot.namespace().unwrap_or_default()
            ),
        )),
        None => Ok(shown),
    }
}

/// Those of others, of a machine's backup for one, are needed by others.
pub(super) async fn delete(host: &Host, needed: &Needed, name: &HostName) -> Result<(), Refusal> {
    let doing = |verb: &str| format!("{verb} {}", host.name_of("VolumeSnapshot", name));
    let snapshot = match host.snapshots().get(name.as_str()).await {
        Ok(snapshot) => snapshot,
        Err(error) if host::is_not_found(&error) => return Ok(()),
        Err(error) => return Err(Refusal::of_host(&doing("read"), &error)),
    };
    if !is_ours(&snapshot) {
        return Err(Refusal::precondition(format!(
            "{} was not made by this driver: set the deletionPolicy of its VolumeSnapshotContent to Retain, and delete it on \
             the host",
            host.name_of("VolumeSnapshot", name)
        )));
    }
    let source = snapshot.spec.source.persistent_volume_claim_name.as_deref();
    inspect::source(host, &snapshot.metadata, source).await?;
    needed.snapshot(host, name).await?;
    match host.snapshots().delete(name.as_str(), &host::of_uid(snapshot.metadata.uid.as_deref())).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&doing("delete"), &error)),
    }
}

/// All snapshots of ours; none on a host without snapshots.
pub(super) async fn all(host: &Host) -> Result<Vec<Found>, Refusal> {
    match host::list(&host.snapshots()).await {
        Ok(snapshots) => Ok(snapshots.iter().filter_map(found).collect()),
        Err(error) if host::is_absent(&error) => Ok(vec![]),
        Err(error) => {
            let doing = format!("list the VolumeSnapshots of namespace {} on the host", host.namespace());
            Err(Refusal::of_host(&doing, &error))
        }
    }
}

pub(super) async fn one(host: &Host, name: &HostName) -> Result<Option<Found>, Refusal> {
    match host.snapshots().get(name.as_str()).await {
        Ok(snapshot) => Ok(found(&snapshot)),
        Err(error) if host::is_not_found(&error) => Ok(None),
        Err(error) => {
            Err(Refusal::of_host(&format!("read {}", host.name_of("VolumeSnapshot", name)), &error))
        }
    }
}

/// Whether this driver made the snapshot, or the Go driver, which writes the labels alone.
fn is_ours(snapshot: &VolumeSnapshot) -> bool {
    let marks = [labels::SNAPSHOT_CLASS, labels::SNAPSHOT_VOLUME_MODE];
    SnapshotRecord::of(&snapshot.metadata).is_some()
        || marks.iter().all(|key| snapshot.labels().contains_key(*key))
}

fn found(snapshot: &VolumeSnapshot) -> Option<Found> {
    shown(snapshot).map(|shown| Found { snapshot: shown, is_cut: is_cut(snapshot) })
}

/// The snapshot as CSI sees it; `None` for one that is going, or that this driver could not restore.
fn shown(snapshot: &VolumeSnapshot) -> Option<Snapshot> {
    let metadata = &snapshot.metadata;
    if !is_ours(snapshot) || metadata.deletion_timestamp.is_some() {
        return None;
    }
    let recorded = SnapshotRecord::of(metadata);
    let status = &snapshot.status;
    let size = recorded.map(|record| record.size).filter(|size| *size > 0).or(status.restore_size);
    Some(Snapshot {
        size_bytes: size.and_then(|size| i64::try_from(size).ok()).unwrap_or(0),
        snapshot_id: snapshot.name_any(),
        source_volume_id: snapshot.spec.source.persistent_volume_claim_name.clone()?,
        creation_time: status.creation_time.as_ref().or(metadata.creation_timestamp.as_ref()).map(timestamp),
        ready_to_use: status.ready_to_use == Some(true),
        group_snapshot_id: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::csi::CreateSnapshotRequest;

    fn asked(name: &str, source: &str) -> Asked {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        Asked::of(&request).unwrap()
    }

    fn snapshot(status: &Value) -> VolumeSnapshot {
        let labels =
            json!({"harvesterhci.io/snapHostSC": "longhorn", "harvesterhci.io/snapHostVolumeMode": "Block"});
        let json = json!({"metadata": {"name": "snapshot-1", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"source": {"persistentVolumeClaimName": "pvc-1"}}, "status": status});
        serde_json::from_value(json).unwrap()
    }

    // docs/contract/csi-driver.md#odd-objects
    #[rstest]
    #[case::no_status(json!(null), false, 0)]
    #[case::not_ready(json!({"readyToUse": false}), false, 0)]
    #[case::no_size(json!({"readyToUse": true}), true, 0)]
    #[case::ready(json!({"readyToUse": true, "restoreSize": "1Gi", "creationTime": "2026-01-01T00:00:05Z"}), true, 1 << 30)]
    fn a_snapshot_is_shown_whatever_its_status_has(
        #[case] status: Value,
        #[case] ready: bool,
        #[case] size: i64,
    ) {
        let shown = shown(&snapshot(&status)).unwrap();
        assert_eq!((shown.ready_to_use, shown.size_bytes), (ready, size));
        assert!(shown.creation_time.is_some());
    }

    #[test]
    fn a_snapshot_without_a_source_or_of_somebody_else_is_not_shown() {
        let mut object = snapshot(&json!({}));
        object.spec.source.persistent_volume_claim_name = None;
        assert!(shown(&object).is_none());
        let mut object = snapshot(&json!({}));
        object.metadata.labels = None;
        assert!(shown(&object).is_none());
    }

    // docs/contract/csi-driver.md#snapshots
    #[rstest]
    #[case::not_ready("snapshot-1", "pvc-1", json!(null), Ok(false))]
    #[case::ready("snapshot-1", "pvc-1", json!({"readyToUse": true}), Ok(true))]
    #[case::other_source("snapshot-1", "pvc-2", json!({"readyToUse": true}), Err(Code::AlreadyExists))]
    #[case::failed("snapshot-1", "pvc-1", json!({"error": {"message": "no space"}}), Err(Code::Unavailable))]
    #[case::failed_once("snapshot-1", "pvc-1", json!({"readyToUse": true, "error": {"message": "no space"}}), Ok(true))]
    fn a_snapshot_that_is_there_is_the_answer_if_its_source_is_the_same(
        #[case] name: &str,
        #[case] source: &str,
        #[case] status: Value,
        #[case] expected: Result<bool, Code>,
    ) {
        let answer = matches(&asked(name, source), &snapshot(&status));
        assert_eq!(answer.map(|one| one.ready_to_use).map_err(|refusal| refusal.code), expected);
    }

    // docs/contract/csi-driver.md#cut
    #[rstest]
    #[case::no_status(json!(null), false)]
    #[case::begun(json!({"readyToUse": false, "boundVolumeSnapshotContentName": "c"}), false)]
    #[case::odd_time(json!({"creationTime": "soon"}), false)]
    #[case::cut(json!({"readyToUse": false, "creationTime": "2026-01-01T00:00:05Z"}), true)]
    #[case::ready(json!({"readyToUse": true}), true)]
    #[case::failed(json!({"error": {"message": "no space"}}), true)]
    fn a_snapshot_is_waited_for_until_it_is_cut_or_failed(#[case] status: Value, #[case] expected: bool) {
        assert_eq!(is_settled(&snapshot(&status)), expected);
    }

    #[test]
    fn a_class_with_a_longer_name_than_a_label_takes_is_in_the_annotation() {
        let class = format!("{}.example", "x".repeat(70));
        let claim = serde_json::from_value(json!({"metadata": {"name": "pvc-1"},
            "spec": {"storageClassName": class, "volumeMode": "Block", "resources": {"requests": {"storage": "1Gi"}}}}));
        let manifest = manifest(&asked("Snap", "pvc-1"), &claim.unwrap(), "longhorn-snapshot".to_owned());
        assert!(!manifest.labels().contains_key(labels::SNAPSHOT_CLASS));
        assert_eq!(SnapshotRecord::of(&manifest.metadata).unwrap().class, Some(class));
        assert_eq!(shown(&manifest).unwrap().size_bytes, 1 << 30);
    }
}
