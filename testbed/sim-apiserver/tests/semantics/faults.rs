//! Faults: what a rule does to a request, and to whom.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::json;
use sim_apiserver::ApiServer;
use sim_apiserver::faults::{Answer, Rule, When};

use crate::support::{cluster, config_map, object, refusal};

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

/// A user who may do everything and is not the administrator.
async fn worker(server: &ApiServer, admin: &Client) -> Client {
    let binding = object(json!({
        "metadata": {"name": "worker"}, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "worker"}],
    }));
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(admin.clone());
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    server.client("worker")
}

fn on_create(answer: Answer, when: When) -> Rule {
    Rule { verb: Some("create".into()), resource: Some("configmaps".into()), when, ..Rule::new(answer) }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_not_a_lost_write_unless_the_request_was_lost_too() {
    let (server, admin) = cluster();
    let worker = maps(&worker(&server, &admin).await);
    server.faults().add(on_create(Answer::Drop, When::Before));
    assert!(worker.create(&PostParams::default(), &config_map("a", "1")).await.is_err());
    server.faults().clear();
    server.faults().add(on_create(Answer::Drop, When::After));
    assert!(worker.create(&PostParams::default(), &config_map("b", "1")).await.is_err());
    server.faults().clear();
    let names: Vec<_> = worker.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(names.iter().filter_map(|m| m.metadata.name.as_deref()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(server.faults().hits(), 2);
    assert_eq!(server.audit().records().iter().filter(|record| record.code == 0).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_nth_request_is_refused_and_the_administrator_never() {
    let (server, admin) = cluster();
    let worker = maps(&worker(&server, &admin).await);
    server.faults().add(Rule { nth: Some(2), ..on_create(Answer::Code(429), When::Before) });
    worker.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    maps(&admin).create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    let status = refusal(worker.create(&PostParams::default(), &config_map("c", "1")).await);
    assert_eq!((status.code, status.details.unwrap().retry_after_seconds), (429, 1));
    worker.create(&PostParams::default(), &config_map("c", "1")).await.unwrap();
    server.faults().add(Rule { user: Some("admin".into()), ..on_create(Answer::Code(500), When::Before) });
    assert_eq!(refusal(maps(&admin).create(&PostParams::default(), &config_map("d", "1")).await).code, 500);
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_time_on_the_servers_clock() {
    let (server, admin) = cluster();
    let worker = maps(&worker(&server, &admin).await);
    server.faults().add(on_create(Answer::Delay(Duration::from_secs(7)), When::After));
    let begin = tokio::time::Instant::now();
    worker.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn chances_are_the_same_for_the_same_seed() {
    let run = async |seed: u64| -> Vec<bool> {
        let (server, admin) = cluster();
        let worker = maps(&worker(&server, &admin).await);
        server.faults().reseed(seed);
        server.faults().add(Rule { probability: Some(0.5), ..Rule::new(Answer::Code(500)) });
        let mut hits = vec![];
        for _ in 0..20 {
            hits.push(worker.list(&ListParams::default()).await.is_err());
        }
        hits
    };
    let first = run(1).await;
    assert!(first.contains(&true) && first.contains(&false));
    assert_eq!(run(1).await, first);
    assert_ne!(run(2).await, first);
}

#[tokio::test(start_paused = true)]
async fn rules_in_the_config_map_are_obeyed_from_their_next_version_on() {
    let (server, admin) = cluster();
    let worker = maps(&worker(&server, &admin).await);
    let rules: Api<ConfigMap> = Api::namespaced(admin, "kube-system");
    let map = object(json!({
        "metadata": {"name": "sim-faults"},
        "data": {"rules": "- resource: configmaps\n  verb: list\n  answer: 403\n"},
    }));
    rules.create(&PostParams::default(), &map).await.unwrap();
    assert_eq!(refusal(worker.list(&ListParams::default()).await).code, 403);
    let wrong = Patch::Merge(json!({"data": {"rules": "- answer: maybe"}}));
    let status = refusal(rules.patch("sim-faults", &PatchParams::default(), &wrong).await);
    assert!(status.is_invalid() && status.message.contains("rule 1: answer \"maybe\""), "{}", status.message);
    let stray = Patch::Merge(json!({"data": {"faults.yaml": "- answer: 403"}}));
    let status = refusal(rules.patch("sim-faults", &PatchParams::default(), &stray).await);
    assert!(status.is_invalid() && status.message.contains("data[faults.yaml]"), "{}", status.message);
    let none = Patch::Merge(json!({"data": {"rules": null}}));
    rules.patch("sim-faults", &PatchParams::default(), &none).await.unwrap();
    worker.list(&ListParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_administrator_can_always_take_back_the_rules_that_hit_him() {
    let (_server, admin) = cluster();
    let rules: Api<ConfigMap> = Api::namespaced(admin.clone(), "kube-system");
    let map = |text: &str| object(json!({"metadata": {"name": "sim-faults"}, "data": {"rules": text}}));
    rules.create(&PostParams::default(), &map("- {user: admin, answer: 500}")).await.unwrap();
    assert_eq!(refusal(rules.list(&ListParams::default()).await).code, 500);
    assert_eq!(refusal(maps(&admin).get("sim-faults").await).code, 500, "of another namespace");
    let found = rules.get("sim-faults").await.unwrap();
    let changed = ConfigMap { metadata: found.metadata, ..map("- {user: admin, answer: drop}") };
    rules.replace("sim-faults", &PostParams::default(), &changed).await.unwrap();
    rules.delete("sim-faults", &DeleteParams::default()).await.unwrap();
    rules.list(&ListParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rule_for_a_kind_that_the_server_does_not_have_is_kept_with_a_warning() {
    let (_server, admin) = cluster();
    let rules = "[{resource: nosuch, answer: 500}, {resource: services/status, answer: 500}]";
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sim-faults"}, "data": {"rules": rules},
    });
    let request = http::Request::post("/api/v1/namespaces/kube-system/configmaps")
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(&map).unwrap()))
        .unwrap();
    let answer = admin.send(request).await.unwrap();
    assert_eq!(answer.status(), 201);
    let warnings: Vec<_> = answer.headers().get_all("warning").iter().collect();
    let [warning] = *warnings else { panic!("{warnings:?}") };
    assert!(warning.to_str().unwrap().contains("rule 1: this server has no nosuch"), "{warning:?}");
}

#[tokio::test(start_paused = true)]
async fn open_watches_can_be_closed_or_told_that_they_are_too_old() {
    let (server, client) = cluster();
    let maps = maps(&client);
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let stream = maps.watch(&WatchParams::default(), &version).await.unwrap();
    let faults = server.clone();
    tokio::spawn(async move { faults.faults().close_watches() });
    assert!(stream.try_collect::<Vec<_>>().await.unwrap().is_empty());
    let stream = maps.watch(&WatchParams::default(), &version).await.unwrap();
    let faults = server.clone();
    tokio::spawn(async move { faults.faults().expire_watches() });
    let seen: Vec<_> = stream.try_collect().await.unwrap();
    assert!(matches!(seen.as_slice(), [WatchEvent::Error(status)] if status.code == 410), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_survives_410_and_broken_watches() {
    let (server, admin) = cluster();
    let worker = maps(&worker(&server, &admin).await);
    let on_watch =
        |answer, when| Rule { verb: Some("watch".into()), nth: Some(1), when, ..Rule::new(answer) };
    server.faults().add(on_watch(Answer::Code(410), When::Before));
    server.faults().add(on_watch(Answer::Drop, When::After));
    let stream = watcher(worker, watcher::Config::default());
    pin_mut!(stream);
    maps(&admin).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let mut lists = 0;
    while lists < 2 {
        if let Some(Ok(watcher::Event::InitDone)) = stream.next().await {
            lists += 1;
        }
    }
    maps(&admin).create(&PostParams::default(), &config_map("b", "1")).await.unwrap();
    loop {
        if let Some(Ok(watcher::Event::Apply(map))) = stream.next().await {
            assert_eq!(map.metadata.name.as_deref(), Some("b"));
            break;
        }
    }
}
