//! Whether any of many ranges covers an address.

use std::net::IpAddr;

use crate::range::Range;

/// The addresses of some ranges, which may overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The starts, sorted, and the greatest end of the ranges up to there. IPv4 addresses sort before IPv6 ones.
    stretches: Vec<(IpAddr, IpAddr)>,
}

impl FromIterator<Range> for Coverage {
    fn from_iter<T: IntoIterator<Item = Range>>(ranges: T) -> Self {
        let ends = ranges.into_iter().map(|range| (range.start(), range.end()));
        let mut stretches: Vec<_> = ends.collect();
        stretches.sort_unstable();
        let mut furthest = None;
        for (_, end) in &mut stretches {
            furthest = furthest.max(Some(*end));
            *end = furthest.unwrap_or(*end);
        }
        Self { stretches }
    }
}

impl Coverage {
    /// Whether the address lies in one of the ranges, be it that range's gateway or not.
    pub fn covers(&self, address: IpAddr) -> bool {
        let below = self.stretches.partition_point(|(start, _)| *start <= address);
        self.stretches[..below].last().is_some_and(|(_, furthest)| address <= *furthest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::RangeSpec;

    fn range() -> impl Strategy<Value = Range> {
        (any::<bool>(), 1..60_u8, 1..60_u8).prop_map(|(is_ipv4, start, end)| {
            let (subnet, prefix) = if is_ipv4 { ("10.0.0.0/24", "10.0.0.") } else { ("fd00::/64", "fd00::") };
            let [start, end] = [start, end].map(|number| format!("{prefix}{number}"));
            let spec = RangeSpec { subnet: subnet.into(), start, end, ..RangeSpec::default() };
            Range::parse(&spec).unwrap()
        })
    }

    proptest! {
        #[test]
        fn an_address_is_covered_where_a_look_at_every_range_finds_one(
            ranges in prop::collection::vec(range(), 0..6),
        ) {
            let coverage: Coverage = ranges.iter().cloned().collect();
            let v4 = (0..=60).map(|number| format!("10.0.0.{number}"));
            for address in v4.chain((0..=60).map(|number| format!("fd00::{number}"))) {
                let address = address.parse().unwrap();
                let expected = ranges.iter().any(|range| range.covers(address));
                prop_assert_eq!(coverage.covers(address), expected, "{}", address);
            }
        }
    }
}
