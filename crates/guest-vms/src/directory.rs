//! The VM of each Node: by provider ID, by its name, by the host name that its guest agent reports.
//!
//! The Go program knew the last two only, and the last only in the process that had seen it
//! (docs/contract/cloud-controller-manager.md#N1 and #N2). The directory forgets host names of VMs that are gone, and
//! ignores one that two VMs report. It remembers VMs that are gone for a while, for the Nodes that they leave behind.
//!
//! It holds the VMs that are watched. Of others it knows what a search told (module `search`): enough to say which of
//! them should be watched by name ([`Directory::candidates`]), and nothing that makes one a Node's VM.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use harvester_api::names::PROVIDER_ID_PREFIX;

/// So many VMs that are gone are remembered; a Node whose VM is forgotten is removed only if other VMs are there.
const DEPARTED_MAX: usize = 2_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    /// `None`: nobody chose a name, so labels of VMs name no owner.
    cluster: Option<String>,
    vms: HashMap<String, Vm>,
    by_uid: HashMap<String, String>,
    /// Label of the guest cluster on instances that are watched, by name: a VM may lack the label of its instance.
    instances: HashMap<String, Option<String>>,
    /// UIDs of instances that no watch tells of, by name.
    strangers: BTreeMap<String, String>,
    host_names: HashMap<String, String>,
    by_host_name: HashMap<String, BTreeSet<String>>,
    /// What a search said of UIDs that no watch tells of.
    searched: HashMap<String, Searched>,
    /// VMs that were here while this process ran, the oldest first.
    departed: VecDeque<DepartedVm>,
}

/// The sign by which a VM is the VM of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// The Node's `spec.providerID` names it.
    ProviderId,
    /// It has the Node's name.
    Name,
    /// Its guest agent reports the Node's name as host name.
    HostName,
}

/// Why the VM that a provider ID names is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It was another guest cluster's.
    Foreign,
    /// Its deletion was watched.
    Deleted,
    /// A list of all VMs names those of other Nodes, and not this one, which was here.
    Missing,
    /// The same, but nothing shows that this one was ever in this namespace: it may be in another.
    NeverSeen,
    /// Nothing shows that it was here, or that this is the same Harvester.
    Doubtful,
    /// Nobody has searched for it yet.
    Unsearched,
}

/// What a list of all VMs of the namespace says of a UID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Searched {
    /// The VM of this name has it.
    Named(String),
    /// No VM has it, and the list names VMs of other Nodes.
    Missing,
    /// No VM has it, and the list may be another Harvester's.
    Doubtful,
}

#[derive(Clone, Debug)]
struct DepartedVm {
    uid: String,
    name: String,
    is_ours: bool,
    /// A watch that worked told so; a list that does not name it may be another Harvester's.
    left_by_watch: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Vm {
    uid: String,
    cluster: Option<String>,
}

impl Directory {
    pub(crate) fn new(cluster: Option<String>) -> Self {
        Self { cluster, ..Self::default() }
    }

    /// The VM of a Node.
    pub(crate) fn find(&self, node: &str, provider_id: &str) -> Option<String> {
        self.find_by(node, provider_id).map(|(vm, _)| vm)
    }

    /// The same, and by which sign.
    pub(crate) fn find_by(&self, node: &str, provider_id: &str) -> Option<(String, FoundBy)> {
        if let Some(id) = provider_id.strip_prefix(PROVIDER_ID_PREFIX) {
            // some tools write the VM's name where its UID belongs; unlike a UID, it may be in use by another cluster
            let named = || self.is_ours(id).then(|| id.to_owned());
            if let Some(vm) = self.by_uid.get(id).cloned().or_else(named) {
                return Some((vm, FoundBy::ProviderId));
            }
        }
        let named = self.is_ours(node).then(|| (node.to_owned(), FoundBy::Name));
        if self.vms.get(node).is_some_and(|vm| self.is_labelled(vm.cluster.as_deref())) {
            return named;
        }
        // anybody may give a VM the name of our Node: one with our label that reports the name comes first
        let reporting = self.of_host_name(node).filter(|vm| self.vms.contains_key(vm));
        reporting.map(|vm| (vm, FoundBy::HostName)).or(named)
    }

    /// The names by which VMs must be looked at before anything is said about the VM of a Node.
    pub(crate) fn candidates(&self, node: &str, provider_id: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        if let Some(id) = provider_id.strip_prefix(PROVIDER_ID_PREFIX).filter(|id| !id.is_empty()) {
            if let Some(name) = self.by_uid.get(id) {
                return BTreeSet::from([name.clone()]);
            }
            names.extend(self.departed(id).map(|vm| vm.name.clone()));
            if let Some(Searched::Named(name)) = self.searched.get(id) {
                names.insert(name.clone());
            }
            if !is_uid(id) {
                names.insert(id.to_owned());
            }
        }
        names.insert(node.to_owned());
        names.extend(self.of_host_name(node));
        names.retain(|name| is_name(name));
        names
    }

