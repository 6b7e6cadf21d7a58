//! The VMs of the guest cluster as instances of Nodes: Harvester's side of [`cloud_provider::Instances`].

use std::{collections::BTreeMap, sync::Arc};

use cloud_provider::{AddressProblem, Instance, InstanceMetadata, InstanceState, Instances, waits_for_cloud};
use controller_kit::{Cache, Explanation};
use guest_vms::{
    AddressRules, GuestVms, Lookup, Vm, VmState, id_of_other_cloud, is_externally_managed, is_uid,
    may_run_etcd,
};
use harvester_api::{annotations, labels, names::PROVIDER_ID_PREFIX};
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
        let addresses =
            self.addresses.addresses(node, &vm, |ip, is_of_node| self.announced.contains(ip, is_of_node));
        let problem = addresses.problem;
        let provider_id = format!("{PROVIDER_ID_PREFIX}{}", vm.uid);
        let faults =
            addresses.faults.into_iter().map(|fault| Explanation::new("InvalidNodeAnnotation", fault));
        let labels =
            vm.labels.faults.into_iter().map(|fault| Explanation::new("InvalidTopologyLabel", fault));
        let seen_here = is_named_by(node, &vm.name, &provider_id);
        let seen_here =
            seen_here.then(|| (annotations::VM_NAMESPACE.to_owned(), self.vms.namespace().to_owned()));
        let remade = made_again(node, &vm.name, &provider_id);
        let remade = remade.map(|why| Explanation::new("ProviderIdOutdated", why));
        InstanceMetadata {
            provider_id,
            zone: vm.labels.zone,
            region: vm.labels.region,
            instance_type: vm.labels.instance_type,
            labels: vm.labels.chosen,
            has_all_labels: vm.labels.is_complete,
            annotations: BTreeMap::from_iter(seen_here),
            record: Some(annotations::APPLIED_LABELS),
            addresses: addresses.list,
            address_problem: problem.map(|it| AddressProblem { why: it.sentence, is_passing: it.is_passing }),
            remarks: faults.chain(labels).chain(remade).collect(),
        }
    }
}

/// Whether this is the VM of the Node's provider ID, or will be: one of that name may be another, in another namespace.
fn is_named_by(node: &Node, vm: &str, provider_id: &str) -> bool {
    let there = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    match there.strip_prefix(PROVIDER_ID_PREFIX) {
        Some(id) => there == provider_id || id == vm,
        None => there.is_empty(),
    }
}

/// What helps this Node.
fn recreation_advice(node: &Node, then: &str) -> String {
    let name = node.name_any();
    let is_server = may_run_etcd(|role| node.labels().contains_key(role));
    guest_vms::recreation_advice(&format!("node {name}"), if is_server { name.as_str() } else { "" }, then)
}

/// The Node is of a former VM of this name: Kubernetes lets nobody change a provider ID.
fn made_again(node: &Node, vm: &str, provider_id: &str) -> Option<String> {
    let there = node.spec.as_ref()?.provider_id.as_deref()?;
    let former = there.strip_prefix(PROVIDER_ID_PREFIX).filter(|id| is_uid(id))?;
    let name = node.name_any();
    (there != provider_id).then(|| {
        format!(
            "node {name} has the provider ID of VM {former}, but VM {vm} was made again and is {provider_id} now; a provider \
             ID cannot be changed: {}",
            recreation_advice(node, "restart its kubelet, and a new one takes its place")
        )
    })
}

/// Whether the Node is none of Harvester's, and what its owner should know, if anything.
fn foreign(node: &Node) -> Option<Option<Explanation>> {
    let name = node.name_any();
    if is_externally_managed(node) {
        let waits = format!(
            "node {name} is labelled {}=true, so no cloud finishes it, but its kubelet waits for one: remove the taint \
             node.cloudprovider.kubernetes.io/uninitialized, and start the kubelet without --cloud-provider=external; if \
             the node is a VM of Harvester, remove the label",
            labels::EXTERNALLY_MANAGED
        );
        return Some(waits_for_cloud(node).then(|| Explanation::new("NodeExternallyManaged", waits)));
    }
    let id = id_of_other_cloud(node)?;
    let alone = format!(
        "node {name} has the provider ID {id} of another cloud: it gets no label, address or taint from Harvester and is \
         not removed; if it is a VM of Harvester, {}",
        recreation_advice(node, "start its kubelet without --provider-id")
    );
    Some(Some(Explanation::new("NodeOfAnotherCloud", alone)))
}

impl Instances for VmInstances {
    fn instance(&self, node: &Node) -> Instance {
        if let Some(why) = foreign(node) {
            return Instance::Foreign(why);
        }
        match self.vms.find(node) {
            Lookup::Found(vm) => Instance::Found(Box::new(self.metadata(node, vm))),
            Lookup::Missing(why) => Instance::Missing(Explanation::new("MachineNotFound", why)),
            Lookup::Unknown => Instance::Unknown(self.outage.of_vms().map(|why| {
                let sentence = format!("node {} waits for its VM: {why}", node.name_any());
                Explanation::new("MachinesNotListed", sentence)
            })),
        }
    }

