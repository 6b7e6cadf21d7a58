//! Snapshots of volumes, and volumes that are made from a snapshot or another volume.
//!
//! ```text
//! VolumeSnapshot, source bound ──2 s──► readyToUse, restoreSize, creationTime
//! claim with a dataSource ──source ready, and as large──► bound
//! ```
//! A snapshot whose status somebody wrote keeps it: so a test has one that is never ready. Contents are copied where there
//! are disks ([`crate::disks`]).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use controller_kit::{Action, Cache, ObjectKey, PendingEvent, Queue, Recorder};
use program::{Clock, TaskGroup};

use super::is_bound;
use crate::{
    quota::thousandths,
    refused::{Error, unless_gone},
};

/// Ours, on the snapshot of a restore: the backup that has its contents, `<namespace>/<name>`. On a Harvester a
/// VolumeSnapshotContent leads there.
pub(crate) const OF_BACKUP: &str = "sim.harvesterhci.io/of-backup";

/// The time from a snapshot's creation until it can be used.
pub const READY_AFTER: Duration = Duration::from_secs(2);

/// A snapshot of a claim's volume, as far as the simulation reads it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    namespaced,
    schema = "disabled",
    status = "VolumeSnapshotStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    pub source: VolumeSnapshotSource,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What a snapshot is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What became of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<String>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<&str> {
    Some(claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.as_str())
}

/// The step for a snapshot that has been seen for `seen_for`.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Nothing,
    Wait(Duration),
    /// A warning: its source is not there.
    Warn(String),
    /// The merge patch of its status.
    Ready(Value),
}

fn of_snapshot(
    snapshot: &VolumeSnapshot,
    source: Option<&PersistentVolumeClaim>,
    seen_for: Duration,
    now: &str,
) -> Step {
    if snapshot.status.is_some() || snapshot.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    let size = match (&snapshot.spec.source.persistent_volume_claim_name, source) {
        (None, _) => None,
        (Some(_), Some(claim)) if is_bound(claim) => capacity(claim),
        (Some(name), _) => {
            return Step::Warn(format!("persistentvolumeclaim {name} is not there, or not bound"));
        }
    };
    if let Some(left) = READY_AFTER.checked_sub(seen_for).filter(|left| !left.is_zero()) {
        return Step::Wait(left);
    }
    let content = format!("snapcontent-{}", snapshot.uid().unwrap_or_default());
    Step::Ready(
        json!({"status": {"boundVolumeSnapshotContentName": content, "creationTime": now, "readyToUse": true,
        "restoreSize": size}}),
    )
}

/// Why a claim's volume cannot be made from what it names now.
pub(super) fn obstacle(
    claim: &PersistentVolumeClaim,
    snapshot: impl Fn(&str) -> Option<Arc<VolumeSnapshot>>,
    other: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let wanted = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let wanted = wanted.and_then(|size| thousandths(&size.0));
    // Longhorn copies into a volume of the size that the source volume has now, also a snapshot of before it grew
    let differs = |size: Option<&str>| {
        let size = size?;
        (wanted != thousandths(size))
            .then(|| format!("the requested size is different than the size {size} of the source"))
    };
    let source = spec.data_source.clone().map(|source| (source.kind, source.name));
    let reference = spec.data_source_ref.clone().map(|source| (source.kind, source.name));
    let (kind, name) = source.or(reference)?;
    match kind.as_str() {
        "VolumeSnapshot" => {
            let snapshot = snapshot(&name);
            let status = snapshot.as_ref().and_then(|snapshot| snapshot.status.as_ref());
            match status.filter(|status| status.ready_to_use == Some(true)) {
                Some(status) => {
                    let of = snapshot
                        .as_ref()
                        .and_then(|it| it.spec.source.persistent_volume_claim_name.as_deref());
                    let volume = of.and_then(&other);
                    differs(volume.as_deref().and_then(capacity).or(status.restore_size.as_deref()))
                }
                None => Some(format!("snapshot {name} is not there, or not ready")),
            }
        }
        "PersistentVolumeClaim" => match other(&name).filter(|other| is_bound(other)) {
            Some(other) => differs(capacity(&other)),
            None => Some(format!("claim {name} is not there, or not bound")),
        },
        _ => None,
    }
}

/// Keeps snapshots until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    claims: &Cache<PersistentVolumeClaim>,
    clock: Clock,
    events: &Recorder,
) -> Cache<VolumeSnapshot> {
    let snapshots: Cache<VolumeSnapshot> =
        Cache::start(tasks, Api::all(harvester.clone()), Default::default());
    let queue: Queue<ObjectKey> = Queue::new();
    let add = queue.clone();
    snapshots.on_change(move |change| add.add(change.key.clone()));
    let (add, all) = (queue.clone(), snapshots.clone());
    claims.on_change(move |_| {
        // one that waits for its source
        for snapshot in all.list().into_iter().filter(|snapshot| snapshot.status.is_none()) {
            add.add(ObjectKey::of(&*snapshot));
        }
    });
    let worker = Snapshots {
        harvester: harvester.clone(),
        snapshots: snapshots.clone(),
        claims: claims.clone(),
        clock,
        events: events.clone(),
        seen: Arc::default(),
    };
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        worker.snapshots.ready().await;
        worker.claims.ready().await;
        queue.run(&in_life, 1, move |key| {
            let worker = worker.clone();
            async move { worker.reconcile(key).await }
        });
    });
    snapshots
}

