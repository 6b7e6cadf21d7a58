//! Stories of leaders and candidates on the in-process API server, on a paused clock.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use program::pod::Sources;
use rstest::rstest;
use serde_json::{Value, json};
use sim_apiserver::{
    ApiServer,
    faults::{Answer, Rule, When},
};
use tokio::{sync::watch, time::sleep};

use super::*;

pub(super) type Log = Arc<Mutex<Vec<String>>>;

fn election(identity: impl Into<Identity>) -> Election {
    Election {
        namespace: "kube-system".into(),
        name: "web".into(),
        identity: identity.into(),
        lease: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
        health: Health::default(),
    }
}

pub(super) fn candidate(
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

pub(super) fn story(log: &Log) -> Vec<String> {
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

/// Somebody changes the Lease of a leader and names no other holder.
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
    switch.cut(true);
    let leadership = leadership.lock().unwrap().clone().unwrap();
    sleep(Duration::from_secs(10)).await;
    assert!(!leadership.is_current());
    sleep(Duration::from_secs(30)).await;
    let lost = "first lost the Lease kube-system/web: not renewed within 10s: no answer";
    assert_eq!(story(&log), ["first leads", lost, "second leads"]);
}

// fault 9: nobody was told that the credentials were refused while the process ran
#[tokio::test(start_paused = true)]
async fn a_leader_whose_credentials_are_refused_says_so_and_gives_up() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    bind(&server).await;
    let (_life, leadership) = candidate(&server.client("part"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    server.faults().add(Rule::new(Answer::Code(401)));
    sleep(Duration::from_secs(15)).await;
    let story = story(&log);
    let told = story.last().filter(|line| line.starts_with("first lost the Lease kube-system/web: "));
    assert!(told.is_some_and(|line| line.contains("401") || line.contains("Unauthorized")), "{story:?}");
    assert!(!leadership.lock().unwrap().as_ref().unwrap().is_current());
}

// fault 16: the kernel sends what a process under SIGSTOP has written to its sockets only when it goes on, or the
// process was stopped between the fence and its socket
#[tokio::test(start_paused = true)]
async fn writes_that_a_stopped_predecessor_sends_after_the_takeover_change_nothing() {
    let (server, log, switch) = (ApiServer::builder().build(), Log::default(), Switch::default());
    let admin = Api::<ConfigMap>::namespaced(server.client("admin"), "kube-system");
    for name in ["changed", "remade"] {
        admin.create(&PostParams::default(), &config_map(name, "before")).await.unwrap();
    }
    let (changed, remade) = (admin.get("changed").await.unwrap(), admin.get("remade").await.unwrap());
    let (_life, leadership) = candidate(&switch.client(server.client("admin")), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let fenced = leadership.lock().unwrap().clone().unwrap().client(switch.client(server.client("admin")));
    let stopped = Api::<ConfigMap>::namespaced(fenced, "kube-system");

    switch.cut(true);
    let mut put = changed.clone();
    put.data = config_map("changed", "late").data;
    let this = Preconditions { uid: remade.metadata.uid.clone(), resource_version: None };
    let patch =
        json!({"metadata": {"resourceVersion": changed.metadata.resource_version}, "data": {"by": "late"}});
    let late = tokio::spawn({
        let stopped = stopped.clone();
        async move {
            let (post, how) = (PostParams::default(), PatchParams::default());
            let (made, gone, patch) = (
                config_map("made", "late"),
                DeleteParams::default().preconditions(this),
                Patch::Merge(patch),
            );
            tokio::join!(
                async { stopped.create(&post, &made).await.map(drop) },
                async { stopped.replace("changed", &post, &put).await.map(drop) },
                async { stopped.patch("changed", &how, &patch).await.map(drop) },
                async { stopped.delete("remade", &gone).await.map(drop) },
            )
        }
    });
    let (_second, _) = candidate(&server.client("admin"), "second", &log);
    sleep(Duration::from_secs(30)).await;
    assert!(story(&log).contains(&"second leads".to_owned()));
    admin
        .replace("changed", &PostParams::default(), &{
            let mut ours = changed.clone();
            ours.data = config_map("changed", "second").data;
            ours
        })
        .await
        .unwrap();
    admin.delete("remade", &DeleteParams::default()).await.unwrap();
    for name in ["made", "remade"] {
        admin.create(&PostParams::default(), &config_map(name, "second")).await.unwrap();
    }
    let state = admin.list(&Default::default()).await.unwrap().items;

    switch.cut(false);
    let (post, put, patch, delete) = late.await.unwrap();
    for answer in [post, put, patch, delete] {
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 409), "{answer:?}");
    }
    let too_late = stopped.create(&PostParams::default(), &config_map("another", "late")).await.unwrap_err();
    assert!(crate::error_message(&too_late).contains("the Lease is not ours"), "{too_late}");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(admin.list(&Default::default()).await.unwrap().items, state);
    assert_eq!(holder(&server).await, "second");
}

fn config_map(name: &str, by: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"by": by}})).unwrap()
}

