//! The VMs of the guest cluster as instances of Nodes: Harvester's side of [`cloud_provider::Instances`].

use std::sync::Arc;

use cloud_provider::{AddressProblem, Instance, InstanceMetadata, InstanceState, Instances};
use controller_kit::{Cache, Explanation};
use guest_vms::{AddressRules, Fate, GuestVms, Lookup, Vm};
use harvester_api::{labels, names::PROVIDER_ID_PREFIX};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::{announced::Announced, outage::Outage};

/// Harvester's VMs.
pub(crate) struct VmInstances {
    vms: GuestVms,
    outage: Outage,
    addresses: AddressRules,
    announced: Announced,
    nodes: Cache<Node>,
}

impl VmInstances {
    pub(crate) fn new(
        vms: GuestVms,
        outage: Outage,
        addresses: AddressRules,
        announced: Announced,
        nodes: Cache<Node>,
    ) -> Self {
        announced.compare(&vms);
        Self { vms, outage, addresses, announced, nodes }
    }

    fn metadata(&self, node: &Node, vm: Vm) -> InstanceMetadata {
        let addresses = self.addresses.addresses(node, &vm, |ip| self.announced.contains(ip));
        let problem = addresses.problem;
        let faults = addresses.faults.into_iter();
        InstanceMetadata {
            provider_id: format!("{PROVIDER_ID_PREFIX}{}", vm.uid),
            zone: vm.zone,
            region: vm.region,
            addresses: addresses.list,
            address_problem: problem.map(|it| AddressProblem { why: it.sentence, is_passing: it.is_passing }),
            remarks: faults.map(|fault| Explanation::new("InvalidNodeAnnotation", fault)).collect(),
        }
    }
}

impl Instances for VmInstances {
    fn instance(&self, node: &Node) -> Instance {
        match self.vms.find(node) {
            Lookup::Found(vm) => Instance::Found(self.metadata(node, vm)),
            Lookup::Missing(why) => Instance::Missing(Explanation::new("MachineNotFound", why)),
            Lookup::Unknown => Instance::Unknown(self.outage.of_vms().map(|why| {
                let sentence = format!("node {} waits for its VM: {why}", node.name_any());
                Explanation::new("MachinesNotListed", sentence)
            })),
        }
    }

    /// A machine whose owner says that it is none of ours is left alone (harvester#6305).
    fn state(&self, node: &Node) -> InstanceState {
        if node.labels().get(labels::EXTERNALLY_MANAGED).is_some_and(|value| value == "true") {
            return InstanceState::Foreign;
        }
        match self.vms.fate(node, &self.nodes.list()) {
            Fate::Running => InstanceState::Running,
            Fate::Stopped => InstanceState::Stopped,
            Fate::Gone(why) => InstanceState::Gone(why),
            Fate::Doubtful(why) => InstanceState::Doubtful(Explanation::new("NodeKept", why)),
            Fate::Foreign => InstanceState::Foreign,
            Fate::Unknown => InstanceState::Unknown,
        }
    }

    fn subscribe(&self, requeue: Arc<dyn Fn() + Send + Sync>) {
        let woken = requeue.clone();
        self.vms.on_change(move || woken());
        let (woken, vms) = (requeue.clone(), self.vms.clone());
        self.announced.on_change(move |ips| {
            // most are announced before a VM has them
            if vms.report_any(|ip| ips.contains(&ip)) {
                woken();
            }
        });
        self.outage.on_change(move || requeue());
    }
}
