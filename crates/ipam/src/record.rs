//! The holder of each address of one pool: `IPPool.status` as a value to compute with.
//!
//! An address is held if and only if it is a key of `allocated`. A released address goes to the history, which names
//! its last holder, so that the same holder gets it back; the cursor moves on, so that it comes to others late.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::{family::Family, holdings::Holdings, ranges::Ranges, resting::Resting};

/// A pool's record. Holders are `namespace/name` of a LoadBalancer object, or whatever another program wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    held: Holdings,
    history: Holdings,
    cursor: Option<IpAddr>,
    turns: Turns,
    /// The keys of held addresses that another program wrote otherwise than we would: to write such a key anew would make
    /// the record ours, by the pool's managedFields.
    spelled: BTreeMap<IpAddr, String>,
    /// Keys that are no addresses: kept and counted, never touched.
    unreadable: BTreeMap<String, String>,
}

/// Where the round robin of each family stands, for as long as somebody remembers it: the status has one cursor, which is that
/// of IPv4 where there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Turns {
    fn of(self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn note(&mut self, cursor: Option<IpAddr>) {
        match cursor {
            Some(IpAddr::V4(_)) => self.v4 = cursor,
            Some(IpAddr::V6(_)) => self.v6 = cursor,
            None => {}
        }
    }
}

/// A claim: the record knows it by holder and family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    pub holder: &'a str,
    /// The family that the address must have. `None` takes an IPv4 address where the pool gives one, else one of IPv6.
    pub family: Option<Family>,
    /// The address that the holder believes to have (its own status): taken back when the record has lost it.
    pub known: Option<IpAddr>,
    /// Addresses that the record gives to the holder and that somebody else has a better right to: they answer no claim.
    pub lost: &'a [IpAddr],
    /// Looked at in place of the round robin: a walk over the ranges has just found nothing for somebody else, so only
    /// an address that this holder itself keeps from others can be left.
    pub among: Option<&'a [IpAddr]>,
    /// This address or none, whatever else the holder has.
    pub exactly: Option<IpAddr>,
    /// Addresses that only their former holders get.
    pub resting: Option<&'a Resting>,
}

/// The digest at the end of a holder's name that a cloud controller manager gave: of the UID of the Service, which is
/// another one when the Service is made again.
const DIGEST: usize = 8;
/// So many addresses of namesakes are looked at: their names cost a tenant nothing.
const NAMESAKES: usize = 16;

impl<'a> Request<'a> {
    /// For any address of the pool.
    pub fn of(holder: &'a str) -> Self {
        Self { holder, ..Self::default() }
    }

    /// Whether the address is of the family that is asked for.
    pub fn is_like(&self, address: IpAddr) -> bool {
        let asked = self.exactly.map(Family::of).or(self.family);
        asked.is_none_or(|asked| asked == Family::of(address))
    }

    /// The families of which it may be given an address, in the order in which they are tried. The cloud controller manager in
    /// Go names none, and serves IPv4 alone.
    fn families(self) -> impl Iterator<Item = Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(move |family| self.family.is_none_or(|asked| asked == *family))
    }

    fn rests(&self, address: IpAddr) -> bool {
        self.resting.is_some_and(|resting| resting.end_of(address).is_some())
    }

    fn admits(&self, address: IpAddr) -> bool {
        self.family.is_none_or(|family| family == Family::of(address))
    }
}

/// How a claim ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The record named this holder already (its answer was lost, or its status): nothing to write.
    Adopted(IpAddr),
    /// Newly recorded.
    Recorded(IpAddr),
}

impl Claim {
    pub fn address(self) -> IpAddr {
        match self {
            Self::Adopted(address) | Self::Recorded(address) => address,
        }
    }
}

/// Why a claim was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("every address of the pool is held")]
    Exhausted,
    #[error("the pool does not give {0} to anybody")]
    NotOffered(IpAddr),
    #[error("the range of {0} drains")]
    Draining(IpAddr),
    #[error("{0} rests after its release")]
    Resting(IpAddr),
    #[error("somebody else has {0}")]
    Held(IpAddr),
}

