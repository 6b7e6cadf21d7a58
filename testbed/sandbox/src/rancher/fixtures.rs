//! The objects that machines are made of: an image, a network, a key pair, a class for further disks, and Harvester's version.

use anyhow::Result;
use kube::Client;
use serde_json::json;

use crate::manifests::apply_one;

const IMAGE: &str = "leap";
const NETWORK: &str = "vlan1";
const KEY_PAIR: &str = "operator";
/// A key that nobody has the other half of.
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1uQ5kq0x3rVbqgxq7W7n6zU0Xo4v0cTzqB0h1fYw5S sandbox";

/// The image, as flags name it.
pub(crate) fn image() -> String {
    format!("{}/{IMAGE}", crate::VM_NAMESPACE)
}

/// The network, as flags name it.
pub(crate) fn network() -> String {
    format!("{}/{NETWORK}", crate::VM_NAMESPACE)
}

/// Brings all of it; `version` is the release that this Harvester says it is.
///
/// # Errors
/// The server's first refusal.
pub(crate) async fn apply(harvester: &Client, version: &str) -> Result<()> {
    let named = |name: &str| json!({"name": name, "namespace": crate::VM_NAMESPACE});
    let config =
        json!({"cniVersion": "0.3.1", "name": NETWORK, "type": "bridge", "bridge": "mgmt-br", "vlan": 1})
            .to_string();
    let objects = [
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": "server-version"},
            "value": version}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "harvester-longhorn", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "driver.longhorn.io", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": true}),
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "VirtualMachineImage", "metadata": named(IMAGE),
            "spec": {"displayName": "leap.qcow2", "sourceType": "download", "url": "https://images.example/leap.qcow2"}}),
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": named(NETWORK),
            "spec": {"config": config}}),
        json!({"apiVersion": "harvesterhci.io/v1beta1", "kind": "KeyPair", "metadata": named(KEY_PAIR),
            "spec": {"publicKey": PUBLIC_KEY}}),
    ];
    for object in &objects {
        apply_one(harvester, object).await?;
    }
    Ok(())
}
