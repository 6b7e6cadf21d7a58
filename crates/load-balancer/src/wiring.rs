//! The keys that a change adds to the queues. No controller polls: it watches the objects that it waits for, and this
//! module ties the watches to the queues.
//!
//! ```text
//! LoadBalancer ──► its own key; load balancers that wait for an address that it kept from them; the pool that it left,
//!                  for the record garbage collector
//! IPPool       ──► its own key; load balancers that wait, that lost their record, or whose address two pools record; all
//!                  pools when its spec changed
//! Service      ──► load balancers that wait for an address that it kept from them
//! VM, VMI      ──► their own key while they carry an old finalizer; a guest cluster that is being removed
//! ConfigMap    ──► the import
//! rights, CRD  ──► LoadBalancers of type vm, and those that are gone and have an orphaned Service; these also when
//!                  nobody answers for the right to delete Services, and a DELETE is to be tried
//! (Services, EndpointSlices, VMIs and addresses also wake LoadBalancers: `host_datapath`)
//! ```

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{Cache, Change, ObjectKey, Queue, RawObject};
use harvester_api::{IPPool, LoadBalancer, WorkloadType, annotations, finalizers};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Resource, ResourceExt};
use program::capabilities::Capabilities;
use prometheus_client::registry::Registry;

use crate::{
    caches::Caches,
    controller,
    host_datapath::HostDatapath,
    metrics::Metrics,
    pool::{Orders, Orphans, PoolIndex, PoolNews, PoolWaiters, RecordChange, Writers},
    vms,
};

/// Changes of one pool within this time are one look of the record garbage collector, which has patience in any case.
const RECORDS_JOINED: Duration = Duration::from_secs(1);

/// The queues of the controllers; their items are names of objects.
pub(crate) struct Queues {
    pub(crate) load_balancers: Queue<ObjectKey>,
    pub(crate) pools: Queue<ObjectKey>,
    pub(crate) records: Queue<ObjectKey>,
    pub(crate) vms: Queue<ObjectKey>,
    pub(crate) vmis: Queue<ObjectKey>,
    pub(crate) removed_clusters: Queue<ObjectKey>,
    pub(crate) imports: Queue<ObjectKey>,
    pub(crate) metrics: Metrics,
}

impl Default for Queues {
    /// In queues of namespaced objects tenants take turns.
    fn default() -> Self {
        Self {
            load_balancers: Queue::by_namespace(),
            pools: Queue::new(),
            records: Queue::new(),
            vms: Queue::by_namespace(),
            vmis: Queue::by_namespace(),
            removed_clusters: Queue::by_namespace(),
            imports: Queue::new(),
            metrics: Metrics::default(),
        }
    }
}

impl Queues {
    /// Adds counters of the queues and the numbers of the pools.
    pub(crate) fn register(&self, registry: &mut Registry) {
        // names that are out: dashboards know them
        let named = [("balancers", &self.load_balancers), ("pools", &self.pools), ("sweeps", &self.records)];
        for (name, queue) in named {
            queue.metrics().register(registry, name);
        }
        self.metrics.register(registry);
    }
}

/// The caches, the queues, and the tables that say which keys a change adds.
pub(crate) struct Wiring<'a> {
    pub(crate) caches: &'a Caches,
    pub(crate) queues: &'a Queues,
    pub(crate) config_maps: &'a Cache<RawObject<ConfigMap>>,
    pub(crate) capabilities: &'a Capabilities,
    pub(crate) waiters: &'a PoolWaiters,
    pub(crate) writers: &'a Writers,
    pub(crate) orders: &'a Orders,
    pub(crate) orphans: &'a Orphans,
    pub(crate) index: &'a PoolIndex,
}

