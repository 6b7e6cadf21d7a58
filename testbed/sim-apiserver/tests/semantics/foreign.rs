//! Foreign input: whatever a client sends, it gets an answer, and the server goes on.

use http::Request;
use kube::Client;
use serde_json::{Value, json};

use crate::support::{cluster, define_widgets};

/// Returns a value to put in the place of some part of a valid object.
fn junk(random: &mut fastrand::Rng) -> Value {
    let choices = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(99_999_999_999_i64),
        json!(""),
        json!("\u{0}text"),
        json!("x".repeat(300)),
        json!([]),
        json!([null, 1, "a", {}]),
        json!({}),
        json!({"": {"": ""}}),
        json!([[[[]]]]),
    ];
    choices[random.usize(..choices.len())].clone()
}

/// The object with one of its parts replaced.
fn spoil(object: &Value, random: &mut fastrand::Rng) -> Value {
    let (mut path, mut place) = (String::new(), object);
    while random.u8(..5) > 0 {
        let key = match place {
            Value::Object(fields) if !fields.is_empty() => {
                fields.keys().nth(random.usize(..fields.len())).unwrap().clone()
            }
            Value::Array(items) if !items.is_empty() => random.usize(..items.len()).to_string(),
            _ => break,
        };
        path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        place = object.pointer(&path).unwrap();
    }
    let mut spoilt = object.clone();
    *spoilt.pointer_mut(&path).unwrap() = junk(random);
    spoilt
}

async fn send(client: &Client, method: &str, path: &str, media: &str, body: Vec<u8>) {
    let request =
        Request::builder().method(method).uri(path).header("content-type", media).body(body).unwrap();
    match client.request::<Value>(request).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) => {
            // a real server calls it its own fault, too
            let untyped = status.message.starts_with("failed to create typed patch object");
            assert!((400..500).contains(&status.code) || untyped, "{method} {path}: {status:?}");
        }
        Err(other) => panic!("{method} {path}: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn spoilt_objects_are_refused_or_kept_and_harm_nobody() {
    let (_server, client) = cluster();
    define_widgets(&client, true).await;
    let metadata = |name: &str| {
        json!({
            "name": name, "labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a.b/c"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
        })
    };
    let objects = [
        (
            "/api/v1/namespaces/shop/services",
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata("a"),
                "spec": {
                    "type": "LoadBalancer", "selector": {"a": "b"}, "clusterIP": "10.96.1.1", "clusterIPs": ["10.96.1.1"],
                    "ports": [{"name": "a", "port": 80, "targetPort": "http", "nodePort": 30_000}, {"name": "b", "port": 81}],
                    "loadBalancerSourceRanges": ["10.0.0.0/8"], "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}},
                    "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_001, "ipFamilies": ["IPv4"],
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": [{"port": 80, "protocol": "TCP"}]}]}},
            }),
        ),
        (
            "/api/v1/nodes",
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"a": "b"}},
                "spec": {"providerID": "a", "taints": [{"key": "a", "effect": "NoSchedule"}]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}], "conditions": [{"type": "Ready"}]},
            }),
        ),
        (
            "/apis/example.com/v1/namespaces/shop/widgets",
            json!({
                "apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata("a"), "spec": {"size": 1},
                "status": {"phase": "a"},
            }),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "gadgets.example.com"},
                "spec": {
                    "group": "example.com", "scope": "Namespaced",
                    "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["g"]},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                        "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                            "spec": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
                        }}},
                    }],
                },
            }),
        ),
        (
            "/apis/apps/v1/namespaces/shop/deployments",
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
                "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                    "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b", "ports": [{}]}]},
                }},
            }),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "a"},
                "webhooks": [{
                    "name": "a.b.c", "clientConfig": {"url": "https://127.0.0.1:1/", "caBundle": ""}, "failurePolicy": "Ignore",
                    "rules": [{"apiGroups": ["none"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
                    "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
                }],
            }),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a"},
                "roleRef": {"kind": "ClusterRole", "name": "a"}, "subjects": [{"kind": "User", "name": "a"}],
            }),
        ),
        (
            "/api/v1/namespaces/kube-system/configmaps",
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sim-faults"},
                "data": {"rules": "- {user: nobody, answer: 500}"},
            }),
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/shop/events",
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
                "regarding": {"namespace": "shop", "name": "a"}, "note": "a", "series": {"count": 1},
            }),
        ),
    ];
    let mut random = fastrand::Rng::with_seed(1);
    for (path, object) in &objects {
        let one = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        for _ in 0..60 {
            let spoilt = serde_json::to_vec(&spoil(object, &mut random)).unwrap();
            send(&client, "POST", path, "application/json", spoilt.clone()).await;
            send(&client, "PUT", &one, "application/json", spoilt.clone()).await;
            for media in ["merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"] {
                let patch = format!("{one}?fieldManager=a&force=true");
                send(&client, "PATCH", &patch, &format!("application/{media}"), spoilt.clone()).await;
                let patch = format!("{one}/status?fieldManager=a&force=true");
                send(&client, "PATCH", &patch, &format!("application/{media}"), spoilt.clone()).await;
            }
            send(&client, "DELETE", &one, "application/json", vec![]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_no_objects_are_refused() {
    let (_server, client) = cluster();
    let path = "/api/v1/namespaces/shop/configmaps";
    for body in ["", "null", "7", "[]", "{", "\u{feff}{}", "k8s\u{0}", "k8s\u{0}\u{8}\u{f}\u{ff}"] {
        for media in
            ["json", "yaml", "vnd.kubernetes.protobuf", "json-patch+json", "apply-patch+yaml", "x-unknown"]
        {
            let media = format!("application/{media}");
            send(&client, "POST", path, &media, body.into()).await;
            send(&client, "PATCH", &format!("{path}/a?fieldManager=a"), &media, body.into()).await;
            send(&client, "DELETE", &format!("{path}/a"), &media, body.into()).await;
        }
    }
    let deep = "[".repeat(100_000);
    send(&client, "POST", path, "application/json", deep.clone().into()).await;
    send(&client, "POST", path, "application/yaml", deep.into()).await;
    for query in [
        "limit=-1",
        "continue=x",
        "labelSelector=%28",
        "resourceVersion=-1",
        "dryRun=x",
        "%zz",
        "watch=1&timeoutSeconds=x",
    ] {
        send(&client, "GET", &format!("{path}?{query}"), "application/json", vec![]).await;
    }
}
