//! Disks, NICs and devices, from the lists or from the older flags for one disk and one NIC.

use std::{collections::HashSet, net::IpAddr};

use serde::Serialize;

use super::{Device, non_empty, note};
use crate::{config, config::Config, reference::Reference};

/// Where a disk's content comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Source {
    /// A cloud image.
    Image(Reference),
    /// Empty, of this storage class.
    Class(String),
}

/// A disk with a claim of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Disk {
    /// In the VM.
    pub name: String,
    pub source: Source,
    pub gib: i64,
    pub bus: String,
    pub cd_rom: bool,
    pub boot_order: Option<i64>,
    pub hotpluggable: bool,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Nic {
    /// In the VM.
    pub name: String,
    pub network: Reference,
    /// The network as the user wrote it, for the VM.
    pub network_name: String,
    pub model: String,
    pub mac: Option<String>,
    /// Masquerade where not.
    pub bridge: bool,
    /// The IPPool of its static address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<IpAddr>,
}

pub(super) fn disks(config: &Config, faults: &mut Vec<String>) -> Vec<Disk> {
    match &config.disk_info {
        Some(info) => {
            let disks = info.disks.iter().enumerate();
            disks.filter_map(|(at, disk)| listed_disk(at, disk, config, faults)).collect()
        }
        None => one_disk(config, faults).into_iter().collect(),
    }
}

