//! Checks a configuration, and reports all its faults at once. Code that gets a [`Machine`] needs no further checks.

mod devices;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    time::Duration,
};

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::{
    config::{Config, Secret},
    labels, network_data,
    pools::Lease,
    reference::Reference,
};
pub(crate) use devices::{Disk, Nic, Source};

/// Default limit for each phase: until the VM runs, and until it has an address. Upstream tries 120 times, 5 s apart.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);
/// The longest limit in seconds.
const LONGEST: u64 = 24 * 3600;

/// Firmware of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Firmware {
    Bios,
    Efi { secure_boot: bool },
}

/// A device of the host in the VM; names are unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Device {
    pub name: String,
    pub device: String,
}

/// The checked inputs of a machine. Its serialised form is hashed, and the hash recognises a VM of the same inputs: the
/// kubeconfig, paths and limits are not part of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub name: String,
    pub namespace: String,
    /// Of the guest cluster; may be empty.
    pub cluster: String,
    pub cores: i64,
    /// A Kubernetes quantity.
    pub memory: String,
    /// The part of the memory that is kept for the hypervisor: a quantity.
    pub reserved_memory: Option<String>,
    pub cpu_model: Option<String>,
    pub cpu_pinning: bool,
    pub isolate_emulator_thread: bool,
    pub firmware: Firmware,
    pub tpm: bool,
    pub disks: Vec<Disk>,
    pub nics: Vec<Nic>,
    pub gpus: Vec<Device>,
    pub host_devices: Vec<Device>,
    /// As in a Pod's spec.
    pub affinity: Option<Map<String, Value>>,
    pub labels: BTreeMap<String, String>,
    pub ssh_user: String,
    pub ssh_password: Secret,
    /// A KeyPair object, and how the user wrote it.
    pub key_pair: Option<(Reference, String)>,
    pub docker_group: bool,
    pub user_data: Secret,
    pub network_data: Secret,
    /// An existing private key to copy.
    #[serde(skip)]
    pub private_key: Option<PathBuf>,
    /// rancher-machine's own user data.
    #[serde(skip)]
    pub cloud_config: Option<PathBuf>,
    #[serde(skip)]
    pub timeout: Duration,
}

impl Machine {
    /// Checks a configuration.
    ///
    /// # Errors
    /// All faults, one sentence each, with the flag.
    pub(crate) fn check(config: &Config) -> Result<Self, Vec<String>> {
        let mut faults = vec![];
        let namespace = config.vm_namespace.clone();
        if !is_dns_label(&config.machine_name) {
            faults.push(format!(
                "the machine's name {} cannot be a VM's: up to 63 lower-case letters, digits and dashes",
                config.machine_name
            ));
        }
        if !is_dns_label(&namespace) {
            faults.push(format!("harvester-vm-namespace: {namespace} is no name of a namespace"));
        }
        if config.cpu < 1 {
            faults.push("harvester-cpu-count: a machine needs at least 1 CPU".to_owned());
        }
        let memory = megabytes(&config.memory_size).filter(|memory| *memory > 0);
        if memory.is_none() {
            faults.push(format!("harvester-memory-size: {} is no amount of memory", config.memory_size));
        }
        if let (Some(memory), Some(reserved)) = (memory, megabytes(&config.reserved_memory_size))
            && reserved >= memory
        {
            faults.push(format!(
                "harvester-reserved-memory-size: {} of {} leaves no memory to the guest",
                config.reserved_memory_size, config.memory_size
            ));
        }
        if config.enable_secure_boot && !config.enable_efi {
            faults.push("harvester-enable-secure-boot needs harvester-enable-efi".to_owned());
        }
        if config.isolate_emulator_thread && !config.cpu_pinning {
            faults.push("harvester-isolate-emulator-thread needs harvester-cpu-pinning".to_owned());
        }
        let key_pair = non_empty(&config.key_pair_name).and_then(|text| {
            let reference = note("harvester-key-pair-name", Reference::parse(text, &namespace), &mut faults)?;
            Some((reference, text.to_owned()))
        });
        // some releases of Harvester have both kinds in one list
        let mut device_names = HashSet::new();
        let machine = Self {
            name: config.machine_name.clone(),
            cluster: config.cluster_name.clone(),
            cores: config.cpu,
            memory: config.memory_size.clone(),
            reserved_memory: non_empty(&config.reserved_memory_size).map(str::to_owned),
            cpu_model: non_empty(&config.cpu_model).map(str::to_owned),
            cpu_pinning: config.cpu_pinning,
            isolate_emulator_thread: config.isolate_emulator_thread,
            firmware: match config.enable_efi {
                true => Firmware::Efi { secure_boot: config.enable_secure_boot },
                false => Firmware::Bios,
            },
            tpm: config.enable_tpm,
            disks: devices::disks(config, &mut faults),
            nics: devices::nics(config, &mut faults),
            gpus: devices::devices(
                config.vgpu_info.iter().flat_map(|info| &info.requests),
                "harvester-vgpu-info",
                &mut device_names,
                &mut faults,
            ),
            host_devices: devices::devices(
                config.host_device_info.iter().flat_map(|info| &info.host_devices),
                "harvester-host-device-info",
                &mut device_names,
                &mut faults,
            ),
            affinity: affinity(&config.vm_affinity, &mut faults),
            labels: own_labels(config.vm_labels.as_ref(), &mut faults),
            ssh_user: non_empty(&config.ssh_user).unwrap_or("root").to_owned(),
            ssh_password: config.ssh_password.clone(),
            key_pair,
            docker_group: config.add_user_to_docker_group,
            user_data: config.user_data.clone(),
            network_data: config.network_data.clone(),
            private_key: non_empty(&config.ssh_private_key_path).map(PathBuf::from),
            cloud_config: non_empty(&config.cloud_config).map(PathBuf::from),
            timeout: note("harvester-create-timeout", timeout(&config.create_timeout), &mut faults)
                .unwrap_or(TIMEOUT),
            namespace,
        };
        if !machine.network_data.0.is_empty()
            && let Err(more) = network_data::check(&machine.network_data.0)
        {
            faults.extend(more);
        }
        if faults.is_empty() { Ok(machine) } else { Err(faults) }
    }

