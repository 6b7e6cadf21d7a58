//! Pools of both families: which one is given, and where the round robin of each goes on.

use super::*;

// the load balancer in Go goes on after it, whatever its family
#[test]
fn the_cursor_of_a_pool_of_both_families_is_that_of_ipv4_and_each_goes_on_after_a_restart() {
    let (ranges, mut record) = (of_both_families(), Record::default());
    assert_eq!(claim_of(&mut record, &ranges, "six-0", Family::V6), "fd00::2");
    assert_eq!(record.last_allocated(), "fd00::2", "nobody had one of IPv4");
    for (n, [four, six]) in [["10.0.0.2", "fd00::3"], ["10.0.0.3", "fd00::4"]].into_iter().enumerate() {
        let holder = format!("two-{n}");
        assert_eq!(claim_of(&mut record, &ranges, &holder, Family::V4), four);
        assert_eq!(claim_of(&mut record, &ranges, &holder, Family::V6), six);
        assert_eq!(record.last_allocated(), four);
        // a process that started since
        record = Record::read(&record.allocated(), &record.allocated_history(), &record.last_allocated());
    }
    assert!(record.release(ip("fd00::4"), "two-1", |_| false));
    assert_eq!(claim_of(&mut record, &ranges, "stranger", Family::V6), "fd00::5");
    assert_eq!(claim(&mut record, &ranges, "silent").unwrap(), "10.0.0.4");
}

#[test]
fn who_names_no_family_gets_an_ipv4_address_also_after_one_of_ipv6_was_given() {
    let held = map(&[("10.0.0.2", "shop/a"), ("fd00::2", "shop/a")]);
    let mut record = Record::read(&held, &map(&[]), "fd00::2");
    assert_eq!(claim(&mut record, &of_both_families(), "silent").unwrap(), "10.0.0.3");
    assert_eq!(record.last_allocated(), "10.0.0.3");
    let request = Request { known: Some(ip("fd00::2")), ..Request::of("shop/a") };
    let own = record.claim(&of_both_families(), request, |_| false);
    assert_eq!(own, Ok(Claim::Adopted(ip("fd00::2"))), "who has one of IPv6 keeps it");
}

/// An older version of this project wrote the IPv6 address there; and the ranges of IPv4 were others.
#[test]
fn an_ipv6_address_stays_the_cursor_only_while_nobody_has_or_had_one_of_ipv4_in_the_ranges() {
    for (four, expected) in [("10.0.0.3", "10.0.0.3"), ("10.0.0.200", "fd00::3")] {
        let mut record = Record::read(&map(&[(four, "shop/a"), ("fd00::2", "shop/b")]), &map(&[]), "fd00::2");
        assert_eq!(claim_of(&mut record, &of_both_families(), "six", Family::V6), "fd00::3");
        assert_eq!(record.last_allocated(), expected);
    }
    let mut record = Record::read(&map(&[]), &map(&[]), "10.0.0.200");
    assert_eq!(claim_of(&mut record, &of_both_families(), "six", Family::V6), "fd00::2");
    assert_eq!(record.last_allocated(), "fd00::2");
}

#[test]
fn who_names_no_family_gets_an_ipv4_address_also_past_a_range_that_drains() {
    let wide = RangeSpec { drain: true, ..RangeSpec::subnet("10.0.0.0/24") };
    let ranges = [wide, RangeSpec::subnet("fd00::/64"), RangeSpec::subnet("10.0.1.0/30")];
    let ranges = Ranges::parse(&ranges).unwrap();
    for cursor in ["10.0.0.7", "fd00::9", ""] {
        let mut record = Record::read(&BTreeMap::new(), &BTreeMap::new(), cursor);
        assert_eq!(claim(&mut record, &ranges, "a").unwrap(), "10.0.1.2", "{cursor}");
        let other = claim(&mut record, &ranges, "b").unwrap();
        assert!(other.starts_with("fd00::"), "those of IPv4 that do not drain are held: {other}");
    }
}

#[test]
fn who_names_no_family_gets_an_ipv6_address_where_all_of_ipv4_drains() {
    let wide = RangeSpec { drain: true, ..RangeSpec::subnet("10.0.0.0/24") };
    let ranges = Ranges::parse(&[wide, RangeSpec::subnet("fd00::/64")]).unwrap();
    let mut record = Record::read(&BTreeMap::new(), &BTreeMap::new(), "10.0.0.7");
    assert_eq!(claim(&mut record, &ranges, "a").unwrap(), "fd00::2");
    assert_eq!(claim(&mut record, &ranges, "b").unwrap(), "fd00::3");
}
