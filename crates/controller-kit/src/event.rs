//! Events, as core/v1 objects: the existing roles grant those and no others. A bounded queue of their own joins Events
//! that repeat themselves, and no reconcile waits for it. Where the role grants no Events, none is sent until it does.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use serde_json::json;
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, sleep},
};

use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Right},
};

use crate::retry_after;

/// Events that wait to be sent, at most; the recorder drops further ones and counts them in the log.
const QUEUE: usize = 1_000;
/// An Event that says the same within this time is counted up instead of written anew.
const JOIN_WITHIN: Duration = Duration::from_secs(600);
/// Of one object, so many Events at once …
const BURST: u32 = 25;
/// … and one more in each such period.
const REFILL: Duration = Duration::from_secs(300);
/// Tries to write one Event; a server that fails for longer costs it.
const TRIES: u32 = 4;
/// Before the second try; each further wait is twice as long.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// An Event is not worth a longer wait of all others.
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// The server refuses longer messages.
const MESSAGE_MAX: usize = 1_024;

/// The rights that a recorder needs.
pub const CREATE_EVENTS: Right = Right::new("create", "", "events");
pub const PATCH_EVENTS: Right = Right::new("patch", "", "events");

/// `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An Event that a controller will record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PendingEvent {
    pub event_type: EventType,
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// A sentence for people: what is so, about which object, and what to do next.
    pub message: String,
}

impl PendingEvent {
    /// Something that went as the user asked.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { event_type: EventType::Normal, reason, message: message.into() }
    }

    /// Something that somebody should change.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { event_type: EventType::Warning, reason, message: message.into() }
    }
}

/// Kind, name and UID.
type ObjectId = (String, String, String);
/// Kind, namespace and name: one budget for all objects of a name, since a UID may come from where anybody writes.
type ObjectName = (String, String, String);

/// Events that are one object and count up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Series {
    namespace: String,
    object: ObjectId,
    event: PendingEvent,
}

#[derive(Debug)]
struct QueuedEvent {
    series: Series,
    about: ObjectReference,
}

/// Sends Events in the background. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<QueuedEvent>,
}

impl Recorder {
    /// `component` is what people see as the source, for example `service-controller`. `capabilities` are those of the
    /// cluster that gets the Events.
    pub fn start(
        tasks: &TaskGroup,
        client: Client,
        component: &str,
        clock: Clock,
        capabilities: &Capabilities,
    ) -> Self {
        let (queue, pending) = mpsc::channel(QUEUE);
        let worker = EventWorker {
            client,
            component: component.into(),
            clock,
            written: HashMap::new(),
            budget: HashMap::new(),
            capabilities: capabilities.clone(),
        };
        tasks.spawn_until_stop(worker.run(pending));
        Self { queue }
    }

    /// Records an Event about an object. Never waits: when too many Events wait already, the recorder drops this one.
    pub fn publish(&self, about: &ObjectReference, event: &PendingEvent) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let namespace = about.namespace.clone().filter(|ns| !ns.is_empty());
        let series = Series {
            namespace: namespace.unwrap_or_else(|| "default".into()),
            object: (text(&about.kind), text(&about.name), text(&about.uid)),
            event: PendingEvent { message: shortened(&event.message), ..event.clone() },
        };
        let PendingEvent { reason, message, .. } = event;
        match self.queue.try_send(QueuedEvent { series, about: about.clone() }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::warn!(reason, message, "too many Events wait; this one is not sent");
            }
            Err(TrySendError::Closed(_)) => tracing::debug!(reason, message, "an Event that is not sent"),
        }
    }
}

struct WrittenEvent {
    name: String,
    count: i32,
    at: Instant,
}

struct EventWorker {
    client: Client,
    component: Arc<str>,
    clock: Clock,
    written: HashMap<Series, WrittenEvent>,
    budget: HashMap<ObjectName, (u32, Instant)>,
    capabilities: Capabilities,
}

