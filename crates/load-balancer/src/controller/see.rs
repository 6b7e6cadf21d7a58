//! What one decision about an object rests on: caches, and the server where caches know nothing.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use controller_kit::{Cache, ObjectKey, RawObject};
use harvester_api::{AllocatedAddress, IPPool, Ipam, LoadBalancer, VirtualMachine, WorkloadType};
use k8s_openapi::api::core::v1::Service;
use kube::Api;

use super::{
    Allowed, Controller, Error, Learned,
    address::{RecordedHolder, dual},
    decide::{Seen, SeenAddress},
    judge::{PoolSays, Verdict, judge},
    requested,
    sources::{self, Source},
};
use crate::{
    caches::{is_trimmed, trimmed},
    host_datapath::{VmList, write},
    ownership::{Owner, Ownership},
    pool::{Maker, PoolIndex},
    reuse,
};

impl Controller {
    pub(super) async fn see(&self, key: &ObjectKey, learned: &Learned) -> Result<Seen, Error> {
        let caches = &self.caches;
        let object = caches.load_balancers.get(key);
        let workload = object.as_ref().map(|lb| lb.spec.workload());
        let has = object.as_ref().and_then(|lb| lb.pool_address());
        if let Some(lb) = &object {
            self.judge_records(key, lb, learned).await?;
        }
        let own = key.to_string();
        let is_outranked =
            |(pool, address): &(String, IpAddr)| self.index.counts_for_nothing(pool, *address, &own);
        let (outranked, recorded): (Vec<_>, Vec<_>) =
            self.index.recorded_for(key).into_iter().partition(is_outranked);
        let failed = |source| Error::Datapath { step: "look".to_owned(), key: key.clone(), source };
        let (cached, stranger) = (caches.services.get(key), self.refused_writes.stranger(key));
        let before = sources::Cached {
            workload,
            address: match &object {
                _ if has.is_some() => sources::Address::OfPool,
                Some(lb) if lb.spec.ipam() == Ipam::Dhcp => sources::Address::Dhcp,
                _ => sources::Address::None,
            },
            records: match &recorded[..] {
                [] => sources::Records::None,
                [one] if outranked.is_empty() && learned.recorded_anew.as_ref() == Some(one) => {
                    sources::Records::New
                }
                _ => sources::Records::Older,
            },
            service: match &cached {
                None => sources::CachedService::None,
                Some(service) if is_trimmed(&**service) => sources::CachedService::Trimmed,
                Some(_) => sources::CachedService::Whole,
            },
            is_slice_trimmed: caches.slices.get(key).is_some_and(|slice| is_trimmed(&*slice)),
            is_strangers: stranger.is_some(),
        };
        let from = sources::of_service(&before);
        let service = match from {
            Source::Cache => cached,
            Source::Stranger => stranger,
            Source::Read => {
                let found = write::find(&self.client, &caches.services, key).await.map_err(failed)?;
                self.note_stranger(key, object.as_deref(), found.as_ref().filter(|_| cached.is_none()));
                found
            }
        };
        let slice = match sources::of_slice(&before, from, service.is_some()) {
            Source::Read => write::find(&self.client, &caches.slices, key).await.map_err(failed)?,
            Source::Cache | Source::Stranger => caches.slices.get(key),
        };
        let backends = match &object {
            Some(lb) if workload == Some(WorkloadType::Vm) => {
                let service = service.as_ref().map(|service| &***service);
                self.datapath.see(lb, service, slice.as_ref().map(|slice| &***slice))
            }
            _ => Default::default(),
        };
        let vm_list = VmList::of(
            object.as_ref().map(|lb| &***lb),
            self.vm_watch.is_listed(),
            self.vm_watch.error().as_deref(),
        );
        let Allowed {
            may_delete_services,
            has_backends_field,
            has_second_address_field,
            has_addresses_field,
        } = Allowed::of(&self.capabilities);
        let (pools, candidates) = self.index.checked_candidates();
        let of_machine = self.index.of_machine(key);
        let of_others = self.lost_addresses(key, &of_machine, object.as_deref(), service.as_deref());
        Ok(Seen {
            key: key.clone(),
            address: SeenAddress {
                pools,
                candidates: Some(candidates),
                pool_choice: self.pool_choice,
                holder: recorded_holder(&self.index, &caches.pools, key, has.as_ref()),
                second_holder: second_holder(&self.index, &caches.pools, key, object.as_deref()),
                recorded,
                of_machine,
                made_by_others: self.index.made_by_others(key),
                outranked,
                refused: learned.refused.clone(),
                pending: learned.pending.clone(),
                of_others,
                rivals: object.as_deref().map_or_else(Vec::new, |lb| rivals(&self.index, key, lb)),
                leaving: object
                    .as_deref()
                    .map_or_else(Vec::new, |lb| leaving(&self.index, &caches.load_balancers, key, lb)),
            },
            backend_due_in: self.slice_pace.backends_due_in(key, object.as_deref()),
            object,
            service,
            slice,
            vm_list,
            backends,
            unlisted: caches.unlisted(),
            refused_writes: learned.refused_writes.clone(),
            records_held: learned.records_held.clone(),
            may_delete_services,
            has_backends_field,
            has_second_address_field,
            has_addresses_field,
            dummy_endpoint: self.dummy_endpoint,
            backend_status_in: self.status_pace.allowed_in(key),
            slice_readiness_in: self.slice_pace.allowed_in(key),
            now: self.clock.now_text(),
        })
    }

