//! Fixtures of the tests.

use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sim_apiserver::{ApiServer, User};

/// A server with namespace `shop`, and its administrator's client.
pub(crate) fn cluster() -> (ApiServer, Client) {
    let server = ApiServer::builder()
        .seed(7)
        .starting_at("2026-01-02T03:04:05Z".parse().unwrap())
        .namespace("shop")
        .build();
    let client = server.client(User::admin());
    (server, client)
}

/// Objects of any kind in namespace `shop`.
pub(crate) fn any(client: &Client, api_version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), "shop", &resource)
}

/// An object from JSON.
pub(crate) fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A ConfigMap with one entry.
pub(crate) fn config_map(name: &str, value: &str) -> k8s_openapi::api::core::v1::ConfigMap {
    object(json!({"metadata": {"name": name}, "data": {"key": value}}))
}

/// The `Status` of a refused request.
pub(crate) fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> Box<kube::core::Status> {
    match result {
        Err(kube::Error::Api(status)) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// A definition of `widgets.example.com`, with or without a status of its own.
pub(crate) async fn define_widgets(client: &Client, with_status: bool) {
    let subresources = if with_status { json!({"status": {}}) } else { json!({}) };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": subresources,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "default": 3, "minimum": 1}, "colour": {"type": "string"},
                    }},
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                }}},
            }],
        },
    });
    define(client, definition).await;
}

/// Makes a CustomResourceDefinition.
pub(crate) async fn define(client: &Client, definition: Value) {
    let crd = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&crd));
    crds.create(&Default::default(), &object(definition)).await.unwrap();
}

/// Widgets of namespace `shop`.
pub(crate) fn widgets(client: &Client) -> Api<DynamicObject> {
    any(client, "example.com/v1", "Widget", "widgets")
}

/// A widget from JSON fields besides its name.
pub(crate) fn widget(name: &str, fields: Value) -> DynamicObject {
    let mut widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
    json_patch::merge(&mut widget, &fields);
    object(widget)
}

/// Lets everything run that can, without letting time pass that anybody waits for.
pub(crate) async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}
