//! The snapshot or the volume that another volume is made of, as the host has it.

use harvester_api::labels;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, TypedLocalObjectReference},
    storage::v1::StorageClass,
};
use kube::ResourceExt;
use tokio::time::Instant;

use super::super::{
    classes::{self, LONGHORN},
    expand, inspect, machine_disk, needed, wait,
};
use super::claim::{Content, SNAPSHOT_GROUP, claimed};
use crate::{
    host::{self, Host, LONGHORN_SYSTEM, kinds::VolumeSnapshot},
    refusal::Refusal,
    volume::{
        name::HostName,
        record::{self, SnapshotRecord},
    },
};

/// A snapshot, which has to be ready, and its class, which has to be there still.
pub(super) async fn snapshot(host: &Host, name: &HostName) -> Result<Content, Refusal> {
    let (content, snapshot) = match host.snapshots().get(name.as_str()).await {
        Ok(snapshot) => (of_snapshot(host, name, &snapshot)?, snapshot),
        Err(error) if host::is_not_found(&error) => {
            return Err(Refusal::not_found(format!("there is no {}", host.name_of("VolumeSnapshot", name))));
        }
        Err(error) => {
            let doing = format!("read {}", host.name_of("VolumeSnapshot", name));
            return Err(Refusal::of_host(&doing, &error));
        }
    };
    let source = snapshot.spec.source.persistent_volume_claim_name.as_deref();
    let source = inspect::source(host, &snapshot.metadata, source).await?;
    let class = classes::of(host, content.class.as_deref()).await?;
    let content = with(content, class.as_ref());
    // Longhorn copies a snapshot that is inside its volume into one of the size that this volume has now, which may have
    // grown since (docs/contract/csi-driver.md#filled)
    let source = source.filter(|_| content.copies_equals);
    let class = snapshot.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
    let copied_into = match source.filter(|source| expand::capacity(source).is_some()) {
        Some(source) if !needed::outlives(host, class).await? => size_of_now(host, &source).await?,
        _ => None,
    };
    Ok(Content { copied_into, ..content })
}

/// A volume.
pub(super) async fn volume(host: &Host, name: &HostName, until: Instant) -> Result<Content, Refusal> {
    let doing = || format!("read {}", host.claim_name(name));
    let claim = host.claims().get_opt(name.as_str()).await;
    let claim = claim.map_err(|error| Refusal::of_host(&doing(), &error))?;
    let claim = there(name, claim)?;
    host.check_owner(&claim).await?;
    machine_disk::refuse(host, &claim, "copy").await?;
    let content = of_volume(&claim);
    let class = classes::of(host, content.class.as_deref()).await?;
    if let Some(class) = class.as_ref().filter(|class| classes::waits_for_consumer(class)) {
        // it would have the content of the time of its first attachment
        return Err(Refusal::precondition(format!(
            "StorageClass {} of volume {name} on the host waits for a first consumer, and copies when the copy is attached \
             and not now: take a snapshot and restore it",
            class.name_any()
        )));
    }
    let what = format!("{}, which is to be copied, is not bound", host.claim_name(name));
    let is_settled = |claim: &PersistentVolumeClaim| {
        host::bound_volume(claim).is_some() || claim.metadata.deletion_timestamp.is_some()
    };
    let status = |claim: &PersistentVolumeClaim| claim.status.clone();
    let end = wait::end(until, wait::WAITS_FOR);
    let bound = wait::while_it_changes(end, host.claims(), name.as_str(), &what, status, is_settled).await?;
    let claim = there(name, bound)?;
    let content = with(of_volume(&claim), class.as_ref());
    let copied_into = if content.copies_equals { size_of_now(host, &claim).await? } else { None };
    Ok(Content { copied_into, ..content })
}

