//! Watch caches of everything that the controllers read, all namespaces. Without managedFields: where those matter, the
//! object is read afresh.

use std::collections::BTreeMap;

use controller_kit::{Cache, RawObject};
use harvester_api::{
    IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, annotations, kubevirt::VmInterface, labels,
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, Client, runtime::watcher};
use program::{TaskGroup, capabilities::Right, health::Check};
use serde_json::Map;
use tokio::sync::watch;

const HARVESTER: &str = "loadbalancer.harvesterhci.io";

/// The rights to list on which every address depends, in the order of [`Caches::watch_errors`].
const LISTS: [Right; 4] = [
    Right::new("list", HARVESTER, "ippools"),
    Right::new("list", HARVESTER, "loadbalancers"),
    Right::new("list", "", "services"),
    Right::new("list", "discovery.k8s.io", "endpointslices"),
];

/// VMs in one page of a list. One has some ten thousand bytes.
const VMS_AT_ONCE: u32 = 100;

/// The caches. Clones share them.
#[derive(Clone)]
pub(crate) struct Caches {
    pub(crate) load_balancers: Cache<RawObject<LoadBalancer>>,
    pub(crate) pools: Cache<RawObject<IPPool>>,
    /// Only those with label [`labels::SERVICE_LB`].
    pub(crate) services: Cache<RawObject<Service>>,
    /// Only those with label [`labels::SERVICE_LB`].
    pub(crate) slices: Cache<RawObject<EndpointSlice>>,
    /// Pruned to labels, deletion, finalizers, networks and interfaces.
    pub(crate) vmis: Cache<VirtualMachineInstance>,
    /// Pruned to what says that it is going, and which guest cluster goes with it.
    pub(crate) vms: Cache<VirtualMachine>,
}

impl Caches {
    /// Begins to list and watch.
    pub(crate) fn watch(tasks: &TaskGroup, client: &Client) -> Self {
        let any = watcher::Config::default;
        let ours = || any().labels(&format!("{}=true", labels::SERVICE_LB));
        // VMs are large, and little of them is kept: what a page takes while it is read stays with the process
        let in_small_pages = || any().page_size(VMS_AT_ONCE);
        let all = || client.clone();
        Self {
            load_balancers: Cache::start(tasks, Api::all(all()), any()),
            pools: Cache::start(tasks, Api::all(all()), any()),
            services: Cache::start(tasks, Api::all(all()), ours()),
            slices: Cache::start(tasks, Api::all(all()), ours()),
            vmis: Cache::start_trimmed(tasks, Api::all(all()), in_small_pages(), trim_vmi),
            vms: Cache::start_trimmed(tasks, Api::all(all()), in_small_pages(), trim_vm),
        }
    }

    /// Waits until everything is listed that an address depends on. The VMs do not count: KubeVirt may not be there.
    pub(crate) async fn ready(&self) {
        let Self { load_balancers, pools, services, slices, vmis: _, vms: _ } = self;
        tokio::join!(load_balancers.ready(), pools.ready(), services.ready(), slices.ready());
    }

    /// The list on which addresses depend that is not kept up to date now, and why; nothing while all are.
    pub(crate) fn unlisted(&self) -> Option<String> {
        let mut lists = LISTS.into_iter().zip(self.watch_errors());
        lists.find_map(|(right, error)| Some(format!("{right}: {}", error.borrow().as_ref()?)))
    }

    /// Fails `lists` while a list is missing or not kept up to date. `at_work` says that all were complete once.
    pub(crate) async fn report(self, lists: Check, mut at_work: watch::Receiver<bool>) {
        let [mut pools, mut load_balancers, mut services, mut slices] = self.watch_errors();
        loop {
            match self.unlisted() {
                Some(why) => lists.fail(why),
                None if *at_work.borrow() => lists.pass(),
                None => lists.fail("not complete yet"),
            }
            // the senders outlive us, but for the last one, which has said all by then
            tokio::select! {
                _ = pools.changed() => {}
                _ = load_balancers.changed() => {}
                _ = services.changed() => {}
                _ = slices.changed() => {}
                Ok(()) = at_work.changed() => {}
            }
        }
    }

    fn watch_errors(&self) -> [watch::Receiver<Option<String>>; 4] {
        let Self { load_balancers, pools, services, slices, vmis: _, vms: _ } = self;
        let (pools, load_balancers) = (pools.watch_errors(), load_balancers.watch_errors());
        [pools, load_balancers, services.watch_errors(), slices.watch_errors()]
    }

    /// Caches of an empty cluster; for tests.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            load_balancers: Cache::empty(),
            pools: Cache::empty(),
            services: Cache::empty(),
            slices: Cache::empty(),
            vmis: Cache::empty(),
            vms: Cache::empty(),
        }
    }
}

