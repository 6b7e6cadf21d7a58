//! The network by which a VM with several is reached, and the sentence that tells which one was taken.
//!
//! Which network an interface is on says the VM's specification, by the name that KubeVirt gives the interface; what the
//! guest agent calls it counts for nothing. An interface that the specification does not have is the guest's own, such as
//! a bridge of its containers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use harvester_api::kubevirt::VmInterface;
use harvester_api::{LoadBalancer, VirtualMachineInstance, annotations};
use kube::ResourceExt as _;

/// What follows the names of VMs in a note.
pub(super) const REACHED: &str = " reached on ";
/// At most so many VMs of one network, and so many networks, are named.
const NAMED: usize = 3;
/// At most so many characters of a name, and of the whole: the condition tells more than this.
const LONGEST_NAME: usize = 63;
const LONGEST: usize = 250;

/// The network that an interface of a VM is on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Network {
    /// The one of Harvester's pods, which Harvester calls the management network.
    Pod,
    /// `namespace/name` of a NetworkAttachmentDefinition.
    Attached(String),
    /// Nobody but the guest knows it.
    OfTheGuest,
}

impl Network {
    /// The network of an interface in a VM's status.
    pub(crate) fn of(vmi: &VirtualMachineInstance, interface: &VmInterface) -> Self {
        let is_it = |name: &str| !name.is_empty() && name == interface.name;
        let Some(network) = vmi.spec.networks.iter().find(|network| is_it(&network.name)) else {
            return Self::OfTheGuest;
        };
        match &network.multus {
            _ if network.pod.is_some() => Self::Pod,
            Some(multus) => {
                Self::Attached(qualified(&multus.network_name, vmi.metadata.namespace.as_deref()))
            }
            None => Self::OfTheGuest,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => out.write_str("the management network"),
            Self::Attached(name) => write!(out, "network {}", cut(name)),
            Self::OfTheGuest => out.write_str("an interface that only the guest knows"),
        }
    }
}

/// The networks that the annotations of an object name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Its backends are reached here where they can be.
    network: Option<Network>,
    /// The management network of a guest cluster.
    management: Option<Network>,
}

impl Wish {
    pub(crate) fn of(lb: &LoadBalancer) -> Self {
        let network = |key: &str| {
            let name = lb.annotations().get(key).map(|name| name.trim()).filter(|name| !name.is_empty())?;
            Some(Network::Attached(qualified(name, lb.metadata.namespace.as_deref())))
        };
        Self {
            network: network(annotations::LB_NETWORK),
            management: network(annotations::MANAGEMENT_NETWORK),
        }
    }

    pub(crate) fn names_any(&self) -> bool {
        self.network.is_some()
    }

    /// Whether a VM is to be reached on this network before all others.
    pub(crate) fn names(&self, network: &Network) -> bool {
        self.network.as_ref() == Some(network)
    }

    /// The place of a network among those that nobody asked for; the least comes first.
    pub(crate) fn rank(&self, network: &Network) -> usize {
        match network {
            network if self.management.as_ref() == Some(network) => 0,
            Network::Pod => 1,
            Network::Attached(_) => 2,
            Network::OfTheGuest => 3,
        }
    }
}

/// The network of a VM, where there was a choice, or none was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) vm: String,
    pub(crate) address: IpAddr,
    pub(crate) network: Network,
    /// The VM has no usable address on the network that the object names.
    pub(crate) instead: bool,
}

/// Tells which networks were taken; nothing where no VM had a choice.
pub(crate) fn note<'a>(taken: impl IntoIterator<Item = &'a Taken>, wish: &Wish) -> Option<String> {
    let mut groups: BTreeMap<(bool, &Network), Vec<&str>> = BTreeMap::new();
    for Taken { vm, network, instead, address: _ } in taken {
        groups.entry((!instead, network)).or_default().push(vm);
    }
    let more = groups.len().saturating_sub(NAMED);
    let sentence = |((as_wished, network), vms): ((bool, &Network), Vec<&str>)| {
        let vms = vms_named(&vms);
        match &wish.network {
            Some(named) if !as_wished => {
                format!("{vms}{REACHED}{network}, without a usable address on {named}")
            }
            _ => format!("{vms}{REACHED}{network}"),
        }
    };
    let mut sentences: Vec<_> = groups.into_iter().take(NAMED).map(sentence).collect();
    if more > 0 {
        sentences.push(format!("others on {more} more networks"));
    }
    let text = sentences.join("; ");
    (!text.is_empty()).then(|| match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    })
}

