//! The part of the host's kinds that the driver reads and writes. Their schemas are those of Harvester and of the
//! external snapshotter. A field that is missing or of another type reads as its default: one odd object must not hide
//! the others of a list (docs/contract/csi-driver.md#odd-objects).

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaimSpec,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::quantity;

/// Makes a struct with `api_version`, `kind` and `metadata` a kind of the API.
macro_rules! kind {
    ($name:ident, $group:literal, $version:literal, $plural:literal, $scope:ty) => {
        impl $name {
            /// An object of this name with nothing in it.
            pub fn named(name: impl Into<String>) -> Self {
                Self {
                    api_version: concat!($group, "/", $version).to_owned(),
                    kind: stringify!($name).to_owned(),
                    metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
                    ..Self::default()
                }
            }
        }

        impl Resource for $name {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($name).into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub mod longhorn;

/// A snapshot of a volume, beside the volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshot {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub spec: VolumeSnapshotSpec,
    #[serde(deserialize_with = "lenient", skip_serializing)]
    pub status: VolumeSnapshotStatus,
}

kind!(VolumeSnapshot, "snapshot.storage.k8s.io", "v1", "volumesnapshots", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    pub source: VolumeSnapshotSource,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    #[serde(deserialize_with = "lenient")]
    pub ready_to_use: Option<bool>,
    /// In bytes.
    #[serde(deserialize_with = "quantity::lenient")]
    pub restore_size: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub creation_time: Option<Time>,
    #[serde(deserialize_with = "lenient")]
    pub error: Option<VolumeSnapshotError>,
    /// The host has begun to take it.
    #[serde(deserialize_with = "lenient")]
    pub bound_volume_snapshot_content_name: Option<String>,
}

/// Why the host has not made the snapshot so far; it tries again by itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeSnapshotError {
    #[serde(deserialize_with = "lenient")]
    pub message: Option<String>,
}

/// How snapshots are made.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub driver: String,
    #[serde(deserialize_with = "lenient")]
    pub parameters: BTreeMap<String, String>,
}

kind!(VolumeSnapshotClass, "snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", ClusterResourceScope);

/// A copy of a volume in the host's backup target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteBackup {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub spec: VolumeRemoteBackupSpec,
    #[serde(deserialize_with = "lenient", skip_serializing)]
    pub status: VolumeRemoteBackupStatus,
}

