//! An object that asks for two addresses. The pools are those of [`super::families`].

use super::{
    families::{asking, pools},
    *,
};

const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";
const BOTH: &[(&str, &str)] = &[("core", "10.0.2.5"), ("six", "fd00:6::5")];

/// What a decision depends on beside the object.
#[derive(Clone, Copy)]
struct Rest<'a> {
    pools: &'a [CheckedPool],
    holder: RecordedHolder,
    second_holder: RecordedHolder,
    recorded: &'a [(&'a str, &'a str)],
    refused: &'a [(String, Refused)],
}

fn rest<'a>(pools: &'a [CheckedPool], recorded: &'a [(&'a str, &'a str)]) -> Rest<'a> {
    let us = RecordedHolder::Us;
    Rest { pools, holder: us, second_holder: us, recorded, refused: &[] }
}

fn decided(lb: &LoadBalancer, rest: Rest<'_>) -> Decided {
    decided_with_fields(lb, rest, true)
}

fn decided_with_fields(lb: &LoadBalancer, rest: Rest<'_>, has_second_address_field: bool) -> Decided {
    let Rest { pools, holder, second_holder, recorded, refused } = rest;
    decide(&Seen {
        lb,
        pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder,
        second_holder,
        has_second_address_field,
        recorded: &records(recorded),
        service_names_address: false,
        refused,
        rivals: &[],
        leaving: &[],
        foreign_records: &[],
    })
}

/// With both addresses in its status; the first is announced.
fn with_both(policy: &str) -> LoadBalancer {
    let mut lb = asking("IPv4,IPv6", policy, Some(("core", "10.0.2.5")));
    let status = lb.status.as_mut().unwrap();
    status.address = "10.0.2.5".to_owned();
    let has = status.allocated_address.as_mut().unwrap();
    (has.ipv6_pool, has.ipv6_ip) = ("six".to_owned(), "fd00:6::5".to_owned());
    lb
}

/// The addresses, the first before the second.
fn texts(address: Option<&AllocatedAddress>) -> Vec<String> {
    let pairs = address.into_iter().flat_map(|has| has.primary().into_iter().chain(has.ipv6()));
    pairs.map(|(pool, ip)| format!("{pool} {ip}")).collect()
}

/// In words: what is claimed, what is waited for, and what is shown.
fn words(decided: &Decided) -> String {
    let shown = |address: Option<&AllocatedAddress>| texts(address).join(" and ");
    match &decided.decision {
        Decision::Has { address, .. } => format!("has {}", shown(Some(address))),
        Decision::Claim { pool, known, exactly, meanwhile, .. } => {
            let family = decided.dual.family.map(|family| format!(" {family}")).unwrap_or_default();
            let which = known.or(*exactly).map(|ip| format!(" {ip}")).unwrap_or_default();
            format!("claims{family}{which} of {pool}, shows {}", shown(meanwhile.as_ref()))
        }
        Decision::Wait { waiting, meanwhile, .. } => {
            format!("waits {}, shows {}", waiting.reason, shown(meanwhile.as_ref()))
        }
    }
}

#[rstest]
#[case::nothing_yet("IPv4,IPv6", PREFER, &[], "claims IPv4 of core, shows ")]
#[case::in_the_other_order("IPv6,IPv4", PREFER, &[], "claims IPv4 of core, shows ")]
#[case::by_policy_alone("", PREFER, &[], "claims IPv4 of core, shows ")]
#[case::first_recorded("IPv4,IPv6", PREFER, &BOTH[..1], "claims IPv6 of six, shows core 10.0.2.5")]
// a crash between the two claims, or another writer
#[case::second_recorded("IPv4,IPv6", PREFER, &BOTH[1..], "claims IPv4 of core, shows six fd00:6::5")]
#[case::both_recorded("IPv6,IPv4", PREFER, BOTH, "has core 10.0.2.5 and six fd00:6::5")]
#[case::both_in_one_pool("IPv4,IPv6", REQUIRE, &[("both", "10.0.4.5"), ("both", "fd00:4::5")],
    "has both 10.0.4.5 and both fd00:4::5")]
