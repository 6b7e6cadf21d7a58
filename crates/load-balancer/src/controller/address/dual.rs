//! The addresses of an object of two families: each is decided as if the object asked for its family alone.
//!
//! The IPv6 address stands in the fields for a second address, and in those for the first while there is no IPv4 address. It
//! stays until the object goes or its record is lost: `status.address`, which tells when an address is announced no more, has
//! room for one, and that is the IPv4 address.

use std::net::IpAddr;

use controller_kit::Explanation;
use harvester_api::{AllocatedAddress, LoadBalancer, annotations};
use ipam::Family;
use kube::ResourceExt as _;

use super::{Decided, Decision, Dual, OneClaim, RecordedHolder, Seen, joined, lost};
use crate::{
    controller::{families::Two, requested},
    pool::{Refused, WaitingFor},
};

/// The address in the fields for a second one, in those for the first.
pub(crate) fn second(lb: &LoadBalancer) -> Option<AllocatedAddress> {
    let has = lb.status.as_ref()?.allocated_address.as_ref()?;
    let (pool, ip) = has.ipv6()?;
    let is_there = !pool.is_empty() && ip.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6());
    is_there.then(|| AllocatedAddress {
        ip_pool: pool.to_owned(),
        ip: ip.to_owned(),
        mask: has.ipv6_mask.clone(),
        gateway: has.ipv6_gateway.clone(),
        ..AllocatedAddress::default()
    })
}

/// The pool that the object names for its address of this family, if it names one.
pub(crate) fn named_pool(lb: &LoadBalancer, family: Option<Family>) -> &str {
    match family {
        Some(Family::V6) if !lb.spec.ipv6_pool.is_empty() => &lb.spec.ipv6_pool,
        _ => &lb.spec.ip_pool,
    }
}

/// An object that asks for IPv6 alone, as if it named its pool for that in the field for any address; `None`: it names none.
pub(super) fn with_ipv6_pool(lb: &LoadBalancer) -> Option<LoadBalancer> {
    if lb.spec.ipv6_pool.is_empty() {
        return None;
    }
    let mut one = lb.clone();
    one.spec.ip_pool = std::mem::take(&mut one.spec.ipv6_pool);
    Some(one)
}

/// Decides about such an object, and says for which pool it waits.
pub(super) fn from_ipv6_pool(seen: &Seen<'_>) -> Decided {
    let mut decided = super::decide(seen);
    match &decided.decision {
        Decision::Claim { .. } => decided.dual.family = decided.dual.family.or(Some(Family::V6)),
        Decision::Wait { asked, until_free, .. } => {
            let waits_for = super::waits_for(seen.lb, asked.clone(), *until_free);
            decided.dual.waits_for.get_or_insert(waits_for);
        }
        Decision::Has { .. } => {}
    }
    decided
}

/// Decides about both.
pub(super) fn decide(seen: &Seen<'_>, two: Two) -> Decided {
    combined(seen, two, &[Family::V4, Family::V6].map(|family| of_family(seen, family)))
}

/// The second address of an object that asks for one now: it stays, because it may be announced.
pub(super) fn kept(seen: &Seen<'_>) -> Option<AllocatedAddress> {
    second(seen.lb).filter(|_| seen.second_holder.leaves_it())
}

/// Decides about the address of an object that asks for one now, and whose second one is not to be had any more.
pub(super) fn without_lost(seen: &Seen<'_>) -> Decided {
    let lb = with_first_alone(seen.lb);
    let mut decided = super::decide(&Seen { lb: &lb, second_holder: RecordedHolder::Nobody, ..*seen });
    let (Decision::Has { lost, .. } | Decision::Claim { lost, .. } | Decision::Wait { lost, .. }) =
        &mut decided.decision;
    let has_another = seen.second_holder == RecordedHolder::SomebodyElse;
    *lost = lost.take().or_else(|| second(seen.lb).filter(|_| has_another).map(|second| second.ip));
    decided
}

fn with_first_alone(lb: &LoadBalancer) -> LoadBalancer {
    let mut lb = lb.clone();
    if let Some(has) = lb.status.as_mut().and_then(|status| status.allocated_address.as_mut()) {
        *has = first_alone(has);
    }
    lb
}

