//! The time wheel: who is probed when. Pure; the time is an argument, commands come out.
//!
//! A backend's life:
//!
//! ```text
//! watched ──► due once within the first period (spread by the seed) ──► dialling ──► answered ──► due a period
//!             after it was last due, or at once when the answer took longer than that ──► dialling ──► …
//! ```
//!
//! So the k-th probe starts at the latest k periods after the beginning, as long as answers come within a period:
//! a new backend that answers is ready after `success` × period at the latest.
//!
//! A target that changes while its dial is under way keeps its slot until the answer came; the answer is then
//! not counted. That is how probes of one backend never overlap, whatever changes in between.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Check, Counter, DialError};

/// What names a group or a backend within it.
pub trait Key: Clone + Ord + Debug + Send + Sync + 'static {}
impl<T: Clone + Ord + Debug + Send + Sync + 'static> Key for T {}

/// A backend to be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    pub check: Check,
    /// The verdict to begin with, where the backend is new here: what the cluster's record says, else `false`.
    /// One that is already known keeps the verdict it has.
    pub ready: bool,
}

/// What is known of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ready: bool,
    /// The failure that made the verdict "not ready", or the last one that confirmed it in another way; of a backend
    /// that nobody could judge yet, why we could not dial. None while ready, or not yet tried enough.
    pub error: Option<DialError>,
}

/// Names one dial, so that a late answer is not taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeId(u64);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event<G, B> {
    /// These are from now on the backends of this group; none ends the group.
    Watch { group: G, targets: BTreeMap<B, Target> },
    /// A dial that was commanded came to its end.
    Answered { probe: ProbeId, answer: Result<(), DialError> },
    /// Time went by.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<G> {
    /// Dial, for at most `timeout`, and say how it ended: exactly one [`Event::Answered`] for each.
    Dial { probe: ProbeId, address: SocketAddr, timeout: Duration },
    /// A verdict of this group changed, or an error of another kind can be named for one.
    Changed { group: G },
}

#[derive(Debug)]
struct Worker {
    target: Target,
    counter: Counter,
    verdict: Verdict,
    /// When it was last due, and where it stands in `due`.
    due: Instant,
    dialling: bool,
    /// The target changed since the dial began: its answer does not count.
    stale: bool,
    /// No longer watched; stays until the answer of its dial came.
    gone: bool,
}

/// All targets, their counters and verdicts, and the order in which they are due.
#[derive(Debug)]
pub struct Schedule<G, B> {
    groups: BTreeMap<G, BTreeMap<B, Worker>>,
    /// Not dialling, and due at that time; ties in the order of arrival.
    due: BTreeSet<(Instant, G, B)>,
    /// Due, and waiting for one of the dials to end.
    waiting: VecDeque<(G, B)>,
    dials: BTreeMap<ProbeId, (G, B)>,
    at_once: usize,
    next_probe: u64,
    random: fastrand::Rng,
}

