//! The VM of each Node: by provider ID, by the host name that its guest agent reports, by its name.
//!
//! The Go program knew the last two only, and the second only in the process that had seen it
//! (docs/contract/cloud-controller-manager.md#N1 and #N2). The directory forgets host names of VMs that are gone, and
//! ignores one that two VMs report.

use std::collections::{BTreeSet, HashMap};

use harvester_api::names::PROVIDER_ID_PREFIX;

#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// `None`: nobody chose a name, so labels of VMs name no owner.
    cluster: Option<String>,
    vms: HashMap<String, Vm>,
    by_uid: HashMap<String, String>,
    by_host_name: HashMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Vm {
    uid: String,
    cluster: Option<String>,
    host_name: Option<String>,
}

impl Directory {
    pub(crate) fn new(cluster: Option<String>) -> Self {
        Self { cluster, vms: HashMap::new(), by_uid: HashMap::new(), by_host_name: HashMap::new() }
    }

    /// The VM of a Node.
    pub(crate) fn find(&self, node: &str, provider_id: &str) -> Option<String> {
        if let Some(id) = provider_id.strip_prefix(PROVIDER_ID_PREFIX) {
            // some tools write the VM's name where its UID belongs
            if let Some(vm) = self.by_uid.get(id).or_else(|| self.vms.get_key_value(id).map(|(name, _)| name))
            {
                return Some(vm.clone());
            }
        }
        if let Some(vms) = self.by_host_name.get(node)
            && vms.len() == 1
        {
            return vms.first().cloned();
        }
        self.vms.get(node).filter(|vm| self.may_be_ours(vm)).map(|_| node.to_owned())
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

#[cfg(test)]
mod tests {
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
    fn a_node_is_found_by_provider_id_then_host_name_then_name() {
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
    }

    #[test]
    fn a_vm_of_another_cluster_is_not_ours_by_name() {
        check(&directory(), "vm-x", "", None);
        let mut anonymous = Directory::new(None);
        anonymous.set_vm("vm-x", Some(("9".into(), Some("test".into()))));
        check(&anonymous, "vm-x", "", Some("vm-x"));
    }

    // docs/contract/cloud-controller-manager.md#N2
    #[test]
    fn host_names_of_former_vms_are_forgotten_and_doubtful_ones_tell_nothing() {
        let mut directory = directory();
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

    #[test]
    fn only_a_vm_that_no_node_is_known_to_be_is_asked() {
        let directory = directory();
        let nodes = [("vm-a", ""), ("worker", "")];
        let worth = |name| directory.is_worth_asking(name, nodes.into_iter());
        assert_eq!([worth("vm-a"), worth("vm-b"), worth("vm-x"), worth("gone")], [false, true, false, false]);
    }
}