    /// The one VM with our label that reports the host name. If there is none: the one VM without label, unless a VM of
    /// another cluster has that name, which may be meant.
    fn of_host_name(&self, host_name: &str) -> Option<String> {
        let reporting: Vec<_> =
            self.by_host_name.get(host_name)?.iter().filter(|vm| self.is_candidate(vm)).collect();
        let labelled: Vec<_> =
            reporting.iter().filter(|vm| self.is_labelled(self.label_of(vm).flatten())).copied().collect();
        match (&labelled[..], &reporting[..]) {
            ([only], _) => Some((*only).clone()),
            ([], [only]) if !self.vms.contains_key(host_name) => Some((*only).clone()),
            _ => None,
        }
    }

    /// The guest cluster that the label of a VM, or of its instance, names; nothing where there is no such VM.
    fn label_of(&self, name: &str) -> Option<Option<&str>> {
        let vm = self.vms.get(name).map(|vm| vm.cluster.as_deref());
        let instance = self.instances.get(name).map(|cluster| cluster.as_deref());
        vm.or(instance).or_else(|| self.strangers.contains_key(name).then_some(None))
    }

    fn is_labelled(&self, label: Option<&str>) -> bool {
        self.cluster.is_some() && label == self.cluster.as_deref()
    }

    /// Whether there is a VM of this name that may be one of this cluster.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        self.vms.get(name).is_some_and(|vm| self.may_be_ours(vm.cluster.as_deref()))
    }

    /// Whether a VM of this name, watched or not, may be one of this cluster.
    fn is_candidate(&self, name: &str) -> bool {
        self.label_of(name).is_some_and(|label| self.may_be_ours(label))
    }

    fn departed(&self, id: &str) -> Option<&DepartedVm> {
        self.departed.iter().rev().find(|vm| vm.uid == id || vm.name == id)
    }

