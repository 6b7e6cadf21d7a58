//! RBAC, admission and schemas are never faked: one table of allowed and refused requests, for both kinds of server and
//! both sets of roles.
#![cfg(test)]

use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use test_cluster::{Rights, TestCluster, User, component_tests};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    user: String,
    on: String,
    ask: String,
    body: Option<Value>,
    answer: Option<u16>,
    existing: Option<u16>,
    ours: Option<u16>,
}

const CORE: &str = "/api/v1";
const KINDS: [(&str, &str, &str); 23] = [
    ("loadbalancers", "/apis/loadbalancer.harvesterhci.io/v1beta1", "LoadBalancer"),
    ("ippools", "/apis/loadbalancer.harvesterhci.io/v1beta1", "IPPool"),
    ("virtualmachines", "/apis/kubevirt.io/v1", "VirtualMachine"),
    ("virtualmachineinstances", "/apis/kubevirt.io/v1", "VirtualMachineInstance"),
    ("services", CORE, "Service"),
    ("configmaps", CORE, "ConfigMap"),
    ("secrets", CORE, "Secret"),
    ("pods", CORE, "Pod"),
    ("nodes", CORE, "Node"),
    ("namespaces", CORE, "Namespace"),
    ("events", CORE, "Event"),
    ("leases", "/apis/coordination.k8s.io/v1", "Lease"),
    ("endpointslices", "/apis/discovery.k8s.io/v1", "EndpointSlice"),
    ("customresourcedefinitions", "/apis/apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    (
        "validatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
    ),
    (
        "mutatingwebhookconfigurations",
        "/apis/admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
    ),
    ("network-attachment-definitions", "/apis/k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
    ("persistentvolumeclaims", CORE, "PersistentVolumeClaim"),
    ("persistentvolumes", CORE, "PersistentVolume"),
    ("csinodes", "/apis/storage.k8s.io/v1", "CSINode"),
    ("storageclasses", "/apis/storage.k8s.io/v1", "StorageClass"),
    ("volumeattachments", "/apis/storage.k8s.io/v1", "VolumeAttachment"),
    ("settings", "/apis/harvesterhci.io/v1beta1", "Setting"),
];
const CLUSTER_SCOPED: [&str; 11] = [
    "persistentvolumes",
    "csinodes",
    "storageclasses",
    "volumeattachments",
    "settings",
    "ippools",
    "nodes",
    "namespaces",
    "customresourcedefinitions",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
];

/// `GET services team-a/web status` as method and path, and what kind an object there is.
fn target(ask: &str) -> (String, String, Option<(&'static str, &'static str)>) {
    let words: Vec<&str> = ask.split_whitespace().collect();
    let (method, resource) = (words[0].to_owned(), words[1]);
    if resource.starts_with('/') {
        return (method, resource.to_owned(), None);
    }
    let (plural, base, kind) =
        *KINDS.iter().find(|kind| kind.0 == resource).unwrap_or_else(|| panic!("{ask}"));
    let place = words.get(2).copied().unwrap_or_default();
    let (namespace, name) = match place.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None if CLUSTER_SCOPED.contains(&plural) => ("", place),
        None => (place, ""),
    };
    let namespace = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    let mut path = format!("{base}{namespace}/{plural}");
    for part in [name, words.get(3).copied().unwrap_or_default()] {
        if !part.is_empty() {
            path = format!("{path}/{part}");
        }
    }
    (method, path, Some((base, kind)))
}

fn user(name: &str) -> User {
    match name {
        "driver" => User::Driver,
        "load-balancer" => User::LoadBalancer,
        "webhook" => User::Webhook,
        "ccm" => User::CloudControllerManager,
        "csi" => User::CsiDriver,
        "nobody" => User::Nobody,
        other => panic!("who is {other}?"),
    }
}

/// The status code, and what the server said.
async fn ask(cluster: &TestCluster, line: &Line) -> (u16, String) {
    let (method, path, kind) = target(&line.ask);
    let mut body = line.body.clone();
    if let (Some(Value::Object(object)), Some((base, kind)), "POST" | "PUT") =
        (&mut body, kind, method.as_str())
    {
        let version = base.trim_start_matches("/apis/").trim_start_matches("/api/");
        object.insert("apiVersion".to_owned(), json!(version));
        object.insert("kind".to_owned(), json!(kind));
    }
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request =
        Request::builder().method(method.as_str()).uri(path).header("content-type", media).body(body.into());
    let side = if line.on == "guest" { &cluster.guest } else { &cluster.harvester };
    let answer = side.client(user(&line.user)).send(request.unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let said = answer.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8_lossy(&said).chars().take(300).collect())
}

component_tests! {
    // docs/contract/load-balancer.md#S-5
    #[each_role]
    async fn requests_are_allowed_and_refused_as_the_table_says(cluster: TestCluster) {
        let table: Vec<Line> = serde_saphyr::from_str(include_str!("allow_and_deny.yaml")).unwrap();
        let mut wrong = vec![];
        for line in &table {
            let particular = if cluster.rights() == Rights::Ours { line.ours } else { line.existing };
            let expected = line.answer.or(particular).expect("a line says what is answered");
            let (code, said) = ask(&cluster, line).await;
            if code != expected {
                wrong.push(format!("{} on {}: {}: {code} instead of {expected}: {said}", line.user, line.on, line.ask));
            }
        }
        assert!(wrong.is_empty(), "{} of {} lines:\n{}", wrong.len(), table.len(), wrong.join("\n"));
    }
}
