//! Field ownership, server-side apply, strategic merge.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{cluster, define_widgets, object, refusal, widget, widgets};

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "shop")
}

fn applied(value: Value) -> Patch<Value> {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    json_patch::merge(&mut map, &json!({"data": value}));
    Patch::Apply(map)
}

#[tokio::test(start_paused = true)]
async fn every_writer_is_named_with_what_it_wrote() {
    let (_server, client) = cluster();
    let made = PostParams { field_manager: Some("maker".into()), ..Default::default() };
    let map = object(json!({"metadata": {"name": "a"}, "data": {"key": "1"}}));
    maps(&client).create(&made, &map).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"other": "2"}}));
    let patched = maps(&client).patch("a", &PatchParams::default(), &patch).await.unwrap();
    let fields = patched.metadata.managed_fields.unwrap();
    let told: std::collections::BTreeMap<_, _> = fields
        .iter()
        .map(|entry| {
            let fields = serde_json::to_value(entry.fields_v1.as_ref().unwrap()).unwrap();
            (entry.manager.clone().unwrap(), fields["f:data"].clone())
        })
        .collect();
    assert!(fields.iter().all(|entry| entry.operation.as_deref() == Some("Update")));
    assert_eq!(told["maker"], json!({".": {}, "f:key": {}}));
    assert_eq!(told["unknown"], json!({"f:other": {}}), "a client without a name");
}

#[tokio::test(start_paused = true)]
async fn apply_makes_changes_and_takes_back_what_it_no_longer_says() {
    let (server, client) = cluster();
    let ours = PatchParams::apply("ours");
    let made = maps(&client).patch("a", &ours, &applied(json!({"x": "1", "y": "1"}))).await.unwrap();
    assert_eq!(made.data.as_ref().unwrap().len(), 2);
    let before = server.revision();
    maps(&client).patch("a", &ours, &applied(json!({"x": "1", "y": "1"}))).await.unwrap();
    assert_eq!(server.revision(), before, "the same again changes nothing");
    let less = maps(&client).patch("a", &ours, &applied(json!({"x": "2"}))).await.unwrap();
    assert_eq!(less.data.unwrap().into_iter().collect::<Vec<_>>(), [("x".to_owned(), "2".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_field_of_another_manager_is_a_conflict_unless_forced() {
    let (_server, client) = cluster();
    maps(&client).patch("a", &PatchParams::apply("ours"), &applied(json!({"x": "1"}))).await.unwrap();
    let status =
        refusal(maps(&client).patch("a", &PatchParams::apply("theirs"), &applied(json!({"x": "2"}))).await);
    assert!(status.is_conflict());
    assert_eq!(status.details.unwrap().causes[0].field, ".data.x");
    let forced = PatchParams::apply("theirs").force();
    let taken = maps(&client).patch("a", &forced, &applied(json!({"x": "2"}))).await.unwrap();
    assert_eq!(taken.data.unwrap()["x"], "2");
    let nobody = PatchParams::default();
    assert!(maps(&client).patch("a", &nobody, &applied(json!({"x": "2"}))).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_strategic_merge_knows_the_keys_of_lists() {
    let (_server, client) = cluster();
    let services: Api<Service> = Api::namespaced(client, "shop");
    let web = object(json!({"metadata": {"name": "web"}, "spec": {"ports": [
        {"name": "http", "port": 80}, {"name": "https", "port": 443},
    ]}}));
    services.create(&PostParams::default(), &web).await.unwrap();
    let patch = Patch::Strategic(json!({"spec": {
        "$setElementOrder/ports": [{"port": 443}, {"port": 80}], "ports": [{"port": 80, "targetPort": 8080}],
    }}));
    let patched = services.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let ports: Vec<_> =
        patched.spec.unwrap().ports.unwrap().into_iter().map(|p| (p.port, p.name.unwrap())).collect();
    assert_eq!(ports, [(443, "https".to_owned()), (80, "http".to_owned())]);
    let stored = serde_json::to_value(services.get("web").await.unwrap()).unwrap();
    assert_eq!(stored["spec"].get("$setElementOrder/ports"), None);
    assert_eq!(stored["spec"]["ports"][1]["targetPort"], 8080);
}

#[tokio::test(start_paused = true)]
async fn a_schema_fills_in_prunes_and_refuses() {
    let (_server, client) = cluster();
    define_widgets(&client, true).await;
    let widgets = widgets(&client);
    let made = widgets
        .create(&PostParams::default(), &widget("a", json!({"spec": {"colour": "red", "unknown": 1}})))
        .await
        .unwrap();
    assert_eq!(made.data["spec"], json!({"colour": "red", "size": 3}));
    let status = refusal(
        widgets.create(&PostParams::default(), &widget("b", json!({"spec": {"size": 0, "colour": 7}}))).await,
    );
    assert!(status.is_invalid());
    let fields: Vec<_> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields, ["spec.colour", "spec.size"]);
    let request = http::Request::post("/apis/example.com/v1/namespaces/shop/widgets?fieldValidation=Strict")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&widget("c", json!({"spec": {"unknown": 1}}))).unwrap())
        .unwrap();
    let status = refusal(client.request::<Value>(request).await);
    assert!(status.message.contains("unknown field \"spec.unknown\""), "{}", status.message);
}

#[tokio::test(start_paused = true)]
async fn the_begin_of_a_generated_name_is_a_field_like_others() {
    let (_server, client) = cluster();
    let map: ConfigMap = object(json!({"metadata": {"generateName": "web-"}}));
    let made = maps(&client).create(&PostParams::default(), &map).await.unwrap();
    let entries = made.metadata.managed_fields.as_ref().unwrap();
    let fields = serde_json::to_value(entries[0].fields_v1.as_ref().unwrap()).unwrap();
    assert_eq!(fields, json!({"f:metadata": {"f:generateName": {}}}));
    // a PUT that does not say it takes it away, and its manager owns nothing any more
    let name = made.metadata.name.unwrap();
    let bare: ConfigMap = object(json!({"metadata": {"name": name}}));
    let replaced = maps(&client).replace(&name, &PostParams::default(), &bare).await.unwrap();
    assert_eq!((replaced.metadata.generate_name, replaced.metadata.managed_fields), (None, None));
}
