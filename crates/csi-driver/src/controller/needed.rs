//! What on the host still needs a volume or a snapshot, so that it is not deleted (docs/contract/csi-driver.md#needed).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::classes::{self, LONGHORN};
use crate::{
    host::{
        self, Host,
        kinds::{VolumeSnapshot, VolumeSnapshotClass},
    },
    refusal::Refusal,
    volume::name::HostName,
};

/// Types of Longhorn's snapshots that are copies elsewhere: backups (in two spellings) and backing images.
const COPIES: [&str; 3] = ["bak", "bs", "bi"];
const CLAIM: &str = "PersistentVolumeClaim";
const SNAPSHOT: &str = "VolumeSnapshot";

/// Refuses while the volume has snapshots that would go with it, or is to be copied, as itself or as a snapshot of it.
pub(super) async fn volume(host: &Host, name: &HostName) -> Result<(), Refusal> {
    let of_it: Vec<_> = snapshots(host).await?.into_iter().filter(|one| is_of(one, name)).collect();
    let is_source = |kind: &str, source: &str| match kind {
        CLAIM => source == name.as_str(),
        SNAPSHOT => of_it.iter().any(|one| one.metadata.name.as_deref() == Some(source)),
        _ => false,
    };
    by_claims(host, &format!("volume {name}"), is_source).await?;
    by_snapshots(host, name, &of_it).await
}

/// Refuses while a volume is to be made of the snapshot.
pub(super) async fn snapshot(host: &Host, name: &HostName) -> Result<(), Refusal> {
    let is_source = |kind: &str, source: &str| kind == SNAPSHOT && source == name.as_str();
    by_claims(host, &format!("snapshot {name}"), is_source).await
}

/// With a class that waits for a first consumer the host fills a claim when it is attached.
async fn by_claims(host: &Host, what: &str, is_source: impl Fn(&str, &str) -> bool) -> Result<(), Refusal> {
    let claims = host::list(&host.claims()).await.map_err(|error| {
        let doing = format!("list the PersistentVolumeClaims of namespace {} on the host", host.namespace());
        Refusal::of_host(&doing, &error)
    })?;
    let mut waiting = vec![];
    for claim in &claims {
        let is_of_it = source_of(claim).is_some_and(|(kind, name)| is_source(kind, name));
        if is_of_it && waits_for_consumer(host, claim).await? {
            waiting.push(claim.name_any());
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "{what} is still to be copied into PersistentVolumeClaim {} in namespace {} on the host: wait until that is bound, \
         or delete it first",
        waiting.join(" and "),
        host.namespace()
    )))
}

/// Whether the host fills the claim at the first attachment. Of other classes CreateVolume answers when the claim is filled,
/// and until then the guest cluster keeps snapshot and source: a claim that stays Pending is one that the host refuses,
/// perhaps for ever, and holds nothing.
async fn waits_for_consumer(host: &Host, claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    let Some(class) = class else { return Ok(false) };
    Ok(classes::named(host, class).await?.as_ref().is_some_and(classes::waits_for_consumer))
}

/// Kind and name of what a claim that is not bound is to be made of.
fn source_of(claim: &PersistentVolumeClaim) -> Option<(&str, &str)> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if !matches!(phase, None | Some("Pending")) || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let old = spec.data_source.as_ref().map(|source| (&*source.kind, &*source.name));
    let reference = spec.data_source_ref.as_ref().filter(|source| source.namespace.is_none());
    old.or_else(|| reference.map(|source| (&*source.kind, &*source.name)))
}

async fn by_snapshots(host: &Host, name: &HostName, of_it: &[VolumeSnapshot]) -> Result<(), Refusal> {
    let mut kept = vec![];
    let mut known = BTreeMap::new();
    for snapshot in of_it.iter().filter(|one| one.metadata.deletion_timestamp.is_none()) {
        let class = snapshot.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        if !known.contains_key(class) {
            known.insert(class.to_owned(), outlives(host, class).await?);
        }
        if !known[class] {
            kept.push(snapshot.name_any());
        }
    }
    if kept.is_empty() {
        return Ok(());
    }
    Err(Refusal::precondition(format!(
        "volume {name} has snapshots that would go with it, in namespace {} on the host: delete VolumeSnapshot {} first",
        host.namespace(),
        kept.join(" and ")
    )))
}

/// Those of the namespace; none on a host without snapshots.
async fn snapshots(host: &Host) -> Result<Vec<VolumeSnapshot>, Refusal> {
    match host::list(&host.snapshots()).await {
        Ok(snapshots) => Ok(snapshots),
        Err(error) if host::is_absent(&error) => Ok(vec![]),
        Err(error) => {
            let doing = format!("list the VolumeSnapshots of namespace {} on the host", host.namespace());
            Err(Refusal::of_host(&doing, &error))
        }
    }
}

fn is_of(snapshot: &VolumeSnapshot, name: &HostName) -> bool {
    snapshot.spec.source.persistent_volume_claim_name.as_deref() == Some(name.as_str())
}

/// Whether snapshots of this class are there without the volume; where the host does not say it, they are not.
pub(super) async fn outlives(host: &Host, class: &str) -> Result<bool, Refusal> {
    if class.is_empty() {
        return Ok(false);
    }
    match host.snapshot_classes().get(class).await {
        Ok(class) => Ok(is_copy(&class)),
        Err(error) if host::is_absent(&error) => Ok(false),
        Err(error) => Err(Refusal::of_host(&format!("read VolumeSnapshotClass {class} on the host"), &error)),
    }
}

fn is_copy(class: &VolumeSnapshotClass) -> bool {
    let kind = class.parameters.get("type").map_or("", String::as_str);
    class.driver == LONGHORN && COPIES.contains(&kind)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::clone(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}), "Pending", Some("a"))]
    #[case::restore(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Pending", Some("s"))]
    #[case::by_reference(json!({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s"}}), "Pending", Some("s"))]
    #[case::of_elsewhere(json!({"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s", "namespace": "n"}}), "Pending", None)]
    #[case::filled(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Bound", None)]
    #[case::lost(json!({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}), "Lost", None)]
    #[case::empty(json!({}), "Pending", None)]
    fn a_claim_needs_its_source_until_it_is_bound(
        #[case] spec: Value,
        #[case] phase: &str,
        #[case] expected: Option<&str>,
    ) {
        let claim = serde_json::from_value(json!({"spec": spec, "status": {"phase": phase}})).unwrap();
        assert_eq!(source_of(&claim).map(|(_, name)| name), expected);
    }

    #[rstest]
    #[case::backup(json!({"driver": LONGHORN, "parameters": {"type": "bak"}}), true)]
    #[case::backup_of_old(json!({"driver": LONGHORN, "parameters": {"type": "bs"}}), true)]
    #[case::image(json!({"driver": LONGHORN, "parameters": {"type": "bi"}}), true)]
    #[case::inside(json!({"driver": LONGHORN, "parameters": {"type": "snap"}}), false)]
    #[case::not_said(json!({"driver": LONGHORN}), false)]
    #[case::another_driver(json!({"driver": "lvm.driver.harvesterhci.io", "parameters": {"type": "bak"}}), false)]
    #[case::odd(json!({"driver": 5, "parameters": "bak"}), false)]
    fn a_snapshot_outlives_its_volume_where_its_class_says_so(#[case] class: Value, #[case] expected: bool) {
        assert_eq!(is_copy(&serde_json::from_value(class).unwrap()), expected);
    }
}
