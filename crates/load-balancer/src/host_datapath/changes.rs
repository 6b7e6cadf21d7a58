//! The load balancers that a change of a VMI concerns.
//!
//! VMIs change all the time (heartbeats, the guest agent's refresh); labels, deletion and addresses count.
//! Old and new labels are compared: a VM that leaves a selector matters as much as one that enters it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use controller_kit::{Change, ObjectKey, RawObject};
use harvester_api::{LoadBalancer, VirtualMachineInstance, WorkloadType};
use kube::ResourceExt as _;

use super::backends::{Selector, addresses};

type ByName = BTreeMap<ObjectKey, Selector>;

/// The selectors of all load balancers of type vm, by namespace: a change of a VMI costs one tenant's load balancers a
/// look, and those of others nothing. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors(Arc<Mutex<HashMap<String, ByName>>>);

impl Selectors {
    /// Takes over the selector that the load balancer has now. Two changes may be told in the wrong order.
    pub(crate) fn note(&self, key: &ObjectKey, now: impl FnOnce() -> Option<Arc<RawObject<LoadBalancer>>>) {
        let mut all = self.all();
        let of_vms = now().filter(|lb| lb.spec.workload() == WorkloadType::Vm);
        let of_namespace = all.entry(key.namespace.clone()).or_default();
        match of_vms {
            Some(lb) => drop(of_namespace.insert(key.clone(), Selector::of(&lb))),
            None => drop(of_namespace.remove(key)),
        }
        if of_namespace.is_empty() {
            all.remove(&key.namespace);
        }
    }

    /// The load balancers that such a change of a VMI concerns.
    pub(crate) fn concerned_by(&self, change: &Change<VirtualMachineInstance>) -> Vec<ObjectKey> {
        let vmis: Vec<_> = change.old.iter().chain(&change.new).map(|vmi| &**vmi).collect();
        self.of(&change.key.namespace, &vmis)
    }

    /// The load balancers of the namespace that select one of these VMIs.
    pub(crate) fn of(&self, namespace: &str, vmis: &[&VirtualMachineInstance]) -> Vec<ObjectKey> {
        let all = self.all();
        let of_namespace = all.get(namespace).into_iter().flatten();
        let concerned =
            of_namespace.filter(|(_, selector)| vmis.iter().any(|vmi| selector.selects(vmi.labels())));
        concerned.map(|(key, _)| key.clone()).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, ByName>> {
        self.0.lock().expect("no panic while the selectors are locked")
    }
}

/// Whether a change of a VMI can make a difference to any load balancer.
pub(crate) fn matters(change: &Change<VirtualMachineInstance>) -> bool {
    change.old.as_deref().map(essence) != change.new.as_deref().map(essence)
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

    fn load_balancer(
        namespace: &str,
        name: &str,
        workload: &str,
        tier: Option<&str>,
    ) -> (ObjectKey, Option<Arc<RawObject<LoadBalancer>>>) {
        let selector = tier.map(|tier| json!({"tier": [tier]})).unwrap_or(json!({}));
        let object = RawObject::from_json(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"workloadType": workload, "backendServerSelector": selector},
        }));
        (ObjectKey::new(namespace, name), Some(Arc::new(object.unwrap())))
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
        let selectors = Selectors::default();
        let load_balancers = [
            load_balancer("shop", "api", "vm", Some("api")),
            load_balancer("shop", "web", "vm", Some("web")),
            load_balancer("shop", "guest", "cluster", Some("api")),
            load_balancer("shop", "all", "vm", None),
            load_balancer("other", "api", "vm", Some("api")),
        ];
        load_balancers.into_iter().for_each(|(key, lb)| selectors.note(&key, || lb));
        let change = Change { key: ObjectKey::new("shop", "web-1"), old, new };
        let expected: Vec<ObjectKey> = expected.iter().map(|name| ObjectKey::new("shop", *name)).collect();
        let concerned = if matters(&change) { selectors.concerned_by(&change) } else { Vec::new() };
        assert_eq!(concerned, expected);
    }

    #[test]
    fn a_load_balancer_that_is_gone_or_selects_otherwise_is_forgotten() {
        let selectors = Selectors::default();
        let note = |(key, lb): (ObjectKey, Option<_>)| selectors.note(&key, || lb);
        let appears = Change {
            key: ObjectKey::new("shop", "web-1"),
            old: None,
            new: Some(vmi("api", "192.168.7.10", &json!({}))),
        };
        note(load_balancer("shop", "web", "vm", Some("api")));
        assert_eq!(selectors.concerned_by(&appears), [ObjectKey::new("shop", "web")]);
        note(load_balancer("shop", "web", "vm", Some("db")));
        assert_eq!(selectors.concerned_by(&appears), []);
        note(load_balancer("shop", "web", "cluster", Some("api")));
        assert!(selectors.all().is_empty());
        note(load_balancer("shop", "web", "vm", Some("api")));
        note((ObjectKey::new("shop", "web"), None));
        assert!(selectors.all().is_empty());
    }
}
