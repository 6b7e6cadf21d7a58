//! Create, read, update, patch: versions, conflicts, generations, what writers cannot change.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::{any, cluster, config_map, define, define_widgets, object, refusal, widget, widgets};

fn maps(client: &kube::Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

#[tokio::test(start_paused = true)]
async fn a_new_object_gets_uid_version_and_time_and_a_second_of_the_name_is_refused() {
    let (server, client) = cluster();
    let made = maps(&client).create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert_eq!(made.metadata.namespace.as_deref(), Some("shop"));
    assert_eq!(made.metadata.uid.as_ref().unwrap().len(), 36);
    assert_eq!(made.metadata.resource_version, Some(server.revision().to_string()));
    assert_eq!(made.metadata.creation_timestamp.unwrap().0.to_string(), "2026-01-02T03:04:05Z");
    let again = refusal(maps(&client).create(&PostParams::default(), &config_map("a", "1")).await);
    assert!(again.is_already_exists());
    assert_eq!(again.message, "configmaps \"a\" already exists");
    let nowhere: Api<ConfigMap> = Api::namespaced(client, "nowhere");
    let status = refusal(nowhere.create(&PostParams::default(), &config_map("a", "1")).await);
    assert_eq!((status.code, status.message.as_str()), (404, "namespaces \"nowhere\" not found"));
}

#[tokio::test(start_paused = true)]
async fn generate_name_adds_five_characters() {
    let (_server, client) = cluster();
    let map: ConfigMap = object(json!({"metadata": {"generateName": "web-"}}));
    let first = maps(&client).create(&PostParams::default(), &map).await.unwrap().metadata.name.unwrap();
    let second = maps(&client).create(&PostParams::default(), &map).await.unwrap().metadata.name.unwrap();
    assert!(first.starts_with("web-") && first.len() == 9, "{first}");
    assert_ne!(first, second);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_and_changes_nothing() {
    let (server, client) = cluster();
    let before = server.revision();
    let dry = PostParams { dry_run: true, ..Default::default() };
    maps(&client).create(&dry, &config_map("a", "1")).await.unwrap();
    assert!(maps(&client).get_opt("a").await.unwrap().is_none());
    assert_eq!(server.revision(), before);
}

#[tokio::test(start_paused = true)]
async fn a_stale_update_is_a_conflict_and_one_without_a_version_is_not() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let first = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let mut newer = first.clone();
    newer.data.as_mut().unwrap().insert("key".into(), "2".into());
    maps.replace("a", &PostParams::default(), &newer).await.unwrap();
    let status = refusal(maps.replace("a", &PostParams::default(), &first).await);
    assert!(status.is_conflict());
    assert!(
        status.message.starts_with("Operation cannot be fulfilled on configmaps \"a\": the object has been")
    );
    let unconditional = maps.replace("a", &PostParams::default(), &config_map("a", "3")).await.unwrap();
    assert_eq!(unconditional.data.unwrap()["key"], "3");
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_is_not_updated_without_a_version() {
    let (_server, client) = cluster();
    define_widgets(&client, false).await;
    let widgets = widgets(&client);
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let status = refusal(widgets.replace("a", &PostParams::default(), &widget("a", json!({}))).await);
    assert!(status.is_invalid());
    assert!(status.message.contains("metadata.resourceVersion"), "{}", status.message);
    assert!(status.message.contains("must be specified for an update"), "{}", status.message);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_makes_no_version() {
    let (server, client) = cluster();
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let before = server.revision();
    maps.replace("a", &PostParams::default(), &made).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"key": "1"}}));
    let same = maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(same.metadata.resource_version, made.metadata.resource_version);
    assert_eq!(server.revision(), before);
}

