//! Addresses that load balancers and Harvester itself have: no backend may have one of them. An address that becomes
//! one, or is one no more, wakes the load balancers whose VMs report it.
//!
//! For the whole cluster only that counts which no tenant can write: the record of a pool that names the load
//! balancer. Within one namespace two more count, which its tenant may write to any address: `status.address` of its
//! objects, and the status of its Services, which kube-vip fills from an annotation. Otherwise one tenant could take
//! another's VMs out of service.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::{Cache, Change, ObjectKey, Queue, RawObject};
use harvester_api::{IPPool, LoadBalancer};
use k8s_openapi::api::core::v1::Service;

use super::{changes::BackendChanges, host_addresses::HostAddresses, plausible::Implausible};
use crate::{
    address_index::AddressIndex,
    caches::Caches,
    pool::{PoolIndex, RecordChange},
    reuse,
    steps::step,
};

/// The addresses of one Service that count. kube-vip shows one of each family; a tenant could write tens of thousands.
const SHOWN: usize = 16;

/// The addresses. Clones share them.
#[derive(Clone)]
pub(crate) struct Vips(Arc<Shared>);

struct Shared {
    load_balancers: Cache<RawObject<LoadBalancer>>,
    services: Cache<RawObject<Service>>,
    pools: PoolIndex,
    host: HostAddresses,
    backends: Arc<BackendChanges>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Services with our label, and the addresses that kube-vip shows in them.
    announced: AddressIndex,
    /// LoadBalancer objects and their `status.address`.
    written: AddressIndex,
}

impl Vips {
    /// Follows the caches, and wakes load balancers by way of [`BackendChanges::follow`], which says when to call it.
    pub(crate) fn follow(
        caches: &Caches,
        pools: &PoolIndex,
        host: HostAddresses,
        queue: &Queue<ObjectKey>,
    ) -> Self {
        let vips = Self(Arc::new(Shared {
            load_balancers: caches.load_balancers.clone(),
            services: caches.services.clone(),
            pools: pools.clone(),
            host,
            backends: BackendChanges::follow(caches, queue),
            state: Mutex::default(),
        }));
        let follower = vips.clone();
        caches.load_balancers.on_change(move |change| follower.on_load_balancer(change));
        let follower = vips.clone();
        caches.services.on_change(move |change| follower.on_service(&change.key));
        let follower = vips.clone();
        caches.pools.on_change(move |change| follower.on_records(change));
        let backends = vips.0.backends.clone();
        vips.0.host.on_change(move |addresses| backends.wake(addresses, None));
        vips
    }

    /// Why a backend in `namespace` may not have the address.
    pub(crate) fn refuse(&self, namespace: &str, address: IpAddr) -> Option<Implausible> {
        if self.0.host.is_of_node(address) {
            return Some(Implausible::Node);
        }
        (self.0.host.is_of_service(address) || self.is_vip(namespace, address)).then_some(Implausible::Vip)
    }

    fn is_vip(&self, namespace: &str, address: IpAddr) -> bool {
        let state = self.state();
        let is_here = |index: &AddressIndex| {
            let mut objects = index.objects_in(namespace, address).inspect(|_| step());
            objects.next().is_some()
        };
        if is_here(&state.announced) || is_here(&state.written) {
            return true;
        }
        drop(state);
        // records of other programs are no load balancers' addresses: they may well be those of VMs
        self.0.pools.holders_of(address).into_iter().any(|(pool, holder)| {
            step();
            let lb = ObjectKey::parse(&holder).and_then(|key| self.0.load_balancers.get(&key));
            lb.is_some_and(|lb| lb.pool_addresses().any(|has| has == (pool.as_str(), address)))
        })
    }

