//! Ranges that drain, and addresses that rest.

use super::*;

/// .10 and .11 drain, .20 and .21 do not.
fn half_draining() -> Ranges {
    let range = |start: &str, end: &str, drain| RangeSpec {
        start: start.into(),
        end: end.into(),
        drain,
        ..RangeSpec::subnet("10.0.0.0/24")
    };
    Ranges::parse(&[range("10.0.0.10", "10.0.0.11", true), range("10.0.0.20", "10.0.0.21", false)]).unwrap()
}

#[test]
fn nothing_new_is_given_out_of_a_range_that_drains_and_what_is_held_stays() {
    let (ranges, mut record) = (half_draining(), Record::default());
    record.put(ip("10.0.0.10"), "a");
    record.remember(ip("10.0.0.11"), "b");
    assert_eq!(claim(&mut record, &ranges, "a").unwrap(), "10.0.0.10", "who has one has it");
    assert_eq!(claim(&mut record, &ranges, "b").unwrap(), "10.0.0.20", "a former one is a new one");
    assert_eq!(claim(&mut record, &ranges, "c").unwrap(), "10.0.0.21");
    assert_eq!(claim(&mut record, &ranges, "d"), Err(Refusal::Exhausted));
    let exactly = |address, holder| Request { exactly: Some(ip(address)), ..Request::of(holder) };
    let mut demand = |address, holder| record.claim(&ranges, exactly(address, holder), |_| false);
    assert_eq!(demand("10.0.0.11", "e"), Err(Refusal::Draining(ip("10.0.0.11"))));
    assert_eq!(demand("10.0.0.10", "e"), Err(Refusal::Held(ip("10.0.0.10"))));
    assert_eq!(demand("10.0.0.10", "a"), Ok(Claim::Adopted(ip("10.0.0.10"))));
    assert!(record.release(ip("10.0.0.10"), "a", |_| false));
    assert_eq!(claim(&mut record, &ranges, "a"), Err(Refusal::Exhausted), "it does not come back to it");
    let shown = Request { known: Some(ip("10.0.0.10")), ..Request::of("a") };
    let taken_back = record.claim(&ranges, shown, |_| false);
    assert_eq!(taken_back, Ok(Claim::Recorded(ip("10.0.0.10"))), "the record has lost what the holder shows");
}

#[test]
fn addresses_of_a_range_that_drains_are_not_available() {
    let (ranges, mut record) = (half_draining(), Record::default());
    assert_eq!(record.counts(&ranges, 0), (4, 2));
    record.put(ip("10.0.0.10"), "a");
    assert_eq!(record.counts(&ranges, 0), (4, 2), "its holder took nothing from the others");
    record.put(ip("10.0.0.20"), "b");
    record.put(ip("10.0.9.9"), "outside");
    assert_eq!(record.counts(&ranges, 0), (4, 0));
    assert_eq!((ranges.drains(None), ranges.drains(Some(Family::V6))), (false, false));
    let wide = RangeSpec { drain: true, ..RangeSpec::subnet("fd00::/64") };
    let both = Ranges::parse(&[RangeSpec::subnet("10.1.0.0/30"), wide]).unwrap();
    assert_eq!(Record::default().counts(&both, 0), (i64::MAX, 1));
    assert_eq!([None, Some(Family::V4), Some(Family::V6)].map(|of| both.drains(of)), [false, false, true]);
}

// docs/contract/addresses.md#7
#[test]
fn an_address_that_rests_is_given_to_its_former_holder_and_to_nobody_else() {
    let (ranges, mut record) = (four(), Record::default());
    let all = ["192.168.100.10", "192.168.100.11", "192.168.100.12", "192.168.100.13"];
    let resting = Resting::read(all[..3].iter().map(|address| (ip(address), 160)), 100, 60);
    record.remember(ip(all[1]), "shop/own");
    record.remember(ip(all[2]), "shop/web-0a1b2c3d");
    let mut claim = |holder, exactly: Option<&str>| {
        let request = Request { resting: Some(&resting), exactly: exactly.map(ip), ..Request::of(holder) };
        record.claim(&ranges, request, |_| false).map(Claim::address)
    };
    assert_eq!(claim("a/a", Some(all[0])), Err(Refusal::Resting(ip(all[0]))));
    assert_eq!(claim("a/a", Some(all[1])), Err(Refusal::Resting(ip(all[1]))));
    assert_eq!(claim("a/a", None), Ok(ip(all[3])), "one that nobody had");
    assert_eq!(claim("b/b", None), Err(Refusal::Exhausted));
    assert_eq!(claim("shop/own", Some(all[1])), Ok(ip(all[1])));
    assert_eq!(claim("shop/web-ffffffff", None), Ok(ip(all[2])), "its Service was made again");
    assert_eq!(claim("b/b", None), Err(Refusal::Exhausted));
}

#[test]
fn a_holder_of_both_families_gets_both_back_after_it_was_made_again() {
    let ranges = Ranges::parse(&[RangeSpec::subnet("10.0.0.0/24"), RangeSpec::subnet("fd00::/64")]).unwrap();
    let mut record = Record::default();
    let both = [ip("10.0.0.5"), ip("fd00::5")];
    for address in both {
        record.put(address, "shop/web-1a2b3c4d");
    }
    for address in both {
        assert!(record.release(address, "shop/web-1a2b3c4d", |_| false));
    }
    let mut claim = |holder, family| {
        let request = Request { family: Some(family), ..Request::of(holder) };
        record.claim(&ranges, request, |_| false).map(Claim::address)
    };
    for (family, address) in [Family::V4, Family::V6].into_iter().zip(both) {
        assert_eq!(claim("shop/web-9f8e7d6c", family), Ok(address), "its Service was made again");
    }
}

// its move lays one to rest after the other
#[test]
fn a_holder_that_moved_twice_is_still_the_former_holder_of_what_rests() {
    let (ranges, mut record) = (four(), Record::default());
    let all = ["192.168.100.10", "192.168.100.11", "192.168.100.12"].map(ip);
    let resting = Resting::read(all[..2].iter().map(|address| (*address, 160)), 100, 60);
    for address in all {
        record.put(address, "shop/web");
        record.release(address, "shop/web", |past| resting.end_of(past).is_some());
    }
    for address in all {
        assert_eq!(record.last_holder(address), Some("shop/web"));
    }
    let request = Request { resting: Some(&resting), exactly: Some(all[0]), ..Request::of("shop/web") };
    assert_eq!(record.claim(&ranges, request, |_| false), Ok(Claim::Recorded(all[0])));
    record.release(all[0], "shop/web", |_| false);
    assert_eq!(record.past_of("shop/web").collect::<Vec<_>>(), [all[0]], "what rests no more is forgotten");
}
