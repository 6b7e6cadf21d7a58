//! The configuration that rancher-machine stores: one flat JSON object. Running clusters depend on its keys and types,
//! because this driver and upstream's read what the other one wrote.

mod lists;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    flags,
    options::{Options, Reader},
    text::{decoded, is_document, is_json_or_document},
};
pub use lists::{Device, Disk, DiskInfo, HostDeviceInfo, Interface, NetworkInfo, VgpuInfo};

/// Text that is never printed: kubeconfigs, passwords, user data.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} bytes)", self.0.len())
    }
}

/// Everything that a plugin process knows between two calls.
///
/// The JSON keys are Go's field names. Absent keys keep their value when JSON is merged in; all are written always.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    /// Always empty: Rancher would build `node-ip` from it alone (docs/contract/node-driver.md#1.8).
    #[serde(rename = "IPv6Address")]
    pub ipv6_address: String,
    pub machine_name: String,
    #[serde(rename = "SSHUser")]
    pub ssh_user: String,
    #[serde(rename = "SSHPort")]
    pub ssh_port: i64,
    #[serde(rename = "SSHKeyPath")]
    pub ssh_key_path: String,
    pub store_path: String,
    pub swarm_master: bool,
    pub swarm_host: String,
    pub swarm_discovery: String,

    pub kube_config_content: Secret,
    pub cluster_type: String,
    #[serde(rename = "ClusterID")]
    pub cluster_id: String,
    pub cluster_name: String,
    #[serde(rename = "VMNamespace")]
    pub vm_namespace: String,
    #[serde(rename = "CPU")]
    pub cpu: i64,
    /// `"<n>Gi"`.
    pub memory_size: String,
    /// GiB as decimal text.
    pub disk_size: String,
    pub disk_bus: String,
    pub image_name: String,
    pub disk_info: Option<DiskInfo>,
    #[serde(rename = "SSHPassword")]
    pub ssh_password: Secret,
    pub key_pair_name: String,
    #[serde(rename = "SSHPrivateKeyPath")]
    pub ssh_private_key_path: String,
    pub network_type: String,
    pub network_name: String,
    pub network_model: String,
    pub network_info: Option<NetworkInfo>,
    pub cloud_config: String,
    pub user_data: Secret,
    pub network_data: Secret,
    #[serde(rename = "VMAffinity")]
    pub vm_affinity: String,
    #[serde(rename = "EnableEFI")]
    pub enable_efi: bool,
    pub enable_secure_boot: bool,
    #[serde(rename = "VGPUInfo")]
    pub vgpu_info: Option<VgpuInfo>,
    #[serde(rename = "CPUPinning")]
    pub cpu_pinning: bool,
    pub isolate_emulator_thread: bool,
    #[serde(rename = "EnableTPM")]
    pub enable_tpm: bool,
    /// `"<n>Mi"`, or empty.
    pub reserved_memory_size: String,
    #[serde(rename = "CPUModel")]
    pub cpu_model: String,
    /// Not upstream's, as the next two; upstream ignores unknown keys.
    pub host_device_info: Option<HostDeviceInfo>,
    #[serde(rename = "VMLabels")]
    pub vm_labels: Option<BTreeMap<String, String>>,
    /// Seconds as decimal text, or empty.
    pub create_timeout: String,

    pub server_version: String,
    /// Not upstream's, as the next two. UID of the Setting `server-version`, which identifies the Harvester.
    #[serde(rename = "HarvesterUID")]
    pub harvester_uid: String,
    /// Address of the API through which `Create` ran, for messages.
    pub harvester_server: String,
    /// UID of the VM that `Create` brought up.
    #[serde(rename = "VMUID")]
    pub vm_uid: String,
    /// Random ends of the names of the VM's volumes, joined by commas. rancher-machine stores them before it calls
    /// `Create`, so they are known even if `Create` is killed before it answers. Not upstream's.
    pub volume_suffixes: String,
    #[serde(rename = "SSHPublicKey")]
    pub ssh_public_key: String,
    pub add_user_to_docker_group: bool,
}

impl Config {
    /// The configuration before `SetConfigRaw`: only a meaningless name.
    pub fn fresh() -> Self {
        Self { machine_name: "machine".to_owned(), ..Self::default() }
    }

