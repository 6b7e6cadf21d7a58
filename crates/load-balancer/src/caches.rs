//! Watch caches of everything that the controllers read, all namespaces. Without managedFields: where those matter, the
//! object is read afresh.

use std::collections::BTreeMap;

use controller_kit::{Cache, RawObject};
use harvester_api::{
    IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, annotations, kubevirt::VmInterface, labels,
};
use k8s_openapi::api::{
    core::v1::{Service, ServiceSpec},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, Resource, ResourceExt as _, core::PartialObjectMeta, runtime::watcher};
use program::{TaskGroup, capabilities::Right, health::Check};
use serde_json::{Map, json};
use tokio::sync::watch;

use crate::reuse;

const HARVESTER: &str = "loadbalancer.harvesterhci.io";

/// The rights to list on which every address depends, in the order of [`Caches::watch_errors`].
const LISTS: [Right; 4] = [
    Right::new("list", HARVESTER, "ippools"),
    Right::new("list", HARVESTER, "loadbalancers"),
    Right::new("list", "", "services"),
    Right::new("list", "discovery.k8s.io", "endpointslices"),
];

/// Objects in one page of a list: what a page takes while it is read stays with the process. A VMI has some ten thousand bytes,
/// and what tenants write may have a million.
const AT_ONCE: u32 = 100;

/// A VM without `spec` and `status`: the API server leaves them out of its answers.
pub(crate) type VmMetadata = PartialObjectMeta<VirtualMachine>;

/// The caches. Clones share them.
#[derive(Clone)]
pub(crate) struct Caches {
    pub(crate) load_balancers: Cache<RawObject<LoadBalancer>>,
    pub(crate) pools: Cache<RawObject<IPPool>>,
    /// Only those with label [`labels::SERVICE_LB`]. Of large ones only what [`is_trimmed`] says is here.
    pub(crate) services: Cache<RawObject<Service>>,
    /// Only those with label [`labels::SERVICE_LB`].
    pub(crate) slices: Cache<RawObject<EndpointSlice>>,
    /// Pruned to labels, deletion, finalizers, networks and interfaces.
    pub(crate) vmis: Cache<VirtualMachineInstance>,
    /// Pruned to what says that it is going, and which guest cluster goes with it. Whether there is none of a name only the
    /// server tells until [`Self::has_all_vms`].
    pub(crate) vms: Cache<VmMetadata>,
}

impl Caches {
    /// Begins to list and watch. VMs come last: no address waits for their list, and an API server that reads thousands of them
    /// is slow to answer with the others.
    pub(crate) fn watch(tasks: &TaskGroup, client: &Client) -> Self {
        let any = || watcher::Config::default().page_size(AT_ONCE);
        let ours = || any().labels(&format!("{}=true", labels::SERVICE_LB));
        let all = || client.clone();
        let first = Self {
            load_balancers: Cache::start(tasks, Api::all(all()), any()),
            pools: Cache::start(tasks, Api::all(all()), any()),
            services: Cache::start_trimmed(tasks, Api::all(all()), ours(), trim_service),
            slices: Cache::start(tasks, Api::all(all()), ours()),
            vmis: Cache::start_trimmed(tasks, Api::all(all()), any(), trim_vmi),
            vms: Cache::empty(),
        };
        let others = first.clone();
        let others = async move { others.ready().await };
        Self { vms: Cache::start_after(others, tasks, Api::all(all()), any(), trim_vm), ..first }
    }

    /// Waits until everything is listed that an address depends on. The VMs do not count: KubeVirt may not be there.
    pub(crate) async fn ready(&self) {
        let Self { load_balancers, pools, services, slices, vmis: _, vms: _ } = self;
        tokio::join!(load_balancers.ready(), pools.ready(), services.ready(), slices.ready());
    }

