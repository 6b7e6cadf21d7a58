//! The vectors of the contract, and properties over any sequence of claims and releases.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::RangeSpec;

mod living;
mod mixed;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Usable: .10 to .13.
fn four() -> Ranges {
    Ranges::parse(&[RangeSpec {
        subnet: "192.168.100.0/24".into(),
        start: "192.168.100.10".into(),
        end: "192.168.100.13".into(),
        gateway: "192.168.100.254".into(),
        ..RangeSpec::default()
    }])
    .unwrap()
}

fn claim(record: &mut Record, ranges: &Ranges, holder: &str) -> Result<String, Refusal> {
    record.claim(ranges, Request::of(holder), |_| false).map(|claim| claim.address().to_string())
}

#[test]
fn claims_of_one_family_do_not_send_the_other_back_to_its_beginning() {
    let (ranges, mut record) = (of_both_families(), Record::default());
    let claim = |record: &mut Record, holder: &str, family: Family| claim_of(record, &ranges, holder, family);
    let mut turn = Vec::new();
    for n in 0..3 {
        turn.push(claim(&mut record, &format!("four-{n}"), Family::V4));
        turn.push(claim(&mut record, &format!("six-{n}"), Family::V6));
    }
    assert_eq!(turn, ["10.0.0.2", "fd00::2", "10.0.0.3", "fd00::3", "10.0.0.4", "fd00::4"]);
    for (address, holder) in [("10.0.0.2", "four-0"), ("10.0.0.4", "four-2")] {
        assert!(record.release(ip(address), holder, |_| false));
    }
    assert_eq!(claim(&mut record, "stranger", Family::V4), "10.0.0.5");
    assert_eq!(claim(&mut record, "four-0", Family::V4), "10.0.0.2");
}

/// IPv4: .2 to .9.
fn of_both_families() -> Ranges {
    let four = RangeSpec { end: "10.0.0.9".into(), ..RangeSpec::subnet("10.0.0.0/24") };
    Ranges::parse(&[four, RangeSpec::subnet("fd00::/64")]).unwrap()
}

fn claim_of(record: &mut Record, ranges: &Ranges, holder: &str, family: Family) -> String {
    let request = Request { family: Some(family), ..Request::of(holder) };
    record.claim(ranges, request, |_| false).unwrap().address().to_string()
}

// docs/contract/addresses.md#5
#[test]
fn who_asks_for_an_address_moves_the_round_robin_of_neither_family() {
    let (ranges, mut record) = (of_both_families(), Record::default());
    assert_eq!(claim_of(&mut record, &ranges, "four-0", Family::V4), "10.0.0.2");
    let highest = Request { exactly: Some(ip("10.0.0.9")), ..Request::of("asks") };
    record.claim(&ranges, highest, |_| false).unwrap();
    assert_eq!(claim_of(&mut record, &ranges, "six-0", Family::V6), "fd00::2");
    assert!(record.release(ip("10.0.0.2"), "four-0", |_| false));
    let turns = record.turns();
    // as the next one reads it who writes the pool
    let read = Record::read(&record.allocated(), &record.allocated_history(), &record.last_allocated());
    for mut record in [record, read.resuming(turns)] {
        assert_eq!(claim_of(&mut record, &ranges, "stranger", Family::V4), "10.0.0.3");
        assert_eq!(claim_of(&mut record, &ranges, "six-1", Family::V6), "fd00::3");
    }
}

/// The status says where the other family stood; and the ranges were longer before.
#[test]
fn after_a_restart_the_round_robin_goes_on_after_the_highest_address_of_the_ranges() {
    let held = map(&[("10.0.0.3", "shop/a"), ("10.0.0.200", "shop/b"), ("fd00::2", "shop/c")]);
    for history in [map(&[]), map(&[("10.0.0.2", "shop/d"), ("10.0.0.201", "shop/e")])] {
        let mut record = Record::read(&held, &history, "fd00::2");
        assert_eq!(claim_of(&mut record, &of_both_families(), "stranger", Family::V4), "10.0.0.4");
    }
    let mut elsewhere = Record::read(&held, &map(&[]), "fd00::2");
    elsewhere.turns.note(Some(ip("10.0.0.200")));
    assert_eq!(claim_of(&mut elsewhere, &of_both_families(), "stranger", Family::V4), "10.0.0.4");
}

