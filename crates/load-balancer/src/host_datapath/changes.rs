//! The load balancers that a change of a VMI concerns: it is in their selectors, or it reports an address that became, or
//! is no longer, one that no backend may have.
//!
//! VMIs change all the time (heartbeats, the guest agent's refresh); labels, deletion, networks and addresses count.
//! Old and new labels are compared: a VM that leaves a selector matters as much as one that enters it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::{Cache, Change, ObjectKey, Queue, RawObject};
use harvester_api::{LoadBalancer, VirtualMachineInstance, WorkloadType};
use kube::ResourceExt as _;

use super::backends::{Selector, addresses};
use crate::{address_index::AddressIndex, caches::Caches};

/// The most VMIs of a namespace that report a changed address and whose labels are compared with selectors; with more of
/// them all load balancers of the namespace are looked at. A tenant can make an address come and go all day: the watch,
/// which serves everybody, would compare each time, while the queue joins what it is asked for and namespaces take turns.
const COMPARED: usize = 4;

/// The VMIs' addresses and the load balancers' selectors; wakes the load balancers that a change concerns.
pub(crate) struct BackendChanges {
    load_balancers: Cache<RawObject<LoadBalancer>>,
    vmis: Cache<VirtualMachineInstance>,
    queue: Queue<ObjectKey>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    selectors: Selectors,
    /// VMIs and the addresses that they report: once each, however many load balancers select one.
    reported: AddressIndex,
}

impl BackendChanges {
    /// Follows the caches. Keys of load balancers whose VMs a change concerns get into `queue`. To be called before
    /// `queue` hears of the objects themselves: one that is being looked at must have its selector noted.
    pub(crate) fn follow(caches: &Caches, queue: &Queue<ObjectKey>) -> Arc<Self> {
        let changes = Arc::new(Self {
            load_balancers: caches.load_balancers.clone(),
            vmis: caches.vmis.clone(),
            queue: queue.clone(),
            state: Mutex::default(),
        });
        let follower = changes.clone();
        caches.load_balancers.on_change(move |change| follower.on_load_balancer(&change.key));
        let follower = changes.clone();
        caches.vmis.on_change(move |change| follower.on_vmi(change));
        changes
    }

    /// Two changes may be told in the wrong order: the cache has what is true now.
    fn on_load_balancer(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.selectors.note(key, self.load_balancers.get(key).as_deref());
    }

    /// The look that follows asks anew about each address: what became a VIP before the VMI was noted is not missed.
    fn on_vmi(&self, change: &Change<VirtualMachineInstance>) {
        if !matters(change) {
            return;
        }
        let mut state = self.state();
        let vmi = self.vmis.get(&change.key);
        let interfaces =
            vmi.iter().filter_map(|vmi| vmi.status.as_ref()).flat_map(|status| &status.interfaces);
        state.reported.set(&change.key, interfaces.flat_map(addresses).collect());
        let concerned = state.selectors.concerned_by(change);
        drop(state);
        concerned.into_iter().for_each(|key| self.queue.add(key));
    }

    /// Wakes the load balancers whose VMs report one of these addresses: those of `namespace`, or of all namespaces.
    pub(crate) fn wake(&self, addresses: &[IpAddr], namespace: Option<&str>) {
        let state = self.state();
        let reporting = addresses.iter().flat_map(|address| match namespace {
            Some(namespace) => state.reported.objects_in(namespace, *address).collect::<Vec<_>>(),
            None => state.reported.objects(*address).collect(),
        });
        let mut by_namespace: BTreeMap<&str, BTreeSet<&ObjectKey>> = BTreeMap::new();
        for vmi in reporting {
            by_namespace.entry(&vmi.namespace).or_default().insert(vmi);
        }
        let mut concerned = Vec::new();
        for (namespace, vmis) in by_namespace {
            if vmis.len() > COMPARED {
                concerned.extend(state.selectors.of_namespace(namespace).map(|(key, _)| key.clone()));
                continue;
            }
            let vmis: Vec<_> = vmis.into_iter().filter_map(|key| self.vmis.get(key)).collect();
            let vmis: Vec<_> = vmis.iter().map(|vmi| &**vmi).collect();
            concerned.extend(state.selectors.selecting(namespace, &vmis));
        }
        drop(state);
        concerned.into_iter().for_each(|key| self.queue.add(key));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while VMIs and selectors are locked")
    }

    #[cfg(test)]
    pub(crate) fn reported_addresses(&self) -> usize {
        self.state().reported.entries()
    }
}

/// The selectors of all load balancers of type vm, by namespace: a change of a VMI costs one tenant's load balancers a
/// look, and those of others nothing.
#[derive(Debug, Default)]
struct Selectors(HashMap<String, BTreeMap<ObjectKey, Selector>>);

