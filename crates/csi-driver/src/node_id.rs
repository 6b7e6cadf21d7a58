//! The name of the machine that this process runs in, which is the node ID that kubelet keeps in the CSINode.
//!
//! ```text
//! MAC addresses of this machine ─┐
//! instance named --nodeid ───────┤
//! all instances of the namespace ┼─► decide ──► the machine's name, or why it is unknown
//! CSINode of this Node ──────────┘
//! ```
//! The Node may have another name than its machine, so the MAC addresses decide. While the host is away, the CSINode says
//! what they decided before: kubelet wrote it when the driver registered. How many volumes have room in the machine is
//! found in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use harvester_api::VirtualMachineInstance;
use kube::ResourceExt as _;
use program::health::Check;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    attach::hotplug::MOST_VOLUMES,
    guest::{Guest, Noted},
    host::{self, Host, reach::Reached, rights},
    refusal::error_message,
};

/// Addresses that are no machine's own: Calico gives the first one to its interfaces, and loopback has the other
/// (docs/contract/csi-driver.md#node-id).
const NOBODYS: [&str; 2] = ["ee:ee:ee:ee:ee:ee", "00:00:00:00:00:00"];
/// How long after an answer that settles nothing, or leaves a doubt, the clusters are asked again: doubled each time …
const AGAIN_FIRST: Duration = Duration::from_secs(1);
/// … up to this.
const AGAIN_LAST: Duration = Duration::from_secs(30);
/// The kernel's list of interfaces.
pub const INTERFACES: &str = "/sys/class/net";

/// The MAC addresses of this machine, in small letters.
///
/// # Errors
/// When the folder cannot be read. An interface that goes away meanwhile, or has no address, counts as none.
pub fn own_addresses(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let Ok(text) = fs::read_to_string(entry?.path().join("address")) else { continue };
        found.extend(own(&text));
    }
    Ok(found)
}

/// The address in its one form, if it is a machine's own.
fn own(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_mac = text.split(':').count() == 6 && text.split(':').all(is_pair);
    (is_mac && !NOBODYS.contains(&text.as_str())).then_some(text)
}

/// A machine that runs on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    pub addresses: BTreeSet<String>,
    /// How many volumes it has that were not plugged in: its root disk, cloud-init's.
    pub own_volumes: usize,
}

/// The addresses that the host gave the machine: those of its spec, and of what it shows the interfaces that have the name
/// of a network of the spec. Others are told by the guest agent, and whoever owns a machine may let it tell another's.
impl From<&VirtualMachineInstance> for Machine {
    fn from(instance: &VirtualMachineInstance) -> Self {
        let specified = instance.spec.rest.get("domain");
        let specified = specified.and_then(|domain| domain.pointer("/devices/interfaces")?.as_array());
        let text =
            |interface: &Value, key: &str| interface.get(key).and_then(Value::as_str).map(str::to_owned);
        let specified: BTreeMap<_, _> = specified
            .into_iter()
            .flatten()
            .filter_map(|one| Some((text(one, "name")?, text(one, "macAddress").as_deref().and_then(own))))
            .collect();
        let networks = instance.spec.networks.iter().map(|network| network.name.as_str());
        let names: BTreeSet<_> = networks.chain(specified.keys().map(String::as_str)).collect();
        let shown = instance.status.iter().flat_map(|status| &status.interfaces).filter(|interface| {
            let is_told = specified.get(&interface.name).is_some_and(Option::is_some);
            !is_told && names.contains(interface.name.as_str())
        });
        let shown = shown.filter_map(|interface| own(&interface.mac));
        Self {
            name: instance.metadata.name.clone().unwrap_or_default(),
            addresses: specified.values().flatten().cloned().chain(shown).collect(),
            own_volumes: own_volumes(instance),
        }
    }
}

fn own_volumes(instance: &VirtualMachineInstance) -> usize {
    let spec = &instance.spec.rest;
    let volumes = spec.get("volumes").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let disks = spec.get("domain").and_then(|domain| domain.pointer("/devices/disks")?.as_array());
    let is_hotpluggable = |volume: &&Value| {
        let mut sources = volume.as_object().into_iter().flat_map(serde_json::Map::values);
        sources.any(|source| source.get("hotpluggable") == Some(&Value::Bool(true)))
    };
    // an empty drive for CDs is a disk without a volume
    let all = volumes.len().max(disks.map_or(0, Vec::len));
    all - volumes.iter().filter(is_hotpluggable).count()
}