/// Decides about the address of an object that keeps a second one. `only_ipv6`: that one is all that it asks for.
pub(super) fn beside(seen: &Seen<'_>, kept: AllocatedAddress, only_ipv6: bool) -> Decided {
    if only_ipv6 {
        let note = requested::ipv6_stays(seen.lb, &kept);
        return Decided::noted(Decision::Has { address: kept, lost: lost(seen) }, note);
    }
    let mut lb = with_first_alone(seen.lb);
    // it may name the pool of the one that is kept
    lb.spec.ipv6_pool.clear();
    let is_kept = |(pool, address): &&(String, IpAddr)| {
        *pool == kept.ip_pool && kept.ip.parse::<IpAddr>().ok() == Some(*address)
    };
    let recorded: Vec<_> = seen.recorded.iter().filter(|record| !is_kept(record)).cloned().collect();
    let mut decided =
        super::decide(&Seen { lb: &lb, recorded: &recorded, second_holder: RecordedHolder::Nobody, ..*seen });
    match &mut decided.decision {
        Decision::Has { address, .. } => {
            let first = (address.ip != kept.ip).then(|| address.clone());
            *address = merged(first, Some(kept.clone())).unwrap_or(kept);
        }
        Decision::Claim { meanwhile, .. } | Decision::Wait { meanwhile, .. } => {
            let first = meanwhile.take().filter(|first| first.ip != kept.ip);
            *meanwhile = merged(first, Some(kept));
        }
    }
    decided
}

/// The second address of an object that asks for one now, where somebody erased its record: it may be announced, so that it
/// stays and is asked for again, unless its pool has refused just that.
pub(super) fn erased(seen: &Seen<'_>) -> Option<AllocatedAddress> {
    let second = second(seen.lb).filter(|_| seen.second_holder == RecordedHolder::Nobody)?;
    let address: IpAddr = second.ip.parse().ok()?;
    let offers = super::checked(seen.pools, &second.ip_pool)?.pool.ranges.offers(address);
    let is_refused = seen.refused.iter().any(|(_, why)| why.exact_address() == Some(address));
    (offers && !is_refused).then_some(second)
}

/// As [`beside`], and then claims the record of the address that is kept.
pub(super) fn asked_again(seen: &Seen<'_>, erased: AllocatedAddress, only_ipv6: bool) -> Decided {
    let decided = beside(seen, erased.clone(), only_ipv6);
    let is_refused = seen.refused.iter().any(|(by, _)| *by == erased.ip_pool);
    let (meanwhile, lost, is_enough) = match &decided.decision {
        // one after the other
        Decision::Claim { .. } => return decided,
        Decision::Has { address, lost } => (Some(address.clone()), lost.clone(), true),
        Decision::Wait { meanwhile, lost, .. } => (meanwhile.clone(), lost.clone(), false),
    };
    if is_refused {
        // the pool is full of records, or cannot be used: it keeps the address from others
        let waits_for = is_enough.then_some(WaitingFor::Named(erased.ip_pool));
        return Decided { dual: Dual { waits_for, ..decided.dual }, ..decided };
    }
    let exactly = erased.ip.parse().ok();
    let decision = Decision::Claim { pool: erased.ip_pool, known: None, exactly, meanwhile, lost };
    let dual = Dual { family: Some(Family::V6), is_enough, ..decided.dual };
    Decided { decision, note: decided.note, dual }
}

/// The decision about the address of one family.
struct One {
    family: Family,
    decided: Decided,
    /// The object demands an address of this family and none of the other.
    is_demanded: bool,
    waits_for: Option<WaitingFor>,
}

impl One {
    /// The record that the decision counts on; while it counts on none, the first one of the family.
    fn held(&self, seen: &Seen<'_>) -> Option<(String, IpAddr)> {
        let address = self.decided.decision.address();
        let counted = address.and_then(|has| Some((has.ip_pool.clone(), has.ip.parse().ok()?)));
        let is_of = |record: &&(String, IpAddr)| Family::of(record.1) == self.family;
        counted.or_else(|| seen.recorded.iter().find(is_of).cloned())
    }
}

