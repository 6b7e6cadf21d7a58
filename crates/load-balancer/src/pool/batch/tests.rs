//! One PUT for many orders: a case table, and properties over any batch.

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::IPPoolStatus;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
mod limit;
mod living;
mod quotas;

/// Usable: .10 to .13 of 10.0.0.0/24.
fn pool(status: &Value) -> RawObject<IPPool> {
    let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": "edge", "finalizers": [finalizers::IP_POOL], "resourceVersion": "7"},
        "spec": {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.13",
            "future": true}]},
        "status": status});
    serde_json::from_value(object).unwrap()
}

fn settled(allocated: &Value, history: &Value) -> RawObject<IPPool> {
    let held = allocated.as_object().unwrap().len();
    pool(&json!({"total": 4, "available": 4 - held, "lastAllocated": "", "allocated": allocated,
        "allocatedHistory": history, "conditions": [{"type": "Ready", "status": "True"}]}))
}

/// Others use an address or do not, and none has a better right.
impl<F: Fn(IpAddr, &str) -> bool> Others for F {
    fn have(&self, address: IpAddr, holder: &str) -> bool {
        self(address, holder)
    }

    fn outrank(&self, _: IpAddr, _: &str) -> bool {
        false
    }

    fn used_by(&self, _: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Names of guest clusters begin those of their holders.
    fn cluster_of(&self, holder: &str) -> Option<String> {
        let (_, name) = holder.split_once('/')?;
        name.split_once('-').map(|(cluster, _)| cluster.to_owned())
    }

    fn members_of(&self, cluster: &str) -> Vec<String> {
        let names =
            (0..100).flat_map(|n| ["evil", "shop"].map(|namespace| format!("{namespace}/{cluster}-{n}")));
        names.collect()
    }
}

fn batch(pool: &RawObject<IPPool>, known: &[(IpAddr, String)], limit: usize, orders: &[Order]) -> Decision {
    let checked = ip_pools::check(pool, []);
    let others = |_, _: &str| false;
    decide(
        Seen {
            pool,
            checked: &checked,
            status_addresses: known,
            orphans: &[],
            others: &others,
            turns: Turns::default(),
            now: "now",
            at: 1_767_225_600,
            limit,
        },
        orders,
    )
}

fn decided(pool: &RawObject<IPPool>, orders: &[Order]) -> Decision {
    batch(pool, &[], RECORD_LIMIT, orders)
}

fn claim(holder: &str) -> Order {
    Order::Claim { holder: holder.into(), known: None, family: None }
}

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn status(decision: &Decision) -> IPPoolStatus {
    let put = decision.put.as_ref().expect("something to write");
    serde_json::from_value(put["status"].clone()).unwrap()
}

/// The address that the written pool records for the holder.
fn given(decision: &Decision, holder: &str) -> String {
    let allocated = status(decision).allocated;
    allocated.into_iter().find(|(_, by)| by == holder).unwrap_or_else(|| panic!("{holder} has none")).0
}

// docs/contract/load-balancer.md#IP-4
#[test]
fn what_waits_shares_one_put_and_everybody_has_an_address_of_their_own() {
    let pool = settled(&json!({"10.0.0.10": "a/a"}), &json!({}));
    let orders = [
        claim("b/b"),
        Order::Release { holder: "a/a".into(), address: ip(10) },
        claim("c/c"),
        claim("d/d"),
        claim("e/e"),
        claim("f/f"),
    ];
    let decision = decided(&pool, &orders);
    let addresses = ["b/b", "c/c", "d/d", "e/e"].map(|holder| given(&decision, holder));
    assert_eq!(addresses, ["10.0.0.11", "10.0.0.12", "10.0.0.13", "10.0.0.10"]);
    assert_eq!(decision.answers[0], Ok(Answer::RecordedAnew(ip(11))));
    let Err(refused @ Refused::Exhausted { .. }) = &decision.answers[5] else {
        panic!("{:?}", decision.answers[5])
    };
    assert!(refused.to_string().starts_with(
        "fail to get ip from pool edge, error: no IP addresses available in range set: 10.0.0.10-10.0.0.13;"
    ));
    let status = status(&decision);
    assert_eq!((status.total, status.available, status.last_allocated.as_str()), (4, 0, "10.0.0.10"));
    let put = decision.put.unwrap();
    assert_eq!(put["spec"]["ranges"][0]["future"], true, "what we do not know survives");
    assert_eq!(put["metadata"]["resourceVersion"], "7");
}

#[test]
fn a_batch_that_changes_nothing_writes_nothing() {
    let pool = settled(&json!({"10.0.0.10": "shop/web"}), &json!({}));
    let nothing = [
        claim("shop/web"),
        Order::Refresh,
        Order::Release { holder: "shop/api".into(), address: ip(11) },
        Order::Release { holder: "shop/api".into(), address: ip(10) },
    ];
    let decision = decided(&pool, &nothing);
    assert_eq!((decision.put, decision.answers), (None, vec![Ok(Answer::Done); 4]));
    let full = settled(
        &json!({"10.0.0.10": "a/a", "10.0.0.11": "b/b", "10.0.0.12": "c/c", "10.0.0.13": "d/d"}),
        &json!({}),
    );
    assert_eq!(decided(&full, &[claim("e/e")]).put, None, "those who wait cost no request");
}

#[test]
fn a_new_pool_gets_numbers_condition_and_finalizer_at_once() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}});
    let decision = decided(&serde_json::from_value(object).unwrap(), &[Order::Refresh]);
    let put = decision.put.unwrap();
    assert_eq!(put["metadata"]["finalizers"], json!([finalizers::IP_POOL]));
    assert_eq!(
        put["status"],
        json!({"total": 253, "available": 253, "lastAllocated": "", "conditions": [{"type": "Ready", "status": "True",
            "reason": "RangesValid", "message": "", "lastUpdateTime": "now", "lastTransitionTime": "now"}]})
    );
}