/// An answer that may not be there: the error is one line.
pub type Asked<T> = Result<T, String>;

/// What is known when the name is decided.
#[derive(Clone, Debug)]
pub struct Seen {
    /// `--nodeid`: the name of the Node, and as a rule that of the machine.
    pub node: String,
    /// Our MAC addresses.
    pub own: BTreeSet<String>,
    /// The machine of the Node's name.
    pub same_name: Asked<Option<Machine>>,
    /// All machines of the namespace; `None` where it was not necessary to ask.
    pub all: Option<Asked<Vec<Machine>>>,
    /// What kubelet noted at an earlier registration.
    pub noted: Asked<Option<String>>,
}

/// What the host says of the machine that this process runs in. Whose volumes are ours follows from it, so neither the
/// Node's name nor kubelet's note stands in for it: another cluster may have a machine of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnMachine {
    /// The host has not answered.
    NotAsked {
        why: String,
    },
    /// The host has answered, and no machine of it has an address of ours.
    None {
        why: String,
    },
    /// Several machines have our addresses, and one of them is ours.
    Several {
        names: Vec<String>,
    },
    Confirmed(String),
}

impl Default for OwnMachine {
    fn default() -> Self {
        Self::NotAsked { why: "the host has not answered yet".to_owned() }
    }
}

impl OwnMachine {
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Confirmed(name) => Some(name),
            _ => None,
        }
    }

    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::NotAsked { .. })
    }
}

/// What the node service says of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub name: String,
    /// How many volumes have room beside the machine's own, where the host has said it.
    pub room: Option<u32>,
    /// How many volumes kubelet noted at an earlier registration.
    pub noted: Option<u32>,
    /// Whether the host was asked once. Until then kubelet's note stands in for it.
    pub is_asked: bool,
}

impl Told {
    /// A machine of which nothing else is known.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), room: None, noted: None, is_asked: true }
    }
}

/// The machine's name, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeId {
    /// The host says it, or said that it cannot say more.
    Settled {
        name: String,
        doubt: Option<String>,
    },
    /// The CSINode says it; the host is to be asked again, for this reason.
    Noted {
        name: String,
        again: String,
    },
    Unknown {
        why: String,
    },
}

impl NodeId {
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Settled { name, .. } | Self::Noted { name, .. } => Some(name),
            Self::Unknown { .. } => None,
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self, Self::Settled { .. })
    }
}

/// Whether all machines have to be read before the name can be decided.
pub fn needs_all(own: &BTreeSet<String>, same_name: &Asked<Option<Machine>>) -> bool {
    !own.is_empty() && !matches!(same_name, Ok(Some(machine)) if is_ours(machine, own))
}

fn is_ours(machine: &Machine, own: &BTreeSet<String>) -> bool {
    !machine.addresses.is_disjoint(own)
}

/// What the answers of the host say.
pub fn own_machine(seen: &Seen) -> OwnMachine {
    let Seen { own, same_name, all, .. } = seen;
    if let Ok(Some(machine)) = same_name
        && is_ours(machine, own)
    {
        return OwnMachine::Confirmed(machine.name.clone());
    }
    if own.is_empty() {
        let why = format!(
            "{INTERFACES} names no MAC address of this machine, so the host cannot tell which one it is"
        );
        return OwnMachine::None { why };
    }
    let all = match (same_name, all) {
        (_, Some(Ok(all))) => all,
        (_, Some(Err(error))) | (Err(error), None) => return OwnMachine::NotAsked { why: error.clone() },
        (Ok(_), None) => {
            return OwnMachine::NotAsked { why: "the machines of the host were not read".to_owned() };
        }
    };
    let ours: Vec<_> = all.iter().filter(|machine| is_ours(machine, own)).collect();
    match (&ours[..], same_name) {
        ([only], _) => OwnMachine::Confirmed(only.name.clone()),
        // the list may be of a moment before the machine of our name was there
        ([], Err(error)) => OwnMachine::NotAsked { why: error.clone() },
        ([], Ok(_)) => {
            let own = own.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            OwnMachine::None {
                why: format!("no running machine on the host has one of our MAC addresses ({own})"),
            }
        }
        (several, _) => {
            OwnMachine::Several { names: several.iter().map(|machine| machine.name.clone()).collect() }
        }
    }
}

