//! The address that a LoadBalancer object should have: a pure function from the object, the record and the pools.

pub(crate) mod dual;
mod scope;
mod selection;

pub(crate) use scope::NOT_ALLOWED;
pub(crate) use selection::choice;

use std::net::IpAddr;

use controller_kit::Explanation;
use harvester_api::{AllocatedAddress, Ipam, LoadBalancer, WorkloadType, annotations, names};
use ip_pools::CheckedPool;
use ipam::{Candidates, Choice, Family, Rejection, Requirement};
use kube::ResourceExt;

use super::{
    families::{self, Families},
    requested::{self, Obstacle, Requested},
};
use crate::{
    PoolChoice,
    pool::{Order, Refused, WaitingFor},
};

/// The holder of the address in the object's status, according to its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordedHolder {
    Us,
    SomebodyElse,
    #[default]
    Nobody,
    /// The pool is not there. The address stays with an object that uses it; no record could say otherwise.
    NoSuchPool,
}

impl RecordedHolder {
    /// Whether the object keeps the address: nobody else may have it.
    fn leaves_it(self) -> bool {
        matches!(self, Self::Us | Self::NoSuchPool)
    }
}

/// Everything that the address depends on.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) lb: &'a LoadBalancer,
    /// Every pool, with what speaks against it.
    pub(crate) pools: &'a [CheckedPool],
    /// Their index; without it each choice looks at all of them.
    pub(crate) candidates: Option<&'a Candidates>,
    pub(crate) pool_choice: PoolChoice,
    pub(crate) holder: RecordedHolder,
    /// The holder of the address in the fields for a second one.
    pub(crate) second_holder: RecordedHolder,
    /// Whether the CRD has those fields: the server drops unknown ones.
    pub(crate) has_second_address_field: bool,
    /// The addresses that the pools record for this object, without one that it is giving back, in the order of the pools'
    /// names.
    pub(crate) recorded: &'a [(String, IpAddr)],
    /// The object's Service names the status' address already.
    pub(crate) service_names_address: bool,
    /// The pools that refused this claim, in the order in which they were asked.
    pub(crate) refused: &'a [(String, Refused)],
    /// The addresses that the object asks for and that pools record for others, each with one of those.
    pub(crate) rivals: &'a [(IpAddr, String)],
    /// Those of them that only load balancers of the same namespace have that are being deleted.
    pub(crate) leaving: &'a [IpAddr],
    /// Those of the records that stay though the object has departed from them: another program made them.
    pub(crate) foreign_records: &'a [(String, IpAddr)],
}

/// The decision, and what the object is told about the address that it asks for and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) note: Option<String>,
    /// What an object of two families adds.
    pub(crate) dual: Dual,
}

/// What the decision about two addresses says more than that about one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dual {
    /// The family of the address to claim.
    pub(crate) family: Option<Family>,
    /// What the object has meanwhile is all that it must have.
    pub(crate) is_enough: bool,
    /// The record of each family that the object counts on, pool and address; `None`: it asks for one family.
    pub(crate) held: Option<Vec<(String, IpAddr)>>,
    /// What to claim for the other family together with the first claim, of the same pool.
    pub(crate) together: Option<OneClaim>,
    /// What to claim for the other family, if the pool of the first claim cannot be written.
    pub(crate) other_claim: Option<OneClaim>,
    /// The news of pools that may bring what is missing.
    pub(crate) waits_for: Option<WaitingFor>,
}

/// A claim for one family, as [`Decision::Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OneClaim {
    pub(crate) family: Family,
    pub(crate) pool: String,
    pub(crate) known: Option<IpAddr>,
    pub(crate) exactly: Option<IpAddr>,
}

impl OneClaim {
    pub(crate) fn order(&self, holder: &str) -> Order {
        let Self { family, known, exactly, .. } = self;
        order(holder, *known, *exactly, Some(*family))
    }
}

/// The order for a claim.
pub(crate) fn order(
    holder: &str,
    known: Option<IpAddr>,
    exactly: Option<IpAddr>,
    family: Option<Family>,
) -> Order {
    let (holder, claim) = (holder.to_owned(), Order::Claim { holder: holder.to_owned(), known, family });
    exactly.map_or(claim, |address| Order::ClaimExactly { holder, address })
}