#[test]
fn what_the_status_says_of_the_round_robin_counts_before_what_is_remembered() {
    let mut remembered = Turns::default();
    remembered.note(Some(ip("10.0.0.6")));
    let mut record = Record::read(&map(&[]), &map(&[]), "10.0.0.3").resuming(remembered);
    assert_eq!(claim_of(&mut record, &of_both_families(), "shop/a", Family::V4), "10.0.0.4");
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn addresses_go_round_and_come_back_to_their_last_holder() {
    let (ranges, mut record) = (four(), Record::default());
    let claim = |record: &mut Record, holder| {
        claim(record, &ranges, holder).map(|address| address.rsplit('.').next().unwrap().to_owned())
    };
    assert_eq!(claim(&mut record, "a"), Ok("10".into()));
    assert_eq!(claim(&mut record, "b"), Ok("11".into()));
    assert!(record.release(ip("192.168.100.10"), "a", |_| false));
    assert_eq!(claim(&mut record, "c"), Ok("12".into()));
    assert_eq!(claim(&mut record, "d"), Ok("13".into()));
    assert_eq!(claim(&mut record, "e"), Ok("10".into()));
    assert_eq!(claim(&mut record, "f"), Err(Refusal::Exhausted));
    assert_eq!(claim(&mut record, "a"), Err(Refusal::Exhausted));
    assert!(record.release(ip("192.168.100.11"), "b", |_| false));
    assert_eq!(claim(&mut record, "a"), Ok("11".into()));
}

// an import remembers what legacy Services announce: their objects ask for it later than others
#[test]
fn what_another_holder_had_is_given_last() {
    let history = map(&[("192.168.100.10", "shop/web"), ("192.168.100.12", "shop/db")]);
    let mut record = Record::read(&BTreeMap::new(), &history, "");
    for expected in ["192.168.100.11", "192.168.100.13"] {
        assert_eq!(claim(&mut record, &four(), expected).unwrap(), expected);
    }
    assert_eq!(claim(&mut record, &four(), "shop/web").unwrap(), "192.168.100.10");
    assert_eq!(claim(&mut record, &four(), "new").unwrap(), "192.168.100.12", "no address is held back");
}

#[test]
fn the_last_holder_gets_its_address_wherever_the_cursor_stands() {
    let (ranges, mut record) = (four(), Record::default());
    claim(&mut record, &ranges, "a").unwrap();
    claim(&mut record, &ranges, "b").unwrap();
    record.release(ip("192.168.100.11"), "b", |_| false);
    claim(&mut record, &ranges, "c").unwrap();
    assert_eq!(claim(&mut record, &ranges, "b").unwrap(), "192.168.100.11");
}

// docs/contract/load-balancer.md#IP-1: an entry that cannot be honoured failed the holder for ever
#[test]
fn an_address_of_the_past_that_is_not_to_be_had_is_passed_over() {
    let ranges = four();
    for lost in ["192.168.100.254", "10.9.9.9", "192.168.100.12"] {
        let held = map(&[("192.168.100.12", "else/where")]);
        let mut record = Record::read(&held, &map(&[(lost, "shop/web")]), "");
        assert_eq!(claim(&mut record, &ranges, "shop/web").unwrap(), "192.168.100.10", "{lost}");
    }
}

// docs/contract/load-balancer.md#IP-2: which of several entries counted was left to chance
#[test]
fn of_several_addresses_of_the_past_the_lowest_comes_first() {
    let history = map(&[("192.168.100.13", "shop/web"), ("192.168.100.11", "shop/web")]);
    let mut record = Record::read(&BTreeMap::new(), &history, "192.168.100.10");
    assert_eq!(claim(&mut record, &four(), "shop/web").unwrap(), "192.168.100.11");
    assert_eq!(record.allocated_history(), map(&[("192.168.100.13", "shop/web")]));
}

// docs/contract/load-balancer.md#LB-15: a lost answer ended in "duplicate allocation", released and taken again
#[test]
fn a_holder_that_is_recorded_keeps_its_address_and_nothing_is_written() {
    let mut record =
        Record::read(&map(&[("192.168.100.12", "shop/web")]), &BTreeMap::new(), "192.168.100.12");
    let before = record.clone();
    let request = Request::of("shop/web");
    assert_eq!(record.claim(&four(), request, |_| false), Ok(Claim::Adopted(ip("192.168.100.12"))));
    assert_eq!(record, before);
}

#[test]
fn of_two_records_the_one_that_the_holder_knows_is_adopted() {
    let held = map(&[("192.168.100.11", "shop/web"), ("192.168.100.12", "shop/web")]);
    let mut record = Record::read(&held, &BTreeMap::new(), "");
    let request = Request { known: Some(ip("192.168.100.12")), ..Request::of("shop/web") };
    assert_eq!(record.claim(&four(), request, |_| false).unwrap().address(), ip("192.168.100.12"));
}

#[test]
fn of_two_records_one_that_the_pool_still_offers_is_adopted() {
    let held = map(&[("192.168.100.5", "shop/web"), ("192.168.100.12", "shop/web")]);
    let mut record = Record::read(&held, &BTreeMap::new(), "");
    assert_eq!(claim(&mut record, &four(), "shop/web").unwrap(), "192.168.100.12");
}

#[test]
fn a_record_from_elsewhere_takes_an_address_from_nobody_and_moves_no_cursor() {
    let (held, history) = (map(&[("192.168.100.12", "shop/web")]), map(&[("192.168.100.11", "shop/db")]));
    let mut record = Record::read(&held, &history, "192.168.100.12");
    record.put(ip("192.168.100.12"), "shop/api");
    record.put(ip("192.168.100.11"), "shop/api");
    assert_eq!(record.allocated(), map(&[("192.168.100.11", "shop/api"), ("192.168.100.12", "shop/web")]));
    assert_eq!(
        (record.allocated_history(), record.last_allocated()),
        (BTreeMap::new(), "192.168.100.12".to_owned())
    );
}

#[test]
fn a_holder_is_remembered_for_an_address_that_nobody_holds() {
    let mut record = Record::read(&map(&[("192.168.100.12", "shop/web")]), &BTreeMap::new(), "");
    record.remember(ip("192.168.100.12"), "shop/api");
    record.remember(ip("192.168.100.13"), "shop/api");
    assert_eq!(record.allocated_history(), map(&[("192.168.100.13", "shop/api")]));
    assert_eq!(claim(&mut record, &four(), "shop/api").unwrap(), "192.168.100.13");
}

// docs/contract/load-balancer.md#IP-16: a PUT without status made held addresses free
#[test]
fn a_holder_whose_record_was_lost_takes_back_the_address_that_it_knows() {
    let mut record = Record::default();
    let request = Request { known: Some(ip("192.168.100.12")), ..Request::of("shop/web") };
    assert_eq!(record.claim(&four(), request, |_| false), Ok(Claim::Recorded(ip("192.168.100.12"))));
}

#[test]
fn a_holder_cannot_know_itself_to_the_gateway_or_to_anothers_address() {
    for wish in ["192.168.100.254", "192.168.100.12", "192.168.100.200", "fd00::1"] {
        let mut record = Record::read(&map(&[("192.168.100.12", "else/where")]), &BTreeMap::new(), "");
        let request = Request { known: Some(ip(wish)), ..Request::of("shop/web") };
        assert_eq!(
            record.claim(&four(), request, |_| false).unwrap().address(),
            ip("192.168.100.10"),
            "{wish}"
        );
    }
}

#[test]
fn a_release_by_another_holder_changes_nothing() {
    let mut record = Record::read(&map(&[("192.168.100.12", "shop/web")]), &BTreeMap::new(), "");
    let before = record.clone();
    assert!(!record.release(ip("192.168.100.12"), "shop/api", |_| false));
    assert!(!record.release(ip("192.168.100.13"), "shop/web", |_| false));
    assert_eq!(record, before);
}

#[test]
fn keys_that_are_no_addresses_are_kept_and_counted() {
    let held = map(&[
        ("192.168.100.300", "who/ever"),
        ("192.168.100.12", "shop/web"),
        ("::ffff:192.168.100.12", "x/y"),
    ]);
    let record = Record::read(&held, &map(&[("nonsense", "who/ever")]), "nonsense");
    assert_eq!((record.allocated(), record.count()), (held, 3));
    assert_eq!((record.allocated_history(), record.last_allocated()), (BTreeMap::new(), String::new()));
}

#[test]
fn history_outside_of_the_ranges_is_forgotten() {
    let mut record = Record::read(
        &BTreeMap::new(),
        &map(&[("10.9.9.9", "a/b"), ("192.168.100.11", "c/d")]),
        "192.168.100.10",
    );
    record.prune(&four());
    assert_eq!(record.allocated_history(), map(&[("192.168.100.11", "c/d")]));
}

#[test]
fn history_is_trimmed_furthest_behind_the_cursor_first() {
    let history = map(&[("192.168.100.10", "a/a"), ("192.168.100.12", "b/b"), ("192.168.100.13", "c/c")]);
    let mut record = Record::read(&BTreeMap::new(), &history, "192.168.100.11");
    assert_eq!(record.trim_history(&four(), 1, |_| false), 1);
    assert_eq!(record.allocated_history(), map(&[("192.168.100.10", "a/a"), ("192.168.100.13", "c/c")]));
    assert_eq!(record.trim_history(&four(), 1, |_| false), 1);
    assert_eq!(record.allocated_history(), map(&[("192.168.100.10", "a/a")]));
    assert_eq!(record.trim_history(&four(), 9, |_| false), 1);
}

#[derive(Clone, Debug)]
enum Move {
    Claim(u8, Option<u8>),
    /// Demands an address of the last byte.
    Demand(u8, u8),
    /// Releases the address that the first is recorded for, in the second's name.
    Release(u8, u8),
    Reread,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0..12_u8, proptest::option::of(0..32_u8)).prop_map(|(holder, known)| Move::Claim(holder, known)),
        3 => (0..12_u8, 0..32_u8).prop_map(|(holder, last)| Move::Demand(holder, last)),
        4 => (0..12_u8).prop_map(|holder| Move::Release(holder, holder)),
        1 => (0..12_u8, 0..12_u8).prop_map(|(of, by)| Move::Release(of, by)),
        1 => Just(Move::Reread),
    ];
    proptest::collection::vec(one, 0..120)
}

