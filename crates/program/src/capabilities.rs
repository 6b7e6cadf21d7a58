//! Capabilities: the rights that the API server grants us and the fields that its CRDs have, kept true while the
//! process runs.
//!
//! ```text
//! SelfSubjectAccessReview ──every 10 min while granted, 30 s while refused──► Capabilities ──on_change──► queues
//! watch of the named CRDs ─────────────────────────────────────────────────────►   ▲
//! a caller that got 403 ───────────────────────────────────────────────────────────┘
//! ```
//! A right that nobody could answer for counts as granted until a request is refused, and then a request is tried every
//! 30 seconds ([`Capabilities::on_try`]). Rights have no watch, so a grant is noticed within 30 seconds
//! ([`REFUSED_PERIOD`]).
//!
//! A request that got 401 is not reported here: the renewal of the Lease gets one within seconds, and the process ends
//! with that reason.

mod answer;
mod crds;
#[cfg(feature = "process")]
mod missing;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{StreamExt as _, future, stream};
use kube::Client;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use self::answer::{Answer, Tracked, ask};
#[cfg(feature = "process")]
pub use self::missing::{Need, Needs, RightsMissing};
use crate::{Subscribers, TaskGroup};

/// Between two questions about a right that is granted.
const GRANTED_PERIOD: Duration = Duration::from_secs(600);
/// Between two questions about a right that is refused, or that nobody answered.
pub const REFUSED_PERIOD: Duration = Duration::from_secs(30);
/// Questions that are asked at once: all of a program. One that starts waits for the answers, and a server may be slow to
/// refuse, where it asks another one about what its own roles do not grant.
const AT_ONCE: usize = 64;

/// A right on a resource. Build it with [`Right::new`] and the methods that narrow it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Right {
    pub verb: &'static str,
    /// API group; empty for the core.
    pub group: &'static str,
    /// Plural.
    pub resource: &'static str,
    /// Empty for the object itself.
    pub subresource: &'static str,
    /// `None`: in all namespaces, or on a resource outside of namespaces.
    pub namespace: Option<String>,
    /// `None`: on every object. A list or watch is granted by name if it selects by `metadata.name`.
    pub name: Option<Cow<'static, str>>,
}

impl Right {
    /// A right in all namespaces.
    pub const fn new(verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self { verb, group, resource, subresource: "", namespace: None, name: None }
    }

    /// The same right on a subresource.
    #[must_use]
    pub fn on(self, subresource: &'static str) -> Self {
        Self { subresource, ..self }
    }

    /// The same right on the object of this name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The same right in one namespace.
    #[must_use]
    pub fn within(self, namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// What it is about, whatever its name and namespace: `loadbalancers.loadbalancer.harvesterhci.io`, `services/status`.
    pub fn kind(&self) -> String {
        let Self { group, resource, subresource, .. } = self;
        let with =
            |sign: char, text: &str| if text.is_empty() { String::new() } else { format!("{sign}{text}") };
        format!("{resource}{}{}", with('.', group), with('/', subresource))
    }
}

impl fmt::Display for Right {
    /// `update services/status in namespace shop`, `list virtualmachines.kubevirt.io`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.kind())?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// A field of a version of a CRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field {
    /// Name of the CRD: `loadbalancers.loadbalancer.harvesterhci.io`.
    pub crd: &'static str,
    pub version: &'static str,
    /// Names of properties from the root, of a list those of its items: `["status", "backends"]`. `[]` is the version itself.
    pub path: &'static [&'static str],
}

/// The rights of a table that the server denies in this namespace, asked once. A question that nobody answers denies
/// nothing: the request itself will tell.
pub async fn denied(client: &Client, namespace: &str, rights: &[Right]) -> Vec<Right> {
    let questions = rights.iter().map(|right| right.clone().within(namespace)).map(async |right| {
        let answer = ask(client.clone(), &right).await;
        (answer == Answer::Refused).then_some(right)
    });
    future::join_all(questions).await.into_iter().flatten().collect()
}

/// The rights and fields of a cluster that a program asks for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub rights: Vec<Right>,
    pub fields: Vec<Field>,
}

/// The rights that our role grants and the fields that the CRDs have. One for each cluster and process; clones share
/// it.
#[derive(Clone)]
pub struct Capabilities(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changes: Subscribers,
    tries: Subscribers<Right>,
    /// Wakes the task that asks, when a question came nearer.
    sooner: Notify,
    known: watch::Sender<Known>,
}

/// What was answered once, be it that the question failed.
#[derive(Clone, Copy)]
struct Known {
    rights: bool,
    fields: bool,
}

