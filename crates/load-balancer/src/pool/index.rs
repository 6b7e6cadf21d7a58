//! The records of all pools, found by holder and by address, and the faults of the pools. Kept beside the caches: a
//! decision about one load balancer must not read every record of every pool.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use controller_kit::{Cache, Change, ObjectKey, RawObject};
use harvester_api::{IPPool, IPPoolSpec, LoadBalancer, WorkloadType, finalizers};
use ip_pools::{CheckedPool, managers};
use ipam::{Candidates, Record};
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Resource as _, ResourceExt as _};

use super::{
    clusters::{self, Clusters},
    maker::Maker,
    record_change::load_balancer_of,
};
use crate::{address_index::AddressIndex, caches::Caches, reuse, steps::step};

/// The index. Clones share it.
#[derive(Clone)]
pub(crate) struct PoolIndex(Arc<Shared>);

struct Shared {
    pools: Cache<RawObject<IPPool>>,
    load_balancers: Cache<RawObject<LoadBalancer>>,
    services: Cache<RawObject<Service>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<String, Recorded>,
    /// Computed when somebody asks for it after a pool came, went or got another spec.
    checked: Option<Checked>,
    /// The objects that name an address in `status.allocatedAddress`, by address.
    allocated: AddressIndex,
    /// Those of them that are not being deleted, by the pool that they name.
    alive: HashMap<String, BTreeSet<ObjectKey>>,
    /// Records that went without a release (somebody removed or emptied the pool), by the holder whose Service names
    /// the address still.
    ///
    /// A Service counts by this memory only. It has nothing that its tenant could not write as well: label, owner
    /// reference, the manager of a field, and, by way of kube-vip, the address in its status.
    unreleased: AddressIndex,
    clusters: Clusters,
    /// The guest clusters that load balancers were of, since somebody asked for the pools that this concerns.
    moved_from: BTreeMap<ObjectKey, BTreeSet<String>>,
    /// The addresses that a claim had to pass over because of an object or its Service, by that object.
    missed: AddressIndex,
}

impl State {
    /// The pool, while it gives the address to this holder: a record may have gone since somebody read it.
    fn standing(&mut self, pool: &str, address: IpAddr, holder: &str) -> Option<&mut Recorded> {
        self.records.get_mut(pool).filter(|known| known.record.holder(address) == Some(holder))
    }

    /// `lb`: as the cache has it now. Two changes may be told in the wrong order.
    fn note_alive(&mut self, change: &Change<RawObject<LoadBalancer>>, lb: Option<&RawObject<LoadBalancer>>) {
        let now = pools_of(lb);
        for pool in pools_of(change.old.as_deref()).union(&pools_of(change.new.as_deref())) {
            let of_pool = self.alive.entry((*pool).to_owned()).or_default();
            if now.contains(pool) {
                of_pool.insert(change.key.clone());
            } else {
                of_pool.remove(&change.key);
            }
            if of_pool.is_empty() {
                self.alive.remove(*pool);
            }
        }
    }

    /// Answers the cluster of a load balancer that is gone, if it counts for it no more.
    fn forget_cluster(&mut self, key: &ObjectKey) -> Option<String> {
        let Self { clusters, records, .. } = self;
        clusters.forget(key, || {
            step();
            let holder = key.to_string();
            records.values().any(|recorded| recorded.record.of(&holder).next().is_some())
        })
    }
}

/// The pools that a load balancer names, unless it is being deleted.
fn pools_of(lb: Option<&RawObject<LoadBalancer>>) -> BTreeSet<&str> {
    let alive = lb.filter(|lb| lb.meta().deletion_timestamp.is_none());
    alive.into_iter().flat_map(|lb| lb.pool_addresses()).map(|(pool, _)| pool).collect()
}

/// Every pool with its faults, and the rules by which it was checked, both in the order of the names.
#[derive(Clone)]
struct Checked {
    pools: Arc<Vec<CheckedPool>>,
    candidates: Arc<Candidates>,
    rules: Arc<[Rules]>,
}

/// What a pool says of who gets what of it, and of the rest of what is released.
#[derive(Debug, PartialEq)]
struct Rules {
    name: String,
    created: Option<Time>,
    spec: IPPoolSpec,
    by_name_only: bool,
    is_leaving: bool,
}