#[case::one_of_two_required("IPv4,IPv6", REQUIRE, &BOTH[..1], "claims IPv6 of six, shows ")]
#[case::other_of_two_required("IPv4,IPv6", REQUIRE, &BOTH[1..], "claims IPv4 of core, shows ")]
#[case::both_required("IPv4,IPv6", REQUIRE, BOTH, "has core 10.0.2.5 and six fd00:6::5")]
fn an_object_of_two_families_claims_one_address_after_the_other(
    #[case] families: &str,
    #[case] policy: &str,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: &str,
) {
    assert_eq!(words(&decided(&asking(families, policy, None), rest(&pools(), recorded))), expected);
}

#[test]
fn the_record_gives_the_second_address_mask_and_gateway() {
    let Decision::Has { address, .. } = decided(&asking("", PREFER, None), rest(&pools(), BOTH)).decision
    else {
        panic!("both are recorded")
    };
    assert_eq!(address.mask, "255.255.255.0");
    assert_eq!(address.ipv6_mask, "ffff:ffff:ffff:ffff::");
}

#[rstest]
#[case::preferred_without_ipv6(PREFER, &["edge"], &[("edge", "10.0.1.5")], "has edge 10.0.1.5",
    Some("no IPv6 address: no matched IPPool"))]
#[case::preferred_without_ipv4(PREFER, &["six"], &BOTH[1..], "has six fd00:6::5", Some("no IPv4 address: no matched IPPool"))]
#[case::preferred_without_any(PREFER, &[], &[], "waits NoMatchingPool, shows ", None)]
#[case::required_without_ipv6(REQUIRE, &["edge"], &[("edge", "10.0.1.5")], "waits NoMatchingPool, shows ", None)]
#[case::required_without_ipv4(REQUIRE, &["six"], &BOTH[1..], "waits NoMatchingPool, shows ", None)]
fn where_one_family_is_not_to_be_had_policy_decides(
    #[case] policy: &str,
    #[case] there: &[&str],
    #[case] recorded: &[(&str, &str)],
    #[case] expected: &str,
    #[case] note: Option<&str>,
) {
    let mut pools = pools().to_vec();
    pools.retain(|checked| there.contains(&checked.pool.name.as_str()));
    let decided = decided(&asking("IPv4,IPv6", policy, None), rest(&pools, recorded));
    assert_eq!(words(&decided), expected);
    let begins = match (&decided.note, note) {
        (Some(told), Some(begin)) => told.starts_with(begin),
        (told, begin) => told.is_none() && begin.is_none(),
    };
    assert!(begins, "{:?}", decided.note);
    // what may come is waited for, also by one that is served
    assert!(decided.dual.waits_for.is_some());
    if let Decision::Wait { waiting, .. } = &decided.decision {
        let required = waiting.message.starts_with("two addresses are required: no IPv");
        assert_eq!(required, policy == REQUIRE, "{}", waiting.message);
        assert_eq!(
            waiting.message.contains("no IPv6 address: "),
            !there.contains(&"six"),
            "{}",
            waiting.message
        );
        assert_eq!(
            waiting.message.contains("no IPv4 address: "),
            !there.contains(&"edge"),
            "{}",
            waiting.message
        );
    }
}

