//! The ranges of one pool, in the order of its spec: they overlap nowhere, and addresses go round in that order.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use crate::{
    family::{self, Family},
    range::{Range, RangeError, RangeSpec},
};

/// The ranges of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    ranges: Vec<Range>,
    /// The places of the ranges, by their start.
    by_start: Vec<usize>,
}

/// A fault among the ranges of one pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeFault {
    #[error("range can't be empty: give at least one range")]
    None,
    #[error("range {range}: {error}")]
    Invalid { range: RangeSpec, error: RangeError },
    #[error("there are overlaps between range {first} and {second}")]
    Overlap { first: RangeSpec, second: RangeSpec },
}

/// Enough faults to mend a pool by. Every range may overlap every other, so that a few thousand of them would make
/// millions of faults.
const FAULTS: usize = 20;

impl Ranges {
    /// Checks the ranges of a pool.
    ///
    /// # Errors
    /// Every fault of every range, and every pair that overlaps, until the twentieth.
    pub fn parse(specs: &[RangeSpec]) -> Result<Self, Vec<RangeFault>> {
        let mut faults = Vec::new();
        if specs.is_empty() {
            faults.push(RangeFault::None);
        }
        let mut good: Vec<(Range, &RangeSpec)> = Vec::new();
        // the good ranges that overlap none before them, by their start; and the few others
        let (mut disjoint, mut others) = (BTreeMap::new(), Vec::new());
        for spec in specs {
            if faults.len() >= FAULTS {
                break;
            }
            match Range::parse(spec) {
                Ok(range) => {
                    let overlaps = |index: &usize| good[*index].0.overlaps(&range);
                    let below = disjoint.range(..=range.end()).rev().map(|(_, index)| *index);
                    let mut earlier: Vec<usize> = below.take_while(overlaps).collect();
                    earlier.extend(others.iter().copied().filter(overlaps));
                    earlier.sort_unstable();
                    faults.extend(earlier.iter().take(FAULTS).map(|index| RangeFault::Overlap {
                        first: good[*index].1.clone(),
                        second: spec.clone(),
                    }));
                    if earlier.is_empty() {
                        disjoint.insert(range.start(), good.len());
                    } else {
                        others.push(good.len());
                    }
                    good.push((range, spec));
                }
                Err(errors) => faults.extend(
                    errors.into_iter().map(|error| RangeFault::Invalid { range: spec.clone(), error }),
                ),
            }
        }
        if faults.is_empty() {
            let ranges: Vec<Range> = good.into_iter().map(|(range, _)| range).collect();
            Ok(Self { ranges, by_start: disjoint.into_values().collect() })
        } else {
            Err(faults)
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter()
    }

    /// How many addresses may be held.
    pub fn total(&self) -> u128 {
        self.ranges.iter().fold(0, |sum: u128, range| sum.saturating_add(range.total()))
    }

    /// `status.total` and `status.available` for so many records, where so many free addresses are given to nobody; both
    /// stop at 2^63-1. More records than addresses (somebody else's, outside of the ranges) make `available` negative, so
    /// that the sum stays true.
    pub fn counts(&self, allocated: usize, withheld: u128) -> (i64, i64) {
        let total = self.total();
        let given = i128::try_from(total.saturating_sub(withheld)).unwrap_or(i128::MAX);
        let total = i128::try_from(total).unwrap_or(i128::MAX);
        let allocated = i128::try_from(allocated).unwrap_or(i128::MAX);
        let saturate = |n: i128| i64::try_from(n).unwrap_or(i64::MAX);
        (saturate(total), saturate(given - allocated))
    }

    /// The range that the address lies in, be it that range's gateway or not.
    pub fn covering(&self, address: IpAddr) -> Option<&Range> {
        let below = self.by_start.partition_point(|place| self.ranges[*place].start() <= address);
        let last = &self.ranges[*self.by_start[..below].last()?];
        last.covers(address).then_some(last)
    }

    /// Whether a range is of this family.
    pub fn has_family(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| Family::of(range.start()) == family)
    }

