use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// 2026-01-01.
const NOW: i64 = 1_767_225_600;

fn pool(name: &str, created: u8, subnet: &str, selector: &Value, status: &Value) -> RawObject<IPPool> {
    RawObject::from_json(json!({"metadata": {"name": name, "resourceVersion": "1",
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
        "spec": {"ranges": [{"subnet": subnet}], "selector": selector}, "status": status}))
    .unwrap()
}

fn scopes(namespace: &str) -> Value {
    json!([{"namespace": namespace, "project": "*", "guestCluster": "*"}])
}

fn object(spec: &Value, status: &Value) -> RawObject<LoadBalancer> {
    RawObject::from_json(json!({"metadata": {"name": "web", "namespace": "team-a", "resourceVersion": "1",
            "annotations": {"loadbalancer.harvesterhci.io/network": "n1"}},
        "spec": spec, "status": status}))
    .unwrap()
}

fn lists(pools: Vec<RawObject<IPPool>>, lb: RawObject<LoadBalancer>) -> Lists {
    Lists { pools: Cache::of(pools), load_balancers: Cache::of([lb]), services: Cache::of([]) }
}

fn looked(pools: Vec<RawObject<IPPool>>, lb: RawObject<LoadBalancer>) -> DryRun {
    looked_with(pools, lb, PoolChoice::default())
}

fn looked_with(pools: Vec<RawObject<IPPool>>, lb: RawObject<LoadBalancer>, flags: PoolChoice) -> DryRun {
    dry_run(&lists(pools, lb), &ObjectKey::new("team-a", "web"), NOW, flags).expect("the object is there")
}

fn cluster() -> Value {
    json!({"workloadType": "cluster"})
}

// docs/contract/addresses.md#6
#[test]
fn every_pool_is_listed_with_the_rule_that_rejects_it() {
    let n1 = |scope: Value| json!({"network": "n1", "scope": scope});
    let full = json!({"allocated": {"192.0.2.2": "x/1"}});
    let mut full = pool("full", 1, "192.0.2.0/30", &n1(scopes("team-a")), &full);
    full = RawObject::from_json({
        let mut json = full.json();
        json["spec"]["selector"]["priority"] = json!(9);
        json
    })
    .unwrap();
    let pools = vec![
        full,
        pool("global", 2, "198.51.100.0/28", &n1(scopes("*")), &json!({})),
        pool(
            "network",
            3,
            "198.51.100.16/28",
            &json!({"network": "n2", "scope": scopes("team-a")}),
            &json!({}),
        ),
        pool("none", 4, "198.51.100.32/28", &n1(json!([])), &json!({})),
        pool("scope", 5, "198.51.100.48/28", &n1(scopes("team-b")), &json!({})),
        pool("overlap", 6, "198.51.100.48/28", &n1(scopes("team-a")), &json!({})),
    ];
    let seen = looked(pools, object(&cluster(), &json!({})));
    let told = |name: &str| match &seen.pools.iter().find(|row| row.name == name).unwrap().verdict {
        Verdict::Refuses(why) | Verdict::Rejected(why) => why.clone(),
        other => panic!("{name}: {other:?}"),
    };
    assert!(told("full").contains("no IP addresses available"), "{}", told("full"));
    assert!(told("global").contains("it is global"));
    assert_eq!(told("network"), "it is for network \"n2\"");
    assert!(told("none").contains("no scope"));
    assert_eq!(told("scope"), "none of its scopes matches");
    assert!(told("overlap").contains("overlap those of an older pool"));
    assert!(matches!(&seen.outcome, Outcome::Waits { reason: "PoolExhausted", .. }), "{:?}", seen.outcome);
    assert_eq!((seen.pools[0].total, seen.pools[0].available), (1, 0));
}

#[test]
fn an_object_that_no_pool_serves_is_told_so_in_the_words_of_its_condition() {
    let seen = looked(Vec::new(), object(&cluster(), &json!({})));
    let Outcome::Waits { reason, why } = seen.outcome else { panic!("{seen:?}") };
    assert_eq!(reason, "NoMatchingPool");
    assert!(why.contains("there is no IPPool"), "{why}");
}

#[test]
fn the_address_that_the_pool_would_give_is_named_and_nothing_is_recorded() {
    let selector = json!({"network": "n1", "scope": scopes("team-a")});
    let lists =
        lists(vec![pool("lab", 1, "192.0.2.0/28", &selector, &json!({}))], object(&cluster(), &json!({})));
    let key = ObjectKey::new("team-a", "web");
    for _ in 0..2 {
        let seen = dry_run(&lists, &key, NOW, PoolChoice::default()).unwrap();
        // the first one is the gateway
        let address = "192.0.2.2".parse().unwrap();
        assert_eq!(seen.outcome, Outcome::Gets { pool: "lab".into(), address });
        assert_eq!((&seen.pools[0].verdict, seen.pools[0].place), (&Verdict::Gives(address), Some(1)));
    }
}

#[test]
fn a_recorded_address_and_a_named_pool_are_what_counts() {
    let selector = json!({"network": "n2", "scope": scopes("team-a")});
    let held = json!({"allocated": {"192.0.2.7": "team-a/web"}});
    let has = json!({"allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}});
    let pools = || {
        vec![
            pool("lab", 1, "192.0.2.0/28", &selector, &held),
            pool("other", 2, "198.51.100.0/28", &selector, &json!({})),
        ]
    };
    let seen = looked(pools(), object(&cluster(), &has));
    assert_eq!(seen.outcome, Outcome::Has { pool: "lab".into(), address: "192.0.2.7".into() });
    assert_eq!(seen.pools[0].verdict, Verdict::Holds("192.0.2.7".parse().unwrap()));
    let named = json!({"workloadType": "cluster", "ipPool": "nowhere"});
    let seen = looked(pools(), object(&named, &json!({})));
    assert!(matches!(&seen.outcome, Outcome::Waits { reason: "PoolNotFound", .. }), "{:?}", seen.outcome);
    assert_eq!(seen.pools[1].verdict, Verdict::NotNamed);
}

#[test]
fn a_demanded_address_is_asked_of_every_pool() {
    let selector = json!({"network": "n1", "scope": scopes("team-a")});
    let held = json!({"allocated": {"192.0.2.7": "team-a/api"}});
    let asking = |key: &str| {
        let mut json = object(&cluster(), &json!({})).json();
        json["metadata"]["annotations"][key] = json!("192.0.2.7");
        RawObject::from_json(json).unwrap()
    };
    let pools = |held: &Value| {
        let other = pool("other", 2, "198.51.100.0/28", &selector, &json!({}));
        vec![pool("lab", 1, "192.0.2.0/28", &selector, held), other]
    };
    let strict = "cloudprovider.harvesterhci.io/requested-ip-strict";
    let seen = looked(pools(&held), asking(strict));
    assert!(matches!(&seen.outcome, Outcome::Waits { reason: "AddressInUse", .. }), "{:?}", seen.outcome);
    assert!(seen.pools.iter().all(|row| matches!(row.verdict, Verdict::Refuses(_))), "{:?}", seen.pools);
    let address = "192.0.2.7".parse().unwrap();
    let seen = looked(pools(&json!({})), asking(strict));
    assert_eq!(seen.outcome, Outcome::Gets { pool: "lab".into(), address });
    let wish = looked(pools(&held), asking("cloudprovider.harvesterhci.io/requested-ip"));
    assert!(matches!(&wish.outcome, Outcome::Gets { .. }) && wish.note.is_some(), "{wish:?}");
}

#[rstest]
#[case::preferred("PreferDualStack", "True")]
#[case::required("RequireDualStack", "False")]
fn an_object_that_was_told_of_a_crd_without_the_fields_gets_no_second_address(
    #[case] policy: &str,
    #[case] ready: &str,
) {
    let selector = json!({"network": "n1", "scope": scopes("team-a")});
    let held = json!({"allocated": {"192.0.2.7": "team-a/web"}});
    let pools = || {
        vec![
            pool("lab", 1, "192.0.2.0/28", &selector, &held),
            pool("six", 2, "fd00:6::/120", &selector, &json!({})),
        ]
    };
    let spec = json!({"workloadType": "cluster", "ipFamilyPolicy": policy});
    let mut status = json!({"allocatedAddress": {"ipPool": "lab", "ip": "192.0.2.7"}});
    let before = looked(pools(), object(&spec, &status)).outcome;
    assert!(matches!(&before, Outcome::Gets { pool, .. } if pool == "six"), "{before:?}");
    let message = format!("only one of two families: {NO_FIELD}");
    status["conditions"] = json!([{"type": "Ready", "status": ready, "message": message}]);
    let outcome = looked(pools(), object(&spec, &status)).outcome;
    let expected = match policy {
        "PreferDualStack" => matches!(&outcome, Outcome::Has { pool, .. } if pool == "lab"),
        _ => matches!(&outcome, Outcome::Waits { reason: "DualStackNotSupported", .. }),
    };
    assert!(expected, "{outcome:?}");
}

#[test]
fn an_answer_that_depends_on_a_flag_of_the_load_balancer_says_so() {
    let of = |name: &str, network: &str, namespace: &str, subnet: &str, status: &Value| {
        pool(name, 1, subnet, &json!({"network": network, "scope": scopes(namespace)}), status)
    };
    let full = || {
        of(
            "full",
            "n1",
            "team-a",
            "192.0.2.0/30",
            &json!({"allocated": {"192.0.2.1": "x/1", "192.0.2.2": "x/2"}}),
        )
    };
    let next = || of("next", "n1", "team-a", "198.51.100.0/28", &json!({}));
    let global = || of("global", "n2", "*", "203.0.113.0/28", &json!({}));
    let others = || of("others", "n1", "team-b", "198.51.100.16/28", &json!({}));
    let unnamed = || object(&cluster(), &json!({}));
    let named = || object(&json!({"workloadType": "cluster", "ipPool": "others"}), &json!({}));
    let gets = |pool: &str, address: &str| Outcome::Gets {
        pool: pool.to_owned(),
        address: address.parse().unwrap(),
    };

    let seen = looked(vec![full(), next()], unnamed());
    assert!(matches!(&seen.outcome, Outcome::Waits { reason: "PoolExhausted", .. }), "{seen:?}");
    assert_eq!(seen.depends, [("fall-over-when-full", gets("next", "198.51.100.2"))]);
    let flags = PoolChoice { fall_over_when_full: true, ..PoolChoice::default() };
    let seen = looked_with(vec![full(), next()], unnamed(), flags);
    assert_eq!((seen.outcome, seen.depends), (gets("next", "198.51.100.2"), vec![]));

    let seen = looked(vec![global()], unnamed());
    assert_eq!(seen.outcome, gets("global", "203.0.113.2"));
    assert!(
        matches!(
            &seen.depends[..],
            [("strict-global-network", Outcome::Waits { reason: "NoMatchingPool", .. })]
        ),
        "{seen:?}"
    );

    let seen = looked(vec![others()], named());
    assert_eq!(seen.outcome, gets("others", "198.51.100.18"));
    assert!(
        matches!(
            &seen.depends[..],
            [("enforce-named-pool-scope", Outcome::Waits { reason: "PoolNotAllowed", .. })]
        ),
        "{seen:?}"
    );

    assert_eq!(looked(vec![next()], unnamed()).depends, []);
}

#[test]
fn what_the_object_was_told_of_a_flag_counts_where_nobody_gave_it() {
    let told = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "PoolNotAllowed"}]});
    let pool = pool(
        "others",
        1,
        "198.51.100.16/28",
        &json!({"network": "n1", "scope": scopes("team-b")}),
        &json!({}),
    );
    let seen = looked(vec![pool], object(&json!({"workloadType": "cluster", "ipPool": "others"}), &told));
    assert!(matches!(seen.outcome, Outcome::Waits { reason: "PoolNotAllowed", .. }), "{seen:?}");
    assert_eq!(seen.depends, []);
}

