//! Quotas, also of those whose addresses rest, and who requires two addresses.

use super::{
    living::{NOW, at, release, with_rest, written},
    *,
};

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

// a tenant may write the label of its objects as often as it likes, and those who wait claim again each time
#[test]
fn what_a_pool_says_of_quotas_is_written_when_the_pool_is_looked_at_and_for_no_claim_in_vain() {
    let held = json!({"10.0.0.10": "shop/blue-1", "10.0.0.11": "shop/blue-2"});
    let pool = with_quota(&held, &json!([{"guestCluster": "blue", "max": 1}]));
    assert_eq!(decided(&pool, &[claim("shop/blue-3"), claim("shop/blue-1")]).put, None);
    for orders in [vec![claim("shop/blue-3"), Order::Refresh], vec![claim("shop/web")]] {
        assert!(status(&decided(&pool, &orders)).conditions[0].message.contains("shop"));
    }
}

#[test]
fn what_is_released_in_a_batch_counts_no_more_and_a_holder_has_what_it_holds() {
    let quota = json!([{"namespace": "shop", "max": 1}]);
    let held = with_quota(&json!({"10.0.0.10": "shop/web"}), &quota);
    let refused = exceeded(Tenant::Namespace("shop".into()), 1, 1);
    let exactly = Order::ClaimExactly { holder: "shop/web".into(), address: ip(12) };
    let mut answers = decided(&held, &[claim("shop/api"), claim("shop/web"), exactly]).answers;
    let Some(Err(moves)) = answers.pop() else { panic!("{answers:?}") };
    let told = "1 are held; waiting for one of them to be released or for a larger quota; this load balancer needs the \
                former and the new one until it has moved";
    assert!(moves.to_string().ends_with(told), "{moves}");
    assert_eq!(answers, [refused.clone(), Ok(Answer::Done)]);

    let release = Order::Release { holder: "shop/web".into(), address: ip(10) };
    let answers = decided(&held, &[claim("shop/api"), release, claim("shop/new")]).answers;
    assert_eq!(answers, [Ok(Answer::RecordedAnew(ip(11))), Ok(Answer::Done), refused]);
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

// one that recorded the other half would release it at once, and claim it again without a pause
#[test]
fn of_a_pair_whose_resting_half_is_in_a_range_that_drains_nothing_is_recorded() {
    let quota = json!([{"namespace": "shop", "max": 2}]);
    let held = json!({"10.0.0.10": "shop/web-1a2b3c4d", "fd00::10": "shop/web-1a2b3c4d"});
    let pool = with_rest(&of_both_families(&held, &quota), 60, None);
    let release_v6 =
        Order::Release { holder: "shop/web-1a2b3c4d".into(), address: "fd00::10".parse().unwrap() };
    let mut resting = written(at(NOW, &pool, &[release("shop/web-1a2b3c4d", 10), release_v6])).json();
    resting["spec"]["ranges"][1]["drain"] = true.into();
    let resting = RawObject::from_json(resting).unwrap();
    let again = at(NOW + 1, &resting, &[claim_both("shop/web-9f8e7d6c")]);
    assert!(again.answers[0].is_err(), "{:?}", again.answers);
    assert!(again.recorded.is_empty(), "{:?}", again.recorded);
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
    assert_eq!((told.status, told.reason.as_str()), (ConditionStatus::True, "QuotaExceeded"));
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