    /// All labels that VM and VMI get.
    pub(crate) fn all_labels(&self) -> BTreeMap<String, String> {
        labels::of_machine(&self.name, &self.namespace, &self.cluster, &self.labels)
    }

    /// Name of the Secret with long cloud-init data.
    pub(crate) fn secret_name(&self) -> String {
        secret_name(&self.name)
    }

    /// The pools of its static addresses.
    pub(crate) fn pools(&self) -> Vec<&str> {
        self.nics.iter().filter_map(|nic| nic.pool.as_deref()).collect()
    }

    /// The machine with the leases of its pools, in their order: with network data, and with a MAC address for each NIC, by
    /// which the guest finds it. `harvester` identifies the Harvester: the same machine gets the same MAC addresses there.
    #[must_use]
    pub(crate) fn at(&self, leases: &[Lease], harvester: &str) -> Self {
        let mut machine = self.clone();
        if leases.is_empty() {
            return machine;
        }
        for nic in &mut machine.nics {
            let seed = format!("{harvester}/{}/{}/{}", self.namespace, self.name, nic.name);
            nic.mac.get_or_insert_with(|| mac(&seed));
        }
        let mut leases = leases.iter();
        let placed: Vec<_> = machine
            .nics
            .iter()
            .map(|nic| network_data::Placed {
                mac: nic.mac.as_deref().unwrap_or_default(),
                lease: nic.pool.as_ref().and_then(|_| leases.next()),
                nameservers: &nic.nameservers,
            })
            .collect();
        machine.network_data = Secret(network_data::of(&placed));
        machine
    }

    /// The disk that the machine boots from: the first in the boot order, else the first.
    pub(crate) fn boot_disk(&self) -> Option<&Disk> {
        let ordered = self.disks.iter().filter(|disk| disk.boot_order.is_some());
        ordered.min_by_key(|disk| disk.boot_order).or_else(|| self.disks.first())
    }
}

/// Name of the Secret with long cloud-init data of a machine.
pub(crate) fn secret_name(machine: &str) -> String {
    format!("{machine}-cloudinit")
}

/// A MAC address that nobody sells: locally administered, of one card.
fn mac(seed: &str) -> String {
    let digest = Sha256::digest(seed);
    let bytes = digest.iter().take(5).map(|byte| format!(":{byte:02x}"));
    std::iter::once("02".to_owned()).chain(bytes).collect()
}

/// Takes the value, or the fault with the flag that it is about.
fn note<T>(flag: &str, outcome: Result<T, String>, faults: &mut Vec<String>) -> Option<T> {
    outcome.map_err(|fault| faults.push(format!("{flag}: {fault}"))).ok()
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Whether this can be the name of a namespace, and of whatever becomes a host name.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
}

/// `<n>Gi` or `<n>Mi` in MiB.
fn megabytes(text: &str) -> Option<i64> {
    match (text.strip_suffix("Gi"), text.strip_suffix("Mi")) {
        (Some(number), _) => number.parse::<i64>().ok()?.checked_mul(1024),
        (_, Some(number)) => number.parse().ok(),
        _ => None,
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Ok(TIMEOUT);
    }
    let seconds = text.trim().parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text} is no number of seconds from 1 to {LONGEST}"))
}

/// The affinity; `null` means none (upstream panics, docs/contract/node-driver.md#B14).
fn affinity(text: &str, faults: &mut Vec<String>) -> Option<Map<String, Value>> {
    if text.is_empty() {
        return None;
    }
    let parsed = serde_json::from_str::<Option<Map<String, Value>>>(text);
    let affinity = parsed.map_err(|error| format!("it is no JSON object: {error}"));
    let affinity = note("harvester-vm-affinity", affinity, faults)??;
    let known = ["nodeAffinity", "podAffinity", "podAntiAffinity"];
    for (key, value) in &affinity {
        if !known.contains(&key.as_str()) {
            faults.push(format!("harvester-vm-affinity: {key} is none of {}", known.join(", ")));
        } else if !value.is_object() && !value.is_null() {
            faults.push(format!("harvester-vm-affinity: {key} is no object"));
        }
    }
    Some(affinity)
}

fn own_labels(
    given: Option<&BTreeMap<String, String>>,
    faults: &mut Vec<String>,
) -> BTreeMap<String, String> {
    let given = given.cloned().unwrap_or_default();
    for (key, value) in &given {
        if labels::OURS.contains(&key.as_str()) {
            faults.push(format!("harvester-vm-labels: {key} is set by the driver, others rely on it"));
        } else if !labels::is_key(key) {
            faults.push(format!("harvester-vm-labels: {key} cannot be a label's key"));
        }
        if !labels::is_value(value) {
            faults.push(format!("harvester-vm-labels: {value} cannot be a label's value"));
        }
    }
    given
}
