//! Deletion: finalizers, owners, namespaces.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use crate::support::{cluster, config_map, define_widgets, object, refusal, settle, widget, widgets};

fn maps(client: &kube::Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

async fn names(maps: &Api<ConfigMap>) -> Vec<String> {
    let list = maps.list(&ListParams::default()).await.unwrap();
    list.items.into_iter().filter_map(|map| map.metadata.name).collect()
}

#[tokio::test(start_paused = true)]
async fn without_finalizers_an_object_is_gone_at_once() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let answer = maps.delete("a", &DeleteParams::default()).await.unwrap();
    let status = answer.right().unwrap();
    assert_eq!(status.details.unwrap().uid, made.metadata.uid.unwrap());
    assert_eq!(refusal(maps.delete("a", &DeleteParams::default()).await).code, 404);
}

#[tokio::test(start_paused = true)]
async fn with_finalizers_it_waits_and_goes_with_the_last_of_them() {
    let (_server, client) = cluster();
    define_widgets(&client, true).await;
    let widgets = widgets(&client);
    let held = json!({"metadata": {"finalizers": ["example.com/a"]}});
    widgets.create(&PostParams::default(), &widget("a", held)).await.unwrap();
    let waiting = widgets.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(waiting.metadata.deletion_timestamp.is_some());
    assert_eq!(waiting.metadata.generation, Some(2));
    let again = widgets.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(again.metadata.resource_version, waiting.metadata.resource_version);
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}));
    let status = refusal(widgets.patch("a", &PatchParams::default(), &more).await);
    assert!(
        status.message.contains("no new finalizers can be added if the object is being deleted"),
        "{status:?}"
    );
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    widgets.patch("a", &PatchParams::default(), &none).await.unwrap();
    assert!(widgets.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn preconditions_are_kept() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let other = Preconditions { uid: Some("another".into()), resource_version: None };
    let status = refusal(maps.delete("a", &DeleteParams::default().preconditions(other)).await);
    assert!(status.is_conflict());
    let old = Preconditions { uid: None, resource_version: Some("1".into()) };
    assert!(refusal(maps.delete("a", &DeleteParams::default().preconditions(old)).await).is_conflict());
}

fn owned(name: &str, owner: &ConfigMap, block: bool) -> ConfigMap {
    object(json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid,
        "blockOwnerDeletion": block,
    }]}}))
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_last_owner() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let owner = maps.create(&PostParams::default(), &config_map("owner", "1")).await.unwrap();
    let other = maps.create(&PostParams::default(), &config_map("other", "1")).await.unwrap();
    maps.create(&PostParams::default(), &owned("child", &owner, false)).await.unwrap();
    let mut shared = owned("shared", &owner, false);
    let second = owned("", &other, false).metadata.owner_references.unwrap();
    shared.metadata.owner_references.as_mut().unwrap().extend(second);
    maps.create(&PostParams::default(), &shared).await.unwrap();
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert_eq!(names(&maps).await, ["other", "shared"]);
    let shared = maps.get("shared").await.unwrap();
    assert_eq!(shared.metadata.owner_references.unwrap().len(), 1, "the dead owner is no longer named");
    maps.delete("other", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert!(names(&maps).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dependent_of_nobody_is_collected_when_it_comes() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let owner = maps.create(&PostParams::default(), &config_map("owner", "1")).await.unwrap();
    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    maps.create(&PostParams::default(), &owned("late", &owner, false)).await.unwrap();
    settle().await;
    assert!(names(&maps).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn orphaned_dependents_stay_and_foreground_ones_go_first() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let owner = maps.create(&PostParams::default(), &config_map("owner", "1")).await.unwrap();
    maps.create(&PostParams::default(), &owned("child", &owner, false)).await.unwrap();
    maps.delete("owner", &DeleteParams::orphan()).await.unwrap();
    settle().await;
    assert_eq!(names(&maps).await, ["child"]);
    assert_eq!(maps.get("child").await.unwrap().metadata.owner_references.unwrap_or_default(), []);

    let owner = maps.create(&PostParams::default(), &config_map("owner", "1")).await.unwrap();
    let mut child = owned("held", &owner, true);
    child.metadata.finalizers = Some(vec!["example.com/a".into()]);
    maps.create(&PostParams::default(), &child).await.unwrap();
    maps.delete("owner", &DeleteParams::foreground()).await.unwrap();
    settle().await;
    assert_eq!(names(&maps).await, ["child", "held", "owner"], "the owner waits for what blocks it");
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &none).await.unwrap();
    settle().await;
    assert_eq!(names(&maps).await, ["child"]);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selection() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config_map(name, "1")).await.unwrap();
    }
    let params = ListParams::default().fields("metadata.name!=b");
    maps.delete_collection(&DeleteParams::default(), &params).await.unwrap();
    assert_eq!(names(&maps).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_its_contents_along_and_goes_last() {
    let (_server, client) = cluster();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let mut held = config_map("held", "1");
    held.metadata.finalizers = Some(vec!["example.com/a".into()]);
    maps.create(&PostParams::default(), &held).await.unwrap();
    let ending = namespaces.delete("shop", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(ending.status.unwrap().phase.as_deref(), Some("Terminating"));
    settle().await;
    assert_eq!(names(&maps).await, ["held"]);
    let late = refusal(maps.create(&PostParams::default(), &config_map("late", "1")).await);
    assert_eq!(late.code, 403);
    assert_eq!(late.details.unwrap().causes[0].reason, "NamespaceTerminating");
    let none: Patch<Value> = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &none).await.unwrap();
    settle().await;
    assert!(namespaces.get_opt("shop").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_kind_goes_with_its_definition() {
    let (_server, client) = cluster();
    define_widgets(&client, false).await;
    let widgets = widgets(&client);
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let crds: Api<kube::api::DynamicObject> = Api::all_with(
        client.clone(),
        &kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
        )),
    );
    crds.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(widgets.list(&ListParams::default()).await).code, 404);
    define_widgets(&client, false).await;
    assert!(widgets.list(&ListParams::default()).await.unwrap().items.is_empty());
}
