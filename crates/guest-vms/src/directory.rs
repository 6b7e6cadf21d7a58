//! The VM of each Node: by provider ID, by its name, by the host name that its guest agent reports.
//!
//! The Go program knew the last two only, and the last only in the process that had seen it
//! (docs/contract/cloud-controller-manager.md#N1 and #N2). The directory forgets host names of VMs that are gone, and
//! ignores one that two VMs report. It remembers VMs that are gone for a while, for the Nodes that they leave behind.

use std::collections::{BTreeSet, HashMap, VecDeque};

use harvester_api::names::PROVIDER_ID_PREFIX;

/// So many VMs that are gone are remembered; a Node whose VM is forgotten is removed only if other VMs are there.
const FORMER_MAX: usize = 2_000;

#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// `None`: nobody chose a name, so labels of VMs name no owner.
    cluster: Option<String>,
    vms: HashMap<String, Vm>,
    by_uid: HashMap<String, String>,
    by_host_name: HashMap<String, BTreeSet<String>>,
    /// VMs that were here while this process ran, the oldest first.
    former: VecDeque<Former>,
}

/// Why the VM that a provider ID names is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It was another guest cluster's.
    Foreign,
    /// Its deletion was watched.
    Deleted,
    /// It was here, as its UID or this process says, and VMs of other Nodes are here.
    Missing,
    /// Nothing shows that it was here, or that this is the same Harvester.
    Doubtful,
}

#[derive(Clone, Debug)]
struct Former {
    uid: String,
    name: String,
    is_ours: bool,
    deletion_watched: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Vm {
    uid: String,
    cluster: Option<String>,
    host_name: Option<String>,
}

impl Directory {
    pub(crate) fn new(cluster: Option<String>) -> Self {
        Self {
            cluster,
            vms: HashMap::new(),
            by_uid: HashMap::new(),
            by_host_name: HashMap::new(),
            former: VecDeque::new(),
        }
    }

    /// The VM of a Node.
    pub(crate) fn find(&self, node: &str, provider_id: &str) -> Option<String> {
        if let Some(id) = provider_id.strip_prefix(PROVIDER_ID_PREFIX) {
            // some tools write the VM's name where its UID belongs; unlike a UID, it may be in use by another cluster
            let named = || self.is_ours(id).then(|| id.to_owned());
            if let Some(vm) = self.by_uid.get(id).cloned().or_else(named) {
                return Some(vm);
            }
        }
        if self.is_ours(node) { Some(node.to_owned()) } else { self.of_host_name(node) }
    }

    /// The one VM with our label that reports the host name. If there is none: the one VM without label, unless a VM of
    /// another cluster has that name, which may be meant.
    fn of_host_name(&self, host_name: &str) -> Option<String> {
        let reporting: Vec<_> =
            self.by_host_name.get(host_name)?.iter().filter(|vm| self.is_ours(vm)).collect();
        let is_labelled = |vm: &&&String| {
            self.cluster.is_some() && self.vms.get(**vm).is_some_and(|vm| vm.cluster == self.cluster)
        };
        let labelled: Vec<_> = reporting.iter().filter(is_labelled).copied().collect();
        match (&labelled[..], &reporting[..]) {
            ([only], _) => Some((*only).clone()),
            ([], [only]) if !self.vms.contains_key(host_name) => Some((*only).clone()),
            _ => None,
        }
    }

    /// Whether there is a VM of this name that may be one of this cluster.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        self.vms.get(name).is_some_and(|vm| self.may_be_ours(vm))
    }