    fn on_load_balancer(&self, change: &Change<RawObject<LoadBalancer>>) {
        let (mut state, key) = (self.state(), &change.key);
        let lb = self.0.load_balancers.get(key);
        let written = lb.as_ref().and_then(|lb| lb.status.as_ref()?.address.parse().ok());
        let changed = state.written.set(key, written.into_iter().collect());
        drop(state);
        self.0.backends.wake(&changed, Some(&key.namespace));
        let named = |lb: &Option<Arc<RawObject<LoadBalancer>>>| -> BTreeSet<_> {
            let addresses = lb.iter().flat_map(|lb| lb.pool_addresses());
            addresses.map(|(pool, address)| (pool.to_owned(), address)).collect()
        };
        let (old, new) = (named(&change.old), named(&change.new));
        if old != new {
            let changed: Vec<_> = old.symmetric_difference(&new).map(|(_, address)| *address).collect();
            self.0.backends.wake(&changed, None);
        }
    }

    fn on_service(&self, key: &ObjectKey) {
        let mut state = self.state();
        let shown = self.0.services.get(key).map(|service| reuse::shown(&service).take(SHOWN).collect());
        let changed = state.announced.set(key, shown.unwrap_or_default());
        drop(state);
        self.0.backends.wake(&changed, Some(&key.namespace));
    }