impl EventWorker {
    async fn run(mut self, mut pending: mpsc::Receiver<QueuedEvent>) {
        self.capabilities.known().await;
        while let Some(event) = pending.recv().await {
            let now = Instant::now();
            self.forget(now);
            let PendingEvent { reason, message, .. } = &event.series.event;
            if !self.capabilities.allows(&CREATE_EVENTS) {
                tracing::debug!(reason, message, "an Event that is not sent");
                continue;
            }
            if !self.affordable(&event.series, now) {
                continue;
            }
            if let Err(error) = self.send(event, now).await {
                if let kube::Error::Api(status) = &error
                    && let Some(right) = missing_right(status)
                {
                    self.capabilities.refused(&right);
                }
                tracing::debug!(error = &error as &dyn std::error::Error, "an Event was not written");
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.written.len() > QUEUE || self.budget.len() > QUEUE {
            self.written.retain(|_, sent| now < sent.at + JOIN_WITHIN);
            self.budget.retain(|_, (_, since)| now < *since + REFILL * BURST);
        }
    }

    /// One talkative object may not drown the others.
    fn affordable(&mut self, series: &Series, now: Instant) -> bool {
        let (kind, name, _) = &series.object;
        let object = (kind.clone(), series.namespace.clone(), name.clone());
        let (left, since) = self.budget.entry(object).or_insert((BURST, now));
        let refill = u32::try_from(now.duration_since(*since).as_secs() / REFILL.as_secs()).unwrap_or(BURST);
        if refill > 0 {
            *left = left.saturating_add(refill).min(BURST);
            *since = now;
        }
        let affordable = *left > 0;
        *left = left.saturating_sub(1);
        affordable
    }

    async fn send(&mut self, event: QueuedEvent, now: Instant) -> kube::Result<()> {
        let api = Api::<Event>::namespaced(self.client.clone(), &event.series.namespace);
        let time = self.clock.now();
        if let Some(sent) = self.written.get_mut(&event.series).filter(|sent| now < sent.at + JOIN_WITHIN) {
            if !self.capabilities.allows(&PATCH_EVENTS) {
                // it stays uncounted: written anew each time, it would hide the others
                return Ok(());
            }
            let patch = Patch::Merge(json!({"count": sent.count + 1, "lastTimestamp": Time(time)}));
            let how = PatchParams::default();
            match with_retries(|| api.patch(&sent.name, &how, &patch)).await {
                Ok(_) => {
                    (sent.count, sent.at) = (sent.count + 1, now);
                    self.capabilities.worked(&PATCH_EVENTS);
                    return Ok(());
                }
                // Events expire: say it anew
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let object = self.object(&event, time);
        let name = object.metadata.name.clone().unwrap_or_default();
        let how = PostParams::default();
        match with_retries(|| api.create(&how, &object)).await {
            Ok(_) => {}
            // the answer to an earlier try was lost
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        self.capabilities.worked(&CREATE_EVENTS);
        self.written.insert(event.series, WrittenEvent { name, count: 1, at: now });
        Ok(())
    }

    fn object(&self, queued: &QueuedEvent, time: Timestamp) -> Event {
        let Series { namespace, object, event } = &queued.series;
        let stamp = time.as_nanosecond().unsigned_abs() ^ u128::from(fastrand::u32(..));
        let stem: String = object.1.chars().take(200).collect();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{stem}.{stamp:x}")),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: queued.about.clone(),
            type_: Some(event.event_type.name().to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(time)),
            last_timestamp: Some(Time(time)),
            source: Some(EventSource { component: Some(self.component.to_string()), host: None }),
            reporting_component: Some(self.component.to_string()),
            ..Event::default()
        }
    }
}

/// Writes an Event, and tries it again a few times when the server fails for a moment. Every try has the same name and
/// the same count, so one that was carried out without an answer does no harm.
async fn with_retries<T, F>(write: impl Fn() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut wait = FIRST_RETRY;
    for _ in 1..TRIES {
        match write().await {
            Err(error) if is_momentary(&error) => {
                sleep(wait.max(retry_after(&error).unwrap_or_default())).await;
            }
            answer => return answer,
        }
        wait *= 2;
    }
    write().await
}

/// While one Event waits, all others do. A server that limits Events (429) names no time after which to come again.
fn is_momentary(error: &kube::Error) -> bool {
    let asked = retry_after(error);
    if asked.is_some_and(|wait| wait > LONGEST_RETRY) {
        return false;
    }
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429 && asked.is_some(),
        _ => true,
    }
}

/// The right on Events that our role does not grant. A namespace that is being deleted, and a quota, answer 403 as
/// well: they are about one Event, and the next one may be welcome.
fn missing_right(status: &Status) -> Option<Right> {
    let is_refused =
        |right: &Right| status.message.contains(&format!("cannot {} resource \"events\"", right.verb));
    [CREATE_EVENTS, PATCH_EVENTS].into_iter().find(|right| status.is_forbidden() && is_refused(right))
}

fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_MAX {
        return message.into();
    }
    let end = (0..=MESSAGE_MAX - '…'.len_utf8())
        .rev()
        .find(|end| message.is_char_boundary(*end))
        .unwrap_or_default();
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        core::v1::Namespace,
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    };
    use kube::api::ListParams;
    use program::capabilities::Wanted;
    use rstest::rstest;
    use sim_apiserver::{
        ApiServer, User,
        faults::{Answer, Rule, When},
    };

    use super::*;

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("Service".into()),
            namespace: Some("default".into()),
            name: Some(name.into()),
            uid: Some(format!("uid-of-{name}")),
            ..ObjectReference::default()
        }
    }

    fn start(tasks: &TaskGroup, client: &Client) -> Recorder {
        let capabilities = Capabilities::start(tasks, client.clone(), Wanted::default());
        Recorder::start(tasks, client.clone(), "example-controller", Clock::system(), &capabilities)
    }

    async fn said(server: &ApiServer) -> Vec<(String, i32)> {
        sleep(Duration::from_secs(1)).await;
        let events = Api::<Event>::namespaced(server.client("admin"), "default");
        let events = events.list(&ListParams::default()).await.unwrap();
        let mut said: Vec<_> =
            events.iter().map(|event| (event.message.clone().unwrap(), event.count.unwrap())).collect();
        said.sort();
        said
    }

    #[test]
    fn a_long_message_is_cut_at_a_character_and_stays_within_the_servers_limit() {
        let message = shortened(&"é".repeat(2_000));
        assert!(message.len() <= MESSAGE_MAX && message.ends_with('…'));
        assert_eq!(shortened("short"), "short");
    }

    #[tokio::test(start_paused = true)]
    async fn what_repeats_itself_is_one_event_that_counts() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = start(&tasks, &server.client("admin"));
        for _ in 0..3 {
            recorder.publish(&about("web"), &PendingEvent::warning("NoPool", "no pool matches"));
        }
        recorder.publish(&about("web"), &PendingEvent::normal("Ensured", "has an address"));
        assert_eq!(
            said(&server).await,
            [("has an address".to_owned(), 1), ("no pool matches".to_owned(), 3)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_talkative_object_is_silenced_and_its_neighbour_is_heard() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = start(&tasks, &server.client("admin"));
        for number in 0..100 {
            recorder.publish(&about("web"), &PendingEvent::normal("Changed", format!("{number:03}")));
        }
        recorder.publish(&about("shop"), &PendingEvent::normal("Ensured", "has an address"));
        let said = said(&server).await;
        assert_eq!(said.len(), 1 + BURST as usize);
        assert!(said.contains(&("has an address".to_owned(), 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_with_ever_new_uids_has_the_budget_of_one() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = start(&tasks, &server.client("admin"));
        for number in 0..100 {
            let about = ObjectReference { uid: Some(number.to_string()), ..about("web") };
            recorder.publish(&about, &PendingEvent::warning("Gone", "is gone"));
        }
        assert_eq!(said(&server).await.len(), BURST as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn where_events_are_not_granted_one_is_tried_and_no_more() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "nobody"));
        let recorder = start(&tasks, &client);
        for number in 0..5 {
            recorder.publish(&about("web"), &PendingEvent::normal("Changed", number.to_string()));
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.audit().records().iter().filter(|record| record.code == 403).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn no_event_is_tried_while_the_server_says_that_it_is_refused() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "nobody"));
        let wanted = Wanted { rights: vec![CREATE_EVENTS, PATCH_EVENTS], fields: Vec::new() };
        let capabilities = Capabilities::start(&tasks, client.clone(), wanted);
        let recorder = Recorder::start(&tasks, client, "example-controller", Clock::system(), &capabilities);
        recorder.publish(&about("web"), &PendingEvent::normal("Changed", "refused"));
        sleep(Duration::from_secs(60)).await;
        let records = server.audit().records();
        assert_eq!(records.iter().filter(|record| record.uri.contains("/events")).count(), 0);
    }

    #[rstest]
    #[case::failing("create", Answer::Code(500), When::Before)]
    #[case::busy("create", Answer::Code(429), When::Before)]
    #[case::connection_lost("create", Answer::Drop, When::Before)]
    #[case::answer_lost("create", Answer::Drop, When::After)]
    #[case::count_lost("patch", Answer::Drop, When::After)]
    #[tokio::test(start_paused = true)]
    async fn an_event_that_fails_for_a_moment_is_written_once(
        #[case] verb: &str,
        #[case] answer: Answer,
        #[case] when: When,
    ) {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = start(&tasks, &server.client("admin"));
        for nth in [1, 2] {
            server.faults().add(Rule {
                user: Some("admin".into()),
                verb: Some(verb.into()),
                resource: Some("events".into()),
                nth: Some(nth),
                when,
                ..Rule::new(answer.clone())
            });
        }
        for _ in 0..2 {
            recorder.publish(&about("web"), &PendingEvent::warning("NoPool", "no pool matches"));
        }
        sleep(Duration::from_secs(60)).await;
        assert_eq!(said(&server).await, [("no pool matches".to_owned(), 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_fails_for_long_is_given_up_for_the_next_one() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = start(&tasks, &server.client("admin"));
        let failing =
            Rule { user: Some("admin".into()), verb: Some("create".into()), ..Rule::new(Answer::Code(500)) };
        server.faults().add(failing);
        recorder.publish(&about("web"), &PendingEvent::warning("NoPool", "no pool matches"));
        sleep(Duration::from_secs(60)).await;
        assert_eq!(server.faults().hits(), u64::from(TRIES));
        server.faults().clear();
        recorder.publish(&about("web"), &PendingEvent::normal("Ensured", "has an address"));
        assert_eq!(said(&server).await, [("has an address".to_owned(), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_grants_no_patch_still_writes_each_event_once() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "part"));
        grant(&server, &json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}])).await;
        let recorder = start(&tasks, &client);
        for message in ["one", "one", "one", "two"] {
            recorder.publish(&about("web"), &PendingEvent::normal("Changed", message));
        }
        assert_eq!(said(&server).await, [("one".to_owned(), 1), ("two".to_owned(), 1)]);
    }

    async fn grant(server: &ApiServer, rules: &serde_json::Value) {
        let admin = server.client("admin");
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "part"}, "rules": rules});
        let roles = Api::<ClusterRole>::all(admin.clone());
        roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "part"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "part"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "part"}]});
        let bindings = Api::<ClusterRoleBinding>::all(admin);
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    }

    // fault 9: the first refusal ended all Events for the life of the process
    #[tokio::test(start_paused = true)]
    async fn events_are_back_within_sixty_seconds_of_the_grant() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "part"));
        let recorder = start(&tasks, &client);
        recorder.publish(&about("web"), &PendingEvent::normal("Changed", "refused"));
        sleep(Duration::from_secs(1)).await;
        grant(&server, &json!([{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]))
            .await;
        sleep(Duration::from_secs(60)).await;
        recorder.publish(&about("web"), &PendingEvent::normal("Changed", "welcome"));
        assert_eq!(said(&server).await, [("welcome".to_owned(), 1)]);
    }

    #[rstest]
    #[case(403, "events is forbidden: User \"x\" cannot create resource \"events\" in API group \"\"", true)]
    #[case(
        403,
        "events \"web.1\" is forbidden: User \"x\" cannot patch resource \"events\" in API group \"\"",
        true
    )]
    #[case(
        403,
        "events \"web.1\" is forbidden: unable to create new content in namespace shop because it is being terminated",
        false
    )]
    #[case(403, "events \"web.1\" is forbidden: exceeded quota: few", false)]
    #[case(404, "namespaces \"shop\" not found", false)]
    fn only_a_missing_right_is_the_end_of_all_events(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let status =
            Status { code, message: message.to_owned(), reason: reason_of(code), ..Status::default() };
        assert_eq!(missing_right(&status).is_some(), expected);
    }

    fn reason_of(code: u16) -> String {
        if code == 403 { "Forbidden".to_owned() } else { "NotFound".to_owned() }
    }

    // a Service goes with its namespace, and the Event that says so is refused
    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_being_deleted_silences_nobody_else() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let admin = server.client("admin");
        let namespace = |finalizers: serde_json::Value| {
            serde_json::from_value::<Namespace>(json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "shop", "finalizers": finalizers}}))
            .unwrap()
        };
        let namespaces = Api::<Namespace>::all(admin.clone());
        namespaces.create(&PostParams::default(), &namespace(json!(["test/stay"]))).await.unwrap();
        namespaces.delete("shop", &kube::api::DeleteParams::default()).await.unwrap();
        let recorder = start(&tasks, &admin);
        let gone = ObjectReference { namespace: Some("shop".into()), ..about("web") };
        recorder.publish(&gone, &PendingEvent::normal("DeletedLoadBalancer", "Deleted load balancer"));
        recorder.publish(&about("api"), &PendingEvent::normal("Ensured", "has an address"));
        assert_eq!(said(&server).await, [("has an address".to_owned(), 1)]);
        assert!(server.audit().records().iter().any(|record| record.code == 403));
    }
}