// docs/contract/load-balancer.md#IP-16: a PUT without status made addresses free that were in use
#[test]
fn records_that_a_foreign_put_erased_come_back_before_anything_is_given_out() {
    let known =
        [(ip(10), "shop/web".to_owned()), (ip(12), "shop/api".to_owned()), (ip(200), "shop/odd".to_owned())];
    let decision = batch(&pool(&Value::Null), &known, RECORD_LIMIT, &[claim("shop/new")]);
    assert_eq!(given(&decision, "shop/new"), "10.0.0.11");
    let expected = [("10.0.0.10", "shop/web"), ("10.0.0.11", "shop/new"), ("10.0.0.12", "shop/api")];
    let expected: BTreeMap<_, _> = expected.map(|(key, holder)| (key.to_owned(), holder.to_owned())).into();
    assert_eq!(status(&decision).allocated, expected);
}

#[test]
fn an_address_that_was_given_to_another_stays_with_that_one() {
    let pool = settled(&json!({"10.0.0.10": "shop/api"}), &json!({}));
    assert_eq!(batch(&pool, &[(ip(10), "shop/web".to_owned())], RECORD_LIMIT, &[Order::Refresh]).put, None);
}

// docs/contract/load-balancer.md#IP-14: faults were only logged
#[test]
fn a_pool_with_wrong_ranges_says_every_fault_and_gives_nothing() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0"}, {"subnet": "10.0.1.0/99"}]},
        "status": {"total": 9, "available": 8, "lastAllocated": "10.0.0.9", "allocated": {"10.0.0.9": "shop/web"}}});
    let decision = decided(&serde_json::from_value(object).unwrap(), &[claim("shop/new"), claim("shop/web")]);
    assert!(matches!(&decision.answers[0], Err(Refused::Unusable { .. })));
    assert_eq!(decision.answers[1], Ok(Answer::Done));
    assert_eq!(given(&decision, "shop/web"), "10.0.0.9", "what is held stays held");
    let status = status(&decision);
    assert_eq!((status.total, status.available), (9, 8));
    let message = &status.conditions[0].message;
    assert!(message.contains("range 10.0.0.0:") && message.contains("range 10.0.1.0/99:"), "{message}");
}

