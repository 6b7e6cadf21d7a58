use std::net::{IpAddr, Ipv4Addr};

use program::{Clock, TaskGroup, capabilities::RightsMissing};
use prometheus_client::encoding::text::encode;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    caches::no_server,
    metrics::{self, Repair},
    pool::WaitingFor,
    rights,
    steps::steps_so_far,
};

fn pool(allocated: &Value, available: i64) -> Arc<RawObject<IPPool>> {
    let object = json!({"metadata": {"name": "edge", "finalizers": [finalizers::IP_POOL]}, "spec": {"ranges": []},
        "status": {"total": 9, "available": available, "lastAllocated": "", "allocated": allocated}});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn change(
    old: Option<Arc<RawObject<IPPool>>>,
    new: Option<Arc<RawObject<IPPool>>>,
) -> Change<RawObject<IPPool>> {
    Change { key: ObjectKey::new("", "edge"), old, new }
}

/// The metrics in the table of this program in docs/messages.md.
fn documented(program: &str) -> BTreeSet<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/messages.md");
    let document = std::fs::read_to_string(path).unwrap();
    let head = format!("| Metric of `{program}` |");
    let rows = document.lines().skip_while(|line| !line.starts_with(&head)).skip(2);
    let first = |row: &str| row.split('|').nth(1).map(str::to_owned);
    let cells = rows.map_while(first).collect::<Vec<_>>().join("");
    let names = cells.split('`').skip(1).step_by(2).filter_map(|name| name.split('{').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The metrics that the registry has.
fn registered(registry: &Registry) -> BTreeSet<String> {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, of)| if of == "counter" { format!("{name}_total") } else { name.to_owned() }).collect()
}

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_metric_is_there() {
    let (queues, mut registry) = (Queues::default(), Registry::with_prefix("harvester_load_balancer"));
    queues.register(&mut registry);
    metrics::leading(&mut registry).set(1);
    let missing = RightsMissing::default();
    missing.register(&mut registry, rights::METRIC);
    missing.set("harvester", &rights::LIST_CONFIG_MAPS, true);
    let (came, claimed) = (pool(&json!({}), 9), pool(&json!({"10.0.0.1": "shop/web"}), 8));
    for told in [change(None, Some(came.clone())), change(Some(came), Some(claimed))] {
        queues.metrics.pool_changed(&told, &RecordChange::of(&told), || told.new.clone());
    }
    queues.metrics.repaired(Repair::LostAddress);
    queues.metrics.probes.answered(Ok(()), Duration::ZERO);
    let waits = json!({"metadata": {"name": "web"}, "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PoolExhausted"}]}});
    queues.metrics.settled(&ObjectKey::new("shop", "web"), Some(&serde_json::from_value(waits).unwrap()));
    assert_eq!(registered(&registry), documented("harvester-load-balancer"));
}

#[test]
fn a_load_balancer_hears_when_its_record_goes_or_changes_hands() {
    let old = pool(&json!({"10.0.0.1": "shop/web", "10.0.0.2": "shop/api", "10.0.0.3": "nameless"}), 6);
    let new = pool(&json!({"10.0.0.1": "shop/web", "10.0.0.2": "shop/db"}), 7);
    let lost = |old, new| RecordChange::of(&change(old, new)).lost_holders().collect::<Vec<_>>();
    assert_eq!(lost(Some(old.clone()), Some(new)), [ObjectKey::new("shop", "api")]);
    assert_eq!(lost(Some(old.clone()), None).len(), 2);
    assert!(lost(None, Some(old)).is_empty());
}

#[test]
fn our_own_claim_asks_for_no_second_look_and_everything_else_does() {
    let (one, two) =
        (json!({"10.0.0.1": "shop/web"}), json!({"10.0.0.1": "shop/web", "10.0.0.2": "shop/api"}));
    let refresh = |old: Option<Arc<RawObject<IPPool>>>, new| needs_refresh(&change(old, Some(new)));
    assert!(!refresh(Some(pool(&one, 8)), pool(&two, 7)));
    assert!(refresh(Some(pool(&one, 8)), pool(&two, 8)), "somebody wrote wrong numbers");

    assert!(refresh(None, pool(&one, 8)));
    let mut bare = pool(&one, 8).json();
    bare["metadata"]["finalizers"] = json!([]);
    assert!(refresh(Some(pool(&one, 8)), Arc::new(serde_json::from_value(bare).unwrap())));
}

