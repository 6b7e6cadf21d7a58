//! VolumeRemoteBackups of the host: read in each namespace, written and deleted in the one of the volumes
//! (docs/contract/csi-driver.md#restore).

use std::collections::BTreeMap;

use harvester_api::{annotations::CSI_SNAPSHOT, labels};
use kube::{ResourceExt, api::PostParams};
use tokio::time::Instant;
use tonic::Code;

use super::{Asked, Found, handle::Handle, timestamp};
use crate::{
    controller::{
        create::{LONGHORN_BACKUP, said},
        inspect, machine_disk, wait,
    },
    csi::Snapshot,
    host::{
        self, Host,
        kinds::{VolumeRemoteBackup, VolumeRemoteRestore},
        quantity,
    },
    refusal::Refusal,
    volume::record::SnapshotRecord,
};

/// The backup of this name, which the host is asked for if it is not there.
pub(super) async fn ask(host: &Host, asked: &Asked) -> Result<VolumeRemoteBackup, Refusal> {
    let object = || host.name_of("VolumeRemoteBackup", &asked.name);
    let api = host.backups_of(host.namespace());
    let existing = api.get_opt(asked.name.as_str()).await;
    let existing = existing.map_err(|error| Refusal::of_host(&format!("read {}", object()), &error))?;
    if let Some(backup) = existing {
        inspect::source(host, &backup.metadata, Some(&backup.spec.source)).await?;
        return Ok(backup);
    }
    let claim = inspect::existing(host, &asked.source).await?;
    machine_disk::refuse(host, &claim, "back up").await?;
    let mut backup = VolumeRemoteBackup::named(asked.name.as_str());
    if labels::is_value(asked.source.as_str()) {
        let mark = (labels::BACKUP_SOURCE_VOLUME.to_owned(), asked.source.to_string());
        backup.metadata.labels = Some(BTreeMap::from([mark]));
    }
    let text = serde_json::to_string(&asked.record(&claim)).expect("a struct of texts and numbers");
    backup.metadata.annotations = Some(BTreeMap::from([(CSI_SNAPSHOT.to_owned(), text)]));
    backup.spec.r#type = LONGHORN_BACKUP.to_owned();
    backup.spec.source = asked.source.to_string();
    match api.create(&PostParams::default(), &backup).await {
        Ok(backup) => Ok(backup),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            Err(Refusal::aborted(format!("{} was created by somebody else just now: call again", object())))
        }
        Err(error) if host::is_not_found(&error) => Err(Refusal::precondition(
            "the host has no VolumeRemoteBackups: remote backups need Harvester 1.8",
        )),
        Err(error) => Err(Refusal::of_host(&format!("create {}", object()), &error)),
    }
}

/// The backup when it is complete: nothing of the host says earlier that it has the content of now.
pub(super) async fn made(
    host: &Host,
    asked: &Asked,
    backup: &VolumeRemoteBackup,
    end: Instant,
) -> Result<Snapshot, Refusal> {
    let shown = matches(asked, backup)?;
    if shown.ready_to_use {
        return Ok(shown);
    }
    let (api, name) = (host.backups_of(host.namespace()), asked.name.as_str());
    let object = host.name_of("VolumeRemoteBackup", name);
    let what = format!("{object} is not complete");
    let is_done =
        |backup: &VolumeRemoteBackup| backup.status.success || backup.metadata.deletion_timestamp.is_some();
    // an upload takes hours, and the host tells how far it is by nothing that ends the wait
    let status = |backup: &VolumeRemoteBackup| format!("{:?}", backup.status);
    match wait::while_it_changes(end, api.clone(), name, &what, status, is_done).await {
        Ok(Some(backup)) => matches(asked, &backup),
        Ok(None) => Err(Refusal::aborted(format!("{object} was deleted: call again"))),
        Err(refusal) => Err(match api.get_opt(name).await {
            Ok(Some(backup)) => Refusal::new(
                refusal.code,
                format!("{}; {}", refusal.message, said(&backup.status.conditions)),
            ),
            _ => refusal,
        }),
    }
}

/// The backup that is there, if it is the one that is asked for.
fn matches(asked: &Asked, backup: &VolumeRemoteBackup) -> Result<Snapshot, Refusal> {
    let name = &asked.name;
    if backup.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::aborted(format!("backup {name} is being deleted: call again when it is gone")));
    }
    let differs = |why: String| {
        Refusal::new(
            Code::AlreadyExists,
            format!("backup {name} is there already, and {why}: take another name"),
        )
    };
    if let Some(record) = SnapshotRecord::of(&backup.metadata).filter(|record| record.name != asked.csi_name)
    {
        return Err(differs(format!("it was created as {:?}", record.name)));
    }
    match shown(backup) {
        Some(shown) if shown.source_volume_id == asked.source.as_str() => Ok(shown),
        _ => Err(differs(format!("it is of volume {:?}", backup.spec.source))),
    }
}