#[derive(Default)]
struct State {
    rights: BTreeMap<Right, Tracked>,
    fields: HashMap<Field, bool>,
    /// CRDs that were read, or could not be.
    crds: HashMap<&'static str, bool>,
    /// Why the API server refuses our credentials.
    unauthorized: Option<String>,
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (refused, fields, lost) = self.state().answers();
        let mut shown = f.debug_struct("Capabilities");
        shown.field("refused", &refused).field("fields", &fields).field("lost", &lost).finish()
    }
}

impl Capabilities {
    /// Begins to ask for `wanted`, until `tasks` ends. Rights are asked about by SelfSubjectAccessReviews, CRDs are
    /// watched (where the role only grants `get` on them, they are read every 30 seconds).
    pub fn start(tasks: &TaskGroup, client: Client, wanted: Wanted) -> Self {
        let Wanted { rights, fields } = wanted;
        let now = Instant::now();
        let state = State {
            rights: rights.into_iter().map(|right| (right, Tracked::new(now))).collect(),
            crds: fields.iter().map(|field| (field.crd, false)).collect(),
            fields: fields.into_iter().map(|field| (field, false)).collect(),
            unauthorized: None,
        };
        let crds: Vec<_> = state.crds.keys().copied().collect();
        let capabilities = Self::of(state);
        for crd in crds {
            tasks.spawn_until_stop(crds::follow(capabilities.clone(), client.clone(), crd));
        }
        tasks.spawn_until_stop(capabilities.clone().ask_for_ever(client));
        capabilities
    }

    /// Capabilities that nobody asks for: every right is granted until a caller says otherwise, and `fields` are there.
    /// For tests, and for programs without an API server.
    pub fn assumed(fields: impl IntoIterator<Item = Field>) -> Self {
        Self::of(State {
            fields: fields.into_iter().map(|field| (field, true)).collect(),
            ..State::default()
        })
    }

    fn of(state: State) -> Self {
        let known = state.known();
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            changes: Subscribers::default(),
            tries: Subscribers::default(),
            sooner: Notify::new(),
            known: watch::Sender::new(known),
        }))
    }

    /// Waits until every question was answered once. A question that failed counts as answered with yes.
    pub async fn known(&self) {
        let mut known = self.0.known.subscribe();
        // the sender lives as long as `self`
        drop(known.wait_for(|known| known.rights && known.fields).await);
    }

    /// As [`Capabilities::known`], for the rights alone.
    pub async fn rights_known(&self) {
        let mut known = self.0.known.subscribe();
        drop(known.wait_for(|known| known.rights).await);
    }

    /// As [`Capabilities::known`], for the fields alone: a program that takes a field for absent may take away what is there.
    pub async fn fields_known(&self) {
        let mut known = self.0.known.subscribe();
        drop(known.wait_for(|known| known.fields).await);
    }

    /// Whether the right is granted, as far as we know. Rights that nobody refused are.
    pub fn allows(&self, right: &Right) -> bool {
        self.state().rights.get(right).is_none_or(|tracked| !tracked.refused)
    }

    /// A request that needs this right got 403: the right counts as refused, and is asked about again in 30 seconds. A
    /// server that answers no such questions is asked by the next request instead ([`Capabilities::on_try`]).
    pub fn refused(&self, right: &Right) {
        self.update(|state| {
            let now = Instant::now();
            let tracked = state.rights.entry(right.clone()).or_insert_with(|| Tracked::new(now));
            let is_news = !tracked.is_told();
            tracked.saw_refusal(now);
            if is_news {
                tracing::warn!(%right, "the API server refuses this request; it is tried again when the right is granted");
            }
        });
        self.0.sooner.notify_one();
    }

    /// A request that needs this right succeeded. It matters only where the server answers no questions about rights.
    pub fn worked(&self, right: &Right) {
        if !self.state().rights.get(right).is_some_and(|tracked| tracked.lost) {
            return;
        }
        self.update(|state| {
            let Some(tracked) = state.rights.get_mut(right) else { return };
            if tracked.saw_success(Instant::now()) {
                tracing::info!(%right, "the API server grants this request again");
            }
        });
    }

    /// Whether the CRD has the field in this version. A field that was not [`Wanted`] is not there.
    pub fn has_field(&self, crd: &str, version: &str, path: &[&str]) -> bool {
        let state = self.state();
        let is_it =
            |field: &Field| field.crd == crd && field.version == version && field.path.iter().eq(path);
        state.fields.iter().any(|(field, there)| *there && is_it(field))
    }

    /// Calls `f` after each change of an answer. `f` must be quick: it runs in the task that asks.
    pub fn on_change(&self, f: impl Fn() + Send + Sync + 'static) {
        self.0.changes.add(move |()| f());
    }

    /// Calls `f` when a request is to be tried because the server answers no questions about its right, which was refused
    /// and still counts as lost: every 30 seconds until one succeeds. For callers who do not look again by themselves.
    /// `f` must be quick, as that of [`Capabilities::on_change`].
    pub fn on_try(&self, f: impl Fn(&Right) + Send + Sync + 'static) {
        self.0.tries.add(f);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no panic while capabilities are locked")
    }

    /// Changes the state, and tells subscribers if an answer is another one now.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let changed = {
            let mut state = self.state();
            let before = state.answers();
            change(&mut state);
            self.0.known.send_replace(state.known());
            before != state.answers()
        };
        if changed {
            self.0.changes.tell(&());
        }
    }

    async fn ask_for_ever(self, client: Client) {
        loop {
            let (now, due, next) = {
                let (state, now) = (self.state(), Instant::now());
                let is_due =
                    |(right, tracked): (&Right, &Tracked)| (tracked.due <= now).then(|| right.clone());
                let due: Vec<_> = state.rights.iter().filter_map(is_due).collect();
                (now, due, state.rights.values().map(|tracked| tracked.due).min())
            };
            if due.is_empty() {
                let next = next.unwrap_or(now + GRANTED_PERIOD);
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    () = self.0.sooner.notified() => {}
                }
                continue;
            }
            let questions = due.into_iter().map(|right| {
                let client = client.clone();
                async move {
                    let answer = ask(client, &right).await;
                    (right, answer)
                }
            });
            let answers: Vec<_> = stream::iter(questions).buffer_unordered(AT_ONCE).collect().await;
            let asked: Vec<_> = answers.iter().map(|(right, _)| right.clone()).collect();
            self.update(|state| state.answered(answers, Instant::now()));
            let to_try: Vec<_> = {
                let state = self.state();
                let is_to_try = |right: &Right| state.rights.get(right).is_some_and(Tracked::is_to_try);
                asked.into_iter().filter(is_to_try).collect()
            };
            to_try.iter().for_each(|right| self.0.tries.tell(right));
        }
    }
}

