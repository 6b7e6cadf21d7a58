//! Lists of disks, NICs and devices: JSON inside of a flag, and objects in the stored configuration.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Disks, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskInfo {
    #[serde(deserialize_with = "or_empty")]
    pub disks: Vec<Disk>,
}

/// One disk, from an image or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    /// `namespace/name`, or a name in the machine's namespace.
    pub image_name: String,
    /// For a disk without image; with one the image's own class counts.
    pub storage_class_name: String,
    /// GiB.
    pub size: i64,
    /// Place in the boot order; 0 for none.
    pub boot_order: i64,
    /// Empty for virtio.
    pub bus: String,
    /// `disk`, `cd-rom`; empty for disk.
    pub r#type: String,
    pub hot_plug_able: bool,
}

/// NICs, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkInfo {
    #[serde(deserialize_with = "or_empty")]
    pub interfaces: Vec<Interface>,
}

/// One NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    pub network_name: String,
    /// Empty: one is made.
    pub mac_address: String,
    /// Empty for virtio.
    pub model: String,
    /// Empty or `bridge`; anything else is masquerade.
    pub r#type: String,
}

/// Virtual GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VgpuInfo {
    #[serde(rename = "vGPURequests", deserialize_with = "or_empty")]
    pub requests: Vec<Device>,
}

/// PCI devices of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostDeviceInfo {
    #[serde(deserialize_with = "or_empty")]
    pub host_devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    /// Its name in the VM.
    pub name: String,
    /// What the host offers, e.g. `nvidia.com/GRID_T4-4Q`.
    pub device_name: String,
}

/// Go writes an empty list as null.
fn or_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

const KEYS: [&str; 15] = [
    "disks",
    "imageName",
    "storageClassName",
    "size",
    "bootOrder",
    "bus",
    "type",
    "hotPlugAble",
    "interfaces",
    "networkName",
    "macAddress",
    "model",
    "vGPURequests",
    "hostDevices",
    "deviceName",
];

/// The value with the keys above in the letter case that we expect: Go does not care for it.
pub(super) fn in_known_case(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let known = |key: String| {
                let known = KEYS.iter().find(|known| known.eq_ignore_ascii_case(&key));
                known.map_or(key, |known| (*known).to_owned())
            };
            Value::Object(fields.into_iter().map(|(key, value)| (known(key), in_known_case(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(in_known_case).collect()),
        other => other,
    }
}
