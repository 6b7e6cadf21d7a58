//! The objects that every Harvester has from its installation on: Longhorn's namespace, Settings about volumes, storage
//! classes, classes of snapshots. They are not made unless somebody asks for them: a Setting decides what the simulation
//! does.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

use crate::refused::unless_there;

/// The storage class of claims that name none.
pub const STORAGE_CLASS: &str = "harvester-longhorn";

/// The namespace of Longhorn's objects.
pub const LONGHORN_SYSTEM: &str = "longhorn-system";

/// The class of snapshots that go to the backup target.
pub(crate) const BACKUP_CLASS: &str = "longhorn";

/// The objects of a Harvester of this release, such as `v1.8.0`.
pub fn all(version: &str) -> Vec<Value> {
    let setting = |name: &str, value: &str, default: &str| json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": name}, "value": value, "default": default});
    let snapshots = json!({"driver.longhorn.io": {"volumeSnapshotClassName": "longhorn-snapshot",
        "backupVolumeSnapshotClassName": "longhorn"}});
    let snapshot_class = |name: &str, kind: &str| {
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": name},
        "driver": "driver.longhorn.io", "deletionPolicy": "Delete", "parameters": {"type": kind}})
    };
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LONGHORN_SYSTEM}}),
        setting("server-version", version, ""),
        setting("csi-driver-config", "", &snapshots.to_string()),
        setting("csi-online-expand-validation", "", r#"{"driver.longhorn.io":true}"#),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "driver.longhorn.io", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": true, "parameters": {"numberOfReplicas": "3", "migratable": "true"}}),
        snapshot_class("longhorn-snapshot", "snap"),
        snapshot_class(BACKUP_CLASS, "bak"),
    ]
}

/// Creates those that are not there. The definitions of [`crate::crds`] must be there already.
///
/// # Errors
/// The server's first refusal.
///
/// # Panics
/// Never: all are objects with a kind.
pub async fn apply(harvester: &Client, version: &str) -> kube::Result<()> {
    for object in all(version) {
        let object: DynamicObject = serde_json::from_value(object).expect("a constant object");
        let types = object.types.as_ref().expect("every object has a kind");
        let gvk = GroupVersionKind::try_from(types).expect("a constant kind");
        let plural = match gvk.kind.as_str() {
            kind if kind.ends_with("Class") => format!("{}es", kind.to_lowercase()),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let api: Api<DynamicObject> =
            Api::all_with(harvester.clone(), &ApiResource::from_gvk_with_plural(&gvk, &plural));
        unless_there(api.create(&PostParams::default(), &object).await)?;
    }
    Ok(())
}
