//! Addresses and their holders, found by either.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    iter::Peekable,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::family::Family;

const LOWEST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const HIGHEST: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));
/// So many names are looked at for namesakes: a tenant may make thousands that begin as another does.
const LOOKS: usize = 256;

/// One holder for each address; a holder can have several addresses. Both orders share the holder's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    by_address: BTreeMap<IpAddr, Arc<str>>,
    by_holder: BTreeSet<(Arc<str>, IpAddr)>,
    /// A quota is looked at with each claim: a walk over a namespace's addresses would be quadratic.
    in_namespace: HashMap<Box<str>, usize>,
}

/// The namespace of a holder. What another program wrote may have none.
fn namespace(holder: &str) -> Option<&str> {
    holder.split_once('/').map(|(namespace, _)| namespace)
}

impl Holdings {
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(crate) fn holder(&self, address: IpAddr) -> Option<&str> {
        self.by_address.get(&address).map(|holder| &**holder)
    }

    /// The addresses of one holder, in numeric order.
    pub(crate) fn of(&self, holder: &str) -> impl Iterator<Item = IpAddr> {
        let all = (Arc::from(holder), LOWEST)..=(Arc::from(holder), HIGHEST);
        self.by_holder.range(all).map(|(_, address)| *address)
    }

    /// How many addresses the holders of a namespace have.
    pub(crate) fn count_in(&self, namespace: &str) -> usize {
        self.in_namespace.get(namespace).copied().unwrap_or_default()
    }

    /// The addresses of the holders whose names differ from `holder` in the last `tail` bytes only, in the order of those
    /// names.
    pub(crate) fn of_namesakes(&self, holder: &str, tail: usize) -> impl Iterator<Item = IpAddr> {
        let stem = holder.len().checked_sub(tail).and_then(|end| holder.get(..end));
        let from_there = stem.map(|stem| self.by_holder.range((Arc::from(stem), LOWEST)..));
        let is_namesake = move |other: &str| other != holder && other.len() == holder.len();
        from_there
            .into_iter()
            .flatten()
            .take(LOOKS)
            .take_while(move |(other, _)| stem.is_some_and(|stem| other.starts_with(stem)))
            .filter(move |(other, _)| is_namesake(other))
            .map(|(_, address)| *address)
    }

    /// The highest address of a family that `admits` lets through.
    pub(crate) fn highest(&self, family: Family, admits: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let last = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::BROADCAST),
            Family::V6 => IpAddr::from(Ipv6Addr::from(u128::MAX)),
        };
        let down = self.by_address.range(..=last).rev().map(|(address, _)| *address);
        down.take_while(|address| Family::of(*address) == family).find(|address| admits(*address))
    }

    /// For questions about one address after the other.
    pub(crate) fn ascent(&self) -> Ascent<'_> {
        Ascent { of: self, ahead: None, at: None }
    }

    /// In numeric order of the addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.by_address.iter().map(|(address, holder)| (*address, &**holder))
    }

    /// As they stand in the status of a pool.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (String, String)> {
        self.by_address.iter().map(|(address, holder)| (address.to_string(), holder.to_string()))
    }

    /// Gives `address` to `holder`, and takes it from another.
    pub(crate) fn insert(&mut self, address: IpAddr, holder: &str) {
        self.remove(address);
        if let Some(namespace) = namespace(holder) {
            match self.in_namespace.get_mut(namespace) {
                Some(count) => *count += 1,
                None => drop(self.in_namespace.insert(namespace.into(), 1)),
            }
        }
        let holder: Arc<str> = holder.into();
        self.by_address.insert(address, holder.clone());
        self.by_holder.insert((holder, address));
    }

    pub(crate) fn remove(&mut self, address: IpAddr) {
        let Some(holder) = self.by_address.remove(&address) else { return };
        if let Some(namespace) = namespace(&holder)
            && let Some(count) = self.in_namespace.get_mut(namespace)
        {
            *count -= 1;
            if *count == 0 {
                self.in_namespace.remove(namespace);
            }
        }
        self.by_holder.remove(&(holder, address));
    }
}

/// Whether addresses are held that are asked for in ascending order, for the most part: a step instead of a search each.
pub(crate) struct Ascent<'a> {
    of: &'a Holdings,
    ahead: Option<Peekable<btree_map::Range<'a, IpAddr, Arc<str>>>>,
    at: Option<IpAddr>,
}

impl Ascent<'_> {
    /// A search is shorter than more steps.
    const STEPS: usize = 16;

    pub(crate) fn holds(&mut self, address: IpAddr) -> bool {
        if self.at.is_none_or(|at| at > address) {
            self.ahead = None;
        }
        self.at = Some(address);
        for _ in 0..Self::STEPS {
            let Some(ahead) = &mut self.ahead else { break };
            match ahead.peek() {
                Some((next, _)) if **next < address => drop(ahead.next()),
                next => return next.is_some_and(|(next, _)| **next == address),
            }
        }
        let mut ahead = self.of.by_address.range(address..).peekable();
        let is_held = ahead.peek().is_some_and(|(next, _)| **next == address);
        self.ahead = Some(ahead);
        is_held
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn the_addresses_of_a_namespace_are_counted_whatever_was_given_and_taken(
            changes in collection::vec((0_u8..16, proptest::option::of(0_usize..4)), 0..60),
        ) {
            const HOLDERS: [&str; 4] = ["shop/web", "shop/api", "lab/web", "nobody"];
            let mut held = Holdings::default();
            for (number, holder) in changes {
                let address = IpAddr::from([10, 0, 0, number]);
                match holder {
                    Some(holder) => held.insert(address, HOLDERS[holder]),
                    None => held.remove(address),
                }
                for namespace in ["shop", "lab", "none"] {
                    let prefix = format!("{namespace}/");
                    let count = held.iter().filter(|(_, holder)| holder.starts_with(&prefix)).count();
                    prop_assert_eq!(held.count_in(namespace), count, "{}", namespace);
                }
            }
            for (address, _) in held.clone().iter() {
                held.remove(address);
            }
            prop_assert_eq!(held, Holdings::default());
        }

        #[test]
        fn an_ascent_answers_as_a_search_does_wherever_it_goes(
            numbers in collection::btree_set(any::<u8>(), 0..256),
            walks in collection::vec((any::<u8>(), 1_u8..40), 1..20),
        ) {
            let address = |number: u8| IpAddr::from([10, 0, 0, number]);
            let mut held = Holdings::default();
            numbers.iter().for_each(|number| held.insert(address(*number), "shop/web"));
            let mut ascent = held.ascent();
            for (start, steps) in walks {
                for number in start..=start.saturating_add(steps) {
                    prop_assert_eq!(ascent.holds(address(number)), numbers.contains(&number), "{}", number);
                }
            }
        }
    }
}
