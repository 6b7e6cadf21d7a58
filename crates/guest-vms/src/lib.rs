//! The VM of Harvester behind each Node of a guest cluster, and the facts about the VM that the Node needs: for the
//! cloud controller manager, for the CSI driver and for diagnosis. Reads only.
//!
//! ```text
//!  VirtualMachines ─────────┐ watched                    ┌─► find(node): the VM, its labels and what it reports
//!  VirtualMachineInstances ─┼──► directory ──────────────┤
//!  guest agents (host names)┘ asked where needed         └─► backends(nodes): VM names and labels
//! ```
//! * A VM is a Node's by provider ID, by its name, or by the host name that its guest agent reports (module
//!   `directory`).
//! * A Node of another cloud, or in an administrator's care, is no VM (module `other_owners`).
//! * Where it runs and what kind of machine it is become labels (module `instance_labels`).
//! * Which of the reported addresses are the Node's is a decision of its own (module `addresses`): flags and annotations
//!   have a say, and the Services of the guest cluster.
//! * A VM that is stopped or deleted decides about its Node's life (modules `run_state` and `vm_state`).
//! * What people do with a Node that has to go stands in module `recreation_advice`.
//! * Watches tell nearly everything: of the VMs with the cluster's label, and of each that a Node may be, by name (module
//!   `watches`). Module `search` looks for the VM of a Node that nobody knows. A host name has no watch; module
//!   `host_names` asks a guest agent for it once, again while the agent reports none, and only where no Node is known to
//!   be that VM.
//! * Where the role grants `get` on VMs and not `list`, module `by_name` reads the VM that has the Node's name.

#![forbid(unsafe_code)]

mod addresses;
mod by_name;
mod directory;
mod host_names;
mod instance_labels;
mod other_owners;
mod recreation_advice;
mod run_state;
mod search;
mod vm_state;
mod vms;
mod watches;

pub use addresses::{AddressProblem, AddressRules, NodeAddresses, Report};
pub use directory::{FoundBy, is_uid};
pub use host_names::right as host_name_right;
pub use instance_labels::{InstanceLabels, TopologyLabels};
pub use other_owners::{id_of_other_cloud, is_externally_managed, is_id_of_other_cloud};
pub use recreation_advice::{may_run_etcd, recreation_advice, recreation_advice_of_some};
pub use vm_state::VmState;
pub use vms::{Backend, Backends, GuestVms, Lookup, Vm, VmSettings};
