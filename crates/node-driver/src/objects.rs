//! Builds the objects of a machine: a VirtualMachine, and a Secret for long cloud-init data. Pure: the same machine gives
//! the same objects; random parts of names are arguments.
//!
//! Harvester creates the claims of the disks from an annotation, and its webhook fills in requests, machine type and the
//! node selector terms of the network.

use std::{collections::BTreeMap, fmt};

use harvester_api::{
    annotations::{
        CLAIM_TEMPLATES, IMAGE_ID, MACHINE_ATTEMPT, MACHINE_INPUTS, RESERVED_MEMORY, SSH_NAMES,
        WAIT_FOR_LEASE,
    },
    labels::{CREATOR, MACHINE_SET, NODE_DRIVER},
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    cloud_init::CloudInit,
    machine::{Disk, Firmware, Machine, Nic, Source},
    reference::Reference,
};

mod affinity;

/// Letters of random name parts, as in Kubernetes.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// Name of the disk that carries cloud-init's data.
const CLOUD_INIT_DISK: &str = "cloudinitdisk";

/// Five random letters for a name.
pub(crate) fn suffix(random: &mut fastrand::Rng) -> String {
    (0..SUFFIX_LENGTH).map(|_| char::from(ALPHABET[random.usize(..ALPHABET.len())])).collect()
}

/// Returns the random end of a claim's name, if the driver could have given that name to a disk of this machine.
pub(crate) fn claim_suffix<'a>(claim: &'a str, machine: &str) -> Option<&'a str> {
    let (number, suffix) = claim.strip_prefix(machine)?.strip_prefix("-disk-")?.split_once('-')?;
    let is_ours = !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && suffix.len() == SUFFIX_LENGTH
        && suffix.bytes().all(|byte| ALPHABET.contains(&byte));
    is_ours.then_some(suffix)
}

/// The list of the VM for vGPUs: `hostDevices` with Harvester 1.8, `gpus` with the versions before and after
/// (docs/contract/node-driver.md#B25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuPlace {
    Gpus,
    HostDevices,
}

impl GpuPlace {
    /// Decides by the Setting `server-version`; builds of a branch have names such as `v1.8-head`.
    pub(crate) fn of(server_version: &str) -> Self {
        let mut numbers =
            server_version.trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
        let is_1_8 = numbers.next() == Some("1") && numbers.next() == Some("8");
        if is_1_8 { Self::HostDevices } else { Self::Gpus }
    }
}

/// Values that come from Harvester or at random.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Storage class of each image.
    pub classes: BTreeMap<String, String>,
    pub gpus: GpuPlace,
    /// Random part of each disk's claim, in their order.
    pub suffixes: Vec<String>,
    pub inputs: InputHash,
    /// Random identity of this attempt.
    pub attempt: String,
}

/// Hash of a machine's inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputHash(String);

impl InputHash {
    /// Hashes the machine, rancher-machine's user data and the private key. The key keeps others from guessing inputs by
    /// their hash, and only an attempt with the same key gets the same hash.
    pub(crate) fn of(machine: &Machine, last: &str, private_key: &str) -> Self {
        let inputs = serde_json::to_vec(&(private_key, machine, last)).expect("plain data");
        let digest = Sha256::digest(inputs);
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Display for InputHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The VirtualMachine.
pub(crate) fn virtual_machine(machine: &Machine, cloud_init: &CloudInit, resolved: &Resolved) -> Value {
    let labels = machine.all_labels();
    let claims: Vec<Claim<'_>> = machine
        .disks
        .iter()
        .zip(&resolved.suffixes)
        .map(|(disk, suffix)| Claim { disk, name: format!("{}-{}-{suffix}", machine.name, disk.name) })
        .collect();
    let templates: Vec<Value> = claims.iter().map(|claim| claim.template(&resolved.classes)).collect();
    let mut annotations = json!({
        CLAIM_TEMPLATES: text_of(&templates),
        MACHINE_INPUTS: resolved.inputs.to_string(),
        MACHINE_ATTEMPT: resolved.attempt,
    });
    if let Some(reserved) = &machine.reserved_memory {
        annotations[RESERVED_MEMORY] = json!(reserved);
    }
    let ssh_names: Vec<&str> = machine.key_pair.iter().map(|(_, given)| given.as_str()).collect();
    let spec = json!({
        "evictionStrategy": "LiveMigrateIfPossible",
        "affinity": affinity::of(machine.affinity.as_ref(), labels.get(MACHINE_SET).map_or("", String::as_str)),
        "domain": domain(machine, &claims, resolved.gpus),
        "networks": machine.nics.iter().map(network).collect::<Vec<_>>(),
        "volumes": volumes(machine, cloud_init, &claims),
    });
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": machine.name,
            "namespace": machine.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "runStrategy": "RerunOnFailure",
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": { SSH_NAMES: text_of(&ssh_names), WAIT_FOR_LEASE: "[]" },
                },
                "spec": spec,
            },
        },
    })
}

/// The Secret with cloud-init's data. Its owner is the VM of UID `owner`, so Kubernetes deletes it with the VM.
pub(crate) fn secret(machine: &Machine, cloud_init: &CloudInit, owner: &str) -> Value {
    let mut data = json!({"userdata": cloud_init.user_data.0});
    if !cloud_init.network_data.0.is_empty() {
        data["networkdata"] = json!(cloud_init.network_data.0);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": machine.secret_name(),
            "namespace": machine.namespace,
            "labels": {CREATOR: NODE_DRIVER},
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine.name, "uid": owner,
            }],
        },
        "type": "Opaque",
        "stringData": data,
    })
}

