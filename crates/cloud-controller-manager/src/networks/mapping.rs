//! The decision which interface of the Nodes is on a network. kube-vip runs on any of them and takes one name for a
//! Service, so a network that is not on the same interface everywhere is on none.

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::names::NETWORKS_CONFIG_MAP;
use serde_json::Value;

/// Longest name of a Linux interface.
const INTERFACE_MAX: usize = 15;
/// Longest name of a network: a namespace, a slash and a name.
const NETWORK_MAX: usize = 63 + 1 + 253;
/// A list in a message has so many entries.
const ENTRIES_SHOWN: usize = 6;
/// A value in a message has so many characters.
const TEXT_SHOWN: usize = 80;

/// The networks of a Node's VM, and the interface of the guest on each; it is empty where no guest agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nics {
    pub(crate) node: String,
    /// Whether the guest agent reports the name of any interface, that on the pod network too.
    pub(crate) is_heard: bool,
    pub(crate) interfaces: BTreeMap<String, String>,
}

/// The mapping in the ConfigMap of the guest cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mapping {
    #[default]
    Absent,
    Interfaces(BTreeMap<String, String>),
    /// The sentence says why.
    Malformed(String),
}

/// The interface of the network that a Service asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Interface {
    /// It asks for none.
    #[default]
    NotAsked,
    Named(String),
    /// Nobody says which; kube-vip takes its own.
    Unknown,
    /// No VM has the network: guest agents speak, of the pod network alone. The mapping says nothing either; kube-vip takes its
    /// own. The sentence says what to do.
    OnNoVm(String),
    /// The VMs, or the ConfigMap, may still name it: one of both is not listed yet, or the VM of a Node that just joined is
    /// looked for.
    NotYetKnown,
    /// There is none; the sentence says why.
    Missing(String),
}

impl Mapping {
    /// `text`: a JSON object of networks to interfaces; empty where the Go program found none.
    pub(crate) fn read(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Absent;
        }
        let malformed = |why: &str| Self::Malformed(why.to_owned());
        let entries = match serde_json::from_str(text) {
            Ok(Value::Object(entries)) => entries,
            Ok(_) => return malformed("it is no JSON object of networks and interfaces"),
            Err(error) => return malformed(&format!("it is no JSON: {}", cut(&error.to_string()))),
        };
        // one entry that is none hides no other
        let interface = |(network, name): (String, Value)| Some((network, name.as_str()?.to_owned()));
        let interfaces: BTreeMap<_, _> = entries.into_iter().filter_map(interface).collect();
        if interfaces.is_empty() { Self::Absent } else { Self::Interfaces(interfaces) }
    }
}

/// The interface of `network`: as the VMs report it; where no guest agent reports any, as the mapping says.
pub(crate) fn interface(network: &str, all: &[Nics], mapping: &Mapping) -> Interface {
    if network.is_empty() {
        return Interface::NotAsked;
    }
    let speaking: Vec<_> = all.iter().filter(|nics| nics.speak()).collect();
    if speaking.is_empty() {
        let is_there = all.iter().any(|nics| nics.interfaces.contains_key(network));
        let is_heard = all.iter().any(|nics| nics.is_heard);
        return match of_mapping(network, mapping) {
            Interface::Unknown if is_heard && !is_there => Interface::OnNoVm(on_no_vm(network, all)),
            found => found,
        };
    }
    let on = |nics: &Nics| nics.interfaces.get(network).filter(|name| !name.is_empty()).cloned();
    let names: BTreeSet<Option<String>> = speaking.iter().map(|nics| on(nics)).collect();
    let names: Vec<_> = names.into_iter().collect();
    match &names[..] {
        [Some(name)] => valid(network, name),
        [None] if !speaking.iter().any(|nics| nics.interfaces.contains_key(network)) => {
            Interface::Missing(on_no_vm(network, speaking))
        }
        _ => {
            let of = |nics: &&Nics| {
                format!("{} on node {}", on(nics).map_or_else(|| "none".to_owned(), |it| cut(&it)), nics.node)
            };
            Interface::Missing(format!(
                "network {} is not on the same interface of every node ({}), and kube-vip takes one name for all: give \
                 every VM its interfaces in the same order",
                cut(network),
                listed(speaking.iter().map(of))
            ))
        }
    }
}

/// The mapping for the ConfigMap: networks that are on the same interface of every Node whose guest agent speaks.
/// Nothing while none does.
pub(crate) fn common(all: &[Nics]) -> Option<BTreeMap<String, String>> {
    let mut speaking = all.iter().filter(|nics| nics.speak());
    let mut common = speaking.next()?.interfaces.clone();
    common.retain(|network, name| is_valid(name) && network.len() <= NETWORK_MAX);
    for nics in speaking {
        common.retain(|network, name| nics.interfaces.get(network) == Some(name));
    }
    Some(common)
}

impl Nics {
    /// Whether the VM's guest agent reports the name of any interface.
    pub(super) fn speak(&self) -> bool {
        self.interfaces.values().any(|name| !name.is_empty())
    }
}

fn on_no_vm<'a>(network: &str, vms: impl IntoIterator<Item = &'a Nics>) -> String {
    let there: BTreeSet<_> = vms.into_iter().flat_map(|nics| nics.interfaces.keys()).collect();
    let there = if there.is_empty() {
        "the pod network alone".to_owned()
    } else {
        listed(there.into_iter().map(|network| cut(network)))
    };
    let bare = if network.contains('/') { "" } else { ", written as namespace/name" };
    format!(
        "no VM of this cluster has network {} (they have {there}): make the Service anew with another network{bare}, or give \
         every VM an interface there",
        cut(network)
    )
}

fn of_mapping(network: &str, mapping: &Mapping) -> Interface {
    let missing = |why: String| {
        let place = format!("ConfigMap {}/{}", super::NAMESPACE, NETWORKS_CONFIG_MAP);
        Interface::Missing(format!(
            "{place}, key {}, {why}; no guest agent of a VM reports interfaces: correct it, or start the guest agents",
            super::KEY
        ))
    };
    match mapping {
        Mapping::Absent => Interface::Unknown,
        Mapping::Malformed(why) => missing(format!("cannot be read, {why}")),
        Mapping::Interfaces(interfaces) => match interfaces.get(network) {
            Some(name) => valid(network, name),
            None => missing(format!(
                "does not name network {} (it has {})",
                cut(network),
                listed(interfaces.keys().map(|network| cut(network)))
            )),
        },
    }
}

fn valid(network: &str, name: &str) -> Interface {
    if is_valid(name) {
        return Interface::Named(name.to_owned());
    }
    Interface::Missing(format!(
        "the interface of network {} is called {:?}, and an interface has at most {INTERFACE_MAX} characters and no slash \
         or blank: correct its name",
        cut(network),
        cut(name)
    ))
}

fn is_valid(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_graphic() && b != b'/';
    (1..=INTERFACE_MAX).contains(&name.len()) && name.bytes().all(is_allowed) && name != "." && name != ".."
}

fn cut(text: &str) -> String {
    let mut shown: String = text.chars().take(TEXT_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(ENTRIES_SHOWN);
    let mut shown: Vec<_> = items.take(ENTRIES_SHOWN).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
