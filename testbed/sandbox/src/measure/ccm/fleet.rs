//! VMs of many guest clusters in one namespace, as big as real ones, and Nodes of ours. Nothing simulates them: they
//! are objects that somebody else wrote, and they stay as they are.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use harvester_api::{annotations, labels};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::manifests::plain;

/// Size of a VM and of a VMI, as posted.
const BYTES: usize = 10_000;
/// Size of a LoadBalancer object.
const BALANCER_BYTES: usize = 2_000;
/// An annotation that nobody reads makes objects as big as they should be.
const PADDING: &str = "bench.harvesterhci.io/padding";
/// Guest clusters that share the namespace with ours.
const OTHER_CLUSTERS: usize = 20;
/// One VM of so many is of no guest cluster.
const PLAIN: usize = 6;
/// Requests under way at once.
const AT_ONCE: usize = 32;

/// The VM of a Node of ours, which has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) name: String,
    /// Label `guestcluster.harvesterhci.io/name`.
    cluster: Option<String>,
    address: String,
}

impl Machine {
    /// Machine `number` of our guest cluster.
    pub(super) fn ours(number: usize) -> Self {
        let (c, d) = (number / 250, number % 250 + 1);
        Self {
            name: format!("bench-own-{number}"),
            cluster: Some(crate::GUEST_CLUSTER.to_owned()),
            address: format!("10.201.{c}.{d}"),
        }
    }

    /// Machine `number` of other people: of twenty guest clusters in turn, some of none.
    pub(super) fn foreign(number: usize) -> Self {
        let (c, d) = (number / 250, number % 250 + 1);
        let cluster =
            (!number.is_multiple_of(PLAIN)).then(|| format!("bench-other-{}", number % OTHER_CLUSTERS));
        Self { name: format!("bench-foreign-{number}"), cluster, address: format!("10.202.{c}.{d}") }
    }

    fn labels(&self) -> Value {
        let mut labels = json!({labels::VM_NAME: self.name});
        if let Some(cluster) = &self.cluster {
            labels[labels::CREATOR] = labels::NODE_DRIVER.into();
            labels[labels::GUEST_CLUSTER] = json!(cluster);
        }
        labels
    }

    fn spec(&self) -> Value {
        json!({"domain": {"devices": {"interfaces": [{"name": "nic-0", "bridge": {}}]}},
            "networks": [{"name": "nic-0", "multus": {"networkName": "default/vlan1"}}],
            "hostname": self.name})
    }

    fn vm(&self) -> Value {
        let template = json!({"metadata": {"labels": self.labels()}, "spec": self.spec()});
        padded(
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": self.name, "namespace": crate::VM_NAMESPACE, "labels": self.labels()},
                "spec": {"runStrategy": "RerunOnFailure", "template": template}}),
            BYTES,
        )
    }

    /// It runs, and its guest agent reports.
    fn vmi(&self) -> Value {
        let place = json!({annotations::TOPOLOGY_REGION: "lab", annotations::TOPOLOGY_ZONE: "zone-a"});
        padded(
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": self.name, "namespace": crate::VM_NAMESPACE, "labels": self.labels(),
                    "annotations": place},
                "spec": self.spec(),
                "status": {"phase": "Running", "nodeName": "host-1",
                    "interfaces": [{"name": "nic-0", "interfaceName": "enp1s0", "mac": "52:54:00:00:00:01",
                        "infoSource": "domain, guest-agent", "ipAddress": self.address,
                        "ipAddresses": [self.address]}],
                    "conditions": [{"type": "Ready", "status": "True"},
                        {"type": "AgentConnected", "status": "True"}]}}),
            BYTES,
        )
    }

    /// As a kubelet registers it that waits for its cloud.
    fn node(&self) -> Value {
        json!({"metadata": {"name": self.name, "labels": {"kubernetes.io/os": "linux"}},
            "spec": {"taints": [{"key": sim_harvester::guest::UNINITIALIZED, "value": "true",
                "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    }

    /// Posts its Node, which waits for its cloud.
    pub(super) async fn join(&self, guest: &Client) -> Result<()> {
        let node: Node = serde_json::from_value(self.node()).context("describe a Node")?;
        let nodes = Api::<Node>::all(guest.clone());
        nodes.create(&PostParams::default(), &node).await.map_err(plain).map(drop)
    }
}

/// `object` with an annotation that makes its JSON `bytes` long; digits that do not compress well.
fn padded(mut object: Value, bytes: usize) -> Value {
    object["metadata"]["annotations"][PADDING] = "".into();
    let missing = bytes.saturating_sub(object.to_string().len());
    let mut digits = fastrand::Rng::with_seed(7);
    let padding: String = (0..missing).map(|_| digits.alphanumeric()).collect();
    object["metadata"]["annotations"][PADDING] = padding.into();
    object
}

/// The merge patch that makes a LoadBalancer object as big as one is; `None` where it is as big already.
pub(super) fn balancer_patch(object: &Value) -> Option<Value> {
    let there = object.to_string().len();
    let key = format!(r#","{PADDING}":"""#).len();
    let missing = BALANCER_BYTES.checked_sub(there + key)?;
    Some(json!({"metadata": {"annotations": {PADDING: "x".repeat(missing)}}}))
}

/// Posts the VMs and their instances.
pub(super) async fn post(harvester: &Client, machines: &[Machine]) -> Result<()> {
    let api = |kind: &str| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
        Api::<DynamicObject>::namespaced_with(harvester.clone(), crate::VM_NAMESPACE, &resource)
    };
    let (vms, vmis) = (api("VirtualMachine"), api("VirtualMachineInstance"));
    stream::iter(machines)
        .map(async |machine| {
            for (api, object) in [(&vms, machine.vm()), (&vmis, machine.vmi())] {
                let object = serde_json::from_value(object).context("describe a VM")?;
                api.create(&PostParams::default(), &object).await.map_err(plain)?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_vm_and_its_instance_are_as_big_as_real_ones() {
        for machine in [Machine::ours(199), Machine::foreign(0), Machine::foreign(4_799)] {
            let sizes = [machine.vm(), machine.vmi()].map(|object| object.to_string().len());
            assert_eq!(sizes, [BYTES; 2], "{}", machine.name);
        }
    }

    #[test]
    fn a_balancer_grows_to_its_size_once() {
        let mut object = json!({"metadata": {"name": "a", "annotations": {"b": "c"}}});
        let patch = balancer_patch(&object).unwrap();
        object["metadata"]["annotations"][PADDING] = patch["metadata"]["annotations"][PADDING].clone();
        assert_eq!(object.to_string().len(), BALANCER_BYTES);
        assert_eq!(balancer_patch(&object), None);
    }

    #[test]
    fn machines_of_all_clusters_have_names_and_addresses_of_their_own() {
        let machines: Vec<_> = (0..200).map(Machine::ours).chain((0..4_800).map(Machine::foreign)).collect();
        let names: BTreeSet<_> = machines.iter().map(|machine| &machine.name).collect();
        let addresses: BTreeSet<_> = machines.iter().map(|machine| &machine.address).collect();
        let clusters: BTreeSet<_> = machines.iter().map(|machine| &machine.cluster).collect();
        assert_eq!((names.len(), addresses.len(), clusters.len()), (5_000, 5_000, OTHER_CLUSTERS + 2));
        assert!(machines.iter().all(|machine| machine.address.parse::<std::net::Ipv4Addr>().is_ok()));
    }
}
