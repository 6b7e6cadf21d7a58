//! Puts kinds, namespaces and roles on a cluster, and waits until they count.

use std::time::Duration;

use http::Request;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cluster::Cluster;
use crate::manifests::{self, Rights};
use crate::user::{GuestCluster, Side, User};

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// A minute: real servers take in what they were told within a second.
const LOOKS: usize = 3_000;

pub(super) async fn namespaces(cluster: &Cluster, guest: &GuestCluster) {
    for name in manifests::namespaces(cluster.side(), guest) {
        cluster
            .apply_object(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
            .await;
    }
}

/// A kind counts when its objects can be listed: a moment after the server calls it established.
pub(super) async fn kinds(cluster: &Cluster) {
    let kinds = manifests::kinds(cluster.side());
    for kind in kinds {
        cluster.apply_object(kind.clone()).await;
    }
    for kind in kinds {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (group, plural) = (text(&kind["spec"]["group"]), text(&kind["spec"]["names"]["plural"]));
        for version in kind["spec"]["versions"].as_array().into_iter().flatten() {
            until_allowed(cluster, &format!("/apis/{group}/{}/{plural}", text(&version["name"]))).await;
        }
    }
}

async fn until_allowed(cluster: &Cluster, path: &str) {
    for _ in 0..LOOKS {
        let request = Request::get(path).body(vec![]).expect("a kind's path is a URI");
        if cluster.driver().request_text(request).await.is_ok() {
            return;
        }
        sleep(BETWEEN_LOOKS).await;
    }
    panic!("{path} is never served in the {} cluster", cluster.side().name());
}

/// Gives the rights of one set, takes those of the other, and waits until the server goes by them.
pub(super) async fn roles(cluster: &Cluster, rights: Rights, guest: &GuestCluster) {
    let other = if rights == Rights::Ours { Rights::Existing } else { Rights::Ours };
    let roles = |rights| {
        let mut roles = manifests::roles(rights, cluster.side(), guest);
        roles.retain(|role| !is_secret(role));
        roles
    };
    let wanted = roles(rights);
    for role in roles(other) {
        if !wanted.iter().any(|one| path(one) == path(&role)) {
            let request = Request::delete(path(&role)).body(vec![]).expect("a role's path is a URI");
            // what was never there need not go
            cluster.driver().request_text(request).await.ok();
        }
    }
    for role in wanted {
        cluster.apply_object(role).await;
    }
    for (user, verb, resource, allowed) in telling(cluster.side(), rights) {
        let mut looks = 0;
        while may(cluster, user, verb, resource, guest).await != allowed {
            assert!(
                looks < LOOKS,
                "with {rights:?} it stays untrue that {user:?} may {verb} {resource:?}: {allowed}"
            );
            looks += 1;
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// Makes the Secrets that go with one set of rights. None is left of a former test.
pub(super) async fn secrets(cluster: &Cluster, rights: Rights, guest: &GuestCluster) {
    for secret in manifests::roles(rights, cluster.side(), guest).into_iter().filter(is_secret) {
        cluster.apply_object(secret).await;
    }
}

fn is_secret(object: &Value) -> bool {
    object["kind"] == "Secret"
}

fn path(role: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&role["kind"]).to_lowercase() + "s", text(&role["metadata"]["name"]));
    let base = "/apis/rbac.authorization.k8s.io/v1";
    match role["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{base}/namespaces/{namespace}/{kind}/{name}"),
        None => format!("{base}/{kind}/{name}"),
    }
}

type Question = (User, &'static str, (&'static str, &'static str, &'static str), bool);

/// What is allowed under one set and not the other, or hangs on another role: (group, resource, namespace). No object is
/// named: where a rule names its objects, this asks for what none can name.
fn telling(side: Side, rights: Rights) -> Vec<Question> {
    let (ours, existing) = (rights == Rights::Ours, rights == Rights::Existing);
    match side {
        Side::Guest => vec![
            (User::CloudControllerManager, "list", ("", "services", ""), true),
            (User::CloudControllerManager, "list", ("", "events", ""), existing),
            (User::CloudControllerManager, "create", ("coordination.k8s.io", "leases", "kube-system"), true),
            (User::CloudControllerManager, "update", ("coordination.k8s.io", "leases", "default"), existing),
            (User::CsiDriver, "get", ("storage.k8s.io", "csinodes", ""), true),
            (User::CsiDriver, "list", ("storage.k8s.io", "csistoragecapacities", ""), existing),
        ],
        Side::Harvester => vec![
            (User::LoadBalancer, "list", ("", "services", ""), true),
            (User::LoadBalancer, "delete", ("", "services", ""), ours),
            (User::LoadBalancer, "create", ("loadbalancer.harvesterhci.io", "loadbalancers", ""), existing),
            (User::LoadBalancer, "create", ("coordination.k8s.io", "leases", "kube-system"), true),
            (User::LoadBalancer, "update", ("coordination.k8s.io", "leases", "default"), existing),
            (User::Webhook, "list", ("", "namespaces", ""), true),
            (User::Webhook, "create", ("", "secrets", "harvester-system"), existing),
            (User::Webhook, "get", ("", "secrets", "default"), existing),
            (
                User::CloudControllerManager,
                "list",
                ("loadbalancer.harvesterhci.io", "loadbalancers", VMS),
                true,
            ),
            (User::CsiDriver, "create", ("", "persistentvolumeclaims", VMS), true),
            (User::CsiDriver, "patch", ("kubevirt.io", "virtualmachines", VMS), true),
            (User::CsiDriver, "patch", ("kubevirt.io", "virtualmachines", "default"), existing),
        ],
    }
}

/// Stands for the namespace of the guest cluster's VMs.
const VMS: &str = "<vms>";

async fn may(
    cluster: &Cluster,
    user: User,
    verb: &str,
    (group, resource, namespace): (&str, &str, &str),
    guest: &GuestCluster,
) -> bool {
    let account = user.account(cluster.side(), guest);
    let namespace = if namespace == VMS { &guest.vm_namespace } else { namespace };
    let attributes = json!({"group": group, "resource": resource, "verb": verb, "namespace": namespace});
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": account.name, "groups": account.groups, "resourceAttributes": attributes},
    });
    let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .expect("a constant path");
    let answer: Value = cluster
        .driver()
        .request(request)
        .await
        .unwrap_or_else(|error| panic!("ask the {} cluster for a right: {error}", cluster.side().name()));
    answer["status"]["allowed"] == true
}