/// Those of other namespaces belong to others, who may need them still.
pub(super) async fn delete(host: &Host, namespace: &str, name: &str) -> Result<(), Refusal> {
    if namespace != host.namespace() {
        return Err(Refusal::precondition(format!(
            "VolumeRemoteBackup {namespace}/{name} on the host is not of our namespace {}: set the deletionPolicy of its \
             VolumeSnapshotContent to Retain, and delete it where it was made",
            host.namespace()
        )));
    }
    let object = || host.name_of("VolumeRemoteBackup", name);
    let Some(backup) = read(host, namespace, name).await? else { return Ok(()) };
    if !is_ours(&backup) {
        return Err(Refusal::precondition(format!(
            "{} was not made by this driver: set the deletionPolicy of its VolumeSnapshotContent to Retain, and delete it on \
             the host",
            object()
        )));
    }
    inspect::source(host, &backup.metadata, Some(&backup.spec.source)).await?;
    refuse_if_restored(host, &format!("{namespace}/{name}")).await?;
    match host.backups_of(namespace).delete(name, &host::of_uid(backup.metadata.uid.as_deref())).await {
        Ok(_) => Ok(()),
        Err(error) if host::is_not_found(&error) => Ok(()),
        Err(error) => Err(Refusal::of_host(&format!("delete {}", object()), &error)),
    }
}

/// The host reads the backup until the restore has succeeded, and protects it by nothing.
/// Restores in other namespaces are not ours to see.
async fn refuse_if_restored(host: &Host, from: &str) -> Result<(), Refusal> {
    let restores = match host::list(&host.restores()).await {
        Ok(restores) => restores,
        Err(error) if host::is_absent(&error) => return Ok(()),
        Err(error) => {
            let doing =
                format!("list the VolumeRemoteRestores of namespace {} on the host", host.namespace());
            return Err(Refusal::of_host(&doing, &error));
        }
    };
    let reads = |it: &&VolumeRemoteRestore| {
        it.spec.from == from && !it.status.success && it.metadata.deletion_timestamp.is_none()
    };
    match restores.iter().find(reads) {
        None => Ok(()),
        Some(restore) => Err(Refusal::precondition(format!(
            "VolumeRemoteBackup {from} on the host is being restored into volume {}: wait until that is bound, or delete it \
             first",
            restore.name_any()
        ))),
    }
}

/// Whether this driver made the backup, or the Go driver, which writes the label alone.
fn is_ours(backup: &VolumeRemoteBackup) -> bool {
    backup.labels().contains_key(labels::BACKUP_SOURCE_VOLUME)
        || SnapshotRecord::of(&backup.metadata).is_some()
}

/// All backups of ours; none on a host without backups.
pub(super) async fn all(host: &Host) -> Result<Vec<Found>, Refusal> {
    match host::list(&host.backups_of(host.namespace())).await {
        Ok(backups) => Ok(backups.iter().filter(|one| is_ours(one)).filter_map(found).collect()),
        Err(error) if host::is_absent(&error) => Ok(vec![]),
        Err(error) => {
            let doing = format!("list the VolumeRemoteBackups of namespace {} on the host", host.namespace());
            Err(Refusal::of_host(&doing, &error))
        }
    }
}

/// A backup of any namespace: whoever has its ID was told it.
pub(in super::super) async fn read(
    host: &Host,
    namespace: &str,
    name: &str,
) -> Result<Option<VolumeRemoteBackup>, Refusal> {
    match host.backups_of(namespace).get(name).await {
        Ok(backup) => Ok(Some(backup)),
        Err(error) if host::is_not_found(&error) => Ok(None),
        Err(error) => {
            Err(Refusal::of_host(&format!("read VolumeRemoteBackup {namespace}/{name} on the host"), &error))
        }
    }
}

/// What the claim asked for when it was backed up, in bytes.
pub(in super::super) fn size_of(backup: &VolumeRemoteBackup) -> Option<u64> {
    let spec = backup.status.source_spec.as_ref()?;
    quantity::bytes(spec.resources.as_ref()?.requests.as_ref()?.get("storage")?)
}

/// Nothing of the host says that a backup is cut before it is complete.
pub(super) fn found(backup: &VolumeRemoteBackup) -> Option<Found> {
    shown(backup).map(|snapshot| Found { is_cut: snapshot.ready_to_use, snapshot })
}

/// The backup as CSI sees it; `None` for one that is going, or has no source.
fn shown(backup: &VolumeRemoteBackup) -> Option<Snapshot> {
    if backup.metadata.deletion_timestamp.is_some() || backup.spec.source.is_empty() {
        return None;
    }
    let recorded = SnapshotRecord::of(&backup.metadata).map(|record| record.size).filter(|size| *size > 0);
    let size = recorded.or_else(|| size_of(backup));
    let namespace = backup.namespace().unwrap_or_default();
    Some(Snapshot {
        size_bytes: size.and_then(|size| i64::try_from(size).ok()).unwrap_or(0),
        snapshot_id: Handle::backup(&namespace, &backup.name_any()),
        source_volume_id: backup.spec.source.clone(),
        creation_time: backup.metadata.creation_timestamp.as_ref().map(timestamp),
        ready_to_use: backup.status.success,
        group_snapshot_id: String::new(),
    })
}
