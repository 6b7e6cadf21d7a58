//! The host's VolumeSnapshotClass for a volume, from setting `csi-driver-config`
//! (docs/contract/csi-driver.md#snapshot-class).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde::Deserialize;

use super::super::classes;
use crate::{
    host::{self, Host, kinds::Setting},
    refusal::Refusal,
};

const SETTING: &str = "csi-driver-config";
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    volume_snapshot_class_name: String,
}

/// The VolumeSnapshotClass for snapshots of a volume.
pub(super) async fn of(host: &Host, claim: &PersistentVolumeClaim) -> Result<String, Refusal> {
    let provisioner = provisioner(host, claim).await?;
    match host.settings().get(SETTING).await {
        Ok(setting) => class(&setting, &provisioner),
        Err(error) if host::is_not_found(&error) => Err(Refusal::precondition(format!(
            "the host has no setting {SETTING}: snapshots need Harvester 1.7"
        ))),
        Err(error) => Err(Refusal::of_host(&format!("read setting {SETTING} on the host"), &error)),
    }
}

/// Kubernetes writes it on the claim some time after the claim was made, and perhaps its class too; the class says it at
/// once.
async fn provisioner(host: &Host, claim: &PersistentVolumeClaim) -> Result<String, Refusal> {
    if let Some(name) = PROVISIONER.iter().find_map(|key| claim.annotations().get(*key)) {
        return Ok(name.clone());
    }
    let class = match claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) {
        Some("") => None,
        Some(name) => classes::named(host, name).await?,
        None => classes::default(host).await?,
    };
    class.map(|class| class.provisioner).ok_or_else(|| {
        Refusal::precondition(format!(
            "the host does not say yet who provisions volume {}: try again when its claim is bound",
            claim.name_any()
        ))
    })
}

/// The entry of a provisioner: the administrator's, else Harvester's own.
fn class(setting: &Setting, provisioner: &str) -> Result<String, Refusal> {
    for (field, text) in [("value", &setting.value), ("default", &setting.default)] {
        if text.trim().is_empty() {
            continue;
        }
        let entries: BTreeMap<String, Entry> = serde_json::from_str(text).map_err(|error| {
            Refusal::precondition(format!(
                "field {field} of setting {SETTING} on the host is no map of provisioners: {error}: correct it there"
            ))
        })?;
        let name = entries.get(provisioner).map(|entry| entry.volume_snapshot_class_name.as_str());
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            return Ok(name.to_owned());
        }
    }
    Err(Refusal::precondition(format!(
        "setting {SETTING} on the host has no volumeSnapshotClassName for {provisioner}: add it there"
    )))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tonic::Code;

    use super::*;

    const OURS: &str = r#"{"driver.longhorn.io":{"volumeSnapshotClassName":"longhorn-snapshot","backupVolumeSnapshotClassName":"longhorn"}}"#;
    const MINE: &str = r#"{"driver.longhorn.io":{"volumeSnapshotClassName":"mine"}}"#;
    const EMPTY: &str = r#"{"driver.longhorn.io":{"volumeSnapshotClassName":""}}"#;
    const OTHER: &str = r#"{"lvm.driver.harvesterhci.io":{"volumeSnapshotClassName":"lvm"}}"#;

    // docs/contract/csi-driver.md#snapshot-class
    #[rstest]
    #[case::default("", OURS, Ok("longhorn-snapshot"))]
    #[case::value_wins(MINE, OURS, Ok("mine"))]
    #[case::value_wins_over_broken_default(MINE, "{", Ok("mine"))]
    #[case::other_value(OTHER, OURS, Ok("longhorn-snapshot"))]
    #[case::empty_value(EMPTY, OURS, Ok("longhorn-snapshot"))]
    #[case::broken_value("{", OURS, Err("field value of setting csi-driver-config"))]
    #[case::broken_default("", "[]", Err("field default of setting csi-driver-config"))]
    #[case::nothing("", "", Err("no volumeSnapshotClassName for driver.longhorn.io"))]
    fn the_administrators_class_wins(
        #[case] value: &str,
        #[case] default: &str,
        #[case] expected: Result<&str, &str>,
    ) {
        let setting = Setting { value: value.to_owned(), default: default.to_owned(), ..Setting::default() };
        match (class(&setting, "driver.longhorn.io"), expected) {
            (Ok(class), Ok(expected)) => assert_eq!(class, expected),
            (Err(refusal), Err(expected)) => {
                assert_eq!(refusal.code, Code::FailedPrecondition);
                assert!(refusal.message.contains(expected), "{refusal}");
            }
            (got, expected) => panic!("{got:?} instead of {expected:?}"),
        }
    }
}
