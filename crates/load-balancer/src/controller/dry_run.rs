//! The decision about the address of one object from lists that were read once: for a program that explains it and
//! writes nothing. The same functions decide; a claim is tried on the pool that was read, and nobody hears of it.

use std::net::IpAddr;

use controller_kit::{Cache, ObjectKey, RawObject};
use harvester_api::{IPPool, LoadBalancer, condition};
use ip_pools::CheckedPool;
use ipam::{Family, Requirement};
use k8s_openapi::api::core::v1::Service;

use super::{
    address::{self, Decided, Decision, OneClaim},
    decide::service_names_address,
    families::NO_FIELD,
    requested::{self, Requested},
    see::{leaving, recorded_holder, rivals, second_holder},
};
use crate::{
    PoolChoice,
    caches::Caches,
    pool::{
        Order, PoolIndex, RECORD_LIMIT, Refused,
        batch::{self, Answer, Others},
    },
};

/// One list of each kind, of all namespaces.
#[derive(Clone)]
pub struct Lists {
    pub pools: Cache<RawObject<IPPool>>,
    pub load_balancers: Cache<RawObject<LoadBalancer>>,
    /// Those with the load balancer's label.
    pub services: Cache<RawObject<Service>>,
}

/// The address that an object has or would get, and every pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    pub requirement: Requirement,
    /// `spec.ipPool`; empty where the selectors of the pools decide.
    pub named: String,
    /// Every pool, in the order of their names.
    pub pools: Vec<PoolRow>,
    pub outcome: Outcome,
    /// The sentence about an address that the object asks for and does not get.
    pub note: Option<String>,
    /// What would be decided otherwise under a flag of the load balancer that was not given here.
    pub depends: Vec<(&'static str, Outcome)>,
}

/// One pool, towards the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRow {
    pub name: String,
    pub verdict: Verdict,
    /// 1 for the pool that the selectors choose; `None` where they do not choose it.
    pub place: Option<usize>,
    /// Addresses of its ranges.
    pub total: i64,
    /// Those that may be given out.
    pub available: i64,
}

/// The answer of a pool to the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It records this address for the object.
    Holds(IpAddr),
    /// It matches, and would give this address.
    Gives(IpAddr),
    /// It matches, and gives none; the sentence says why.
    Refuses(String),
    /// The rule that keeps the object from it.
    Rejected(String),
    /// The object names another pool.
    NotNamed,
}

/// The decision about the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has this address, from this pool; from none where DHCP gives it.
    Has { pool: String, address: String },
    /// The load balancer would record this address for it now.
    Gets { pool: String, address: IpAddr },
    /// There is none to be had; reason and sentence are those of the Ready condition.
    Waits { reason: &'static str, why: String },
}

/// Decides; nothing where there is no such object. `now` is in seconds since 1970. `pool_choice`: the flags of the load
/// balancer, as far as somebody knows them.
pub fn dry_run(lists: &Lists, key: &ObjectKey, now: i64, mut pool_choice: PoolChoice) -> Option<DryRun> {
    let lb = lists.load_balancers.get(key)?;
    pool_choice.enforce_named_pool_scope |= is_told_of_scope(&lb);
    let caches = Caches {
        load_balancers: lists.load_balancers.clone(),
        pools: lists.pools.clone(),
        services: lists.services.clone(),
        slices: Cache::empty(),
        vmis: Cache::empty(),
        vms: Cache::empty(),
    };
    let index = PoolIndex::follow(&caches);
    let trial = Trial { lists, index: &index, checked: &index.checked_pools(), holder: key.to_string(), now };
    let (named, recorded) = (lb.spec.ip_pool.clone(), trial.recorded(key));
    let seen = address::Seen {
        lb: &lb,
        pools: trial.checked,
        candidates: None,
        pool_choice,
        holder: recorded_holder(&index, &lists.pools, key, lb.pool_address().as_ref()),
        recorded: &recorded,
        service_names_address: service_names_address(lists.services.get(key).as_deref(), &lb),
        second_holder: second_holder(&index, &lists.pools, key, Some(&lb)),
        has_second_address_field: !is_told_of_no_field(&lb),
        refused: &[],
        rivals: &rivals(&index, key, &lb),
        leaving: &leaving(&index, &lists.load_balancers, key, &lb),
        // who made a record only managedFields tell, which lists do not keep
        foreign_records: &[],
    };
    let (choice, family) = (address::choice(&seen), address::requirement(&lb).family);
    let demanded = match requested::of(&lb) {
        Requested::Addresses { addresses, is_demand: true } => addresses.first().copied(),
        _ => None,
    };
    let verdict = |name: &str| {
        let held = index.recorded_for(key).into_iter().find(|(pool, _)| pool == name);
        let rejected = choice.rejected.iter().find(|(pool, _)| pool == name);
        match (held, rejected) {
            (Some((_, address)), _) => Verdict::Holds(address),
            _ if !named.is_empty() && named != name => Verdict::NotNamed,
            (None, Some((_, rejection))) if named.is_empty() => Verdict::Rejected(rejection.to_string()),
            _ => match trial.claim(name, (None, demanded, family), None) {
                Ok(address) => Verdict::Gives(address),
                Err(refused) => Verdict::Refuses(refused.to_string()),
            },
        }
    };
    let row = |checked: &CheckedPool| {
        let name = checked.pool.name.clone();
        let pool = lists.pools.get(&ObjectKey::new("", &name));
        let (total, available) = pool.and_then(|pool| ip_pools::counts(&pool)).unwrap_or_default();
        let place = choice.order.iter().position(|chosen| *chosen == name).filter(|_| named.is_empty());
        PoolRow { verdict: verdict(&name), place: place.map(|index| index + 1), name, total, available }
    };
    let pools = trial.checked.iter().map(row).collect();
    let (outcome, note) = trial.outcome(seen);
    let under = |(flag, pool_choice)| {
        let (other, _) = trial.outcome(address::Seen { pool_choice, ..seen });
        (other != outcome).then_some((flag, other))
    };
    let depends = with_one_more(pool_choice).into_iter().filter_map(under).collect();
    Some(DryRun { requirement: address::requirement(&lb), pools, outcome, note, named, depends })
}