    /// A machine whose owner says that it is none of ours is left alone (harvester#6305).
    fn state(&self, node: &Node) -> InstanceState {
        if foreign(node).is_some() {
            return InstanceState::Foreign;
        }
        match self.vms.vm_state(node, &self.nodes.list()) {
            VmState::Running => InstanceState::Running,
            VmState::Stopped => InstanceState::Stopped,
            VmState::Gone(why) => InstanceState::Gone(why),
            VmState::Doubtful(why) => InstanceState::Doubtful(Explanation::new("NodeKept", why)),
            VmState::Foreign => InstanceState::Foreign,
            VmState::Unknown => InstanceState::Unknown,
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const OLD: &str = "harvester://00000000-0000-4000-8000-00000000000a";
    const NEW: &str = "harvester://00000000-0000-4000-8000-00000000000b";

    // docs/contract/cloud-controller-manager.md#N18
    #[rstest]
    #[case::the_same(NEW, true)]
    #[case::of_a_former_vm(OLD, false)]
    #[case::its_name("harvester://worker-1", true)]
    #[case::another_name("harvester://worker-2", false)]
    #[case::of_another_cloud("k3s://worker-1", false)]
    #[case::none("", true)]
    fn a_node_notes_the_namespace_of_the_vm_of_its_provider_id_alone(
        #[case] there: &str,
        #[case] noted: bool,
    ) {
        let node = json!({"metadata": {"name": "worker-1"}, "spec": {"providerID": there}});
        assert_eq!(is_named_by(&serde_json::from_value(node).unwrap(), "worker-1", NEW), noted);
    }

    // docs/contract/cloud-controller-manager.md#N19
    #[rstest]
    #[case::ours(NEW, "", true, None)]
    #[case::of_k3s("k3s://worker-1", "", true, None)]
    #[case::of_aws(
        "aws:///eu-1/i-0123",
        "",
        false,
        Some(Some("has the provider ID \"aws:///eu-1/i-0123\" of another cloud"))
    )]
    #[case::metal("", "true", false, Some(None))]
    #[case::metal_that_waits("", "true", true, Some(Some("remove the taint")))]
    fn a_node_of_another_owner_is_told_what_to_do(
        #[case] provider_id: &str,
        #[case] managed: &str,
        #[case] waits: bool,
        #[case] expected: Option<Option<&str>>,
    ) {
        let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"});
        let node = json!({"metadata": {"name": "worker-1", "labels": {labels::EXTERNALLY_MANAGED: managed}},
            "spec": {"providerID": provider_id, "taints": if waits { vec![taint] } else { vec![] }}});
        let told = foreign(&serde_json::from_value(node).unwrap()).map(|why| why.map(|why| why.message));
        match (&told, expected) {
            (Some(Some(told)), Some(Some(part))) => assert!(told.contains(part), "{told}"),
            _ => assert_eq!(told, expected.map(|_| None)),
        }
    }

    #[rstest]
    #[case::the_same(NEW, false)]
    #[case::of_a_former_vm(OLD, true)]
    #[case::a_name("harvester://worker-1", false)]
    #[case::of_another_cloud("aws://00000000-0000-4000-8000-00000000000a", false)]
    #[case::none("", false)]
    fn a_node_whose_vm_was_made_again_is_told_what_to_do(#[case] there: &str, #[case] told: bool) {
        let node = json!({"metadata": {"name": "worker-1"}, "spec": {"providerID": there}});
        let why = made_again(&serde_json::from_value(node).unwrap(), "worker-1", NEW);
        assert_eq!(
            why.is_some_and(|why| why.contains("drain node worker-1, delete it and restart its kubelet")),
            told
        );
    }

    #[rstest]
    #[case::a_server("node-role.kubernetes.io/etcd", true)]
    #[case::a_worker("node-role.kubernetes.io/worker", false)]
    fn a_server_of_rke2_or_k3s_is_replaced_and_not_deleted(#[case] role: &str, #[case] expected: bool) {
        let node =
            json!({"metadata": {"name": "server-1", "labels": {role: "true"}}, "spec": {"providerID": OLD}});
        let node = serde_json::from_value(node).unwrap();
        let other = json!({"metadata": {"name": "server-1", "labels": {role: "true"}},
            "spec": {"providerID": "aws:///eu-1/i-0123"}});
        let other = foreign(&serde_json::from_value(other).unwrap()).flatten().unwrap().message;
        for told in [made_again(&node, "server-1", NEW).unwrap(), other] {
            assert!(told.contains("drain node server-1, delete it"), "{told}");
            assert_eq!(told.contains("replace server-1 by a new server where RKE2"), expected, "{told}");
        }
    }
}