impl Record {
    /// Reads `status.allocated`, `status.allocatedHistory` and `status.lastAllocated`. Entries that are no addresses
    /// stay in `allocated` as they are and vanish from the history.
    pub fn read(
        allocated: &BTreeMap<String, String>,
        history: &BTreeMap<String, String>,
        last_allocated: &str,
    ) -> Self {
        let mut record = Self { cursor: parse(last_allocated), ..Self::default() };
        record.turns.note(record.cursor);
        for (key, holder) in allocated {
            match parse(key) {
                Some(address) if address.to_string() == *key => record.held.insert(address, holder),
                // "::ffff:10.0.0.5" beside "10.0.0.5": one address, the canonical key rules, else the first
                Some(address)
                    if !allocated.contains_key(&address.to_string())
                        && record.held.holder(address).is_none() =>
                {
                    record.held.insert(address, holder);
                    record.spelled.insert(address, key.clone());
                }
                _ => {
                    record.unreadable.insert(key.clone(), holder.clone());
                }
            }
        }
        for (key, holder) in history {
            if let Some(address) = parse(key).filter(|address| record.held.holder(*address).is_none()) {
                record.history.insert(address, holder);
            }
        }
        record
    }

    /// The round robin goes on from there; what the status says counts before it.
    #[must_use]
    pub fn resuming(mut self, turns: Turns) -> Self {
        self.turns = turns;
        self.turns.note(self.cursor);
        self
    }

    /// For [`Record::resuming`], after this record was written.
    pub fn turns(&self) -> Turns {
        self.turns
    }

    /// For `status.allocated`.
    pub fn allocated(&self) -> BTreeMap<String, String> {
        let held = self.held.iter().map(|(address, holder)| {
            let key = self.spelled.get(&address).cloned().unwrap_or_else(|| address.to_string());
            (key, holder.to_owned())
        });
        held.chain(self.unreadable.clone()).collect()
    }

    /// For `status.allocatedHistory`.
    pub fn allocated_history(&self) -> BTreeMap<String, String> {
        self.history.texts().collect()
    }

    /// For `status.lastAllocated`; empty when nothing was ever allocated. Of a pool of both families it is where the round
    /// robin of IPv4 stands, once it has begun.
    pub fn last_allocated(&self) -> String {
        self.cursor.map(|cursor| cursor.to_string()).unwrap_or_default()
    }

    /// How many entries `status.allocated` has.
    pub fn count(&self) -> usize {
        self.held.len() + self.unreadable.len()
    }

    /// `status.total` and `status.available`, where so many free addresses rest. A free address of a range that drains is
    /// not available either.
    pub fn counts(&self, ranges: &Ranges, resting: usize) -> (i64, i64) {
        let drained = ranges.drained(self.held().map(|(address, _)| address));
        ranges.counts(self.count(), drained.saturating_add(resting as u128))
    }

    pub fn holder(&self, address: IpAddr) -> Option<&str> {
        self.held.holder(address)
    }

    /// Who had the address last, where nobody has it now.
    pub fn last_holder(&self, address: IpAddr) -> Option<&str> {
        self.history.holder(address)
    }

    /// Every address and its holder, in numeric order.
    pub fn held(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.held.iter()
    }

    /// The addresses of one holder, in numeric order. More than one only after a crash between two writes.
    pub fn of(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        self.held.of(holder)
    }

    /// How many addresses the holders of a namespace have.
    pub(crate) fn held_in(&self, namespace: &str) -> usize {
        self.held.count_in(namespace)
    }

    /// Gives the holder an address: the one that it has; else the one that it believes to have; else the one that it
    /// had last; else one that a namesake had last (the same Service before it was made again); else the next one of the
    /// round robin that nobody had; else the next one. A claim of no family gets one of IPv6 anew, also of its past, only where
    /// it finds none of IPv4. An address of its past that is not to be had any more (taken, out of range, now the gateway) is
    /// passed over, not an error. `taken` answers whether an address is in use by somebody whom this record does not know.
    ///
    /// # Errors
    /// When every address is held; when the one that is asked for exactly is not to be had.
    pub fn claim(
        &mut self,
        ranges: &Ranges,
        request: Request<'_>,
        taken: impl Fn(IpAddr) -> bool,
    ) -> Result<Claim, Refusal> {
        // compiled here, as quick as this crate is to be, and not in whichever crate claims
        self.claim_unless(ranges, request, &taken)
    }

