//! Copies of volumes in the backup target, and volumes that are made of them (docs/contract/csi-driver.md#restore).
//!
//! ```text
//! VolumeRemoteBackup ──► VolumeSnapshot of its name, whose controller it is ──readyToUse──► success, sourceSpec
//! VolumeRemoteRestore ─► VolumeSnapshot and claim of its name ──readyToUse──► claim bound ──► success
//! ```
//! Contents are copied with snapshots, where there are disks ([`crate::disks`]). Annotation [`FAILS`] is why one does not
//! succeed.

use std::{fmt, sync::Arc};

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use controller_kit::{Action, Cache, ObjectKey, Queue, Watched};
use program::{Clock, TaskGroup};

use super::{
    is_bound,
    snapshot::{OF_BACKUP, VolumeSnapshot},
};
use crate::{
    admission::LONGHORN,
    host_objects::BACKUP_CLASS,
    refused::{Error, unless_gone, unless_there},
    settings::FAILS,
};

/// Harvester's mark of what it makes for a restore. Ours is an owner as well, for nobody else would remove it.
const RESTORED_BY: &str = "harvesterhci.io/volumeRemoteRestoreRef";

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "harvesterhci.io",
    version = "v1beta1",
    kind = "VolumeRemoteBackup",
    plural = "volumeremotebackups",
    namespaced,
    schema = "disabled",
    status = "RemoteStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeRemoteBackupSpec {
    /// A claim.
    pub source: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "harvesterhci.io",
    version = "v1beta1",
    kind = "VolumeRemoteRestore",
    plural = "volumeremoterestores",
    namespaced,
    schema = "disabled",
    status = "RemoteStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeRemoteRestoreSpec {
    /// `<namespace>/<name>` of a backup.
    pub from: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What became of either.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RemoteStatus {
    pub success: bool,
    /// Of a backup: the claim as it was.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub source_spec: Value,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl RemoteStatus {
    fn message(&self) -> Option<&str> {
        self.rest.get("conditions")?[0]["message"].as_str()
    }
}

/// The next write for a backup or a restore.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Nothing,
    /// Two objects to make.
    Snapshot(Value),
    Claim(Value),
    /// The merge patch of the status.
    Status(Value),
}

/// Harvester's one condition. It is written when its sentence is another one.
fn says(status: &RemoteStatus, message: &str, now: &str, more: &Value) -> Step {
    if status.message() == Some(message) {
        return Step::Nothing;
    }
    let is_ready = if message == COMPLETE { "True" } else { "False" };
    let mut patch = json!({"status": {"conditions": [
        {"type": "Ready", "status": is_ready, "reason": "", "message": message, "lastTransitionTime": now}]}});
    json_patch::merge(&mut patch, &json!({"status": more}));
    Step::Status(patch)
}

const COMPLETE: &str = "Operation complete";
const UNDER_WAY: &str = "Operation in progress";

fn is_usable(snapshot: &VolumeSnapshot) -> bool {
    snapshot.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
}

/// A snapshot of the object's name and of the class of backups.
fn snapshot_of<K>(object: &K, source: &Value) -> Value
where
    K: Resource<DynamicType = ()>,
{
    json!({"apiVersion": VolumeSnapshot::api_version(&()), "kind": VolumeSnapshot::kind(&()),
        "metadata": {"name": object.name_any(), "ownerReferences": [object.controller_owner_ref(&())]},
        "spec": {"volumeSnapshotClassName": BACKUP_CLASS, "source": source}})
}

fn of_backup(
    backup: &VolumeRemoteBackup,
    source: Option<&PersistentVolumeClaim>,
    snapshot: Option<&VolumeSnapshot>,
    now: &str,
) -> Step {
    let status = backup.status.clone().unwrap_or_default();
    if status.success || backup.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    if let Some(why) = backup.annotations().get(FAILS) {
        return says(&status, why, now, &json!({}));
    }
    let name = &backup.spec.source;
    let Some(source) = source else {
        return says(&status, &format!("persistentvolumeclaims \"{name}\" not found"), now, &json!({}));
    };
    match snapshot {
        None => Step::Snapshot(snapshot_of(backup, &json!({"persistentVolumeClaimName": name}))),
        Some(snapshot) if is_usable(snapshot) => {
            let handle = format!("bak://{name}/{}", backup.uid().unwrap_or_default());
            let more = json!({"success": true, "csiProvider": LONGHORN, "handle": handle, "sourceSpec": source.spec});
            says(&status, COMPLETE, now, &more)
        }
        Some(_) => says(&status, UNDER_WAY, now, &json!({})),
    }
}