/// Pools of a few addresses, of both families, some with the gateway in the middle.
fn pools() -> impl Strategy<Value = Ranges> {
    prop_oneof![
        Just(vec![("10.0.0.0/29", "", "", "")]),
        Just(vec![
            ("10.0.0.0/29", "", "", "10.0.0.4"),
            ("10.0.0.16/30", "", "", ""),
            ("10.0.0.25/32", "", "", "")
        ]),
        Just(vec![
            ("10.0.0.0/24", "10.0.0.20", "10.0.0.24", "10.0.0.22"),
            ("10.0.0.0/24", "10.0.0.2", "10.0.0.5", "")
        ]),
        Just(vec![("fd00::/125", "", "", "")]),
        Just(vec![("10.0.0.0/31", "", "", ""), ("10.0.0.4/32", "", "", "")]),
    ]
    .prop_map(|specs| {
        let spec = |(subnet, start, end, gateway): &(&str, &str, &str, &str)| RangeSpec {
            subnet: (*subnet).into(),
            start: (*start).into(),
            end: (*end).into(),
            gateway: (*gateway).into(),
            ..RangeSpec::default()
        };
        Ranges::parse(&specs.iter().map(spec).collect::<Vec<_>>()).unwrap()
    })
}

proptest! {
    #[test]
    fn a_record_stays_true_whatever_is_claimed_and_released(ranges in pools(), moves in moves()) {
        let (mut record, mut demands) = (Record::default(), 0);
        for step in moves {
            match step {
                Move::Claim(holder, known) => {
                    let holder = format!("ns/lb-{holder}");
                    let known = known.map(|last| IpAddr::from([10, 0, 0, last]));
                    let had: BTreeSet<_> = record.of(&holder).collect();
                    match record.claim(&ranges, Request { known, ..Request::of(&holder) }, |_| false) {
                        Ok(claim) => {
                            prop_assert!(ranges.offers(claim.address()), "outside, or a gateway");
                            prop_assert!(had.is_empty() || had.contains(&claim.address()), "it got a second one");
                            prop_assert_eq!(record.holder(claim.address()), Some(holder.as_str()));
                        }
                        Err(refusal) => {
                            prop_assert_eq!(refusal, Refusal::Exhausted);
                            prop_assert_eq!(u128::try_from(record.count()).unwrap(), ranges.total());
                        }
                    }
                }
                Move::Demand(holder, last) => {
                    let (holder, address) = (format!("ns/lb-{holder}"), IpAddr::from([10, 0, 0, last]));
                    let before = record.clone();
                    let request = Request { exactly: Some(address), ..Request::of(&holder) };
                    let claim = record.claim(&ranges, request, |_| false);
                    for (held, by) in before.held() {
                        prop_assert_eq!(record.holder(held), Some(by), "a demand took what another holds");
                    }
                    match before.holder(address) {
                        Some(by) if by == holder => prop_assert_eq!(claim, Ok(Claim::Adopted(address))),
                        Some(_) => prop_assert_eq!(claim, Err(Refusal::Held(address))),
                        None if ranges.offers(address) => {
                            prop_assert_eq!(claim, Ok(Claim::Recorded(address)));
                            prop_assert_eq!(record.count(), before.count() + 1);
                        }
                        None => prop_assert_eq!(claim, Err(Refusal::NotOffered(address))),
                    }
                    prop_assert_eq!(&record.cursor, &before.cursor, "a demand steers the round robin");
                    demands += usize::from(record.count() > before.count());
                }
                Move::Release(of, by) => {
                    let (of, by) = (format!("ns/lb-{of}"), format!("ns/lb-{by}"));
                    let address = record.of(&of).next();
                    if let Some(address) = address {
                        let before = record.clone();
                        let released = record.release(address, &by, |_| false);
                        prop_assert_eq!(released, of == by);
                        if released && record.of(&of).next().is_none() {
                            let mut again = record.clone();
                            let back = again.claim(&ranges, Request::of(&of), |_| false).unwrap();
                            prop_assert_eq!(back.address(), address);
                        } else if !released {
                            prop_assert_eq!(&before, &record);
                        }
                    }
                }
                Move::Reread => {
                    let read = Record::read(&record.allocated(), &record.allocated_history(), &record.last_allocated());
                    prop_assert_eq!(&read, &record);
                }
            }
            let (total, available) = ranges.counts(record.count(), 0);
            prop_assert_eq!(total - available, i64::try_from(record.allocated().len()).unwrap());
            let holders: BTreeSet<_> = record.held().map(|(_, holder)| holder.to_owned()).collect();
            prop_assert!(holders.len() + demands >= record.count(), "an LB holds two addresses");
            prop_assert!(record.history.iter().all(|(address, _)| record.holder(address).is_none()));
        }
    }

    #[test]
    fn the_round_robin_visits_every_address_before_any_twice(ranges in pools(), start in 0..40_u8) {
        let mut record = Record { cursor: Some(IpAddr::from([10, 0, 0, start])), ..Record::default() };
        let total = usize::try_from(ranges.total()).unwrap();
        let mut visited = BTreeSet::new();
        for turn in 0..total {
            let holder = format!("ns/lb-{turn}");
            let address = record.claim(&ranges, Request::of(&holder), |_| false).unwrap().address();
            prop_assert!(visited.insert(address));
            record.release(address, &holder, |_| false);
        }
        prop_assert_eq!(visited.len(), total);
    }
}

