//! The part of KubeVirt's kinds that we read. The schemas are KubeVirt's.

use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A virtual machine: what should run.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    plural = "virtualmachines",
    shortname = "vm",
    shortname = "vms",
    namespaced,
    schema = "disabled",
    status = "VirtualMachineStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// `Always`, `RerunOnFailure`, `Manual`, `Halted`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run_strategy: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What became of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineStatus {
    pub created: bool,
    pub ready: bool,
    /// `Running`, `Stopped`, `Starting`, `ErrorUnschedulable`, …
    pub printable_status: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A running virtual machine.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    plural = "virtualmachineinstances",
    shortname = "vmi",
    shortname = "vmis",
    namespaced,
    schema = "disabled",
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceSpec {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<VmNetwork>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A network of a VM: the pod network or a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmNetwork {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus: Option<Multus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Map<String, Value>>,
}

impl VmNetwork {
    /// Whether there may be a network of its names. KubeVirt takes texts of any length; a name of Kubernetes has at most 253
    /// bytes, that of a namespace 63.
    #[must_use]
    pub fn has_real_names(&self) -> bool {
        const NAME: usize = 253;
        const QUALIFIED: usize = 63 + 1 + NAME;
        let of_multus = self.multus.as_ref().map_or(0, |multus| multus.network_name.len());
        self.name.len() <= NAME && of_multus <= QUALIFIED
    }
}

/// A reference to a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Multus {
    /// `namespace/name`, or a bare name in the VM's namespace.
    pub network_name: String,
}

/// What is known of a running virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualMachineInstanceStatus {
    /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    /// Host that runs it.
    pub node_name: String,
    pub interfaces: Vec<VmInterface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    pub conditions: Vec<VmCondition>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A network interface as the guest agent and the host see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmInterface {
    /// Name of the network in the VM's spec; absent for interfaces that only the guest knows.
    pub name: String,
    pub interface_name: String,
    pub ip_address: String,
    pub ip_addresses: Vec<String>,
    pub mac: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// The last migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationState {
    pub completed: bool,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A condition in KubeVirt's form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmCondition {
    pub r#type: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}