#[tokio::test(start_paused = true)]
async fn the_generation_of_a_custom_resource_counts_changes_of_its_spec() {
    let (_server, client) = cluster();
    define_widgets(&client, true).await;
    let widgets = widgets(&client);
    let made =
        widgets.create(&PostParams::default(), &widget("a", json!({"spec": {"size": 1}}))).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let patch = |value: Value| Patch::Merge(value);
    let labelled = patch(json!({"metadata": {"labels": {"a": "b"}}}));
    let labelled = widgets.patch("a", &PatchParams::default(), &labelled).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(1));
    let grown =
        widgets.patch("a", &PatchParams::default(), &patch(json!({"spec": {"size": 2}}))).await.unwrap();
    assert_eq!(grown.metadata.generation, Some(2));
    let status = patch(json!({"status": {"phase": "Ready"}}));
    let ready = widgets.patch_status("a", &PatchParams::default(), &status).await.unwrap();
    assert_eq!((ready.metadata.generation, &ready.data["status"]["phase"]), (Some(2), &json!("Ready")));
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_apart_where_the_kind_says_so() {
    let (_server, client) = cluster();
    define_widgets(&client, true).await;
    let widgets = widgets(&client);
    let both = json!({"spec": {"size": 1}, "status": {"phase": "Made"}});
    let made = widgets.create(&PostParams::default(), &widget("a", both)).await.unwrap();
    assert!(made.data.get("status").is_none(), "a create does not set a status");
    let patch = Patch::Merge(json!({"spec": {"size": 9}, "status": {"phase": "Ready"}}));
    let status = widgets.patch_status("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((&status.data["spec"]["size"], &status.data["status"]["phase"]), (&json!(1), &json!("Ready")));
    let patch = Patch::Merge(json!({"spec": {"size": 9}, "status": {"phase": "Lost"}}));
    let main = widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((&main.data["spec"]["size"], &main.data["status"]["phase"]), (&json!(9), &json!("Ready")));
}

#[tokio::test(start_paused = true)]
async fn without_a_status_subresource_everything_is_one_object() {
    let (_server, client) = cluster();
    define_widgets(&client, false).await;
    let widgets = widgets(&client);
    let both = json!({"spec": {"size": 1}, "status": {"phase": "Made"}});
    let made = widgets.create(&PostParams::default(), &widget("a", both)).await.unwrap();
    assert_eq!(made.data["status"]["phase"], "Made");
    let patch = Patch::Merge(json!({"status": {"phase": "Ready"}}));
    let changed = widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(changed.metadata.generation, Some(2), "the generation counts the status, too");
    let status = refusal(widgets.patch_status("a", &PatchParams::default(), &patch).await);
    assert_eq!(status.code, 404);
}

#[tokio::test(start_paused = true)]
async fn uid_and_times_are_not_for_writers() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    let made = maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {
        "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z", "generation": 7,
    }}));
    let patched = maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.metadata.creation_timestamp, made.metadata.creation_timestamp);
    assert_eq!((patched.metadata.deletion_timestamp, patched.metadata.generation), (None, None));
    let foreign = Patch::Merge(json!({"metadata": {"uid": "another"}}));
    assert!(refusal(maps.patch("a", &PatchParams::default(), &foreign).await).is_invalid());
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "data": {"key": "2"}}));
    assert!(refusal(maps.patch("a", &PatchParams::default(), &stale).await).is_conflict());
}

#[tokio::test(start_paused = true)]
async fn a_json_patch_may_test_for_null_what_is_not_there() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    maps.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    let patch: json_patch::Patch = object(json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/a"]},
    ]));
    let patched = maps.patch("a", &PatchParams::default(), &Patch::<()>::Json(patch)).await.unwrap();
    assert_eq!(patched.metadata.finalizers.unwrap(), ["example.com/a"]);
    let wrong: json_patch::Patch = object(json!([{"op": "test", "path": "/data/key", "value": "2"}]));
    assert!(refusal(maps.patch("a", &PatchParams::default(), &Patch::<()>::Json(wrong)).await).is_invalid());
}

