//! Events, as core/v1 objects: the existing roles grant those and no others. A bounded queue of their own joins Events
//! that repeat themselves, and no reconcile waits for it. Where the role grants no Events, one is tried every 30 s.

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
    time::Instant,
};

use program::{Clock, TaskGroup, capabilities::REFUSED_PERIOD};

/// Events that wait to be sent, at most; the recorder drops further ones and counts them in the log.
const QUEUE: usize = 1_000;
/// An Event that says the same within this time is counted up instead of written anew.
const JOIN: Duration = Duration::from_secs(600);
/// Of one object, so many Events at once …
const BURST: u32 = 25;
/// … and one more in each such period.
const REFILL: Duration = Duration::from_secs(300);
/// The server refuses longer messages.
const MESSAGE_MAX: usize = 1_024;

/// `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventDraft {
    namespace: String,
    object: (String, String, String),
    event_type: EventType,
    reason: String,
    message: String,
}

#[derive(Debug)]
struct PendingEvent {
    draft: EventDraft,
    about: ObjectReference,
}

/// Sends Events in the background. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<PendingEvent>,
}

impl Recorder {
    /// `component` is what people see as the source, for example `service-controller`.
    pub fn start(tasks: &TaskGroup, client: Client, component: &str, clock: Clock) -> Self {
        let (queue, pending) = mpsc::channel(QUEUE);
        let worker = EventWorker {
            client,
            component: component.into(),
            clock,
            written: HashMap::new(),
            budget: HashMap::new(),
            refused_until: None,
        };
        tasks.spawn_until_stop(worker.run(pending));
        Self { queue }
    }

    /// Records an Event about an object. Never waits: when too many Events wait already, the recorder drops this one.
    pub fn publish(&self, about: &ObjectReference, event_type: EventType, reason: &str, message: &str) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let draft = EventDraft {
            namespace: about
                .namespace
                .clone()
                .filter(|ns| !ns.is_empty())
                .unwrap_or_else(|| "default".into()),
            object: (text(&about.kind), text(&about.name), text(&about.uid)),
            event_type,
            reason: reason.into(),
            message: shortened(message),
        };
        match self.queue.try_send(PendingEvent { draft, about: about.clone() }) {
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
    written: HashMap<EventDraft, WrittenEvent>,
    budget: HashMap<(String, String, String), (u32, Instant)>,
    /// Our role grants no Events: until then none is tried.
    refused_until: Option<Instant>,
}

impl EventWorker {
    async fn run(mut self, mut pending: mpsc::Receiver<PendingEvent>) {
        while let Some(event) = pending.recv().await {
            let now = Instant::now();
            self.forget(now);
            if self.refused_until.is_some_and(|until| now < until) {
                let EventDraft { reason, message, .. } = &event.draft;
                tracing::debug!(reason, message, "an Event that is not sent");
                continue;
            }
            if !self.affordable(&event.draft, now) {
                continue;
            }
            match self.send(event, now).await {
                Err(kube::Error::Api(status)) if is_missing_right(&status) => {
                    if self.refused_until.replace(now + REFUSED_PERIOD).is_none() {
                        let why = status.message;
                        tracing::warn!(why, "Events may not be written here: one is tried every 30 s");
                    }
                }
                Err(error) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "an Event was not written");
                }
                Ok(()) => {
                    if self.refused_until.take().is_some() {
                        tracing::info!("Events may be written now");
                    }
                }
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.written.len() > QUEUE || self.budget.len() > QUEUE {
            self.written.retain(|_, sent| now < sent.at + JOIN);
            self.budget.retain(|_, (_, since)| now < *since + REFILL * BURST);
        }
    }

    /// One talkative object may not drown the others.
    fn affordable(&mut self, draft: &EventDraft, now: Instant) -> bool {
        let (left, since) = self.budget.entry(draft.object.clone()).or_insert((BURST, now));
        let refill = u32::try_from(now.duration_since(*since).as_secs() / REFILL.as_secs()).unwrap_or(BURST);
        if refill > 0 {
            *left = left.saturating_add(refill).min(BURST);
            *since = now;
        }
        let affordable = *left > 0;
        *left = left.saturating_sub(1);
        affordable
    }

