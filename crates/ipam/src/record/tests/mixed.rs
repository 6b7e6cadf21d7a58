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

// the Service of a guest cluster of the Go program had one of IPv6 from an older version, and is made again to get IPv4
#[test]
fn who_names_no_family_gets_ipv4_also_where_its_past_has_an_address_of_ipv6() {
    const HOLDER: &str = "shop/kubernetes-web-9f8e7d6c";
    let ranges = of_both_families();
    for last in ["shop/kubernetes-web-1a2b3c4d", HOLDER] {
        let former = Record::read(&map(&[]), &map(&[("fd00::2", last)]), "fd00::2");
        assert_eq!(claim(&mut former.clone(), &ranges, HOLDER).unwrap(), "10.0.0.2", "{last}");
        let (used, mut record) = ([ip("fd00::2"), ip("10.0.0.5")], former.clone());
        let among = Request { among: Some(&used), ..Request::of(HOLDER) };
        assert_eq!(record.claim(&ranges, among, |_| false), Ok(Claim::Recorded(ip("10.0.0.5"))), "{last}");
        let mut full = former;
        (2..=9).for_each(|number| full.put(IpAddr::from([10, 0, 0, number]), "shop/other"));
        assert_eq!(claim(&mut full, &ranges, "shop/stranger").unwrap(), "fd00::3");
        assert_eq!(
            claim(&mut full, &ranges, HOLDER).unwrap(),
            "fd00::2",
            "its own, as IPv4 is used up: {last}"
        );
    }
}

// the records of an object go back one after the other, that of IPv6 last
#[test]
fn who_names_no_family_gets_its_ipv4_address_back_also_where_that_of_ipv6_rests_longer() {
    let history = map(&[("10.0.0.2", "shop/web"), ("fd00::2", "shop/web")]);
    let mut record = Record::read(&map(&[]), &history, "10.0.0.2");
    let resting = Resting::read([(ip("10.0.0.2"), 150), (ip("fd00::2"), 151)], 100, 60);
    let request = Request { resting: Some(&resting), ..Request::of("shop/web") };
    assert_eq!(record.resting_for(request), Some(ip("10.0.0.2")));
    let of_ipv6 = Request { family: Some(Family::V6), ..request };
    assert_eq!(record.resting_for(of_ipv6), Some(ip("fd00::2")));
    assert_eq!(record.claim(&of_both_families(), request, |_| false), Ok(Claim::Recorded(ip("10.0.0.2"))));
}
