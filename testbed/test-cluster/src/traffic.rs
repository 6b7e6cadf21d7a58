//! What the clients of one cluster that a test hands out are doing: requests without an answer, and how far each watch
//! has shown its client the world.
//!
//! ```text
//!  part ──request──► observed client ──► server
//!                      │  in flight +1        │
//!  part ◄──answer──────┴◄─────────────────────┘  in flight -1, or a watch with a view of its objects
//! ```
//! The real servers need it: there a program rests when nothing is in flight, when its queues are empty, and when every
//! watch has delivered the versions that the server has. Silence alone would not tell rest from a slow machine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tower::BoxError;

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    /// Requests that began, answers that ended, and events that a watch delivered: it only grows.
    movements: u64,
    next: u64,
    /// The last list of each client, where its watches begin.
    lists: HashMap<(u64, Question), View>,
    watches: BTreeMap<u64, Watch>,
}

#[derive(Debug)]
struct Watch {
    client: u64,
    question: Question,
    view: View,
}

/// What a list or a watch is about: the path, and the selectors of its query.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Question {
    path: String,
    selectors: Vec<String>,
}

/// Versions by UID.
pub(crate) type View = BTreeMap<String, String>;

#[derive(Deserialize)]
pub(crate) struct Item {
    #[serde(default)]
    pub(crate) metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    #[serde(default)]
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) resource_version: String,
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    #[serde(default)]
    pub(crate) finalizers: Vec<String>,
    #[serde(default)]
    pub(crate) owner_references: Vec<Owner>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Deserialize)]
pub(crate) struct Items {
    /// `null` for an empty list of metadata.
    pub(crate) items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    event_type: String,
    object: Item,
}

/// The versions of a list.
pub(crate) fn view(items: &[Item]) -> View {
    items.iter().map(|item| (item.metadata.uid.clone(), item.metadata.resource_version.clone())).collect()
}

impl Question {
    fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default().split('&');
        let mut selectors: Vec<String> =
            query.filter(|pair| pair.contains("Selector=")).map(str::to_owned).collect();
        selectors.retain(|pair| !pair.ends_with('='));
        selectors.sort();
        Self { path: uri.path().to_owned(), selectors }
    }

    /// The same question to the server as it is now.
    pub(crate) fn list(&self) -> String {
        format!("{}?{}", self.path, self.selectors.join("&"))
    }
}

fn asks(uri: &Uri, what: &[&str]) -> bool {
    uri.query().unwrap_or_default().split('&').any(|pair| what.contains(&pair))
}