/// Interfaces of a VMI, and addresses of an interface, that the controller reads. The guest agent reports them: a tenant
/// who reports tens of thousands would have every load balancer keep them.
const INTERFACES: usize = 32;
const ADDRESSES: usize = 64;
/// Bytes of an address, and of any other text of an interface. Those of real ones are shorter.
const ADDRESS: usize = 64;
const TEXT: usize = 256;

fn trim_vmi(vmi: &mut VirtualMachineInstance) {
    vmi.metadata.annotations = None;
    vmi.metadata.owner_references = None;
    vmi.spec.rest = Map::new();
    if let Some(status) = &mut vmi.status {
        status.rest = Map::new();
        status.conditions = Vec::new();
        status.migration_state = None;
        status.interfaces.truncate(INTERFACES);
        for interface in &mut status.interfaces {
            interface.rest = Map::new();
            let VmInterface { name, interface_name, ip_address, ip_addresses, mac, rest: _ } = interface;
            ip_addresses.retain(|address| address.len() <= ADDRESS);
            ip_addresses.truncate(ADDRESSES);
            ip_addresses.shrink_to_fit();
            for (text, longest) in [(ip_address, ADDRESS), (name, TEXT), (interface_name, TEXT), (mac, TEXT)]
            {
                if text.len() > longest {
                    *text = String::new();
                }
            }
        }
    }
}

fn trim_vm(vm: &mut VirtualMachine) {
    vm.spec.rest = Map::new();
    vm.status = None;
    vm.metadata.owner_references = None;
    keep_only(&mut vm.metadata.annotations, &[annotations::REMOVE_ALL_PVCS]);
    keep_only(&mut vm.metadata.labels, &[labels::CREATOR, labels::GUEST_CLUSTER]);
}

/// A map without entries takes no memory, where it is none.
fn keep_only(map: &mut Option<BTreeMap<String, String>>, keys: &[&str]) {
    if let Some(all) = map {
        all.retain(|key, _| keys.contains(&key.as_str()));
    }
    map.take_if(|map| map.is_empty());
}

/// A client whose every request fails; for tests of what reads caches.
#[cfg(test)]
pub(crate) fn no_server() -> Client {
    let server = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, tower::BoxError>("there is no server".into())
    });
    Client::new(server, "default")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_guest_agent_that_reports_thousands_of_addresses_fills_no_memory() {
        let addresses: Vec<_> = (0..80_000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)).collect();
        let interface = json!({"name": "vlan", "ipAddress": "10.0.0.1", "ipAddresses": addresses});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"interfaces": vec![interface; 100]}}),
        )
        .unwrap();
        trim_vmi(&mut vmi);
        let interfaces = vmi.status.unwrap().interfaces;
        assert_eq!(interfaces.len(), INTERFACES);
        assert!(interfaces.iter().all(|interface| interface.ip_addresses.len() == ADDRESSES));
    }

    #[test]
    fn of_a_vm_nothing_is_kept_but_what_says_whether_its_guest_cluster_goes() {
        let vm = json!({"metadata": {"name": "gc1-1", "namespace": "team", "uid": "u", "finalizers": ["a/b"],
            "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1", "tier": "web"},
            "annotations": {"large": "x"}}, "spec": {"runStrategy": "Always", "template": {}}, "status": {"ready": true}});
        let mut vm: VirtualMachine = serde_json::from_value(vm).unwrap();
        trim_vm(&mut vm);
        let kept = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "gc1-1", "namespace": "team", "uid": "u", "finalizers": ["a/b"],
                "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1"}},
            "spec": {"runStrategy": "Always"}});
        assert_eq!(serde_json::to_value(&vm).unwrap(), kept);
    }

    #[test]
    fn a_guest_agent_that_reports_long_texts_fills_no_memory() {
        let long = "1".repeat(1_000_000);
        let interface = json!({"name": long, "interfaceName": long, "mac": long, "ipAddress": long,
            "ipAddresses": [long, "10.0.0.1"]});
        let mut vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "web-1"}, "spec": {}, "status": {"interfaces": [interface]}}),
        )
        .unwrap();
        trim_vmi(&mut vmi);
        let [interface] = &vmi.status.unwrap().interfaces[..] else { panic!("one interface") };
        assert_eq!(interface.ip_addresses, ["10.0.0.1"], "an address behind it stays");
        let VmInterface { name, interface_name, ip_address, mac, .. } = interface;
        assert_eq!([name, interface_name, ip_address, mac].map(String::len), [0; 4]);
    }
}
