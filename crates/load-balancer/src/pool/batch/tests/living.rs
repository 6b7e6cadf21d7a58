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
    assert!(full.to_string().contains("10.0.0.10-10.0.0.11 (drains),10.0.0.20-10.0.0.20;"), "{full}");
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
    Err(Refused::QuotaExceeded { pool: "edge".into(), tenant, max, held })
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
    let refused = exceeded(Tenant::GuestCluster("blue".into()), 2, 2);
    assert_eq!(decision.answers[2..], [refused.clone(), refused]);
    let Err(refused) = &decision.answers[2] else { panic!() };
    assert_eq!(refused.reason(), "QuotaExceeded");
    assert!(
        refused
            .to_string()
            .contains("its quota gives guest cluster blue at most 2 addresses, and 2 are held"),
        "{refused}"
    );
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
    let expected = [refused.clone(), Ok(Answer::Done), refused.clone(), Ok(Answer::Done), recorded, refused];
    assert_eq!(decided(&held, &orders).answers, expected);
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
        limit: RECORD_LIMIT,
    };
    let orders: Vec<_> = (0..1000).map(|n| claim(&format!("shop/lb-{n}"))).collect();
    assert!(decide(seen, &orders).answers.iter().all(Result::is_err));
    assert!(others.0.get() <= 2, "{} counts", others.0.get());
}
