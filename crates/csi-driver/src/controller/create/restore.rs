//! A volume with the content of a remote backup: the host makes the claim, we see to its size
//! (docs/contract/csi-driver.md#restore).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::super::{classes, expand, snapshots::backup, wait};
use super::{claim, read, request::Asked, under_way};
use crate::{
    csi::CreateVolumeResponse,
    host::{
        Host,
        kinds::{HostCondition, VolumeRemoteBackup, VolumeRemoteRestore},
        quantity,
    },
    refusal::Refusal,
    volume::{
        access::Reach,
        record::{SnapshotRecord, VolumeRecord},
        size::Size,
    },
};

/// Kind of backup that Harvester makes.
pub(in super::super) const LONGHORN_BACKUP: &str = "lh";

pub(super) async fn restore(
    host: &Host,
    asked: &Asked,
    namespace: &str,
    backup_name: &str,
    existing: Option<PersistentVolumeClaim>,
    until: Instant,
) -> Result<CreateVolumeResponse, Refusal> {
    let is_half_made = |claim: &PersistentVolumeClaim| {
        VolumeRecord::of(claim).is_none() && claim.metadata.deletion_timestamp.is_none() && is_restored(claim)
    };
    if let Some(claim) = existing.filter(|claim| !is_half_made(claim)) {
        let size = claim::matches(asked, &claim)?;
        wait_for_growth(host, asked, &claim, until).await.map_err(under_way)?;
        return Ok(asked.answer(size));
    }
    let from = format!("{namespace}/{backup_name}");
    start(host, asked, &from, namespace, backup_name).await?;
    let size = fill(host, asked, until).await.map_err(under_way)?;
    Ok(asked.answer(size))
}

/// Waits for the host's claim and makes it the volume that is asked for.
async fn fill(host: &Host, asked: &Asked, until: Instant) -> Result<u64, Refusal> {
    let claim = restored(host, asked, until).await?;
    let source = claim::claimed(&claim).unwrap_or(0);
    let size = Size::from_source(asked.range.as_ref(), source)?;
    let patch = finish(asked, &claim, size, source);
    let patched =
        host.claims().patch(asked.name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
    let claim = patched.map_err(|error| expand::refusal_of_growth(host, &asked.name, &error))?;
    wait_for_growth(host, asked, &claim, until).await?;
    Ok(size.asked)
}

/// Creates the VolumeRemoteRestore, or finds that it is there.
async fn start(host: &Host, asked: &Asked, from: &str, namespace: &str, name: &str) -> Result<(), Refusal> {
    let doing = |verb: &str| format!("{verb} {}", host.name_of("VolumeRemoteRestore", &asked.name));
    let existing = host.restores().get_opt(asked.name.as_str()).await;
    if let Some(restore) = existing.map_err(|error| Refusal::of_host(&doing("read"), &error))? {
        return is_the_same(&restore, from, asked);
    }
    let backup = backup::read(host, namespace, name).await?;
    let backup = backup
        .ok_or_else(|| Refusal::not_found(format!("there is no VolumeRemoteBackup {from} on the host")))?;
    if !backup.status.success {
        return Err(Refusal::precondition(format!(
            "VolumeRemoteBackup {from} on the host is not complete: {}",
            said(&backup.status.conditions)
        )));
    }
    if SnapshotRecord::of(&backup.metadata).is_some_and(|record| record.reach == Reach::Export) {
        return Err(Refusal::invalid(
            "the backup is of a volume for many nodes, whose files are no disk: restore it on the host",
        ));
    }
    if let Some(source) = backup::size_of(&backup) {
        let size = Size::from_source(asked.range.as_ref(), source)?;
        if size.on_host_with(source) > source {
            check_growth(host, &backup, source).await?;
        }
    }
    let mut restore = VolumeRemoteRestore::named(asked.name.as_str());
    // people find by it one that was made after the deletion of its volume
    restore.metadata.annotations = Some(BTreeMap::from([claim::annotation(asked, asked.size.asked)]));
    restore.spec.r#type = LONGHORN_BACKUP.to_owned();
    restore.spec.from = from.to_owned();
    match host.restores().create(&PostParams::default(), &restore).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Err(Refusal::aborted(format!(
            "{} was created by somebody else just now: call again",
            host.name_of("VolumeRemoteRestore", &asked.name)
        ))),
        Err(error) => Err(Refusal::of_host(&doing("create"), &error)),
    }
}