    /// Why the VM that a provider ID names by `id` is not there, neither by UID nor by any of the Node's candidates;
    /// `others` are the same of all other Nodes. `was_here` says the Node: its VM was seen in this namespace once, maybe by
    /// an earlier process.
    pub(crate) fn absence<'a>(
        &self,
        id: &str,
        was_here: bool,
        mut others: impl Iterator<Item = &'a str>,
    ) -> Absence {
        // a name may be in use in any namespace: only a UID shows that a VM is the one that a Node means
        let is_witness = |id: &str| self.by_uid.get(id).is_some_and(|name| self.is_ours(name));
        match (self.departed(id), self.searched.get(id)) {
            (Some(vm), _) if !vm.is_ours => Absence::Foreign,
            (Some(vm), _) if vm.left_by_watch => Absence::Deleted,
            // watches turn to another Harvester one by one: that one of them does not name a VM any more, while another
            // names a VM, is no list of one server
            (departed, Some(Searched::Missing)) if others.any(is_witness) => {
                if was_here || departed.is_some() { Absence::Missing } else { Absence::NeverSeen }
            }
            // a VM that has no label has left no watch when its label went while nobody watched
            (_, None) if is_uid(id) => Absence::Unsearched,
            _ => Absence::Doubtful,
        }
    }

    /// A watch told that a VM is deleted, or that it lost its label.
    pub(crate) fn left(&mut self, name: &str, uid: &str) {
        if let Some(vm) = self.vms.get(name).filter(|vm| vm.uid == uid) {
            let is_ours = self.may_be_ours(vm.cluster.as_deref());
            self.remember(DepartedVm { uid: uid.into(), name: name.into(), is_ours, left_by_watch: true });
        } else if let Some(vm) = self.departed.iter_mut().find(|vm| vm.uid == uid) {
            vm.left_by_watch = true;
        }
    }

    fn remember(&mut self, vm: DepartedVm) {
        if self.departed.iter().any(|known| known.uid == vm.uid) {
            return;
        }
        if self.departed.len() == DEPARTED_MAX {
            self.departed.pop_front();
        }
        self.departed.push_back(vm);
    }

    /// A VM of this name is there, with UID and guest cluster label, or is not. Answers whether that is new.
    pub(crate) fn set_vm(&mut self, name: &str, entry: Option<(String, Option<String>)>) -> bool {
        let old = self.vms.remove(name);
        if let Some(old) = &old {
            self.by_uid.remove(&old.uid);
        }
        let new = entry.map(|(uid, cluster)| Vm { uid, cluster });
        let changed = old != new;
        if let Some(old) = old.filter(|old| new.as_ref().is_none_or(|new| new.uid != old.uid)) {
            let is_ours = self.may_be_ours(old.cluster.as_deref());
            self.forget_host_name(name);
            self.remember(DepartedVm { uid: old.uid, name: name.into(), is_ours, left_by_watch: false });
        }
        if let Some(new) = new {
            // one that lost its label and is seen by name is not deleted
            self.departed.retain(|vm| vm.uid != new.uid);
            // when it goes, it is searched for anew
            self.searched.remove(&new.uid);
            self.by_uid.insert(new.uid.clone(), name.to_owned());
            self.vms.insert(name.to_owned(), new);
        }
        changed
    }

    /// An instance of this name is watched, with UID and guest cluster label, or is not.
    pub(crate) fn set_instance(&mut self, name: &str, entry: Option<(String, Option<String>)>) {
        match entry {
            Some((uid, label)) => {
                // what a search learned of an instance does not hold for the next one
                if self.strangers.get(name).is_some_and(|searched| *searched != uid) {
                    self.strangers.remove(name);
                    self.forget_host_name(name);
                }
                self.instances.insert(name.to_owned(), label);
            }
            None => drop(self.instances.remove(name)),
        }
        self.forget_host_name_of_nobody(name);
    }

    /// Whether there is a VM or an instance of this name, watched or found by a search.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        self.label_of(name).is_some()
    }

    /// No Node needs a search any more. Answers whether one had found instances.
    pub(crate) fn forget_strangers(&mut self) -> bool {
        let had_any = !self.strangers.is_empty();
        self.set_strangers(BTreeMap::new());
        had_any
    }

    /// The instances without label that a search found, by name and UID.
    pub(crate) fn set_strangers(&mut self, found: BTreeMap<String, String>) {
        let before = std::mem::replace(&mut self.strangers, found);
        for (name, uid) in before {
            let is_same = self.strangers.get(&name) == Some(&uid);
            if !is_same && !self.vms.contains_key(&name) && !self.instances.contains_key(&name) {
                self.forget_host_name(&name);
            }
        }
    }

    pub(crate) fn has_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// The UID of an instance that a search found.
    pub(crate) fn stranger(&self, name: &str) -> Option<&str> {
        self.strangers.get(name).map(String::as_str)
    }

    pub(crate) fn strangers(&self) -> Vec<String> {
        self.strangers.keys().cloned().collect()
    }

    /// What a search said of UIDs; of others nothing is known any more.
    pub(crate) fn set_searched(&mut self, searched: HashMap<String, Searched>) {
        self.searched = searched;
    }

    /// The guest agent of the VM reports this host name. Answers whether that is new. kubelet names its Node after the
    /// host name in small letters; a text that can name no Node tells nothing and is not kept, however long it is.
    pub(crate) fn set_host_name(&mut self, name: &str, host_name: &str) -> bool {
        let Some(host_name) = node_name(host_name) else {
            let had_one = self.host_names.contains_key(name);
            self.forget_host_name(name);
            return had_one;
        };
        if self.label_of(name).is_none() || self.host_names.get(name) == Some(&host_name) {
            return false;
        }
        self.forget_host_name(name);
        self.by_host_name.entry(host_name.clone()).or_default().insert(name.to_owned());
        self.host_names.insert(name.to_owned(), host_name);
        true
    }

    /// Whether the VM's host name is of use: the VM may be of this cluster, and it is the VM of no known Node.
    pub(crate) fn is_worth_asking<'a>(
        &self,
        name: &str,
        mut nodes: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        self.is_candidate(name)
            && !nodes.any(|(node, provider_id)| self.find(node, provider_id).as_deref() == Some(name))
    }

    /// A VM of another guest cluster in the same namespace may have the name of our Node.
    fn may_be_ours(&self, label: Option<&str>) -> bool {
        self.cluster.as_deref().is_none_or(|cluster| label.is_none_or(|label| label == cluster))
    }

    fn forget_host_name_of_nobody(&mut self, name: &str) {
        if self.label_of(name).is_none() {
            self.forget_host_name(name);
        }
    }

    fn forget_host_name(&mut self, name: &str) {
        let Some(host_name) = self.host_names.remove(name) else { return };
        if let Some(vms) = self.by_host_name.get_mut(&host_name) {
            vms.remove(name);
            if vms.is_empty() {
                self.by_host_name.remove(&host_name);
            }
        }
    }
}

/// Whether the text has the form of a UID of Kubernetes.
pub fn is_uid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Longest name of an object.
pub(crate) const NAME_MAX: usize = 253;

/// The name of the Node whose host has this name, as kubelet makes it; `None` where no Node can have it.
pub(crate) fn node_name(host_name: &str) -> Option<String> {
    let name = (host_name.len() <= NAME_MAX).then(|| host_name.to_ascii_lowercase());
    name.filter(|name| is_name(name))
}

/// Whether an object can have this name. What is not one would make a selector that the server refuses.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= NAME_MAX && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests;
