//! The numbers of a pool, by family: where one has addresses of both, a whole network of IPv6 would hide that those of IPv4
//! are all given.

use harvester_api::{IPPool, IPPoolSpec, PoolRange};

use crate::pool::record_change::address;

/// The families, as labels name them.
pub(super) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// The addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) total: i64,
    pub(super) available: i64,
    pub(super) resting: i64,
    /// Usable addresses of ranges that drain, held or not.
    pub(super) draining: i64,
}

/// Those of IPv4 and of IPv6, where so many are held; nothing of a family that the pool does not have.
///
/// The status has the numbers of both together, which are those of a pool of one family.
pub(super) fn by_family(pool: &IPPool, held: [i64; 2]) -> [Option<Numbers>; 2] {
    let ranges = &pool.spec.ranges;
    let is_ipv6 = |range: &PoolRange| range.subnet.contains(':');
    let has_ipv6 = ranges.iter().any(is_ipv6);
    let has = [!has_ipv6 || !ranges.iter().all(is_ipv6), has_ipv6];
    let rests = ip_pools::written_rests(pool);
    let resting = |index: usize| {
        let count = rests.keys().filter(|address| usize::from(address.is_ipv6()) == index).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    let draining = |index: usize| {
        let drains = |range: &&PoolRange| range.drain && usize::from(is_ipv6(range)) == index;
        let of_family = ranges.iter().filter(drains).cloned();
        let spec = IPPoolSpec { ranges: of_family.collect(), ..IPPoolSpec::default() };
        ip_pools::definition(&IPPool::new("", spec)).map_or(0, |pool| pool.ranges.counts(0, 0).0)
    };
    if has != [true, true] {
        let (total, available) =
            pool.status.as_ref().map_or((0, 0), |status| (status.total, status.available));
        return [0, 1].map(|index| {
            let (resting, draining) = (resting(index), draining(index));
            has[index].then_some(Numbers { total, available, resting, draining })
        });
    }
    let nothing = Default::default();
    let records = pool.status.as_ref().map_or(&nothing, |status| &status.allocated);
    [0, 1].map(|index| {
        let of_family = ranges.iter().filter(|range| usize::from(is_ipv6(range)) == index).cloned();
        let spec = IPPoolSpec { ranges: of_family.collect(), ..IPPoolSpec::default() };
        let ranges = ip_pools::definition(&IPPool::new("", spec)).ok()?.ranges;
        let is_withheld = |address: &&std::net::IpAddr| {
            ranges.gives(**address) && !records.contains_key(&address.to_string())
        };
        let drained = ranges.drained(records.keys().filter_map(|key| address(key)));
        let withheld = drained.saturating_add(rests.keys().filter(is_withheld).count() as u128);
        let (total, available) = ranges.counts(usize::try_from(held[index]).unwrap_or(0), withheld);
        Some(Numbers { total, available, resting: resting(index), draining: draining(index) })
    })
}

#[cfg(test)]
mod tests {
    use harvester_api::annotations;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const V4: &str = "192.0.2.0/29";
    const V6: &str = "fd00::/64";

    fn pool(ranges: &Value, allocated: &Value, rests: &Value) -> IPPool {
        let pool = json!({"metadata": {"name": "edge", "annotations": {annotations::QUARANTINE: rests.to_string()}},
            "spec": {"ranges": ranges}, "status": {"total": 9, "available": 7, "lastAllocated": "", "allocated": allocated}});
        serde_json::from_value(pool).unwrap()
    }

    fn small(first: u8, last: u8, drain: bool) -> Value {
        json!({"subnet": V6, "rangeStart": format!("fd00::{first:x}"), "rangeEnd": format!("fd00::{last:x}"), "drain": drain})
    }

    #[rstest]
    #[case::ipv4(json!([{"subnet": V4}]), [Some((9, 7)), None])]
    #[case::ipv6(json!([{"subnet": V6}]), [None, Some((9, 7))])]
    // the status keeps the numbers of before
    #[case::wrong(json!([{"subnet": "192.0.2"}]), [Some((9, 7)), None])]
    #[case::none(json!([]), [Some((9, 7)), None])]
    // of six addresses of IPv4 two are held and one rests
    #[case::both(json!([{"subnet": V4, "gateway": "192.0.2.6"}, small(0x10, 0x19, false)]), [Some((5, 2)), Some((10, 9))])]
    #[case::both_of_which_one_drains(json!([{"subnet": V4, "gateway": "192.0.2.6"}, small(0x10, 0x14, true),
        small(0x20, 0x29, false)]), [Some((5, 2)), Some((15, 10))])]
    #[case::both_of_which_one_is_wrong(json!([{"subnet": V4, "gateway": "192.0.2.6"}, {"subnet": "fd00::x"}]),
        [Some((5, 2)), None])]
    #[case::a_whole_network(json!([{"subnet": V4, "gateway": "192.0.2.6"}, {"subnet": V6}]),
        [Some((5, 2)), Some((i64::MAX, i64::MAX))])]
    fn a_pool_of_both_families_has_the_numbers_of_each(
        #[case] ranges: Value,
        #[case] expected: [Option<(i64, i64)>; 2],
    ) {
        let held = json!({"192.0.2.1": "shop/a", "192.0.2.2": "shop/b", "fd00::10": "shop/a"});
        let rests = json!({"192.0.2.3": "2100-01-01T00:00:00Z", "192.0.2.2": "2100-01-01T00:00:00Z"});
        let numbers = by_family(&pool(&ranges, &held, &rests), [2, 1]);
        assert_eq!(numbers.map(|it| it.map(|it| (it.total, it.available))), expected);
        let resting = numbers.map(|it| it.map(|it| it.resting));
        assert_eq!(resting, [expected[0].map(|_| 2), expected[1].map(|_| 0)]);
    }

    #[rstest]
    #[case::none(json!([{"subnet": V4}]), [Some(0), None])]
    #[case::one_of_two(json!([{"subnet": V4}, {"subnet": "198.51.100.0/29", "drain": true}]), [Some(5), None])]
    #[case::the_whole_pool(json!([{"subnet": V4, "drain": true}]), [Some(5), None])]
    #[case::of_one_family(json!([{"subnet": V4}, small(0x10, 0x14, true), small(0x20, 0x29, false)]), [Some(0), Some(5)])]
    fn the_addresses_of_ranges_that_drain_are_counted_by_family_held_or_not(
        #[case] ranges: Value,
        #[case] expected: [Option<i64>; 2],
    ) {
        let held = json!({"198.51.100.1": "shop/a", "fd00::10": "shop/a"});
        let numbers = by_family(&pool(&ranges, &held, &json!({})), [1, 1]);
        assert_eq!(numbers.map(|it| it.map(|it| it.draining)), expected);
    }

    #[test]
    fn the_numbers_of_both_families_are_together_those_of_the_status() {
        let held = json!({"192.0.2.1": "shop/a", "fd00::10": "shop/a", "fd00::20": "shop/c"});
        let rests = json!({"192.0.2.3": "2100-01-01T00:00:00Z", "fd00::21": "2100-01-01T00:00:00Z"});
        let ranges = json!([{"subnet": V4}, small(0x10, 0x14, true), small(0x20, 0x29, false)]);
        let pool = pool(&ranges, &held, &rests);
        let numbers = by_family(&pool, [1, 2]).map(Option::unwrap);
        let sum = |of: fn(&Numbers) -> i64| numbers.iter().map(of).sum::<i64>();
        assert_eq!(ip_pools::counts(&pool), Some((sum(|it| it.total), sum(|it| it.available))));
    }
}