impl Traffic {
    /// `client`, observed.
    pub(crate) fn observe(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let (traffic, number) = (self.clone(), self.number());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, call) = (client.clone(), traffic.begin(number, request.method(), request.uri()));
            async move {
                let answer = client.send(request).await.map_err(BoxError::from)?;
                let whole = answer.status().is_success();
                Ok::<_, BoxError>(answer.map(|body| call.follow(body, whole)))
            }
        });
        Client::new(service, namespace)
    }

    /// Requests that wait for an answer; a watch has its answer when it starts.
    pub(crate) fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// Grows with every request, answer and event.
    pub(crate) fn movements(&self) -> u64 {
        self.state().movements
    }

    /// What is watched now.
    pub(crate) fn watched(&self) -> BTreeSet<Question> {
        self.state().watches.values().map(|watch| watch.question.clone()).collect()
    }

    /// Whether every watch of `question` has shown its client exactly this.
    pub(crate) fn have_seen(&self, question: &Question, now: &View) -> bool {
        self.state()
            .watches
            .values()
            .filter(|watch| watch.question == *question)
            .all(|watch| watch.view == *now)
    }

    fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    fn begin(&self, client: u64, method: &Method, uri: &Uri) -> Call {
        let question = (*method == Method::GET).then(|| Question::of(uri));
        let watches = question.is_some() && asks(uri, &["watch=true", "watch=1"]);
        let goes_on =
            uri.query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with("continue=")));
        // leader election goes on for ever
        let moves = !uri.path().contains("/coordination.k8s.io/");
        let mut state = self.state();
        state.in_flight += 1;
        state.movements += u64::from(moves);
        let traffic = self.clone();
        Call {
            traffic,
            client,
            question,
            watches,
            goes_on,
            moves,
            waits: true,
            watch: None,
            heard: Vec::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way; dropping it ends it.
struct Call {
    traffic: Traffic,
    client: u64,
    /// Where it reads.
    question: Option<Question>,
    watches: bool,
    /// A further page of a list.
    goes_on: bool,
    /// It counts as a movement.
    moves: bool,
    waits: bool,
    watch: Option<u64>,
    /// What of the answer was not yet understood.
    heard: Vec<u8>,
}

impl Call {
    fn follow(
        mut self,
        body: Body,
        whole: bool,
    ) -> StreamBody<impl stream::Stream<Item = Result<Frame<Bytes>, BoxError>>> {
        if !whole {
            self.question = None;
        } else if self.watches {
            self.start_watch();
        }
        StreamBody::new(stream::unfold((body, self), |(mut body, mut call)| async move {
            let frame = body.frame().await;
            match &frame {
                Some(Ok(frame)) => call.hear(frame.data_ref()),
                Some(Err(_)) => {}
                None => call.end_list(),
            }
            Some((frame?.map_err(BoxError::from), (body, call)))
        }))
    }

    fn start_watch(&mut self) {
        let Some(question) = self.question.clone() else { return };
        let mut state = self.traffic.state();
        let view = state.lists.get(&(self.client, question.clone())).cloned().unwrap_or_default();
        state.next += 1;
        let number = state.next;
        state.watches.insert(number, Watch { client: self.client, question, view });
        state.in_flight -= 1;
        state.movements += 1;
        drop(state);
        self.waits = false;
        self.watch = Some(number);
    }

    fn hear(&mut self, data: Option<&Bytes>) {
        let Some(data) = data.filter(|_| self.question.is_some()) else { return };
        self.heard.extend_from_slice(data);
        let Some(number) = self.watch else { return };
        let Some(end) = self.heard.iter().rposition(|byte| *byte == b'\n') else { return };
        let mut state = self.traffic.state();
        state.movements += 1;
        let Some(watch) = state.watches.get_mut(&number) else { return };
        for line in self.heard[..end].split(|byte| *byte == b'\n') {
            let Ok(Event { event_type, object: Item { metadata } }) = serde_json::from_slice(line) else {
                continue;
            };
            match event_type.as_str() {
                "ADDED" | "MODIFIED" => drop(watch.view.insert(metadata.uid, metadata.resource_version)),
                "DELETED" => drop(watch.view.remove(&metadata.uid)),
                _ => {}
            }
        }
        drop(state);
        self.heard.drain(..=end);
    }

    fn end_list(&mut self) {
        let Some(question) = self.question.take().filter(|_| self.watch.is_none()) else { return };
        let Ok(Items { items }) = serde_json::from_slice(&self.heard) else { return };
        let mut state = self.traffic.state();
        let known = state.lists.entry((self.client, question)).or_default();
        if !self.goes_on {
            known.clear();
        }
        known.extend(view(&items.unwrap_or_default()));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // an answer of known length may be dropped without a look for its end
        self.end_list();
        let mut state = self.traffic.state();
        state.movements += u64::from(self.moves);
        if self.waits {
            state.in_flight -= 1;
        }
        if let Some(number) = self.watch
            && let Some(Watch { client, question, view }) = state.watches.remove(&number)
        {
            // the next watch goes on where this one ended
            state.lists.insert((client, question), view);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{ListParams, PostParams, WatchParams};
    use sim_apiserver::{ApiServer, User};

    use super::*;

    fn map(name: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_has_seen_what_it_delivered_and_no_more() {
        let server = ApiServer::builder().namespace("default").build();
        let client = || server.client(User::named("admin").with_group("system:masters"));
        let traffic = Traffic::default();
        let (ours, others) = (traffic.observe(client()), Api::<ConfigMap>::default_namespaced(client()));
        let api = Api::<ConfigMap>::default_namespaced(ours);

        others.create(&PostParams::default(), &map("a")).await.unwrap();
        let list = api.list(&ListParams::default()).await.unwrap();
        let version = list.metadata.resource_version.unwrap();
        let mut events = std::pin::pin!(api.watch(&WatchParams::default(), &version).await.unwrap());
        let question = traffic.watched().into_iter().next().unwrap();
        let now = async || {
            let list = others.list(&ListParams::default()).await.unwrap();
            let of = |map: ConfigMap| (map.metadata.uid.unwrap(), map.metadata.resource_version.unwrap());
            list.items.into_iter().map(of).collect::<View>()
        };
        assert!(traffic.have_seen(&question, &now().await));

        others.create(&PostParams::default(), &map("b")).await.unwrap();
        assert!(!traffic.have_seen(&question, &now().await));
        events.next().await.unwrap().unwrap();
        assert!(traffic.have_seen(&question, &now().await));

        others.delete("a", &Default::default()).await.unwrap();
        assert!(!traffic.have_seen(&question, &now().await));
        events.next().await.unwrap().unwrap();
        assert!(traffic.have_seen(&question, &now().await));
        assert_eq!(traffic.in_flight(), 0);
    }

    #[test]
    fn a_list_and_its_watch_ask_the_same_question() {
        let question = |uri: &str| Question::of(&uri.parse().unwrap());
        let list = question("/api/v1/services?labelSelector=a%3Db&limit=500");
        assert_eq!(question("/api/v1/services?watch=true&labelSelector=a%3Db&resourceVersion=7"), list);
        assert_ne!(question("/api/v1/services?watch=true"), list);
        assert_eq!(list.list(), "/api/v1/services?labelSelector=a%3Db");
    }
}
