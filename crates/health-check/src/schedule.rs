//! The schedule: which target is probed when. Pure: inputs and the time go in, commands come out.
//!
//! The life of a target:
//!
//! ```text
//! watched ──► due at once if it is new, else within the period ──► waits for a slot ──► dialling ──► answered
//!                 ▲                                                                                    │
//!                 ├── of a new one: due within the period after its first probe ◄──────────────────────┤
//!                 └── due a period after it was last due, or at once when the answer took longer ◄─────┘
//! ```
//!
//! "Within the period" is a moment that the seed chooses, so that many targets that begin together do not stay together:
//! those of a restart with their first probes, because their verdicts are kept, and new ones with their second.
//!
//! So the k-th probe of a new backend starts at the latest k - 1 periods after the beginning, as long as slots are free and
//! answers come within a period: one that answers is ready after `success` - 1 periods at the latest.
//!
//! A target that changes while its dial is under way keeps its slot until the answer comes; the schedule does not
//! count that answer. That is how probes of one backend never overlap, whatever changes in between.

mod slots;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use self::slots::{Length, Slots};
use crate::counter::Counter;
use crate::{Check, DialError, HttpGet, Probe};

/// Longest dial, whatever the time-out: a silent target holds its slot no longer.
const LONGEST_DIAL: Duration = Duration::from_secs(30);

/// A backend that is not ready shows so many failures of different kinds at once, for whoever mends it looks, and afterwards
/// another one at most so often: a proxy that is down fails now so, now so, and each change is a write of the object.
const ERRORS_AT_ONCE: u32 = 3;
const ERROR_AGAIN: Duration = Duration::from_secs(60);

/// A backend that loses its readiness twice within this time flaps.
const FLAPS_WITHIN: Duration = Duration::from_secs(600);

/// So many ends in a row that say nothing of a backend: a further dial that ends late counts. A backend that takes connections
/// and answers none would keep its traffic for as long as this process is slow.
const UNREAD_IN_A_ROW: u32 = 5;

/// A dial by TLS costs this process about as much work as so many others, and begins less often for it.
const TLS_COUNTS_AS: u32 = 10;

/// The name of an object, or of a backend within it.
pub trait Key: Clone + Ord + Debug + Send + Sync + 'static {}
impl<T: Clone + Ord + Debug + Send + Sync + 'static> Key for T {}

/// A backend to be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    pub check: Check,
    /// The verdict that the cluster has recorded of a backend that is not yet watched here; one without is new, begins as
    /// not ready and is probed at once. A backend that is already watched keeps its verdict.
    pub recorded: Option<bool>,
}

/// The result of the probes of one backend so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ready: bool,
    /// The failure that made the verdict "not ready", or the last failure of another kind that confirmed it. Of a
    /// backend without verdict: why this process could not dial. None while ready, or not yet tried enough.
    pub error: Option<DialError>,
}

/// Names one dial, so that a late answer is not taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbeId(u64);

/// One thing that the schedule hears of: from the caller, from a dial, or from the clock.
#[derive(Clone, Debug)]
pub(crate) enum Input<K, B> {
    /// These are from now on the backends of this object; an empty map ends its probes.
    Targets { object: K, targets: BTreeMap<B, Target> },
    /// A dial that the schedule commanded came to its end.
    Answered { id: ProbeId, answer: Result<(), DialError> },
    /// Nothing but time went by; targets may be due.
    Tick,
}

/// One thing that the schedule wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command<K> {
    /// Dial for at most `timeout`, and report the end: exactly one [`Input::Answered`] for each. `may_be_late`: an end that is
    /// noticed late may say nothing of the backend.
    Dial { id: ProbeId, probe: Probe, timeout: Duration, may_be_late: bool },
    /// A verdict of this object changed, or its failure is now of another kind.
    Changed { object: K },
    /// A backend lost its readiness soon after it had lost it before.
    Flaps,
}

#[derive(Debug)]
struct TargetState {
    target: Target,
    counter: Counter,
    verdict: Verdict,
    /// The time at which it was last due, and its place in `due`.
    due: Instant,
    /// No dial of it has ended yet, and nothing is recorded of it.
    is_new: bool,
    dialling: bool,
    /// The target changed since the dial began: the answer does not count.
    stale: bool,
    /// No longer watched; the state stays until its dial ends.
    gone: bool,
    /// When the verdict, or the kind of its error, changed last.
    changed: Option<Instant>,
    /// How many kinds of failure were told since it was ready.
    errors: u32,
    /// When it lost its readiness last.
    lost: Option<Instant>,
    /// How many dials since the last good one say nothing of the backend.
    unread: u32,
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    changed: bool,
    flaps: bool,
}