// with a finalizer anybody keeps an object of his own for ever
#[test]
fn a_wish_waits_for_what_goes_in_its_own_namespace_alone() {
    let looked = |namespace: &str| {
        let holder = format!("{namespace}/former");
        let edge = pool(
            "edge",
            1,
            "192.0.2.0/28",
            &json!({"network": "n1", "scope": scopes("team-a")}),
            &json!({"allocated": {"192.0.2.7": holder}}),
        );
        let mut web = object(&cluster(), &json!({})).json();
        web["metadata"]["annotations"][harvester_api::annotations::REQUESTED_IP] = "192.0.2.7".into();
        let former = json!({"metadata": {"name": "former", "namespace": namespace, "resourceVersion": "2",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/stays"]},
            "spec": cluster(), "status": {}});
        let objects: [RawObject<LoadBalancer>; 2] =
            [web, former].map(|json| RawObject::from_json(json).unwrap());
        let lists =
            Lists { pools: Cache::of([edge]), load_balancers: Cache::of(objects), services: Cache::of([]) };
        let key = ObjectKey::new("team-a", "web");
        dry_run(&lists, &key, NOW, PoolChoice::default()).expect("the object is there").outcome
    };
    let own = looked("team-a");
    assert!(matches!(own, Outcome::Waits { reason: "AddressInUse", .. }), "{own:?}");
    let anothers = looked("team-b");
    assert!(matches!(anothers, Outcome::Gets { .. }), "{anothers:?}");
}