#[test]
fn an_address_that_is_taken_elsewhere_is_passed_over_also_by_who_had_it_last() {
    let (ranges, mut record) = (four(), Record::default());
    record.remember(ip("192.168.100.10"), "a");
    let taken = |address| address == ip("192.168.100.10") || address == ip("192.168.100.11");
    let known = Some(ip("192.168.100.11"));
    let claim = record.claim(&ranges, Request { known, ..Request::of("a") }, taken);
    assert_eq!(claim, Ok(Claim::Recorded(ip("192.168.100.12"))));
    let again = record.claim(&ranges, Request::of("a"), |_| true);
    assert_eq!(again, Ok(Claim::Adopted(ip("192.168.100.12"))), "its own record is nobody else's");
    let other = record.claim(&ranges, Request::of("b"), |_| true);
    assert_eq!(other, Err(Refusal::Exhausted));
}

#[test]
fn a_holder_has_an_address_of_each_family_that_it_claims() {
    let specs = ["10.0.0.0/30", "fd00::/126"].map(RangeSpec::subnet);
    let (ranges, mut record) = (Ranges::parse(&specs).unwrap(), Record::default());
    let mut claim = |family| {
        let claim = record.claim(&ranges, Request { family, ..Request::of("a") }, |_| false);
        claim.unwrap().address().to_string()
    };
    assert_eq!(claim(Some(Family::V6)), "fd00::2");
    assert_eq!(claim(Some(Family::V4)), "10.0.0.2");
    assert_eq!(claim(Some(Family::V6)), "fd00::2");
    assert_eq!(record.of("a").count(), 2);
    assert_eq!(record.held().count(), 2);
}