/// How many volumes have room in our machine, where the host says which one it is. One at least: CSI takes 0 for no limit.
pub fn room(seen: &Seen) -> Option<u32> {
    let own = own_machine(seen);
    let same_name = seen.same_name.iter().flatten();
    let mut machines = same_name.chain(seen.all.iter().flatten().flatten());
    let machine = machines.find(|machine| own.name() == Some(machine.name.as_str()))?;
    u32::try_from(MOST_VOLUMES.saturating_sub(machine.own_volumes).max(1)).ok()
}

/// `machines a and b have the same MAC addresses`, for sentences.
pub(crate) fn alike(names: &[String]) -> String {
    format!("machines {} have the same MAC addresses", names.join(" and "))
}

/// Decides from everything that was seen.
pub fn decide(seen: &Seen) -> NodeId {
    let Seen { node, noted, .. } = seen;
    let noted_name = noted.as_ref().ok().cloned().flatten();
    match own_machine(seen) {
        OwnMachine::Confirmed(name) => NodeId::Settled { name, doubt: None },
        OwnMachine::None { why } => match noted_name.or_else(|| Some(node.clone())) {
            Some(name) if !name.is_empty() => NodeId::Settled { name, doubt: Some(why) },
            _ => NodeId::Unknown { why: format!("{why}; a process on a Node is told its name by --nodeid") },
        },
        OwnMachine::Several { names } => match noted_name {
            Some(name) if names.contains(&name) => NodeId::Settled { name, doubt: Some(alike(&names)) },
            _ => NodeId::Unknown { why: format!("{}: give each machine its own", alike(&names)) },
        },
        OwnMachine::NotAsked { why } => unsettled(noted, &why),
    }
}

/// The host does not answer: what kubelet noted counts until it does.
fn unsettled(noted: &Asked<Option<String>>, error: &str) -> NodeId {
    match noted {
        Ok(Some(name)) => NodeId::Noted { name: name.clone(), again: error.to_owned() },
        Ok(None) => {
            NodeId::Unknown { why: format!("{error}; and kubelet has noted no node ID of this Node") }
        }
        Err(other) => NodeId::Unknown { why: format!("{error}; {other}") },
    }
}

/// Finds the machine's name and tells it, until the host confirms it.
pub struct Finder {
    /// `--nodeid`.
    pub node: String,
    pub guest: Guest,
    pub host: watch::Receiver<Reached>,
    /// The folder [`INTERFACES`], or one that stands for it.
    pub interfaces: PathBuf,
}

impl Finder {
    /// Tells `name` what is found, at once where kubelet noted it, and passes `check` when it is known. `own` hears what
    /// the host says; the search ends when that is a name.
    pub async fn find(
        mut self,
        name: watch::Sender<Option<Told>>,
        own: watch::Sender<OwnMachine>,
        check: Option<Check>,
    ) {
        let mut wait = AGAIN_FIRST;
        let mut last: Option<NodeId> = None;
        loop {
            let (addresses, noted) = (self.addresses(), self.noted().await);
            let volumes = noted.as_ref().ok().and_then(|noted| noted.as_ref()?.volumes);
            let noted = noted.map(|noted| noted.map(|noted| noted.node_id));
            if name.borrow().is_none() {
                // a process that starts again is of use before the host has answered
                let asked = || "the host has not answered yet".to_owned();
                let seen = self.seen(addresses.clone(), Err(asked()), Some(Err(asked())), noted.clone());
                let told = |name| Told { name, room: None, noted: volumes, is_asked: false };
                tell(&decide(&seen), told, &name, check.as_ref());
            }
            let host = self.host.borrow_and_update().clone();
            let (same_name, all) = match host {
                Ok(host) => {
                    let same_name = self.same_name(&host).await;
                    let all = if needs_all(&addresses, &same_name) { Some(all(&host).await) } else { None };
                    (same_name, all)
                }
                Err(why) => (Err(why.clone()), Some(Err(why))),
            };
            let seen = self.seen(addresses, same_name, all, noted);
            let found = decide(&seen);
            let says = own_machine(&seen);
            // what a host settled that does not answer now stays
            if found.is_settled() || !last.as_ref().is_some_and(NodeId::is_settled) {
                if last.as_ref() != Some(&found) {
                    log(&found, &says, !self.node.is_empty());
                }
                let told = |name| Told { name, room: room(&seen), noted: volumes, is_asked: true };
                tell(&found, told, &name, check.as_ref());
                if found.is_settled() {
                    wait = AGAIN_LAST;
                }
                last = Some(found);
            }
            let is_confirmed = says.name().is_some();
            own.send_if_modified(|known| {
                // what a host has answered that does not answer now stays
                let is_news = *known != says && (says.is_answered() || !known.is_answered());
                if is_news {
                    *known = says;
                }
                is_news
            });
            if is_confirmed {
                return;
            }
            // a sender that is gone changes nothing more
            match timeout(wait, self.host.changed()).await {
                Ok(Ok(())) => wait = AGAIN_FIRST,
                Ok(Err(_)) => sleep(wait).await,
                Err(_) => wait = (wait * 2).min(AGAIN_LAST),
            }
        }
    }