impl Selectors {
    /// Takes over the selector that the load balancer has now; `None`: it is gone.
    fn note(&mut self, key: &ObjectKey, lb: Option<&RawObject<LoadBalancer>>) {
        let of_namespace = self.0.entry(key.namespace.clone()).or_default();
        match lb.filter(|lb| lb.spec.workload() == WorkloadType::Vm) {
            Some(lb) => drop(of_namespace.insert(key.clone(), Selector::of(lb))),
            None => drop(of_namespace.remove(key)),
        }
        if of_namespace.is_empty() {
            self.0.remove(&key.namespace);
        }
    }

    /// The load balancers that such a change of a VMI concerns.
    fn concerned_by(&self, change: &Change<VirtualMachineInstance>) -> Vec<ObjectKey> {
        let vmis: Vec<_> = change.old.iter().chain(&change.new).map(|vmi| &**vmi).collect();
        self.selecting(&change.key.namespace, &vmis)
    }

    /// The load balancers of the namespace that select one of these VMIs.
    fn selecting(&self, namespace: &str, vmis: &[&VirtualMachineInstance]) -> Vec<ObjectKey> {
        let selects =
            |(_, selector): &(&ObjectKey, &Selector)| vmis.iter().any(|vmi| selector.selects(vmi.labels()));
        self.of_namespace(namespace).filter(selects).map(|(key, _)| key.clone()).collect()
    }

    fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = (&ObjectKey, &Selector)> {
        self.0.get(namespace).into_iter().flatten()
    }
}

/// Whether a change of a VMI can make a difference to any load balancer.
fn matters(change: &Change<VirtualMachineInstance>) -> bool {
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
    let networks = vmi.spec.networks.clone();
    (vmi.uid(), vmi.labels().clone(), vmi.metadata.deletion_timestamp.is_some(), networks, interfaces)
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
    ) -> (ObjectKey, Option<RawObject<LoadBalancer>>) {
        let selector = tier.map(|tier| json!({"tier": [tier]})).unwrap_or(json!({}));
        let object = RawObject::from_json(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"workloadType": workload, "backendServerSelector": selector},
        }));
        (ObjectKey::new(namespace, name), Some(object.unwrap()))
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
    #[case::moved_to_another_network(
        Some(vmi("api", "192.168.7.10", &json!({"spec": {"networks": [{"name": "vlan", "multus": {"networkName": "vlan10"}}]}}))),
        Some(vmi("api", "192.168.7.10", &json!({"spec": {"networks": [{"name": "vlan", "multus": {"networkName": "vlan20"}}]}}))), &["api"])]
    #[case::heartbeat(
        Some(vmi("api", "192.168.7.10", &json!({}))),
        Some(vmi("api", "192.168.7.10", &json!({"status": {"phase": "Succeeded", "nodeName": "host-2"}, "metadata": {"resourceVersion": "9"}}))), &[])]
    #[case::nobody_selects_it(None, Some(vmi("db", "192.168.7.10", &json!({}))), &[])]
    fn a_change_of_a_vm_reaches_the_load_balancers_that_it_can_matter_to(
        #[case] old: Option<Arc<VirtualMachineInstance>>,
        #[case] new: Option<Arc<VirtualMachineInstance>>,
        #[case] expected: &[&str],
    ) {
        let mut selectors = Selectors::default();
        let load_balancers = [
            load_balancer("shop", "api", "vm", Some("api")),
            load_balancer("shop", "web", "vm", Some("web")),
            load_balancer("shop", "guest", "cluster", Some("api")),
            load_balancer("shop", "all", "vm", None),
            load_balancer("other", "api", "vm", Some("api")),
        ];
        load_balancers.into_iter().for_each(|lb| note(&mut selectors, lb));
        let change = Change { key: ObjectKey::new("shop", "web-1"), old, new };
        let expected: Vec<ObjectKey> = expected.iter().map(|name| ObjectKey::new("shop", *name)).collect();
        let concerned = if matters(&change) { selectors.concerned_by(&change) } else { Vec::new() };
        assert_eq!(concerned, expected);
    }

    fn note(selectors: &mut Selectors, (key, lb): (ObjectKey, Option<RawObject<LoadBalancer>>)) {
        selectors.note(&key, lb.as_ref());
    }

    #[test]
    fn a_load_balancer_that_is_gone_or_selects_otherwise_is_forgotten() {
        let mut selectors = Selectors::default();
        let appears = Change {
            key: ObjectKey::new("shop", "web-1"),
            old: None,
            new: Some(vmi("api", "192.168.7.10", &json!({}))),
        };
        note(&mut selectors, load_balancer("shop", "web", "vm", Some("api")));
        assert_eq!(selectors.concerned_by(&appears), [ObjectKey::new("shop", "web")]);
        note(&mut selectors, load_balancer("shop", "web", "vm", Some("db")));
        assert_eq!(selectors.concerned_by(&appears), []);
        note(&mut selectors, load_balancer("shop", "web", "cluster", Some("api")));
        assert!(selectors.0.is_empty());
        note(&mut selectors, load_balancer("shop", "web", "vm", Some("api")));
        note(&mut selectors, (ObjectKey::new("shop", "web"), None));
        assert!(selectors.0.is_empty());
    }
}