impl Rules {
    fn of(pool: &IPPool) -> Self {
        Self {
            name: pool.name_any(),
            created: pool.creation_timestamp(),
            spec: pool.spec.clone(),
            by_name_only: ip_pools::is_by_name_only(pool),
            is_leaving: pool.meta().deletion_timestamp.is_some(),
        }
    }
}

struct Recorded {
    pool: Arc<RawObject<IPPool>>,
    record: Record,
    /// Of the records that somebody has looked into, while they stand.
    makers: BTreeMap<IpAddr, Maker>,
    /// Records that other programs made for load balancers that have left them, each with the program. Such a record stays
    /// while its load balancer does, and that one does not wait for it before it asks for another address.
    ///
    /// [`Maker::Other`] is another fact: it is known before the load balancer takes a record that was written back for it.
    left: BTreeMap<IpAddr, String>,
}

impl Recorded {
    /// The next version of a pool. What is known of records that stand goes over from the one before; nobody has looked into
    /// a pool that was made again.
    fn of(pool: Arc<RawObject<IPPool>>, before: Option<&mut Self>) -> Self {
        let record = ip_pools::record(&pool);
        let (mut makers, mut left) = (BTreeMap::new(), BTreeMap::new());
        if let Some(before) = before.filter(|before| before.pool.uid() == pool.uid()) {
            (makers, left) = (mem::take(&mut before.makers), mem::take(&mut before.left));
            let stands = |address: &IpAddr| before.record.holder(*address) == record.holder(*address);
            makers.retain(|address, _| stands(address));
            left.retain(|address, _| stands(address));
        }
        Self { pool, record, makers, left }
    }

    /// Of pools that were created in the same second the one whose name comes first counts as the older.
    fn age(&self) -> (i64, String) {
        (self.pool.creation_timestamp().map_or(0, |time| time.0.as_second()), self.pool.name_any())
    }
}

impl PoolIndex {
    /// Follows the caches. Call it before anything else subscribes to them: a controller that a change wakes then finds
    /// the change here.
    pub(crate) fn follow(caches: &Caches) -> Self {
        let Caches { pools, load_balancers, services, slices: _, vmis: _, vms: _ } = caches;
        let index = Self(Arc::new(Shared {
            pools: pools.clone(),
            load_balancers: load_balancers.clone(),
            services: services.clone(),
            state: Mutex::default(),
        }));
        let follower = index.clone();
        pools.on_change(move |change| {
            let same_spec = change.old.as_ref().zip(change.new.as_ref()).is_some_and(|(old, new)| {
                ip_pools::same_rules(old, new)
                    && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
            });
            follower.read_pool(&change.key, same_spec);
        });
        let follower = index.clone();
        load_balancers.on_change(move |change| {
            let mut state = follower.state();
            let lb = follower.0.load_balancers.get(&change.key);
            let addresses = lb.iter().flat_map(|lb| lb.pool_addresses()).map(|(_, address)| address);
            state.allocated.set(&change.key, addresses.collect());
            state.note_alive(change, lb.as_deref());
            match &lb {
                Some(lb) => {
                    if let Some(former) = state.clusters.seen(&change.key, lb) {
                        state.moved_from.entry(change.key.clone()).or_default().insert(former);
                    }
                }
                None => state.clusters.gone(&change.key),
            }
            if let Some(former) = state.forget_cluster(&change.key) {
                state.moved_from.entry(change.key.clone()).or_default().insert(former);
            }
        });
        let follower = index.clone();
        services.on_change(move |change| {
            let mut state = follower.state();
            let unreleased = follower.still_named(&change.key, state.unreleased.addresses_of(&change.key));
            state.unreleased.set(&change.key, unreleased);
        });
        index
    }

    /// Every address that the pools record for a load balancer, in the order of the pools' names.
    pub(crate) fn recorded_for(&self, holder: &ObjectKey) -> Vec<(String, IpAddr)> {
        self.records_that_name(holder, |maker| maker != Some(Maker::Machine))
    }

    /// The records that name the load balancer and are a machine's.
    pub(crate) fn of_machine(&self, holder: &ObjectKey) -> Vec<(String, IpAddr)> {
        self.records_that_name(holder, |maker| maker == Some(Maker::Machine))
    }