impl<G: Key, B: Key> Schedule<G, B> {
    /// At most `at_once` dials are under way at any time; `seed` spreads the first probes.
    pub fn new(at_once: usize, seed: u64) -> Self {
        Self {
            groups: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: VecDeque::new(),
            dials: BTreeMap::new(),
            at_once: at_once.max(1),
            next_probe: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// What is known of a group's backends.
    pub fn verdicts(&self, group: &G) -> BTreeMap<B, Verdict> {
        self.groups
            .get(group)
            .into_iter()
            .flatten()
            .filter(|(_, worker)| !worker.gone)
            .map(|(backend, worker)| (backend.clone(), worker.verdict.clone()))
            .collect()
    }

    /// When the next [`Event::Tick`] has something to do.
    pub fn wakes_at(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due)
    }

    /// Takes one event; afterwards every dial that is due and has a slot is under way.
    pub fn on(&mut self, event: Event<G, B>, now: Instant) -> Vec<Command<G>> {
        let mut commands = Vec::new();
        match event {
            Event::Watch { group, targets } => self.watch(&group, targets, now),
            Event::Answered { probe, answer } => commands.extend(self.answered(probe, answer, now)),
            Event::Tick => {}
        }
        self.start_due(now, &mut commands);
        commands
    }

    fn watch(&mut self, group: &G, targets: BTreeMap<B, Target>, now: Instant) {
        let workers = self.groups.entry(group.clone()).or_default();
        for (backend, worker) in workers.iter_mut().filter(|(backend, _)| !targets.contains_key(backend)) {
            worker.gone = true;
            self.due.remove(&(worker.due, group.clone(), backend.clone()));
        }
        workers.retain(|_, worker| !worker.gone || worker.dialling);

        for (backend, target) in targets {
            let first = now + spread(&mut self.random, target.check.period);
            match workers.entry(backend.clone()) {
                Entry::Occupied(worker) if worker.get().continues(&target) => continue,
                Entry::Occupied(mut worker) => {
                    let worker = worker.get_mut();
                    self.due.remove(&(worker.due, group.clone(), backend.clone()));
                    worker.restart(target, first);
                }
                Entry::Vacant(vacant) => {
                    vacant.insert(Worker::new(target, first));
                }
            }
            let worker = &workers[&backend];
            if !worker.dialling {
                self.due.insert((worker.due, group.clone(), backend));
            }
        }
        if workers.is_empty() {
            self.groups.remove(group);
        }
        // whoever waited for a slot under an old plan waits no longer: the plan above counts
        let due = &self.due;
        let groups = &self.groups;
        self.waiting.retain(|(waiting_group, backend)| {
            waiting_group != group
                || groups.get(group).and_then(|workers| workers.get(backend)).is_some_and(|worker| {
                    !worker.gone && !due.contains(&(worker.due, group.clone(), backend.clone()))
                })
        });
    }

    fn answered(
        &mut self,
        probe: ProbeId,
        answer: Result<(), DialError>,
        now: Instant,
    ) -> Option<Command<G>> {
        let (group, backend) = self.dials.remove(&probe)?;
        let workers = self.groups.get_mut(&group)?;
        let worker = workers.get_mut(&backend)?;
        worker.dialling = false;
        if worker.gone {
            workers.remove(&backend);
            if workers.is_empty() {
                self.groups.remove(&group);
            }
            return None;
        }
        if std::mem::take(&mut worker.stale) {
            self.due.insert((worker.due, group, backend));
            return None;
        }
        worker.due = (worker.due + worker.target.check.period).max(now);
        let changed = worker.judge(answer);
        self.due.insert((worker.due, group.clone(), backend));
        changed.then_some(Command::Changed { group })
    }

    fn start_due(&mut self, now: Instant, commands: &mut Vec<Command<G>>) {
        while self.due.first().is_some_and(|(due, ..)| *due <= now) {
            let (_, group, backend) = self.due.pop_first().expect("it has a first");
            self.waiting.push_back((group, backend));
        }
        while self.dials.len() < self.at_once {
            let Some((group, backend)) = self.waiting.pop_front() else { return };
            let worker = self
                .groups
                .get_mut(&group)
                .and_then(|workers| workers.get_mut(&backend))
                .expect("who leaves also leaves the waiting line");
            worker.dialling = true;
            let probe = ProbeId(self.next_probe);
            self.next_probe += 1;
            let Target { address, check, .. } = worker.target;
            commands.push(Command::Dial { probe, address, timeout: check.timeout });
            self.dials.insert(probe, (group, backend));
        }
    }
}

impl Worker {
    fn new(target: Target, due: Instant) -> Self {
        Self {
            verdict: Verdict { ready: target.ready, error: None },
            target,
            counter: Counter::default(),
            due,
            dialling: false,
            stale: false,
            gone: false,
        }
    }

    /// Whether `target` asks for nothing new. Its `ready` is only a beginning and does not count.
    fn continues(&self, target: &Target) -> bool {
        !self.gone && self.target.address == target.address && self.target.check == target.check
    }

    /// Another check, or another address, for the same backend: counters start afresh, the verdict stands. One
    /// that had left and comes back is new.
    fn restart(&mut self, target: Target, due: Instant) {
        let verdict =
            if self.gone { Verdict { ready: target.ready, error: None } } else { self.verdict.clone() };
        let dialling = self.dialling;
        *self = Self { verdict, dialling, stale: dialling, ..Self::new(target, due) };
    }

    /// Counts an answer; whether there is something new to tell.
    fn judge(&mut self, answer: Result<(), DialError>) -> bool {
        if let Err(error @ DialError::Local(_)) = answer {
            // a process without file descriptors must not take everybody's traffic away; but who waits should see why
            let unexplained = !self.verdict.ready && self.verdict.error.is_none();
            if unexplained {
                self.verdict.error = Some(error);
            }
            return unexplained;
        }
        let Some(ready) = self.counter.count(answer.is_ok(), self.target.check.thresholds) else {
            return false;
        };
        let verdict = Verdict { ready, error: answer.err() };
        let kind = |verdict: &Verdict| verdict.error.as_ref().map(std::mem::discriminant);
        if ready == self.verdict.ready && kind(&verdict) == kind(&self.verdict) {
            return false;
        }
        self.verdict = verdict;
        true
    }
}

/// A moment within the first period, never its very beginning: after a restart ten thousand targets of one period
/// must not all be dialled in the same instant.
fn spread(random: &mut fastrand::Rng, period: Duration) -> Duration {
    let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Duration::from_nanos(random.u64(1..=nanos))
}

#[cfg(test)]
mod tests;