/// To give it back would be a claim and a release of the one pool for each address that comes free in the other, and with a
/// quarantine an address at rest each time. All ask for IPv4 first: nobody waits for a half that waits for its own.
#[test]
fn of_two_named_pools_the_half_that_one_gives_is_held_while_the_quota_of_the_other_is_full() {
    let mut lb = asking("IPv4,IPv6", REQUIRE, None);
    (lb.spec.ip_pool, lb.spec.ipv6_pool) = ("core".to_owned(), "six".to_owned());
    let tenant = ipam::Tenant::Namespace("shop".to_owned());
    let (max, asked, is_more_held, rests, moves) = (1, 1, false, false, false);
    let full = |pool: &str| Refused::QuotaExceeded {
        pool: pool.to_owned(),
        tenant: tenant.clone(),
        max,
        asked,
        is_more_held,
        rests,
        moves,
    };
    let (pools, refused) = (pools(), [("six".to_owned(), full("six"))]);
    let decided = decided(&lb, Rest { refused: &refused, ..rest(&pools, &BOTH[..1]) });
    assert_eq!(words(&decided), "waits QuotaExceeded, shows ");
    assert_eq!(decided.dual.held, Some(records(&BOTH[..1])));
}

#[test]
fn a_pool_that_has_no_ipv4_address_left_is_asked_for_an_ipv6_address() {
    let all = pools();
    let mut lb = asking("IPv4,IPv6", PREFER, None);
    lb.spec.ip_pool = "both".to_owned();
    let full = |family| {
        (
            "both".to_owned(),
            Refused::Exhausted {
                pool: "both".to_owned(),
                ranges: String::new(),
                family,
                drains: false,
                rests_for: 0,
            },
        )
    };
    let refused = [full(Some(Family::V4))];
    let after = decided(&lb, Rest { refused: &refused, ..rest(&all, &[]) });
    assert_eq!(words(&after), "claims IPv6 of both, shows ");
    let refused = [full(Some(Family::V4)), full(Some(Family::V6))];
    let after = decided(&lb, Rest { refused: &refused, ..rest(&all, &[]) });
    assert_eq!(words(&after), "waits PoolExhausted, shows ");
    let served = decided(&lb, Rest { refused: &refused[..1], ..rest(&all, &[("both", "fd00:4::5")]) });
    assert_eq!(words(&served), "has both fd00:4::5");
    assert_eq!(served.dual.waits_for, Some(WaitingFor::Named("both".to_owned())));
}

#[test]
fn each_family_has_a_pool_of_its_own_name() {
    let all = pools();
    let mut lb = asking("IPv4,IPv6", REQUIRE, None);
    (lb.spec.ip_pool, lb.spec.ipv6_pool) = ("edge".to_owned(), "both".to_owned());
    assert_eq!(words(&decided(&lb, rest(&all, &[]))), "claims IPv4 of edge, shows ");
    let first = [("edge", "10.0.1.5")];
    assert_eq!(words(&decided(&lb, rest(&all, &first))), "claims IPv6 of both, shows ");
    // one pool that is named alone is for both
    lb.spec.ipv6_pool.clear();
    assert_eq!(words(&decided(&lb, rest(&all, &first))), "claims IPv6 of edge, shows ");
}

#[rstest]
#[case::pair("10.0.2.9,fd00:6::9", &[], "claims IPv4 10.0.2.9 of core, shows ")]
#[case::second_of_the_pair("fd00:6::9,10.0.2.9", &[("core", "10.0.2.9")],
    "claims IPv6 fd00:6::9 of six, shows core 10.0.2.9")]
#[case::both_of_the_pair("10.0.2.9,fd00:6::9", &[("core", "10.0.2.9"), ("six", "fd00:6::9")],
    "has core 10.0.2.9 and six fd00:6::9")]
#[case::one_alone("fd00:6::9", &[("core", "10.0.2.5")], "claims IPv6 fd00:6::9 of six, shows core 10.0.2.5")]
// one of a pair that nobody gives leaves the other; one alone is demanded
#[case::half_a_pair("10.9.9.9,fd00:6::9", &[("six", "fd00:6::9")], "has six fd00:6::9")]
#[case::not_to_be_had("10.9.9.9", &[("six", "fd00:6::9")], "waits AddressNotInPool, shows six fd00:6::9")]
fn demanded_addresses_are_those_of_their_families(
    #[case] demand: &str,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: &str,
) {
    let mut lb = asking("IPv4,IPv6", PREFER, None);
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), demand.to_owned());
    assert_eq!(words(&decided(&lb, rest(&pools(), recorded))), expected);
}

