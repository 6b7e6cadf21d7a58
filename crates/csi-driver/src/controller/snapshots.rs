//! CreateSnapshot, DeleteSnapshot, ListSnapshots and GetSnapshot: snapshots beside the volumes, and remote backups
//! (docs/contract/csi-driver.md#snapshots).

pub(super) mod backup;
mod class;
pub(super) mod handle;
mod local;

use std::collections::HashMap;

use harvester_api::labels::GUEST_CLUSTER;
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt as _;
use prost_types::Timestamp;
use tokio::time::Instant;

use super::{expand, inspect, needed::Needed, page::page, wait};
use crate::{
    csi::{
        CreateSnapshotRequest, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot, list_snapshots_response,
    },
    host::Host,
    in_flight::Call,
    refusal::Refusal,
    volume::{
        access::Reach,
        name::HostName,
        record::{self, SnapshotRecord},
    },
};
use handle::Handle;

/// CSI 1.12 on the size of a map.
const MAP_MAX: usize = 4096;

/// A request for a snapshot, checked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: HostName,
    /// The name as CSI has it.
    csi_name: String,
    pub(super) source: HostName,
    is_backup: bool,
}

impl Asked {
    pub(super) fn of(request: &CreateSnapshotRequest) -> Result<Self, Refusal> {
        let name = HostName::of(&request.name)
            .map_err(|error| Refusal::invalid(error.to_string().replace("the volume", "the snapshot")))?;
        let source = inspect::name_of(&request.source_volume_id)?;
        if size_of_map(&request.parameters) > MAP_MAX {
            return Err(Refusal::invalid(format!(
                "the parameters of the VolumeSnapshotClass have more than {MAP_MAX} bytes: remove some"
            )));
        }
        let is_backup = request.parameters.get("type").is_some_and(|kind| kind == "backup");
        Ok(Self { name, csi_name: request.name.clone(), source, is_backup })
    }

    /// The annotation of the snapshot of a claim.
    fn record(&self, claim: &PersistentVolumeClaim) -> SnapshotRecord {
        SnapshotRecord {
            name: self.csi_name.clone(),
            size: expand::size(claim).unwrap_or(0),
            reach: record::reach_of(claim).unwrap_or(Reach::Disk),
            class: claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()),
            volume_mode: if record::is_block(claim) { "Block" } else { "Filesystem" }.to_owned(),
            cluster: claim.labels().get(GUEST_CLUSTER).cloned(),
        }
    }
}

fn size_of_map(map: &HashMap<String, String>) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// The call for the volume ends when the host is asked: while it works, the volume is attached and detached.
pub(super) async fn create_snapshot(
    host: &Host,
    asked: &Asked,
    of_volume: Call,
    until: Instant,
) -> Result<Snapshot, Refusal> {
    let end = wait::end(until, wait::SNAPSHOT_WAITS_FOR);
    if asked.is_backup {
        let backup = backup::ask(host, asked).await?;
        drop(of_volume);
        backup::made(host, asked, &backup, end).await
    } else {
        let snapshot = local::ask(host, asked).await?;
        drop(of_volume);
        local::cut(host, asked, snapshot, end).await
    }
}

/// The name of the object with this ID, by which calls for it exclude one another: CreateSnapshot has no other.
pub(super) fn object(id: &str) -> String {
    match Handle::parse(id) {
        Some(Handle::Backup { name, .. }) => name,
        Some(Handle::Local(name)) => name.to_string(),
        None => id.to_owned(),
    }
}

/// The answer for a snapshot that is gone, or never was, is OK.
pub(super) async fn delete_snapshot(host: &Host, needed: &Needed, id: &str) -> Result<(), Refusal> {
    match Handle::parse(id) {
        None => Ok(()),
        Some(Handle::Local(name)) => local::delete(host, needed, &name).await,
        Some(Handle::Backup { namespace, name }) => backup::delete(host, &namespace, &name).await,
    }
}

pub(super) async fn list_snapshots(
    host: &Host,
    request: &ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Refusal> {
    // a strange token is refused without a list of everything
    page(Vec::<String>::new(), String::as_str, request.max_entries, &request.starting_token)?;
    let found = if request.snapshot_id.is_empty() {
        let mut all = local::all(host).await?;
        all.extend(backup::all(host).await?);
        all
    } else {
        one(host, &request.snapshot_id).await?.into_iter().collect()
    };
    let source = &request.source_volume_id;
    let all = found.into_iter().filter(|one| one.is_cut).map(|one| one.snapshot);
    let all = all.filter(|one| source.is_empty() || one.source_volume_id == *source).collect();
    let (page, next_token) = page(all, |one| &one.snapshot_id, request.max_entries, &request.starting_token)?;
    let entries =
        page.into_iter().map(|one| list_snapshots_response::Entry { snapshot: Some(one) }).collect();
    Ok(ListSnapshotsResponse { entries, next_token })
}

pub(super) async fn get_snapshot(host: &Host, id: &str) -> Result<Snapshot, Refusal> {
    let found = one(host, id).await?;
    found.map(|one| one.snapshot).ok_or_else(|| Refusal::not_found(format!("there is no snapshot {id:?}")))
}

/// A snapshot of the host. One that is not cut is in no list (CSI 1.12, ListSnapshots).
struct Found {
    snapshot: Snapshot,
    is_cut: bool,
}

async fn one(host: &Host, id: &str) -> Result<Option<Found>, Refusal> {
    match Handle::parse(id) {
        None => Ok(None),
        Some(Handle::Local(name)) => local::one(host, &name).await,
        Some(Handle::Backup { namespace, name }) => {
            let backup = backup::read(host, &namespace, &name).await?;
            Ok(backup.as_ref().and_then(backup::found))
        }
    }
}

fn timestamp(time: &Time) -> Timestamp {
    Timestamp { seconds: time.0.as_second(), nanos: time.0.subsec_nanosecond() }
}
