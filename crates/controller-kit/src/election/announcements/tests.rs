//! Candidates with a watch on the Lease, and with one that lies, sleeps or ends.

use http::{Request, Uri};
use k8s_openapi::api::{
    coordination::v1::LeaseSpec,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    api::{Patch, PatchParams, PostParams},
    client::Body,
};
use rstest::rstest;
use serde_json::json;
use sim_apiserver::ApiServer;

use super::*;
use crate::election::tests::{Log, bind, candidate, story};

/// Another Lease, whose events a candidate gets instead of those of its own.
const OTHER: &str = "other";

/// The requests of `part` about Leases, with their answers, after the first `from`.
fn asked(server: &ApiServer, from: usize) -> Vec<String> {
    let all = server.audit().records();
    let ours = all.iter().filter(|it| it.user == "part" && it.uri.contains("/leases"));
    ours.map(|it| format!("{} {}", it.verb, it.code)).skip(from).collect()
}

/// A leader `first`, and a candidate `second` whose role grants `verbs` on this Lease alone, and `create`.
async fn two(server: &ApiServer, log: &Log, verbs: &[&str]) -> TaskGroup {
    let admin = server.client("admin");
    let role = json!({"metadata": {"name": "part"},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["web"], "verbs": verbs},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}]});
    let binding = json!({"metadata": {"name": "part"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "part"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "part"}]});
    let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
        (Api::all(admin.clone()), Api::all(admin.clone()));
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let (first, _) = candidate(&admin, "first", log);
    sleep(Duration::from_secs(1)).await;
    let _ = candidate(&server.client("part"), "second", log);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(story(log), ["first leads"]);
    first
}

// docs/contract/cloud-controller-manager.md#S2
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_taken_at_once_by_a_candidate_that_may_watch_it() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let first = two(&server, &log, &["get", "watch", "create", "update"]).await;
    let before = asked(&server, 0);
    assert_eq!(before, ["get 200", "watch 200"], "renewals come to it");
    let told = Instant::now();
    first.stop.cancel();
    while story(&log).len() < 3 {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(told.elapsed() < Duration::from_secs(1), "it does not wait for its period");
    assert_eq!(asked(&server, before.len()), ["get 200", "update 200"]);
    assert_eq!(story(&log), ["first leads", "first ends", "second leads"]);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_may_not_watch_reads_the_lease_in_each_period_and_asks_for_no_watch() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let first = two(&server, &log, &["get", "create", "update"]).await;
    let before = asked(&server, 0);
    assert!(before.iter().all(|it| it == "get 200") && before.len() >= 29, "{before:?}");
    first.stop.cancel();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(story(&log), ["first leads", "first ends", "second leads"]);
    let after = asked(&server, before.len());
    let written = after.iter().position(|it| it == "update 200").expect("it leads");
    assert!(after[..written].iter().all(|it| it == "get 200"), "{after:?}");
}

#[rstest]
#[case::ended(ApiServer::close)]
#[case::expired(ApiServer::expire)]
#[tokio::test(start_paused = true)]
async fn a_candidate_whose_watch_ends_reads_the_lease_and_watches_again(#[case] cut: fn(&ApiServer)) {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let first = two(&server, &log, &["get", "watch", "create", "update"]).await;
    cut(&server);
    first.stop.cancel();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(story(&log), ["first leads", "first ends", "second leads"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_is_succeeded_also_while_somebody_annotates_its_lease() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    bind(&server).await;
    let leases = Api::<Lease>::namespaced(server.client("admin"), "kube-system");
    let spec = json!({"holderIdentity": "killed", "leaseDurationSeconds": 15});
    let lease = json!({"metadata": {"name": "web"}, "spec": spec});
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let _ = candidate(&server.client("part"), "second", &log);
    for round in 0..30 {
        if !story(&log).is_empty() {
            break;
        }
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"round": round.to_string()}}}));
        leases.patch("web", &PatchParams::default(), &patch).await.unwrap();
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(story(&log), ["second leads"]);
}

/// The two ends of a watch that a server has.
trait Cut {
    fn close(&self);
    fn expire(&self);
}

impl Cut for ApiServer {
    fn close(&self) {
        self.faults().close_watches();
    }

    fn expire(&self) {
        self.faults().expire_watches();
    }
}

/// `client`, but watches hear of [`OTHER`], which nobody changes: events that are stale, and then none.
fn deaf(client: Client) -> Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let uri = request.uri().to_string();
        if uri.contains("watch=") {
            let other = uri.replace("metadata.name%3Dweb", &format!("metadata.name%3D{OTHER}"));
            assert_ne!(other, uri);
            *request.uri_mut() = other.parse::<Uri>().unwrap();
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, "default")
}

/// A leader `first`, and a candidate `second` that hears only of a Lease with this holder.
async fn misled(server: &ApiServer, log: &Log, holder: &str) -> TaskGroup {
    bind(server).await;
    let other = Lease {
        metadata: kube::api::ObjectMeta { name: Some(OTHER.into()), ..Default::default() },
        spec: Some(LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() }),
    };
    let leases = Api::<Lease>::namespaced(server.client("admin"), "kube-system");
    leases.create(&PostParams::default(), &other).await.unwrap();
    let (first, _) = candidate(&server.client("admin"), "first", log);
    sleep(Duration::from_secs(1)).await;
    let _ = candidate(&deaf(server.client("part")), "second", log);
    sleep(Duration::from_secs(600)).await;
    first
}

#[rstest]
#[case::it_says_that_nobody_holds_it("")]
#[case::it_says_that_another_holds_it("somebody")]
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_wrong_makes_no_second_leader_and_hides_a_release_for_two_periods_at_most(
    #[case] holder: &str,
) {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let first = misled(&server, &log, holder).await;
    assert_eq!(story(&log), ["first leads"]);
    assert!(!asked(&server, 0).iter().any(|it| it.starts_with("update")), "{:?}", asked(&server, 0));
    first.stop.cancel();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(story(&log), ["first leads", "first ends", "second leads"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_that_hear_of_a_release_one_leads() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let first = two(&server, &log, &["get", "watch", "create", "update"]).await;
    let _ = candidate(&server.client("admin"), "third", &log);
    sleep(Duration::from_secs(30)).await;
    first.stop.cancel();
    sleep(Duration::from_secs(120)).await;
    let story = story(&log);
    assert_eq!(story[..2], ["first leads", "first ends"]);
    assert!(matches!(story[2..].join(",").as_str(), "second leads" | "third leads"), "{story:?}");
}