#[tokio::test(start_paused = true)]
async fn custom_resources_know_no_strategic_merge() {
    let (_server, client) = cluster();
    define_widgets(&client, false).await;
    let widgets = widgets(&client);
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let patch = Patch::Strategic(json!({"spec": {"size": 2}}));
    assert_eq!(refusal(widgets.patch("a", &PatchParams::default(), &patch).await).code, 415);
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_of_one_state() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config_map(name, "1")).await.unwrap();
    }
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.items.iter().filter_map(|m| m.metadata.name.clone()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(first.metadata.remaining_item_count, Some(1));
    maps.create(&PostParams::default(), &config_map("d", "1")).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = maps.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(second.items.iter().filter_map(|m| m.metadata.name.clone()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    let lost = refusal(maps.list(&ListParams::default().continue_token("999-0")).await);
    assert_eq!((lost.code, lost.reason.as_str()), (410, "Expired"));
}

#[tokio::test(start_paused = true)]
async fn lists_select_by_labels_and_fields() {
    let (_server, client) = cluster();
    let maps = maps(&client);
    for (name, tier) in [("a", "front"), ("b", "back"), ("c", "back")] {
        let mut map = config_map(name, "1");
        map.metadata.labels = Some([("tier".to_owned(), tier.to_owned())].into());
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let names = async |params: ListParams| -> Vec<String> {
        maps.list(&params).await.unwrap().items.into_iter().filter_map(|m| m.metadata.name).collect()
    };
    assert_eq!(names(ListParams::default().labels("tier=back")).await, ["b", "c"]);
    assert_eq!(names(ListParams::default().labels("tier notin (back)")).await, ["a"]);
    assert_eq!(names(ListParams::default().fields("metadata.name=b")).await, ["b"]);
    assert_eq!(refusal(maps.list(&ListParams::default().labels("a=(")).await).code, 400);
}

#[tokio::test(start_paused = true)]
async fn wrong_metadata_is_named_field_by_field() {
    let (_server, client) = cluster();
    let services: Api<Service> = Api::namespaced(client, "shop");
    let wrong: Service = object(json!({
        "metadata": {"name": "web", "labels": {"app": "not a label"}}, "spec": {"ports": [{"port": 80}]},
    }));
    let status = refusal(services.create(&PostParams::default(), &wrong).await);
    assert!(status.is_invalid());
    let details = status.details.unwrap();
    assert_eq!((details.kind.as_str(), details.causes.len()), ("Service", 1));
    assert_eq!(
        (details.causes[0].field.as_str(), details.causes[0].reason.as_str()),
        ("metadata.labels", "FieldValueInvalid")
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_version_keeps_what_the_stored_version_knows() {
    let (_server, client) = cluster();
    let version = |name: &str, stored: bool, fields: &[&str]| {
        let fields: serde_json::Map<_, _> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "integer"}))).collect();
        let spec = json!({"type": "object", "properties": fields});
        json!({
            "name": name, "served": true, "storage": stored,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
        })
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [version("v1alpha1", false, &["port", "PeriodSeconds"]), version("v1", true, &["port", "weight"])],
        },
    });
    define(&client, definition).await;
    let old = any(&client, "example.com/v1alpha1", "Gadget", "gadgets");
    let new = any(&client, "example.com/v1", "Gadget", "gadgets");
    let gadget = json!({
        "apiVersion": "example.com/v1alpha1", "kind": "Gadget", "metadata": {"name": "a"},
        "spec": {"port": 80, "PeriodSeconds": 5},
    });
    let made = old.create(&PostParams::default(), &object(gadget)).await.unwrap();
    assert_eq!(made.data["spec"], json!({"port": 80}), "the answer is what was kept");
    let weighed = Patch::Merge(json!({"spec": {"weight": 3}}));
    let changed = new.patch("a", &PatchParams::default(), &weighed).await.unwrap();
    assert_eq!(changed.data["spec"], json!({"port": 80, "weight": 3}));
    assert_eq!(old.get("a").await.unwrap().data["spec"], json!({"port": 80}));
}