impl Decided {
    fn noted(decision: Decision, note: Option<String>) -> Self {
        Self { decision, note, dual: Dual::default() }
    }
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Self {
        Self::noted(decision, None)
    }
}

/// The decision about the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The object has this address. `lost` is an address in its status that the pool gives to somebody else.
    Has { address: AllocatedAddress, lost: Option<String> },
    /// Ask this pool.
    Claim {
        pool: String,
        /// The address that the object believes to have.
        known: Option<IpAddr>,
        /// This address or none, beside whatever the object has.
        exactly: Option<IpAddr>,
        /// Stays until there is another: a record that somebody erased, or the spec names another pool now.
        meanwhile: Option<AllocatedAddress>,
        lost: Option<String>,
    },
    /// There is none to be had now.
    Wait {
        waiting: Explanation,
        /// Stays until there is another: the spec names another pool now.
        meanwhile: Option<AllocatedAddress>,
        lost: Option<String>,
        /// The pools that were asked.
        asked: Vec<String>,
        /// Nothing else than this address is waited for.
        until_free: Option<IpAddr>,
    },
}

impl Decision {
    fn claim_exactly(pool: String, address: IpAddr, Standing { meanwhile, lost }: Standing) -> Self {
        Self::Claim { pool, known: None, exactly: Some(address), meanwhile, lost }
    }

    /// What the object has now, or keeps until there is another.
    fn address(&self) -> Option<&AllocatedAddress> {
        match self {
            Self::Has { address, .. } => Some(address),
            Self::Claim { meanwhile, .. } | Self::Wait { meanwhile, .. } => meanwhile.as_ref(),
        }
    }

    /// The address in the object's status that the pool gives to somebody else.
    fn lost(&self) -> Option<&str> {
        match self {
            Self::Has { lost, .. } | Self::Claim { lost, .. } | Self::Wait { lost, .. } => lost.as_deref(),
        }
    }
}

/// Decides.
pub(crate) fn decide(seen: &Seen<'_>) -> Decided {
    let requested = requested::of(seen.lb);
    if seen.lb.spec.ipam() == Ipam::Dhcp {
        let ip = names::DHCP_ADDRESS.to_owned();
        let address = AllocatedAddress { ip, ..AllocatedAddress::default() };
        let decision = Decision::Has { address, lost: lost(seen) };
        let notes = [families::not_with_dhcp(seen.lb), requested::not_with_dhcp(&requested)];
        return Decided::noted(decision, joined(notes));
    }
    let Families { first, either, note, obstacle, two } = families::of(seen.lb);
    if let Some(two) = two.filter(|_| seen.has_second_address_field) {
        return dual::decide(seen, two);
    }
    let only_ipv6 = first == Some(Family::V6) && !either;
    if let (true, Some(lb)) = (only_ipv6, dual::with_ipv6_pool(seen.lb)) {
        return dual::from_ipv6_pool(&Seen { lb: &lb, ..*seen });
    }
    if let Some(kept) = dual::kept(seen) {
        return dual::beside(seen, kept, only_ipv6);
    }
    if let Some(erased) = dual::erased(seen) {
        return dual::asked_again(seen, erased, only_ipv6);
    }
    if dual::second(seen.lb).is_some() {
        return dual::without_lost(seen);
    }
    if let Some(Explanation { reason, message }) = obstacle {
        let waiting = Explanation::new(reason, message + &stays(&standing(seen).meanwhile));
        return wait(seen, waiting, Vec::new(), None).into();
    }
    if let Some(waiting) = scope::obstacle(seen) {
        return wait(seen, waiting, Vec::new(), None).into();
    }
    let Decided { decision, note: also, .. } = as_requested(seen, requested, first, either);
    let no_ipv6 = || families::unused_ipv6_pool(seen.lb);
    Decided::noted(decision, joined([note.or_else(no_ipv6), also]))
}

fn as_requested(seen: &Seen<'_>, requested: Requested, family: Option<Family>, either: bool) -> Decided {
    match requested {
        Requested::Nothing => any(seen).into(),
        Requested::Unreadable { why, is_demand: true } => {
            let waiting =
                Explanation::new("InvalidRequestedAddress", why + &stays(&standing(seen).meanwhile));
            wait(seen, waiting, Vec::new(), None).into()
        }
        Requested::Unreadable { why, is_demand: false } => Decided::noted(any(seen), Some(why)),
        Requested::Addresses { addresses, is_demand } => {
            let is_of = |address: &&IpAddr| family.is_none_or(|family| family == Family::of(**address));
            let had = addresses.iter().find(|address| either && has_already(seen, **address).is_some());
            match (had.or_else(|| addresses.iter().find(is_of)), addresses.first()) {
                (Some(address), _) => this(seen, *address, is_demand),
                (None, Some(other)) => {
                    not_to_be_had(seen, *other, is_demand, &Obstacle::OtherFamily, Vec::new())
                }
                (None, None) => any(seen).into(),
            }
        }
    }
}

