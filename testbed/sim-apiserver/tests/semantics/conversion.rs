//! Custom resources in several versions, converted by a webhook.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use sim_apiserver::ApiServer;

use crate::support::{any, cluster, define, object, refusal, settle};

const DEFINITION: &str = "widgets.example.com";

/// Widgets have a size in v1, and a length in v2.
fn definition(stored: &str) -> Value {
    let version = |name: &str, field: &str| {
        let spec = json!({"type": "object", "properties": {field: {"type": "integer", "minimum": 1}}});
        json!({"name": name, "served": true, "storage": name == stored,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [version("v1", "size"), version("v2", "length")],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"service": {"namespace": "system", "name": "hooks", "path": "/convert"}}}},
        },
    })
}

fn widgets(client: &Client, version: &str) -> Api<DynamicObject> {
    any(client, &format!("example.com/{version}"), "Widget", "widgets")
}

fn widget(version: &str, name: &str, spec: Value) -> DynamicObject {
    object(
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": name}, "spec": spec}),
    )
}

/// What the webhook was asked, as `version name`.
type Asked = Arc<Mutex<Vec<String>>>;

/// A webhook that converts widgets, but for those that are named `bad`.
fn webhook(server: &ApiServer) -> Asked {
    let asked = Asked::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = log.clone();
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let to = review["request"]["desiredAPIVersion"].as_str().unwrap().to_owned();
            let mut result = json!({"status": "Success"});
            for object in review["request"]["objects"].as_array_mut().unwrap() {
                log.lock().unwrap().push(format!("{to} {}", object["metadata"]["name"].as_str().unwrap()));
                object["apiVersion"] = to.clone().into();
                let spec = &object["spec"];
                let number = spec.get("size").or(spec.get("length")).cloned();
                let field = if to == "example.com/v1" { "size" } else { "length" };
                object["spec"] = json!({field: number, "unknown": true});
                if object["metadata"]["name"] == "bad" {
                    result = json!({"status": "Failure", "message": "no"});
                }
            }
            let response = json!({"uid": review["request"]["uid"], "result": result,
                "convertedObjects": review["request"]["objects"]});
            let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
            Ok::<_, Infallible>(Response::new(Body::from(review.to_string())))
        }
    });
    server.webhook("system", "hooks", service);
    asked
}

fn seen(asked: &Asked) -> Vec<String> {
    std::mem::take(&mut asked.lock().unwrap())
}