/// These flags and one that is not among them.
fn with_one_more(given: PoolChoice) -> [(&'static str, PoolChoice); 3] {
    [
        ("fall-over-when-full", PoolChoice { fall_over_when_full: true, ..given }),
        ("strict-global-network", PoolChoice { strict_global_network: true, ..given }),
        ("enforce-named-pool-scope", PoolChoice { enforce_named_pool_scope: true, ..given }),
    ]
}

/// Whether the controller, which alone watches the CRD, has said that there are no fields for a second address.
fn is_told_of_no_field(lb: &LoadBalancer) -> bool {
    let conditions = lb.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition::ready(conditions).is_some_and(|ready| ready.message.contains(NO_FIELD))
}

/// The flags of the load balancer are not known here, but what it told the object is.
fn is_told_of_scope(lb: &LoadBalancer) -> bool {
    let conditions = lb.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    condition::ready(conditions).is_some_and(|ready| ready.reason == address::NOT_ALLOWED)
}

/// Claims on pools that were read, for one object.
struct Trial<'a> {
    lists: &'a Lists,
    index: &'a PoolIndex,
    checked: &'a [CheckedPool],
    holder: String,
    now: i64,
}

impl Trial<'_> {
    /// The records on which the object may count.
    fn recorded(&self, key: &ObjectKey) -> Vec<(String, IpAddr)> {
        let counts =
            |(pool, address): &(String, IpAddr)| !self.index.counts_for_nothing(pool, *address, &self.holder);
        self.index.recorded_for(key).into_iter().filter(counts).collect()
    }

    /// Claims from one pool after the other, as the controller does while they refuse; with the note about the address
    /// that is asked for and not had.
    fn outcome(&self, seen: address::Seen<'_>) -> (Outcome, Option<String>) {
        let mut refused: Vec<(String, Refused)> = Vec::new();
        loop {
            let Decided { decision, note, dual } =
                address::decide(&address::Seen { refused: &refused, ..seen });
            let outcome = match decision {
                Decision::Has { address, .. } => Outcome::Has { pool: address.ip_pool, address: address.ip },
                Decision::Wait { waiting, .. } => {
                    Outcome::Waits { reason: waiting.reason, why: waiting.message }
                }
                Decision::Claim { pool, known, exactly, .. } => match self.claim(
                    &pool,
                    (known, exactly, dual.family.or(address::requirement(seen.lb).family)),
                    dual.together,
                ) {
                    Ok(address) => Outcome::Gets { pool, address },
                    // the same refusal again would not change the decision
                    Err(why) if refused.contains(&(pool.clone(), why.clone())) => {
                        Outcome::Waits { reason: why.reason(), why: why.to_string() }
                    }
                    Err(why) => {
                        refused.push((pool, why));
                        continue;
                    }
                },
            };
            return (outcome, note);
        }
    }

    fn claim(
        &self,
        name: &str,
        (known, exactly, family): (Option<IpAddr>, Option<IpAddr>, Option<Family>),
        together: Option<OneClaim>,
    ) -> Result<IpAddr, Refused> {
        let no_such_pool = || Refused::NoSuchPool { pool: name.to_owned() };
        let pool = self.lists.pools.get(&ObjectKey::new("", name)).ok_or_else(no_such_pool)?;
        let checked = self.checked.iter().find(|checked| checked.pool.name == name);
        let seen = batch::Seen {
            pool: &pool,
            checked: checked.ok_or_else(no_such_pool)?,
            status_addresses: &self.index.status_addresses(name),
            orphans: &[],
            others: &Beside { index: self.index, pool: name },
            turns: ipam::Turns::default(),
            now: "",
            at: self.now,
            limit: RECORD_LIMIT,
        };
        let claim = address::order(&self.holder, known, exactly, family);
        let claim = match together {
            Some(other) => Order::ClaimBoth(Box::new([claim, other.order(&self.holder)])),
            None => claim,
        };
        let decision = batch::decide(seen, &[claim]);
        match decision.answers.into_iter().next().ok_or_else(no_such_pool)?? {
            Answer::RecordedAnew(address) => Ok(address),
            Answer::Done | Answer::Kept => {
                let record = ip_pools::record(&pool);
                let mut of_family = record
                    .of(&self.holder)
                    .filter(|ip| family.is_none_or(|family| family == Family::of(*ip)));
                let recorded = of_family.next().or_else(|| decision.recorded.first().copied());
                exactly.or(recorded).ok_or_else(no_such_pool)
            }
        }
    }
}

/// The addresses that are in use beside the record of `pool`.
struct Beside<'a> {
    index: &'a PoolIndex,
    pool: &'a str,
}

impl Others for Beside<'_> {
    fn have(&self, address: IpAddr, holder: &str) -> bool {
        self.index.is_taken(self.pool, address, holder)
    }

    fn outrank(&self, address: IpAddr, holder: &str) -> bool {
        self.index.counts_for_nothing(self.pool, address, holder)
    }

    fn used_by(&self, holder: &str) -> Vec<IpAddr> {
        self.index.used_by(holder)
    }

    fn cluster_of(&self, holder: &str) -> Option<String> {
        self.index.cluster_of(holder)
    }

    fn members_of(&self, cluster: &str) -> Vec<String> {
        self.index.members_of(cluster)
    }
}

#[cfg(test)]
mod tests;