impl State {
    fn known(&self) -> Known {
        Known {
            rights: self.rights.values().all(|tracked| tracked.asked),
            fields: self.crds.values().all(|read| *read),
        }
    }

    /// Everything that callers can see.
    fn answers(&self) -> (Vec<Right>, Vec<Field>, Vec<String>) {
        let refused = self.rights.iter().filter(|(_, tracked)| tracked.is_told());
        let mut there: Vec<_> =
            self.fields.iter().filter_map(|(field, there)| there.then_some(*field)).collect();
        there.sort();
        (refused.map(|(right, _)| right.clone()).collect(), there, self.lost())
    }

    fn lost(&self) -> Vec<String> {
        let credentials = self.unauthorized.iter().map(|why| {
            format!("the API server refuses our credentials: {why}; renew them, they are tried every 30 s")
        });
        let rights = self.rights.iter().filter(|(_, tracked)| tracked.lost);
        let rights = rights.map(|(right, _)| {
            format!("the right to {right} was taken away; grant it again, it is asked for every 30 s")
        });
        credentials.chain(rights).collect()
    }

    fn answered(&mut self, answers: Vec<(Right, Answer)>, now: Instant) {
        let refusal = answers.iter().find_map(|(_, answer)| match answer {
            Answer::Unauthorized(why) => Some(why.clone()),
            _ => None,
        });
        let authenticated = answers
            .iter()
            .any(|(_, answer)| matches!(answer, Answer::Granted | Answer::Refused | Answer::Unanswerable));
        if let (Some(why), None) = (&refusal, &self.unauthorized) {
            tracing::error!(why, "the API server refuses our credentials");
        }
        if refusal.is_some() {
            self.unauthorized = refusal;
        } else if authenticated && self.unauthorized.take().is_some() {
            tracing::info!("the API server takes our credentials again");
        }
        for (right, answer) in answers {
            let Some(tracked) = self.rights.get_mut(&right) else { continue };
            let (told, was_granted) = (tracked.is_told(), tracked.asked && !tracked.is_told());
            tracked.answered(&answer, now);
            match (told, tracked.is_told()) {
                (false, true) if was_granted => tracing::warn!(%right, "this right was taken away"),
                (false, true) => tracing::info!(%right, "this right is not granted"),
                (true, false) => tracing::info!(%right, "this right is granted now"),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
