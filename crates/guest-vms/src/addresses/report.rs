//! The networks of a VM, and the addresses that KubeVirt knows there: from the guest agent, or of its own making on the
//! pod network.

use std::{fmt, net::IpAddr};

use harvester_api::VirtualMachineInstance;
use kube::ResourceExt;

use crate::host_names::has_agent;

/// Entries of a list in a message, and characters of one that is no address.
const ENTRIES_SHOWN: usize = 6;
const TEXT_SHOWN: usize = 45;

/// What a running VM says about its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub(super) has_agent: bool,
    /// In the order of the VM's spec.
    pub(super) networks: Vec<Network>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// `namespace/name`; `None`: the pod network.
    pub(super) name: Option<String>,
    /// Name of the guest's interface; empty where no guest agent reports it.
    interface: String,
    /// As they were reported.
    addresses: Vec<String>,
}

/// An address that a Node cannot have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    text: String,
    why: &'static str,
}

impl Report {
    pub(crate) fn of(instance: &VirtualMachineInstance) -> Self {
        let namespace = instance.namespace().unwrap_or_default();
        let interfaces = instance.status.as_ref().map(|status| &status.interfaces[..]).unwrap_or_default();
        let addresses = |network: &str| match interfaces.iter().find(|it| it.name == network) {
            None => Vec::new(),
            Some(interface) if !interface.ip_addresses.is_empty() => interface.ip_addresses.clone(),
            Some(interface) => {
                Some(interface.ip_address.clone()).filter(|it| !it.is_empty()).into_iter().collect()
            }
        };
        let networks = instance.spec.networks.iter().filter_map(|network| {
            let name = match &network.multus {
                Some(multus) if multus.network_name.contains('/') => Some(multus.network_name.clone()),
                // a bare name means the VM's namespace (docs/contract/cloud-controller-manager.md#N8)
                Some(multus) => Some(format!("{namespace}/{}", multus.network_name)),
                None => network.pod.is_some().then_some(None)?,
            };
            let interface = interfaces.iter().rfind(|it| it.name == network.name);
            let interface = interface.map(|it| it.interface_name.clone()).unwrap_or_default();
            Some(Network { name, interface, addresses: addresses(&network.name) })
        });
        Self { has_agent: has_agent(instance), networks: networks.collect() }
    }
}

impl Report {
    /// The networks of the VM but the pod network, as `namespace/name`, and the guest's interface on each: empty where no
    /// guest agent reports it.
    pub fn interfaces(&self) -> impl Iterator<Item = (&str, &str)> {
        self.networks
            .iter()
            .filter_map(|network| Some((network.name.as_deref()?, network.interface.as_str())))
    }

    /// Whether the guest agent reports the name of any interface, that on the pod network too.
    pub fn names_interfaces(&self) -> bool {
        self.networks.iter().any(|network| !network.interface.is_empty())
    }
}

/// All addresses that are reported on the networks of the VM.
pub(crate) fn ips(instance: &VirtualMachineInstance) -> impl Iterator<Item = IpAddr> {
    let interfaces = instance.status.iter().flat_map(|status| &status.interfaces);
    let of_networks = interfaces.filter(|interface| !interface.name.is_empty());
    of_networks.flat_map(|it| it.ip_addresses.iter().chain([&it.ip_address])).filter_map(|text| read(text))
}

impl Network {
    pub(super) fn called(&self) -> String {
        self.name.as_ref().map_or_else(|| "the pod network".to_owned(), |name| format!("network {name}"))
    }

    pub(super) fn reports(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|text| read(text) == Some(ip))
    }

    /// The addresses that a Node can have, each once (the API server refuses a list that repeats one), and the others.
    pub(super) fn usable(&self, is_announced: impl Fn(IpAddr) -> bool) -> (Vec<IpAddr>, Vec<LeftOut>) {
        let (mut usable, mut left_out) = (Vec::new(), Vec::new());
        for text in &self.addresses {
            let ip = read(text);
            let why = match ip {
                // docs/contract/cloud-controller-manager.md#N5: the others count
                None => Some("no IP address"),
                Some(ip) if is_announced(ip) => Some("announced for a Service"),
                Some(ip) => unusable(ip),
            };
            match (ip, why) {
                (Some(ip), None) if !usable.contains(&ip) => usable.push(ip),
                (_, Some(why)) => {
                    left_out.push(LeftOut { text: text.chars().take(TEXT_SHOWN).collect(), why });
                }
                _ => {}
            }
        }
        (usable, left_out)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.why)
    }
}

/// As in a sentence.
pub(super) fn listed(items: &[impl fmt::Display]) -> String {
    let mut shown: Vec<_> = items.iter().take(ENTRIES_SHOWN).map(ToString::to_string).collect();
    if items.len() > ENTRIES_SHOWN {
        shown.push(format!("{} more", items.len() - ENTRIES_SHOWN));
    }
    shown.join(", ")
}

/// An IPv4 address in the form of an IPv6 address is one of IPv4.
pub(super) fn read(text: &str) -> Option<IpAddr> {
    text.trim().parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// Why no node can be reached at this address.
fn unusable(ip: IpAddr) -> Option<&'static str> {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    let kinds = [
        (ip.is_loopback(), "loopback"),
        (ip.is_multicast(), "multicast"),
        (ip.is_unspecified(), "unspecified"),
        (is_link_local, "link-local"),
        (is_broadcast, "broadcast"),
    ];
    kinds.into_iter().find_map(|(holds, why)| holds.then_some(why))
}