    /// Those of which nobody has said who made them; `anew`: or that another program made, if no VM had the name then.
    pub(crate) fn unjudged(&self, holder: &ObjectKey, anew: bool) -> Vec<(String, IpAddr)> {
        self.records_that_name(holder, |maker| maker.is_none() || anew && maker == Some(Maker::Other))
    }

    /// A fresh read of the pool shows who made a record that names the load balancer.
    pub(crate) fn note_maker(&self, holder: &ObjectKey, pool: &str, address: IpAddr, maker: Maker) {
        let mut state = self.state();
        if let Some(known) = state.standing(pool, address, &holder.to_string()) {
            known.makers.insert(address, maker);
        }
    }

    /// What a fresh read of a pool says of all records that the load balancer made: of ten thousand load balancers that ask,
    /// each would read it for itself.
    pub(crate) fn note_makers_of(&self, fresh: &IPPool) {
        let ours = managers::ours(fresh);
        let allocated = fresh.status.as_ref().map(|status| &status.allocated);
        let mut state = self.state();
        let Some(known) = state.records.get_mut(&fresh.name_any()) else { return };
        for address in ours {
            let read = allocated.and_then(|allocated| allocated.get(&address.to_string()));
            // it may have gone since
            if read.is_some_and(|read| known.record.holder(address) == Some(read.as_str())) {
                known.makers.entry(address).or_insert(Maker::LoadBalancer);
            }
        }
    }

    /// The pool's writer has recorded these addresses, in this version of the pool: nobody needs to ask who made the records.
    pub(crate) fn note_recorded(&self, pool: &str, version: Option<&str>, addresses: &[IpAddr]) {
        let mut state = self.state();
        let Some(known) = state.records.get_mut(pool) else { return };
        if known.pool.resource_version().as_deref() != version {
            return;
        }
        for address in addresses {
            if known.record.holder(*address).is_some() {
                known.makers.insert(*address, Maker::LoadBalancer);
            }
        }
    }

    fn records_that_name(
        &self,
        holder: &ObjectKey,
        counts: impl Fn(Option<Maker>) -> bool,
    ) -> Vec<(String, IpAddr)> {
        let (state, holder) = (self.state(), holder.to_string());
        let of = |(pool, known): (&String, &Recorded)| {
            let addresses = known.record.of(&holder);
            let counting = addresses.filter(|address| counts(known.makers.get(address).copied()));
            counting.map(|address| (pool.clone(), address)).collect::<Vec<_>>()
        };
        state.records.iter().flat_map(of).collect()
    }

    /// The addresses that live load balancers believe to have from this pool, each with its holder. Those that name another
    /// pool are not looked at: there may be ten thousand, and each PUT of a pool asks.
    pub(crate) fn status_addresses(&self, pool: &str) -> Vec<(IpAddr, String)> {
        let state = self.state();
        let of = |key: &ObjectKey| {
            step();
            let (lb, holder) = (self.0.load_balancers.get(key)?, key.to_string());
            let alive = lb.meta().deletion_timestamp.is_none();
            let addresses = lb.pool_addresses().filter(|(of, _)| alive && *of == pool);
            Some(addresses.map(|(_, address)| (address, holder.clone())).collect::<Vec<_>>())
        };
        state.alive.get(pool).into_iter().flatten().filter_map(of).flatten().collect()
    }

    /// Pools that record `address`, each with the holder.
    pub(crate) fn holders_of(&self, address: IpAddr) -> Vec<(String, String)> {
        let state = self.state();
        let holder = |(pool, recorded): (&String, &Recorded)| {
            Some((pool.clone(), recorded.record.holder(address)?.to_owned()))
        };
        state.records.iter().filter_map(holder).collect()
    }

    /// A fresh read of the pool shows that this other program made a record that the load balancer has left. Answers whether
    /// nobody knew that.
    pub(crate) fn note_left(&self, holder: &ObjectKey, pool: &str, address: IpAddr, program: &str) -> bool {
        let mut state = self.state();
        let standing = state.standing(pool, address, &holder.to_string());
        standing.is_some_and(|known| known.left.insert(address, program.to_owned()).is_none())
    }