#[test]
fn of_two_pools_that_overlap_only_the_younger_one_is_not_ready() {
    let make = |name: &str, created: &str| -> RawObject<IPPool> {
        let object = json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}});
        serde_json::from_value(object).unwrap()
    };
    let (first, second) = (make("b", "2026-01-01T00:00:00Z"), make("a", "2026-01-01T00:00:01Z"));
    let twin = make("c", "2026-01-01T00:00:00Z");
    let all: [&IPPool; 3] = [&first, &second, &twin];
    let blocked = |pool: &RawObject<IPPool>| ip_pools::check(pool, all).blocked.is_some();
    assert_eq!((blocked(&first), blocked(&second), blocked(&twin)), (false, true, true));
}

#[test]
fn a_pool_that_is_being_deleted_gives_nothing_and_goes_when_nobody_holds_an_address() {
    let mut object = settled(&json!({"10.0.0.10": "shop/web"}), &json!({})).json();
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let decision = decided(&pool, &[claim("shop/new")]);
    assert!(matches!(&decision.answers[0], Err(Refused::Unusable { .. })));
    assert_eq!(decision.put.as_ref().unwrap()["metadata"]["finalizers"], json!([finalizers::IP_POOL]));
    let decision = decided(&pool, &[Order::Release { holder: "shop/web".into(), address: ip(10) }]);
    assert_eq!(decision.put.unwrap()["metadata"].get("finalizers"), None);
}

#[test]
fn the_annotation_of_a_release_by_hand_goes_with_the_release() {
    let mut object = settled(&json!({"10.0.0.10": "shop/web"}), &json!({})).json();
    object["metadata"]["annotations"] = json!({annotations::MANUALLY_RELEASE_IP: "10.0.0.10: shop/web", annotations::MANUAL_RELEASE_REFUSED: "x", "mine": "1"});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let order =
        |text: &str| Order::Manual { annotation: text.into(), release: Ok((ip(10), "shop/web".into())) };
    let decision = decided(&pool, &[order("10.0.0.10: shop/web")]);
    assert_eq!(decision.put.as_ref().unwrap()["metadata"]["annotations"], json!({"mine": "1"}));
    assert_eq!(status(&decision).allocated_history["10.0.0.10"], "shop/web");
    let decision = decided(&pool, &[order("10.0.0.10: shop/other")]);
    let annotations = &decision.put.unwrap()["metadata"]["annotations"];
    assert_eq!(annotations[annotations::MANUALLY_RELEASE_IP], "10.0.0.10: shop/web", "a newer wish stays");

    let order = Order::Manual { annotation: "10.0.0.10: shop/web".into(), release: Err("it exists".into()) };
    let decision = decided(&pool, &[order]);
    let annotations = &decision.put.as_ref().unwrap()["metadata"]["annotations"];
    assert_eq!(*annotations, json!({annotations::MANUAL_RELEASE_REFUSED: "it exists", "mine": "1"}));
    assert_eq!(status(&decision).allocated["10.0.0.10"], "shop/web");
}

#[test]
fn a_record_that_would_grow_too_large_loses_history_first_and_then_refuses() {
    let history = json!({"10.0.0.12": "old/one", "10.0.0.13": "old/two"});
    let pool = settled(&json!({"10.0.0.10": "shop/web"}), &history);
    let bare = settled(&json!({"10.0.0.10": "shop/web"}), &json!({}));
    let limit = bare.json().to_string().len() + 150;
    let decision = batch(&pool, &[], limit, &[claim("shop/api")]);
    assert_eq!(given(&decision, "shop/api"), "10.0.0.11");
    assert_eq!(status(&decision).allocated_history, BTreeMap::new());

    let decision =
        batch(&bare, &[], bare.json().to_string().len() + 20, &[claim("shop/api"), claim("shop/web")]);
    assert_eq!(decision.answers[0], Err(Refused::RecordFull { pool: "edge".into(), records: 1 }));
    assert_eq!(decision.answers[1], Ok(Answer::Done), "who holds an address keeps it");
}

