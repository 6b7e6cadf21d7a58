//! Ranges that drain, quotas, and addresses that rest.

use super::*;

/// .10 and .11 drain, .20 does not.
fn draining(status: &Value) -> RawObject<IPPool> {
    let mut json = pool(status).json();
    json["spec"]["ranges"] = json!([
        {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.11", "drain": true},
        {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.20", "rangeEnd": "10.0.0.20"},
    ]);
    RawObject::from_json(json).unwrap()
}

#[test]
fn out_of_a_range_that_drains_nothing_new_is_given_and_nothing_is_counted_available() {
    let held =
        json!({"total": 3, "available": 2, "lastAllocated": "", "allocated": {"10.0.0.10": "shop/web"}});
    let demand = Order::ClaimExactly { holder: "shop/api".into(), address: ip(11) };
    let orders = [claim("shop/web"), demand, claim("a/a"), claim("b/b")];
    let decision = decided(&draining(&held), &orders);
    let refused = Refused::AddressDraining { pool: "edge".into(), address: ip(11) };
    assert_eq!(decision.answers[..2], [Ok(Answer::Done), Err(refused)]);
    assert_eq!(given(&decision, "a/a"), "10.0.0.20");
    let Err(full) = &decision.answers[3] else { panic!("{:?}", decision.answers) };
    let told =
        "10.0.0.10-10.0.0.11 (drains),10.0.0.20-10.0.0.20 (nothing new is given out of a range that drains);";
    assert!(full.to_string().contains(told), "{full}");
    let status = status(&decision);
    assert_eq!((status.total, status.available), (3, 0));
    // a foreign PUT erased the record: who shows the address has it
    let known = [(ip(10), "shop/web".to_owned())];
    let erased = batch(&draining(&Value::Null), &known, RECORD_LIMIT, &[Order::Refresh]);
    assert_eq!(given(&erased, "shop/web"), "10.0.0.10");
}

#[test]
fn a_pool_whose_ranges_all_drain_says_so() {
    let mut json = draining(&Value::Null).json();
    json["spec"]["ranges"][1]["drain"] = true.into();
    let decision = decided(&RawObject::from_json(json).unwrap(), &[claim("a/a")]);
    let Err(refused) = &decision.answers[0] else { panic!("{:?}", decision.answers) };
    assert_eq!(refused.reason(), "PoolDraining");
    assert!(refused.to_string().contains("every range of it drains"), "{refused}");
    assert_eq!((status(&decision).total, status(&decision).available), (3, 0));
}

#[test]
fn of_many_records_outside_of_the_ranges_a_few_are_named_in_the_condition() {
    let held: Value = (100..200).map(|n| (format!("10.0.0.{n}"), json!("shop/web"))).collect();
    let decision =
        decided(&pool(&json!({"total": 4, "available": 4, "lastAllocated": "", "allocated": held})), &[]);
    let told = &status(&decision).conditions[0];
    assert_eq!(told.reason, "PoolInvalid");
    assert!(told.message.contains("10.0.0.100 is excluded: shop/web holds it"), "{}", told.message);
    assert!(told.message.ends_with("; 97 addresses more are excluded"), "{}", told.message);
}

fn with_quota(allocated: &Value, quota: &Value) -> RawObject<IPPool> {
    let mut json = settled(allocated, &json!({})).json();
    json["spec"]["quota"] = quota.clone();
    RawObject::from_json(json).unwrap()
}

fn exceeded(tenant: Tenant, max: u64, held: u64) -> Result<Answer, Refused> {
    let pool = "edge".into();
    let is_more_held = held > max;
    Err(Refused::QuotaExceeded { pool, tenant, max, asked: 1, is_more_held, rests: false, moves: false })
}

#[test]
fn two_claims_of_one_batch_count_both() {
    let pool =
        with_quota(&json!({}), &json!([{"namespace": "shop", "max": 1}, {"guestCluster": "blue", "max": 2}]));
    let orders = [claim("shop/web"), claim("shop/api"), claim("lab/blue-1")];
    let decision = decided(&pool, &orders);
    assert_eq!(decision.answers[0], Ok(Answer::RecordedAnew(ip(10))));
    assert_eq!(decision.answers[1], exceeded(Tenant::Namespace("shop".into()), 1, 1));
    assert_eq!(decision.answers[2], Ok(Answer::RecordedAnew(ip(11))));
    let blue: Vec<_> = (0..4).map(|n| claim(&format!("shop/blue-{n}"))).collect();
    let pool = with_quota(&json!({}), &json!([{"guestCluster": "blue", "max": 2}]));
    let decision = decided(&pool, &blue);
    let tenant = Tenant::GuestCluster { namespace: "shop".into(), cluster: "blue".into() };
    let refused = exceeded(tenant, 2, 2);
    assert_eq!(decision.answers[2..], [refused.clone(), refused]);
    let Err(refused) = &decision.answers[2] else { panic!() };
    assert_eq!(refused.reason(), "QuotaExceeded");
    assert!(
        refused
            .to_string()
            .contains("gives guest cluster blue of namespace shop at most 2 addresses, and 2 are held"),
        "{refused}"
    );
}

#[test]
fn the_addresses_of_another_namespace_use_up_no_guest_clusters_quota() {
    let held = json!({"10.0.0.10": "evil/blue-1", "10.0.0.11": "evil/blue-2"});
    let pool = with_quota(&held, &json!([{"guestCluster": "blue", "max": 1}]));
    let orders = [claim("shop/blue-1"), claim("shop/blue-2"), claim("evil/blue-3")];
    let decision = decided(&pool, &orders);
    assert_eq!(decision.answers[0], Ok(Answer::RecordedAnew(ip(12))));
    for (answer, expected) in decision.answers[1..]
        .iter()
        .zip(["shop at most 1 addresses, and 1", "evil at most 1 addresses, and more"])
    {
        let Err(refused) = answer else { panic!("{:?}", decision.answers) };
        let expected = format!("its quota gives guest cluster blue of namespace {expected} are held");
        assert!(refused.to_string().contains(&expected), "{refused}");
    }
    let told = &status(&decision).conditions[0].message;
    assert_eq!(told, "more than the quota gives is held, and stays: by guest cluster blue of namespace evil");
}

#[test]
fn what_is_released_in_a_batch_counts_no_more_and_a_holder_has_what_it_holds() {
    let quota = json!([{"namespace": "shop", "max": 1}]);
    let held = with_quota(&json!({"10.0.0.10": "shop/web"}), &quota);
    let orders = [
        claim("shop/api"),
        claim("shop/web"),
        Order::ClaimExactly { holder: "shop/web".into(), address: ip(12) },
        Order::Release { holder: "shop/web".into(), address: ip(10) },
        claim("shop/api"),
        claim("shop/new"),
    ];
    let refused = exceeded(Tenant::Namespace("shop".into()), 1, 1);
    let recorded = Ok(Answer::RecordedAnew(ip(11)));
    let mut answers = decided(&held, &orders).answers;
    let Err(moves) = answers.remove(2) else { panic!("{answers:?}") };
    let told = "1 are held; waiting for one of them to be released or for a larger quota; this load balancer needs the \
                former and the new one until it has moved";
    assert!(moves.to_string().ends_with(told), "{moves}");
    assert_eq!(answers, [refused.clone(), Ok(Answer::Done), Ok(Answer::Done), recorded, refused]);
}

/// .10 to .13, and as many of fd00::/64.
fn of_both_families(allocated: &Value, quota: &Value) -> RawObject<IPPool> {
    let mut json = with_quota(allocated, quota).json();
    let more = json!({"subnet": "fd00::/64", "rangeStart": "fd00::10", "rangeEnd": "fd00::13"});
    json["spec"]["ranges"].as_array_mut().unwrap().push(more);
    RawObject::from_json(json).unwrap()
}

fn claim_both(holder: &str) -> Order {
    let claim = |family| Order::Claim { holder: holder.into(), known: None, family: Some(family) };
    Order::ClaimBoth(Box::new([claim(Family::V4), claim(Family::V6)]))
}

fn holders(pool: &IPPool) -> Vec<(String, String)> {
    pool.status.clone().unwrap_or_default().allocated.into_iter().collect()
}

// one that got half would keep it from others, and wait for another who does the same
#[test]
fn who_requires_two_gets_two_within_the_quota_or_none() {
    let quota = json!([{"namespace": "shop", "max": 5}]);
    let pool = of_both_families(&json!({"10.0.0.10": "shop/one"}), &quota);
    let orders: Vec<_> = ["shop/a", "shop/b", "shop/c", "shop/d"].map(claim_both).into();
    let decision = decided(&pool, &orders);
    assert_eq!(decision.answers[..2], [Ok(Answer::Done), Ok(Answer::Done)]);
    for answer in &decision.answers[2..] {
        assert!(matches!(answer, Err(Refused::QuotaExceeded { asked: 2, .. })), "{answer:?}");
    }
    let written = written(decision);
    let expected = [
        ("10.0.0.10", "shop/one"),
        ("10.0.0.11", "shop/a"),
        ("10.0.0.12", "shop/b"),
        ("fd00::10", "shop/a"),
        ("fd00::11", "shop/b"),
    ];
    assert_eq!(holders(&written), expected.map(|(ip, holder)| (ip.to_owned(), holder.to_owned())));
    // four are held after a release, and one more is no help
    let orders = [release("shop/one", 10), claim_both("shop/c"), claim("shop/single")];
    let answers = decided(&written, &orders).answers;
    let Err(refused) = &answers[1] else { panic!("{answers:?}") };
    let told = "at most 5 addresses, and of these fewer than the 2 that are required are left: the others are held; waiting";
    assert!(refused.to_string().contains(told), "{refused}");
    assert!(answers[2].is_ok(), "{answers:?}");
    // who has one of two needs one more
    let half = of_both_families(&json!({"10.0.0.10": "shop/a"}), &json!([{"namespace": "shop", "max": 2}]));
    assert_eq!(decided(&half, &[claim_both("shop/a")]).answers, [Ok(Answer::Done)]);
}

#[test]
fn who_requires_two_and_was_made_again_gets_both_out_of_their_rest_whatever_the_quota() {
    let quota = json!([{"namespace": "shop", "max": 2}]);
    let held = json!({"10.0.0.10": "shop/web-1a2b3c4d", "fd00::10": "shop/web-1a2b3c4d"});
    let pool = with_rest(&of_both_families(&held, &quota), 60, None);
    let release_v6 =
        Order::Release { holder: "shop/web-1a2b3c4d".into(), address: "fd00::10".parse().unwrap() };
    let resting = written(at(NOW, &pool, &[release("shop/web-1a2b3c4d", 10), release_v6]));
    let again = at(NOW + 1, &resting, &[claim_both("shop/other"), claim_both("shop/web-9f8e7d6c")]);
    assert!(again.answers[0].is_err(), "{:?}", again.answers);
    assert_eq!(again.answers[1], Ok(Answer::Done));
    assert_eq!(
        holders(&written(again)),
        ["10.0.0.10", "fd00::10"].map(|ip| (ip.to_owned(), "shop/web-9f8e7d6c".to_owned()))
    );
}

#[test]
fn a_quota_that_will_never_do_waits_for_a_larger_one_alone() {
    for (max, told) in [
        (0, "its quota gives namespace shop no addresses; waiting for a larger quota"),
        (
            1,
            "its quota gives namespace shop at most 1 addresses, and 2 are required; waiting for a larger quota",
        ),
    ] {
        let pool = of_both_families(&json!({}), &json!([{"namespace": "shop", "max": max}]));
        let decision = decided(&pool, &[claim_both("shop/web")]);
        let Err(refused) = &decision.answers[0] else { panic!("{:?}", decision.answers) };
        assert!(refused.to_string().ends_with(told), "{refused}");
    }
}

#[test]
fn a_refusal_says_the_same_while_who_holds_more_than_the_quota_gives_releases_some_of_it() {
    let quota = json!([{"namespace": "shop", "max": 1}]);
    let held = json!({"10.0.0.10": "shop/a", "10.0.0.11": "shop/b", "10.0.0.12": "shop/c"});
    let pool = with_rest(&with_quota(&held, &quota), 60, None);
    let orders =
        [claim("shop/d"), release("shop/a", 10), claim("shop/d"), release("shop/b", 11), claim("shop/d")];
    let told: Vec<_> = at(NOW, &pool, &orders).answers.into_iter().filter_map(Result::err).collect();
    assert_eq!(told, vec![told[0].clone(); 3]);
}

#[test]
fn a_quota_below_what_is_held_takes_nothing_away_and_is_told() {
    let held = json!({"10.0.0.10": "shop/web", "10.0.0.11": "shop/api"});
    let quota = json!([{"namespace": "shop", "max": 1}, {"namespace": "lab", "max": 0}]);
    let decision = decided(&with_quota(&held, &quota), &[Order::Refresh]);
    let status = status(&decision);
    assert_eq!(status.allocated.len(), 2);
    let told = &status.conditions[0];
    assert_eq!((told.status, told.reason.as_str()), (harvester_api::ConditionStatus::True, "QuotaExceeded"));
    assert_eq!(told.message, "more than the quota gives is held, and stays: by namespace shop");
    let known = [(ip(12), "shop/erased".to_owned())];
    let put_back = batch(&with_quota(&held, &quota), &known, RECORD_LIMIT, &[Order::Refresh]);
    assert_eq!(given(&put_back, "shop/erased"), "10.0.0.12", "a record that somebody erased is no new claim");
}

// docs/contract/load-balancer.md#IP-12
#[test]
fn a_thousand_who_wait_for_their_quota_are_counted_once() {
    struct Counting(std::cell::Cell<usize>);
    impl Others for Counting {
        fn have(&self, _: IpAddr, _: &str) -> bool {
            false
        }

        fn outrank(&self, _: IpAddr, _: &str) -> bool {
            false
        }

        fn used_by(&self, _: &str) -> Vec<IpAddr> {
            Vec::new()
        }

        fn cluster_of(&self, _: &str) -> Option<String> {
            Some("blue".to_owned())
        }

        fn members_of(&self, _: &str) -> Vec<String> {
            self.0.set(self.0.get() + 1);
            Vec::new()
        }
    }
    let pool = with_quota(&json!({}), &json!([{"guestCluster": "blue", "max": 0}]));
    let checked = ip_pools::check(&pool, []);
    let others = Counting(0.into());
    let seen = Seen {
        pool: &pool,
        checked: &checked,
        status_addresses: &[],
        orphans: &[],
        others: &others,
        turns: Turns::default(),
        now: "now",
        at: 1_767_225_600,
        limit: RECORD_LIMIT,
    };
    let orders: Vec<_> = (0..1000).map(|n| claim(&format!("shop/lb-{n}"))).collect();
    assert!(decide(seen, &orders).answers.iter().all(Result::is_err));
    assert!(others.0.get() <= 2, "{} counts", others.0.get());
}

/// 2026-01-01.
const NOW: i64 = 1_767_225_600;

fn with_rest(status: &RawObject<IPPool>, seconds: i64, annotation: Option<&str>) -> RawObject<IPPool> {
    let mut json = status.json();
    json["spec"]["quarantineSeconds"] = seconds.into();
    if let Some(annotation) = annotation {
        json["metadata"]["annotations"] = json!({annotations::QUARANTINE: annotation});
    }
    RawObject::from_json(json).unwrap()
}

fn at(now: i64, pool: &RawObject<IPPool>, orders: &[Order]) -> Decision {
    let (checked, others) = (ip_pools::check(pool, []), |_, _: &str| false);
    let seen = Seen {
        pool,
        checked: &checked,
        status_addresses: &[],
        orphans: &[],
        others: &others,
        turns: Turns::default(),
        now: "now",
        at: now,
        limit: RECORD_LIMIT,
    };
    decide(seen, orders)
}

fn written(decision: Decision) -> RawObject<IPPool> {
    RawObject::from_json(decision.put.expect("something to write")).unwrap()
}

fn annotation(pool: &IPPool) -> Option<&str> {
    pool.annotations().get(annotations::QUARANTINE).map(String::as_str)
}

fn release(holder: &str, last: u8) -> Order {
    Order::Release { holder: holder.into(), address: ip(last) }
}

/// Allocated and free and resting addresses are those of the range.
fn numbers(pool: &IPPool) -> (i64, i64, i64, i64) {
    let status = pool.status.as_ref().unwrap();
    let count = |n: usize| i64::try_from(n).unwrap();
    let resting = count(ip_pools::written_rests(pool).len());
    (status.total, count(status.allocated.len()), status.available, resting)
}

#[test]
fn a_released_address_rests_until_its_time_is_over() {
    let held = json!({"10.0.0.10": "shop/web", "10.0.0.11": "a/a", "10.0.0.12": "b/b"});
    let pool = with_rest(&settled(&held, &json!({})), 60, None);
    let decision = at(NOW, &pool, &[release("shop/web", 10), claim("c/c"), claim("d/d")]);
    assert_eq!(decision.answers[1], Ok(Answer::RecordedAnew(ip(13))));
    assert!(matches!(decision.answers[2], Err(Refused::Exhausted { .. })), "{:?}", decision.answers);
    let resting = written(decision);
    assert_eq!(annotation(&resting), Some(r#"{"10.0.0.10":"2026-01-01T00:01:01Z"}"#));
    assert_eq!(numbers(&resting), (4, 3, 0, 1));
    assert_eq!(at(NOW, &resting, &[Order::Refresh]).put, None, "one write for the release and its rest");

    let demand = Order::ClaimExactly { holder: "d/d".into(), address: ip(10) };
    let waits = at(NOW + 60, &resting, &[claim("d/d"), demand, Order::Refresh]);
    assert_eq!(waits.put, None, "who waits for the end of a rest costs nothing");
    let Err(refused) = &waits.answers[1] else { panic!("{:?}", waits.answers) };
    assert!(
        refused.to_string().contains("10.0.0.10 of pool edge rests until 2026-01-01T00:01:01Z"),
        "{refused}"
    );
    assert_eq!(refused.reason(), "AddressInUse");

    let back = written(at(NOW + 1, &resting, &[claim("shop/web")]));
    assert_eq!((annotation(&back), numbers(&back)), (None, (4, 4, 0, 0)), "its former holder is exempt");
    let over = written(at(NOW + 61, &resting, &[Order::Refresh]));
    assert_eq!((annotation(&over), numbers(&over)), (None, (4, 3, 1, 0)));
    let given = written(at(NOW + 61, &resting, &[claim("d/d")]));
    assert_eq!((annotation(&given), numbers(&given)), (None, (4, 4, 0, 0)));
}

fn demand(holder: &str, last: u8) -> Order {
    Order::ClaimExactly { holder: holder.into(), address: ip(last) }
}

#[test]
fn an_address_that_rests_counts_for_the_quota_of_who_released_it() {
    let quota = json!([{"namespace": "evil", "max": 1}]);
    let pool = with_rest(&with_quota(&json!({"10.0.0.10": "evil/a"}), &quota), 60, None);
    let decision = at(NOW, &pool, &[release("evil/a", 10), claim("evil/b"), demand("evil/c", 11)]);
    for answer in &decision.answers[1..] {
        let Err(refused) = answer else { panic!("{:?}", decision.answers) };
        let told = "gives namespace evil at most 1 addresses, and 1 are held or rest after their release;";
        assert!(refused.to_string().contains(told), "{refused}");
    }
    let resting = written(decision);
    let orders = [claim("shop/web"), claim("evil/b"), claim("evil/a"), claim("evil/b")];
    let answers = at(NOW + 1, &resting, &orders).answers;
    assert_eq!(answers[0], Ok(Answer::RecordedAnew(ip(11))), "it is no matter of other tenants");
    assert!(answers[1].is_err(), "{answers:?}");
    assert_eq!(answers[2], Ok(Answer::RecordedAnew(ip(10))), "its former holder ends the rest");
    assert!(matches!(answers[3], Err(Refused::QuotaExceeded { is_more_held: false, .. })), "{answers:?}");
    assert!(at(NOW + 61, &resting, &[claim("evil/b")]).answers[0].is_ok());
}

#[test]
fn a_holder_that_moves_on_and_on_lays_no_more_to_rest_than_its_quota_gives() {
    let quota = json!([{"namespace": "evil", "max": 3}]);
    let pool = with_rest(&with_quota(&json!({"10.0.0.10": "evil/a"}), &quota), 60, None);
    let moves = [
        demand("evil/a", 11),
        release("evil/a", 10),
        demand("evil/a", 12),
        release("evil/a", 11),
        demand("evil/a", 13),
        demand("evil/a", 10),
    ];
    let answers = at(NOW, &pool, &moves).answers;
    assert!(answers[..4].iter().all(Result::is_ok), "{answers:?}");
    assert!(answers[4].is_err(), "{answers:?}");
    assert_eq!(answers[5], Ok(Answer::Done), "where it was before it may be again");
}

#[test]
fn a_rest_ends_where_somebody_edits_it_out_or_shortens_it() {
    let pool = settled(&json!({}), &json!({"10.0.0.10": "shop/web"}));
    let forged = r#"{"10.0.0.10":"9999-01-01T00:00:00Z","10.0.0.99":"2026-01-01T00:00:30Z","x":1}"#;
    let bounded = written(at(NOW, &with_rest(&pool, 60, Some(forged)), &[Order::Refresh]));
    assert_eq!(annotation(&bounded), Some(r#"{"10.0.0.10":"2026-01-01T00:01:01Z"}"#));
    assert_eq!(numbers(&bounded), (4, 0, 3, 1));
    for seconds in [0, -7] {
        let without = written(at(NOW, &with_rest(&bounded, seconds, None), &[Order::Refresh]));
        assert_eq!((annotation(&without), numbers(&without)), (None, (4, 0, 4, 0)));
    }
    let garbage = written(at(NOW, &with_rest(&pool, 60, Some("garbage")), &[Order::Refresh]));
    assert_eq!(annotation(&garbage), None);
}

#[test]
fn a_record_that_somebody_erased_comes_back_out_of_its_rest() {
    let rests = r#"{"10.0.0.10":"2026-01-01T00:01:00Z"}"#;
    let pool = with_rest(&settled(&json!({}), &json!({})), 60, Some(rests));
    let known = [(ip(10), "shop/web".to_owned())];
    let (checked, others) = (ip_pools::check(&pool, []), |_, _: &str| false);
    let seen = Seen {
        pool: &pool,
        checked: &checked,
        status_addresses: &known,
        orphans: &[],
        others: &others,
        turns: Turns::default(),
        now: "now",
        at: NOW,
        limit: RECORD_LIMIT,
    };
    let back = written(decide(seen, &[Order::Refresh]));
    assert_eq!((annotation(&back), numbers(&back)), (None, (4, 1, 3, 0)));
}

#[test]
fn thousands_that_rest_fit_into_the_annotations_of_an_object() {
    let held: serde_json::Map<String, Value> =
        (0..8000).map(|n| (format!("10.1.{}.{}", n / 250, 2 + n % 250), json!("shop/web"))).collect();
    let orders: Vec<_> = held
        .keys()
        .map(|address| Order::Release { holder: "shop/web".into(), address: address.parse().unwrap() })
        .collect();
    let mut json = settled(&json!({}), &json!({})).json();
    json["spec"]["ranges"] = json!([{"subnet": "10.1.0.0/16"}]);
    json["status"]["allocated"] = held.into();
    let pool = with_rest(&RawObject::from_json(json).unwrap(), 60, None);
    let resting = written(at(NOW, &pool, &orders));
    let text = annotation(&resting).unwrap();
    assert!((50_000..100_000).contains(&text.len()), "{} bytes", text.len());
    let (total, allocated, available, rest) = numbers(&resting);
    assert_eq!((allocated, available + rest), (0, total));
}

/// A step of somebody: claims, releases, demands, time, and edits of the pool by its administrator.
#[derive(Clone, Debug)]
enum Move {
    Claim(u8),
    Demand(u8, u8),
    Release(u8),
    Wait(u8),
    Rest(u8),
    Drain(bool),
    Erase,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let step = prop_oneof![
        4 => (0..6_u8).prop_map(Move::Claim),
        2 => (0..6_u8, 9..15_u8).prop_map(|(who, last)| Move::Demand(who, last)),
        4 => (0..6_u8).prop_map(Move::Release),
        2 => (0..50_u8).prop_map(Move::Wait),
        1 => prop_oneof![Just(0), Just(20), Just(200)].prop_map(Move::Rest),
        1 => any::<bool>().prop_map(Move::Drain),
        1 => Just(Move::Erase),
    ];
    prop::collection::vec(step, 1..60)
}

// docs/contract/addresses.md#7, docs/contract/load-balancer.md#IP-11
proptest! {
    // .10 and .11 may drain, .12 and .13 do not
    #[test]
    fn allocated_and_free_and_resting_addresses_are_those_of_the_range(moves in moves()) {
        let mut json = settled(&json!({}), &json!({})).json();
        json["spec"]["ranges"] = json!([
            {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.11"},
            {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.12", "rangeEnd": "10.0.0.13"},
        ]);
        let mut now = NOW;
        for step in moves {
            let before: RawObject<IPPool> = RawObject::from_json(json.clone()).unwrap();
            let allocated = |pool: &IPPool| pool.status.clone().unwrap_or_default().allocated;
            let order = match step {
                Move::Claim(who) => claim(&format!("shop/{who}")),
                Move::Demand(who, last) => {
                    Order::ClaimExactly { holder: format!("shop/{who}"), address: ip(last) }
                }
                Move::Release(who) => {
                    let holder = format!("shop/{who}");
                    let held = allocated(&before).into_iter().find(|(_, by)| *by == holder);
                    let Some((address, _)) = held else { continue };
                    Order::Release { holder, address: address.parse().unwrap() }
                }
                Move::Wait(seconds) => {
                    now += i64::from(seconds);
                    Order::Refresh
                }
                Move::Rest(seconds) => {
                    json["spec"]["quarantineSeconds"] = seconds.into();
                    Order::Refresh
                }
                Move::Drain(drain) => {
                    json["spec"]["ranges"][0]["drain"] = drain.into();
                    Order::Refresh
                }
                Move::Erase => {
                    json["metadata"]["annotations"] = json!({});
                    Order::Refresh
                }
            };
            let seen: RawObject<IPPool> = RawObject::from_json(json.clone()).unwrap();
            let resting = ip_pools::resting(&seen, now);
            let history = seen.status.clone().unwrap_or_default().allocated_history;
            if let Some(put) = at(now, &seen, &[order]).put {
                json = put;
            }
            let pool: RawObject<IPPool> = RawObject::from_json(json.clone()).unwrap();
            let drains = pool.spec.ranges[0].drain;
            for (address, holder) in allocated(&pool) {
                if allocated(&seen).contains_key(&address) {
                    continue;
                }
                let given: IpAddr = address.parse().unwrap();
                prop_assert!(!drains || given >= ip(12), "{address} drains");
                let is_former = history.get(&address) == Some(&holder);
                prop_assert!(is_former || resting.end_of(given).is_none(), "{address} rests");
            }
            let rests = ip_pools::written_rests(&pool);
            let withheld = (10..14_u8).filter(|last| {
                let is_free = !allocated(&pool).contains_key(&ip(*last).to_string());
                is_free && (rests.contains_key(&ip(*last)) || drains && *last < 12)
            });
            let status = pool.status.clone().unwrap();
            let sum = allocated(&pool).len() + withheld.count();
            prop_assert_eq!(status.available + i64::try_from(sum).unwrap(), 4, "{:?}", status);
            prop_assert!(rests.keys().all(|address| !allocated(&pool).contains_key(&address.to_string())));
        }
    }
}

#[test]
fn a_thousand_claims_of_a_full_record_walk_it_a_few_times() {
    let history: BTreeMap<_, _> =
        (0..1500).map(|n| (format!("10.0.{}.{}", n / 250, n % 250 + 1), format!("shop/old-{n}"))).collect();
    let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": "edge", "finalizers": [finalizers::IP_POOL], "resourceVersion": "7"},
        "spec": {"ranges": [{"subnet": "10.0.0.0/16"}]},
        "status": {"total": 65_534, "available": 65_534, "lastAllocated": "", "allocatedHistory": history}});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let limit = pool.size() + 45 * 1500;
    let orders: Vec<_> = (0..1000).map(|n| claim(&format!("shop/web-{n}"))).collect();
    let mut decision = None;
    let steps = crate::steps::steps_of(|| decision = Some(batch(&pool, &[], limit, &orders)));
    let decision = decision.unwrap();
    assert!(decision.answers.iter().all(Result::is_ok), "{:?}", decision.answers);
    let left = decision.put.unwrap()["status"]["allocatedHistory"].as_object().unwrap().len();
    assert!(left < 1400, "the record was full: {left} are remembered");
    assert!((1..=10).contains(&steps), "{steps}");
}