    /// The records that other programs made and that the load balancer has left, as far as somebody has looked, each with the
    /// program.
    pub(crate) fn made_by_others(&self, holder: &ObjectKey) -> BTreeMap<(String, IpAddr), String> {
        let (state, holder) = (self.state(), holder.to_string());
        let of = |(pool, known): (&String, &Recorded)| {
            let left = |address: IpAddr| {
                let program = known.left.get(&address)?.clone();
                Some(((pool.clone(), address), program))
            };
            known.record.of(&holder).filter_map(left).collect::<Vec<_>>()
        };
        state.records.iter().flat_map(of).collect()
    }

    /// The load balancers for which pools record `address`, where those pools disagree.
    pub(crate) fn rivals_for(&self, address: IpAddr) -> Vec<ObjectKey> {
        let holders: BTreeSet<_> = self.holders_of(address).into_iter().map(|(_, holder)| holder).collect();
        if holders.len() < 2 {
            return Vec::new();
        }
        holders.iter().filter_map(|holder| load_balancer_of(holder)).collect()
    }

    /// Whether a record of `pool` that gives `address` to `holder` counts for nothing, because an older pool records the
    /// address for somebody else (the PUT of a former leader may have arrived late), or because it is a machine's.
    pub(crate) fn counts_for_nothing(&self, pool: &str, address: IpAddr, holder: &str) -> bool {
        let state = self.state();
        let Some(own) = state.records.get(pool) else { return false };
        let is_of_machine =
            own.record.holder(address) == Some(holder) && own.makers.get(&address) == Some(&Maker::Machine);
        is_of_machine
            || state.records.values().any(|other| {
                let gives_away = other.record.holder(address).is_some_and(|other| other != holder);
                gives_away && other.age() < own.age()
            })
    }

    /// The addresses that the holder keeps from others, whatever the pools say: that of its status, and those whose
    /// records went without a release.
    pub(crate) fn used_by(&self, holder: &str) -> Vec<IpAddr> {
        let Some(key) = ObjectKey::parse(holder) else { return Vec::new() };
        let state = self.state();
        state.allocated.addresses_of(&key).chain(state.unreleased.addresses_of(&key)).collect()
    }

    /// The guest cluster of the holder, where its object says or has said it.
    pub(crate) fn cluster_of(&self, holder: &str) -> Option<String> {
        self.state().clusters.of(&ObjectKey::parse(holder)?).map(str::to_owned)
    }

    /// The holders that are of a guest cluster, or were when they went.
    pub(crate) fn members_of(&self, cluster: &str) -> Vec<String> {
        self.state().clusters.members(cluster).map(ToString::to_string).collect()
    }

    /// The pools that count the load balancer for another guest cluster from now on, because they have a quota for the
    /// former or the new one; `None` where it is of the same. One that went and was made again may have left the record of
    /// its predecessor, and one that is gone counts for none: what it released may rest.
    pub(crate) fn pools_of_moved(
        &self,
        change: &Change<RawObject<LoadBalancer>>,
    ) -> Option<BTreeSet<String>> {
        let mut clusters = self.state().moved_from.remove(&change.key).unwrap_or_default();
        let now = change.new.as_ref().map(|new| clusters::cluster_of(new));
        let is_same = match (&change.old, &now) {
            (Some(old), Some(now)) => clusters::cluster_of(old) == *now,
            _ => true,
        };
        if clusters.is_empty() && is_same {
            return None;
        }
        clusters.extend(now.flatten());
        let (checked, counted) = (self.checked_pools(), self.counted_for(&change.key));
        let counts = |pool: &String| {
            let of_pool = checked.iter().map(|checked| &checked.pool).find(|known| known.name == *pool);
            of_pool.is_some_and(|pool| clusters.iter().any(|name| pool.quotas.limits_cluster(name)))
        };
        Some(counted.into_iter().filter(counts).collect())
    }

    /// The pools with an address that counts for a quota of the holder: it has the address, or had it last and it rests.
    fn counted_for(&self, holder: &ObjectKey) -> Vec<String> {
        let (state, holder) = (self.state(), holder.to_string());
        let counts = |recorded: &Recorded| {
            let Recorded { pool, record, .. } = recorded;
            let mut past = record.past_of(&holder).peekable();
            record.of(&holder).next().is_some()
                || past.peek().is_some() && {
                    let rests = ip_pools::written_rests(pool);
                    past.any(|address| rests.contains_key(&address))
                }
        };
        state.records.iter().filter(|(_, recorded)| counts(recorded)).map(|(pool, _)| pool.clone()).collect()
    }