async fn store_as(client: &Client, version: &str) {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let change = json!({"spec": {"versions": definition(version)["spec"]["versions"]}});
    api.patch(DEFINITION, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_object_is_written_and_read_in_either_version() {
    let (server, client) = cluster();
    let asked = webhook(&server);
    define(&client, definition("v2")).await;
    let (v1, v2) = (widgets(&client, "v1"), widgets(&client, "v2"));
    let made = v1.create(&PostParams::default(), &widget("v1", "a", json!({"size": 3}))).await.unwrap();
    assert_eq!(
        (made.types.unwrap().api_version.as_str(), &made.data["spec"]),
        ("example.com/v1", &json!({"size": 3}))
    );
    assert_eq!(
        v2.get("a").await.unwrap().data["spec"],
        json!({"length": 3}),
        "what v2 does not know is pruned"
    );
    assert_eq!(seen(&asked), ["example.com/v2 a", "example.com/v1 a"]);

    let merge = Patch::Merge(json!({"spec": {"size": 4}}));
    let patched = v1.patch("a", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(patched.data["spec"], json!({"size": 4}));
    let mut replaced = v1.get("a").await.unwrap();
    replaced.data["spec"]["size"] = 5.into();
    v1.replace("a", &PostParams::default(), &replaced).await.unwrap();
    let apply = Patch::Apply(widget("v1", "a", json!({"size": 6})));
    v1.patch("a", &PatchParams::apply("test").force(), &apply).await.unwrap();
    let stored = v2.get("a").await.unwrap();
    assert_eq!(stored.data["spec"], json!({"length": 6}));
    assert_eq!(stored.metadata.generation, Some(4));

    let refused =
        refusal(v1.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 0}}))).await);
    assert!(refused.message.contains("spec.size"), "{}", refused.message);
    v1.delete("a", &Default::default()).await.unwrap();
    assert!(v2.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_asks_for_the_objects_of_the_other_version_one_by_one() {
    let (server, client) = cluster();
    let asked = webhook(&server);
    define(&client, definition("v1")).await;
    let (v1, v2) = (widgets(&client, "v1"), widgets(&client, "v2"));
    v1.create(&PostParams::default(), &widget("v1", "old", json!({"size": 1}))).await.unwrap();
    store_as(&client, "v2").await;
    v2.create(&PostParams::default(), &widget("v2", "new", json!({"length": 2}))).await.unwrap();
    assert_eq!(seen(&asked), Vec::<String>::new());

    for (api, to, field, converted) in [(&v1, "v1", "size", "new"), (&v2, "v2", "length", "old")] {
        let list = api.list(&ListParams::default()).await.unwrap();
        let specs: Vec<_> = list.items.iter().map(|item| item.data["spec"].clone()).collect();
        assert_eq!(specs, [json!({field: 2}), json!({field: 1})]);
        assert_eq!(seen(&asked), [format!("example.com/{to} {converted}")]);
    }
    // a write of the same object brings it into the version that is stored
    let old = v2.get("old").await.unwrap();
    v2.replace("old", &PostParams::default(), &old).await.unwrap();
    seen(&asked);
    v2.get("old").await.unwrap();
    assert_eq!(seen(&asked), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_in_its_version_and_ends_at_an_object_that_cannot_be_converted() {
    let (server, client) = cluster();
    webhook(&server);
    define(&client, definition("v2")).await;
    let (v1, v2) = (widgets(&client, "v1"), widgets(&client, "v2"));
    let mut events = v1.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    v2.create(&PostParams::default(), &widget("v2", "a", json!({"length": 2}))).await.unwrap();
    let Some(Ok(WatchEvent::Added(added))) = events.next().await else { panic!("not added") };
    assert_eq!(added.data["spec"], json!({"size": 2}));

    v2.create(&PostParams::default(), &widget("v2", "bad", json!({"length": 2}))).await.unwrap();
    let Some(Ok(WatchEvent::Error(error))) = events.next().await else { panic!("no error") };
    let message = "conversion webhook for example.com/v2, Kind=Widget failed: no";
    assert_eq!((error.code, error.message.as_str()), (500, message));
    assert!(events.next().await.is_none());

    // the object is there, and in the way of every list of the other version
    for refused in
        [refusal(v1.get("bad").await).message, refusal(v1.list(&ListParams::default()).await).message]
    {
        assert_eq!(refused, message);
    }
    v2.delete("bad", &Default::default()).await.unwrap();
    assert_eq!(v1.list(&ListParams::default()).await.unwrap().items.len(), 1);
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_webhook_only_the_stored_version_is_there() {
    let (_server, client) = cluster();
    define(&client, definition("v2")).await;
    let (v1, v2) = (widgets(&client, "v1"), widgets(&client, "v2"));
    v2.create(&PostParams::default(), &widget("v2", "a", json!({"length": 2}))).await.unwrap();
    let post =
        "failed: Post \"https://hooks.system.svc:443/convert?timeout=30s\": service \"hooks\" not found";
    let read = refusal(v1.get("a").await);
    assert_eq!(
        (read.code, read.message),
        (500, format!("conversion webhook for example.com/v2, Kind=Widget {post}"))
    );
    let written = refusal(v1.create(&PostParams::default(), &widget("v1", "b", json!({"size": 2}))).await);
    assert_eq!(written.message, format!("conversion webhook for example.com/v1, Kind=Widget {post}"));
    assert_eq!(v2.list(&ListParams::default()).await.unwrap().items.len(), 1);
}
