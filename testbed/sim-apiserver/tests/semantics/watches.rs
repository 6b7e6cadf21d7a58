//! Watches: what is sent first, what later, what when nobody knows any more.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{cluster, config_map};

fn maps(client: &kube::Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

fn told(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => format!("+{}", map.name_any()),
        WatchEvent::Modified(map) => format!("~{}", map.name_any()),
        WatchEvent::Deleted(map) => format!("-{}", map.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("{} {}", status.code, status.reason),
    }
}

async fn events(maps: &Api<ConfigMap>, params: WatchParams, version: &str, count: usize) -> Vec<String> {
    let stream = maps.watch(&params, version).await.unwrap();
    stream.take(count).map_ok(|event| told(&event)).try_collect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_nothing_begins_with_the_state_and_one_from_a_version_with_the_next_change() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let a = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    maps.create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(events(&maps, WatchParams::default(), "0", 1).await, ["+b"]);
    let version = a.resource_version().unwrap();
    assert_eq!(events(&maps, WatchParams::default(), &version, 2).await, ["+b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_enters_and_leaves_a_selection() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    for colour in [Some("red"), Some("red"), None] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"colour": colour}}, "data": {"at": colour}}));
        maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
        let patch = Patch::Merge(json!({"data": {"again": colour}}));
        maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    let params = WatchParams::default().labels("colour=red").timeout(1);
    let version = made.resource_version().unwrap();
    let stream = maps.watch(&params, &version).await.unwrap();
    let seen: Vec<String> = stream.map_ok(|event| told(&event)).try_collect().await.unwrap();
    assert_eq!(seen, ["+a", "~a", "-a", "bookmark"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_has_a_version_of_its_own() {
    let (server, client) = cluster();
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let stream = maps.watch(&WatchParams::default(), &made.resource_version().unwrap()).await.unwrap();
    pin_mut!(stream);
    let Some(Ok(WatchEvent::Deleted(last))) = stream.next().await else { panic!("no deletion") };
    assert_eq!(last.resource_version(), Some(server.revision().to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_forgotten_is_an_error_in_the_stream_and_a_watcher_lists_again() {
    let (server, client) = cluster();
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    server.compact();
    assert_eq!(events(&maps, WatchParams::default(), "1", 1).await, ["410 Expired"]);

    let stream = watcher(maps.clone(), watcher::Config::default());
    pin_mut!(stream);
    while !matches!(stream.next().await, Some(Ok(watcher::Event::InitDone))) {}
    maps.create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    assert!(matches!(stream.next().await, Some(Ok(watcher::Event::Apply(map))) if map.name_any() == "b"));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let stream = watcher(maps, watcher::Config::default().streaming_lists());
    pin_mut!(stream);
    let mut seen = vec![];
    for _ in 0..3 {
        seen.push(stream.next().await.unwrap().unwrap());
    }
    assert!(matches!(
        seen.as_slice(),
        [watcher::Event::Init, watcher::Event::InitApply(_), watcher::Event::InitDone]
    ));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_says_which_versions_it_wants() {
    let (_server, client) = cluster();
    let path = "/api/v1/namespaces/shop/configmaps?watch=1&sendInitialEvents=true";
    let request = http::Request::get(path).body(vec![]).unwrap();
    assert!(crate::support::refusal(client.request::<serde_json::Value>(request).await).is_invalid());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_gets_bookmarks_and_ends_when_it_asked_to() {
    let (_server, client) = cluster();
    let params = WatchParams::default().timeout(150);
    let version = maps(&client).list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    let begin = tokio::time::Instant::now();
    let stream = maps(&client).watch(&params, &version).await.unwrap();
    let seen: Vec<String> = stream.map_ok(|event| told(&event)).try_collect().await.unwrap();
    assert_eq!(seen, ["bookmark", "bookmark", "bookmark"]);
    assert_eq!(begin.elapsed(), Duration::from_secs(150));
}