/// The address that the object asks for, if it can be had.
fn this(seen: &Seen<'_>, address: IpAddr, is_demand: bool) -> Decided {
    let follows = follows(seen).filter(|now| *now != address);
    if let (None, Some(has)) = (follows, has_already(seen, address)) {
        return Decision::Has { address: has, lost: lost(seen) }.into();
    }
    let standing = standing(seen);
    let answered = standing.meanwhile.as_ref().and_then(|_| requested::refused_wish(seen.lb, address));
    if let (false, Some(note)) = (is_demand, answered) {
        return Decided::noted(any(seen), Some(note));
    }
    // of an object that had two addresses before the CRD lost the fields for a second, the one of the other family stays
    let had_two = families::of(seen.lb).two.is_some();
    let counts = |record: &&(String, IpAddr)| {
        !seen.foreign_records.contains(record) && (!had_two || Family::of(record.1) == Family::of(address))
    };
    if seen.recorded.iter().filter(counts).count() > 1 {
        // whoever asks for one after the other holds no more than two
        let why =
            follows.map_or_else(|| "waiting until former addresses are given back".to_owned(), until_shown);
        let why = format!("{why}, then for address {address}");
        let waiting = Explanation::new("ReleaseUnderWay", why + &stays(&standing.meanwhile));
        return if is_demand { wait(seen, waiting, Vec::new(), None) } else { any(seen) }.into();
    }
    let (obstacle, asked) = match seek(seen, address) {
        Ok(pool) => return Decision::claim_exactly(pool, address, standing).into(),
        Err(refused) => refused,
    };
    not_to_be_had(seen, address, is_demand, &obstacle, asked)
}

fn not_to_be_had(
    seen: &Seen<'_>,
    address: IpAddr,
    is_demand: bool,
    obstacle: &Obstacle,
    asked: Vec<String>,
) -> Decided {
    // a Service that was made again wishes for what its former object still has
    let comes_free = seen.lb.pool_address().is_none()
        && matches!(obstacle, Obstacle::InUse(_))
        && seen.leaving.contains(&address)
        && seen.recorded.is_empty();
    if !is_demand && !comes_free {
        let note = Some(requested::wish_refused(seen.lb, address, obstacle));
        return Decided::noted(any(seen), note);
    }
    let why = requested::demand_waits(seen.lb, address, obstacle, &stays(&standing(seen).meanwhile));
    let until_free = (!matches!(obstacle, Obstacle::Pool(..))).then_some(address);
    wait(seen, Explanation::new(obstacle.reason(), why), asked, until_free).into()
}

/// The pool to ask for this address.
///
/// # Errors
/// Why it is not to be had, and the pools that were asked.
fn seek(seen: &Seen<'_>, address: IpAddr) -> Result<String, (Obstacle, Vec<String>)> {
    let wanted = seen.lb.spec.ip_pool.as_str();
    let named = (!wanted.is_empty()).then(|| wanted.to_owned());
    let (allowed, draining) = match &named {
        Some(named) => (vec![named.clone()], Vec::new()),
        None => {
            let Choice { order, rejected } = choice(seen);
            let drains = |(_, why): &(String, Rejection)| *why == Rejection::Draining;
            (order, rejected.into_iter().filter(drains).map(|(pool, _)| pool).collect())
        }
    };
    let ranges = |pool: &String| checked(seen.pools, pool).map(|checked| &checked.pool.ranges);
    let offers = |pool: &String| ranges(pool).is_some_and(|ranges| ranges.offers(address));
    let gives = |pool: &String| ranges(pool).is_some_and(|ranges| ranges.gives(address));
    let drains = allowed.iter().chain(&draining).any(offers);
    let pools: Vec<_> = allowed.into_iter().filter(gives).collect();
    if pools.is_empty() {
        let obstacle = if drains { Obstacle::Draining } else { Obstacle::NotInPool(named) };
        return Err((obstacle, Vec::new()));
    }
    if let Some((_, holder)) = seen.rivals.iter().find(|(rival, _)| *rival == address) {
        return Err((Obstacle::InUse(Some(holder.clone())), Vec::new()));
    }
    let mut obstacle = Obstacle::NotInPool(named);
    for pool in &pools {
        let concerns = |why: &Refused| match why.exact_address() {
            Some(other) => other == address,
            None => !matches!(why, Refused::Exhausted { .. }),
        };
        let refused = seen.refused.iter().find(|(by, why)| by == pool && concerns(why));
        let Some((_, why)) = refused else { return Ok(pool.clone()) };
        match why {
            Refused::AddressInUse { .. } => obstacle = Obstacle::InUse(None),
            Refused::AddressNotInPool { .. } => {}
            Refused::AddressDraining { .. } => obstacle = Obstacle::Draining,
            Refused::AddressResting { until, .. } => obstacle = Obstacle::Resting(until.clone()),
            other => obstacle = Obstacle::Pool(other.reason(), other.to_string()),
        }
    }
    Err((obstacle, pools))
}

