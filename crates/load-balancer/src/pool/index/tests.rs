//! What a change, or a question, looks at.

use serde_json::{Value, json};

use super::*;
use crate::steps::steps_of;

fn object<K: serde::de::DeserializeOwned>(object: Value) -> RawObject<K> {
    RawObject::from_json(object).unwrap()
}

fn lb(name: &str, version: u64, pool: &str, ip: &str) -> RawObject<LoadBalancer> {
    object(json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string(),
            "labels": {harvester_api::labels::CLUSTER: "blue"}},
        "spec": {"workloadType": "cluster"}, "status": {"allocatedAddress": {"ipPool": pool, "ip": ip}}}))
}

fn pool(version: u64, records: &Value) -> RawObject<IPPool> {
    object(json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": "edge", "resourceVersion": version.to_string()},
        "spec": {"ranges": [{"subnet": "10.0.0.0/16"}]},
        "status": {"total": 9, "available": 7, "lastAllocated": "", "allocated": records}}))
}

fn index() -> (Caches, PoolIndex) {
    let caches = Caches::empty();
    let index = PoolIndex::follow(&caches);
    (caches, index)
}

#[test]
fn a_change_looks_at_no_other_object_that_is_gone() {
    const GONE: u64 = 500;
    let (caches, index) = index();
    let name = |n: u64| format!("web-{n}");
    let entry = |n: u64| (format!("10.0.{}.{}", n / 250, n % 250 + 1), json!(format!("shop/{}", name(n))));
    let records = |from: u64| Value::Object((from..GONE).map(entry).collect());
    (0..GONE).for_each(|n| drop(caches.load_balancers.wrote(lb(&name(n), n + 1, "", ""))));
    caches.pools.wrote(pool(1000, &records(0)));
    (0..GONE).for_each(|n| caches.load_balancers.gone(&ObjectKey::new("shop", name(n)), &name(n)));
    assert_eq!(index.members_of("blue").len() as u64, GONE, "they count while they have a record");
    let of_another = steps_of(|| caches.load_balancers.wrote(lb("other", 2000, "", "")));
    assert_eq!(of_another, 0);
    // the record garbage collector releases three of them
    let released = steps_of(|| caches.pools.wrote(pool(2001, &records(3))));
    assert_eq!((released, index.members_of("blue").len() as u64), (3, GONE - 3 + 1));
    caches.pools.wrote(pool(2002, &json!({})));
    assert_eq!(index.members_of("blue"), ["shop/other"]);
}

#[test]
fn a_write_of_a_pool_looks_at_no_load_balancer_of_another() {
    let (caches, index) = index();
    (0..200).for_each(|n| {
        drop(caches.load_balancers.wrote(lb(&format!("web-{n}"), n + 1, "core", &format!("10.1.0.{n}"))));
    });
    caches.load_balancers.wrote(lb("api", 300, "edge", "10.0.0.7"));
    let api = |last| (IpAddr::from([10, 0, 0, last]), "shop/api".to_owned());
    assert_eq!(index.status_addresses("edge"), [api(7)]);
    assert_eq!(steps_of(|| index.status_addresses("edge")), 1);
    // it moves, and is deleted
    caches.load_balancers.wrote(lb("api", 301, "core", "10.1.1.7"));
    assert_eq!(steps_of(|| index.status_addresses("edge")), 0);
    assert_eq!(index.status_addresses("core").len(), 201);
    caches.load_balancers.gone(&ObjectKey::new("shop", "api"), "api");
    assert_eq!(index.status_addresses("core").len(), 200);
    let mut leaving = lb("web-0", 400, "core", "10.1.0.0").json();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    leaving["metadata"]["finalizers"] = json!(["a/b"]);
    caches.load_balancers.wrote(object(leaving));
    assert_eq!(steps_of(|| index.status_addresses("core")), 199);
}