fn of_family(seen: &Seen<'_>, family: Family) -> One {
    let first = seen.lb.pool_address().map(|has| first_alone(&has));
    let is_of = |has: &AllocatedAddress| has.ip.parse().is_ok_and(|ip| Family::of(ip) == family);
    let (has, holder) = match (first.filter(is_of), family) {
        (Some(first), _) => (Some(first), seen.holder),
        (None, Family::V6) => (second(seen.lb), seen.second_holder),
        (None, Family::V4) => (None, RecordedHolder::Nobody),
    };
    let is_demanded = requested::demands_only(seen.lb, family);
    if let (Family::V6, Some(address), true) = (family, &has, holder.leaves_it()) {
        let decision = Decision::Has { address: address.clone(), lost: None };
        let decided = Decided::noted(decision, requested::ipv6_stays(seen.lb, address));
        return One { family, decided, is_demanded, waits_for: None };
    }
    let lb = alone(seen.lb, family, has, holder);
    let recorded: Vec<_> =
        seen.recorded.iter().filter(|(_, address)| Family::of(*address) == family).cloned().collect();
    let refused: Vec<_> = seen.refused.iter().filter(|(_, why)| why.concerns(family)).cloned().collect();
    let decided = super::decide(&Seen {
        lb: &lb,
        holder,
        second_holder: RecordedHolder::Nobody,
        recorded: &recorded,
        refused: &refused,
        ..*seen
    });
    let waits_for = match &decided.decision {
        Decision::Wait { asked, until_free, .. } => Some(super::waits_for(&lb, asked.clone(), *until_free)),
        Decision::Has { .. } | Decision::Claim { .. } => None,
    };
    One { family, decided, is_demanded, waits_for }
}

/// The object as if it asked for this family alone and had this address alone.
fn alone(
    lb: &LoadBalancer,
    family: Family,
    has: Option<AllocatedAddress>,
    holder: RecordedHolder,
) -> LoadBalancer {
    let mut alone = lb.clone();
    alone.spec.ip_pool = named_pool(lb, Some(family)).to_owned();
    alone.spec.ipv6_pool.clear();
    alone.spec.ip_family_policy = None;
    // one whose record somebody erased may be announced: it is asked for again, whatever the object asks for
    let erased = has.as_ref().filter(|_| family == Family::V6 && holder == RecordedHolder::Nobody);
    if let Some(has) = erased {
        alone.spec.ip_pool.clone_from(&has.ip_pool);
    }
    let map = alone.annotations_mut();
    map.remove(annotations::IP_FAMILY_POLICY);
    map.insert(annotations::IP_FAMILIES.to_owned(), family.to_string());
    for key in [annotations::REQUESTED_IP, annotations::REQUESTED_IP_STRICT] {
        if let Some(text) = map.remove(key)
            && erased.is_none()
            && let Some(text) = requested::of_family(text, family)
        {
            map.insert(key.to_owned(), text);
        }
    }
    if let Some(status) = &mut alone.status {
        // an address of the other family was announced together with that of this one; one of this family may be a former
        // one, which kube-vip is just leaving
        let is_told = status.address.parse().is_ok_and(|ip| Family::of(ip) == family);
        if let (Some(has), false) = (&has, is_told || status.address.is_empty()) {
            status.address.clone_from(&has.ip);
        }
        status.allocated_address = has;
    }
    alone
}