fn text_of(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

/// A disk and its claim's name.
struct Claim<'a> {
    disk: &'a Disk,
    name: String,
}

impl Claim<'_> {
    fn template(&self, classes: &BTreeMap<String, String>) -> Value {
        let Disk { source, gib, .. } = self.disk;
        let mut metadata = json!({"name": self.name});
        let class = match source {
            Source::Class(class) => class.clone(),
            Source::Image(image) => {
                metadata["annotations"] = json!({IMAGE_ID: image.to_string()});
                class_of(image, classes)
            }
        };
        json!({
            "metadata": metadata,
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": format!("{gib}Gi")}},
                "volumeMode": "Block",
                "storageClassName": class,
            },
        })
    }

    fn device(&self) -> Value {
        let Disk { name, bus, cd_rom, boot_order, .. } = self.disk;
        let mut device = json!({"name": name, if *cd_rom { "cdrom" } else { "disk" }: {"bus": bus}});
        if let Some(order) = boot_order {
            device["bootOrder"] = json!(order);
        }
        device
    }

    fn volume(&self) -> Value {
        let mut claim = json!({"claimName": self.name});
        if self.disk.hotpluggable {
            claim["hotpluggable"] = json!(true);
        }
        json!({"name": self.disk.name, "persistentVolumeClaim": claim})
    }
}

/// The storage class that Harvester made for the image; without an answer of Harvester, the usual name of it.
fn class_of(image: &Reference, classes: &BTreeMap<String, String>) -> String {
    classes.get(&image.to_string()).cloned().unwrap_or_else(|| format!("longhorn-{}", image.name))
}

fn domain(machine: &Machine, claims: &[Claim<'_>], gpu_place: GpuPlace) -> Value {
    let mut cpu = json!({"cores": machine.cores, "sockets": 1, "threads": 1});
    if machine.cpu_pinning {
        cpu["dedicatedCpuPlacement"] = json!(true);
    }
    if machine.isolate_emulator_thread {
        cpu["isolateEmulatorThread"] = json!(true);
    }
    if let Some(model) = &machine.cpu_model {
        cpu["model"] = json!(model);
    }
    let cloud_init = json!({"name": CLOUD_INIT_DISK, "disk": {"bus": "virtio"}});
    let disks: Vec<Value> = std::iter::once(cloud_init).chain(claims.iter().map(Claim::device)).collect();
    let mut devices =
        json!({"disks": disks, "interfaces": machine.nics.iter().map(interface).collect::<Vec<_>>()});
    if machine.tpm {
        devices["tpm"] = json!({});
    }
    let listed = |list: &[crate::machine::Device]| -> Vec<Value> {
        list.iter().map(|device| json!({"name": device.name, "deviceName": device.device})).collect()
    };
    let (mut gpus, mut host_devices) = (listed(&machine.gpus), listed(&machine.host_devices));
    if gpu_place == GpuPlace::HostDevices {
        gpus.append(&mut host_devices);
        std::mem::swap(&mut gpus, &mut host_devices);
    }
    for (key, list) in [("gpus", gpus), ("hostDevices", host_devices)] {
        if !list.is_empty() {
            devices[key] = json!(list);
        }
    }
    let mut domain = json!({
        "cpu": cpu,
        "devices": devices,
        "resources": {"limits": {"cpu": machine.cores.to_string(), "memory": machine.memory}},
    });
    if let Firmware::Efi { secure_boot } = machine.firmware {
        domain["features"] = json!({"smm": {"enabled": secure_boot}});
        domain["firmware"] = json!({"bootloader": {"efi": {"secureBoot": secure_boot}}});
    }
    domain
}

fn interface(nic: &Nic) -> Value {
    let mut interface = json!({
        "name": nic.name,
        "model": nic.model,
        if nic.bridge { "bridge" } else { "masquerade" }: {},
    });
    if let Some(mac) = &nic.mac {
        interface["macAddress"] = json!(mac);
    }
    interface
}

fn network(nic: &Nic) -> Value {
    json!({"name": nic.name, "multus": {"networkName": nic.network_name}})
}

fn volumes(machine: &Machine, cloud_init: &CloudInit, claims: &[Claim<'_>]) -> Vec<Value> {
    let CloudInit { user_data, network_data, .. } = cloud_init;
    let mut source = Map::new();
    let has_network_data = !network_data.0.is_empty();
    if cloud_init.needs_secret() {
        let secret = json!({"name": machine.secret_name()});
        source.insert("secretRef".to_owned(), secret.clone());
        if has_network_data {
            source.insert("networkDataSecretRef".to_owned(), secret);
        }
    } else {
        source.insert("userData".to_owned(), json!(user_data.0));
        if has_network_data {
            source.insert("networkData".to_owned(), json!(network_data.0));
        }
    }
    let cloud_init = json!({"name": CLOUD_INIT_DISK, "cloudInitNoCloud": source});
    std::iter::once(cloud_init).chain(claims.iter().map(Claim::volume)).collect()
}

#[cfg(test)]
mod tests;
