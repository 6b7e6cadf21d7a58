//! Stories of leaders and candidates on the in-process API server, on a paused clock.

use std::sync::{Arc, Mutex};

use kube::api::{Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::ApiServer;
use tokio::time::sleep;

use super::*;

type Log = Arc<Mutex<Vec<String>>>;

fn election(identity: &str) -> Election {
    Election {
        namespace: "kube-system".into(),
        name: "web".into(),
        identity: identity.into(),
        lease: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    }
}

fn candidate(
    client: &Client,
    identity: &'static str,
    log: &Log,
) -> (TaskGroup, Arc<Mutex<Option<Leadership>>>) {
    let (tasks, client, log) = (TaskGroup::new(), client.clone(), log.clone());
    let (inner, leadership) = (tasks.clone(), Arc::new(Mutex::new(None)));
    let keep = leadership.clone();
    tokio::spawn(async move {
        let (stop, into) = (inner.stop.clone(), log.clone());
        let work = |leadership: Leadership| async move {
            *keep.lock().unwrap() = Some(leadership);
            into.lock().unwrap().push(format!("{identity} leads"));
            stop.cancelled().await;
        };
        let outcome = lead(client, election(identity), Clock::system(), &inner, work).await;
        let how = outcome.map_or_else(|error| error.to_string(), |()| "ends".into());
        log.lock().unwrap().push(format!("{identity} {how}"));
    });
    (tasks, leadership)
}

fn story(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_one_leads_and_the_other_follows_soon_after_an_orderly_end() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let (first, _) = candidate(&server.client("admin"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let (_second, _) = candidate(&server.client("admin"), "second", &log);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(story(&log), ["first leads"]);
    first.stop.cancel();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(story(&log), ["first leads", "first ends", "second leads"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_ends_and_writes_nothing_more() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let (_life, leadership) = candidate(&server.client("admin"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let leases = Api::<Lease>::namespaced(server.client("admin"), "kube-system");
    let taken = json!({"spec": {"holderIdentity": "somebody"}});
    leases.patch("web", &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(story(&log), ["first leads", "first lost the Lease kube-system/web to somebody"]);

    let fenced = leadership.lock().unwrap().clone().unwrap().client(server.client("admin"));
    let before = server.revision();
    let refused =
        Api::<Lease>::namespaced(fenced.clone(), "kube-system").delete("web", &Default::default()).await;
    assert!(refused.is_err());
    assert_eq!(server.revision(), before);
    assert!(Api::<Lease>::namespaced(fenced, "kube-system").get("web").await.is_ok(), "reading is free");
}

/// What somebody does to the Lease of a leader, without a holder of its own.
#[rstest]
#[case::deleted(None)]
#[case::given_back(Some(json!({"spec": {"holderIdentity": ""}})))]
#[case::labelled(Some(json!({"metadata": {"labels": {"a": "b"}}})))]
#[tokio::test(start_paused = true)]
async fn a_leader_goes_on_whatever_is_done_to_its_lease_but_to_take_it(#[case] patch: Option<Value>) {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let (tasks, leadership) = candidate(&server.client("admin"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let leases = Api::<Lease>::namespaced(server.client("admin"), "kube-system");
    match patch {
        Some(patch) => drop(leases.patch("web", &Default::default(), &Patch::Merge(patch)).await.unwrap()),
        None => drop(leases.delete("web", &Default::default()).await.unwrap()),
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(story(&log), ["first leads"]);
    assert!(leadership.lock().unwrap().as_ref().is_some_and(Leadership::is_current));
    tasks.stop.cancel();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(story(&log), ["first leads", "first ends"]);
    let spec = leases.get("web").await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some(""), "it was ours to give back");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_deleted_gives_way_to_who_made_it_again() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let (_life, _) = candidate(&server.client("admin"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let leases = Api::<Lease>::namespaced(server.client("admin"), "kube-system");
    leases.delete("web", &Default::default()).await.unwrap();
    let (_other, _) = candidate(&server.client("admin"), "second", &log);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        story(&log),
        ["first leads", "second leads", "first lost the Lease kube-system/web to second"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_gives_up_before_anybody_may_take_over() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    let switch = Switch::default();
    let (_life, leadership) = candidate(&switch.client(server.client("admin")), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let (_other, _) = candidate(&server.client("admin"), "second", &log);
    sleep(Duration::from_secs(1)).await;
    *switch.0.lock().unwrap() = true;
    let leadership = leadership.lock().unwrap().clone().unwrap();
    sleep(Duration::from_secs(10)).await;
    assert!(!leadership.is_current());
    sleep(Duration::from_secs(30)).await;
    let lost = "first lost the Lease kube-system/web: not renewed within 10s";
    assert_eq!(story(&log), ["first leads", lost, "second leads"]);
}

/// A network that can be cut: requests then never end.
#[derive(Clone, Default)]
struct Switch(Arc<Mutex<bool>>);

impl Switch {
    fn client(&self, inner: Client) -> Client {
        let cut = self.0.clone();
        let service = tower::service_fn(move |request| {
            let (inner, cut) = (inner.clone(), cut.clone());
            async move {
                if *cut.lock().unwrap() {
                    std::future::pending::<()>().await;
                }
                inner.send(request).await
            }
        });
        Client::new(service, "default")
    }
}