fn combined(seen: &Seen<'_>, two: Two, both: &[One; 2]) -> Decided {
    let is_required = two == Two::Required;
    let has_both = both.iter().all(|one| matches!(one.decided.decision, Decision::Has { .. }));
    let is_shown = |address: &AllocatedAddress| {
        seen.lb.pool_addresses().any(|(_, shown)| address.ip.parse() == Ok(shown))
    };
    // while one of two that are required is missing, the other is held, and shown only if it was before
    let may_show = |one: &One| {
        one.decided.decision.address().cloned().filter(|it| !is_required || has_both || is_shown(it))
    };
    let mut held: Vec<_> = both.iter().filter_map(|one| one.held(seen)).collect();
    let lacks_one = both.iter().any(|one| matches!(one.decided.decision, Decision::Wait { .. }));
    if is_required && lacks_one {
        // half of what a quota has no room for helps nobody: others of the tenant may need no more
        held.retain(|(pool, _)| !is_beyond_quota(seen, pool));
    }
    let held = Some(held);
    let [v4, v6] = both;
    let meanwhile = merged(may_show(v4), may_show(v6));
    let lost = both.iter().filter_map(|one| one.decided.decision.lost()).collect::<Vec<_>>();
    let lost = (!lost.is_empty()).then(|| lost.join(" and "));
    let is_enough = !is_required && meanwhile.is_some();
    let notes = [
        v4.decided.note.clone(),
        v6.decided.note.clone().filter(|note| Some(note) != v4.decided.note.as_ref()),
    ];
    let note = joined(notes);
    let lacking: Vec<_> = both.iter().filter_map(Lacking::of).collect();
    let mut claims = both.iter().filter_map(|one| match &one.decided.decision {
        Decision::Claim { pool, known, exactly, .. } => {
            Some(OneClaim { family: one.family, pool: pool.clone(), known: *known, exactly: *exactly })
        }
        Decision::Has { .. } | Decision::Wait { .. } => None,
    });
    if let Some(OneClaim { family, pool, known, exactly }) = claims.next() {
        // the claim may be denied for long, and meanwhile the other family's pool may have an address
        let waits_for = lacking.into_iter().next().map(|lacking| lacking.waits_for);
        let shows_nothing = seen.lb.pool_addresses().next().is_none();
        let is_one_write = |other: &OneClaim| is_required && shows_nothing && other.pool == pool;
        let (together, other_claim) = match claims.next() {
            Some(other) if is_one_write(&other) => (Some(other), None),
            other => (None, other),
        };
        let dual = Dual { family: Some(family), is_enough, held, together, other_claim, waits_for };
        let decision = Decision::Claim { pool, known, exactly, meanwhile, lost };
        return Decided { decision, note, dual };
    }
    let text = lacking.iter().map(Lacking::text).collect::<Vec<_>>().join("; ");
    let waits_for = lacking.iter().map(|lacking| lacking.waits_for.clone()).reduce(WaitingFor::or);
    let dual = Dual { waits_for, held, ..Dual::default() };
    match (meanwhile, lacking.first()) {
        (Some(address), None) => Decided { decision: Decision::Has { address, lost }, note, dual },
        (Some(address), Some(_)) if !is_required && lacking.iter().all(|lacking| !lacking.is_needed) => {
            let note = joined([Some(text), note]);
            Decided { decision: Decision::Has { address, lost }, note, dual }
        }
        (meanwhile, lacking) => {
            let reason = lacking.map_or("SettingUp", |lacking| lacking.why.reason);
            let text = if is_required { format!("two addresses are required: {text}") } else { text };
            let waiting = Explanation::new(reason, text);
            let (asked, until_free) = (Vec::new(), None);
            let decision = Decision::Wait { waiting, meanwhile, lost, asked, until_free };
            Decided { decision, note, dual }
        }
    }
}

fn is_beyond_quota(seen: &Seen<'_>, pool: &str) -> bool {
    seen.refused.iter().any(|(by, why)| by == pool && matches!(why, Refused::QuotaExceeded { .. }))
}

/// A family of which there is no address to be had now.
struct Lacking<'a> {
    family: Family,
    why: &'a Explanation,
    waits_for: WaitingFor,
    /// The object has one of the family and is to leave it, or demands one and none of the other family.
    is_needed: bool,
}

impl<'a> Lacking<'a> {
    fn of(one: &'a One) -> Option<Self> {
        let Decision::Wait { waiting: why, meanwhile, .. } = &one.decided.decision else { return None };
        let waits_for = one.waits_for.clone().unwrap_or(WaitingFor::Anything);
        let is_needed = meanwhile.is_some() || one.is_demanded;
        Some(Self { family: one.family, why, waits_for, is_needed })
    }

    fn text(&self) -> String {
        format!("no {} address: {}", self.family, self.why.message)
    }
}

fn first_alone(has: &AllocatedAddress) -> AllocatedAddress {
    let AllocatedAddress { ip_pool, ip, mask, gateway, .. } = has.clone();
    AllocatedAddress { ip_pool, ip, mask, gateway, ..AllocatedAddress::default() }
}

fn merged(v4: Option<AllocatedAddress>, v6: Option<AllocatedAddress>) -> Option<AllocatedAddress> {
    match (v4, v6) {
        (Some(first), Some(AllocatedAddress { ip_pool, ip, mask, gateway, .. })) => Some(AllocatedAddress {
            ipv6_pool: ip_pool,
            ipv6_ip: ip,
            ipv6_mask: mask,
            ipv6_gateway: gateway,
            ..first
        }),
        (first, second) => first.or(second),
    }
}