/// A network that can be cut: requests wait until it is there again.
#[derive(Clone)]
struct Switch(Arc<watch::Sender<bool>>);

impl Default for Switch {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Switch {
    fn cut(&self, cut: bool) {
        self.0.send_replace(cut);
    }

    fn client(&self, inner: Client) -> Client {
        let network = self.clone();
        let service = tower::service_fn(move |request| {
            let (inner, mut cut) = (inner.clone(), network.0.subscribe());
            async move {
                cut.wait_for(|cut| !cut).await.expect("the test holds the switch");
                inner.send(request).await
            }
        });
        Client::new(service, "default")
    }
}

fn leases(server: &ApiServer) -> Api<Lease> {
    Api::namespaced(server.client("admin"), "kube-system")
}

async fn holder(server: &ApiServer) -> String {
    let lease = leases(server).get("web").await.unwrap();
    lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// A process: its end drops everything that it had, without a word to the server.
struct Process {
    task: tokio::task::JoinHandle<()>,
    tasks: TaskGroup,
}

impl Process {
    fn start(client: Client, identity: Identity, name: &'static str, log: &Log) -> Self {
        let (tasks, log) = (TaskGroup::new(), log.clone());
        let own = tasks.clone();
        let task = tokio::spawn(async move {
            let stop = own.stop.clone();
            let work = |_: Leadership| async move {
                log.lock().unwrap().push(format!("{name} leads"));
                stop.cancelled().await;
            };
            drop(lead(client, election(identity), Clock::system(), &own, work).await);
        });
        Self { task, tasks }
    }

    async fn kill(self) {
        self.task.abort();
        drop(self.task.await);
    }
}

/// A process of the Pod `part-0` with this UID.
fn in_pod(uid: &str, random: u64) -> Identity {
    on_host("part-0", uid, random)
}

fn on_host(host_name: &str, uid: &str, random: u64) -> Identity {
    Identity::new(&sources(host_name, uid, Some("here")), random)
}

fn sources(host_name: &str, uid: &str, place: Option<&str>) -> Sources {
    let (downward_uid, place) = (Some(uid.to_owned()), place.map(str::to_owned));
    Sources { host_name: host_name.into(), token: None, downward_uid, place }
}

/// Of a Pod that no other test knows: sockets belong to the machine.
fn unique() -> String {
    format!("{:032x}", fastrand::u128(..))
}

// fault 16: it waited for its own Lease, without addresses
#[tokio::test(start_paused = true)]
async fn a_process_killed_in_a_pod_that_stays_has_a_successor_at_once() {
    let (server, log, uid) = (ApiServer::builder().build(), Log::default(), unique());
    let first = Process::start(server.client("admin"), in_pod(&uid, 1), "first", &log);
    sleep(Duration::from_secs(1)).await;
    first.kill().await;
    let began = Instant::now();
    let _second = Process::start(server.client("admin"), in_pod(&uid, 2), "second", &log);
    while story(&log).len() < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(story(&log), ["first leads", "second leads"]);
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(holder(&server).await.starts_with(&format!("part-0_{uid}_")));
}

#[tokio::test(start_paused = true)]
async fn a_second_container_of_the_pod_waits_while_the_first_lives() {
    let (server, log, uid) = (ApiServer::builder().build(), Log::default(), unique());
    let first = Process::start(server.client("admin"), in_pod(&uid, 1), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let _second = Process::start(server.client("admin"), in_pod(&uid, 2), "second", &log);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(story(&log), ["first leads"]);
    first.kill().await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(story(&log), ["first leads", "second leads"]);
}

// the socket is the stopped one's; the leader that took its Lease by time never had it
#[tokio::test(start_paused = true)]
async fn a_leader_without_the_socket_is_nobodys_dead_predecessor() {
    let (server, log, uid) = (ApiServer::builder().build(), Log::default(), unique());
    let stopped = in_pod(&uid, 1);
    assert!(stopped.hold("kube-system", "web"));
    let leader = Process::start(server.client("admin"), in_pod(&uid, 2), "leader", &log);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(holder(&server).await, in_pod(&uid, 2).text(false));
    let third = in_pod(&uid, 3);
    drop(stopped);
    assert!(third.hold("kube-system", "web"));
    let _third = Process::start(server.client("admin"), third, "third", &log);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(story(&log), ["leader leads"]);
    leader.kill().await;
    sleep(Duration::from_secs(14)).await;
    assert_eq!(story(&log), ["leader leads"], "and then by the rules of client-go");
    sleep(Duration::from_secs(4)).await;
    assert_eq!(story(&log), ["leader leads", "third leads"]);
}

// SIGSTOP: the process has its socket and its Lease, and may go on at any time
#[tokio::test(start_paused = true)]
async fn a_stopped_predecessor_keeps_its_lease_until_it_is_stale() {
    let (server, log, uid) = (ApiServer::builder().build(), Log::default(), unique());
    let stopped = in_pod(&uid, 1);
    let first = Process::start(server.client("admin"), stopped.clone(), "first", &log);
    sleep(Duration::from_secs(1)).await;
    first.kill().await;
    let _second = Process::start(server.client("admin"), in_pod(&uid, 2), "second", &log);
    sleep(Duration::from_secs(14)).await;
    assert_eq!(story(&log), ["first leads"]);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(story(&log), ["first leads", "second leads"]);
    drop(stopped);
}

#[rstest]
#[case::one_constant_uid_on_two_hosts(|uid: &str| (on_host("part-0", uid, 1), on_host("part-1", uid, 2)))]
// a legacy token has no claim, and the downward API is not set up: no UID
#[case::legacy_token(|_: &str| {
    let sources = Sources {
        host_name: "part-0".into(), token: Some("e30.e30.c2ln".into()), place: Some("here".into()), ..Sources::default()
    };
    (Identity::new(&sources, 1), Identity::new(&sources, 2))
})]
#[case::no_uid(|_: &str| (Identity::from("part-0_1"), Identity::from("part-0_2")))]
// the kubelet makes a new sandbox for a static Pod, whose UID stays: the old one may still end
#[case::static_pod_in_two_sandboxes(|uid: &str| {
    let sandbox = |place| sources("node-1", uid, Some(place));
    (Identity::new(&sandbox("old"), 1), Identity::new(&sandbox("new"), 2))
})]
#[case::the_place_cannot_be_read(|uid: &str| {
    let process = |random| Identity::new(&sources("part-0", uid, None), random);
    (process(1), process(2))
})]
#[tokio::test(start_paused = true)]
async fn without_proof_of_death_the_rules_of_client_go_hold(#[case] pair: fn(&str) -> (Identity, Identity)) {
    let (server, log, (one, other)) = (ApiServer::builder().build(), Log::default(), pair(&unique()));
    let first = Process::start(server.client("admin"), one, "first", &log);
    sleep(Duration::from_secs(1)).await;
    first.kill().await;
    let _second = Process::start(server.client("admin"), other, "second", &log);
    sleep(Duration::from_secs(14)).await;
    assert_eq!(story(&log), ["first leads"]);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(story(&log), ["first leads", "second leads"]);
}