    /// Whether every VM is here now. Where KubeVirt is not there, or the VMs may not be listed, they never are.
    pub(crate) fn has_all_vms(&self) -> bool {
        self.vms.is_ready() && self.vms.watch_error().is_none()
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

/// Bytes of a Service that is kept whole. One of ours with 100 listeners and 500 source ranges has some 40,000; anybody may give a
/// Service our label, and a million bytes of others.
const SERVICE: usize = 64 * 1024;
/// Bytes of the addresses that a larger one asks for, and how many it shows.
const ASKED: usize = 4096;
const SHOWN: usize = 64;
/// Owner references of such a Service.
const OWNERS: usize = 16;

/// In the annotations of a Service of which only that is here which says whose it is and which addresses it names. Whoever is
/// to write it reads it from the server.
const TRIMMED: &str = "load-balancer/trimmed";

/// Whether this is not the whole object.
pub(crate) fn is_trimmed(object: &impl Resource) -> bool {
    object.annotations().contains_key(TRIMMED)
}

/// As the cache keeps it.
pub(crate) fn trimmed(service: &RawObject<Service>) -> RawObject<Service> {
    let mut trimmed = service.clone();
    trim_service(&mut trimmed);
    trimmed
}

fn trim_service(service: &mut RawObject<Service>) {
    if service.size() <= SERVICE {
        return;
    }
    let meta = service.meta();
    let short = |text: &str| if text.len() <= TEXT { text.to_owned() } else { String::new() };
    let owners: Vec<_> = service
        .owner_references()
        .iter()
        .take(OWNERS)
        .map(|owner| {
            let [version, kind, name, uid] =
                [&owner.api_version, &owner.kind, &owner.name, &owner.uid].map(|text| short(text));
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid})
        })
        .collect();
    let asked = service.annotations().get(annotations::KUBE_VIP_LOADBALANCER_IPS).map_or("", String::as_str);
    // whole addresses
    let asked = if asked.len() <= ASKED {
        asked
    } else {
        let cut = asked.as_bytes().iter().take(ASKED).rposition(|byte| *byte == b',').unwrap_or_default();
        asked.get(..cut).unwrap_or_default()
    };
    let label = service.labels().get(labels::SERVICE_LB).map(|value| short(value));
    let spec = service.spec.as_ref();
    let own = |field: fn(&ServiceSpec) -> Option<&String>| spec.and_then(field).map(|text| short(text));
    let families = spec.and_then(|spec| spec.ip_families.as_ref());
    let shown: Vec<_> = reuse::shown(service).take(SHOWN).map(|ip| json!({"ip": ip})).collect();
    let trimmed = RawObject::from_json(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
            "resourceVersion": meta.resource_version, "deletionTimestamp": meta.deletion_timestamp,
            "ownerReferences": owners, "labels": label.map(|value| json!({labels::SERVICE_LB: value})),
            "annotations": {TRIMMED: "", annotations::KUBE_VIP_LOADBALANCER_IPS: asked}},
        "spec": {"type": own(|spec| spec.type_.as_ref()), "loadBalancerIP": own(|spec| spec.load_balancer_ip.as_ref()),
            "ipFamilies": families.map(|families| families.iter().take(2).map(|family| short(family)).collect::<Vec<_>>())},
        "status": {"loadBalancer": {"ingress": shown}},
    }));
    if let Ok(trimmed) = trimmed {
        *service = trimmed;
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

fn trim_vm(vm: &mut VmMetadata) {
    vm.types = None;
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
    use serde_json::{Value, json};

    use super::*;
    use crate::ownership::{Owner, Ownership};

    fn service(metadata: &Value, ranges: &[String]) -> RawObject<Service> {
        let mut service = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "s", "resourceVersion": "7",
                "annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.7,10.0.0.8"},
                "ownerReferences": [{"apiVersion": "x/v1", "kind": "LoadBalancer", "name": "web", "uid": "u1"}],
                "labels": {labels::SERVICE_LB: "true"}},
            "spec": {"type": "LoadBalancer", "loadBalancerIP": "10.0.0.9", "loadBalancerSourceRanges": ranges,
                "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.6"}]}}});
        for field in ["labels", "annotations"] {
            let more = metadata.get(field).and_then(Value::as_object).into_iter().flatten();
            more.for_each(|(key, value)| service["metadata"][field][key] = value.clone());
        }
        RawObject::from_json(service).unwrap()
    }

    fn many(text: &str) -> Value {
        (0..15_000).map(|n| (format!("{text}-{n}"), json!("x".repeat(60)))).collect()
    }

    #[test]
    fn a_service_that_a_tenant_fills_fills_no_memory_and_says_whose_it_is_and_which_addresses_it_names() {
        let ranges: Vec<_> = (0..50_000).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect();
        let owner = Owner { key: controller_kit::ObjectKey::new("shop", "web"), uid: "u1".to_owned() };
        let long: Vec<_> = (0..20_000).map(|n| format!("10.9.{}.{}", n / 250, n % 250)).collect();
        for mut filled in [
            service(&json!({"labels": many("label")}), &[]),
            service(&json!({}), &ranges),
            service(&json!({"annotations": many("annotation")}), &[]),
        ] {
            let whole = filled.clone();
            trim_service(&mut filled);
            assert!(is_trimmed(&*filled) && filled.size() < 2_000, "{}", filled.size());
            assert_eq!(reuse::named(&filled).collect::<Vec<_>>(), reuse::named(&whole).collect::<Vec<_>>());
            assert_eq!(owner.ownership(&filled.metadata), Ownership::Ours);
            assert_eq!((filled.uid(), filled.resource_version()), (whole.uid(), whole.resource_version()));
        }
        let mut asking =
            service(&json!({"annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: long.join(",")}}), &[]);
        trim_service(&mut asking);
        assert!(asking.size() < 6_000 && reuse::named(&asking).count() > 300, "{}", asking.size());
        let mut of_annotation = reuse::named(&asking).skip(1).take(300);
        assert!(
            of_annotation.all(|address| long.contains(&address.to_string())),
            "none is cut off in the middle"
        );
    }

    #[test]
    fn a_service_of_ours_with_all_that_one_may_have_is_kept_whole() {
        let ranges: Vec<_> =
            (0..500).map(|n| format!("2001:db8:1234:5678:9abc:def0:1234:{n:x}/128")).collect();
        let mut json = service(&json!({"annotations": {"ranges": ranges.join(",")}}), &ranges).json();
        let port = |n: u16| json!({"name": "p".repeat(63), "protocol": "TCP", "port": n, "targetPort": 65_000, "nodePort": 32_000});
        json["spec"]["ports"] = (0..100).map(port).collect();
        let mut service: RawObject<Service> = RawObject::from_json(json).unwrap();
        let size = service.size();
        trim_service(&mut service);
        assert_eq!(service.size(), size);
    }

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
        let vm = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "gc1-1", "namespace": "team", "uid": "u", "finalizers": ["a/b"],
                "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1", "tier": "web"},
                "annotations": {"large": "x"}}});
        let mut vm: VmMetadata = serde_json::from_value(vm).unwrap();
        trim_vm(&mut vm);
        let kept = json!({"metadata": {"name": "gc1-1", "namespace": "team", "uid": "u", "finalizers": ["a/b"],
            "labels": {labels::CREATOR: "me", labels::GUEST_CLUSTER: "gc1"}}});
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