/// The tables and queues of the controllers, in a cluster without server.
struct World {
    caches: Caches,
    queues: Queues,
    waiters: PoolWaiters,
    index: PoolIndex,
    _tasks: TaskGroup,
}

/// With pool `edge`, for which shop/waits waits.
fn world() -> World {
    let (caches, tasks, queues) = (Caches::empty(), TaskGroup::new(), Queues::default());
    let (client, clock) = (no_server(), Clock::system());
    let (index, orphans) = (PoolIndex::follow(&caches), Orphans::default());
    let writers = Writers::new(client, clock, tasks.clone(), &caches, index.clone(), orphans.clone());
    let orders = Orders::new(writers.clone(), queues.load_balancers.clone());
    let waiters = PoolWaiters::default();
    let wiring = Wiring {
        caches: &caches,
        queues: &queues,
        config_maps: &Cache::empty(),
        capabilities: &Capabilities::assumed([]),
        waiters: &waiters,
        writers: &writers,
        orders: &orders,
        orphans: &orphans,
        index: &index,
    };
    wiring.connect();
    caches.pools.wrote(edge());
    waiters.enter(&ObjectKey::new("shop", "waits"), WaitingFor::after("edge", vec!["edge".to_owned()]));
    World { caches, queues, waiters, index, _tasks: tasks }
}

fn edge() -> RawObject<IPPool> {
    object(json!({"metadata": {"name": "edge", "uid": "p", "resourceVersion": "1"},
        "spec": {"ranges": [{"subnet": "10.0.0.0/16"}]}}))
}

fn object<K: serde::de::DeserializeOwned>(json: Value) -> RawObject<K> {
    RawObject::from_json(json).unwrap()
}

fn web() -> ObjectKey {
    ObjectKey::new("shop", "web")
}

const KEPT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));

impl World {
    /// shop/web, which uses an address of a pool that is gone, and its Service, which asks for the address.
    fn uses_kept(&self, workload: &str) {
        self.caches.load_balancers.wrote(object(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "1",
                "finalizers": [finalizers::LOAD_BALANCER]},
            "spec": {"workloadType": workload},
            "status": {"address": "10.0.0.7", "allocatedAddress": {"ipPool": "gone", "ip": "10.0.0.7"}}})));
        self.names("1", "10.0.0.7");
    }

    /// The Service shop/web asks for these addresses.
    fn names(&self, version: &str, addresses: &str) {
        self.caches.services.wrote(object(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": version,
                "annotations": {annotations::KUBE_VIP_LOADBALANCER_IPS: addresses}}})));
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut json = self.caches.load_balancers.get(&web()).unwrap().json();
        json["metadata"]["resourceVersion"] = "2".into();
        edit(&mut json);
        self.caches.load_balancers.wrote(object(json));
    }

    /// Pool edge has this quota and gives shop/web an address.
    fn limits(&self, quota: Value) {
        let mut pool = edge().json();
        pool["metadata"]["resourceVersion"] = "2".into();
        pool["spec"]["quota"] = quota;
        pool["status"] = json!({"total": 9, "available": 8, "lastAllocated": "",
            "allocated": {"10.0.0.7": "shop/web"}});
        self.caches.pools.wrote(object(pool));
    }

    /// shop/web is there, of this guest cluster.
    fn is_of(&self, uid: &str, cluster: &str) {
        self.caches.load_balancers.wrote(object(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": uid, "resourceVersion": uid,
                "annotations": {annotations::LB_CLUSTER: cluster}}, "spec": {}})));
    }

    /// Whether anybody but shop/web is to be looked at, once the pools have been.
    async fn woke(&self) -> bool {
        // a paused clock goes on when nobody has anything to do
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!((1..=2).contains(&self.queues.load_balancers.depth()));
        self.queues.load_balancers.depth() == 2
    }
}

#[rstest]
#[case::the_service_asks_for_another("vm", |world: &World| world.names("2", "10.0.0.8"), true)]
#[case::the_service_goes("vm", |world: &World| world.caches.services.gone(&web(), "u"), true)]
#[case::the_service_asks_for_one_more("vm", |world: &World| world.names("2", "10.0.0.7,10.0.0.8"), false)]
#[case::our_finalizer_goes("vm", |world: &World| world.edit(|lb| lb["metadata"]["finalizers"] = json!([])), true)]
#[case::one_of_somebody_else_comes("vm",
    |world: &World| world.edit(|lb| lb["metadata"]["finalizers"] = json!([finalizers::LOAD_BALANCER, "example.com/hold"])), false)]