    /// The JSON that rancher-machine stores.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text keys and plain values")
    }

    /// Merges JSON by Go's rules: keys in any letter case, unknown keys ignored, absent keys unchanged; null changes only
    /// an object.
    ///
    /// # Errors
    /// The text is no JSON object, or a value has another type. The configuration is unchanged then.
    pub fn merge(&mut self, json: &[u8]) -> Result<(), String> {
        let fault = |error: serde_json::Error| {
            format!("the stored configuration of the machine cannot be read: {error}")
        };
        let incoming: Map<String, Value> = serde_json::from_slice(json).map_err(fault)?;
        let Value::Object(mut merged) = serde_json::to_value(&*self).map_err(fault)? else {
            return Err("the configuration is no JSON object".to_owned());
        };
        for (key, value) in incoming {
            let known = merged.keys().find(|known| known.eq_ignore_ascii_case(&key)).cloned();
            let Some(known) = known else { continue };
            let nullable = ["DiskInfo", "NetworkInfo", "VGPUInfo", "HostDeviceInfo", "VMLabels"];
            if !value.is_null() || nullable.contains(&known.as_str()) {
                let value = if known == "VMLabels" { value } else { lists::as_go_reads(value) };
                merged.insert(known, value);
            }
        }
        *self = Self::deserialize(Value::Object(merged)).map_err(fault)?;
        Ok(())
    }

    /// Reads the options. The notes name options that are missing or have another type.
    ///
    /// # Errors
    /// All faults. The configuration is unchanged then.
    pub fn take(&mut self, options: &Options) -> Result<Vec<String>, Vec<String>> {
        let mut reader = Reader::new(options);
        let mut faults = vec![];
        let read = &mut reader;
        let taken = Self {
            ip_address: self.ip_address.clone(),
            ipv6_address: self.ipv6_address.clone(),
            machine_name: self.machine_name.clone(),
            ssh_key_path: self.ssh_key_path.clone(),
            store_path: self.store_path.clone(),
            server_version: self.server_version.clone(),
            harvester_uid: self.harvester_uid.clone(),
            harvester_server: self.harvester_server.clone(),
            vm_uid: self.vm_uid.clone(),
            volume_suffixes: self.volume_suffixes.clone(),
            ssh_public_key: self.ssh_public_key.clone(),
            add_user_to_docker_group: self.add_user_to_docker_group,
            swarm_master: read.switch("swarm-master"),
            swarm_host: read.text("swarm-host"),
            swarm_discovery: read.text("swarm-discovery"),
            kube_config_content: Secret(kubeconfig(&read.text(flags::KUBECONFIG_CONTENT))),
            cluster_type: read.text(flags::CLUSTER_TYPE),
            cluster_id: read.text(flags::CLUSTER_ID),
            cluster_name: read.text(flags::CLUSTER_NAME),
            vm_namespace: read.text(flags::VM_NAMESPACE),
            cpu: read.number(flags::CPU_COUNT),
            memory_size: format!("{}Gi", read.number(flags::MEMORY_SIZE)),
            disk_size: read.number(flags::DISK_SIZE).to_string(),
            disk_bus: read.text(flags::DISK_BUS),
            image_name: read.text(flags::IMAGE_NAME),
            disk_info: object(flags::DISK_INFO, &read.text(flags::DISK_INFO), &mut faults),
            ssh_user: read.text(flags::SSH_USER),
            ssh_port: read.number(flags::SSH_PORT),
            ssh_password: Secret(read.text(flags::SSH_PASSWORD)),
            key_pair_name: read.text(flags::KEY_PAIR_NAME),
            ssh_private_key_path: read.text(flags::SSH_PRIVATE_KEY_PATH),
            network_type: read.text(flags::NETWORK_TYPE),
            network_name: read.text(flags::NETWORK_NAME),
            network_model: read.text(flags::NETWORK_MODEL),
            network_info: object(flags::NETWORK_INFO, &read.text(flags::NETWORK_INFO), &mut faults),
            cloud_config: read.text(flags::CLOUD_CONFIG),
            user_data: Secret(decoded(&read.text(flags::USER_DATA), is_document)),
            network_data: Secret(decoded(&read.text(flags::NETWORK_DATA), is_document)),
            vm_affinity: decoded(&read.text(flags::VM_AFFINITY), is_json_or_document),
            enable_efi: read.switch(flags::ENABLE_EFI),
            enable_secure_boot: read.switch(flags::ENABLE_SECURE_BOOT),
            vgpu_info: object(flags::VGPU_INFO, &read.text(flags::VGPU_INFO), &mut faults),
            cpu_pinning: read.switch(flags::CPU_PINNING),
            isolate_emulator_thread: read.switch(flags::ISOLATE_EMULATOR_THREAD),
            enable_tpm: read.switch(flags::ENABLE_TPM),
            reserved_memory_size: match read.number(flags::RESERVED_MEMORY_SIZE) {
                size @ 1.. => format!("{size}Mi"),
                _ => String::new(),
            },
            cpu_model: read.text(flags::CPU_MODEL),
            host_device_info: object(
                flags::HOST_DEVICE_INFO,
                &read.text(flags::HOST_DEVICE_INFO),
                &mut faults,
            ),
            vm_labels: json(flags::VM_LABELS, &read.text(flags::VM_LABELS), |labels| labels, &mut faults),
            create_timeout: read.text(flags::CREATE_TIMEOUT),
        };
        if !faults.is_empty() {
            return Err(faults);
        }
        *self = taken;
        Ok(reader.notes)
    }

    /// The folder of the machine in rancher-machine's store.
    pub fn machine_folder(&self) -> std::path::PathBuf {
        [self.store_path.as_str(), "machines", &self.machine_name].iter().collect()
    }
}

/// A kubeconfig's content, plain or base64.
pub fn kubeconfig(text: &str) -> String {
    decoded(text, is_document)
}

/// Reads one of the lists from JSON. Empty text and null are no list.
fn object<T: DeserializeOwned>(name: &str, text: &str, faults: &mut Vec<String>) -> Option<T> {
    json(name, text, lists::as_go_reads, faults)
}

fn json<T: DeserializeOwned>(
    name: &str,
    text: &str,
    prepare: fn(Value) -> Value,
    faults: &mut Vec<String>,
) -> Option<T> {
    if text.is_empty() {
        return None;
    }
    let parsed = serde_json::from_str(text).map(prepare).and_then(Option::<T>::deserialize);
    parsed.map_err(|error| faults.push(format!("{name} is not the JSON that it should be: {error}"))).ok()?
}

#[cfg(test)]
mod tests;