/// The address to which kube-vip in the guest may be moving now: the object has it, and shows a former one that is
/// recorded too. To go back before the former one has left the status would give away what kube-vip is just taking.
fn follows(seen: &Seen<'_>) -> Option<IpAddr> {
    let is_recorded = |address: &IpAddr| seen.recorded.iter().any(|(_, recorded)| recorded == address);
    let ip = |text: &str| text.parse().ok().filter(is_recorded);
    let shown = ip(&seen.lb.status.as_ref()?.address)?;
    let now = ip(&seen.lb.pool_address()?.ip)?;
    (seen.lb.spec.workload() == WorkloadType::Cluster && now != shown).then_some(now)
}

fn until_shown(address: IpAddr) -> String {
    format!("waiting until kube-vip in the guest announces address {address}")
}

/// The address, if the object has it where its specification allows that.
fn has_already(seen: &Seen<'_>, address: IpAddr) -> Option<AllocatedAddress> {
    let wanted = seen.lb.spec.ip_pool.as_str();
    let allowed = |pool: &str| wanted.is_empty() || wanted == pool;
    let has = seen.lb.pool_address();
    let has = has.filter(|has| allowed(&has.ip_pool) && has.ip.parse() == Ok(address));
    if seen.holder.leaves_it() && has.is_some() {
        return has.filter(|_| is_trusted(seen));
    }
    let is_recorded = |(pool, recorded): &&(String, IpAddr)| *recorded == address && allowed(pool);
    let (pool, _) = seen.recorded.iter().find(is_recorded)?;
    recorded_in(seen, pool, Some(address))
}

/// What the object has while it waits for something else.
struct Standing {
    meanwhile: Option<AllocatedAddress>,
    lost: Option<String>,
}