#[test]
fn history_that_a_record_has_no_room_for_keeps_no_claim_from_its_address() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0/16"}]}});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let address = |n: u16| IpAddr::from([10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
    let remember = |n: u16| Order::Remember {
        holder: format!("zzz/one-of-many-thousands-of-services-{n}"),
        address: address(n),
    };
    let orders: Vec<_> = (2..20_002).map(remember).chain([claim("shop/web")]).collect();
    let decision = decided(&pool, &orders);
    assert!(decision.answers.iter().all(Result::is_ok));
    given(&decision, "shop/web");
    let status = status(&decision);
    let entries = status.allocated.iter().chain(&status.allocated_history);
    let size: usize = entries.map(|(key, holder)| bytes_in_store(key, holder)).sum();
    assert!(pool.size() + size <= RECORD_LIMIT, "{size}");
    assert!(status.allocated_history.len() > 10_000, "what fits is remembered");
}

#[test]
fn nobody_takes_over_what_the_history_remembers_of_another() {
    let pool = settled(&json!({}), &json!({"10.0.0.11": "shop/web"}));
    let remember = Order::Remember { holder: "zzz/web".into(), address: ip(11) };
    assert_eq!(decided(&pool, &[remember]).put, None);
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let holder = || (0..7_u8).prop_map(|n| format!("ns/lb-{n}"));
    let one = prop_oneof![
        4 => (holder(), proptest::option::of(8..16_u8)).prop_map(|(holder, known)| Order::Claim { holder, known: known.map(ip), family: None }),
        2 => (holder(), 8..16_u8).prop_map(|(holder, last)| Order::ClaimExactly { holder, address: ip(last) }),
        3 => (holder(), 8..16_u8).prop_map(|(holder, last)| Order::Release { holder, address: ip(last) }),
        1 => (holder(), 8..16_u8).prop_map(|(holder, last)| Order::Remember { holder, address: ip(last) }),
        1 => Just(Order::Refresh),
    ];
    proptest::collection::vec(one, 0..12)
}

#[test]
fn an_address_that_somebody_uses_elsewhere_is_neither_given_nor_put_back() {
    let taken = |address, holder: &str| address == ip(10) && holder != "shop/user";
    let known = [(ip(10), "shop/erased".to_owned())];
    let pool = settled(&json!({}), &json!({}));
    let checked = ip_pools::check(&pool, []);
    let seen = |others| Seen {
        pool: &pool,
        checked: &checked,
        status_addresses: &known,
        orphans: &[],
        others,
        turns: Turns::default(),
        now: "now",
        at: 1_767_225_600,
        limit: RECORD_LIMIT,
    };
    let decision = decide(seen(&taken), &[claim("shop/new"), claim("shop/user")]);
    assert_eq!(["shop/new", "shop/user"].map(|holder| given(&decision, holder)), ["10.0.0.11", "10.0.0.12"]);
    assert_eq!(decision.recorded, [ip(11), ip(12)]);
    let back = decide(seen(&|_, _: &str| false), &[Order::Refresh]);
    assert_eq!(back.recorded, [ip(10)], "what the pool has lost");
}