/// A dial under way.
#[derive(Debug)]
struct Dialling<K, B> {
    object: K,
    backend: B,
    length: Length,
}

/// All targets with their counters and verdicts, and the order in which they are due.
#[derive(Debug)]
pub(crate) struct Schedule<K, B> {
    objects: BTreeMap<K, BTreeMap<B, TargetState>>,
    /// Targets that neither dial nor wait for a slot, by the time at which they are due.
    due: BTreeSet<(Instant, K, B)>,
    slots: Slots<K, B>,
    dials: BTreeMap<ProbeId, Dialling<K, B>>,
    next_probe: u64,
    random: fastrand::Rng,
}

impl<K: Key, B: Key> Schedule<K, B> {
    /// At most `at_once` dials are under way at any time. Objects of one `group` share its part of them; `seed`
    /// spreads the first probes.
    pub(crate) fn new(at_once: usize, seed: u64, group: fn(&K) -> &str) -> Self {
        Self {
            objects: BTreeMap::new(),
            due: BTreeSet::new(),
            slots: Slots::new(at_once, group),
            dials: BTreeMap::new(),
            next_probe: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The verdicts on an object's backends; empty for an object that is not watched.
    pub(crate) fn verdicts(&self, object: &K) -> BTreeMap<B, Verdict> {
        self.objects
            .get(object)
            .into_iter()
            .flatten()
            .filter(|(_, state)| !state.gone)
            .map(|(backend, state)| (backend.clone(), state.verdict.clone()))
            .collect()
    }

    /// When the next [`Input::Tick`] has something to do.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due).into_iter().chain(self.slots.wakes_at()).min()
    }

    /// Takes one input; afterwards every dial that is due and has a slot is under way.
    pub(crate) fn on(&mut self, input: Input<K, B>, now: Instant) -> Vec<Command<K>> {
        let mut commands = Vec::new();
        match input {
            Input::Targets { object, targets } => self.set_targets(&object, targets, now),
            Input::Answered { id, answer } => self.answered(id, answer, now, &mut commands),
            Input::Tick => {}
        }
        self.start_due(now, &mut commands);
        commands
    }

    fn set_targets(&mut self, object: &K, targets: BTreeMap<B, Target>, now: Instant) {
        let states = self.objects.entry(object.clone()).or_default();
        for (backend, state) in states.iter_mut().filter(|(backend, _)| !targets.contains_key(backend)) {
            state.gone = true;
            self.due.remove(&(state.due, object.clone(), backend.clone()));
        }
        states.retain(|_, state| !state.gone || state.dialling);

        let mut unchanged = BTreeSet::new();
        for (backend, target) in targets {
            let within_period = now + spread(&mut self.random, target.check.period);
            match states.entry(backend.clone()) {
                Entry::Occupied(state) if state.get().continues(&target) => {
                    unchanged.insert(backend);
                    continue;
                }
                Entry::Occupied(mut state) => {
                    let state = state.get_mut();
                    self.due.remove(&(state.due, object.clone(), backend.clone()));
                    state.restart(target, now, within_period);
                }
                Entry::Vacant(vacant) => {
                    vacant.insert(TargetState::new(target, now, within_period));
                }
            }
            let state = &states[&backend];
            if !state.dialling {
                self.due.insert((state.due, object.clone(), backend));
            }
        }
        if states.is_empty() {
            self.objects.remove(object);
        }
        // a target that waited for a slot and then changed waits no longer: it has a new first probe
        self.slots.retain(object, |backend| unchanged.contains(backend));
    }

    fn answered(
        &mut self,
        id: ProbeId,
        answer: Result<(), DialError>,
        now: Instant,
        commands: &mut Vec<Command<K>>,
    ) {
        let Some(Dialling { object, backend, length }) = self.dials.remove(&id) else { return };
        self.slots.free(&object, length);
        let Some(states) = self.objects.get_mut(&object) else { return };
        let Some(state) = states.get_mut(&backend) else { return };
        state.dialling = false;
        if state.gone {
            states.remove(&backend);
            if states.is_empty() {
                self.objects.remove(&object);
            }
            return;
        }
        if std::mem::take(&mut state.stale) {
            self.due.insert((state.due, object, backend));
            return;
        }
        let period = state.target.check.period;
        let pause = if std::mem::take(&mut state.is_new) { spread(&mut self.random, period) } else { period };
        state.due = (state.due + pause).max(now);
        let Counted { changed, flaps } = state.count(answer, now);
        self.due.insert((state.due, object.clone(), backend));
        commands.extend(changed.then_some(Command::Changed { object }));
        commands.extend(flaps.then_some(Command::Flaps));
    }

    fn start_due(&mut self, now: Instant, commands: &mut Vec<Command<K>>) {
        while self.due.first().is_some_and(|(due, ..)| *due <= now) {
            let (_, object, backend) = self.due.pop_first().expect("it has a first");
            let length = Length::of(self.objects[&object][&backend].limit());
            self.slots.wait(object, backend, length);
        }
        while let Some((object, backend, length)) = self.slots.next(now) {
            let state = self
                .objects
                .get_mut(&object)
                .and_then(|states| states.get_mut(&backend))
                .expect("a target that is no longer watched has left the line");
            state.dialling = true;
            let id = ProbeId(self.next_probe);
            self.next_probe += 1;
            let Target { address, check: Check { http, .. }, .. } = &state.target;
            if http.as_ref().is_some_and(HttpGet::is_tls) {
                self.slots.count_as(&object, TLS_COUNTS_AS, now);
            }
            let probe = Probe { address: *address, http: http.clone() };
            // only what is read can wait for this process: a connection that stands is seen before the time-out
            let may_be_late = probe.http.is_some() && state.unread < UNREAD_IN_A_ROW;
            commands.push(Command::Dial { id, probe, timeout: state.limit(), may_be_late });
            self.dials.insert(id, Dialling { object, backend, length });
        }
    }
}

impl TargetState {
    /// Due `now` where nothing is recorded, else `within_period`.
    fn new(target: Target, now: Instant, within_period: Instant) -> Self {
        let is_new = target.recorded.is_none();
        Self {
            verdict: Verdict { ready: target.recorded.unwrap_or_default(), error: None },
            target,
            counter: Counter::default(),
            due: if is_new { now } else { within_period },
            is_new,
            dialling: false,
            stale: false,
            gone: false,
            changed: None,
            errors: 0,
            lost: None,
            unread: 0,
        }
    }