#[test]
fn a_recorded_address_that_somebody_else_has_a_better_right_to_answers_no_claim() {
    let mut record = Record::read(&map(&[("192.168.100.10", "a")]), &BTreeMap::new(), "");
    let lost = [ip("192.168.100.10")];
    let claim = record.claim(&four(), Request { lost: &lost, ..Request::of("a") }, |_| false);
    assert_eq!(claim, Ok(Claim::Recorded(ip("192.168.100.11"))));
    assert_eq!(record.holder(lost[0]), Some("a"), "it is released when the network has left it");
}

#[test]
fn a_claim_among_given_addresses_looks_at_no_others_but_those_of_its_past() {
    let (ranges, mut record) = (four(), Record::default());
    record.remember(ip("192.168.100.13"), "b");
    let mut claim = |holder, among: &[IpAddr]| {
        let request = Request { among: Some(among), ..Request::of(holder) };
        record.claim(&ranges, request, |_| false).map(Claim::address)
    };
    assert_eq!(claim("a", &[]), Err(Refusal::Exhausted));
    assert_eq!(claim("a", &[ip("192.168.100.12")]), Ok(ip("192.168.100.12")));
    assert_eq!(claim("b", &[]), Ok(ip("192.168.100.13")));
}

fn exactly(record: &mut Record, holder: &str, address: &str, taken: bool) -> Result<Claim, Refusal> {
    let request = Request { exactly: Some(ip(address)), ..Request::of(holder) };
    record.claim(&four(), request, |_| taken)
}