    fn claim_unless(
        &mut self,
        ranges: &Ranges,
        request: Request<'_>,
        taken: &dyn Fn(IpAddr) -> bool,
    ) -> Result<Claim, Refusal> {
        let Request { holder, known, lost, among, exactly, .. } = request;
        if let Some(address) = exactly {
            return self.claim_exactly(ranges, address, request, taken);
        }
        let mut own: Vec<_> = self.of(holder).filter(|address| request.admits(*address)).collect();
        own.retain(|address| !lost.contains(address));
        own.sort_by_key(|address| (Some(*address) != known, !ranges.offers(*address), *address));
        if let Some(address) = own.first() {
            return Ok(Claim::Adopted(*address));
        }
        let free = |address: &IpAddr| {
            request.admits(*address)
                // what the holder shows is not given anew
                && (ranges.gives(*address) || known == Some(*address) && ranges.offers(*address))
                && self.held.holder(*address).is_none()
                && (!request.rests(*address) || known == Some(*address) || self.was_of(*address, holder))
                && !taken(*address)
        };
        let next = |family: Family| {
            // in a pool that has gone round once nobody looks for one that nobody had
            let all_touched = ranges.total() <= (self.held.len() + self.history.len()) as u128;
            let mut touched = None;
            let mut held = self.held.ascent();
            let turn = ranges.turn_of(Some(family), self.cursor_of(family, ranges));
            let untouched = turn.filter(|address| !held.holds(*address)).find(|address| {
                let is_new = all_touched || self.history.holder(*address).is_none();
                // `taken` is dear
                if !is_new && touched.is_some() || !free(address) {
                    return false;
                }
                if !is_new {
                    touched = Some(*address);
                }
                is_new
            });
            untouched.or(touched)
        };
        let of_family = |family: Family| {
            self.past(request, family).find(free).or_else(|| match among {
                Some(addresses) => {
                    addresses.iter().copied().filter(|address| Family::of(*address) == family).find(free)
                }
                None => next(family),
            })
        };
        let address = known.filter(free).or_else(|| request.families().find_map(of_family));
        let address = address.ok_or(Refusal::Exhausted)?;
        self.history.remove(address);
        self.held.insert(address, holder);
        self.move_cursor(ranges, address);
        Ok(Claim::Recorded(address))
    }

    /// The round robin of its family goes on after this address. The load balancer in Go goes on after the cursor of the
    /// status, whatever its family, and whoever it serves expects IPv4: an IPv6 address becomes the cursor only where that of
    /// IPv4 is not in the ranges or has not begun.
    fn move_cursor(&mut self, ranges: &Ranges, address: IpAddr) {
        let of_ipv4 = match address {
            IpAddr::V4(_) => Some(address),
            IpAddr::V6(_) => self.cursor_of(Family::V4, ranges).filter(|cursor| ranges.offers(*cursor)),
        };
        self.turns.note(Some(address));
        self.cursor = of_ipv4.or(Some(address));
        self.turns.note(self.cursor);
    }

    /// Where the round robin of a family stands. While the cursor is in the other family, and nobody remembers where this
    /// one stood (a process that started since), the turn goes on after the highest address of the ranges that anybody has
    /// or had, so that one which was just released is not the first to go.
    fn cursor_of(&self, family: Family, ranges: &Ranges) -> Option<IpAddr> {
        match self.cursor {
            Some(cursor) if Family::of(cursor) != family => {
                let offered = |address: IpAddr| ranges.offers(address);
                let known = self.turns.of(family).filter(|known| offered(*known));
                known
                    .or_else(|| self.held.highest(family, offered).max(self.history.highest(family, offered)))
            }
            cursor => cursor,
        }
    }

    /// Gives the holder this address beside whatever it has. The round robin stays where it is: who asks for addresses
    /// steers nobody else's.
    fn claim_exactly(
        &mut self,
        ranges: &Ranges,
        address: IpAddr,
        request: Request<'_>,
        taken: &dyn Fn(IpAddr) -> bool,
    ) -> Result<Claim, Refusal> {
        let Request { holder, lost, .. } = request;
        match self.held.holder(address) {
            Some(by) if by == holder && !lost.contains(&address) => return Ok(Claim::Adopted(address)),
            Some(_) => return Err(Refusal::Held(address)),
            None if !ranges.offers(address) => return Err(Refusal::NotOffered(address)),
            None if !ranges.gives(address) => return Err(Refusal::Draining(address)),
            None if request.rests(address) && !self.was_of(address, holder) => {
                return Err(Refusal::Resting(address));
            }
            None if taken(address) => return Err(Refusal::Held(address)),
            None => {}
        }
        self.history.remove(address);
        self.held.insert(address, holder);
        Ok(Claim::Recorded(address))
    }

    /// The addresses that the holder had last, and nobody has now, in numeric order. More than one only while they rest.
    pub fn past_of(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        self.history.of(holder)
    }