fn vms_named(vms: &[&str]) -> String {
    let named: Vec<_> = vms.iter().take(NAMED).map(|vm| cut(vm)).collect();
    let named = named.join(", ");
    match vms.len() {
        1 => format!("VM {named} is"),
        count if count > NAMED => format!("VMs {named} and {} more are", count - NAMED),
        _ => format!("VMs {named} are"),
    }
}

/// A bare name is one of the object's own namespace.
fn qualified(name: &str, namespace: Option<&str>) -> String {
    if name.contains('/') { name.to_owned() } else { format!("{}/{name}", namespace.unwrap_or_default()) }
}

fn cut(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn wish(network: &str) -> Wish {
        let lb = json!({"metadata": {"name": "web", "namespace": "shop",
            "annotations": {annotations::LB_NETWORK: network}}, "spec": {}});
        Wish::of(&serde_json::from_value(lb).unwrap())
    }

    fn attached(name: &str) -> Network {
        Network::Attached(name.to_owned())
    }

    #[rstest]
    #[case::pod(json!({"name": "default"}), Network::Pod)]
    #[case::of_the_vms_namespace(json!({"name": "one"}), attached("shop/vlan10"))]
    #[case::of_another(json!({"name": "two"}), attached("infra/vlan20"))]
    // the agent may name its interfaces as it likes
    #[case::named_by_the_guest(json!({"name": "", "interfaceName": "one"}), Network::OfTheGuest)]
    #[case::of_containers(json!({"interfaceName": "cni0"}), Network::OfTheGuest)]
    #[case::unknown(json!({"name": "three"}), Network::OfTheGuest)]
    #[case::of_no_sort(json!({"name": "four"}), Network::OfTheGuest)]
    fn the_vms_specification_says_which_network_an_interface_is_on(
        #[case] interface: Value,
        #[case] expected: Network,
    ) {
        let networks = json!([{"name": "default", "pod": {}}, {"name": "one", "multus": {"networkName": "vlan10"}},
            {"name": "two", "multus": {"networkName": "infra/vlan20"}}, {"name": "four"}, {"name": "", "pod": {}}]);
        let vmi = json!({"metadata": {"name": "web-1", "namespace": "shop"}, "spec": {"networks": networks}});
        let interface = serde_json::from_value(interface).unwrap();
        assert_eq!(Network::of(&serde_json::from_value(vmi).unwrap(), &interface), expected);
    }

    fn taken(vm: &str, network: Network, instead: bool) -> Taken {
        Taken { vm: vm.to_owned(), address: [192, 168, 7, 11].into(), network, instead }
    }

    #[rstest]
    #[case::nobody_had_a_choice(vec![], None)]
    #[case::as_wished(vec![taken("web-1", attached("shop/vlan10"), false)],
        Some("VM web-1 is reached on network shop/vlan10"))]
    #[case::instead(
        vec![taken("web-1", attached("shop/vlan10"), false), taken("web-2", Network::Pod, true)],
        Some("VM web-2 is reached on the management network, without a usable address on network shop/vlan10; \
              VM web-1 is reached on network shop/vlan10"))]
    #[case::many((1..=5).map(|n| taken(&format!("web-{n}"), Network::Pod, true)).collect(),
        Some("VMs web-1, web-2, web-3 and 2 more are reached on the management network, without a usable address on \
              network shop/vlan10"))]
    fn the_note_says_which_vm_is_reached_where(#[case] taken: Vec<Taken>, #[case] expected: Option<&str>) {
        assert_eq!(note(&taken, &wish("vlan10")).as_deref(), expected);
    }

    #[test]
    fn the_note_stays_short_however_many_networks_there_are() {
        let all: Vec<_> =
            (0..500).map(|n| taken(&"v".repeat(300), attached(&format!("shop/{n:0>300}")), true)).collect();
        let note = note(&all, &wish(&"n".repeat(10_000))).unwrap();
        assert_eq!(note.chars().count(), LONGEST + 1, "{note}");
        let few: Vec<_> = (0..9).map(|n| taken("a", attached(&format!("shop/{n}")), false)).collect();
        let note = super::note(&few, &wish("shop/1")).unwrap();
        assert!(note.ends_with("VM a is reached on network shop/2; others on 6 more networks"), "{note}");
    }
}
