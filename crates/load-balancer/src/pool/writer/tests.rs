//! Answers that do not come, from the server and from the task itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use controller_kit::{Action, Queue};
use harvester_api::finalizers;
use http::{Request, Response, StatusCode};
use ipam::Family;
use kube::{ResourceExt as _, client::Body};
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::pool::{Orders, PoolNews, PoolWaiters, WaitingFor};

/// Two pools with the one address 10.0.0.10; the first is the older.
struct World {
    caches: Caches,
    writers: Writers,
    index: PoolIndex,
    /// The server answers no PUT.
    is_away: Arc<AtomicBool>,
    /// The server asks to wait for thirty seconds.
    is_busy: Arc<AtomicBool>,
    puts: Arc<AtomicUsize>,
    freed: Arc<Mutex<Vec<IpAddr>>>,
    tasks: TaskGroup,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

fn pool(name: &str, version: u64) -> RawObject<IPPool> {
    let object = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string(),
            "finalizers": [finalizers::IP_POOL]},
        "spec": {"ranges": [{"subnet": "10.0.0.10/32"}]},
        "status": {"total": 1, "available": 1, "lastAllocated": "",
            "conditions": [{"type": "Ready", "status": "True", "reason": "RangesValid", "message": ""}]}});
    RawObject::from_json(object).unwrap()
}

fn recorded(version: u64, holder: &str) -> RawObject<IPPool> {
    let mut json = pool("older", version).json();
    json["status"]["allocated"] = json!({"10.0.0.10": holder});
    RawObject::from_json(json).unwrap()
}