#[case::it_begins_to_go("vm",
    |world: &World| world.edit(|lb| lb["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), false)]
#[case::the_object_goes("vm", |world: &World| world.caches.load_balancers.gone(&web(), "u"), true)]
#[case::it_has_another_address("vm",
    |world: &World| world.edit(|lb| lb["status"]["allocatedAddress"]["ip"] = "10.0.0.8".into()), true)]
#[case::the_guest_shows_another("cluster",
    |world: &World| world.edit(|lb| lb["status"]["address"] = "10.0.0.8".into()), true)]
#[case::the_guests_service_of_that_name_goes("cluster", |world: &World| world.caches.services.gone(&web(), "u"), false)]
#[case::the_guests_begins_to_go("cluster",
    |world: &World| world.edit(|lb| lb["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), true)]
#[case::the_guests_finalizer_goes("cluster",
    |world: &World| world.edit(|lb| lb["metadata"]["finalizers"] = json!([])), true)]
#[tokio::test(start_paused = true)]
async fn who_had_to_pass_over_an_address_hears_when_its_user_lets_go_of_it_and_nobody_else_does(
    #[case] workload: &str,
    #[case] change: fn(&World),
    #[case] lets_go: bool,
) {
    for was_missed in [true, false] {
        let world = world();
        world.uses_kept(workload);
        if was_missed {
            assert!(world.index.is_taken("edge", KEPT, "shop/waits"));
        }
        change(&world);
        assert_eq!(world.woke().await, was_missed && lets_go, "missed: {was_missed}");
        assert_eq!(world.index.is_taken("edge", KEPT, "shop/waits"), !lets_go);
    }
}