    /// Whether the address may be held.
    pub fn offers(&self, address: IpAddr) -> bool {
        self.covering(address).is_some_and(|range| range.offers(address))
    }

    /// Whether the address may be given to somebody who does not have it.
    pub fn gives(&self, address: IpAddr) -> bool {
        self.covering(address).is_some_and(|range| range.offers(address) && !range.drains())
    }

    /// Whether there are ranges (of this family) and every one of them drains.
    pub fn drains(&self, family: Option<Family>) -> bool {
        let is_of = |range: &&Range| family.is_none_or(|family| family == Family::of(range.start()));
        let mut ranges = self.ranges.iter().filter(is_of).peekable();
        ranges.peek().is_some() && ranges.all(Range::drains)
    }

    /// How many free addresses of ranges that drain there are, where these are `held`.
    pub fn drained(&self, held: impl Iterator<Item = IpAddr>) -> u128 {
        let draining = self.ranges.iter().filter(|range| range.drains()).map(Range::total);
        let total = draining.fold(0, u128::saturating_add);
        if total == 0 {
            return 0;
        }
        let is_of = |address: &IpAddr| self.offers(*address) && !self.gives(*address);
        total.saturating_sub(held.filter(is_of).count() as u128)
    }

    /// The first pair of ranges that have an address in common.
    pub fn overlap<'a>(&'a self, other: &'a Self) -> Option<(&'a Range, &'a Range)> {
        self.ranges.iter().find_map(|own| {
            let below = other.by_start.partition_point(|place| other.ranges[*place].start() <= own.end());
            // the ranges of one pool overlap nowhere, so those that overlap this one stand side by side
            let places = other.by_start[..below].iter().rev();
            let overlapping = places.take_while(|place| own.overlaps(&other.ranges[**place]));
            overlapping.min().map(|place| (own, &other.ranges[*place]))
        })
    }

    /// One full turn over the addresses that may be given to somebody: upward from the one after `cursor`, range by range in
    /// spec order, round to the beginning, `cursor` itself last. A cursor outside of the ranges means the beginning.
    /// Lazy: an IPv6 subnet costs no more than the addresses that are looked at.
    pub fn turn(&self, cursor: Option<IpAddr>) -> impl Iterator<Item = IpAddr> + '_ {
        self.turn_of(None, cursor)
    }

    /// [`Ranges::turn`] over the ranges of one family alone: a look for the last free IPv4 address must not walk through
    /// an IPv6 subnet.
    pub(crate) fn turn_of(
        &self,
        family: Option<Family>,
        cursor: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + '_ {
        let at = cursor.and_then(|cursor| {
            self.ranges
                .iter()
                .position(|range| range.covers(cursor))
                .map(|index| (index, family::number(cursor)))
        });
        let stretches = match at {
            None => self.ranges.iter().map(|range| (range, bounds(range))).collect::<Vec<_>>(),
            Some((index, cursor)) => {
                let (first, last) = bounds(&self.ranges[index]);
                let mut stretches = Vec::with_capacity(self.ranges.len() + 1);
                if cursor < last {
                    stretches.push((&self.ranges[index], (cursor + 1, last)));
                }
                let others = self.ranges[index + 1..].iter().chain(&self.ranges[..index]);
                stretches.extend(others.map(|range| (range, bounds(range))));
                stretches.push((&self.ranges[index], (first, cursor)));
                stretches
            }
        };
        let admitted = move |range: &Range| {
            !range.drains() && family.is_none_or(|family| family == Family::of(range.start()))
        };
        let stretches = stretches.into_iter().filter(move |(range, _)| admitted(range));
        stretches.flat_map(|(range, (first, last))| {
            (first..=last).map(|n| family::address(n, range.start())).filter(|address| range.offers(*address))
        })
    }

    /// How far ahead of the cursor an address comes in [`Ranges::turn`]; none when it lies in no range.
    pub(crate) fn distance(&self, cursor: Option<IpAddr>, address: IpAddr) -> Option<u128> {
        let span = self.ranges.iter().fold(0, |sum: u128, range| sum.saturating_add(range.span()));
        let at = self.rank(address)?;
        match cursor.and_then(|cursor| self.rank(cursor)) {
            None => Some(at),
            Some(cursor) if at > cursor => Some(at - cursor - 1),
            Some(cursor) => Some(span - cursor + at - 1),
        }
    }

    fn rank(&self, address: IpAddr) -> Option<u128> {
        let mut before = 0_u128;
        for range in &self.ranges {
            if range.covers(address) {
                return Some(before.saturating_add(family::number(address) - family::number(range.start())));
            }
            before = before.saturating_add(range.span());
        }
        None
    }
}