    /// The past of a holder in a family: the longer one rests the later it was released.
    fn past(&self, request: Request<'_>, family: Family) -> impl Iterator<Item = IpAddr> {
        let mut own: Vec<_> = self.past_of(request.holder).collect();
        let end = |address| request.resting.and_then(|resting| resting.end_of(address));
        own.sort_by_key(|address| std::cmp::Reverse(end(*address)));
        let all = own.into_iter().chain(self.of_namesakes(request.holder));
        all.filter(move |address| Family::of(*address) == family)
    }

    /// The address of the holder's past that rests and answers the request: to give it lays nothing more to rest.
    pub fn resting_for(&self, request: Request<'_>) -> Option<IpAddr> {
        let past = match request.exactly {
            Some(address) => Some(address).filter(|address| self.was_of(*address, request.holder)),
            None => request
                .families()
                .find_map(|family| self.past(request, family).find(|address| request.rests(*address))),
        };
        past.filter(|address| request.rests(*address))
    }

    /// Whether the holder had the address last, or the same Service did before it was made again.
    fn was_of(&self, address: IpAddr, holder: &str) -> bool {
        let Some(last) = self.history.holder(address) else { return false };
        is_same_service(last, holder)
    }

    /// Addresses that the same Service had last before it was made again: nobody else's name ends in a digest and is the
    /// same up to there, namespace included. Nothing for a holder with a past of its own.
    fn of_namesakes(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        let has_digest = stem(holder).is_some() && self.history.of(holder).next().is_none();
        let namesakes = has_digest.then(|| self.history.of_namesakes(holder, DIGEST));
        namesakes.into_iter().flatten().take(NAMESAKES)
    }

    /// Records a holder for an address that nobody holds, without moving the round robin: for records that come from
    /// elsewhere.
    pub fn put(&mut self, address: IpAddr, holder: &str) {
        if self.held.holder(address).is_none() {
            self.held.insert(address, holder);
            self.history.remove(address);
        }
    }

    /// Notes that a holder had an address, so that it gets it when it asks; nothing where somebody holds it.
    pub fn remember(&mut self, address: IpAddr, holder: &str) {
        if self.held.holder(address).is_none() {
            self.history.insert(address, holder);
        }
    }

    /// Takes an address back from its holder; of its past of the family only this address is remembered, and what `rests`.
    /// Answers whether anything changed: a release in another's name does nothing.
    pub fn release(&mut self, address: IpAddr, holder: &str, rests: impl Fn(IpAddr) -> bool) -> bool {
        if self.holder(address) != Some(holder) {
            return false;
        }
        self.held.remove(address);
        self.spelled.remove(&address);
        let family = Family::of(address);
        let past = self.history.of(holder).filter(|past| Family::of(*past) == family && !rests(*past));
        for past in past.collect::<Vec<_>>() {
            self.history.remove(past);
        }
        self.history.insert(address, holder);
        true
    }

    /// Forgets the history of addresses that the ranges do not cover any more.
    pub fn prune(&mut self, ranges: &Ranges) {
        let outside = |address: &IpAddr| ranges.covering(*address).is_none();
        let gone: Vec<_> = self.history.iter().map(|(address, _)| address).filter(outside).collect();
        for address in gone {
            self.history.remove(address);
        }
    }

    /// Forgets up to `count` entries of the history: those furthest behind the cursor first, which the round robin
    /// would give to somebody else soonest, and none of what `rests`. Answers how many it forgot.
    pub fn trim_history(&mut self, ranges: &Ranges, count: usize, rests: impl Fn(IpAddr) -> bool) -> usize {
        let all = self.history.iter().map(|(address, _)| address);
        let mut entries: Vec<_> = all.filter(|address| !rests(*address)).collect();
        entries
            .sort_by_key(|address| ranges.distance(self.cursor, *address).map_or((0, 0), |ahead| (1, ahead)));
        entries.truncate(count);
        for address in &entries {
            self.history.remove(*address);
        }
        entries.len()
    }
}

/// Whether two holders are one, or of one Service that was made again.
pub fn is_same_service(one: &str, other: &str) -> bool {
    one == other || stem(one).is_some_and(|own| stem(other) == Some(own))
}

/// The name of a holder without the digest at its end, if it has one.
fn stem(holder: &str) -> Option<&str> {
    let end = holder.len().checked_sub(DIGEST)?;
    let (stem, tail) = holder.split_at_checked(end)?;
    let is_digest = tail.bytes().all(|byte| byte.is_ascii_hexdigit());
    (stem.contains('/') && stem.ends_with('-') && is_digest).then_some(stem)
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests;
