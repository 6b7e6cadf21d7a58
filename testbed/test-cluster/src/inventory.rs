//! Everything that lies on a cluster: to compare before and after, and to wipe a real server between two tests.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::manifests;
use crate::user::Side;

/// Kinds of Kubernetes that our parts, or a test, may make.
const BUILT_IN: [&str; 21] = [
    // these two first: they could refuse the end of others
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/api/v1/configmaps",
    "/api/v1/events",
    "/api/v1/nodes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/pods",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/api/v1/services",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/volumeattachments",
    NAMESPACES,
];
/// Last: what lies in them goes first.
const NAMESPACES: &str = "/api/v1/namespaces";

/// Kinds whose objects come and go without meaning anything.
const MEANINGLESS: [&str; 2] = ["/api/v1/events", "/apis/coordination.k8s.io/v1/leases"];

const WIPED_WITHIN: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// An object that is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    path: String,
    has_finalizers: bool,
    terminating: bool,
}

/// Paths of all objects on a cluster, Events and Leases apart, such as `/api/v1/namespaces/shop/services/web`.
///
/// # Errors
/// Where a kind cannot be listed.
pub async fn objects(client: &Client, side: Side) -> kube::Result<BTreeSet<String>> {
    let meaningful = kinds(side).into_iter().filter(|kind| !MEANINGLESS.contains(&kind.as_str()));
    let lists = try_join_all(meaningful.map(|kind| list(client, kind))).await?;
    Ok(lists.into_iter().flatten().map(|object| object.path).collect())
}

/// Deletes everything but `kept`, whatever its finalizers say, and waits until it is gone.
///
/// # Errors
/// Where a kind cannot be listed.
///
/// # Panics
/// When something does not go.
pub(crate) async fn wipe(client: &Client, side: Side, kept: &BTreeSet<String>) -> kube::Result<()> {
    let until = Instant::now() + WIPED_WITHIN;
    loop {
        let lists = try_join_all(kinds(side).into_iter().map(|kind| list(client, kind))).await?;
        let mut left: Vec<Object> = lists.into_iter().flatten().collect();
        left.retain(|object| !kept.contains(&object.path) && !is_the_servers(&object.path));
        if left.is_empty() {
            return Ok(());
        }
        assert!(Instant::now() < until, "these do not go from the {} cluster: {left:#?}", side.name());
        let namespaces_only = left.iter().all(|object| is_namespace(&object.path));
        left.retain(|object| namespaces_only || !is_namespace(&object.path));
        // answers do not matter: what is still there is seen in the next round
        join_all(left.iter().map(|object| remove(client, object))).await;
        sleep(BETWEEN_LOOKS).await;
    }
}

fn kinds(side: Side) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let custom = manifests::kinds(side).iter().map(|kind| {
        let spec = &kind["spec"];
        let stored =
            spec["versions"].as_array().and_then(|all| all.iter().find(|version| version["storage"] == true));
        let version = stored.map(|version| text(&version["name"])).unwrap_or_default();
        format!("/apis/{}/{version}/{}", text(&spec["group"]), text(&spec["names"]["plural"]))
    });
    let (last, others) = BUILT_IN.split_last().expect("there are kinds");
    others.iter().copied().map(str::to_owned).chain(custom).chain([(*last).to_owned()]).collect()
}

async fn list(client: &Client, kind: String) -> kube::Result<Vec<Object>> {
    let request = Request::get(&kind).body(vec![]).expect("a kind's path is a URI");
    let list: Value = match client.request(request).await {
        // a simulated server need not know every kind of Kubernetes
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(vec![]),
        other => other?,
    };
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items.iter().map(|item| Object::new(&kind, &item["metadata"])).collect())
}

impl Object {
    fn new(kind: &str, metadata: &Value) -> Self {
        let name = metadata["name"].as_str().unwrap_or_default();
        let (base, plural) = kind.rsplit_once('/').expect("a kind's path has slashes");
        let path = match metadata["namespace"].as_str() {
            Some(namespace) => format!("{base}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{kind}/{name}"),
        };
        let has_finalizers = metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        Self { path, has_finalizers, terminating: !metadata["deletionTimestamp"].is_null() }
    }
}

/// What a server makes for itself, and would make again: its own Lease, and the roles that the tests switch.
fn is_the_servers(path: &str) -> bool {
    path.contains("/namespaces/kube-system/leases/apiserver-")
        || path.contains("/rbac.authorization.k8s.io/v1/") && path.contains("harvester")
}

fn is_namespace(path: &str) -> bool {
    path.strip_prefix(NAMESPACES).is_some_and(|rest| !rest.trim_start_matches('/').contains('/'))
}

async fn remove(client: &Client, object: &Object) {
    let path = object.path.as_str();
    if object.has_finalizers {
        let patch = json!({"metadata": {"finalizers": null}}).to_string().into_bytes();
        let request = Request::patch(path).header("content-type", "application/merge-patch+json").body(patch);
        ask(client, request).await;
    }
    if !object.terminating {
        ask(client, Request::delete(format!("{path}?gracePeriodSeconds=0")).body(vec![])).await;
    }
    if is_namespace(path) {
        // nothing is left in it: what its controller would find out in a few seconds
        let name = path.rsplit('/').next().unwrap_or_default();
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}});
        let request = Request::put(format!("{path}/finalize")).header("content-type", "application/json");
        ask(client, request.body(body.to_string().into_bytes())).await;
    }
}

async fn ask(client: &Client, request: http::Result<Request<Vec<u8>>>) {
    client.request_text(request.expect("an object's path is a URI")).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_custom_kinds_are_listed_in_the_version_that_is_stored() {
        let kinds = kinds(Side::Harvester);
        assert!(kinds.contains(&"/apis/loadbalancer.harvesterhci.io/v1beta1/loadbalancers".to_owned()));
        assert!(kinds.contains(&"/apis/kubevirt.io/v1/virtualmachineinstances".to_owned()));
        assert_eq!(kinds.last().unwrap(), NAMESPACES);
    }

    #[test]
    fn an_object_has_the_path_by_which_it_is_deleted() {
        let object = |kind, metadata: Value| Object::new(kind, &metadata).path;
        let web = json!({"namespace": "shop", "name": "web"});
        assert_eq!(object("/api/v1/services", web), "/api/v1/namespaces/shop/services/web");
        assert_eq!(object(NAMESPACES, json!({"name": "shop"})), "/api/v1/namespaces/shop");
        assert!(is_namespace("/api/v1/namespaces/shop"));
        assert!(!is_namespace("/api/v1/namespaces/shop/services/web"));
    }
}