/// What there is of a restore.
#[derive(Clone, Copy, Debug, Default)]
struct Made<'a> {
    snapshot: Option<&'a VolumeSnapshot>,
    claim: Option<&'a PersistentVolumeClaim>,
    /// The class binds a claim at its first use.
    waits: bool,
}

fn of_restore(
    restore: &VolumeRemoteRestore,
    backup: Option<&VolumeRemoteBackup>,
    made: Made<'_>,
    now: &str,
) -> Step {
    let status = restore.status.clone().unwrap_or_default();
    if status.success || restore.metadata.deletion_timestamp.is_some() {
        return Step::Nothing;
    }
    if let Some(why) = restore.annotations().get(FAILS) {
        return says(&status, why, now, &json!({}));
    }
    let (name, from) = (restore.name_any(), &restore.spec.from);
    let of_backup = backup.and_then(|backup| backup.status.as_ref()).filter(|status| status.success);
    let Some(of_backup) = of_backup else {
        let why = match backup {
            Some(_) => format!("source VolumeRemoteBackup {from} has no handle"),
            None => format!("volumeremotebackups.harvesterhci.io \"{from}\" not found"),
        };
        return says(&status, &why, now, &json!({}));
    };
    match (made.snapshot, made.claim) {
        (None, _) => {
            let mut snapshot = snapshot_of(restore, &json!({"volumeSnapshotContentName": name}));
            let mark = format!("{}/{name}", restore.namespace().unwrap_or_default());
            snapshot["metadata"]["annotations"] = json!({RESTORED_BY: mark, OF_BACKUP: from});
            Step::Snapshot(snapshot)
        }
        (Some(_), None) => {
            let field = |name: &str| of_backup.source_spec[name].clone();
            Step::Claim(
                json!({"metadata": {"name": name, "ownerReferences": [restore.controller_owner_ref(&())]},
                "spec": {"accessModes": field("accessModes"), "resources": field("resources"),
                    "storageClassName": field("storageClassName"), "volumeMode": field("volumeMode"),
                    "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}}}),
            )
        }
        (Some(snapshot), Some(claim)) if is_usable(snapshot) && (is_bound(claim) || made.waits) => {
            says(&status, COMPLETE, now, &json!({"success": true}))
        }
        (Some(_), Some(_)) => says(&status, UNDER_WAY, now, &json!({})),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Backup(ObjectKey),
    Restore(ObjectKey),
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backup(key) => write!(out, "backup {key}"),
            Self::Restore(key) => write!(out, "restore {key}"),
        }
    }
}

#[derive(Clone)]
struct Remote {
    harvester: Client,
    backups: Cache<VolumeRemoteBackup>,
    restores: Cache<VolumeRemoteRestore>,
    snapshots: Cache<VolumeSnapshot>,
    claims: Cache<PersistentVolumeClaim>,
    classes: Cache<StorageClass>,
    clock: Clock,
}

/// Keeps backups and restores until `tasks` ends.
pub(crate) fn start(
    tasks: &TaskGroup,
    harvester: &Client,
    snapshots: &Cache<VolumeSnapshot>,
    claims: &Cache<PersistentVolumeClaim>,
    classes: &Cache<StorageClass>,
    clock: Clock,
) {
    let remote = Remote {
        harvester: harvester.clone(),
        backups: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
        restores: Cache::start(tasks, Api::all(harvester.clone()), Default::default()),
        snapshots: snapshots.clone(),
        claims: claims.clone(),
        classes: classes.clone(),
        clock,
    };
    let queue = Queue::new();
    remote.on_change(&remote.backups, &queue);
    remote.on_change(&remote.restores, &queue);
    remote.on_change(&remote.snapshots, &queue);
    remote.on_change(&remote.claims, &queue);
    let in_life = tasks.clone();
    tasks.spawn_until_stop(async move {
        remote.backups.ready().await;
        remote.restores.ready().await;
        remote.snapshots.ready().await;
        remote.claims.ready().await;
        remote.classes.ready().await;
        queue.run(&in_life, 1, move |item| {
            let remote = remote.clone();
            async move { remote.reconcile(item).await.map(|()| Action::AwaitChange) }
        });
    });
}

impl Remote {
    /// Any change may be what one of them waits for; there are few.
    fn on_change<K: Watched>(&self, of: &Cache<K>, queue: &Queue<Item>) {
        let (backups, restores, add) = (self.backups.clone(), self.restores.clone(), queue.clone());
        of.on_change(move |_| {
            backups.list().iter().for_each(|one| add.add(Item::Backup(ObjectKey::of(&**one))));
            restores.list().iter().for_each(|one| add.add(Item::Restore(ObjectKey::of(&**one))));
        });
    }

    async fn reconcile(&self, item: Item) -> Result<(), Error> {
        let now = self.clock.now_text();
        match item {
            Item::Backup(key) => {
                let Some(backup) = self.backups.get(&key) else { return Ok(()) };
                let source = self.claims.get(&ObjectKey::new(&key.namespace, &backup.spec.source));
                let snapshot = self.snapshots.get(&key);
                let step = of_backup(&backup, source.as_deref(), snapshot.as_deref(), &now);
                self.act(&self.backups, &key, step).await
            }
            Item::Restore(key) => {
                let Some(restore) = self.restores.get(&key) else { return Ok(()) };
                let from = restore.spec.from.split_once('/');
                let backup = from.and_then(|(space, name)| self.backups.get(&ObjectKey::new(space, name)));
                let (snapshot, claim) = (self.snapshots.get(&key), self.claims.get(&key));
                let waits = claim.as_deref().is_some_and(|claim| self.waits(claim));
                let made = Made { snapshot: snapshot.as_deref(), claim: claim.as_deref(), waits };
                self.act(&self.restores, &key, of_restore(&restore, backup.as_deref(), made, &now)).await
            }
        }
    }

    fn waits(&self, claim: &PersistentVolumeClaim) -> bool {
        let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let class: Option<Arc<StorageClass>> =
            name.and_then(|name| self.classes.get(&ObjectKey::new("", name)));
        class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
    }

    async fn act<K>(&self, cache: &Cache<K>, key: &ObjectKey, step: Step) -> Result<(), Error>
    where
        K: Watched
            + Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + fmt::Debug
            + Serialize
            + serde::de::DeserializeOwned,
    {
        let (harvester, namespace) = (self.harvester.clone(), &key.namespace);
        match step {
            Step::Nothing => {}
            Step::Snapshot(json) => {
                let snapshot: VolumeSnapshot = serde_json::from_value(json).expect("what we made is one");
                let api = Api::<VolumeSnapshot>::namespaced(harvester, namespace);
                let made = unless_there(api.create(&PostParams::default(), &snapshot).await);
                if let Some(snapshot) = made.map_err(Error::of("make the snapshot of", key))? {
                    self.snapshots.wrote(snapshot);
                }
            }
            Step::Claim(json) => {
                let claim: PersistentVolumeClaim = serde_json::from_value(json).expect("what we made is one");
                let api = Api::<PersistentVolumeClaim>::namespaced(harvester, namespace);
                let made = unless_there(api.create(&PostParams::default(), &claim).await);
                if let Some(claim) = made.map_err(Error::of("make the claim of", key))? {
                    self.claims.wrote(claim);
                }
            }
            Step::Status(patch) => {
                let api = Api::<K>::namespaced(harvester, namespace);
                let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(object) = unless_gone(answer).map_err(Error::of("write status of", key))? {
                    cache.wrote(object);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::storage::snapshot::VolumeSnapshotSpec;

    const NOW: &str = "2026-11-21T12:00:02Z";

    fn object<K: serde::de::DeserializeOwned>(more: &Value) -> K {
        let mut json = json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "x",
            "metadata": {"name": "copy", "namespace": "shop", "uid": "u"},
            "spec": {"type": "lh", "source": "a", "from": "shop/copy"}});
        json_patch::merge(&mut json, more);
        serde_json::from_value(json).unwrap()
    }

    fn snapshot(is_ready: bool) -> VolumeSnapshot {
        let mut snapshot = VolumeSnapshot::new("copy", VolumeSnapshotSpec::default());
        snapshot.status = serde_json::from_value(json!({"readyToUse": is_ready})).unwrap();
        snapshot
    }

    fn claim(phase: &str) -> PersistentVolumeClaim {
        let json = json!({"metadata": {"name": "a"}, "status": {"phase": phase},
            "spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": "1Gi"}}}});
        serde_json::from_value(json).unwrap()
    }

    fn told(step: Step) -> String {
        match step {
            Step::Nothing => "nothing".to_owned(),
            Step::Snapshot(json) => format!("snapshot {}", json["spec"]["source"]),
            Step::Claim(json) => format!("claim {}", json["spec"]["resources"]["requests"]["storage"]),
            Step::Status(patch) => {
                let status = &patch["status"];
                format!("{} {}", status["success"], status["conditions"][0]["message"])
            }
        }
    }

    #[rstest]
    #[case::new(json!({}), true, None, r#"snapshot {"persistentVolumeClaimName":"a"}"#)]
    #[case::copies(json!({}), true, Some(false), r#"null "Operation in progress""#)]
    #[case::copied(json!({}), true, Some(true), r#"true "Operation complete""#)]
    #[case::no_source(json!({}), false, None, r#"null "persistentvolumeclaims \"a\" not found""#)]
    #[case::fails(json!({"metadata": {"annotations": {FAILS: "no target"}}}), true, None, r#"null "no target""#)]
    #[case::has_failed(json!({"metadata": {"annotations": {FAILS: "no target"}},
        "status": {"conditions": [{"message": "no target"}]}}), true, None, "nothing")]
    #[case::done(json!({"status": {"success": true}}), true, Some(true), "nothing")]
    fn a_backup_is_complete_when_its_snapshot_is(
        #[case] more: Value,
        #[case] has_source: bool,
        #[case] ready: Option<bool>,
        #[case] expected: &str,
    ) {
        let (source, snapshot) = (has_source.then(|| claim("Bound")), ready.map(snapshot));
        let step = of_backup(&object(&more), source.as_ref(), snapshot.as_ref(), NOW);
        assert_eq!(told(step), expected);
    }

    #[rstest]
    #[case::new(Some(true), None, None, r#"snapshot {"volumeSnapshotContentName":"copy"}"#)]
    #[case::then(Some(true), Some(false), None, r#"claim "1Gi""#)]
    #[case::copies(Some(true), Some(true), Some("Pending"), r#"null "Operation in progress""#)]
    #[case::copied(Some(true), Some(true), Some("Bound"), r#"true "Operation complete""#)]
    #[case::no_backup(
        None,
        None,
        None,
        r#"null "volumeremotebackups.harvesterhci.io \"shop/copy\" not found""#
    )]
    #[case::backup_under_way(
        Some(false),
        None,
        None,
        r#"null "source VolumeRemoteBackup shop/copy has no handle""#
    )]
    fn a_restore_is_complete_when_its_claim_is_bound(
        #[case] backup: Option<bool>,
        #[case] ready: Option<bool>,
        #[case] phase: Option<&str>,
        #[case] expected: &str,
    ) {
        let spec = claim("Bound").spec;
        let backup =
            backup.map(|success| object(&json!({"status": {"success": success, "sourceSpec": spec}})));
        let (snapshot, claim) = (ready.map(snapshot), phase.map(claim));
        let made = Made { snapshot: snapshot.as_ref(), claim: claim.as_ref(), waits: false };
        assert_eq!(told(of_restore(&object(&json!({})), backup.as_ref(), made, NOW)), expected);
    }

    #[test]
    fn a_claim_that_waits_for_its_first_use_is_enough_for_a_restore() {
        let backup = object(&json!({"status": {"success": true}}));
        let (snapshot, claim) = (snapshot(true), claim("Pending"));
        let made = Made { snapshot: Some(&snapshot), claim: Some(&claim), waits: true };
        let step = of_restore(&object(&json!({})), Some(&backup), made, NOW);
        assert_eq!(told(step), r#"true "Operation complete""#);
    }
}
