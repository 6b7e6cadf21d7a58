//! The flags that Rancher and rancher-machine ask for.
//!
//! Names, types, defaults and order are contract. Rancher makes the fields of a machine pool from the names, and defaults of
//! a CRD from the defaults: after a changed default it would replace the machines of existing pools. rancher-machine writes
//! its install script to the file of the *first* flag with `cloud-config` or `user-data` in its name, so
//! `harvester-cloud-config` stands before `harvester-user-data`.
//!
//! A new flag goes to the end, is text or a switch, and has no default.

use go_rpc::{Interface, ToGob, gob_struct};

/// Type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagType {
    /// Text, with its default.
    Text(&'static str),
    /// An integer, with its default.
    Number(i64),
    /// Present or absent.
    Switch,
}

/// A flag of `rancher-machine create`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    pub name: &'static str,
    pub flag_type: FlagType,
    /// Help text.
    pub usage: &'static str,
}

impl Flag {
    /// The environment variable that replaces an absent flag.
    pub fn variable(&self) -> String {
        self.name.to_ascii_uppercase().replace('-', "_")
    }
}

pub const KUBECONFIG_CONTENT: &str = "harvester-kubeconfig-content";
pub const CLUSTER_TYPE: &str = "harvester-cluster-type";
pub const CLUSTER_ID: &str = "harvester-cluster-id";
pub const CLUSTER_NAME: &str = "harvester-cluster-name";
pub const VM_NAMESPACE: &str = "harvester-vm-namespace";
pub const CPU_COUNT: &str = "harvester-cpu-count";
pub const MEMORY_SIZE: &str = "harvester-memory-size";
pub const DISK_SIZE: &str = "harvester-disk-size";
pub const DISK_BUS: &str = "harvester-disk-bus";
pub const IMAGE_NAME: &str = "harvester-image-name";
pub const DISK_INFO: &str = "harvester-disk-info";
pub const SSH_USER: &str = "harvester-ssh-user";
pub const SSH_PORT: &str = "harvester-ssh-port";
pub const SSH_PASSWORD: &str = "harvester-ssh-password";
pub const KEY_PAIR_NAME: &str = "harvester-key-pair-name";
pub const SSH_PRIVATE_KEY_PATH: &str = "harvester-ssh-private-key-path";
pub const NETWORK_TYPE: &str = "harvester-network-type";
pub const NETWORK_NAME: &str = "harvester-network-name";
pub const NETWORK_MODEL: &str = "harvester-network-model";
pub const NETWORK_INFO: &str = "harvester-network-info";
pub const CLOUD_CONFIG: &str = "harvester-cloud-config";
pub const USER_DATA: &str = "harvester-user-data";
pub const NETWORK_DATA: &str = "harvester-network-data";
pub const VM_AFFINITY: &str = "harvester-vm-affinity";
pub const ENABLE_EFI: &str = "harvester-enable-efi";
pub const ENABLE_SECURE_BOOT: &str = "harvester-enable-secure-boot";
pub const VGPU_INFO: &str = "harvester-vgpu-info";
pub const CPU_PINNING: &str = "harvester-cpu-pinning";
pub const ISOLATE_EMULATOR_THREAD: &str = "harvester-isolate-emulator-thread";
pub const ENABLE_TPM: &str = "harvester-enable-tpm";
pub const RESERVED_MEMORY_SIZE: &str = "harvester-reserved-memory-size";
pub const CPU_MODEL: &str = "harvester-cpu-model";
pub const HOST_DEVICE_INFO: &str = "harvester-host-device-info";
pub const VM_LABELS: &str = "harvester-vm-labels";
pub const CREATE_TIMEOUT: &str = "harvester-create-timeout";

const fn text(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, flag_type: FlagType::Text(default), usage }
}

const fn number(name: &'static str, default: i64, usage: &'static str) -> Flag {
    Flag { name, flag_type: FlagType::Number(default), usage }
}

const fn switch(name: &'static str, usage: &'static str) -> Flag {
    Flag { name, flag_type: FlagType::Switch, usage }
}

