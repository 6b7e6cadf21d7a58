//! Faults on purpose: answers that are lost, late or wrong, and watches that end.
//!
//! Rules come from two places: a program says [`Faults::add`], a person writes them into the ConfigMap
//! `kube-system/sim-faults` (key `rules`, a YAML list), which is obeyed from its next version on. Chances are drawn from
//! a seed, so a schedule can be repeated. The administrator is hit only by rules that name a user, and never where he
//! reads, changes or deletes that ConfigMap.

mod rule;

use std::sync::Mutex;

use tokio::sync::watch;

pub use self::rule::{Answer, Rule, When};
pub(crate) use self::rule::{Fault, status};
use crate::server::ApiServer;
use crate::store::Key;

/// Namespace and name of the ConfigMap with a person's rules.
pub(crate) const CONFIG_MAP: (&str, &str) = ("kube-system", "sim-faults");

/// The effect on open watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// They end.
    Close,
    /// They get 410 in their stream, and end.
    Expire,
}

/// The request that a rule may hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim<'a> {
    pub(crate) user: &'a str,
    pub(crate) is_admin: bool,
    pub(crate) verb: &'a str,
    /// Plural, with the subresource where there is one: `services/status`.
    pub(crate) resource: &'a str,
    /// Empty across namespaces and outside of them.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Aim<'_> {
    /// The way back from rules that hit too much.
    fn is_way_back(self) -> bool {
        self.is_admin && self.resource == "configmaps" && (self.namespace, self.name) == CONFIG_MAP
    }
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    /// Requests that matched so far.
    matched: u64,
}

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    programmed: Vec<Armed>,
    written: Vec<Armed>,
    /// Revision of the ConfigMap that `written` is from.
    from: u64,
    hits: u64,
}

/// The faults of a server.
#[derive(Debug)]
pub struct Faults {
    state: Mutex<State>,
    interruptions: watch::Sender<(u64, Interruption)>,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            programmed: vec![],
            written: vec![],
            from: 0,
            hits: 0,
        };
        Self { state: Mutex::new(state), interruptions: watch::Sender::new((0, Interruption::Close)) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while a fault is drawn")
    }

    /// Adds a rule. The first rule that fires decides.
    pub fn add(&self, rule: Rule) {
        self.state().programmed.push(Armed { rule, matched: 0 });
    }

    /// Takes all rules away that [`Faults::add`] has added.
    pub fn clear(&self) {
        self.state().programmed.clear();
    }

    /// Draws chances from a new seed.
    pub fn reseed(&self, seed: u64) {
        self.state().random = fastrand::Rng::with_seed(seed);
    }

    /// Returns the number of requests that were hit so far.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.state().hits
    }

    /// Ends every open watch, as a server does that restarts.
    pub fn close_watches(&self) {
        self.interrupt(Interruption::Close);
    }

    /// Ends every open watch with 410 in its stream.
    pub fn expire_watches(&self) {
        self.interrupt(Interruption::Expire);
    }

    fn interrupt(&self, what: Interruption) {
        self.interruptions.send_modify(|(count, last)| (*count, *last) = (*count + 1, what));
    }

    pub(crate) fn interruptions(&self) -> watch::Receiver<(u64, Interruption)> {
        self.interruptions.subscribe()
    }

    /// Draws the fault of this request, if any rule hits it.
    pub(crate) fn draw(&self, aim: Aim<'_>) -> Option<Fault> {
        let mut state = self.state();
        let State { random, programmed, written, hits, .. } = &mut *state;
        for armed in programmed.iter_mut().chain(written) {
            if !armed.rule.matches(aim) {
                continue;
            }
            armed.matched += 1;
            if armed.rule.fires(armed.matched, || random.f64()) {
                *hits += 1;
                return Some(armed.rule.fault());
            }
        }
        None
    }

    fn is_idle(&self) -> bool {
        let state = self.state();
        state.programmed.is_empty() && state.written.is_empty()
    }
}

impl ApiServer {
    /// The server's faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// The fault that hits a request, by the rules as they stand now.
    pub(crate) fn fault(&self, aim: Aim<'_>) -> Option<Fault> {
        self.read_written_rules();
        if self.0.faults.is_idle() || aim.is_way_back() { None } else { self.0.faults.draw(aim) }
    }

    /// Returns warnings about the rules in `text`: the kinds that this server does not have, or not yet. Another function
    /// refuses rules that cannot be read.
    pub(crate) fn doubts(&self, text: &str) -> Vec<String> {
        let (rules, kinds) = (Rule::parse(text).unwrap_or_default(), self.kinds());
        let unknown = rules.iter().enumerate().filter_map(|(i, rule)| {
            let plural = rule.plural().filter(|plural| kinds.iter().all(|kind| kind.plural != *plural))?;
            Some(format!(
                "rule {}: this server has no {plural}, so it hits nothing; see kubectl api-resources",
                i + 1
            ))
        });
        unknown.collect()
    }

    fn read_written_rules(&self) {
        let (namespace, name) = CONFIG_MAP;
        let map = self.0.store.get("configmaps", &Key::new(namespace, name));
        let revision = map.as_ref().map_or(0, |map| map.revision);
        let mut state = self.0.faults.state();
        if state.from == revision {
            return;
        }
        state.from = revision;
        let text = map.as_ref().and_then(|map| map.value["data"]["rules"].as_str()).unwrap_or_default();
        // what cannot be read was refused when it was written
        let rules = Rule::parse(text).unwrap_or_default();
        state.written = rules.into_iter().map(|rule| Armed { rule, matched: 0 }).collect();
    }
}