    async fn send(&mut self, event: PendingEvent, now: Instant) -> kube::Result<()> {
        let api = Api::<Event>::namespaced(self.client.clone(), &event.draft.namespace);
        let time = self.clock.now();
        if let Some(sent) = self.written.get_mut(&event.draft).filter(|sent| now < sent.at + JOIN) {
            let patch = json!({"count": sent.count + 1, "lastTimestamp": Time(time)});
            match api.patch(&sent.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {
                    (sent.count, sent.at) = (sent.count + 1, now);
                    return Ok(());
                }
                // Events expire: say it anew
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let object = self.object(&event, time);
        let name = object.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &object).await?;
        self.written.insert(event.draft, WrittenEvent { name, count: 1, at: now });
        Ok(())
    }

    fn object(&self, event: &PendingEvent, time: Timestamp) -> Event {
        let draft = &event.draft;
        let stamp = time.as_nanosecond().unsigned_abs() ^ u128::from(fastrand::u32(..));
        let stem: String = draft.object.1.chars().take(200).collect();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{stem}.{stamp:x}")),
                namespace: Some(draft.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: event.about.clone(),
            type_: Some(if draft.event_type == EventType::Normal { "Normal" } else { "Warning" }.into()),
            reason: Some(draft.reason.clone()),
            message: Some(draft.message.clone()),
            count: Some(1),
            first_timestamp: Some(Time(time)),
            last_timestamp: Some(Time(time)),
            source: Some(EventSource { component: Some(self.component.to_string()), host: None }),
            reporting_component: Some(self.component.to_string()),
            ..Event::default()
        }
    }
}

/// Whether our role grants no Events. A namespace that is being deleted, and a quota, answer 403 as well: they are
/// about one Event, and the next one may be welcome.
fn is_missing_right(status: &Status) -> bool {
    let refused = |verb: &str| status.message.contains(&format!("cannot {verb} resource \"events\""));
    status.is_forbidden() && (refused("create") || refused("patch"))
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
    use k8s_openapi::api::{core::v1::Namespace, rbac::v1::ClusterRoleBinding};
    use kube::api::ListParams;
    use rstest::rstest;
    use sim_apiserver::{ApiServer, User};

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

    async fn said(server: &ApiServer) -> Vec<(String, i32)> {
        tokio::time::sleep(Duration::from_secs(1)).await;
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
        let recorder = Recorder::start(&tasks, server.client("admin"), "service-controller", Clock::system());
        for _ in 0..3 {
            recorder.publish(&about("web"), EventType::Warning, "NoPool", "no pool matches");
        }
        recorder.publish(&about("web"), EventType::Normal, "Ensured", "has an address");
        assert_eq!(
            said(&server).await,
            [("has an address".to_owned(), 1), ("no pool matches".to_owned(), 3)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_talkative_object_is_silenced_and_its_neighbour_is_heard() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let recorder = Recorder::start(&tasks, server.client("admin"), "service-controller", Clock::system());
        for number in 0..100 {
            recorder.publish(&about("web"), EventType::Normal, "Changed", &format!("{number:03}"));
        }
        recorder.publish(&about("shop"), EventType::Normal, "Ensured", "has an address");
        let said = said(&server).await;
        assert_eq!(said.len(), 1 + BURST as usize);
        assert!(said.contains(&("has an address".to_owned(), 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn where_events_are_not_granted_one_is_tried_and_no_more() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "nobody"));
        let recorder = Recorder::start(&tasks, client, "service-controller", Clock::system());
        for number in 0..5 {
            recorder.publish(&about("web"), EventType::Normal, "Changed", &number.to_string());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.audit().records().iter().filter(|record| record.code == 403).count(), 1);
    }

    // fault 9: the first refusal ended all Events for the life of the process
    #[tokio::test(start_paused = true)]
    async fn events_are_back_within_sixty_seconds_of_the_grant() {
        let (server, tasks) = (ApiServer::builder().build(), TaskGroup::new());
        let client = server.client(User::service_account("kube-system", "part"));
        let recorder = Recorder::start(&tasks, client, "service-controller", Clock::system());
        recorder.publish(&about("web"), EventType::Normal, "Changed", "refused");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "part"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "part"}]});
        let bindings = Api::<ClusterRoleBinding>::all(server.client("admin"));
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        recorder.publish(&about("web"), EventType::Normal, "Changed", "welcome");
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
        assert_eq!(is_missing_right(&status), expected);
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
        let recorder = Recorder::start(&tasks, admin, "service-controller", Clock::system());
        let gone = ObjectReference { namespace: Some("shop".into()), ..about("web") };
        recorder.publish(&gone, EventType::Normal, "DeletedLoadBalancer", "Deleted load balancer");
        recorder.publish(&about("api"), EventType::Normal, "Ensured", "has an address");
        assert_eq!(said(&server).await, [("has an address".to_owned(), 1)]);
        assert!(server.audit().records().iter().any(|record| record.code == 403));
    }
}