    /// Why the VM that a provider ID names by `id` is not there; `others` are the same of all other Nodes.
    pub(crate) fn absence<'a>(&self, id: &str, mut others: impl Iterator<Item = &'a str>) -> Absence {
        let former = self.former.iter().rev().find(|vm| vm.uid == id || vm.name == id);
        // a name may be in use in any namespace: only a UID shows that a VM is the one that a Node means
        let is_witness = |id: &str| self.by_uid.get(id).is_some_and(|name| self.is_ours(name));
        match former {
            Some(vm) if !vm.is_ours => Absence::Foreign,
            Some(vm) if vm.deletion_watched => Absence::Deleted,
            _ if (former.is_some() || is_uid(id)) && others.any(is_witness) => Absence::Missing,
            _ => Absence::Doubtful,
        }
    }

    /// The watch told that a VM is deleted.
    pub(crate) fn deleted(&mut self, name: &str, uid: &str) {
        if let Some(vm) = self.vms.get(name).filter(|vm| vm.uid == uid) {
            let is_ours = self.may_be_ours(vm);
            self.remember(Former { uid: uid.into(), name: name.into(), is_ours, deletion_watched: true });
        } else if let Some(vm) = self.former.iter_mut().find(|vm| vm.uid == uid) {
            vm.deletion_watched = true;
        }
    }

    fn remember(&mut self, vm: Former) {
        if self.former.iter().any(|known| known.uid == vm.uid) {
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.pop_front();
        }
        self.former.push_back(vm);
    }

    /// A VM of this name is there, with UID and guest cluster label, or is not. Answers whether that is new.
    pub(crate) fn set_vm(&mut self, name: &str, entry: Option<(String, Option<String>)>) -> bool {
        let old = self.vms.remove(name);
        if let Some(old) = &old {
            self.by_uid.remove(&old.uid);
        }
        let kept = match (&old, &entry) {
            (Some(old), Some((uid, _))) if old.uid == *uid => old.host_name.clone(),
            _ => None,
        };
        let new = entry.map(|(uid, cluster)| Vm { uid, cluster, host_name: kept });
        if let Some(host_name) = old.as_ref().and_then(|old| old.host_name.as_ref())
            && new.as_ref().is_none_or(|new| new.host_name.is_none())
        {
            self.unlist(host_name, name);
        }
        let changed = old != new;
        if let Some(old) = old.filter(|old| new.as_ref().is_none_or(|new| new.uid != old.uid)) {
            let is_ours = self.may_be_ours(&old);
            self.remember(Former { uid: old.uid, name: name.into(), is_ours, deletion_watched: false });
        }
        if let Some(new) = new {
            self.by_uid.insert(new.uid.clone(), name.to_owned());
            self.vms.insert(name.to_owned(), new);
        }
        changed
    }

    /// The guest agent of the VM reports this host name. Answers whether that is new.
    pub(crate) fn set_host_name(&mut self, name: &str, host_name: &str) -> bool {
        let Some(vm) = self.vms.get_mut(name) else { return false };
        let old = vm.host_name.replace(host_name.to_owned());
        if old.as_deref() == Some(host_name) {
            return false;
        }
        if let Some(old) = old {
            self.unlist(&old, name);
        }
        self.by_host_name.entry(host_name.to_owned()).or_default().insert(name.to_owned());
        true
    }

    /// Whether the VM's host name is of use: the VM may be of this cluster, and it is the VM of no known Node.
    pub(crate) fn is_worth_asking<'a>(
        &self,
        name: &str,
        mut nodes: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let Some(vm) = self.vms.get(name) else { return false };
        self.may_be_ours(vm)
            && !nodes.any(|(node, provider_id)| self.find(node, provider_id).as_deref() == Some(name))
    }

    /// A VM of another guest cluster in the same namespace may have the name of our Node.
    fn may_be_ours(&self, vm: &Vm) -> bool {
        self.cluster
            .as_deref()
            .is_none_or(|cluster| vm.cluster.as_deref().is_none_or(|label| label == cluster))
    }

    fn unlist(&mut self, host_name: &str, vm: &str) {
        if let Some(vms) = self.by_host_name.get_mut(host_name) {
            vms.remove(vm);
            if vms.is_empty() {
                self.by_host_name.remove(host_name);
            }
        }
    }
}