// `status.address` tells when the first is announced no more, and nothing when the second is
#[test]
fn the_second_address_stays_whatever_is_asked_for_and_the_first_may_move() {
    let all = pools();
    let mut lb = with_both(PREFER);
    let before = decided(&lb, rest(&all, BOTH));
    assert_eq!((words(&before).as_str(), before.note), ("has core 10.0.2.5 and six fd00:6::5", None));
    (lb.spec.ip_pool, lb.spec.ipv6_pool) = ("core".to_owned(), "both".to_owned());
    let told = |what: &str| {
        Some(format!(
            "requested address {what} is not used: an IPv6 address stays until the object is deleted"
        ))
    };
    assert_eq!(decided(&lb, rest(&all, BOTH)).note, told("of pool both"));
    let demand = "10.0.2.9,fd00:6::9".to_owned();
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), demand);
    let moving = decided(&lb, rest(&all, BOTH));
    assert_eq!(words(&moving), "claims IPv4 10.0.2.9 of core, shows core 10.0.2.5 and six fd00:6::5");
    let moved = [BOTH[0], ("core", "10.0.2.9"), BOTH[1]];
    let moved = decided(&lb, rest(&all, &moved));
    assert_eq!(words(&moved), "has core 10.0.2.9 and six fd00:6::5");
    assert_eq!(moved.note, told("fd00:6::9"));
    // also where it is all that the object asks for by now
    lb.annotations_mut().insert(annotations::IP_FAMILIES.to_owned(), "IPv6".to_owned());
    lb.annotations_mut().insert(annotations::IP_FAMILY_POLICY.to_owned(), "SingleStack".to_owned());
    let alone = decided(&lb, rest(&all, BOTH));
    assert_eq!((words(&alone).as_str(), alone.note), ("has six fd00:6::5", told("fd00:6::9")));
}

// kube-vip in the guest may be taking 10.0.1.9 just then
#[rstest]
#[case::demand("10.0.2.5", "")]
#[case::pool("", "core")]
fn the_first_address_moves_back_only_after_the_guest_has_followed(#[case] demand: &str, #[case] pool: &str) {
    let all = pools();
    let mut lb = with_both(PREFER);
    let has = lb.status.as_mut().unwrap().allocated_address.as_mut().unwrap();
    (has.ip_pool, has.ip) = ("edge".to_owned(), "10.0.1.9".to_owned());
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), demand.to_owned());
    pool.clone_into(&mut lb.spec.ip_pool);
    let both = [BOTH[0], ("edge", "10.0.1.9"), BOTH[1]];
    let expected = "waits ReleaseUnderWay, shows edge 10.0.1.9 and six fd00:6::5";
    assert_eq!(words(&decided(&lb, rest(&all, &both))), expected);
    lb.status.as_mut().unwrap().address = "10.0.1.9".to_owned();
    let expected = "has core 10.0.2.5 and six fd00:6::5";
    assert_eq!(words(&decided(&lb, rest(&all, &both))), expected);
}

#[rstest]
#[case::first(RecordedHolder::Nobody, RecordedHolder::Us, &BOTH[1..],
    "claims IPv4 10.0.2.5 of core, shows core 10.0.2.5 and six fd00:6::5")]
#[case::second(RecordedHolder::Us, RecordedHolder::Nobody, &BOTH[..1],
    "claims IPv6 fd00:6::5 of six, shows core 10.0.2.5 and six fd00:6::5")]
#[case::second_of_a_pool_that_is_gone(RecordedHolder::Us, RecordedHolder::NoSuchPool, &BOTH[..1],
    "has core 10.0.2.5 and six fd00:6::5")]
#[case::first_to_another(RecordedHolder::SomebodyElse, RecordedHolder::Us, &BOTH[1..],
    "claims IPv4 of core, shows six fd00:6::5")]