#[tokio::test(start_paused = true)]
async fn the_renewal_of_a_dead_process_that_arrives_after_the_takeover_changes_nothing() {
    let (server, log, uid) = (ApiServer::builder().build(), Log::default(), unique());
    let first = Process::start(server.client("admin"), in_pod(&uid, 1), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let mut late = leases(&server).get("web").await.unwrap();
    first.kill().await;
    let _second = Process::start(server.client("admin"), in_pod(&uid, 2), "second", &log);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(story(&log), ["first leads", "second leads"]);
    late.spec.as_mut().unwrap().renew_time = Some(MicroTime(Clock::system().now()));
    let refused = leases(&server).replace("web", &PostParams::default(), &late).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.is_conflict()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(story(&log), ["first leads", "second leads"]);
}

// fault 17
#[rstest]
#[case::slow(Rule { answer: Answer::Delay(Duration::from_secs(3)), ..writes("create") })]
#[case::carried_out_and_the_answer_is_slow(Rule { when: When::After, answer: Answer::Delay(Duration::from_secs(3)), ..writes("create") })]
#[case::carried_out_and_the_answer_is_lost(Rule { when: When::After, ..writes("create") })]
#[tokio::test(start_paused = true)]
async fn a_sigterm_during_the_first_write_of_the_lease_keeps_no_lease(#[case] rule: Rule) {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    server.faults().add(rule);
    bind(&server).await;
    let process = Process::start(server.client("part"), "first".into(), "first", &log);
    sleep(Duration::from_secs(1)).await;
    process.tasks.stop.cancel();
    process.task.await.unwrap();
    assert_eq!(story(&log), Vec::<String>::new());
    assert_eq!(holder(&server).await, "");
}

fn writes(verb: &str) -> Rule {
    Rule { verb: Some(verb.into()), resource: Some("leases".into()), nth: Some(1), ..Rule::new(Answer::Drop) }
}

/// The user `part` may do everything.
pub(super) async fn bind(server: &ApiServer) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "part"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "part"}]});
    let api: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(server.client("admin"));
    api.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