pub(crate) fn is_uid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn directory() -> Directory {
        let mut directory = Directory::new(Some("prod".into()));
        for (name, uid, cluster) in
            [("vm-a", "1", Some("prod")), ("vm-b", "2", None), ("vm-x", "9", Some("test"))]
        {
            directory.set_vm(name, Some((uid.into(), cluster.map(str::to_owned))));
        }
        directory
    }

    fn check(directory: &Directory, node: &str, provider_id: &str, expected: Option<&str>) {
        assert_eq!(directory.find(node, provider_id).as_deref(), expected, "{node} {provider_id}");
    }

    // docs/contract/cloud-controller-manager.md#N1
    #[test]
    fn a_node_is_found_by_provider_id_then_name_then_host_name() {
        let mut directory = directory();
        check(&directory, "vm-a", "", Some("vm-a"));
        check(&directory, "worker", "", None);
        check(&directory, "worker", "harvester://2", Some("vm-b"));
        check(&directory, "worker", "harvester://vm-b", Some("vm-b"));
        check(&directory, "vm-a", "harvester://2", Some("vm-b"));
        check(&directory, "vm-a", "aws://2", Some("vm-a"));
        assert!(directory.set_host_name("vm-b", "worker"));
        assert!(!directory.set_host_name("vm-b", "worker"));
        check(&directory, "worker", "", Some("vm-b"));
        directory.set_host_name("vm-b", "vm-a");
        check(&directory, "vm-a", "", Some("vm-a"));
    }

    /// The VMs of a namespace by name and label, all of which report the host name `worker`.
    fn reporting(vms: &[(&str, Option<&str>)]) -> Directory {
        let mut directory = Directory::new(Some("prod".into()));
        for (name, cluster) in vms {
            directory.set_vm(name, Some((format!("uid-of-{name}"), cluster.map(str::to_owned))));
            directory.set_host_name(name, "worker");
        }
        directory
    }

    #[rstest]
    #[case::one_of_ours(&[("vm-a", Some("prod"))], Some("vm-a"))]
    #[case::ours_before_others(&[("vm-a", None), ("vm-b", Some("prod")), ("vm-c", None), ("vm-x", Some("test"))], Some("vm-b"))]
    #[case::two_of_ours(&[("vm-a", Some("prod")), ("vm-b", Some("prod"))], None)]
    #[case::one_without_label(&[("vm-a", None), ("vm-x", Some("test"))], Some("vm-a"))]
    #[case::two_without_label(&[("vm-a", None), ("vm-b", None)], None)]
    #[case::of_another_cluster(&[("vm-x", Some("test"))], None)]
    #[case::another_cluster_has_the_name(&[("vm-a", None), ("worker", Some("test"))], None)]
    #[case::ours_whoever_has_the_name(&[("vm-a", Some("prod")), ("worker", Some("test"))], Some("vm-a"))]
    #[case::the_name_comes_first(&[("vm-a", Some("prod")), ("worker", None)], Some("worker"))]
    fn a_host_name_tells_of_a_labelled_vm_first_and_of_no_other_clusters(
        #[case] vms: &[(&str, Option<&str>)],
        #[case] expected: Option<&str>,
    ) {
        check(&reporting(vms), "worker", "", expected);
    }

    #[test]
    fn a_vm_of_another_cluster_is_not_ours_by_name() {
        check(&directory(), "vm-x", "", None);
        check(&directory(), "worker", "harvester://vm-x", None);
        check(&directory(), "worker", "harvester://9", Some("vm-x"));
        let mut anonymous = Directory::new(None);
        anonymous.set_vm("vm-x", Some(("9".into(), Some("test".into()))));
        check(&anonymous, "vm-x", "", Some("vm-x"));
    }

    // docs/contract/cloud-controller-manager.md#N2
    #[test]
    fn host_names_of_former_vms_are_forgotten_and_doubtful_ones_tell_nothing() {
        let mut directory = directory();
        directory.set_vm("vm-b", Some(("2".into(), Some("prod".into()))));
        directory.set_host_name("vm-a", "worker");
        directory.set_host_name("vm-b", "worker");
        check(&directory, "worker", "", None);
        directory.set_vm("vm-b", None);
        check(&directory, "worker", "", Some("vm-a"));
        directory.set_vm("vm-a", Some(("new-uid".into(), None)));
        check(&directory, "worker", "", None);
        directory.set_host_name("vm-a", "worker");
        directory.set_host_name("vm-a", "other");
        check(&directory, "worker", "", None);
        check(&directory, "other", "", Some("vm-a"));
    }

    const UID_A: &str = "00000000-0000-4000-8000-00000000000a";
    const UID_B: &str = "00000000-0000-4000-8000-00000000000b";
    const UID_C: &str = "00000000-0000-4000-8000-00000000000c";
    const UID_D: &str = "00000000-0000-4000-8000-00000000000d";
    const UID_X: &str = "00000000-0000-4000-8000-000000000009";

    /// VMs `a` and `b` of ours, and `x` of another cluster.
    fn with_uids() -> Directory {
        let mut directory = Directory::new(Some("prod".into()));
        for (name, uid, cluster) in
            [("a", UID_A, Some("prod")), ("b", UID_B, None), ("x", UID_X, Some("test"))]
        {
            directory.set_vm(name, Some((uid.into(), cluster.map(str::to_owned))));
        }
        directory
    }

    /// `id` while `others` are the VMs of the other Nodes.
    fn absence(directory: &Directory, id: &str, others: &[&str]) -> Absence {
        directory.absence(id, others.iter().copied())
    }

    // docs/contract/cloud-controller-manager.md#N18
    #[test]
    fn a_vm_is_gone_when_its_deletion_was_watched_or_when_vms_of_other_nodes_are_there() {
        let mut directory = with_uids();
        directory.deleted("a", UID_A);
        directory.set_vm("a", None);
        assert_eq!(absence(&directory, UID_A, &[]), Absence::Deleted);
        assert_eq!(absence(&directory, "a", &[]), Absence::Deleted);
        // a new list does not name it: it may be the list of another Harvester
        directory.set_vm("b", None);
        assert_eq!(absence(&directory, UID_B, &[]), Absence::Doubtful);
        directory.set_vm("c", Some((UID_C.into(), None)));
        assert_eq!(absence(&directory, UID_B, &[UID_C]), Absence::Missing);
        assert_eq!(absence(&directory, "b", &[UID_C]), Absence::Missing);
    }

    #[rstest]
    #[case::of_a_node_that_is_there(UID_C, &[UID_A], Absence::Missing)]
    #[case::nothing_else_is_there(UID_C, &[], Absence::Doubtful)]
    #[case::all_are_missing(UID_C, &[UID_D], Absence::Doubtful)]
    #[case::another_clusters_vm_is_no_witness(UID_C, &[UID_X], Absence::Doubtful)]
    #[case::a_name_is_no_witness(UID_C, &["a"], Absence::Doubtful)]
    #[case::a_name_that_was_never_here("lost", &[UID_A], Absence::Doubtful)]
    fn after_a_restart_a_vm_is_gone_only_where_vms_of_other_nodes_are_found_by_uid(
        #[case] id: &str,
        #[case] others: &[&str],
        #[case] expected: Absence,
    ) {
        assert_eq!(absence(&with_uids(), id, others), expected);
    }

    #[test]
    fn a_vm_that_was_another_clusters_is_nobodys_here() {
        let mut directory = with_uids();
        directory.deleted("x", UID_X);
        directory.set_vm("x", None);
        assert_eq!(absence(&directory, UID_X, &[UID_A]), Absence::Foreign);
    }

    #[test]
    fn a_deletion_that_is_learned_twice_counts_and_former_vms_are_bounded() {
        let mut directory = with_uids();
        directory.set_vm("a", None);
        directory.deleted("a", UID_A);
        assert_eq!(absence(&directory, UID_A, &[]), Absence::Deleted);
        for n in 0..FORMER_MAX {
            directory.set_vm("foreign", Some((n.to_string(), Some("test".into()))));
        }
        directory.set_vm("foreign", None);
        assert_eq!(directory.former.len(), FORMER_MAX);
        assert_eq!(absence(&directory, UID_A, &[UID_B]), Absence::Missing);
    }

    #[test]
    fn only_a_vm_that_no_node_is_known_to_be_is_asked() {
        let directory = directory();
        let nodes = [("vm-a", ""), ("worker", "")];
        let worth = |name| directory.is_worth_asking(name, nodes.into_iter());
        assert_eq!([worth("vm-a"), worth("vm-b"), worth("vm-x"), worth("gone")], [false, true, false, false]);
    }
}