    fn addresses(&self) -> BTreeSet<String> {
        own_addresses(&self.interfaces).unwrap_or_else(|error| {
            tracing::warn!("read {}: {error}", self.interfaces.display());
            BTreeSet::new()
        })
    }

    fn seen(
        &self,
        own: BTreeSet<String>,
        same_name: Asked<Option<Machine>>,
        all: Option<Asked<Vec<Machine>>>,
        noted: Asked<Option<String>>,
    ) -> Seen {
        Seen { node: self.node.clone(), own, same_name, all, noted }
    }

    async fn noted(&self) -> Asked<Option<Noted>> {
        if self.node.is_empty() {
            return Ok(None);
        }
        let noted = self.guest.noted(&self.node).await;
        noted.map_err(|error| {
            format!("read CSINode {}: {}", self.node, rights::explained(error_message(&error)))
        })
    }

    async fn same_name(&self, host: &Host) -> Asked<Option<Machine>> {
        if self.node.is_empty() {
            return Ok(None);
        }
        let found = host.instances().get_opt(&self.node).await;
        let found = found.map_err(|error| {
            let (namespace, name) = (host.namespace(), &self.node);
            format!("read VirtualMachineInstance {namespace}/{name} on the host: {}", error_message(&error))
        });
        Ok(found?.as_ref().map(Machine::from))
    }
}

async fn all(host: &Host) -> Asked<Vec<Machine>> {
    let found = host::list(&host.instances()).await.map_err(|error| {
        let namespace = host.namespace();
        format!("list VirtualMachineInstances in {namespace} on the host: {}", error_message(&error))
    })?;
    // an instance without a name is none
    Ok(found.iter().filter(|instance| !instance.name_any().is_empty()).map(Machine::from).collect())
}

fn tell(
    found: &NodeId,
    told: impl FnOnce(String) -> Told,
    name: &watch::Sender<Option<Told>>,
    check: Option<&Check>,
) {
    if let Some(known) = found.name() {
        let told = Some(told(known.to_owned()));
        name.send_if_modified(|current| {
            let differs = *current != told;
            *current = told;
            differs
        });
    }
    match (check, found) {
        (None, _) => {}
        (Some(check), NodeId::Unknown { why }) => check.fail(why.clone()),
        (Some(check), NodeId::Settled { .. } | NodeId::Noted { .. }) => check.pass(),
    }
}

/// `is_of_node` says whether the process was told the Node that it runs on.
fn log(found: &NodeId, says: &OwnMachine, is_of_node: bool) {
    match found {
        NodeId::Unknown { why } if !is_of_node => {
            let next = match says {
                OwnMachine::None { .. } => "no volume is refused as another guest cluster's",
                _ => "volumes with the label of a guest cluster wait for it",
            };
            tracing::info!(
                "on which machine of the host this process runs is not known, and it serves the sidecars all the same; {next}: \
                 {why}"
            );
        }
        NodeId::Settled { name, doubt: None } => tracing::info!(name, "this machine on the host"),
        NodeId::Settled { name, doubt: Some(doubt) } => {
            tracing::warn!(name, "this machine goes by a name that the host does not confirm: {doubt}");
        }
        NodeId::Noted { name, again } => {
            tracing::info!(name, "this machine, as kubelet noted it; the host is asked again: {again}");
        }
        NodeId::Unknown { why } => tracing::warn!("the name of this machine is not known yet: {why}"),
    }
}

#[cfg(test)]
mod tests;