/// Refuses a larger volume of a class that is known to have none that grow: it would stay half made.
async fn check_growth(host: &Host, backup: &VolumeRemoteBackup, source: u64) -> Result<(), Refusal> {
    let class = backup.status.source_spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let class = match classes::of(host, class).await {
        Err(refusal) if classes::is_gone(&refusal) => None,
        known => known?,
    };
    match class.filter(|class| class.allow_volume_expansion != Some(true)) {
        Some(class) => Err(Refusal::precondition(format!(
            "the host restores into a volume of the size that was backed up, {source} bytes, and volumes of StorageClass {} \
             on the host do not grow: ask for that size, or set allowVolumeExpansion there",
            class.name_any()
        ))),
        None => Ok(()),
    }
}

fn is_the_same(restore: &VolumeRemoteRestore, from: &str, asked: &Asked) -> Result<(), Refusal> {
    let name = &asked.name;
    if restore.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::aborted(format!("volume {name} is being deleted: call again when it is gone")));
    }
    if restore.spec.from == from {
        return Ok(());
    }
    Err(Refusal::new(
        Code::AlreadyExists,
        format!(
            "volume {name} is being made of backup {} already: take another name, or delete it first",
            restore.spec.from
        ),
    ))
}

/// The claim, when the host has filled it.
async fn restored(host: &Host, asked: &Asked, until: Instant) -> Result<PersistentVolumeClaim, Refusal> {
    let name = host.name_of("VolumeRemoteRestore", &asked.name);
    let what = format!("{name} has not succeeded");
    let status = |restore: &VolumeRemoteRestore| format!("{:?}", restore.status);
    let is_done = |restore: &VolumeRemoteRestore| restore.status.success;
    let (end, of) = (wait::end(until, wait::WAITS_FOR), asked.name.as_str());
    match wait::while_it_changes(end, host.restores(), of, &what, status, is_done).await {
        Ok(Some(_)) => {}
        Ok(None) => return Err(Refusal::aborted(format!("{name} was deleted: call again"))),
        Err(refusal) => return Err(with_the_hosts_reason(host, asked, refusal).await),
    }
    match read(host, &asked.name).await? {
        Some(claim) if is_restored(&claim) => Ok(claim),
        _ => Err(Refusal::aborted(format!("{name} succeeded and its claim is not there: call again"))),
    }
}

async fn with_the_hosts_reason(host: &Host, asked: &Asked, refusal: Refusal) -> Refusal {
    match host.restores().get_opt(asked.name.as_str()).await {
        Ok(Some(restore)) => {
            Refusal::new(refusal.code, format!("{}; {}", refusal.message, said(&restore.status.conditions)))
        }
        _ => refusal,
    }
}

/// The last thing that the host said about a backup or a restore.
pub(in super::super) fn said(conditions: &[HostCondition]) -> String {
    let words = conditions.iter().rev().find(|one| !one.message.is_empty() || !one.reason.is_empty());
    words.map_or_else(
        || "the host gives no reason".to_owned(),
        |one| format!("the host says: {} {}", one.reason, one.message),
    )
}

/// The annotation, and the size where a larger one is asked for, in one write.
fn finish(asked: &Asked, claim: &PersistentVolumeClaim, size: Size, source: u64) -> Value {
    let (key, record) = claim::annotation(asked, size.asked);
    let mut patch =
        json!({"metadata": {"resourceVersion": claim.resource_version(), "annotations": {key: record}}});
    let on_host = size.on_host_with(source);
    if on_host > source {
        patch["spec"] = json!({"resources": {"requests": {"storage": quantity::of_bytes(on_host)}}});
    }
    patch
}

async fn wait_for_growth(
    host: &Host,
    asked: &Asked,
    claim: &PersistentVolumeClaim,
    until: Instant,
) -> Result<(), Refusal> {
    let claimed = claim::claimed(claim).unwrap_or(0);
    expand::wait_until_grown(host, &asked.name, claim, claimed, until).await
}

/// Whether the host made the claim for a VolumeRemoteRestore.
pub(in super::super) fn is_restored(claim: &PersistentVolumeClaim) -> bool {
    claim.owner_references().iter().any(|owner| owner.kind == "VolumeRemoteRestore")
}