#[rstest]
#[case::of_the_other_family("fd00::12", &["fd00::12"])]
#[case::of_the_same_family("10.0.0.12", &[])]
fn a_lost_record_comes_back_beside_one_of_the_other_family(#[case] lost: &str, #[case] expected: &[&str]) {
    let mut json = settled(&json!({"10.0.0.10": "shop/web"}), &json!({})).json();
    json["spec"]["ranges"] = json!([{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/112"}]);
    let pool = RawObject::from_json(json).unwrap();
    let known = [(lost.parse().unwrap(), "shop/web".to_owned())];
    let back = batch(&pool, &known, RECORD_LIMIT, &[Order::Refresh]).recorded;
    assert_eq!(back.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[test]
fn the_pool_names_addresses_that_a_service_without_load_balancer_announces() {
    let pool = settled(&json!({"10.0.0.10": "shop/web"}), &json!({}));
    let checked = ip_pools::check(&pool, []);
    let orphans = [ObjectKey::new("shop", "web"), ObjectKey::new("shop", "of-another-pool")];
    let seen = |orphans| Seen {
        pool: &pool,
        checked: &checked,
        status_addresses: &[],
        orphans,
        others: &|_, _: &str| false,
        turns: Turns::default(),
        now: "now",
        at: 1_767_225_600,
        limit: RECORD_LIMIT,
    };
    let status = status(&decide(seen(&orphans), &[Order::Refresh]));
    let ready = harvester_api::condition::ready(&status.conditions).unwrap();
    assert_eq!(ready.status, ConditionStatus::True, "others are served");
    assert!(
        ready.message.starts_with("announced without load balancer: 10.0.0.10 by Service shop/web; delete"),
        "{}",
        ready.message
    );
    assert_eq!(decide(seen(&orphans[1..]), &[Order::Refresh]).put, None);
}

/// Everything of the pool is in use elsewhere but what these holders use themselves.
struct Elsewhere {
    looks: std::cell::Cell<usize>,
    own: Vec<(String, IpAddr)>,
}

impl Others for Elsewhere {
    fn have(&self, address: IpAddr, holder: &str) -> bool {
        self.looks.set(self.looks.get() + 1);
        !self.used_by(holder).contains(&address)
    }

    fn outrank(&self, address: IpAddr, holder: &str) -> bool {
        (address, holder) == (ip(10), "shop/outranked")
    }

    fn used_by(&self, holder: &str) -> Vec<IpAddr> {
        self.own.iter().filter(|(by, _)| by == holder).map(|(_, address)| *address).collect()
    }

    fn cluster_of(&self, _: &str) -> Option<String> {
        None
    }

    fn members_of(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn a_thousand_who_wait_for_a_full_pool_cost_one_walk_over_its_range() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let checked = ip_pools::check(&pool, []);
    let others = Elsewhere { looks: 0.into(), own: vec![("shop/lb-500".into(), ip(77))] };
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
    let decision = decide(seen, &orders);
    assert_eq!(others.looks.get(), 253 + 1, "each address once, and the one that its user keeps from others");
    assert_eq!(decision.answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(given(&decision, "shop/lb-500"), "10.0.0.77");

    others.looks.set(0);
    let release = Order::Release { holder: "shop/nobody".into(), address: ip(77) };
    decide(seen, &[&orders[..100], &[release], &orders[100..200]].concat());
    assert_eq!(others.looks.get(), 253, "what changes nothing frees nothing");
}

#[test]
fn an_address_that_is_released_is_found_by_the_claims_of_its_batch() {
    let held = json!({"10.0.0.10": "a/a", "10.0.0.11": "b/b", "10.0.0.12": "c/c", "10.0.0.13": "d/d"});
    let release = Order::Release { holder: "b/b".into(), address: ip(11) };
    let decision = decided(&settled(&held, &json!({})), &[claim("e/e"), release, claim("f/f"), claim("g/g")]);
    assert_eq!(decision.answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(given(&decision, "e/e"), "10.0.0.11", "a refusal is one of the version that is written");
}

// docs/contract/addresses.md#1
#[test]
fn a_record_that_an_older_pool_gives_to_another_answers_no_claim() {
    let pool = settled(&json!({"10.0.0.10": "shop/outranked"}), &json!({}));
    let checked = ip_pools::check(&pool, []);
    let own = (11..14).map(|last| ("shop/outranked".to_owned(), ip(last))).collect();
    let others = Elsewhere { looks: 0.into(), own };
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
    let decision = decide(seen, &[claim("shop/outranked")]);
    assert_eq!(decision.recorded, [ip(11)]);
    assert_eq!(status(&decision).allocated.len(), 2, "the other one goes when the network has left it");
}

// the order may have waited until an object was made again under the name
#[rstest]
#[case::in_its_status("shop/web", Answer::Kept, "shop/web", false)]
#[case::another_in_the_status("shop/other", Answer::Done, "shop/api", true)]
fn a_release_that_waited_takes_no_address_that_a_load_balancer_has(
    #[case] user: &str,
    #[case] answer: Answer,
    #[case] holder: &str,
    #[case] is_given: bool,
) {
    let pool = settled(&json!({"10.0.0.10": "shop/web"}), &json!({}));
    let known = [(ip(10), user.to_owned())];
    let release = Order::Release { holder: "shop/web".into(), address: ip(10) };
    let claim = Order::ClaimExactly { holder: "shop/api".into(), address: ip(10) };
    let decision = batch(&pool, &known, RECORD_LIMIT, &[release, claim]);
    assert_eq!((decision.answers[0].clone(), decision.answers[1].is_ok()), (Ok(answer), is_given));
    if is_given {
        assert_eq!(status(&decision).allocated["10.0.0.10"], holder);
    } else {
        assert_eq!(decision.put, None);
    }
}

#[test]
fn a_release_by_hand_that_waited_until_its_holder_was_made_again_is_refused() {
    let mut json = settled(&json!({"10.0.0.10": "shop/web"}), &json!({})).json();
    let question = "10.0.0.10: shop/web";
    json["metadata"]["annotations"] = json!({annotations::MANUALLY_RELEASE_IP: question});
    let pool = RawObject::from_json(json).unwrap();
    let known = [(ip(10), "shop/web".to_owned())];
    let release = Ok((ip(10), "shop/web".to_owned()));
    let decision =
        batch(&pool, &known, RECORD_LIMIT, &[Order::Manual { annotation: question.to_owned(), release }]);
    assert_eq!(status(&decision).allocated["10.0.0.10"], "shop/web");
    let annotations = &decision.put.unwrap()["metadata"]["annotations"];
    assert_eq!(annotations.get(annotations::MANUALLY_RELEASE_IP), None, "the question is answered");
    let why = annotations[annotations::MANUAL_RELEASE_REFUSED].as_str().unwrap();
    assert!(why.ends_with("that load balancer exists: delete it"), "{why}");
}

proptest! {
    #[test]
    fn any_sequence_of_batches_keeps_the_record_true(batches in proptest::collection::vec(orders(), 1..8)) {
        let mut pool = settled(&json!({}), &json!({}));
        let mut asked_exactly = 0;
        for orders in batches {
            let before = pool.status.clone().unwrap().allocated;
            let decision = decided(&pool, &orders);
            prop_assert_eq!(decision.answers.len(), orders.len());
            if let Some(put) = decision.put {
                pool = serde_json::from_value(put).unwrap();
            }
            let status = pool.status.clone().unwrap();
            let held = i64::try_from(status.allocated.len()).unwrap();
            prop_assert_eq!(status.total - status.available, held);
            let holders: BTreeSet<_> = status.allocated.values().collect();
            let exactly = |(order, answer): &(&Order, &Result<Answer, Refused>)| {
                matches!(order, Order::ClaimExactly { .. }) && answer.is_ok()
            };
            asked_exactly += orders.iter().zip(&decision.answers).filter(exactly).count();
            prop_assert!(holders.len() + asked_exactly >= status.allocated.len(), "somebody holds two addresses");
            for (address, holder) in before {
                let is_released = orders.iter().any(|order| matches!(order, Order::Release { holder: by, .. } if *by == holder));
                prop_assert!(is_released || status.allocated[&address] == holder, "a holder was displaced");
            }
            for (order, answer) in orders.iter().zip(&decision.answers) {
                if let (Order::ClaimExactly { holder, address }, Ok(_)) = (order, answer) {
                    let released = Order::Release { holder: holder.clone(), address: *address };
                    let has = status.allocated.get(&address.to_string()) == Some(holder);
                    prop_assert!(has || orders.contains(&released), "an answer is a record");
                }
            }
            prop_assert!(status.allocated.keys().all(|key| ["10", "11", "12", "13"].contains(&&key[7..])));
            prop_assert_eq!(decided(&pool, &[Order::Refresh]).put, None, "a second look writes");
            // a holder whose claim was answered, and that did not release the address since, holds one
            for (index, (order, answer)) in orders.iter().zip(&decision.answers).enumerate() {
                let (Order::Claim { holder, .. }, Ok(_)) = (order, answer) else { continue };
                let released = orders[index + 1..].iter().any(|later| match later {
                    Order::Release { holder: name, .. } => name == holder,
                    _ => false,
                });
                prop_assert!(released || status.allocated.values().any(|by| by == holder));
            }
        }
    }
}

#[test]
fn a_second_address_that_is_asked_for_needs_room_in_the_record_and_a_pool_that_may_give() {
    let pool = settled(&json!({"10.0.0.10": "shop/web"}), &json!({}));
    let order = |last| [Order::ClaimExactly { holder: "shop/web".into(), address: ip(last) }];
    let full = |last| batch(&pool, &[], pool.size() - 1, &order(last)).answers.remove(0);
    assert_eq!(full(10), Ok(Answer::Done), "what it has needs none");
    assert_eq!(full(11), Err(Refused::RecordFull { pool: "edge".into(), records: 1 }));
    assert_eq!(decided(&pool, &order(11)).answers, [Ok(Answer::Done)], "not the object's first");
    let refused = Refused::AddressNotInPool { pool: "edge".into(), address: ip(1) };
    assert_eq!(decided(&pool, &order(1)).answers, [Err(refused)]);
    let going = json!({"metadata": {"deletionTimestamp": "2026-08-20T10:00:00Z"}});
    let mut json = pool.json();
    json_patch::merge(&mut json, &going);
    let going: RawObject<IPPool> = serde_json::from_value(json).unwrap();
    let Err(Refused::Unusable { .. }) = decided(&going, &order(11)).answers.remove(0) else {
        panic!("it gives addresses though it is being deleted")
    };
}

// one decides before the other, and none of them takes what another has: docs/contract/addresses.md#5
#[test]
fn of_those_who_ask_for_one_address_the_first_gets_it_and_nothing_is_written_for_the_others() {
    let exactly = |holder: &str| Order::ClaimExactly { holder: holder.into(), address: ip(12) };
    let pool = settled(&json!({}), &json!({}));
    let decision = decided(&pool, &[exactly("a/a"), exactly("b/b"), claim("c/c")]);
    assert_eq!(given(&decision, "a/a"), "10.0.0.12");
    let in_use = Refused::AddressInUse { pool: "edge".into(), address: ip(12) };
    assert_eq!(decision.answers[1], Err(in_use));
    assert_eq!(given(&decision, "c/c"), "10.0.0.10", "the round robin stays where it is");
    let pool = serde_json::from_value(decision.put.unwrap()).unwrap();
    let orders: Vec<_> = (0..1000).map(|n| exactly(&format!("evil/lb-{n}"))).collect();
    assert_eq!(decided(&pool, &orders).put, None);
}

#[test]
fn a_claim_of_one_family_is_given_none_of_the_other() {
    let object = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.0.0/30"}, {"subnet": "fd00::/64"}]}});
    let pool: RawObject<IPPool> = serde_json::from_value(object).unwrap();
    let claim =
        |holder: &str, family| Order::Claim { holder: holder.into(), known: None, family: Some(family) };
    let orders = [
        claim("a/a", Family::V4),
        claim("b/b", Family::V4),
        claim("c/c", Family::V6),
        claim("d/d", Family::V4),
    ];
    let decision = decided(&pool, &orders);
    assert_eq!(given(&decision, "a/a"), "10.0.0.2");
    assert!(matches!(decision.answers[1], Err(Refused::Exhausted { .. })));
    assert_eq!(given(&decision, "c/c"), "fd00::2", "that no IPv4 address is left says nothing about IPv6");
    assert!(matches!(decision.answers[3], Err(Refused::Exhausted { .. })));

    let only_v4 = decided(&settled(&json!({}), &json!({})), &[claim("a/a", Family::V6)]);
    let refused = Refused::NoSuchFamily { pool: "edge".into(), family: Family::V6 };
    assert_eq!((only_v4.put, only_v4.answers), (None, vec![Err(refused)]));
}