#[test]
fn a_write_of_a_pool_judges_no_other_while_no_spec_changes() {
    let (caches, index) = index();
    for n in 0..100 {
        let mut other = pool(n + 1, &json!({})).json();
        other["metadata"]["name"] = format!("pool-{n}").into();
        other["spec"]["ranges"] = json!([{"subnet": format!("10.1.{n}.0/24")}]);
        caches.pools.wrote(object(other));
    }
    let outside = json!({"192.0.2.7": "shop/web"});
    caches.pools.wrote(pool(200, &json!({})));
    let read = pool(201, &outside);
    let faults = index.check(&read).faults;
    assert!(faults.len() == 1 && faults[0].contains("192.0.2.7 is excluded"), "{faults:?}");
    assert_eq!(steps_of(|| index.check(&read)), 0);
    // a version that no cache has seen, with other ranges
    let mut fresh = pool(202, &json!({})).json();
    fresh["spec"]["ranges"][0]["subnet"] = "10.1.0.0/16".into();
    fresh["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let fresh = object(fresh);
    assert!(index.check(&fresh).blocked.is_some(), "it overlaps those that are older");
    assert_eq!(steps_of(|| index.check(&fresh)), 101);
}

#[test]
fn a_pool_that_was_made_again_is_younger_than_the_one_that_it_overlaps() {
    let (caches, index) = index();
    let named = |name: &str, version: u64, month: u64| {
        let mut pool = pool(version, &json!({})).json();
        pool["metadata"]["name"] = name.into();
        pool["metadata"]["uid"] = format!("{name}-{version}").into();
        pool["metadata"]["creationTimestamp"] = format!("2026-0{month}-01T00:00:00Z").into();
        object(pool)
    };
    let blocked = || {
        let checked = index.checked_pools();
        let blocked = checked.iter().filter(|checked| checked.blocked.is_some());
        blocked.map(|checked| checked.pool.name.clone()).collect::<Vec<_>>()
    };
    caches.pools.wrote(named("core", 1, 1));
    caches.pools.wrote(named("edge", 2, 2));
    assert_eq!(blocked(), ["edge"]);
    // deleted and made again while the watch was away: the list tells of one change
    caches.pools.wrote(named("core", 3, 3));
    assert_eq!(blocked(), ["core"]);
}

#[test]
fn one_read_of_a_pool_tells_of_every_record_that_the_load_balancer_made() {
    let (caches, index) = index();
    let records = json!({"10.0.0.7": "shop/web", "10.0.0.8": "shop/api", "10.0.0.9": "shop/db"});
    caches.pools.wrote(pool(1, &records));
    let mut fresh = pool(2, &records).json();
    // released and recorded for another since
    fresh["status"]["allocated"]["10.0.0.9"] = "shop/other".into();
    fresh["metadata"]["managedFields"] = json!([{"manager": managers::OURS, "operation": "Update",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {"f:allocated": {"f:10.0.0.7": {}, "f:10.0.0.9": {}}}}}]);
    index.note_makers_of(&serde_json::from_value(fresh).unwrap());
    let unjudged = |name: &str| index.unjudged(&ObjectKey::new("shop", name), false).len();
    assert_eq!(["web", "api", "db"].map(unjudged), [0, 1, 1]);
}

#[test]
fn who_made_the_records_of_a_pool_is_asked_anew_once_that_was_made_again() {
    let (caches, index) = index();
    let (key, address) = (ObjectKey::new("shop", "web"), IpAddr::from([10, 0, 0, 7]));
    let records = json!({"10.0.0.7": "shop/web"});
    caches.pools.wrote(pool(1, &records));
    index.note_maker(&key, "edge", address, Maker::LoadBalancer);
    caches.pools.wrote(pool(2, &records));
    assert!(index.unjudged(&key, true).is_empty());
    let mut again = pool(3, &records).json();
    again["metadata"]["uid"] = "again".into();
    caches.pools.wrote(object(again));
    assert_eq!(index.unjudged(&key, false), [("edge".to_owned(), address)]);
    index.note_maker(&key, "edge", address, Maker::Other);
    assert_eq!([false, true].map(|anew| index.unjudged(&key, anew).len()), [0, 1]);
}
