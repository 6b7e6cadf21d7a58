//! What on the host still needs a volume, so that it is not deleted (docs/contract/csi-driver.md#needed).

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::classes::LONGHORN;
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

/// Refuses while the volume has snapshots that would go with it.
pub(super) async fn by_snapshots(host: &Host, name: &HostName) -> Result<(), Refusal> {
    let of_it: Vec<_> = snapshots(host).await?.into_iter().filter(|one| is_of(one, name)).collect();
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
async fn outlives(host: &Host, class: &str) -> Result<bool, Refusal> {
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
