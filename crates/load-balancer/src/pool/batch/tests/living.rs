//! Ranges that drain, and addresses that rest.

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

/// 2026-01-01.
pub(super) const NOW: i64 = 1_767_225_600;

pub(super) fn with_rest(
    status: &RawObject<IPPool>,
    seconds: i64,
    annotation: Option<&str>,
) -> RawObject<IPPool> {
    let mut json = status.json();
    json["spec"]["quarantineSeconds"] = seconds.into();
    if let Some(annotation) = annotation {
        json["metadata"]["annotations"] = json!({annotations::QUARANTINE: annotation});
    }
    RawObject::from_json(json).unwrap()
}

pub(super) fn at(now: i64, pool: &RawObject<IPPool>, orders: &[Order]) -> Decision {
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

pub(super) fn written(decision: Decision) -> RawObject<IPPool> {
    RawObject::from_json(decision.put.expect("something to write")).unwrap()
}

fn annotation(pool: &IPPool) -> Option<&str> {
    pool.annotations().get(annotations::QUARANTINE).map(String::as_str)
}

pub(super) fn release(holder: &str, last: u8) -> Order {
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

#[test]
fn who_waits_for_a_full_pool_is_told_of_rests_in_words_that_no_release_changes() {
    let held = json!({"10.0.0.10": "shop/web", "10.0.0.11": "a/a", "10.0.0.12": "b/b", "10.0.0.13": "c/c"});
    let told = |pool: &RawObject<IPPool>, now: i64| {
        let decision = at(now, pool, &[claim("d/d")]);
        let Err(refused) = &decision.answers[0] else { panic!("{:?}", decision.answers) };
        assert_eq!(refused.reason(), "PoolExhausted");
        refused.to_string()
    };
    let full = settled(&held, &json!({}));
    let end = "10.0.0.10-10.0.0.13; waiting for one to be released or for another range";
    assert!(told(&full, NOW).ends_with(end), "{}", told(&full, NOW));
    let full = with_rest(&full, 60, None);
    let words = told(&full, NOW);
    assert!(words.contains("waiting for one to be released and to have rested for 60 s, or for"), "{words}");
    let one = written(at(NOW, &full, &[release("shop/web", 10)]));
    assert_eq!(told(&one, NOW + 1), words);
    let two = written(at(NOW + 1, &one, &[release("a/a", 11)]));
    assert_eq!(told(&two, NOW + 2), words);
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

// only its last holder may have it, and counts for it
#[test]
fn what_rests_keeps_its_last_holder_in_a_full_record() {
    let held = json!({"10.0.0.10": "shop/web", "10.0.0.11": "shop/api"});
    let history = json!({"10.0.0.12": "shop/former", "10.0.0.13": "shop/rests"});
    let rests = r#"{"10.0.0.13":"2026-01-01T00:00:59Z"}"#;
    let pool = with_rest(&settled(&held, &history), 60, Some(rests));
    let at_limit = |limit| {
        let (checked, others) = (ip_pools::check(&pool, []), |_, _: &str| false);
        let seen = Seen {
            pool: &pool,
            checked: &checked,
            status_addresses: &[],
            orphans: &[],
            others: &others,
            turns: Turns::default(),
            now: "now",
            at: NOW,
            limit,
        };
        written(decide(seen, &[release("shop/web", 10)]))
    };
    let full = pool.size() + 400;
    let fits = at_limit(full);
    assert!(annotation(&fits).unwrap().contains("10.0.0.10"), "{:?}", annotation(&fits));
    let mut was_trimmed = false;
    for limit in (0..full).rev().step_by(8) {
        let written = at_limit(limit);
        let history = &written.status.as_ref().unwrap().allocated_history;
        was_trimmed |= !history.contains_key("10.0.0.12");
        for address in ip_pools::written_rests(&written).into_keys() {
            assert!(history.contains_key(&address.to_string()), "{address} at {limit}");
        }
        let told = &written.status.as_ref().unwrap().conditions[0];
        let rests = annotation(&written).unwrap().contains("10.0.0.10");
        assert_eq!(told.reason == "NoRoomForRests", !rests, "{told:?} at {limit}");
        assert_eq!(told.status, ConditionStatus::True);
    }
    assert!(was_trimmed);
}

#[test]
fn rests_take_the_room_that_the_other_annotations_leave_and_the_pool_says_when_that_is_too_small() {
    let held: serde_json::Map<String, Value> = (0..1000)
        .map(|n| (format!("10.1.{}.{}", n / 250, 2 + n % 250), json!(format!("shop/web-{n}"))))
        .collect();
    let orders: Vec<_> = held
        .iter()
        .map(|(ip, by)| Order::Release { holder: by.as_str().unwrap().into(), address: ip.parse().unwrap() })
        .collect();
    let mut json = settled(&json!({}), &json!({})).json();
    json["spec"]["ranges"] = json!([{"subnet": "10.1.0.0/16"}]);
    json["spec"]["quarantineSeconds"] = 60.into();
    json["status"]["allocated"] = held.into();
    let with_others = |bytes: usize, json: &Value| {
        let mut json = json.clone();
        json["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
            "x".repeat(bytes).into();
        RawObject::from_json(json).unwrap()
    };
    let total =
        |pool: &IPPool| pool.annotations().iter().map(|(key, text)| key.len() + text.len()).sum::<usize>();
    let is_told = |pool: &IPPool| {
        pool.status.as_ref().unwrap().conditions[0].message.contains("has no room for everything that rests")
    };
    let roomy = written(at(NOW, &with_others(100_000, &json), &orders));
    assert_eq!((ip_pools::written_rests(&roomy).len(), is_told(&roomy)), (1000, false));
    let tight = written(at(NOW, &with_others(230_000, &json), &orders));
    assert!((100..1000).contains(&ip_pools::written_rests(&tight).len()));
    assert!(total(&tight) <= 256 << 10, "{}", total(&tight));
    assert!(is_told(&tight));
    assert_eq!(at(NOW, &tight, &[Order::Refresh]).put, None, "it is told once");
    let over = written(at(NOW + 61, &tight, &[Order::Refresh]));
    assert!(!is_told(&over));
    let none = written(at(NOW, &with_others(262_000, &json), &orders));
    assert_eq!(ip_pools::written_rests(&none).len(), 0);
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