    /// The pools whose ranges give one of these addresses.
    pub(crate) fn offering(&self, addresses: &[IpAddr]) -> BTreeSet<String> {
        let checked = self.checked_pools();
        let gives =
            |checked: &&CheckedPool| addresses.iter().any(|address| checked.pool.ranges.gives(*address));
        checked.iter().filter(gives).map(|checked| checked.pool.name.clone()).collect()
    }

    /// Every pool with its faults, in the order of their names. A record that no range covers counts for none here: it
    /// hinders no claim.
    pub(crate) fn checked_pools(&self) -> Arc<Vec<CheckedPool>> {
        self.checked().pools
    }

    /// The same, with the index by which one of them is chosen.
    pub(crate) fn checked_candidates(&self) -> (Arc<Vec<CheckedPool>>, Arc<Candidates>) {
        let Checked { pools, candidates, .. } = self.checked();
        (pools, candidates)
    }

    fn checked(&self) -> Checked {
        let mut state = self.state();
        let checked = state.checked.get_or_insert_with(|| {
            let pools = self.0.pools.list();
            let checked = ip_pools::check_specs(pools.iter().map(|pool| &***pool));
            let specs: Vec<_> = checked.iter().map(|checked| &checked.pool).collect();
            Checked {
                candidates: Arc::new(Candidates::of(&specs)),
                pools: Arc::new(checked),
                rules: pools.iter().map(|pool| Rules::of(pool)).collect(),
            }
        });
        checked.clone()
    }

    /// The pool `read` with its faults, those of its records too. The others are not looked at again while its spec is the one
    /// that was checked beside them.
    pub(crate) fn check(&self, read: &RawObject<IPPool>) -> CheckedPool {
        let (Checked { pools, rules, .. }, now) = (self.checked(), Rules::of(read));
        let place = rules.binary_search_by(|checked| checked.name.cmp(&now.name)).ok();
        match place.filter(|place| rules[*place] == now) {
            Some(place) => ip_pools::with_records(pools[place].clone(), read),
            None => {
                let others = self.0.pools.list();
                ip_pools::check(read, others.iter().inspect(|_| step()).map(|pool| &***pool))
            }
        }
    }

    /// Whether an address is in use, or about to be, although the record of `pool` does not say so
    /// (docs/contract/addresses.md#1): another pool records it, the record of another holder went without a release and
    /// its Service names the address, or a load balancer other than `holder` uses it and its own pool is gone or does not
    /// record the address. An address that an object's status names, and that nothing else confirms, counts for nothing:
    /// a tenant may have written it.
    ///
    /// The index remembers the object that kept the address from the claim, for [`PoolIndex::no_longer_kept`].
    pub(crate) fn is_taken(&self, pool: &str, address: IpAddr, holder: &str) -> bool {
        let holders = self.holders_of(address);
        if holders.iter().any(|(other, _)| other != pool) {
            return true;
        }
        let is_other = |other: &&ObjectKey| other.to_string() != holder;
        let is_used_by = |other: &&ObjectKey| {
            let Some(lb) = self.0.load_balancers.get(other) else { return false };
            let own = lb.pool_addresses().find(|(_, named)| *named == address).map(|(pool, _)| pool);
            let silent = !holders.iter().any(|(recorded_in, _)| Some(recorded_in.as_str()) == own);
            silent && self.is_in_use(&lb, address)
        };
        // a change of the keeper that this look does not see yet comes to `no_longer_kept` after it
        let mut state = self.state();
        let keeper = state.unreleased.objects(address).find(is_other).cloned();
        let keeper =
            keeper.or_else(|| state.allocated.objects(address).filter(is_other).find(is_used_by).cloned());
        let Some(keeper) = keeper else { return false };
        let missed = state.missed.addresses_of(&keeper).chain([address]).collect();
        state.missed.set(&keeper, missed);
        true
    }

    /// The addresses that claims had to pass over because of the object `key` or its Service, and that neither keeps from
    /// anybody now. The waker asks after each change of the object or its Service, and gets each address once.
    pub(crate) fn no_longer_kept(&self, key: &ObjectKey) -> Vec<IpAddr> {
        let mut state = self.state();
        let names = |index: &AddressIndex, address| index.addresses_of(key).any(|named| named == address);
        let is_used = |address| {
            let lb = self.0.load_balancers.get(key);
            lb.is_some_and(|lb| self.is_in_use(&lb, address))
        };
        let (kept, freed): (BTreeSet<_>, BTreeSet<_>) =
            state.missed.addresses_of(key).partition(|&address| {
                names(&state.unreleased, address) || names(&state.allocated, address) && is_used(address)
            });
        state.missed.set(key, kept);
        freed.into_iter().collect()
    }

