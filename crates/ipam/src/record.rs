//! Who holds which address of one pool: `IPPool.status` as a value that is computed with.
//!
//! An address is held if and only if it is a key of `allocated`. A released address goes to the history, which names
//! its last holder, so that the same holder gets it back; the cursor moves on, so that it comes to others late.

use std::{collections::BTreeMap, net::IpAddr};

use crate::ranges::Ranges;

/// A pool's record. Holders are `namespace/name` of a LoadBalancer object, or whatever another program wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    held: BTreeMap<IpAddr, String>,
    history: BTreeMap<IpAddr, String>,
    cursor: Option<IpAddr>,
    /// Keys that are no addresses: kept and counted, never touched.
    unreadable: BTreeMap<String, String>,
}

/// Who asks for an address.
///
/// Requested addresses, quotas and quarantine will be further fields: what a claim may have, and what it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub holder: &'a str,
    /// The address that the holder believes to have (its own status): taken back when the record has lost it.
    pub known: Option<IpAddr>,
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
        for (key, holder) in allocated {
            match parse(key) {
                // "::ffff:10.0.0.5" beside "10.0.0.5": one address, the canonical key rules
                Some(address)
                    if address.to_string() == *key || !allocated.contains_key(&address.to_string()) =>
                {
                    record.held.insert(address, holder.clone());
                }
                _ => {
                    record.unreadable.insert(key.clone(), holder.clone());
                }
            }
        }
        for (key, holder) in history {
            if let Some(address) = parse(key).filter(|address| !record.held.contains_key(address)) {
                record.history.insert(address, holder.clone());
            }
        }
        record
    }

    /// For `status.allocated`.
    pub fn allocated(&self) -> BTreeMap<String, String> {
        let held = self.held.iter().map(|(address, holder)| (address.to_string(), holder.clone()));
        held.chain(self.unreadable.clone()).collect()
    }

    /// For `status.allocatedHistory`.
    pub fn allocated_history(&self) -> BTreeMap<String, String> {
        self.history.iter().map(|(address, holder)| (address.to_string(), holder.clone())).collect()
    }

    /// For `status.lastAllocated`; empty when nothing was ever allocated.
    pub fn last_allocated(&self) -> String {
        self.cursor.map(|cursor| cursor.to_string()).unwrap_or_default()
    }

    /// How many entries `status.allocated` has.
    pub fn count(&self) -> usize {
        self.held.len() + self.unreadable.len()
    }

    pub fn holder(&self, address: IpAddr) -> Option<&str> {
        self.held.get(&address).map(String::as_str)
    }

    /// Every address and its holder, in numeric order.
    pub fn held(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.held.iter().map(|(address, holder)| (*address, holder.as_str()))
    }

    /// The addresses of one holder, in numeric order. More than one only after a crash between two writes.
    pub fn of(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        self.held.iter().filter(move |(_, name)| *name == holder).map(|(address, _)| *address)
    }

    /// Gives the holder an address: the one that it has; else the one that it believes to have; else the one that it
    /// had last; else the next one of the round robin. An address of its past that is not to be had any more (taken,
    /// out of range, now the gateway) is passed over, not an error.
    ///
    /// # Errors
    /// When every address is held.
    pub fn claim(&mut self, ranges: &Ranges, request: Request<'_>) -> Result<Claim, Refusal> {
        let Request { holder, known } = request;
        let mut own: Vec<_> = self.of(holder).collect();
        own.sort_by_key(|address| (Some(*address) != known, !ranges.offers(*address), *address));
        if let Some(address) = own.first() {
            return Ok(Claim::Adopted(*address));
        }
        let free = |address: &IpAddr| ranges.offers(*address) && !self.held.contains_key(address);
        let past = self.history.iter().filter(|(_, last)| *last == holder).map(|(address, _)| *address);
        let address =
            known.into_iter().chain(past).find(free).or_else(|| ranges.turn(self.cursor).find(free));
        let address = address.ok_or(Refusal::Exhausted)?;
        self.history.remove(&address);
        self.held.insert(address, holder.to_owned());
        self.cursor = Some(address);
        Ok(Claim::Recorded(address))
    }

    /// Records a holder for an address without moving the round robin: for records that come from elsewhere.
    /// Answers whether the address is now this holder's.
    pub fn put(&mut self, address: IpAddr, holder: &str) -> bool {
        let own = self.held.entry(address).or_insert_with(|| holder.to_owned()) == holder;
        if own {
            self.history.remove(&address);
        }
        own
    }

    /// Notes that a holder had an address, so that it gets it when it asks; nothing where somebody holds it.
    pub fn remember(&mut self, address: IpAddr, holder: &str) {
        if !self.held.contains_key(&address) {
            self.history.insert(address, holder.to_owned());
        }
    }

    /// Takes an address back from its holder; of its past only this address is remembered. Answers whether anything
    /// changed: a release in another's name does nothing.
    pub fn release(&mut self, address: IpAddr, holder: &str) -> bool {
        if self.holder(address) != Some(holder) {
            return false;
        }
        self.held.remove(&address);
        self.history.retain(|_, last| last != holder);
        self.history.insert(address, holder.to_owned());
        true
    }

    /// Forgets the history of addresses that the ranges do not cover any more.
    pub fn prune(&mut self, ranges: &Ranges) {
        self.history.retain(|address, _| ranges.covering(*address).is_some());
    }

    /// Forgets up to `count` entries of the history: those furthest behind the cursor first, which the round robin
    /// would give to somebody else soonest. Answers how many it forgot.
    pub fn trim_history(&mut self, ranges: &Ranges, count: usize) -> usize {
        let mut entries: Vec<_> = self.history.keys().copied().collect();
        entries
            .sort_by_key(|address| ranges.distance(self.cursor, *address).map_or((0, 0), |ahead| (1, ahead)));
        entries.truncate(count);
        for address in &entries {
            self.history.remove(address);
        }
        entries.len()
    }
}

fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests;
