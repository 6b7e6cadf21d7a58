//! Lists of disks, NICs and devices: JSON inside of a flag, and objects in the stored configuration.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Disks, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskInfo {
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
    /// Position in the boot order; 0 for none.
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
    /// An IPPool of Harvester from which the machine gets a static address; empty for DHCP. Not upstream's, as the next one:
    /// where they are not used they are not written.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    /// Addresses of name servers, beside a static address: a pool names none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
}

/// Virtual GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VgpuInfo {
    #[serde(rename = "vGPURequests")]
    pub requests: Vec<Device>,
}

/// PCI devices of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostDeviceInfo {
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

const KEYS: [&str; 17] = [
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
    "ipPool",
    "nameservers",
    "vGPURequests",
    "hostDevices",
    "deviceName",
];

/// Normalises JSON as Go reads it: known keys in the letter case above, and no members that are null.
pub(super) fn as_go_reads(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let known = |key: String| {
                let known = KEYS.iter().find(|known| known.eq_ignore_ascii_case(&key));
                known.map_or(key, |known| (*known).to_owned())
            };
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(key, value)| (known(key), as_go_reads(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(as_go_reads).collect()),
        other => other,
    }
}
