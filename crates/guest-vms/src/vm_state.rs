//! What became of a Node's VM: for the Node's taint of a stopped VM, and for its removal.
//!
//! A Node is removed for good, so the answer is "gone" only where nothing else can be meant: both lists are complete
//! and in step, the Node carries the provider ID of a VM, nothing in the namespace can be that VM (each name that it may
//! have was looked at without regard to labels), it was seen in this namespace (by this process, or by an earlier one,
//! which has noted it on the Node), and either its deletion was watched, or one list of all VMs has the UIDs of other
//! Nodes' VMs and not this one. So a cloud-config that names another namespace or another Harvester removes nothing, also
//! after a restart, and where some of the cluster's VMs are there (docs/contract/cloud-controller-manager.md#N18).

use std::sync::Arc;

use harvester_api::{annotations, names::PROVIDER_ID_PREFIX};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{
    GuestVms,
    addresses::shown,
    directory::{Absence, is_uid},
    run_state,
    vms::provider_id,
};

/// What became of a Node's VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmState {
    /// It runs, or KubeVirt will start it.
    Running,
    /// Nothing runs until somebody starts it.
    Stopped,
    /// It is deleted; the sentence says how that is known.
    Gone(String),
    /// It is not there, and may be elsewhere; the sentence says why that is possible, and what to do.
    Doubtful(String),
    /// The Node is no VM of this guest cluster, as far as is known.
    Foreign,
    /// The VMs cannot be listed now, or it was not looked for everywhere yet.
    Unknown,
}

impl GuestVms {
    /// What became of the VM of `node`, one of `nodes`.
    pub fn vm_state(&self, node: &Node, nodes: &[Arc<Node>]) -> VmState {
        let Some(id) = vm_id(node) else { return VmState::Foreign };
        let shared = self.shared();
        // asked first: a VM that is not found before the lists are complete is not missing
        let is_listed = self.is_complete()
            && shared.vms.watch_error().is_none()
            && shared.vmis.watch_error().is_none()
            && self.is_settled(node);
        let found = self.vm_of(node);
        let is_read = found.is_some() && self.names_read().contains(&node.name_any());
        if !is_listed && !is_read {
            return VmState::Unknown;
        }
        if let Some(name) = found {
            if !self.directory().is_ours(&name) {
                return VmState::Foreign;
            }
            let Some(vm) = shared.vms.get(&name) else { return VmState::Unknown };
            let stopped = run_state::is_stopped(&vm, shared.vmis.get(&name).as_deref());
            return if stopped { VmState::Stopped } else { VmState::Running };
        }
        // one that cannot be read may be this VM
        if shared.vms.has_malformed() {
            return VmState::Unknown;
        }
        let (name, namespace) = (node.name_any(), &shared.namespace);
        let others = nodes.iter().filter(|other| other.uid() != node.uid()).filter_map(|other| vm_id(other));
        let noted = node.annotations().get(annotations::VM_NAMESPACE);
        let absence = self.directory().absence(id, noted == Some(namespace), others);
        match absence {
            Absence::Foreign => VmState::Foreign,
            Absence::Unsearched => VmState::Unknown,
            Absence::Deleted => {
                VmState::Gone(format!("its VM {id} was deleted from Harvester namespace {namespace}"))
            }
            Absence::Missing => VmState::Gone(format!(
                "its VM {id} is not in Harvester namespace {namespace}, where VMs of other nodes are"
            )),
            Absence::Doubtful | Absence::NeverSeen => {
                let unsure = "That it was there is not sure, because";
                let why = match noted.filter(|noted| *noted != namespace) {
                    Some(noted) => format!("{unsure} it was in namespace {} before", shown(noted)),
                    None if absence == Absence::NeverSeen => {
                        format!("{unsure} the node lacks the annotation {}", annotations::VM_NAMESPACE)
                    }
                    None if is_uid(id) => format!("{unsure} no VM of any other node is there either"),
                    None => {
                        "Its deletion was not watched, and a name does not show which VM it was".to_owned()
                    }
                };
                VmState::Doubtful(format!(
                    "node {name} is not ready, and its VM {id} is not in Harvester namespace {namespace}. {why}: the \
                     node stays. See that the cloud-config names the right \
                     Harvester and namespace; if the VM is gone for good, delete the node"
                ))
            }
        }
    }
}

/// The VM that the Node's provider ID names: by UID, or by name.
pub(crate) fn vm_id(node: &Node) -> Option<&str> {
    provider_id(node).strip_prefix(PROVIDER_ID_PREFIX).filter(|id| !id.is_empty())
}