// docs/contract/addresses.md#5
#[test]
fn an_address_that_is_asked_for_is_given_if_nobody_has_it_and_never_another_one() {
    let held = map(&[("192.168.100.10", "shop/web"), ("192.168.100.11", "shop/api")]);
    let history = map(&[("192.168.100.12", "shop/last")]);
    let read = || Record::read(&held, &history, "192.168.100.11");
    let claim = |address: &str, taken| exactly(&mut read(), "shop/web", address, taken);
    assert_eq!(claim("192.168.100.10", true), Ok(Claim::Adopted(ip("192.168.100.10"))));
    assert_eq!(claim("192.168.100.11", false), Err(Refusal::Held(ip("192.168.100.11"))));
    assert_eq!(
        claim("192.168.100.12", false),
        Ok(Claim::Recorded(ip("192.168.100.12"))),
        "a past is no hold"
    );
    assert_eq!(
        claim("192.168.100.13", true),
        Err(Refusal::Held(ip("192.168.100.13"))),
        "another pool gives it"
    );
    for nobodys in ["192.168.100.254", "192.168.100.0", "192.168.100.255", "0.0.0.0", "10.9.9.9", "fd00::1"] {
        assert_eq!(claim(nobodys, false), Err(Refusal::NotOffered(ip(nobodys))), "{nobodys}");
    }
}

#[test]
fn an_address_that_was_asked_for_comes_beside_the_former_one_and_the_round_robin_stays() {
    let mut record =
        Record::read(&map(&[("192.168.100.10", "shop/web")]), &BTreeMap::new(), "192.168.100.10");
    exactly(&mut record, "shop/web", "192.168.100.13", false).unwrap();
    assert_eq!(record.of("shop/web").collect::<Vec<_>>(), [ip("192.168.100.10"), ip("192.168.100.13")]);
    assert_eq!(claim(&mut record, &four(), "shop/api").unwrap(), "192.168.100.11");
}