fn world() -> World {
    let (caches, is_away, tasks) = (Caches::empty(), Arc::new(AtomicBool::new(false)), TaskGroup::new());
    let (is_busy, puts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (away, busy, count) = (is_away.clone(), is_busy.clone(), puts.clone());
    let server = tower::service_fn(move |request: Request<Body>| {
        let failure = if away.load(Ordering::Relaxed) {
            Some(json!({"kind": "Status", "status": "Failure", "code": 504, "reason": "Timeout"}))
        } else {
            busy.load(Ordering::Relaxed).then(|| {
                json!({"kind": "Status", "status": "Failure", "code": 429, "reason": "TooManyRequests",
                    "details": {"retryAfterSeconds": 30}})
            })
        };
        let version = 10_000 + count.fetch_add(1, Ordering::Relaxed);
        async move {
            let sent = request.into_body().collect_bytes().await?;
            let mut stored: serde_json::Value = serde_json::from_slice(&sent)?;
            stored["metadata"]["resourceVersion"] = version.to_string().into();
            let code = failure.as_ref().map_or(200, |failure| failure["code"].as_u64().unwrap());
            let status = StatusCode::from_u16(u16::try_from(code)?)?;
            let body = failure.unwrap_or(stored).to_string();
            let answer = Response::builder().status(status).body(Body::from(body.into_bytes()))?;
            Ok::<_, tower::BoxError>(answer)
        }
    });
    let client = Client::new(server, "default");
    let index = PoolIndex::follow(&caches);
    let clock = Clock::system();
    let writers = Writers::new(client, clock, tasks.clone(), &caches, index.clone(), Orphans::default());
    let freed = Arc::new(Mutex::new(Vec::new()));
    let heard = freed.clone();
    writers.on_free(move |addresses| heard.lock().unwrap().extend_from_slice(addresses));
    caches.pools.wrote(pool("older", 7));
    caches.pools.wrote(pool("younger", 8));
    World { caches, writers, index, is_away, is_busy, puts, freed, tasks }
}

fn claim(holder: &str) -> Order {
    Order::Claim { holder: holder.into(), known: None, family: None }
}

#[tokio::test(start_paused = true)]
async fn no_other_pool_gives_the_address_of_a_put_without_answer_for_two_minutes_and_then_who_missed_it_hears()
 {
    let world = world();
    let World { caches, writers, is_away, freed, .. } = &world;
    is_away.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        let lost = writers.order("older", claim("shop/web")).await;
        assert!(matches!(lost, Err(Failure::Write { .. })), "{lost:?}");
        advance(Duration::from_secs(10)).await;
    }
    // the overlap is no hindrance any more, and the server may still store what it was sent
    caches.pools.gone(&ObjectKey::new("", "older"), "older");
    is_away.store(false, Ordering::Relaxed);
    let missed = writers.order("younger", claim("shop/api")).await;
    assert!(matches!(missed, Err(Failure::Refused(Refused::Exhausted { .. }))), "{missed:?}");
    advance(Duration::from_secs(105)).await;
    tokio::task::yield_now().await;
    assert_eq!(*freed.lock().unwrap(), [""; 0].map(|_| IpAddr::from([0; 4])), "the second try is younger");
    advance(Duration::from_secs(10)).await;
    tokio::task::yield_now().await;
    assert_eq!(*freed.lock().unwrap(), [IpAddr::from([10, 0, 0, 10])]);
    writers.order("younger", claim("shop/api")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_to_wait_gets_no_put_of_the_pool_from_anybody_before_that() {
    let World { writers, is_busy, puts, .. } = &world();
    is_busy.store(true, Ordering::Relaxed);
    let refused = writers.order("older", claim("shop/web")).await;
    assert!(matches!(refused, Err(Failure::Write { .. })), "{refused:?}");
    is_busy.store(false, Ordering::Relaxed);
    let start = Instant::now();
    let (waited, other) = tokio::join!(writers.order("older", claim("shop/api")), async {
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert_eq!(puts.load(Ordering::Relaxed), 1, "within the thirty seconds");
        writers.order("younger", Order::Refresh).await
    });
    waited.unwrap();
    other.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(30));
    assert_eq!(puts.load(Ordering::Relaxed), 3, "one of the other pool");
}

#[tokio::test]
async fn a_task_that_panics_answers_what_it_had_taken_on_and_the_next_one_goes_on() {
    let world = world();
    let (answer, answered) = oneshot::channel();
    world.writers.submit("shop", "older", Order::Refresh, |_, _| panic!("a fault of ours"));
    world.writers.submit("shop", "older", Order::Refresh, move |result, _| drop(answer.send(result)));
    let answered = answered.await.unwrap();
    assert!(matches!(&answered, Err(Failure::Ended { pool }) if pool == "older"), "{answered:?}");
    world.writers.order("older", Order::Refresh).await.unwrap();
}

#[test]
fn the_index_knows_the_newest_version_though_nobody_has_told_it_yet() {
    let (caches, index) = (Caches::empty(), Arc::new(Mutex::new(None::<PoolIndex>)));
    let (pools, told) = (caches.pools.clone(), index.clone());
    let noted = Arc::new(Mutex::new(Vec::new()));
    let results = noted.clone();
    // comes before the index: version 9 is in the cache, and the index has not heard of it
    caches.pools.on_change(move |change| {
        let version = |pool: &RawObject<IPPool>| pool.resource_version().unwrap();
        let is_nine = change.new.as_ref().is_some_and(|new| version(new) == "9");
        if let (true, Some(index)) = (is_nine, told.lock().unwrap().clone()) {
            let newest = note(&pools, &index, recorded(8, "shop/api")).unwrap();
            results.lock().unwrap().push((version(&newest), index.holders_of([10, 0, 0, 10].into())));
        }
    });
    *index.lock().unwrap() = Some(PoolIndex::follow(&caches));
    caches.pools.wrote(pool("older", 7));
    caches.pools.wrote(recorded(9, "shop/web"));
    let holder = vec![("older".to_owned(), "shop/web".to_owned())];
    assert_eq!(*noted.lock().unwrap(), [("9".to_owned(), holder)]);
}

/// What an object of the namespace orders, and its answer.
async fn ordered(writers: &Writers, namespace: &str, order: Order) -> Result<Answer, Failure> {
    let (answer, answered) = oneshot::channel();
    writers.submit(namespace, "older", order, move |result, _| drop(answer.send(result)));
    answered.await.unwrap()
}

fn release(holder: &str) -> Order {
    Order::Release { holder: holder.into(), address: [10, 0, 0, 10].into() }
}

/// One object of namespace shop that is made and deleted again and again, and so often.
async fn churn(world: &World, times: u32) {
    for _ in 0..times / 2 {
        ordered(&world.writers, "shop", claim("shop/web")).await.unwrap();
        ordered(&world.writers, "shop", release("shop/web")).await.unwrap();
    }
}

fn grow(world: &World) {
    describe(world, &"x".repeat(70_000));
}

fn describe(world: &World, description: &str) {
    edit(world, |pool| pool["spec"]["description"] = description.into());
}

/// Writes the older pool anew, without records.
fn edit(world: &World, edit: impl FnOnce(&mut serde_json::Value)) {
    let version = 10_000 + world.puts.fetch_add(1, Ordering::Relaxed);
    let mut json = pool("older", u64::try_from(version).unwrap()).json();
    edit(&mut json);
    world.caches.pools.wrote(RawObject::from_json(json).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_has_a_large_pool_written_again_and_again_waits_after_its_burst() {
    let world = world();
    let start = Instant::now();
    churn(&world, 1000).await;
    assert_eq!(start.elapsed(), Duration::from_secs(4), "of a small one 200 a second");
    advance(Duration::from_secs(60)).await;
    grow(&world);
    let start = Instant::now();
    churn(&world, 200).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    churn(&world, 40).await;
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_small_again_is_written_at_the_pace_of_a_small_one() {
    let world = world();
    grow(&world);
    churn(&world, 200).await;
    describe(&world, "");
    let start = Instant::now();
    churn(&world, 2).await;
    assert!(start.elapsed() <= Duration::from_millis(250), "{:?}", start.elapsed());
    // nor does a burst come back because the pool grows
    grow(&world);
    let start = Instant::now();
    churn(&world, 40).await;
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_another_namespace_has_written_takes_along_what_waits() {
    let world = world();
    grow(&world);
    let start = Instant::now();
    churn(&world, 200).await;
    let before = world.puts.load(Ordering::Relaxed);
    let (waits, other) = tokio::join!(
        ordered(&world.writers, "shop", claim("shop/web")),
        ordered(&world.writers, "lab", claim("lab/api")),
    );
    waits.unwrap();
    assert!(matches!(other, Err(Failure::Refused(_))), "it would have got the address: {other:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(world.puts.load(Ordering::Relaxed) - before, 1);
}

// who waits for a full pool is woken by whatever changes in it, and would carry out what its cause has to wait with
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_takes_along_nothing_that_waits() {
    let world = world();
    grow(&world);
    ordered(&world.writers, "shop", claim("shop/web")).await.unwrap();
    for order in [release("shop/web"), claim("shop/web")].into_iter().cycle().take(200) {
        ordered(&world.writers, "shop", order).await.unwrap();
    }
    let (start, before) = (Instant::now(), world.puts.load(Ordering::Relaxed));
    let refused = async {
        let refused = ordered(&world.writers, "lab", claim("lab/api")).await;
        assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
        (start.elapsed(), world.puts.load(Ordering::Relaxed))
    };
    let (released, refused) = tokio::join!(ordered(&world.writers, "shop", release("shop/web")), refused);
    released.unwrap();
    assert_eq!(refused, (Duration::ZERO, before));
    assert_eq!(world.puts.load(Ordering::Relaxed), before + 1);
}

/// The orders of `waiter`, which news of the older pool outdate; the younger one is gone.
fn outdated_by_news(world: &World, waiter: &ObjectKey) -> Orders {
    let World { caches, writers, index, .. } = world;
    caches.pools.gone(&ObjectKey::new("", "younger"), "younger");
    let (queue, waiters) = (Queue::new(), PoolWaiters::default());
    let orders = Orders::new(writers.clone(), queue.clone());
    waiters.enter(waiter, WaitingFor::Anything);
    let news = PoolNews { waiters, index: index.clone(), orders: orders.clone(), queue, pools: Queue::new() };
    caches.pools.on_change(move |change| {
        news.pool_changed(
            change.old.as_deref().map(|pool| &**pool),
            change.new.as_deref().map(|pool| &**pool),
        );
    });
    orders
}

// a tenant that makes and deletes objects again and again has a release in each batch
#[tokio::test(start_paused = true)]
async fn a_refusal_counts_also_if_somebody_released_an_address_in_the_same_write() {
    let (world, key) = (world(), ObjectKey::new("lab", "api"));
    let (writers, orders) = (&world.writers, outdated_by_news(&world, &key));
    edit(&world, |pool| pool["spec"]["quarantineSeconds"] = 60.into());
    ordered(writers, "shop", claim("shop/web")).await.unwrap();
    let before = world.puts.load(Ordering::Relaxed);
    orders.submit(&key, "older", claim("lab/api"), Vec::new());
    ordered(writers, "shop", release("shop/web")).await.unwrap();
    assert_eq!(world.puts.load(Ordering::Relaxed), before + 1);
    let refused: Vec<_> = orders.look(&key).refused.into_iter().map(|(pool, _)| pool).collect();
    assert_eq!(refused, ["older"]);
}

// the release has woken the object, whose claim of the second family was under way, and wakes it no second time
#[tokio::test(start_paused = true)]
async fn an_address_that_comes_free_before_the_second_family_is_refused_goes_to_who_asked_for_the_first() {
    let (world, key) = (world(), ObjectKey::new("lab", "api"));
    let (writers, orders) = (&world.writers, outdated_by_news(&world, &key));
    let of = |holder: &str, family| Order::Claim { holder: holder.into(), known: None, family: Some(family) };
    edit(&world, |pool| {
        pool["spec"]["ranges"] = json!([{"subnet": "10.0.0.10/32"}, {"subnet": "fd00::10/128"}]);
    });
    for family in [Family::V4, Family::V6] {
        ordered(writers, "shop", of("shop/web", family)).await.unwrap();
    }
    orders.submit(&key, "older", of("lab/api", Family::V4), Vec::new());
    ordered(writers, "lab", Order::Refresh).await.unwrap();
    let refused = orders.look(&key).refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    orders.submit(&key, "older", of("lab/api", Family::V6), refused);
    ordered(writers, "shop", release("shop/web")).await.unwrap();
    let refused = orders.look(&key).refused;
    assert!(refused.is_empty(), "it waits, and the address is free: {refused:?}");
    orders.submit(&key, "older", of("lab/api", Family::V4), refused);
    ordered(writers, "lab", Order::Refresh).await.unwrap();
    let address = IpAddr::from([10, 0, 0, 10]);
    assert_eq!(orders.look(&key).recorded_anew, Some(("older".to_owned(), address)));
}

// one failure more had the address shown half a minute after it was recorded
#[tokio::test(start_paused = true)]
async fn the_failures_of_an_outage_count_no_more_once_an_address_is_recorded() {
    let world = world();
    let (queue, key) = (Queue::new(), ObjectKey::new("shop", "web"));
    let (orders, failures) =
        (Orders::new(world.writers.clone(), queue.clone()), Arc::new(AtomicUsize::new(0)));
    let (asked, count) = (orders.clone(), failures.clone());
    queue.run(&world.tasks, 1, move |key: ObjectKey| {
        let failures = count.fetch_add(1, Ordering::Relaxed) + 1;
        if failures == 13 {
            asked.submit(&key, "older", claim("shop/web"), Vec::new());
        }
        async move {
            match failures {
                13 => Ok(Action::AwaitAnswer(None)),
                15.. => Ok(Action::AwaitChange),
                _ => Err(std::io::Error::other("refused")),
            }
        }
    });
    queue.add(key);
    let looked = async |times| {
        while failures.load(Ordering::Relaxed) < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Instant::now()
    };
    let recorded = looked(14).await;
    assert!(looked(15).await - recorded < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_refused_claim_counts_for_no_write_that_another_namespace_caused() {
    let world = world();
    let World { writers, .. } = &world;
    edit(&world, |pool| {
        pool["spec"]["description"] = "x".repeat(70_000).into();
        // nobody gets what shop released
        pool["spec"]["quarantineSeconds"] = 60.into();
    });
    let start = Instant::now();
    for _ in 0..90 {
        let claims = tokio::join!(
            ordered(writers, "shop", claim("shop/web")),
            ordered(writers, "lab", claim("lab/api"))
        );
        let releases = tokio::join!(
            ordered(writers, "lab", claim("lab/api")),
            ordered(writers, "shop", release("shop/web"))
        );
        assert!(claims.0.is_ok() && claims.1.is_err() && releases.0.is_err() && releases.1.is_ok());
    }
    grow(&world);
    for _ in 0..100 {
        ordered(writers, "lab", claim("lab/api")).await.unwrap();
        ordered(writers, "lab", release("lab/api")).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

// the pool's own controller looks at it after each release
#[tokio::test(start_paused = true)]
async fn what_no_object_asks_for_is_answered_at_once_and_takes_along_nothing_that_waits() {
    let world = world();
    grow(&world);
    churn(&world, 200).await;
    let (start, before) = (Instant::now(), world.puts.load(Ordering::Relaxed));
    for order in [claim("shop/web"), release("shop/web")].into_iter().cycle().take(40) {
        let asked = Instant::now();
        let refreshed = async {
            world.writers.order("older", Order::Refresh).await.unwrap();
            asked.elapsed()
        };
        let (answer, refreshed) = tokio::join!(ordered(&world.writers, "shop", order), refreshed);
        answer.unwrap();
        assert_eq!(refreshed, Duration::ZERO);
    }
    let puts = world.puts.load(Ordering::Relaxed) - before;
    assert_eq!((start.elapsed(), puts), (Duration::from_secs(10), 40));
}

// a label that flips has a pool looked at that has nothing new to say, and wakes everybody who waits for it
#[tokio::test(start_paused = true)]
async fn a_namespace_that_has_a_pool_looked_at_again_and_again_waits_after_its_burst() {
    let World { writers, puts, .. } = &world();
    let (start, before) = (Instant::now(), puts.load(Ordering::Relaxed));
    for _ in 0..1000 {
        ordered(writers, "shop", Order::Refresh).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    ordered(writers, "lab", Order::Refresh).await.unwrap();
    assert_eq!((start.elapsed(), puts.load(Ordering::Relaxed)), (Duration::from_secs(4), before));
}

// each of them has everybody woken who waits
#[tokio::test(start_paused = true)]
async fn of_the_objects_whose_looks_are_one_the_first_alone_hears_news() {
    let (world, news) = (world(), Arc::new(AtomicUsize::new(0)));
    let looks = |namespaces: &[&str]| {
        for namespace in namespaces {
            let news = news.clone();
            world.writers.submit(namespace, "older", Order::Refresh, move |_, basis| {
                news.fetch_add(usize::from(!basis.is_told), Ordering::Relaxed);
            });
        }
    };
    for so_far in 1..=3 {
        // that of the pool's own controller is news to nobody
        let (_, last) = tokio::join!(world.writers.order("older", Order::Refresh), async {
            looks(&["shop", "lab", "shop"]);
            world.writers.order("older", Order::Refresh).await
        });
        last.unwrap();
        assert_eq!(news.load(Ordering::Relaxed), so_far);
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_objects_of_one_namespace_wait_for_no_turn_of_each() {
    let world = world();
    grow(&world);
    churn(&world, 200).await;
    let start = Instant::now();
    let releases = (0..5000).map(|n| ordered(&world.writers, "shop", release(&format!("shop/web-{n}"))));
    let claims = futures::future::join(
        futures::future::join_all(releases),
        ordered(&world.writers, "shop", claim("shop/web")),
    );
    claims.await.1.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn who_made_the_records_that_the_writer_makes_is_no_question() {
    let (world, key) = (world(), ObjectKey::new("shop", "web"));
    edit(&world, |pool| {
        pool["spec"]["ranges"] = json!([{"subnet": "10.0.0.10/32"}, {"subnet": "fd00::10/128"}]);
    });
    let of = |family| Order::Claim { holder: "shop/web".into(), known: None, family: Some(family) };
    let both = Order::ClaimBoth(Box::new([Family::V4, Family::V6].map(of)));
    ordered(&world.writers, "shop", both).await.unwrap();
    assert_eq!(world.index.recorded_for(&key).len(), 2);
    assert_eq!(world.index.unjudged(&key, true).len(), 0);
}
