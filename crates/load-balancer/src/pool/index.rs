//! The records of all pools, found by holder and by address, and the faults of the pools. Kept beside the caches: a
//! decision about one load balancer must not read every record of every pool.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::{Cache, ObjectKey, RawObject};
use harvester_api::{IPPool, LoadBalancer};
use ip_pools::Judged;
use ipam::Record;

use crate::{address_index::AddressIndex, controller::address};

/// The index. Clones share it.
#[derive(Clone)]
pub(crate) struct PoolIndex(Arc<Shared>);

struct Shared {
    pools: Cache<RawObject<IPPool>>,
    load_balancers: Cache<RawObject<LoadBalancer>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<String, Record>,
    /// Computed when somebody asks for it after a pool came, went or got another spec.
    judged: Option<Arc<Vec<Judged>>>,
    /// The objects that name an address in `status.allocatedAddress`, by address.
    allocated: AddressIndex,
}

impl PoolIndex {
    /// Follows both caches. Call it before anything else subscribes to them: a controller that a change wakes then
    /// finds the change here.
    pub(crate) fn follow(
        pools: &Cache<RawObject<IPPool>>,
        load_balancers: &Cache<RawObject<LoadBalancer>>,
    ) -> Self {
        let shared =
            Shared { pools: pools.clone(), load_balancers: load_balancers.clone(), state: Mutex::default() };
        let index = Self(Arc::new(shared));
        let follower = index.clone();
        pools.on_change(move |change| {
            let same_spec = change.old.as_ref().zip(change.new.as_ref()).is_some_and(|(old, new)| {
                old.spec == new.spec && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
            });
            follower.read_pool(&change.key, same_spec);
        });
        let follower = index.clone();
        load_balancers.on_change(move |change| {
            let mut state = follower.state();
            let lb = follower.0.load_balancers.get(&change.key);
            let has = lb.as_deref().and_then(|lb| address::allocated(lb));
            let address = has.and_then(|has| has.ip.parse::<IpAddr>().ok());
            state.allocated.set(&change.key, address.into_iter().collect());
        });
        index
    }

    /// Every address that the pools record for a load balancer, in the order of the pools' names.
    pub(crate) fn recorded_for(&self, holder: &ObjectKey) -> Vec<(String, IpAddr)> {
        let (state, holder) = (self.state(), holder.to_string());
        let of = |(pool, record): (&String, &Record)| {
            record.of(&holder).map(|address| (pool.clone(), address)).collect::<Vec<_>>()
        };
        state.records.iter().flat_map(of).collect()
    }

    /// Pools that record `address`, each with the holder.
    pub(crate) fn holders_of(&self, address: IpAddr) -> Vec<(String, String)> {
        let state = self.state();
        let holder =
            |(pool, record): (&String, &Record)| Some((pool.clone(), record.holder(address)?.to_owned()));
        state.records.iter().filter_map(holder).collect()
    }

    /// Every pool with its faults, in the order of their names. A record that no range covers counts for none here: it
    /// hinders no claim.
    pub(crate) fn judged(&self) -> Arc<Vec<Judged>> {
        let mut state = self.state();
        let judged = state.judged.get_or_insert_with(|| {
            let pools = self.0.pools.list();
            Arc::new(ip_pools::judge_specs(pools.iter().map(|pool| &***pool)))
        });
        judged.clone()
    }

    /// Whether an address is in use, or about to be, although the record of `pool` does not say so
    /// (docs/contract/addresses.md#1): another pool records it, or a load balancer other than `holder` uses it and its
    /// own pool is gone or does not record the address. An address that an object's status names, and that `in_use`
    /// does not confirm, counts for nothing: a tenant may have written it.
    pub(crate) fn is_taken(
        &self,
        pool: &str,
        address: IpAddr,
        holder: &str,
        in_use: impl Fn(&LoadBalancer) -> bool,
    ) -> bool {
        let holders = self.holders_of(address);
        if holders.iter().any(|(other, _)| other != pool) {
            return true;
        }
        let others: Vec<_> = self.state().allocated.objects(address).cloned().collect();
        others.into_iter().filter(|other| other.to_string() != holder).any(|other| {
            let Some(lb) = self.0.load_balancers.get(&other) else { return false };
            let own = address::allocated(&lb).map(|has| has.ip_pool).unwrap_or_default();
            let silent = !holders.iter().any(|(recorded_in, _)| *recorded_in == own);
            silent && in_use(&lb)
        })
    }

    fn read_pool(&self, key: &ObjectKey, same_spec: bool) {
        let mut state = self.state();
        match self.0.pools.get(key) {
            Some(pool) => state.records.insert(key.name.clone(), ip_pools::record(&pool)),
            None => state.records.remove(&key.name),
        };
        if !same_spec {
            state.judged = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while the index is locked")
    }
}
