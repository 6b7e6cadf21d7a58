//! A VM on its network: what its address answers is decided from this.

use std::net::Ipv4Addr;

use kube::ResourceExt;
use serde_json::Value;

use harvester_api::labels;

use super::{Instance, Vm, instance};
use crate::settings::{Backend, Behaviour};

/// The state of one VM, from its VirtualMachine and its instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmState {
    pub namespace: String,
    /// Name of the VM.
    pub name: String,
    pub address: Ipv4Addr,
    /// Name of the guest Node, which is the guest's host name.
    pub node: String,
    pub behaviour: Behaviour,
    /// Guest cluster that it says it belongs to.
    pub cluster: Option<String>,
    /// UID of the running instance.
    pub running: Option<String>,
}

impl VmState {
    /// A VM without an address has never been started and is on no network.
    pub(crate) fn of(vm: &Vm, instance: Option<&Instance>) -> Option<Self> {
        let up = instance.filter(|instance| {
            instance.metadata.deletion_timestamp.is_none() && instance::is_running(instance)
        });
        let label = |key| up.and_then(|instance| instance.labels().get(key)).or_else(|| vm.labels().get(key));
        Some(Self {
            namespace: vm.namespace().unwrap_or_default(),
            name: vm.name_any(),
            address: super::address(vm)?,
            node: hostname(vm, up),
            behaviour: instance::behaviour(vm, instance).0,
            cluster: label(labels::GUEST_CLUSTER).cloned(),
            running: up.and_then(ResourceExt::uid),
        })
    }

    /// How connections to the VM end: one that does not run does not answer.
    pub fn backend(&self) -> Backend {
        if self.running.is_some() { self.behaviour.backend } else { Backend::Stopped }
    }
}

/// `spec.hostname` of the instance or the template, else the VM's name.
pub(crate) fn hostname(vm: &Vm, instance: Option<&Instance>) -> String {
    let running = instance.and_then(|instance| instance.spec.rest.get("hostname"));
    let template = || vm.spec.rest.get("template").map(|template| &template["spec"]["hostname"]);
    running.or_else(template).and_then(Value::as_str).map_or_else(|| vm.name_any(), str::to_owned)
}