    /// How long a dial may take.
    fn limit(&self) -> Duration {
        self.target.check.timeout.min(LONGEST_DIAL)
    }

    /// Whether `target` asks for nothing new. What is `recorded` is a first verdict only and does not count.
    fn continues(&self, target: &Target) -> bool {
        !self.gone && self.target.address == target.address && self.target.check == target.check
    }

    /// Gives the same backend another check or address: counters start afresh, the verdict stands. A backend that
    /// left and comes back is new.
    fn restart(&mut self, target: Target, now: Instant, within_period: Instant) {
        let recorded = match (self.gone, self.is_new) {
            (true, _) => target.recorded,
            (false, true) => None,
            (false, false) => Some(self.verdict.ready),
        };
        let error = self.verdict.error.take().filter(|_| !self.gone);
        let dialling = self.dialling;
        let new = Self::new(Target { recorded, ..target }, now, within_period);
        *self = Self { verdict: Verdict { error, ..new.verdict }, dialling, stale: dialling, ..new };
    }

    /// Counts an answer, and says whether the verdict or the kind of its error changed.
    fn count(&mut self, answer: Result<(), DialError>, now: Instant) -> Counted {
        let within = |before: Option<Instant>, time| before.is_some_and(|before| now - before < time);
        self.unread = match &answer {
            Ok(()) => 0,
            Err(DialError::Local(_)) => self.unread.saturating_add(1),
            Err(_) => self.unread,
        };
        if let Err(error @ DialError::Local(_)) = answer {
            // a process without file descriptors must take no backend's traffic away; a backend that waits for its
            // first verdict shows the reason
            let unexplained = !self.verdict.ready && self.verdict.error.is_none();
            if unexplained {
                self.verdict.error = Some(error);
            }
            return Counted { changed: unexplained, flaps: false };
        }
        let Some(ready) = self.counter.count(answer.is_ok(), self.target.check.thresholds) else {
            return Counted::default();
        };
        let verdict = Verdict { ready, error: answer.err() };
        let kind = |verdict: &Verdict| verdict.error.as_ref().map(DialError::kind);
        let same = ready == self.verdict.ready;
        let is_soon = self.errors >= ERRORS_AT_ONCE && within(self.changed, ERROR_AGAIN);
        if same && (kind(&verdict) == kind(&self.verdict) || is_soon) {
            return Counted::default();
        }
        self.errors = if ready { 0 } else { self.errors.saturating_add(1) };
        let lost = self.verdict.ready && !ready;
        let flaps = lost && within(self.lost, FLAPS_WITHIN);
        self.lost = if lost { Some(now) } else { self.lost };
        self.changed = Some(now);
        self.verdict = verdict;
        Counted { changed: true, flaps }
    }
}

/// A moment within the first period, never its very beginning: ten thousand targets of one period must not all
/// be dialled in the same instant.
fn spread(random: &mut fastrand::Rng, period: Duration) -> Duration {
    let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(random.u64(1..=nanos))
}

#[cfg(test)]
mod tests;