pub(crate) fn joined<const N: usize>(notes: [Option<String>; N]) -> Option<String> {
    let notes: Vec<_> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The news of pools that may end a wait.
pub(crate) fn waits_for(lb: &LoadBalancer, asked: Vec<String>, until_free: Option<IpAddr>) -> WaitingFor {
    match until_free {
        Some(address) => WaitingFor::Address(address),
        None => WaitingFor::after(&lb.spec.ip_pool, asked),
    }
}

/// The address that stands: that of the status, as record and network show it; else what the pools record.
fn standing(seen: &Seen<'_>) -> Standing {
    let recorded =
        || seen.recorded.first().and_then(|(pool, address)| recorded_in(seen, pool, Some(*address)));
    Standing { meanwhile: shown(seen).or_else(recorded), lost: lost(seen) }
}

/// The object waits, and keeps what stands. A record that somebody erased is asked for again, exactly.
fn wait(seen: &Seen<'_>, waiting: Explanation, asked: Vec<String>, until_free: Option<IpAddr>) -> Decision {
    let standing = standing(seen);
    let erased = seen.lb.pool_address().filter(|_| seen.holder == RecordedHolder::Nobody);
    let is_refused = |pool: &str, address: IpAddr| {
        let concerns = |why: &Refused| why.exact_address().is_none_or(|other| other == address);
        seen.refused.iter().any(|(by, why)| by == pool && concerns(why))
    };
    if let (Some(has), []) = (erased, seen.recorded)
        && let Ok(former) = has.ip.parse::<IpAddr>()
        && checked(seen.pools, &has.ip_pool).is_some_and(|checked| checked.pool.ranges.offers(former))
        && !is_refused(&has.ip_pool, former)
    {
        return Decision::claim_exactly(has.ip_pool, former, standing);
    }
    let Standing { meanwhile, lost } = standing;
    Decision::Wait { waiting, meanwhile, lost, asked, until_free }
}

fn stays(meanwhile: &Option<AllocatedAddress>) -> String {
    let text = |address: &AllocatedAddress| {
        format!("; address {} of pool {} stays until then", address.ip, address.ip_pool)
    };
    meanwhile.as_ref().map(text).unwrap_or_default()
}

fn lost(seen: &Seen<'_>) -> Option<String> {
    let has = seen.lb.pool_address().filter(|_| seen.holder == RecordedHolder::SomebodyElse);
    has.map(|has| has.ip)
}

/// Whether the object has the address of its status.
fn is_trusted(seen: &Seen<'_>) -> bool {
    match seen.holder {
        RecordedHolder::Us => true,
        RecordedHolder::NoSuchPool => {
            seen.lb.spec.workload() == WorkloadType::Cluster || seen.service_names_address
        }
        RecordedHolder::SomebodyElse | RecordedHolder::Nobody => false,
    }
}

/// The address of the status, unless it is somebody else's, or nobody's and not on the network.
fn shown(seen: &Seen<'_>) -> Option<AllocatedAddress> {
    let has = seen.lb.pool_address()?;
    // a record that somebody erased takes no address from the network: the pool gets it back from the object
    let is_shown = match seen.lb.spec.workload() {
        // without a Service that names it the address has nobody who announces it, and may be another's by now
        WorkloadType::Vm => seen.service_names_address,
        WorkloadType::Cluster => seen.lb.status.as_ref().is_some_and(|status| status.address == has.ip),
    };
    (is_trusted(seen) || seen.holder == RecordedHolder::Nobody && is_shown).then_some(has)
}

/// Any address will do.
fn any(seen: &Seen<'_>) -> Decision {
    let (lb, lost) = (seen.lb, lost(seen));
    let wanted = lb.spec.ip_pool.as_str();
    let Some(has) = lb.pool_address() else {
        // somebody may have named another pool between the record and the status
        let Standing { meanwhile, lost } = standing(seen);
        return fresh(seen, meanwhile.filter(|address| admits(seen, &address.ip)), lost);
    };
    let meanwhile = shown(seen);
    // an object of VMs asks for IPv4 by its type, and keeps what an earlier version gave it
    let may_stay = lb.spec.workload() == WorkloadType::Vm || families::of(lb).either;
    let is_of_family = may_stay || admits(seen, &has.ip);
    if !wanted.is_empty() && wanted != has.ip_pool {
        return from_pools(seen, vec![wanted.to_owned()], None, meanwhile, lost);
    }
    if !is_of_family {
        return fresh(seen, meanwhile, lost);
    }
    if is_trusted(seen) {
        return Decision::Has { address: has, lost: None };
    }
    if seen.holder == RecordedHolder::Nobody && checked(seen.pools, &has.ip_pool).is_some() {
        let known = has.ip.parse().ok();
        return from_pools(seen, vec![has.ip_pool], known, meanwhile, None);
    }
    fresh(seen, None, Some(has.ip))
}

/// Whether the address is of the family that the object asks for.
fn admits(seen: &Seen<'_>, ip: &str) -> bool {
    let family = families::of(seen.lb).first;
    family.is_none_or(|family| ip.parse().is_ok_and(|address| Family::of(address) == family))
}

fn fresh(seen: &Seen<'_>, meanwhile: Option<AllocatedAddress>, lost: Option<String>) -> Decision {
    let lb = seen.lb;
    if !lb.spec.ip_pool.is_empty() {
        return from_pools(seen, vec![lb.spec.ip_pool.clone()], None, meanwhile, lost);
    }
    let recorded = seen.recorded.iter().find(|(_, address)| admits(seen, &address.to_string()));
    if let Some((recorded, _)) = recorded {
        return from_pools(seen, vec![recorded.clone()], None, meanwhile, lost);
    }
    let order = selection::order(seen);
    if order.is_empty() {
        let why = choice(seen).explain(&requirement(lb)) + &stays(&meanwhile);
        let waiting = Explanation::new("NoMatchingPool", why);
        return Decision::Wait { waiting, meanwhile, lost, asked: Vec::new(), until_free: None };
    }
    from_pools(seen, order, None, meanwhile, lost)
}

/// The address that one of `pools` records for the object; else a claim to the first one that has not refused it.
fn from_pools(
    seen: &Seen<'_>,
    pools: Vec<String>,
    known: Option<IpAddr>,
    meanwhile: Option<AllocatedAddress>,
    lost: Option<String>,
) -> Decision {
    if let Some(now) = follows(seen) {
        let waiting = Explanation::new("ReleaseUnderWay", until_shown(now) + &stays(&meanwhile));
        return Decision::Wait { waiting, meanwhile, lost, asked: Vec::new(), until_free: None };
    }
    let first = pools.first().map(String::as_str).unwrap_or_default();
    let of_family = |address: &AllocatedAddress| admits(seen, &address.ip);
    if let Some(address) = recorded_in(seen, first, known).filter(of_family) {
        return Decision::Has { address, lost };
    }
    let (mut refused, mut asked) = (None, Vec::new());
    for pool in pools {
        // that it does not give one address says nothing about others
        let about_all = |(by, why): &&(String, Refused)| *by == pool && why.exact_address().is_none();
        let Some((_, why)) = seen.refused.iter().find(about_all) else {
            return Decision::Claim { pool, known, exactly: None, meanwhile, lost };
        };
        asked.push(pool);
        refused.get_or_insert(why);
        // a full pool is waited for, unless a flag says otherwise; a full record, or a pool that went away meanwhile, is passed over
        if matches!(why, Refused::Exhausted { .. } | Refused::QuotaExceeded { .. })
            && !seen.pool_choice.fall_over_when_full
        {
            break;
        }
    }
    let (reason, why) = refused.map_or_else(Default::default, |why| (why.reason(), why.to_string()));
    let waiting = Explanation::new(reason, why + &stays(&meanwhile));
    Decision::Wait { waiting, meanwhile, lost, asked, until_free: None }
}

/// The record is the answer to a claim: the address that `pool` records for the object, if it does. Of several, the one
/// that the object believes to have, else one that the pool still offers, else the lowest.
fn recorded_in(seen: &Seen<'_>, pool: &str, known: Option<IpAddr>) -> Option<AllocatedAddress> {
    let ranges = checked(seen.pools, pool).map(|checked| &checked.pool.ranges);
    let offered = |address: IpAddr| ranges.is_some_and(|ranges| ranges.offers(address));
    let own = seen.recorded.iter().filter(|(recorded, _)| recorded == pool).map(|(_, address)| *address);
    let rank = |address: &IpAddr| {
        (!admits(seen, &address.to_string()), Some(*address) != known, !offered(*address), *address)
    };
    let address = own.min_by_key(rank)?;
    let range = ranges.and_then(|ranges| ranges.covering(address));
    Some(AllocatedAddress {
        ip_pool: pool.to_owned(),
        ip: address.to_string(),
        mask: range.map(|range| range.mask().to_string()).unwrap_or_default(),
        gateway: range.and_then(|range| range.gateway()).map(|ip| ip.to_string()).unwrap_or_default(),
        ..AllocatedAddress::default()
    })
}

fn checked<'a>(pools: &'a [CheckedPool], name: &str) -> Option<&'a CheckedPool> {
    pools.iter().find(|checked| checked.pool.name == name)
}

/// The requirement in the object's annotations. An object that the webhook never saw has none.
pub(crate) fn requirement(lb: &LoadBalancer) -> Requirement {
    // `*` is a word of pools' scopes: an object that says it would match the scopes of everybody
    let text =
        |key: &str| lb.annotations().get(key).filter(|value| *value != "*").cloned().unwrap_or_default();
    let namespace = text(annotations::LB_NAMESPACE);
    Requirement {
        network: text(annotations::LB_NETWORK),
        project: text(annotations::LB_PROJECT),
        namespace: if namespace.is_empty() { lb.namespace().unwrap_or_default() } else { namespace },
        cluster: text(annotations::LB_CLUSTER),
        family: families::of(lb).first,
    }
}

#[cfg(test)]
mod tests;
