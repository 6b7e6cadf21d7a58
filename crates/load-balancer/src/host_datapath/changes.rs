//! The load balancers that a change of a VMI concerns.
//!
//! VMIs change all the time (heartbeats, the guest agent's refresh); labels, deletion and addresses count.
//! Old and new labels are compared: a VM that leaves a selector matters as much as one that enters it.

use std::net::IpAddr;

use controller_kit::{Change, ObjectKey};
use harvester_api::{LoadBalancer, VirtualMachineInstance, WorkloadType};
use kube::ResourceExt as _;

use super::backends::{addresses, selects};

/// Whether a change of a VMI can make a difference to any load balancer.
pub(crate) fn matters(change: &Change<VirtualMachineInstance>) -> bool {
    change.old.as_deref().map(essence) != change.new.as_deref().map(essence)
}

/// The load balancers among `load_balancers` that such a change concerns.
pub(crate) fn concerned<'a>(
    change: &Change<VirtualMachineInstance>,
    load_balancers: impl IntoIterator<Item = &'a LoadBalancer>,
) -> Vec<ObjectKey> {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    load_balancers
        .into_iter()
        .filter(|lb| lb.spec.workload() == WorkloadType::Vm)
        .filter(|lb| lb.namespace().is_some_and(|namespace| namespace == change.key.namespace))
        .filter(|lb| {
            let selector = &lb.spec.backend_server_selector;
            old.into_iter().chain(new).any(|vmi| selects(selector, vmi.labels()))
        })
        .map(ObjectKey::of)
        .collect()
}

/// The fields of a VMI that can make a difference to a load balancer.
fn essence(vmi: &VirtualMachineInstance) -> impl PartialEq {
    let interfaces: Vec<(String, Vec<IpAddr>)> = vmi
        .status
        .iter()
        .flat_map(|status| &status.interfaces)
        .map(|interface| (interface.name.clone(), addresses(interface).collect()))
        .collect();
    (vmi.uid(), vmi.labels().clone(), vmi.metadata.deletion_timestamp.is_some(), interfaces)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn vmi(tier: &str, address: &str, rest: &Value) -> Arc<VirtualMachineInstance> {
        let mut object = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"namespace": "shop", "name": "web-1", "uid": "u1", "labels": {"tier": tier}},
            "spec": {}, "status": {"phase": "Running", "interfaces": [{"name": "vlan", "ipAddress": address}]},
        });
        json_patch::merge(&mut object, rest);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn load_balancer(namespace: &str, name: &str, workload: &str, tier: Option<&str>) -> LoadBalancer {
        let selector = tier.map(|tier| json!({"tier": [tier]})).unwrap_or(json!({}));
        serde_json::from_value(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"workloadType": workload, "backendServerSelector": selector},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::appears(None, Some(vmi("api", "192.168.7.10", &json!({}))), &["api"])]
    #[case::disappears(Some(vmi("api", "192.168.7.10", &json!({}))), None, &["api"])]
    // docs/contract/load-balancer.md#LB-17: in the Go program traffic goes on to a VM that lost its label
    #[case::relabelled(Some(vmi("api", "192.168.7.10", &json!({}))), Some(vmi("web", "192.168.7.10", &json!({}))), &["api", "web"])]
    #[case::other_address(Some(vmi("api", "192.168.7.10", &json!({}))), Some(vmi("api", "192.168.7.11", &json!({}))), &["api"])]
    #[case::begins_to_go(
        Some(vmi("api", "192.168.7.10", &json!({}))),
        Some(vmi("api", "192.168.7.10", &json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}}))), &["api"])]
    #[case::heartbeat(
        Some(vmi("api", "192.168.7.10", &json!({}))),
        Some(vmi("api", "192.168.7.10", &json!({"status": {"phase": "Succeeded", "nodeName": "host-2"}, "metadata": {"resourceVersion": "9"}}))), &[])]
    #[case::nobody_selects_it(None, Some(vmi("db", "192.168.7.10", &json!({}))), &[])]
    fn a_change_of_a_vm_reaches_the_load_balancers_that_it_can_matter_to(
        #[case] old: Option<Arc<VirtualMachineInstance>>,
        #[case] new: Option<Arc<VirtualMachineInstance>>,
        #[case] expected: &[&str],
    ) {
        let load_balancers = [
            load_balancer("shop", "api", "vm", Some("api")),
            load_balancer("shop", "web", "vm", Some("web")),
            load_balancer("shop", "guest", "cluster", Some("api")),
            load_balancer("shop", "all", "vm", None),
            load_balancer("other", "api", "vm", Some("api")),
        ];
        let change = Change { key: ObjectKey::new("shop", "web-1"), old, new };
        let expected: Vec<ObjectKey> = expected.iter().map(|name| ObjectKey::new("shop", *name)).collect();
        let concerned = if matters(&change) { concerned(&change, &load_balancers) } else { Vec::new() };
        assert_eq!(concerned, expected);
    }
}