fn bounds(range: &Range) -> (u128, u128) {
    (family::number(range.start()), family::number(range.end()))
}

/// As in messages: `192.168.1.5-192.168.1.9,192.168.2.1-192.168.2.3`.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            write!(f, "{}{range}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn ten_thousand_equal_ranges_are_a_few_faults() {
        let faults = Ranges::parse(&vec![RangeSpec::subnet("10.0.0.0/8"); 10_000]).unwrap_err();
        assert!(faults.len() < 2 * FAULTS, "{} faults", faults.len());
    }

    fn ranges(specs: &[(&str, &str, &str)]) -> Result<Ranges, Vec<RangeFault>> {
        let spec = |(subnet, start, end): &(&str, &str, &str)| RangeSpec {
            subnet: (*subnet).into(),
            start: (*start).into(),
            end: (*end).into(),
            ..RangeSpec::default()
        };
        Ranges::parse(&specs.iter().map(spec).collect::<Vec<_>>())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Small ranges of both families, few enough addresses that some of them overlap.
    fn specs(count: usize) -> impl Strategy<Value = Vec<RangeSpec>> {
        let spec = (any::<bool>(), 1..60_u8, 0..8_u8).prop_map(|(is_ipv4, start, span)| {
            let (subnet, prefix) = if is_ipv4 { ("10.0.0.0/24", "10.0.0.") } else { ("fd00::/64", "fd00::") };
            let text = |n: u8| if is_ipv4 { format!("{prefix}{n}") } else { format!("{prefix}{n:x}") };
            RangeSpec {
                subnet: subnet.into(),
                start: text(start),
                end: text(start + span),
                ..RangeSpec::default()
            }
        });
        prop::collection::vec(spec, 1..count)
    }

    proptest! {
        #[test]
        fn overlaps_are_those_that_a_look_at_every_pair_finds(specs in specs(12), others in specs(4)) {
            let range = |spec: &RangeSpec| Range::parse(spec).unwrap();
            let mut pairs = Vec::new();
            for (index, second) in specs.iter().enumerate() {
                let earlier = specs[..index].iter().filter(|first| range(first).overlaps(&range(second)));
                if pairs.len() < FAULTS {
                    pairs.extend(earlier.map(|first| RangeFault::Overlap { first: first.clone(), second: second.clone() }));
                }
            }
            match (Ranges::parse(&specs), Ranges::parse(&others)) {
                (Err(faults), _) => prop_assert_eq!(faults, pairs),
                (Ok(_), Err(_)) => prop_assert!(pairs.is_empty()),
                (Ok(ranges), Ok(others)) => {
                    prop_assert!(pairs.is_empty());
                    let first = ranges.iter().find_map(|own| others.iter().find(|other| own.overlaps(other)).map(|other| (own, other)));
                    prop_assert_eq!(ranges.overlap(&others), first);
                }
            }
        }
    }

    #[test]
    fn stretches_of_one_subnet_may_stand_side_by_side() {
        let two =
            ranges(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.20"), ("10.0.0.0/24", "10.0.0.30", "10.0.0.40")]);
        assert_eq!(two.unwrap().total(), 22);
    }

    #[test]
    fn every_fault_of_every_range_is_told_at_once() {
        let faults = ranges(&[
            ("10.0.0.0/24", "", ""),
            ("10.0.0.0", "", ""),
            ("10.0.0.0/25", "", ""),
            ("10.0.0.0/25", "10.0.0.0", ""),
        ])
        .unwrap_err();
        let texts: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "range 10.0.0.0: subnet \"10.0.0.0\" is not a CIDR such as 192.168.1.0/24",
                "there are overlaps between range 10.0.0.0/24 and 10.0.0.0/25",
                "range 10.0.0.0/25 (10.0.0.0-): rangeStart 10.0.0.0 is the network address of 10.0.0.0/25",
            ]
        );
        assert_eq!(ranges(&[]).unwrap_err(), [RangeFault::None]);
    }

    #[rstest]
    #[case::beginning(None, &["10.0.0.2", "10.0.0.3", "10.0.1.2"])]
    #[case::in_the_middle(Some("10.0.0.2"), &["10.0.0.3", "10.0.1.2", "10.0.0.2"])]
    #[case::at_an_end(Some("10.0.0.3"), &["10.0.1.2", "10.0.0.2", "10.0.0.3"])]
    #[case::in_the_last(Some("10.0.1.2"), &["10.0.0.2", "10.0.0.3", "10.0.1.2"])]
    #[case::outside(Some("10.9.9.9"), &["10.0.0.2", "10.0.0.3", "10.0.1.2"])]
    fn a_turn_visits_every_address_once(#[case] cursor: Option<&str>, #[case] visited: &[&str]) {
        let two = ranges(&[("10.0.0.0/24", "", "10.0.0.3"), ("10.0.1.0/30", "", "")]).unwrap();
        let turn: Vec<_> = two.turn(cursor.map(ip)).map(|address| address.to_string()).collect();
        assert_eq!(turn, visited);
        let mut distances: Vec<_> =
            visited.iter().map(|address| two.distance(cursor.map(ip), ip(address)).unwrap()).collect();
        let sorted = distances.clone();
        distances.sort_unstable();
        assert_eq!(distances, sorted);
    }

    #[test]
    fn the_distance_is_the_place_in_the_turn() {
        let two =
            ranges(&[("10.0.0.0/24", "10.0.0.10", "10.0.0.12"), ("10.0.1.0/24", "10.0.1.10", "10.0.1.12")]);
        let two = two.unwrap();
        let all: Vec<_> = two.turn(None).collect();
        for cursor in all.into_iter().map(Some).chain([None]) {
            let distances = two.turn(cursor).map(|address| two.distance(cursor, address).unwrap());
            assert_eq!(distances.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5], "{cursor:?}");
        }
        assert_eq!(two.distance(None, ip("10.0.2.10")), None);
    }

    #[test]
    fn ranges_are_told_by_their_ends_in_the_order_of_the_spec() {
        let two = ranges(&[("10.0.1.0/24", "10.0.1.5", "10.0.1.9"), ("10.0.0.0/30", "", "")]).unwrap();
        assert_eq!(two.to_string(), "10.0.1.5-10.0.1.9,10.0.0.1-10.0.0.2");
        assert_eq!(two.iter().map(Range::start).collect::<Vec<_>>(), [ip("10.0.1.5"), ip("10.0.0.1")]);
    }

    // docs/contract/load-balancer.md#IP-10: totals overflowed
    #[test]
    fn ipv6_totals_saturate_and_nothing_is_listed() {
        let wide = ranges(&[("fd00::/8", "", ""), ("fe00::/9", "", "")]).unwrap();
        assert_eq!(wide.counts(3, 0), (i64::MAX, i64::MAX));
        assert_eq!(wide.turn(Some(ip("fd00::9"))).next(), Some(ip("fd00::a")));
        assert_eq!(ranges(&[("fd00::/112", "", "")]).unwrap().counts(3, 0), (65534, 65531));
    }
}