#[case::second_to_another(RecordedHolder::Us, RecordedHolder::SomebodyElse, &BOTH[..1],
    "claims IPv6 of six, shows core 10.0.2.5")]
fn a_lost_record_concerns_its_family_alone(
    #[case] holder: RecordedHolder,
    #[case] second_holder: RecordedHolder,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: &str,
) {
    for policy in [PREFER, REQUIRE] {
        let all = pools();
        let decided = decided(&with_both(policy), Rest { holder, second_holder, ..rest(&all, recorded) });
        assert_eq!(words(&decided), expected);
        let to_another = [holder, second_holder].contains(&RecordedHolder::SomebodyElse);
        let (Decision::Claim { lost, .. } | Decision::Has { lost, .. }) = &decided.decision else {
            panic!("{decided:?}")
        };
        assert_eq!(lost.is_some(), to_another);
    }
}

#[test]
fn an_erased_second_address_is_asked_for_again_whatever_the_object_asks_for() {
    let all = pools();
    let mut lb = with_both(PREFER);
    lb.spec.ipv6_pool = "both".to_owned();
    let demand = "10.0.2.5,fd00:4::9".to_owned();
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), demand);
    let erased = Rest { second_holder: RecordedHolder::Nobody, ..rest(&all, &BOTH[..1]) };
    let expected = "claims IPv6 fd00:6::5 of six, shows core 10.0.2.5 and six fd00:6::5";
    assert_eq!(words(&decided(&lb, erased)), expected);
}

// kube-vip in the guest may announce it
#[rstest]
#[case::beside_ipv4("IPv4", "claims IPv6 fd00:6::5 of six, shows core 10.0.2.5 and six fd00:6::5")]
#[case::alone("IPv6", "claims IPv6 fd00:6::5 of six, shows six fd00:6::5")]
fn an_erased_second_address_is_asked_for_again_by_who_asks_for_one_family_now(
    #[case] families: &str,
    #[case] expected: &str,
) {
    let all = pools();
    let mut lb = with_both("SingleStack");
    lb.annotations_mut().insert(annotations::IP_FAMILIES.to_owned(), families.to_owned());
    let erased = Rest { second_holder: RecordedHolder::Nobody, ..rest(&all, &BOTH[..1]) };
    assert_eq!(words(&decided(&lb, erased)), expected);
    let refused = |why| [("six".to_owned(), why)];
    // a pool that is full of records may take it later, and nobody else gets the address
    let full = refused(Refused::RecordFull { pool: "six".to_owned(), records: 9 });
    let waits = decided(&lb, Rest { refused: &full, ..erased });
    assert!(words(&waits).starts_with("has ") && words(&waits).ends_with("six fd00:6::5"), "{waits:?}");
    assert_eq!(waits.dual.waits_for, Some(WaitingFor::Named("six".to_owned())));
    // what another has is given up, and asked for no more
    let in_use =
        refused(Refused::AddressInUse { pool: "six".to_owned(), address: "fd00:6::5".parse().unwrap() });
    let gives_up = words(&decided(&lb, Rest { refused: &in_use, ..erased }));
    assert!(!gives_up.contains("fd00:6::5"), "{gives_up}");
    let of_another = decided(&lb, Rest { second_holder: RecordedHolder::SomebodyElse, ..erased });
    assert!(!words(&of_another).contains("fd00:6::5"), "{of_another:?}");
    assert_eq!(of_another.decision.lost(), Some("fd00:6::5"));
}

// the server dropped the fields of the second address, and its record stays
#[rstest]
#[case::one_of_the_family(BOTH, "claims 10.0.2.9 of core, shows core 10.0.2.5")]
#[case::two_of_the_family(&[BOTH[0], BOTH[1], ("edge", "10.0.1.9")], "waits ReleaseUnderWay, shows core 10.0.2.5")]
fn a_record_of_the_other_family_delays_no_move_where_the_crd_lost_the_fields(
    #[case] recorded: &[(&str, &str)],
    #[case] expected: &str,
) {
    let mut lb = asking("IPv4,IPv6", PREFER, Some(("core", "10.0.2.5")));
    lb.status.as_mut().unwrap().address = "10.0.2.5".to_owned();
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), "10.0.2.9".to_owned());
    assert_eq!(words(&decided_with_fields(&lb, rest(&pools(), recorded), false)), expected);
}