    /// Whether the object `lb` uses `address`: its Service names the address, or, for a guest cluster, the cloud
    /// controller manager has shown it, or the other one of two, in `status.address`. Only while the object has our
    /// finalizer, which nobody can put back on an object that is being deleted: afterwards the tenant alone writes it.
    fn is_in_use(&self, lb: &LoadBalancer, address: IpAddr) -> bool {
        let has_finalizer = lb.finalizers().iter().any(|name| name == finalizers::LOAD_BALANCER);
        has_finalizer
            && match lb.spec.workload() {
                WorkloadType::Vm => {
                    let service = self.0.services.get(&ObjectKey::of(lb));
                    service.is_some_and(|service| reuse::named(&service).any(|named| named == address))
                }
                WorkloadType::Cluster => {
                    let shown = lb.status.as_ref().and_then(|status| status.address.parse::<IpAddr>().ok());
                    // the field holds one address: where two are allocated, the other is announced with it
                    let both: Vec<_> = lb.pool_addresses().map(|(_, address)| address).collect();
                    let is_shown = shown == Some(address)
                        || shown.is_some_and(|shown| both.contains(&shown)) && both.contains(&address);
                    // its record goes when nothing announces the address any more, and its finalizer after that
                    lb.meta().deletion_timestamp.is_none() && is_shown
                }
            }
    }

    /// The pool's cache has the answer to a write: whoever heard of a newer version may not have told the index yet.
    pub(crate) fn catch_up(&self, key: &ObjectKey) {
        self.read_pool(key, true);
    }

    fn read_pool(&self, key: &ObjectKey, same_spec: bool) {
        let mut state = self.state();
        let (pool, known) = (self.0.pools.get(key), state.records.get(&key.name));
        let is_known = pool.as_ref().zip(known).is_some_and(|(pool, known)| Arc::ptr_eq(&known.pool, pool));
        if !is_known {
            let mut before = state.records.remove(&key.name);
            if let Some(pool) = pool {
                let now = Recorded::of(pool, before.as_mut());
                state.records.insert(key.name.clone(), now);
            }
            if let Some(before) = before {
                self.remember_unreleased(&mut state, &key.name, &before.record);
            }
        }
        if !same_spec {
            state.checked = None;
        }
    }

    /// A release leaves the holder in the pool's history; a record that went otherwise may be in use still. The guest cluster
    /// of a holder that is gone itself counts no more.
    fn remember_unreleased(&self, state: &mut State, pool: &str, before: &Record) {
        let now = state.records.get(pool).map(|now| &now.record);
        let of = |now: Option<&str>, holder: &str| now.is_some_and(|now| now == holder);
        let gone = before
            .held()
            .filter(|(address, holder)| !of(now.and_then(|now| now.holder(*address)), holder))
            .filter_map(|(address, holder)| {
                let was_released = of(now.and_then(|now| now.last_holder(address)), holder);
                Some((ObjectKey::parse(holder)?, address, was_released))
            });
        for (holder, address, was_released) in gone.collect::<Vec<_>>() {
            state.forget_cluster(&holder);
            if was_released {
                continue;
            }
            let known = state.unreleased.addresses_of(&holder).chain([address]);
            let named = self.still_named(&holder, known);
            state.unreleased.set(&holder, named);
        }
    }

    /// Those of the addresses that the holder's Service asks for or shows.
    fn still_named(&self, holder: &ObjectKey, addresses: impl Iterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
        let mut addresses = addresses.peekable();
        // most Services keep nothing, and a tenant's may name tens of thousands
        if addresses.peek().is_none() {
            return BTreeSet::new();
        }
        let Some(service) = self.0.services.get(holder) else { return BTreeSet::new() };
        let named: BTreeSet<_> = reuse::named(&service).collect();
        addresses.filter(|address| named.contains(address)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while the index is locked")
    }
}

#[cfg(test)]
mod tests;
