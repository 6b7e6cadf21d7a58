//! Stories of a cache on the in-process API server.

use std::time::Duration;

use http::{Request, header::ACCEPT};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::Body,
    core::PartialObjectMeta,
};
use serde_json::json;
use sim_apiserver::{
    ApiServer,
    faults::{Answer, Rule},
};
use tokio::time::timeout;

use super::*;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cache_of_one_list_is_complete_page_by_page_and_follows_nothing() {
    let server = ApiServer::builder().build();
    let maps = || Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    let all = usize::try_from(PAGE).unwrap() + 1;
    for number in 0..all {
        maps().create(&PostParams::default(), &map(&format!("map-{number}"))).await.unwrap();
    }
    let cache = Cache::list_once(maps()).await.unwrap();
    assert!(cache.is_ready());
    let listed = cache.list();
    assert_eq!(
        listed.iter().filter(|map| map.metadata.name.as_ref().unwrap().starts_with("map-")).count(),
        all
    );
    let copy = Cache::of(listed.iter().map(|map| (**map).clone()));
    assert_eq!((copy.is_ready(), copy.list().len()), (true, listed.len()));
    maps().delete("map-0", &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(cache.list().len(), listed.len());
}

#[tokio::test(start_paused = true)]
async fn each_change_is_told_once_whether_it_is_ours_or_not() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    maps.create(&PostParams::default(), &map("before")).await.unwrap();

    let cache = Cache::<ConfigMap>::start(
        &tasks,
        Api::namespaced(server.client("admin"), "default"),
        watcher::Config::default(),
    );
    assert!(!cache.is_ready());
    cache.ready().await;
    assert!(cache.is_ready());
    let (log, into) = (Arc::new(Mutex::new(Vec::new())), cache.clone());
    let told = log.clone();
    into.on_change(move |change| {
        let how = match (&change.old, &change.new) {
            (None, Some(_)) => "new",
            (Some(_), Some(_)) => "changed",
            _ => "gone",
        };
        told.lock().unwrap().push(format!("{} {how}", change.key));
    });

    // ours: told before the watch brings it, and not again when it does
    let ours = maps.create(&PostParams::default(), &map("ours")).await.unwrap();
    cache.wrote(ours);
    assert_eq!(log.lock().unwrap().last().unwrap(), "default/ours new");
    let patch = Patch::Merge(json!({"data": {"a": "2"}}));
    maps.patch("before", &PatchParams::default(), &patch).await.unwrap();
    maps.delete("ours", &DeleteParams::default()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let expected = ["default/before new", "default/ours new", "default/before changed", "default/ours gone"];
    assert_eq!(*log.lock().unwrap(), expected);
    assert_eq!(cache.list().len(), 1);
    assert!(cache.list()[0].metadata.managed_fields.is_none(), "nobody reads them");
}

#[tokio::test(start_paused = true)]
async fn a_cache_knows_how_far_its_watch_has_come_and_for_how_long_it_is_silent() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    let cache = Cache::start(&tasks, maps.clone(), watcher::Config::default());
    assert_eq!(cache.silent_for(), Duration::MAX);
    cache.ready().await;
    let ours = maps.create(&PostParams::default(), &map("ours")).await.unwrap();
    let version = store::version_of(&ours);
    timeout(Duration::from_secs(1), cache.wait_until_watched(version)).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(cache.silent_for() > Duration::from_secs(50), "{:?}", cache.silent_for());
    assert!(timeout(Duration::from_secs(1), cache.wait_until_watched(version + 1)).await.is_err());
    // one that no watch follows hears of no version
    let empty = Cache::empty();
    empty.wrote(maps.get("ours").await.unwrap());
    assert!(timeout(Duration::from_secs(1), empty.wait_until_watched(version)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stale_watch_is_listed_anew_and_its_cache_is_not_ready_until_then() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    maps.create(&PostParams::default(), &map("goes")).await.unwrap();
    let cache = Cache::start(&tasks, maps.clone(), watcher::Config::default());
    cache.ready().await;
    // a proxy holds the connection
    let (user, verb) = (Some("admin".to_owned()), Some("watch".to_owned()));
    server.faults().add(Rule { user, verb, ..Rule::new(Answer::Delay(Duration::from_secs(300))) });
    server.faults().close_watches();
    sleep(Duration::from_secs(1)).await;
    maps.delete("goes", &DeleteParams::default()).await.unwrap();
    let comes = maps.create(&PostParams::default(), &map("comes")).await.unwrap();
    let passed = timeout(Duration::from_secs(5), cache.wait_until_watched(store::version_of(&comes))).await;
    assert!(passed.is_err() && cache.is_ready());
    assert_eq!(cache.watch_error(), None);

    cache.relist();
    assert!(!cache.is_ready());
    timeout(Duration::from_secs(1), cache.ready()).await.unwrap();
    timeout(Duration::from_secs(1), cache.wait_until_watched(store::version_of(&comes))).await.unwrap();
    let has = |name: &str| cache.get(&ObjectKey::new("default", name)).is_some();
    assert!(has("comes") && !has("goes"));
    // one list that nobody follows stays what it is
    let once = Cache::list_once(maps).await.unwrap();
    once.relist();
    assert!(once.is_ready());
}

/// The server that refused may have been another one.
#[tokio::test(start_paused = true)]
async fn a_broken_watch_that_is_to_list_anew_does_so_at_once() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    let cache = Cache::start(&tasks, maps, watcher::Config::default());
    cache.ready().await;
    let (user, verb) = (Some("admin".to_owned()), Some("list".to_owned()));
    server.faults().add(Rule { user, verb, ..Rule::new(Answer::Code(503)) });
    server.faults().expire_watches();
    // the last try was after 22 s, and the next one comes after 32 s
    sleep(Duration::from_secs(23)).await;
    assert!(cache.watch_error().is_some());
    server.faults().clear();
    cache.relist();
    timeout(Duration::from_secs(1), cache.ready()).await.unwrap();
    assert_eq!(cache.watch_error(), None);
}

#[test]
fn a_cache_that_is_to_list_anew_is_ready_with_that_list_alone_and_of_another_server_it_keeps_no_version() {
    let event = |version: u64| -> Undecoded {
        let metadata =
            json!({"name": "a", "uid": version.to_string(), "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    for (is_elsewhere, expected) in [(false, "9"), (true, "3")] {
        let cache = Cache::<ConfigMap>::keeping(Box::new(|_| ()), Some(Arc::default()));
        cache.on_event(watcher::Event::Apply(event(9)));
        if is_elsewhere {
            cache.relist_elsewhere();
        } else {
            cache.relist();
        }
        // a list that was under way
        cache.on_event(watcher::Event::InitDone);
        assert!(!is_elsewhere || !cache.is_ready());
        cache.begins_anew();
        assert!(!cache.is_ready());
        cache.on_event(watcher::Event::Init);
        cache.on_event(watcher::Event::InitApply(event(3)));
        cache.on_event(watcher::Event::InitDone);
        assert!(cache.is_ready());
        let versions: Vec<_> =
            cache.list().iter().filter_map(|map| map.metadata.resource_version.clone()).collect();
        assert_eq!(versions, [expected]);
    }
}

/// A request may be under way for as long as its time limit, and no event of the next server would correct its answer.
#[test]
fn what_was_asked_of_the_former_server_changes_nothing_at_another_whenever_the_answer_comes() {
    let map = |name: &str, version: u64| -> ConfigMap {
        let metadata =
            json!({"name": name, "namespace": "shop", "uid": "u", "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    let event = |name: &str, version: u64| -> Undecoded {
        serde_json::from_value(serde_json::to_value(map(name, version)).unwrap()).unwrap()
    };
    let cache = Cache::<ConfigMap>::keeping(Box::new(|_| ()), Some(Arc::default()));
    let known = || -> Vec<_> {
        let all = cache.list().into_iter();
        all.map(|map| (map.metadata.name.clone().unwrap(), store::version_of(&*map))).collect()
    };
    cache.on_event(watcher::Event::Apply(event("web", 9)));
    let former = cache.answers();
    let is_told_late = |expected: &[(&str, u64)]| {
        former.wrote(map("web", 10));
        former.wrote(map("api", 11));
        former.gone(&ObjectKey::new("shop", "web"), "u");
        let expected: Vec<_> =
            expected.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect();
        assert_eq!(known(), expected);
    };
    assert!(former.are_of_this_server());
    cache.relist_elsewhere();
    assert!(!former.are_of_this_server());
    is_told_late(&[("web", 9)]);
    cache.begins_anew();
    cache.on_event(watcher::Event::Init);
    is_told_late(&[("web", 9)]);
    cache.on_event(watcher::Event::InitApply(event("web", 3)));
    is_told_late(&[("web", 3)]);
    cache.on_event(watcher::Event::InitDone);
    is_told_late(&[("web", 3)]);
    let next = cache.answers();
    next.wrote(map("web", 4));
    next.wrote(map("api", 5));
    is_told_late(&[("api", 5), ("web", 4)]);
    next.gone(&ObjectKey::new("shop", "api"), "u");
    is_told_late(&[("web", 4)]);
}

#[tokio::test(start_paused = true)]
async fn what_was_read_is_known_unless_its_end_or_a_list_may_be_newer() {
    let map = |version: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"namespace": "default", "name": "a", "uid": "u", "resourceVersion": version}}))
            .unwrap()
    };
    let key = ObjectKey::new("default", "a");
    let version =
        |cache: &Cache<ConfigMap>| cache.get(&key).and_then(|map| map.metadata.resource_version.clone());
    let cache = Cache::of([map("5")]);
    cache.saw(map("7"));
    cache.saw(map("6"));
    assert_eq!(version(&cache).as_deref(), Some("7"));
    cache.gone(&key, "u");
    cache.saw(map("8"));
    assert_eq!(version(&cache), None, "it has ended");
    let listing = Cache::<ConfigMap>::empty();
    listing.on_event(watcher::Event::Init);
    listing.saw(map("5"));
    listing.on_event(watcher::Event::InitDone);
    assert_eq!(version(&listing), None);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_reads_is_kept_of_no_version_neither_the_watchs_nor_ours() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    let trim = |map: &mut ConfigMap| map.data = None;
    let cache = Cache::start_trimmed(&tasks, maps.clone(), watcher::Config::default(), trim);
    cache.ready().await;
    let answer = maps.create(&PostParams::default(), &map("ours")).await.unwrap();
    assert!(answer.data.is_some() && answer.metadata.managed_fields.is_some());
    let ours = cache.wrote(answer);
    maps.create(&PostParams::default(), &map("theirs")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let all = cache.list();
    assert_eq!(all.len(), 2);
    for map in all.iter().chain([&ours]) {
        assert_eq!((&map.data, &map.metadata.managed_fields), (&None, &None));
    }
}

#[tokio::test(start_paused = true)]
async fn where_metadata_is_kept_the_server_is_asked_for_no_more_and_not_before_the_others_have_ended() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    maps.create(&PostParams::default(), &map("goes")).await.unwrap();
    let (client, forms) = (server.client("admin"), Arc::<Mutex<Vec<String>>>::default());
    let noted = forms.clone();
    let noting = tower::service_fn(move |request: Request<Body>| {
        let form = request.headers().get(ACCEPT).and_then(|form| form.to_str().ok());
        noted.lock().unwrap().push(form.unwrap_or_default().to_owned());
        let client = client.clone();
        async move { client.send(request).await }
    });
    let (end, others) = tokio::sync::oneshot::channel::<()>();
    let cache = Cache::<PartialObjectMeta<ConfigMap>>::start_after(
        async move { drop(others.await) },
        &tasks,
        Api::namespaced(Client::new(noting, "default"), "default"),
        watcher::Config::default(),
        |_| (),
    );
    sleep(Duration::from_secs(60)).await;
    assert!(!cache.is_ready() && forms.lock().unwrap().is_empty());
    end.send(()).unwrap();
    cache.ready().await;
    assert_eq!(cache.list().len(), 1);
    maps.delete("goes", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &map("comes")).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let names: Vec<_> = cache.list().iter().map(|map| map.metadata.name.clone().unwrap()).collect();
    assert_eq!((names, cache.malformed()), (vec!["comes".to_owned()], vec![]));
    let forms = forms.lock().unwrap().clone();
    assert!(
        forms.len() > 1 && forms.iter().all(|form| form.contains("as=PartialObjectMetadata")),
        "{forms:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fell_too_far_behind_lists_again_and_misses_nothing() {
    let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
    let maps = Api::<ConfigMap>::namespaced(server.client("admin"), "default");
    let cache = Cache::<ConfigMap>::start(
        &tasks,
        Api::namespaced(server.client("admin"), "default"),
        watcher::Config::default(),
    );
    cache.ready().await;
    maps.create(&PostParams::default(), &map("web")).await.unwrap();
    server.compact();
    sleep(Duration::from_secs(600)).await;
    maps.create(&PostParams::default(), &map("shop")).await.unwrap();
    sleep(Duration::from_secs(600)).await;
    let names: Vec<_> = cache.list().iter().map(|map| map.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["shop", "web"]);
}

/// An object that is being deleted.
fn leaving(uid: &str, version: u64, finalizers: &[&str]) -> ConfigMap {
    let json = json!({"metadata": {"name": "web", "namespace": "shop", "uid": uid, "resourceVersion": version.to_string(),
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0, "finalizers": finalizers}});
    serde_json::from_value(json).unwrap()
}

#[test]
fn an_object_that_is_being_deleted_is_there_until_its_last_finalizer_goes_whatever_is_kept_of_it() {
    let cache =
        Cache::<ConfigMap>::keeping(Box::new(|map: &mut ConfigMap| map.metadata.finalizers = None), None);
    let event = |map: &ConfigMap| -> Undecoded {
        serde_json::from_value(serde_json::to_value(map).unwrap()).unwrap()
    };
    let key = ObjectKey::new("shop", "web");
    let version = || cache.get(&key).and_then(|map| map.metadata.resource_version.clone());
    cache.on_event(watcher::Event::Apply(event(&leaving("a", 5, &["a/b"]))));
    cache.wrote(leaving("a", 6, &["a/b"]));
    assert_eq!(version().as_deref(), Some("6"));
    cache.wrote(leaving("a", 6, &[]));
    assert_eq!(version(), None);
    cache.on_event(watcher::Event::Apply(event(&leaving("a", 6, &["a/b"]))));
    assert_eq!(version(), None, "the watch is behind");
    cache.on_event(watcher::Event::Apply(event(&leaving("b", 9, &["a/b"]))));
    cache.wrote(leaving("a", 6, &[]));
    assert_eq!(version().as_deref(), Some("9"), "one of that name is another");
}

#[test]
fn the_watch_tells_of_a_deletion_and_a_list_without_the_object_does_not() {
    let cache = Cache::<ConfigMap>::empty();
    let deleted = Arc::new(Mutex::new(Vec::new()));
    let told = deleted.clone();
    cache.on_delete(move |map| told.lock().unwrap().push(map.metadata.name.clone().unwrap()));
    let event = |name: &str, version: u64| -> Undecoded {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": version.to_string()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    for name in ["a", "b"] {
        cache.on_event(watcher::Event::Apply(event(name, 1)));
    }
    cache.on_event(watcher::Event::Delete(event("a", 2)));
    cache.on_event(watcher::Event::Init);
    cache.on_event(watcher::Event::InitDone);
    assert_eq!((&deleted.lock().unwrap()[..], cache.list().len()), (&["a".to_owned()][..], 0));
}