#[test]
fn an_ipv6_address_that_came_alone_becomes_the_second() {
    let all = pools();
    let lb = asking("IPv6,IPv4", PREFER, Some(("six", "fd00:6::5")));
    let alone = decided(&lb, rest(&all, &BOTH[1..]));
    assert_eq!(words(&alone), "claims IPv4 of core, shows six fd00:6::5");
    assert_eq!(words(&decided(&lb, rest(&all, BOTH))), "has core 10.0.2.5 and six fd00:6::5");
}

#[rstest]
#[case::ipv4_stays("IPv4", "has core 10.0.2.5 and six fd00:6::5")]
#[case::ipv6_becomes_the_only_one("IPv6", "has six fd00:6::5")]
#[case::nothing_said("", "has core 10.0.2.5 and six fd00:6::5")]
fn an_object_that_gives_a_family_up_keeps_its_second_address(#[case] families: &str, #[case] expected: &str) {
    let mut lb = with_both("SingleStack");
    lb.annotations_mut().insert(annotations::IP_FAMILIES.to_owned(), families.to_owned());
    assert_eq!(words(&decided(&lb, rest(&pools(), BOTH))), expected);
}

#[test]
fn a_move_goes_on_beside_a_second_address_that_the_object_keeps() {
    let all = pools();
    let mut lb = with_both("SingleStack");
    lb.annotations_mut().insert(annotations::IP_FAMILIES.to_owned(), "IPv4".to_owned());
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), "10.0.1.9".to_owned());
    let expected = "claims 10.0.1.9 of edge, shows core 10.0.2.5 and six fd00:6::5";
    assert_eq!(words(&decided(&lb, rest(&all, BOTH))), expected);
}

#[test]
fn a_refused_wish_of_each_family_is_told_once_however_often_it_is_decided() {
    let all = pools();
    let mut lb = with_both(PREFER);
    lb.annotations_mut().insert(annotations::REQUESTED_IP.to_owned(), "10.9.9.9,fd00:9::9".to_owned());
    let note = decided(&lb, rest(&all, BOTH)).note.unwrap();
    for address in ["10.9.9.9", "fd00:9::9"] {
        assert!(note.contains(&format!("requested address {address} is not used: ")), "{note}");
    }
    let ready = json!([{"type": "Ready", "status": "True", "message": note}]);
    lb.status.as_mut().unwrap().conditions = serde_json::from_value(ready).unwrap();
    assert_eq!(decided(&lb, rest(&all, BOTH)).note, Some(note));
}

#[test]
fn an_object_of_vms_or_with_dhcp_or_without_the_fields_has_one_address() {
    let all = pools();
    let vm = |policy| {
        let mut lb = asking("IPv4,IPv6", policy, None);
        lb.spec.workload_type = None;
        lb
    };
    assert_eq!(words(&decided(&vm(PREFER), rest(&all, &[]))), "claims of core, shows ");
    assert_eq!(words(&decided(&vm(REQUIRE), rest(&all, &[]))), "waits DualStackNotSupported, shows ");
    let mut leased = asking("IPv4,IPv6", PREFER, None);
    leased.spec.ipam = Some(Ipam::Dhcp);
    assert_eq!(words(&decided(&leased, rest(&all, &[]))), "has  0.0.0.0");
    let without_fields = |policy| {
        words(&decided_with_fields(&asking("IPv4,IPv6", policy, None), rest(&all, &BOTH[..1]), false))
    };
    assert_eq!(without_fields(PREFER), "has core 10.0.2.5");
    assert_eq!(without_fields(REQUIRE), "waits DualStackNotSupported, shows core 10.0.2.5");
}