// fault 4
#[tokio::test(start_paused = true)]
async fn one_renewal_that_hangs_does_not_cost_the_lease() {
    let (server, log) = (ApiServer::builder().build(), Log::default());
    bind(&server).await;
    let (_life, leadership) = candidate(&server.client("part"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let hangs = Answer::Delay(Duration::from_secs(3600));
    server.faults().add(Rule { answer: hangs, ..writes("update") });
    sleep(Duration::from_secs(60)).await;
    assert_eq!((server.faults().hits(), story(&log)), (1, vec!["first leads".to_owned()]));
    assert!(leadership.lock().unwrap().as_ref().is_some_and(Leadership::is_current));
}

// fault 10
#[tokio::test(start_paused = true)]
async fn a_candidate_is_ready_when_it_has_read_the_lease_of_another() {
    let server = ApiServer::builder().build();
    let log = Log::default();
    let (_first, _) = candidate(&server.client("admin"), "first", &log);
    sleep(Duration::from_secs(1)).await;
    let waiting = election("second");
    let health = waiting.health.clone();
    let tasks = TaskGroup::new();
    let own = tasks.clone();
    let client = server.client("part");
    tokio::spawn(async move { lead(client, waiting, Clock::system(), &own, |_| async {}).await });
    sleep(Duration::from_secs(1)).await;
    assert!(health.readiness_report().contains("cannot get the Lease web"), "{}", health.readiness_report());
    assert_eq!(health.liveness_report(), "");
    bind(&server).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!((health.readiness_report(), story(&log).len()), (String::new(), 1));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_hangs_is_not_alive_once_its_lease_is_overdue_by_twenty_seconds() {
    let leadership = Leadership::new(Duration::from_secs(10));
    let overdue = || leadership.overdue(Duration::from_secs(15)).filter(|time| *time >= OVERDUE);
    assert_eq!(overdue(), None);
    leadership.renewed(Instant::now());
    tokio::time::advance(Duration::from_secs(15 + 19)).await;
    assert_eq!(overdue(), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(overdue(), Some(OVERDUE));
    leadership.end();
    assert_eq!(overdue(), None, "a Lease that is not ours is not overdue");
}