    /// Remembers a Service that was read past the watch, if it is somebody else's.
    fn note_stranger(
        &self,
        key: &ObjectKey,
        lb: Option<&RawObject<LoadBalancer>>,
        found: Option<&Arc<RawObject<Service>>>,
    ) {
        let is_foreign = |service: &&Arc<RawObject<Service>>| {
            lb.is_some_and(|lb| Owner::of(lb).ownership(&service.metadata) == Ownership::Foreign)
        };
        let stranger = found.filter(is_foreign).map(|service| Arc::new(trimmed(service)));
        self.refused_writes.note_stranger(key, stranger);
    }

    /// Learns who made the records that name the object: the VM of its name may be still to come, and the cache may not know
    /// the one that is there. What its status shows is its own: the pool may have been restored by hand. So is what the pool
    /// recorded for it just now. That another program made a record, and no VM has the name, is asked once, again as soon as the
    /// cache has such a VM, and again where the object goes and would take the record along.
    ///
    /// # Errors
    /// Also where the server does not say whether there is such a VM, and where the pool of a record is gone, of which nobody knows
    /// the maker and the watch has not told: the object waits, because the address may be in use.
    async fn judge_records(
        &self,
        key: &ObjectKey,
        lb: &LoadBalancer,
        learned: &Learned,
    ) -> Result<(), Error> {
        let own = key.to_string();
        let is_own = |record: &(String, IpAddr)| {
            let (pool, address) = record;
            learned.recorded_anew.as_ref() == Some(record)
                || lb.pool_addresses().any(|has| has == (pool.as_str(), *address))
        };
        let anew = lb.metadata.deletion_timestamp.is_some() || self.caches.vms.get(key).is_some();
        for (pool, address) in self.index.unjudged(key, anew).into_iter().filter(|record| !is_own(record)) {
            let step =
                || format!("ask whether {address} of IPPool {pool} is that of a VirtualMachine of the name");
            let failed = |source| Error::Request { step: step(), key: key.clone(), source };
            // who made a record is said by what the caches leave out
            let fresh = Api::<IPPool>::all(self.client.clone()).get_opt(&pool).await.map_err(failed)?;
            if let Some(fresh) = &fresh {
                self.index.note_makers_of(fresh);
            }
            let says = fresh.as_ref().map(|fresh| PoolSays::of(fresh, address)).unwrap_or_default();
            let mut has_machine = None;
            let maker = loop {
                match judge(&own, &says, has_machine) {
                    Verdict::Is(maker) => break Some(maker),
                    Verdict::AskForMachine => {
                        has_machine = Some(self.has_machine(key).await.map_err(failed)?);
                    }
                    Verdict::Behind => break None,
                }
            };
            let Some(maker) = maker else {
                self.catch_up(&pool).await.map_err(failed)?;
                if self.index.unjudged(key, true).contains(&(pool.clone(), address)) {
                    return Err(Error::Behind { key: key.clone(), pool, address });
                }
                continue;
            };
            if maker == Maker::Machine {
                let maker = says.program.as_deref();
                tracing::warn!(load_balancer = %key, pool, %address, maker, "recorded for the machine of that name");
            }
            self.index.note_maker(key, &pool, address, maker);
        }
        Ok(())
    }

    /// Tells the cache of the pool as it is now. Of one that is gone the watch alone tells.
    async fn catch_up(&self, pool: &str) -> kube::Result<()> {
        let api = Api::<RawObject<IPPool>>::all(self.client.clone());
        if let Some(fresh) = api.get_opt(pool).await? {
            self.caches.pools.saw(fresh);
            self.index.catch_up(&ObjectKey::new("", pool));
        }
        Ok(())
    }