#[derive(Clone)]
struct Snapshots {
    harvester: Client,
    snapshots: Cache<VolumeSnapshot>,
    claims: Cache<PersistentVolumeClaim>,
    clock: Clock,
    events: Recorder,
    /// When each was first seen, by UID.
    seen: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Snapshots {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(snapshot) = self.snapshots.get(&key) else { return Ok(Action::AwaitChange) };
        let seen_for = {
            let mut seen = self.seen.lock().expect("no panic while remembering");
            seen.entry(snapshot.uid().unwrap_or_default()).or_insert_with(Instant::now).elapsed()
        };
        let source = snapshot.spec.source.persistent_volume_claim_name.as_ref();
        let source = source.and_then(|name| self.claims.get(&ObjectKey::new(&key.namespace, name)));
        match of_snapshot(&snapshot, source.as_deref(), seen_for, &self.clock.now_text()) {
            Step::Nothing => Ok(Action::AwaitChange),
            Step::Wait(left) => Ok(Action::RequeueAfter(left)),
            Step::Warn(why) => {
                let event = PendingEvent::warning("SnapshotContentCreationFailed", why);
                self.events.publish(&snapshot.object_ref(&()), &event);
                Ok(Action::AwaitChange)
            }
            Step::Ready(patch) => {
                let api: Api<VolumeSnapshot> = Api::namespaced(self.harvester.clone(), &key.namespace);
                let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(snapshot) =
                    unless_gone(answer).map_err(Error::of("write status of snapshot", &key))?
                {
                    self.snapshots.wrote(snapshot);
                }
                Ok(Action::AwaitChange)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NOW: &str = "2026-11-21T12:00:02Z";

    fn claim(phase: &str, size: &str) -> PersistentVolumeClaim {
        let json = json!({"metadata": {"name": "a"}, "spec": {"resources": {"requests": {"storage": size}}},
            "status": {"phase": phase, "capacity": {"storage": size}}});
        serde_json::from_value(json).unwrap()
    }

    fn snapshot(status: &Value) -> VolumeSnapshot {
        let mut json = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "uid": "u"}, "spec": {"source": {"persistentVolumeClaimName": "a"}}});
        json_patch::merge(&mut json, &json!({"status": status}));
        serde_json::from_value(json).unwrap()
    }

    #[rstest]
    #[case::at_once(Value::Null, Some(claim("Bound", "1Gi")), 0, "wait 2000")]
    #[case::a_moment_before(Value::Null, Some(claim("Bound", "1Gi")), 1_999, "wait 1")]
    #[case::then(Value::Null, Some(claim("Bound", "1Gi")), 2_000, "ready")]
    #[case::no_source(Value::Null, None, 2_000, "warn")]
    #[case::source_not_bound(Value::Null, Some(claim("Pending", "1Gi")), 2_000, "warn")]
    #[case::somebodys_status(json!({"readyToUse": false}), Some(claim("Bound", "1Gi")), 2_000, "")]
    fn a_snapshot_is_ready_two_seconds_after_it_was_seen(
        #[case] status: Value,
        #[case] source: Option<PersistentVolumeClaim>,
        #[case] seen_for: u64,
        #[case] expected: &str,
    ) {
        let step = of_snapshot(&snapshot(&status), source.as_ref(), Duration::from_millis(seen_for), NOW);
        let told = match step {
            Step::Nothing => String::new(),
            Step::Wait(left) => format!("wait {}", left.as_millis()),
            Step::Warn(_) => "warn".to_owned(),
            Step::Ready(patch) => {
                let status = &patch["status"];
                assert_eq!((&status["restoreSize"], &status["creationTime"]), (&json!("1Gi"), &json!(NOW)));
                assert_eq!((&status["readyToUse"], &status["error"]), (&json!(true), &Value::Null));
                "ready".to_owned()
            }
        };
        assert_eq!(told, expected);
    }

    #[rstest]
    #[case::no_source(json!(null), None)]
    #[case::ready(json!({"kind": "VolumeSnapshot", "name": "ready"}), None)]
    #[case::not_ready(json!({"kind": "VolumeSnapshot", "name": "new"}), Some("snapshot new is not there, or not ready"))]
    #[case::larger(json!({"kind": "VolumeSnapshot", "name": "large"}), Some("different than the size 4Gi"))]
    #[case::smaller(json!({"kind": "VolumeSnapshot", "name": "small"}), Some("different than the size 512Mi"))]
    #[case::claim(json!({"kind": "PersistentVolumeClaim", "name": "bound"}), None)]
    #[case::claim_unbound(json!({"kind": "PersistentVolumeClaim", "name": "b"}), Some("claim b is not there"))]
    #[case::other(json!({"kind": "VolumeImportSource", "name": "blank"}), None)]
    fn a_volume_is_made_of_a_source_that_is_ready_and_as_large(
        #[case] source: Value,
        #[case] expected: Option<&str>,
    ) {
        let mut wanted = claim("Pending", "1Gi");
        wanted.spec.as_mut().unwrap().data_source = serde_json::from_value(source).unwrap();
        let of = |name: &str| match name {
            "ready" => Some(Arc::new(snapshot(&json!({"readyToUse": true, "restoreSize": "1Gi"})))),
            "large" => Some(Arc::new(snapshot(&json!({"readyToUse": true, "restoreSize": "4Gi"})))),
            "small" => Some(Arc::new(snapshot(&json!({"readyToUse": true, "restoreSize": "512Mi"})))),
            "new" => Some(Arc::new(snapshot(&Value::Null))),
            _ => None,
        };
        let other = |name: &str| (name == "bound").then(|| Arc::new(claim("Bound", "1Gi")));
        let why = obstacle(&wanted, of, other);
        assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
        assert!(why.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