/// The size that Longhorn copies into: of its own volume, which is the new one as soon as a growth begins, while the
/// claim's is the old one until it has ended.
async fn size_of_now(host: &Host, claim: &PersistentVolumeClaim) -> Result<Option<u64>, Refusal> {
    let (capacity, claimed) = (expand::capacity(claim), claimed(claim));
    let grows = capacity.is_some() && capacity < claimed;
    let Some(volume) = host::bound_volume(claim).filter(|_| grows) else { return Ok(capacity) };
    let size = match host.longhorn_volumes().get(volume).await {
        Ok(volume) => volume.spec.size.parse().ok(),
        Err(error) if host::is_absent(&error) => None,
        Err(error) => {
            let doing = format!("read Volume {LONGHORN_SYSTEM}/{volume} on the host");
            return Err(Refusal::of_host(&doing, &error));
        }
    };
    let grown = claimed.filter(|claimed| expand::is_grown(claim, *claimed));
    // of one that failed nobody says more, and its source is not to wait for it for ever
    let failed = capacity.filter(|_| expand::has_failed(claim));
    size.or(grown).or(failed).map(Some).ok_or_else(|| {
        Refusal::aborted(format!(
            "{} is growing, and is copied when it has grown: call again",
            host.claim_name(claim.name_any())
        ))
    })
}

/// What its class says about the content, as far as it is known.
fn with(content: Content, class: Option<&StorageClass>) -> Content {
    Content {
        copies_equals: class.is_none_or(|class| class.provisioner == LONGHORN),
        waits: class.is_some_and(classes::waits_for_consumer),
        grows: class.is_none_or(|class| class.allow_volume_expansion == Some(true)),
        ..content
    }
}

fn there(name: &HostName, claim: Option<PersistentVolumeClaim>) -> Result<PersistentVolumeClaim, Refusal> {
    claim.filter(|claim| claim.metadata.deletion_timestamp.is_none()).ok_or_else(|| {
        Refusal::not_found(format!("there is no volume {name} to copy, or it is being deleted"))
    })
}

fn of_snapshot(host: &Host, name: &HostName, snapshot: &VolumeSnapshot) -> Result<Content, Refusal> {
    let is_ready = snapshot.status.ready_to_use == Some(true);
    if !is_ready || snapshot.metadata.deletion_timestamp.is_some() {
        return Err(Refusal::precondition(format!(
            "{} is not ready, or is being deleted: wait until it is ready",
            host.name_of("VolumeSnapshot", name)
        )));
    }
    let recorded = SnapshotRecord::of(&snapshot.metadata);
    let (class, mode, reach) = match recorded {
        Some(record) => (record.class, record.volume_mode, Some(record.reach)),
        None => {
            let label = |key: &str| snapshot.labels().get(key).cloned();
            let labels = label(labels::SNAPSHOT_CLASS).zip(label(labels::SNAPSHOT_VOLUME_MODE));
            let Some((class, mode)) = labels else {
                return Err(Refusal::precondition(format!(
                    "{} does not say of which StorageClass its volume was: set its labels {} and {}",
                    host.name_of("VolumeSnapshot", name),
                    labels::SNAPSHOT_CLASS,
                    labels::SNAPSHOT_VOLUME_MODE
                )));
            };
            (Some(class), mode, None)
        }
    };
    Ok(Content {
        claimed: snapshot.status.restore_size,
        copied_into: None,
        class,
        copies_equals: true,
        waits: false,
        grows: true,
        is_block: mode == "Block",
        reach,
        data_source: TypedLocalObjectReference {
            api_group: Some(SNAPSHOT_GROUP.to_owned()),
            kind: "VolumeSnapshot".to_owned(),
            name: name.to_string(),
        },
    })
}

fn of_volume(claim: &PersistentVolumeClaim) -> Content {
    Content {
        // one that grows is as large as it was
        claimed: expand::capacity(claim).or_else(|| claimed(claim)),
        copied_into: None,
        class: claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()),
        copies_equals: true,
        waits: false,
        grows: true,
        is_block: record::is_block(claim),
        reach: record::reach_of(claim),
        data_source: TypedLocalObjectReference {
            api_group: None,
            kind: "PersistentVolumeClaim".to_owned(),
            name: claim.name_any(),
        },
    }
}