/// All flags, in their order.
pub const ALL: [Flag; 35] = [
    text(KUBECONFIG_CONTENT, "", "Kubeconfig of the Harvester cluster: the content, plain or base64"),
    text(CLUSTER_TYPE, "", "How Rancher knows the Harvester cluster: imported or external"),
    text(CLUSTER_ID, "", "Rancher's id of the Harvester cluster"),
    text(CLUSTER_NAME, "", "Name of the guest cluster that the machine becomes part of"),
    text(VM_NAMESPACE, "default", "Namespace of the VM, its Secret and its volumes"),
    number(CPU_COUNT, 2, "CPU cores"),
    number(MEMORY_SIZE, 4, "Memory in GiB"),
    number(DISK_SIZE, 0, "Size of the root disk in GiB (one disk; see harvester-disk-info)"),
    text(DISK_BUS, "", "Bus of the root disk, virtio if empty (one disk; see harvester-disk-info)"),
    text(IMAGE_NAME, "", "Image of the root disk, namespace/name (one disk; see harvester-disk-info)"),
    text(DISK_INFO, "", r#"Disks: {"disks":[{"imageName":"ns/name","size":40,"bootOrder":1}]}"#),
    text(SSH_USER, "root", "User for SSH"),
    number(SSH_PORT, 22, "Port for SSH"),
    text(SSH_PASSWORD, "", "Password of the user; allows login by password"),
    text(KEY_PAIR_NAME, "", "KeyPair in Harvester, namespace/name, that may log in too"),
    text(SSH_PRIVATE_KEY_PATH, "", "File with the private key to log in with; one is made if empty"),
    text(NETWORK_TYPE, "", "Kept for old configurations, without effect"),
    text(NETWORK_NAME, "", "VM network, namespace/name (one NIC; see harvester-network-info)"),
    text(NETWORK_MODEL, "", "Model of the NIC, virtio if empty (one NIC; see harvester-network-info)"),
    text(NETWORK_INFO, "", r#"NICs: {"interfaces":[{"networkName":"ns/name","macAddress":""}]}"#),
    text(CLOUD_CONFIG, "", "Path of a file that rancher-machine writes; leave it empty"),
    text(USER_DATA, "", "cloud-init user data, plain or base64"),
    text(NETWORK_DATA, "", "cloud-init network data, plain or base64"),
    text(VM_AFFINITY, "", "Affinity of the VM as in a Pod: JSON, plain or base64"),
    switch(ENABLE_EFI, "Boot with UEFI"),
    switch(ENABLE_SECURE_BOOT, "Secure boot; needs harvester-enable-efi"),
    text(VGPU_INFO, "", r#"vGPUs: {"vGPURequests":[{"name":"","deviceName":"nvidia.com/…"}]}"#),
    switch(CPU_PINNING, "CPUs of its own for the VM"),
    switch(ISOLATE_EMULATOR_THREAD, "One more CPU for the emulator's thread"),
    switch(ENABLE_TPM, "An emulated TPM"),
    number(RESERVED_MEMORY_SIZE, -1, "Memory in MiB that is kept for the hypervisor, out of the VM's memory"),
    text(CPU_MODEL, "", "CPU model; Harvester's default if empty"),
    text(HOST_DEVICE_INFO, "", r#"PCI devices: {"hostDevices":[{"name":"hostdevice-1","deviceName":"…"}]}"#),
    text(VM_LABELS, "", r#"More labels for the VM: {"key":"value"}"#),
    text(
        CREATE_TIMEOUT,
        "",
        "Seconds to wait for the VM to run, and again for its address; 600 each if empty",
    ),
];

struct StringFlag {
    name: String,
    usage: String,
    env_var: String,
    value: String,
}
gob_struct!(StringFlag as "StringFlag" { name => "Name", usage => "Usage", env_var => "EnvVar", value => "Value" });

struct IntFlag {
    name: String,
    usage: String,
    env_var: String,
    value: i64,
}
gob_struct!(IntFlag as "IntFlag" { name => "Name", usage => "Usage", env_var => "EnvVar", value => "Value" });

struct BoolFlag {
    name: String,
    usage: String,
    env_var: String,
}
gob_struct!(BoolFlag as "BoolFlag" { name => "Name", usage => "Usage", env_var => "EnvVar" });

/// The answer to `GetCreateFlags`: `[]mcnflag.Flag`.
pub fn as_gob() -> Vec<Option<Interface>> {
    let one = |flag: &Flag| {
        let (name, usage, env_var) = (flag.name.to_owned(), flag.usage.to_owned(), flag.variable());
        Some(match flag.flag_type {
            FlagType::Text(value) => {
                holding("*mcnflag.StringFlag", &StringFlag { name, usage, env_var, value: value.into() })
            }
            FlagType::Number(value) => holding("*mcnflag.IntFlag", &IntFlag { name, usage, env_var, value }),
            FlagType::Switch => holding("*mcnflag.BoolFlag", &BoolFlag { name, usage, env_var }),
        })
    };
    ALL.iter().map(one).collect()
}

fn holding<T: ToGob>(name: &str, flag: &T) -> Interface {
    Interface::new(name, T::gob_type(), flag.to_value())
}

#[cfg(test)]
mod tests {
    use go_rpc::{Decoder, Limits, Value, next_value};

    use super::*;

    /// Name, variable, kind and default of a flag as they are on the wire.
    fn told(flag: &Interface) -> (String, String, String, Option<Value>) {
        let Value::Struct(fields) = &flag.holds.value else { panic!("{flag:?}") };
        let text = |name| match fields.get(name) {
            Some(Value::String(text)) => text.to_lossy().into_owned(),
            other => panic!("{name}: {other:?}"),
        };
        (flag.name.clone(), text("Name"), text("EnvVar"), fields.get("Value").cloned())
    }

    /// The recorded answer of a Go plugin with the 32 flags of upstream.
    fn recorded() -> Vec<Option<Interface>> {
        let session = include_str!("../../go-rpc/tests/vectors/03-session-flags.json");
        let session: serde_json::Value = serde_json::from_str(session).unwrap();
        let hex = session[1]["response"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let (mut decoder, mut input) = (Decoder::new(Limits::default()), &bytes[..]);
        next_value(&mut decoder, &mut input).unwrap().expect("a header");
        let body = next_value(&mut decoder, &mut input).unwrap().expect("a body");
        go_rpc::FromGob::from_value(body.value).unwrap()
    }

    #[test]
    fn the_first_32_flags_have_upstreams_names_variables_kinds_and_defaults_in_its_order() {
        let ours: Vec<_> = as_gob().iter().flatten().map(told).collect();
        let theirs: Vec<_> = recorded().iter().flatten().map(told).collect();
        assert_eq!(theirs.len(), 32);
        assert_eq!(ours[..32], theirs[..]);
    }

    #[test]
    fn new_flags_come_last_and_have_no_default() {
        for flag in &ALL[32..] {
            assert!(matches!(flag.flag_type, FlagType::Text("") | FlagType::Switch), "{flag:?}");
        }
    }

    // docs/contract/node-driver.md#1.5: the order decides whether clusters provision at all
    #[test]
    fn the_install_script_goes_to_the_flag_of_its_own() {
        let first = ALL.iter().find(|flag| {
            ["user-data", "userdata", "custom-data", "cloud-config"]
                .iter()
                .any(|part| flag.name.contains(part))
        });
        assert_eq!(first.unwrap().name, CLOUD_CONFIG);
        assert!(ALL.iter().all(|flag| !flag.name.ends_with("-os")), "that suffix means something else");
    }

    #[test]
    fn every_name_survives_the_way_to_a_field_of_rancher_and_back() {
        for flag in &ALL {
            let (driver, rest) = flag.name.split_once('-').unwrap();
            let mut words = rest.split('-');
            let mut field = words.next().unwrap().to_owned();
            for word in words {
                let (first, rest) = word.split_at(1);
                field.push_str(&first.to_uppercase());
                field.push_str(rest);
            }
            let mut back = driver.to_owned() + "-";
            for (at, letter) in field.char_indices() {
                if letter.is_uppercase() && at > 0 {
                    back.push('-');
                }
                back.extend(letter.to_lowercase());
            }
            assert_eq!(back, flag.name);
        }
    }
}