    /// Whether there is a VM of the object's name. Where KubeVirt is not there, the server has none.
    async fn has_machine(&self, key: &ObjectKey) -> kube::Result<bool> {
        if self.caches.vms.get(key).is_some() {
            return Ok(true);
        }
        let api = Api::<VirtualMachine>::namespaced(self.client.clone(), &key.namespace);
        Ok(api.get_metadata_opt(&key.name).await?.is_some())
    }

    /// The addresses shown or asked for by the object that the pools record for other holders only, or for a machine of its
    /// name.
    fn lost_addresses(
        &self,
        key: &ObjectKey,
        of_machine: &[(String, IpAddr)],
        lb: Option<&RawObject<LoadBalancer>>,
        service: Option<&RawObject<Service>>,
    ) -> BTreeSet<IpAddr> {
        let own = key.to_string();
        let written = lb.and_then(|lb| lb.status.as_ref()?.address.parse().ok());
        let shown =
            service.into_iter().flat_map(|service| reuse::asked_for(service).chain(reuse::shown(service)));
        let is_lost = |address: &IpAddr| {
            let holders = self.index.holders_of(*address);
            let is_own = |(pool, holder): &(String, String)| {
                *holder == own && !of_machine.iter().any(|(of, has)| of == pool && has == address)
            };
            !holders.is_empty() && !holders.iter().any(is_own)
        };
        written.into_iter().chain(shown).filter(is_lost).collect()
    }
}

/// The holders of the address other than the object itself.
fn others(index: &PoolIndex, address: IpAddr, own: &str) -> Vec<String> {
    let holders = index.holders_of(address).into_iter().map(|(_, holder)| holder);
    holders.filter(|holder| *holder != own).collect()
}

/// The addresses that the object asks for and that pools record for others, each with one of those.
pub(super) fn rivals(index: &PoolIndex, key: &ObjectKey, lb: &LoadBalancer) -> Vec<(IpAddr, String)> {
    let own = key.to_string();
    let rival = |address: IpAddr| Some((address, others(index, address, &own).into_iter().next()?));
    requested::of(lb).addresses().filter_map(rival).collect()
}

/// The holder of the address in the fields for a second one.
pub(super) fn second_holder(
    index: &PoolIndex,
    pools: &Cache<RawObject<IPPool>>,
    key: &ObjectKey,
    lb: Option<&RawObject<LoadBalancer>>,
) -> RecordedHolder {
    recorded_holder(index, pools, key, lb.and_then(|lb| dual::second(lb)).as_ref())
}

/// Those addresses that the pools record for nobody but load balancers of the same namespace that are being deleted: the same
/// Service may have been made again. What somebody of another namespace does with a finalizer keeps nobody waiting.
pub(super) fn leaving(
    index: &PoolIndex,
    load_balancers: &Cache<RawObject<LoadBalancer>>,
    key: &ObjectKey,
    lb: &LoadBalancer,
) -> Vec<IpAddr> {
    let own = key.to_string();
    let goes = |holder: &String| {
        let other = ObjectKey::parse(holder).filter(|other| other.namespace == key.namespace);
        let other = other.and_then(|other| load_balancers.get(&other));
        other.is_some_and(|other| other.metadata.deletion_timestamp.is_some())
    };
    let is_leaving = |address: &IpAddr| {
        let others = others(index, *address, &own);
        !others.is_empty() && others.iter().all(goes)
    };
    requested::of(lb).addresses().filter(is_leaving).collect()
}

pub(super) fn recorded_holder(
    index: &PoolIndex,
    pools: &Cache<RawObject<IPPool>>,
    key: &ObjectKey,
    has: Option<&AllocatedAddress>,
) -> RecordedHolder {
    let Some(has) = has else { return RecordedHolder::Nobody };
    let own = key.to_string();
    let address = has.ip.parse::<IpAddr>().ok();
    // by address: another program may have written the key otherwise
    let holders = address.map(|address| index.holders_of(address)).unwrap_or_default();
    if pools.get(&ObjectKey::new("", &has.ip_pool)).is_none() {
        // the pool was removed by force, and its successor may have given the address
        let is_lost = holders.iter().any(|(_, holder)| *holder != own);
        return if is_lost { RecordedHolder::SomebodyElse } else { RecordedHolder::NoSuchPool };
    }
    match holders.iter().find(|(pool, _)| *pool == has.ip_pool) {
        None => RecordedHolder::Nobody,
        Some((_, holder)) if *holder == own => {
            let outranked = |address| index.counts_for_nothing(&has.ip_pool, address, &own);
            if address.is_some_and(outranked) { RecordedHolder::SomebodyElse } else { RecordedHolder::Us }
        }
        Some(_) => RecordedHolder::SomebodyElse,
    }
}