fn listed_disk(at: usize, disk: &config::Disk, config: &Config, faults: &mut Vec<String>) -> Option<Disk> {
    let mut fault = |text: String| faults.push(format!("harvester-disk-info: disk {at} {text}"));
    let source = match (non_empty(&disk.image_name), non_empty(&disk.storage_class_name)) {
        (Some(image), _) => match Reference::parse(image, &config.vm_namespace) {
            Ok(image) => Some(Source::Image(image)),
            Err(error) => {
                fault(format!("names an image, but {error}"));
                None
            }
        },
        (None, Some(class)) => Some(Source::Class(class.to_owned())),
        (None, None) => {
            fault("has neither imageName nor storageClassName".to_owned());
            None
        }
    };
    if disk.size < 1 {
        fault(format!("has size {}, at least 1 GiB is needed", disk.size));
    }
    if disk.boot_order < 0 {
        fault(format!("has bootOrder {}", disk.boot_order));
    }
    if !matches!(disk.r#type.as_str(), "" | "disk" | "cd-rom") {
        fault(format!("is of type {}, only disk and cd-rom are there", disk.r#type));
    }
    Some(Disk {
        name: format!("disk-{at}"),
        source: source?,
        gib: disk.size,
        bus: non_empty(&disk.bus).unwrap_or("virtio").to_owned(),
        cd_rom: disk.r#type == "cd-rom",
        boot_order: (disk.boot_order > 0).then_some(disk.boot_order),
        hotpluggable: disk.hot_plug_able,
    })
}

/// The older flags: one disk of the name `disk-1`.
fn one_disk(config: &Config, faults: &mut Vec<String>) -> Option<Disk> {
    let gib = config.disk_size.parse().ok().filter(|gib: &i64| *gib > 0);
    if gib.is_none() {
        faults.push(
            "harvester-disk-size: a disk needs at least 1 GiB (or give harvester-disk-info)".to_owned(),
        );
    }
    if config.image_name.is_empty() {
        faults.push("harvester-image-name: the disk needs an image (or give harvester-disk-info)".to_owned());
        return None;
    }
    let image =
        note("harvester-image-name", Reference::parse(&config.image_name, &config.vm_namespace), faults)?;
    Some(Disk {
        name: "disk-1".to_owned(),
        source: Source::Image(image),
        gib: gib?,
        bus: non_empty(&config.disk_bus).unwrap_or("virtio").to_owned(),
        cd_rom: false,
        boot_order: Some(1),
        hotpluggable: false,
    })
}

pub(super) fn nics(config: &Config, faults: &mut Vec<String>) -> Vec<Nic> {
    let listed;
    let (interfaces, flag) = match &config.network_info {
        Some(info) => (&info.interfaces, "harvester-network-info"),
        None => {
            listed = vec![config::Interface {
                network_name: config.network_name.clone(),
                model: config.network_model.clone(),
                ..config::Interface::default()
            }];
            (&listed, "harvester-network-name")
        }
    };
    let nic = |(at, interface): (usize, &config::Interface)| {
        if interface.network_name.is_empty() {
            faults.push(match config.network_info {
                Some(_) => format!("{flag}: interface {at} has no networkName"),
                None => format!("{flag}: the machine needs a VM network (or give harvester-network-info)"),
            });
            return None;
        }
        if !interface.mac_address.is_empty() && !is_mac(&interface.mac_address) {
            faults.push(format!("{flag}: {} is no MAC address", interface.mac_address));
        }
        let bridge = matches!(interface.r#type.as_str(), "" | "bridge");
        let pool = non_empty(&interface.ip_pool).map(str::to_owned);
        if let Some(pool) = &pool {
            if !is_name(pool) {
                faults.push(format!("{flag}: {pool} is no name of an IPPool"));
            }
            if !bridge {
                faults.push(format!(
                    "{flag}: interface {at} is of type {}, which gives the guest an address of its own: with ipPool it has to \
                     be a bridge",
                    interface.r#type
                ));
            }
        }
        let server = |text: &String| {
            let fault = |_| format!("nameserver {text} of interface {at} is no IP address");
            note(flag, text.parse().map_err(fault), faults)
        };
        let nameservers: Vec<IpAddr> = interface.nameservers.iter().filter_map(server).collect();
        if pool.is_none() && !nameservers.is_empty() {
            faults.push(format!("{flag}: interface {at} has nameservers without ipPool: DHCP names them"));
        }
        let network = Reference::parse(&interface.network_name, &config.vm_namespace);
        Some(Nic {
            name: format!("nic-{at}"),
            network: note(flag, network, faults)?,
            network_name: interface.network_name.clone(),
            model: non_empty(&interface.model).unwrap_or("virtio").to_owned(),
            mac: non_empty(&interface.mac_address).map(str::to_owned),
            bridge,
            pool,
            nameservers,
        })
    };
    let nics: Vec<Nic> = interfaces.iter().enumerate().filter_map(nic).collect();
    static_faults(&nics, config, flag, faults);
    nics
}

/// The faults of a machine's static addresses together.
fn static_faults(nics: &[Nic], config: &Config, flag: &str, faults: &mut Vec<String>) {
    let pools: Vec<&String> = nics.iter().filter_map(|nic| nic.pool.as_ref()).collect();
    if pools.is_empty() {
        return;
    }
    let twice = pools.iter().enumerate().find(|(at, pool)| pools[..*at].contains(pool));
    if let Some((_, pool)) = twice {
        faults
            .push(format!("{flag}: two interfaces name IPPool {pool}: a machine gets one address of a pool"));
    }
    if !config.network_data.0.is_empty() {
        faults.push(format!(
            "harvester-network-data: the driver makes the network data of a machine with ipPool: give one of the two, and name \
             servers as nameservers in {flag}"
        ));
    }
    if nics.iter().all(|nic| nic.pool.is_some() && nic.nameservers.is_empty()) {
        faults.push(format!(
            "{flag}: no interface with ipPool has nameservers and none has DHCP: the machine would not find Rancher"
        ));
    }
}

/// Whether this can be the name of an object without a namespace.
fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    text.len() <= 253
        && text.bytes().all(good)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let mut parts = text.split(separator);
    let byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.clone().count() == 6 && parts.all(byte)
}

/// Gives each device a unique name: Rancher's form gives all vGPUs the same one (docs/contract/node-driver.md#B26). `taken` holds
/// the names of the machine's other devices.
pub(super) fn devices<'a>(
    given: impl Iterator<Item = &'a config::Device>,
    flag: &str,
    taken: &mut HashSet<String>,
    faults: &mut Vec<String>,
) -> Vec<Device> {
    let mut unique = |name: &str| {
        let mut name = name.to_owned();
        let stem = name.clone();
        let mut next = 2;
        while !taken.insert(name.clone()) {
            name = format!("{stem}-{next}");
            next += 1;
        }
        name
    };
    let mut devices = vec![];
    for (at, device) in given.enumerate() {
        if device.device_name.is_empty() {
            faults.push(format!("{flag}: entry {at} has no deviceName"));
        }
        let name = non_empty(&device.name).map_or_else(|| format!("device-{at}"), str::to_owned);
        devices.push(Device { name: unique(&name), device: device.device_name.clone() });
    }
    devices
}