    fn on_records(&self, change: &Change<RawObject<IPPool>>) {
        let changed: Vec<_> = RecordChange::of(change).addresses().collect();
        self.0.backends.wake(&changed, None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while the addresses are locked")
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::VirtualMachineInstance;
    use program::TaskGroup;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::steps::steps_of;

    fn object<K: serde::de::DeserializeOwned>(object: Value) -> RawObject<K> {
        RawObject::from_json(object).unwrap()
    }

    fn lb(workload: &str, status: &Value) -> RawObject<LoadBalancer> {
        object(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"workloadType": workload}, "status": status,
        }))
    }

    fn allocated(pool: &str, ip: &str) -> Value {
        json!({"allocatedAddress": {"ipPool": pool, "ip": ip}})
    }

    fn pool(records: &Value) -> RawObject<IPPool> {
        object(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
            "metadata": {"name": "edge"}, "spec": {"ranges": []}, "status": {"total": 9, "available": 7,
                "lastAllocated": "", "allocated": records},
        }))
    }

    fn service(ip: &str) -> RawObject<Service> {
        let status = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
        object(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
            "status": status}),
        )
    }

    struct World {
        caches: Caches,
        vips: Vips,
        queue: Queue<ObjectKey>,
    }

    fn world() -> World {
        let (caches, queue) = (Caches::empty(), Queue::new());
        let pools = PoolIndex::follow(&caches);
        let vips = Vips::follow(&caches, &pools, HostAddresses::unknown(), &queue);
        World { caches, vips, queue }
    }

    #[rstest]
    #[case::held(lb("vm", &allocated("edge", "10.0.0.7")), "other", &["10.0.0.7"])]
    #[case::held_by_a_guest_cluster(lb("cluster", &allocated("edge", "10.0.0.7")), "other", &["10.0.0.7"])]
    #[case::another_holds_it(lb("vm", &allocated("edge", "10.0.0.8")), "other", &[])]
    #[case::nobody_holds_it(lb("vm", &allocated("edge", "10.0.0.9")), "other", &[])]
    #[case::a_tenants_word(lb("cluster", &json!({"address": "192.168.7.11"})), "other", &[])]
    #[case::a_tenants_word_of_itself(lb("cluster", &json!({"address": "192.168.7.11"})), "shop", &["192.168.7.11"])]
    #[case::no_address_yet(lb("cluster", &json!({"address": ""})), "shop", &[])]
    fn a_tenants_word_counts_only_among_its_own(
        #[case] lb: RawObject<LoadBalancer>,
        #[case] namespace: &str,
        #[case] expected: &[&str],
    ) {
        let World { caches, vips, .. } = world();
        caches.pools.wrote(pool(&json!({"10.0.0.7": "shop/web", "10.0.0.8": "machines/node-1"})));
        caches.load_balancers.wrote(lb);
        let candidates = ["10.0.0.7", "10.0.0.8", "10.0.0.9", "192.168.7.11"];
        let is_vip = |text: &&str| vips.is_vip(namespace, text.parse().unwrap());
        assert_eq!(candidates.into_iter().filter(is_vip).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_service_takes_no_vm_of_another_namespace_out_of_service() {
        let World { caches, vips, .. } = world();
        caches.services.wrote(service("203.0.113.77"));
        let refused = ["shop", "other"].map(|namespace| vips.is_vip(namespace, [203, 0, 113, 77].into()));
        assert_eq!(refused, [true, false]);
    }

    // each address of each VM of each load balancer is asked about
    #[test]
    fn whether_an_address_is_anothers_looks_at_no_other_load_balancer() {
        let World { caches, vips, .. } = world();
        let address = |n: u16| IpAddr::from([10, 1, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
        let records = (0..2000).map(|n| (address(n).to_string(), json!(format!("shop/web-{n}"))));
        caches.pools.wrote(pool(&Value::Object(records.collect())));
        for n in 0..2000 {
            let text = address(n).to_string();
            let mut status = allocated("edge", &text);
            status["address"] = text.as_str().into();
            let (mut balancer, mut service) = (lb("vm", &status).json(), service(&text).json());
            for object in [&mut balancer, &mut service] {
                object["metadata"]["name"] = format!("web-{n}").into();
            }
            caches.load_balancers.wrote(object(balancer));
            caches.services.wrote(object(service));
        }
        for (namespace, n, expected) in [("shop", 7, true), ("other", 7, true), ("other", 3000, false)] {
            let mut answer = None;
            let steps = steps_of(|| answer = Some(vips.is_vip(namespace, address(n))));
            assert!(answer == Some(expected) && steps <= 1, "{namespace}, {n}: {steps} steps");
        }
    }

    #[test]
    fn a_service_that_shows_thousands_of_addresses_takes_but_a_few_of_them() {
        let World { caches, vips, .. } = world();
        let all: Vec<_> =
            (0..30_000u16).map(|n| IpAddr::from([10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]])).collect();
        let ingress: Vec<_> = all.iter().map(|ip| json!({"ip": ip})).collect();
        let mut service = service("").json();
        service["status"]["loadBalancer"]["ingress"] = ingress.into();
        caches.services.wrote(object(service));
        assert_eq!(all.into_iter().filter(|ip| vips.is_vip("shop", *ip)).count(), SHOWN);
    }

    fn vmi(namespace: &str, addresses: &[String]) -> VirtualMachineInstance {
        // as many as caches keep of an interface
        let interfaces = addresses.chunks(64).map(|some| json!({"name": "vlan", "ipAddresses": some}));
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": "api-1", "uid": "vm", "labels": {"tier": "api"}},
            "spec": {}, "status": {"interfaces": interfaces.collect::<Vec<_>>()},
        }))
        .unwrap()
    }

    fn selecting(namespace: &str, name: &str) -> RawObject<LoadBalancer> {
        object(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"backendServerSelector": {"tier": ["api"]}},
        }))
    }

    /// How many keys were in the queue.
    async fn woken(queue: &Queue<ObjectKey>) -> usize {
        let (depth, tasks) = (queue.depth(), TaskGroup::new());
        queue.run(&tasks, 1, |_| async {
            Ok::<_, std::convert::Infallible>(controller_kit::Action::AwaitChange)
        });
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(queue.depth(), 0);
        tasks.end().await;
        depth
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_hears_when_an_address_that_its_vms_report_becomes_or_is_no_longer_anothers() {
        let World { caches, queue, .. } = world();
        caches.load_balancers.wrote(selecting("shop", "api"));
        caches.vmis.wrote(vmi("shop", &["203.0.113.77".to_owned()]));
        assert_eq!(woken(&queue).await, 1, "of the VMI itself");
        let announced = |ip: &str, uid: &str| {
            let mut json = service(ip).json();
            json["metadata"]["uid"] = uid.into();
            object(json)
        };
        caches.services.wrote(announced("203.0.113.78", "u"));
        assert_eq!(woken(&queue).await, 0, "of another address");
        caches.services.gone(&ObjectKey::new("shop", "web"), "u");
        caches.services.wrote(announced("203.0.113.77", "v"));
        assert_eq!(woken(&queue).await, 1, "it became a VIP");
        caches.services.gone(&ObjectKey::new("shop", "web"), "v");
        assert_eq!(woken(&queue).await, 1, "it is one no more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_hears_when_an_address_that_its_vms_report_is_allocated_to_another() {
        let World { caches, vips, queue } = world();
        caches.load_balancers.wrote(selecting("other", "api"));
        caches.vmis.wrote(vmi("other", &["10.0.0.7".to_owned()]));
        woken(&queue).await;
        caches.pools.wrote(pool(&json!({"10.0.0.7": "shop/web"})));
        assert_eq!(woken(&queue).await, 1);
        let mut written = lb("vm", &allocated("none", "10.0.0.7")).json();
        written["metadata"]["resourceVersion"] = "1".into();
        caches.load_balancers.wrote(object(written.clone()));
        assert!(woken(&queue).await == 1 && !vips.is_vip("other", [10, 0, 0, 7].into()));
        written["metadata"]["resourceVersion"] = "2".into();
        written["status"]["allocatedAddress"]["ipPool"] = "edge".into();
        caches.load_balancers.wrote(object(written));
        assert!(woken(&queue).await == 1 && vips.is_vip("other", [10, 0, 0, 7].into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_thousands_of_load_balancers_select_has_its_addresses_noted_once() {
        let World { caches, vips, queue } = world();
        let all: Vec<_> = (0..2048).map(|n| format!("10.1.{}.{}", n / 256, n % 256)).collect();
        (0..1000).for_each(|n| drop(caches.load_balancers.wrote(selecting("shop", &format!("api-{n}")))));
        caches.vmis.wrote(vmi("shop", &all));
        assert_eq!(woken(&queue).await, 1000);
        assert_eq!(vips.0.backends.reported_addresses(), 2048);
        caches.services.wrote(service(&all[2047]));
        assert_eq!(woken(&queue).await, 1000, "an address became a VIP");
        caches.vmis.gone(&ObjectKey::new("shop", "api-1"), "vm");
        assert_eq!((woken(&queue).await, vips.0.backends.reported_addresses()), (1000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenants_word_wakes_nobody_of_another_namespace() {
        let World { caches, queue, .. } = world();
        (0..50).for_each(|n| drop(caches.load_balancers.wrote(selecting("victim", &format!("api-{n}")))));
        caches.vmis.wrote(vmi("victim", &["172.17.0.1".to_owned()]));
        assert_eq!(woken(&queue).await, 50, "of the VMI itself");
        let mut written = lb("cluster", &json!({"address": "172.17.0.1"})).json();
        written["metadata"]["resourceVersion"] = "1".into();
        caches.load_balancers.wrote(object(written.clone()));
        written["metadata"]["resourceVersion"] = "2".into();
        written["status"]["address"] = "".into();
        caches.load_balancers.wrote(object(written));
        caches.services.wrote(service("172.17.0.1"));
        assert_eq!(woken(&queue).await, 0);
    }

    #[rstest]
    #[case::compared(4, 0)]
    #[case::more_than_are_compared(5, 20)]
    #[tokio::test(start_paused = true)]
    async fn of_an_address_that_many_vms_report_all_load_balancers_of_their_namespace_hear(
        #[case] vms: usize,
        #[case] expected: usize,
    ) {
        let World { caches, queue, .. } = world();
        (0..20).for_each(|n| drop(caches.load_balancers.wrote(selecting("shop", &format!("api-{n}")))));
        for n in 0..vms {
            let mut other = vmi("shop", &["172.17.0.1".to_owned()]);
            other.metadata.name = Some(format!("db-{n}"));
            other.metadata.labels = Some([("tier".to_owned(), "db".to_owned())].into());
            caches.vmis.wrote(other);
        }
        caches.services.wrote(service("172.17.0.1"));
        assert_eq!(woken(&queue).await, expected);
    }
}
