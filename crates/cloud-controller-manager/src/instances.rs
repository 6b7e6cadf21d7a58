//! The VMs of the guest cluster as instances of Nodes: Harvester's side of [`cloud_provider::Instances`].

use std::sync::Arc;

use cloud_provider::{Instance, InstanceMetadata, Instances};
use controller_kit::Explanation;
use guest_vms::{GuestVms, Lookup};
use harvester_api::names::PROVIDER_ID_PREFIX;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::outage::Outage;

/// Harvester's VMs.
pub(crate) struct VmInstances {
    vms: GuestVms,
    outage: Outage,
}

impl VmInstances {
    pub(crate) fn new(vms: GuestVms, outage: Outage) -> Self {
        Self { vms, outage }
    }
}

impl Instances for VmInstances {
    fn instance(&self, node: &Node) -> Instance {
        match self.vms.find(node) {
            Lookup::Found(vm) => Instance::Found(InstanceMetadata {
                provider_id: format!("{PROVIDER_ID_PREFIX}{}", vm.uid),
                zone: vm.zone,
                region: vm.region,
                internal_ips: vm.internal_ips,
                address_hint: Some("start the guest agent in the VM"),
            }),
            Lookup::Missing(why) => Instance::Missing(Explanation::new("MachineNotFound", why)),
            Lookup::Unknown => Instance::Unknown(self.outage.of_vms().map(|why| {
                let sentence = format!("node {} waits for its VM: {why}", node.name_any());
                Explanation::new("MachinesNotListed", sentence)
            })),
        }
    }

    fn subscribe(&self, requeue: Arc<dyn Fn() + Send + Sync>) {
        let woken = requeue.clone();
        self.vms.on_change(move || woken());
        self.outage.on_change(move || requeue());
    }
}