impl Wiring<'_> {
    /// Ties caches to queues, for the objects that are there and for all changes to come.
    pub(crate) fn connect(&self) {
        let waker = PoolNews {
            waiters: self.waiters.clone(),
            index: self.index.clone(),
            orders: self.orders.clone(),
            queue: self.queues.load_balancers.clone(),
            pools: self.queues.pools.clone(),
        };
        self.connect_pools(&waker);
        let Self { caches, queues, config_maps, .. } = self;
        HostDatapath::subscribe(caches, &queues.load_balancers);
        let (load_balancers, records) = (queues.load_balancers.clone(), queues.records.clone());
        let woken = waker.clone();
        caches.load_balancers.on_change(move |change| {
            load_balancers.add(change.key.clone());
            woken.keeper_changed(&change.key);
            woken.tenant_changed(change);
            let left = left_pools(change).into_iter().map(|pool| ObjectKey::new("", pool));
            left.for_each(|pool| records.add_after(pool, RECORDS_JOINED));
        });
        let woken = waker.clone();
        caches.services.on_change(move |change| woken.keeper_changed(&change.key));
        self.writers.on_free(move |addresses| waker.freed(addresses));

        let (vms, clusters) = (queues.vms.clone(), queues.removed_clusters.clone());
        caches.vms.on_change(move |change| {
            if change.new.as_ref().is_some_and(|vm| vms::finalizers::marked_vm(vm)) {
                vms.add(change.key.clone());
            }
            vms::removed_clusters::removed_cluster(change)
                .into_iter()
                .for_each(|cluster| clusters.add(cluster));
        });
        let vmis = queues.vmis.clone();
        caches.vmis.on_change(move |change| {
            if change.new.as_ref().is_some_and(|vmi| vms::finalizers::marked_vmi(vmi)) {
                vmis.add(change.key.clone());
            }
        });

        let imports = queues.imports.clone();
        config_maps.on_change(move |change| imports.add(change.key.clone()));
        self.connect_capabilities();
        vms::finalizers::look_again(self.capabilities, caches, queues);
    }

    fn connect_pools(&self, waker: &PoolNews) {
        let Self { caches, queues, index, .. } = self;
        let (pools, load_balancers) = (queues.pools.clone(), queues.load_balancers.clone());
        let (records, metrics) = (queues.records.clone(), queues.metrics.clone());
        let (waker, index, all) = (waker.clone(), (*index).clone(), caches.pools.clone());
        caches.pools.on_change(move |change| {
            let changed = RecordChange::of(change);
            metrics.pool_changed(change, &changed, || all.get(&change.key));
            records.add_after(change.key.clone(), RECORDS_JOINED);
            let lost: BTreeSet<_> = changed.lost_holders().collect();
            if needs_refresh(change) || !lost.is_empty() {
                pools.add(change.key.clone());
            }
            lost.into_iter().for_each(|key| load_balancers.add(key));
            // of two pools that record one address only one is right
            let holders = changed.newly_recorded().flat_map(|address| index.rivals_for(address));
            holders.for_each(|key| load_balancers.add(key));
            if concerns_others(change) {
                all.list().iter().for_each(|other| pools.add(ObjectKey::of(&**other)));
            }
            waker.pool_changed(object(&change.old), object(&change.new));
        });
    }

    /// A right that is granted or taken away changes how Services go; the CRD, what the status may say.
    fn connect_capabilities(&self) {
        let (capabilities, all) = (self.capabilities.clone(), self.caches.load_balancers.clone());
        let (orphans, queue) = (self.orphans.clone(), self.queues.load_balancers.clone());
        let ask = {
            let capabilities = capabilities.clone();
            move || controller::Allowed::of(&capabilities)
        };
        let before = Mutex::new(ask());
        let (waiting, into) = (orphans.clone(), queue.clone());
        capabilities.on_try(move |right| {
            if *right == controller::DELETE_SERVICES {
                waiting.list().into_iter().for_each(|key| into.add(key));
            }
        });
        capabilities.on_change(move || {
            let now = ask();
            let before =
                std::mem::replace(&mut *before.lock().expect("no panic while rights are compared"), now);
            if before != now {
                let all = all.list();
                let is_concerned = |lb: &&Arc<RawObject<LoadBalancer>>| {
                    lb.spec.workload() == WorkloadType::Vm || controller::may_have_two(lb)
                };
                all.iter().filter(is_concerned).for_each(|lb| queue.add(ObjectKey::of(&**lb)));
                orphans.list().into_iter().for_each(|key| queue.add(key));
            }
        });
    }
}

fn object(pool: &Option<Arc<RawObject<IPPool>>>) -> Option<&IPPool> {
    pool.as_deref().map(|pool| &**pool)
}

/// Whether the pool's own numbers, condition or finalizer may be wrong now, or something is asked for by hand.
fn needs_refresh(change: &Change<RawObject<IPPool>>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return true };
    !ip_pools::same_rules(old, new)
        || old.meta().deletion_timestamp != new.meta().deletion_timestamp
        || new.annotations().contains_key(annotations::MANUALLY_RELEASE_IP)
        || rests(old) != rests(new)
        || !new.finalizers().iter().any(|name| name == finalizers::IP_POOL)
        || !is_counted(new)
}

fn rests(pool: &IPPool) -> Option<&String> {
    pool.annotations().get(annotations::QUARANTINE)
}

/// Whether the numbers are those of the records.
fn is_counted(pool: &IPPool) -> bool {
    let Some(status) = &pool.status else { return false };
    if rests(pool).is_some() || pool.spec.ranges.iter().any(|range| range.drain) {
        return ip_pools::counts(pool).is_none_or(|counts| counts == (status.total, status.available));
    }
    let held = i64::try_from(status.allocated.len()).unwrap_or(i64::MAX);
    status.total == i64::MAX || status.total - status.available == held
}

/// Whether ranges or scopes of other pools may be right or wrong because of this change.
fn concerns_others(change: &Change<RawObject<IPPool>>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => !ip_pools::same_rules(old, new),
        _ => true,
    }
}

/// The pools with addresses that an object's status named before and does not name now.
fn left_pools(change: &Change<RawObject<LoadBalancer>>) -> BTreeSet<String> {
    let of = |lb: &Option<Arc<RawObject<LoadBalancer>>>| -> BTreeSet<_> {
        let addresses = lb.iter().flat_map(|lb| lb.pool_addresses());
        addresses.map(|(pool, address)| (pool.to_owned(), address)).collect()
    };
    let after = of(&change.new);
    of(&change.old).into_iter().filter(|named| !after.contains(named)).map(|(pool, _)| pool).collect()
}

#[cfg(test)]
mod tests;