#[tokio::test(start_paused = true)]
async fn who_had_to_pass_over_an_address_without_release_hears_when_its_service_asks_for_it_no_more() {
    let world = world();
    world.names("1", "10.0.0.7");
    let mut gone = edge().json();
    gone["metadata"] = json!({"name": "gone", "uid": "g", "resourceVersion": "1"});
    gone["status"] = json!({"total": 9, "available": 8, "lastAllocated": "",
        "allocated": {"10.0.0.7": "shop/web"}});
    world.waiters.leave(&ObjectKey::new("shop", "waits"));
    world.caches.pools.wrote(object(gone));
    world.caches.pools.gone(&ObjectKey::new("", "gone"), "g");
    assert!(world.index.is_taken("edge", KEPT, "shop/waits"));
    world.waiters.enter(&ObjectKey::new("shop", "waits"), WaitingFor::Named("edge".to_owned()));
    world.names("2", "10.0.0.7,10.0.0.8");
    assert!(!world.woke().await);
    world.names("3", "10.0.0.8");
    assert!(world.woke().await);
    assert!(!world.index.is_taken("edge", KEPT, "shop/waits"));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_for_thousands_of_addresses_wakes_nobody_whom_it_kept_none_from() {
    let world = world();
    let all: Vec<_> = (0..30_000).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    world.names("1", &all.join(","));
    world.names("2", "");
    assert!(!world.woke().await);
}

#[rstest]
#[case::without_quota(json!([]), false)]
#[case::for_a_namespace(json!([{"namespace": "shop", "max": 1}]), false)]
#[case::for_a_third_cluster(json!([{"guestCluster": "green", "max": 1}]), false)]
#[case::for_the_former_cluster(json!([{"guestCluster": "blue", "max": 1}]), true)]
#[case::for_the_new_cluster(json!([{"guestCluster": "red", "max": 1}]), true)]
#[tokio::test(start_paused = true)]
async fn a_change_of_cluster_wakes_nobody_of_a_pool_without_a_quota_for_it(
    #[case] quota: Value,
    #[case] wakes: bool,
) {
    let (world, waits) = (world(), ObjectKey::new("shop", "waits"));
    world.waiters.leave(&waits);
    world.limits(quota);
    world.is_of("1", "blue");
    world.waiters.enter(&waits, WaitingFor::Named("edge".to_owned()));
    world.edit(|lb| lb["metadata"]["annotations"][annotations::LB_CLUSTER] = "red".into());
    assert_eq!(world.woke().await, wakes);
}

// a tenant flips a label in as many requests as it likes, and the pool's writer walked over everybody for each
#[tokio::test(start_paused = true)]
async fn a_label_that_flips_hundreds_of_times_at_once_costs_no_walk_over_those_who_wait_for_each() {
    let world = world();
    world.limits(json!([{"guestCluster": "blue", "max": 1}]));
    world.is_of("1", "blue");
    for n in 0..1000 {
        let waits = ObjectKey::new("shop", format!("waits-{n}"));
        world.waiters.enter(&waits, WaitingFor::Named("edge".to_owned()));
    }
    let before = steps_so_far();
    for n in 2..202 {
        world.edit(|lb| {
            lb["metadata"]["resourceVersion"] = n.to_string().into();
            let cluster = if n % 2 == 0 { "red" } else { "blue" };
            lb["metadata"]["annotations"][annotations::LB_CLUSTER] = cluster.into();
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.queues.load_balancers.depth() > 1000, "they are woken");
    let steps = steps_so_far() - before;
    assert!(steps < 10_000, "{steps}");
}

// somebody removed the finalizer of the first, and the record garbage collector had no time
#[rstest]
#[case::of_another("red", true)]
#[case::of_the_same("blue", false)]
#[tokio::test(start_paused = true)]
async fn an_object_made_again_for_another_cluster_frees_the_quota_of_the_first(
    #[case] second: &str,
    #[case] wakes: bool,
) {
    let (world, waits) = (world(), ObjectKey::new("shop", "waits"));
    world.waiters.leave(&waits);
    world.limits(json!([{"guestCluster": "blue", "max": 1}]));
    world.is_of("1", "blue");
    world.waiters.enter(&waits, WaitingFor::Named("edge".to_owned()));
    world.caches.load_balancers.gone(&web(), "1");
    assert!(!world.woke().await, "its record stands");
    world.is_of("2", second);
    assert_eq!(world.woke().await, wakes);
}

// its release came first, while it was there and the rest counted
#[rstest]
#[case::which_rests(json!({"10.0.0.7": "2030-01-01T00:00:00Z"}), true)]
#[case::which_rests_no_more(json!({}), false)]
#[tokio::test(start_paused = true)]
async fn an_object_that_goes_frees_the_quota_of_its_cluster_from_what_it_released(
    #[case] rests: Value,
    #[case] wakes: bool,
) {
    let (world, waits) = (world(), ObjectKey::new("shop", "waits"));
    world.waiters.leave(&waits);
    world.limits(json!([{"guestCluster": "blue", "max": 1}]));
    world.is_of("1", "blue");
    let mut pool = world.caches.pools.get(&ObjectKey::new("", "edge")).unwrap().json();
    pool["metadata"]["resourceVersion"] = "3".into();
    pool["metadata"]["annotations"] = json!({annotations::QUARANTINE: rests.to_string()});
    pool["status"]["allocated"] = json!({});
    pool["status"]["allocatedHistory"] = json!({"10.0.0.7": "shop/web"});
    world.caches.pools.wrote(object(pool));
    world.waiters.enter(&waits, WaitingFor::Named("edge".to_owned()));
    assert!(!world.woke().await, "the rest counts for blue while the object is there");
    world.caches.load_balancers.gone(&web(), "1");
    assert_eq!(world.woke().await, wakes);
    assert!(world.index.members_of("blue").is_empty());
}

#[test]
fn the_record_garbage_collector_hears_of_the_pools_that_an_object_left() {
    let lb = |pool: &str, ip: &str| {
        let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {},
            "status": {"allocatedAddress": {"ipPool": pool, "ip": ip}}});
        Arc::new(serde_json::from_value::<RawObject<LoadBalancer>>(object).unwrap())
    };
    let with_second = |ip: &str| {
        let mut json = lb("edge", "10.0.0.1").json();
        json["status"]["allocatedAddress"]["ipv6Pool"] = "six".into();
        json["status"]["allocatedAddress"]["ipv6IP"] = ip.into();
        Arc::new(RawObject::from_json(json).unwrap())
    };
    let left = |old, new| {
        let change = Change { key: ObjectKey::new("shop", "web"), old, new };
        left_pools(&change).into_iter().collect::<Vec<_>>().join(",")
    };
    assert_eq!(left(Some(lb("edge", "10.0.0.1")), Some(lb("core", "10.0.1.1"))), "edge");
    assert_eq!(left(Some(lb("edge", "10.0.0.1")), None), "edge");
    assert_eq!(left(Some(lb("edge", "10.0.0.1")), Some(lb("edge", "10.0.0.1"))), "");
    assert_eq!(left(None, Some(lb("edge", "10.0.0.1"))), "");
    assert_eq!(left(Some(with_second("fd00::1")), Some(lb("edge", "10.0.0.1"))), "six");
    assert_eq!(left(Some(with_second("fd00::1")), None), "edge,six");
}