#[test]
fn a_demand_for_a_record_that_an_older_pool_gives_to_another_is_refused() {
    let mut record = Record::read(&map(&[("192.168.100.10", "a")]), &BTreeMap::new(), "");
    let lost = [ip("192.168.100.10")];
    let request = Request { lost: &lost, exactly: Some(lost[0]), ..Request::of("a") };
    assert_eq!(record.claim(&four(), request, |_| false), Err(Refusal::Held(lost[0])));
}

// docs/contract/addresses.md#5
#[test]
fn a_service_that_is_made_again_finds_its_address_by_all_but_the_digest() {
    let before = "shop/kubernetes-default-web-0a1b2c3d";
    let history = map(&[("192.168.100.12", before)]);
    let given = |holder: &str, history: &BTreeMap<String, String>| {
        let mut record = Record::read(&BTreeMap::new(), history, "");
        claim(&mut record, &four(), holder).unwrap()
    };
    assert_eq!(given("shop/kubernetes-default-web-99999999", &history), "192.168.100.12");
    for stranger in [
        "shop/kubernetes-default-api-99999999",
        "else/kubernetes-default-web-99999999",
        "shop/kubernetes-default-web-9999999",
        "shop/kubernetes-default-web-999999999",
        "shop/kubernetes-default-web-nodigest",
        "shop/kubernetes-default-web_99999999",
        "aaaaaaaa",
        "",
    ] {
        assert_eq!(given(stranger, &history), "192.168.100.10", "{stranger}");
    }
    let mut own = history.clone();
    own.insert("192.168.100.13".into(), "shop/kubernetes-default-web-99999999".into());
    assert_eq!(
        given("shop/kubernetes-default-web-99999999", &own),
        "192.168.100.13",
        "its own past comes first"
    );
    let live = map(&[("192.168.100.12", before)]);
    let mut record = Record::read(&live, &BTreeMap::new(), "");
    let other = claim(&mut record, &four(), "shop/kubernetes-default-web-99999999");
    assert_eq!(other.unwrap(), "192.168.100.10", "what the former object holds stays with it");
}

#[test]
fn a_look_for_an_ipv4_address_does_not_walk_through_an_ipv6_subnet() {
    let specs = ["fd00::/64", "10.0.0.0/30"].map(RangeSpec::subnet);
    let (ranges, mut record) = (Ranges::parse(&specs).unwrap(), Record::default());
    let mut claim = |holder, family| {
        record
            .claim(&ranges, Request { family: Some(family), ..Request::of(holder) }, |_| false)
            .map(Claim::address)
    };
    assert_eq!(claim("a", Family::V4), Ok(ip("10.0.0.2")));
    assert_eq!(claim("b", Family::V4), Err(Refusal::Exhausted));
    assert_eq!(claim("b", Family::V6), Ok(ip("fd00::2")));
}

// to write the key otherwise would make the record that of this program, by the pool's managedFields
#[rstest::rstest]
#[case::capitals("FD00:6::15", "fd00:6::15")]
#[case::zeros("fd00:6:0::15", "fd00:6::15")]
#[case::mapped("::ffff:10.0.0.5", "10.0.0.5")]
fn a_key_that_another_program_wrote_stays_as_it_is_until_its_record_goes(
    #[case] key: &str,
    #[case] canonical: &str,
) {
    let mut record = Record::read(&map(&[(key, "capi/m-1")]), &map(&[]), "");
    assert_eq!(record.holder(ip(canonical)), Some("capi/m-1"));
    assert_eq!(record.allocated(), map(&[(key, "capi/m-1")]));
    assert!(record.release(ip(canonical), "capi/m-1", |_| false));
    assert_eq!(record.allocated(), map(&[]));
    record.put(ip(canonical), "shop/web");
    assert_eq!(record.allocated(), map(&[(canonical, "shop/web")]));
}

#[test]
fn of_two_keys_of_one_address_each_stays() {
    let both = map(&[("FD00:6::15", "capi/m-1"), ("fd00:6:0::15", "capi/m-2")]);
    let record = Record::read(&both, &map(&[]), "");
    assert_eq!((record.allocated(), record.count()), (both, 2));
    assert_eq!(record.holder(ip("fd00:6::15")), Some("capi/m-1"));
}