kind!(VolumeRemoteBackup, "harvesterhci.io", "v1beta1", "volumeremotebackups", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteBackupSpec {
    /// `lh`, for Longhorn.
    pub r#type: String,
    /// The PersistentVolumeClaim.
    pub source: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteBackupStatus {
    #[serde(deserialize_with = "lenient")]
    pub success: bool,
    /// The claim as it was.
    #[serde(deserialize_with = "lenient")]
    pub source_spec: Option<PersistentVolumeClaimSpec>,
    #[serde(deserialize_with = "lenient")]
    pub conditions: Vec<HostCondition>,
}

/// A wish for a new PersistentVolumeClaim, of the wish's name and owned by it, with the content of a backup.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteRestore {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub spec: VolumeRemoteRestoreSpec,
    #[serde(deserialize_with = "lenient", skip_serializing)]
    pub status: VolumeRemoteRestoreStatus,
}

kind!(VolumeRemoteRestore, "harvesterhci.io", "v1beta1", "volumeremoterestores", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteRestoreSpec {
    /// `lh`, for Longhorn.
    pub r#type: String,
    /// `<namespace>/<name>` of the backup.
    pub from: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeRemoteRestoreStatus {
    #[serde(deserialize_with = "lenient")]
    pub success: bool,
    #[serde(deserialize_with = "lenient")]
    pub conditions: Vec<HostCondition>,
}

/// A condition in the form of Harvester's controllers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostCondition {
    #[serde(deserialize_with = "lenient")]
    pub r#type: String,
    #[serde(deserialize_with = "lenient")]
    pub status: String,
    #[serde(deserialize_with = "lenient")]
    pub reason: String,
    #[serde(deserialize_with = "lenient")]
    pub message: String,
}

/// The NFS export of a Longhorn volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkFilesystem {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "lenient")]
    pub spec: NetworkFilesystemSpec,
    #[serde(deserialize_with = "lenient", skip_serializing)]
    pub status: NetworkFilesystemStatus,
}

impl NetworkFilesystem {
    /// The export of this Longhorn volume, switched off.
    pub fn disabled(volume: &str) -> Self {
        let spec = NetworkFilesystemSpec {
            network_fs_name: volume.to_owned(),
            desired_state: "Disabled".to_owned(),
            provisioner: "Longhorn".to_owned(),
        };
        Self { spec, ..Self::named(volume) }
    }
}

kind!(NetworkFilesystem, "harvesterhci.io", "v1beta1", "networkfilesystems", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkFilesystemSpec {
    #[serde(rename = "networkFSName")]
    pub network_fs_name: String,
    /// `Enabled` or `Disabled`.
    pub desired_state: String,
    pub provisioner: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkFilesystemStatus {
    /// `Enabled`, `Enabling`, `Disabling`, `Disabled`, `Unknown`.
    #[serde(deserialize_with = "lenient")]
    pub state: String,
    /// `Ready`, `NotReady`, `Reconciling`, `Unknown`.
    #[serde(deserialize_with = "lenient")]
    pub status: String,
    /// Address of the NFS server.
    #[serde(deserialize_with = "lenient")]
    pub endpoint: String,
    #[serde(deserialize_with = "lenient")]
    pub mount_opts: String,
    #[serde(deserialize_with = "lenient")]
    pub conditions: Vec<HostCondition>,
}

/// A setting of Harvester.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Setting {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    /// What an administrator set; empty where nobody did.
    #[serde(deserialize_with = "lenient")]
    pub value: String,
    #[serde(deserialize_with = "lenient")]
    pub default: String,
}

kind!(Setting, "harvesterhci.io", "v1beta1", "settings", ClusterResourceScope);

/// The value, or the type's default for anything that is none of its type.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(from: D) -> Result<T, D::Error> {
    Value::deserialize(from).map(|value| serde_json::from_value(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // docs/contract/csi-driver.md#odd-objects
    #[rstest]
    #[case(json!({"metadata": {"name": "a"}}))]
    #[case(json!({"metadata": {"name": "a"}, "spec": null, "status": null}))]
    #[case(json!({"metadata": {"name": "a"}, "spec": 1, "status": "ready"}))]
    #[case(json!({"metadata": {"name": "a"}, "spec": {}, "status":
        {"readyToUse": "yes", "restoreSize": "many", "creationTime": "today", "error": 5, "success": 1, "conditions": {}}}))]
    fn an_odd_object_reads_as_one_that_has_nothing(#[case] json: Value) {
        let snapshot: VolumeSnapshot = serde_json::from_value(json.clone()).unwrap();
        assert!(snapshot.status.ready_to_use.is_none() && snapshot.status.restore_size.is_none());
        let backup: VolumeRemoteBackup = serde_json::from_value(json.clone()).unwrap();
        assert!(!backup.status.success && backup.status.source_spec.is_none());
        assert!(!serde_json::from_value::<VolumeRemoteRestore>(json.clone()).unwrap().status.success);
        assert_eq!(serde_json::from_value::<NetworkFilesystem>(json).unwrap().status.status, "");
    }

    #[test]
    fn an_object_is_written_with_the_names_of_the_contract() {
        assert_eq!(
            serde_json::to_value(NetworkFilesystem::disabled("pvc-1")).unwrap(),
            json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "NetworkFilesystem", "metadata": {"name": "pvc-1"},
                "spec": {"networkFSName": "pvc-1", "desiredState": "Disabled", "provisioner": "Longhorn"}})
        );
        let snapshot = VolumeSnapshot::named("snapshot-1");
        assert_eq!(serde_json::to_value(&snapshot).unwrap()["apiVersion"], "snapshot.storage.k8s.io/v1");
    }
}
