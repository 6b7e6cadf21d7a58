//! The shell of the schedule: one task that dials for all targets of the process.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::schedule::{Command, Input, Schedule};
use crate::{Dial, DialError, Key, Probe, Target, Verdict};

/// Dials under way at once: well below the 1,024 file descriptors that a container may have, and enough for
/// 500 dead backends a second at a time-out of one second.
pub const DIALS_AT_ONCE: usize = 512;

/// How often the log may say that this process cannot dial: there are hundreds of dials a second.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// A dial with a request whose time-out is noticed so long after it was over may say nothing of the backend: its answer may have
/// come, and this process had no time to read it.
const LATE: Duration = Duration::from_millis(100);

/// What the prober tells while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News<'a, K> {
    /// A probe ended, so long after it began.
    Answered { result: Result<(), &'a DialError>, took: Duration },
    /// A verdict of this object changed, or its failure is now of another kind; [`Prober::verdicts`] has the new one.
    Changed { object: K },
    /// A backend lost its readiness for the second time, or more often, within ten minutes.
    Flaps,
}

/// A handle to the probing; clones share it. Nothing is probed until [`Prober::run`] is polled.
pub struct Prober<K, B> {
    shared: Arc<Shared<K, B>>,
}

impl<K, B> Clone for Prober<K, B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<K, B> {
    state: Mutex<State<K, B>>,
    woken: Notify,
}

struct State<K, B> {
    schedule: Schedule<K, B>,
    /// Commands that `set_targets` caused and `run` carries out.
    outbox: Vec<Command<K>>,
}

impl<K: Key, B: Key> Prober<K, B> {
    /// At most `at_once` dials at any time; `seed` spreads probes over their periods. `group` names the
    /// group of an object, a namespace for instance: no group keeps the others from their probes.
    pub fn new(at_once: usize, seed: u64, group: fn(&K) -> &str) -> Self {
        let state = State { schedule: Schedule::new(at_once, seed, group), outbox: Vec::new() };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), woken: Notify::new() }) }
    }

    /// Makes these the backends of `object`; an empty map ends its probes. Backends that stay as they were keep
    /// their counters, those whose address or check changed keep their verdict. Never blocks.
    pub fn set_targets(&self, object: K, targets: BTreeMap<B, Target>) {
        let mut state = self.state();
        let commands = state.schedule.on(Input::Targets { object, targets }, Instant::now());
        state.outbox.extend(commands);
        self.shared.woken.notify_one();
    }

    /// The verdicts on the backends of `object`; empty for an object that is not watched.
    pub fn verdicts(&self, object: &K) -> BTreeMap<B, Verdict> {
        self.state().schedule.verdicts(object)
    }

    /// Probes until `stop`, and tells what comes of it. `tell` must return at once (put a key in a queue, say).
    pub async fn run(self, dial: Dial, tell: impl Fn(News<'_, K>), stop: CancellationToken) {
        let (mut dials, mut logged, mut faulty) = (FuturesUnordered::new(), None::<Instant>, None::<Instant>);
        let is_due = |logged: Option<Instant>| logged.is_none_or(|at| at.elapsed() >= LOGGED_EVERY);
        loop {
            let (commands, wakes_at) = self.turn();
            for command in commands {
                match command {
                    Command::Changed { object } => tell(News::Changed { object }),
                    Command::Flaps => tell(News::Flaps),
                    Command::Dial { id, probe, timeout: limit, may_be_late } => {
                        let (attempt, began) = (attempt(dial.clone(), probe), Instant::now());
                        dials.push(async move {
                            let answer = timeout(limit, attempt).await;
                            let late = || unanswered(limit, began.elapsed(), may_be_late);
                            (id, began, answer.unwrap_or_else(|_| Err(late())))
                        });
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.shared.woken.notified() => {}
                Some((id, began, answer)) = dials.next() => {
                    let result = answer.as_ref().map(|&()| ());
                    tell(News::Answered { result, took: began.elapsed() });
                    if let Err(DialError::Local(why)) = &answer && is_due(logged) {
                        logged = Some(Instant::now());
                        tracing::warn!(why, "cannot dial from here: verdicts of health checks stay as they are until this process can");
                    }
                    if answer == Err(DialError::Panicked) && is_due(faulty) {
                        faulty = Some(Instant::now());
                        tracing::error!("a probe panicked, which is a fault of this program: it counts as failed, and the others go on");
                    }
                    let mut state = self.state();
                    let commands = state.schedule.on(Input::Answered { id, answer }, Instant::now());
                    state.outbox.extend(commands);
                }
                () = until(wakes_at) => {}
            }
        }
    }

    fn turn(&self) -> (Vec<Command<K>>, Option<Instant>) {
        let mut state = self.state();
        let mut commands = std::mem::take(&mut state.outbox);
        commands.extend(state.schedule.on(Input::Tick, Instant::now()));
        (commands, state.schedule.wakes_at())
    }

    fn state(&self) -> MutexGuard<'_, State<K, B>> {
        self.shared.state.lock().expect("no panic while the schedule is locked")
    }
}

/// One dial. A panic in it (in a library that reads what a backend sent, say) ends this probe, and not the task that probes for
/// everybody.
async fn attempt(dial: Dial, probe: Probe) -> Result<(), DialError> {
    let answer = AssertUnwindSafe(async move { dial(probe).await }).catch_unwind().await;
    answer.unwrap_or(Err(DialError::Panicked))
}

/// The end of a dial without answer that had this limit and took so long.
fn unanswered(within: Duration, took: Duration, may_be_late: bool) -> DialError {
    if !may_be_late || took <= within + LATE {
        return DialError::NoAnswer { within };
    }
    DialError::Local(format!(
        "this process had no time for a probe for {} ms, give it more CPU",
        took.saturating_sub(within).as_millis()
    ))
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;
    use crate::{Check, HttpGet, Thresholds};

    /// The part of the name before the slash.
    fn group<'a>(object: &'a &'static str) -> &'a str {
        object.split('/').next().unwrap_or_default()
    }

    fn target(port: u16) -> Target {
        let check = Check {
            thresholds: Thresholds { success: 1, failure: 2 },
            period: Duration::from_secs(1),
            timeout: Duration::from_millis(500),
            http: None,
        };
        Target { address: SocketAddr::from(([198, 18, 0, 1], port)), check, recorded: None }
    }

    fn targets(ports: std::ops::Range<u16>) -> BTreeMap<u16, Target> {
        ports.map(|port| (port, target(port))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_listen_delays_no_probe() {
        // docs/contract/load-balancer.md#PR-2
        let prober = Prober::new(8, 1, group);
        let (dialled, mut dials) = mpsc::unbounded_channel();
        let turns = AtomicUsize::new(0);
        let dial: Dial = Arc::new(move |_| {
            dialled.send(Instant::now()).expect("the test listens");
            let good = turns.fetch_add(1, Ordering::SeqCst).is_multiple_of(4);
            async move { if good { Ok(()) } else { Err(DialError::Refused) } }.boxed()
        });
        // what changes is put into a queue that nobody empties
        let (changes, _changed) = mpsc::unbounded_channel();
        let tell = move |news: News<'_, &'static str>| {
            if let News::Changed { object } = news {
                changes.send(object).expect("it is kept");
            }
        };
        let task = tokio::spawn(prober.clone().run(dial, tell, CancellationToken::new()));
        prober.set_targets("web", [(1, target(1))].into());
        dials.recv().await.unwrap();
        let mut before = dials.recv().await.unwrap();
        for _ in 0..100 {
            let at = dials.recv().await.unwrap();
            assert!(at <= before + Duration::from_secs(1), "{:?} late", at - before);
            before = at;
        }
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn each_probe_is_told_with_what_it_took_also_one_without_answer() {
        let prober = Prober::new(8, 1, group);
        let (told, mut hears) = mpsc::unbounded_channel();
        let counts = Arc::new(AtomicUsize::new(0));
        let tell = move |news: News<'_, &'static str>| {
            if let News::Answered { result, took } = news {
                told.send((result.err().map(DialError::word), took)).expect("the test listens");
            }
        };
        let task = tokio::spawn(prober.clone().run(dial(&counts, &counts), tell, CancellationToken::new()));
        prober.set_targets("web", [(1, target(1))].into());
        assert_eq!(hears.recv().await, Some((None, Duration::ZERO)));
        prober.set_targets("web", [(100, target(100))].into());
        assert_eq!(hears.recv().await, Some((Some("no_answer"), Duration::from_millis(500))));
        task.abort();
    }

    /// Answers at ports below 100, is silent at the others, and counts the dials under way.
    fn dial(under_way: &Arc<AtomicUsize>, most: &Arc<AtomicUsize>) -> Dial {
        let (under_way, most) = (under_way.clone(), most.clone());
        Arc::new(move |probe| {
            let (under_way, most) = (under_way.clone(), most.clone());
            async move {
                /// Counts down also when the prober drops the attempt.
                struct Leaving(Arc<AtomicUsize>);
                impl Drop for Leaving {
                    fn drop(&mut self) {
                        self.0.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _leaving = Leaving(under_way);
                if probe.address.port() >= 100 {
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
            .boxed()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn backends_that_answer_become_ready_and_silent_ones_are_named_with_their_error() {
        let prober = Prober::new(8, 1, group);
        let (changes, mut changed) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let counts = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(prober.clone().run(
            dial(&counts, &counts),
            move |news| {
                if let News::Changed { object } = news {
                    changes.send(object).expect("the test listens");
                }
            },
            stop.clone(),
        ));
        prober.set_targets("web", [(1, target(1)), (100, target(100))].into());
        changed.recv().await;
        changed.recv().await;

        let ready = Verdict { ready: true, error: None };
        let silent =
            Verdict { ready: false, error: Some(DialError::NoAnswer { within: Duration::from_millis(500) }) };
        assert_eq!(prober.verdicts(&"web"), BTreeMap::from([(1, ready), (100, silent)]));

        prober.set_targets("web", BTreeMap::new());
        assert!(prober.verdicts(&"web").is_empty());
        stop.cancel();
        task.await.unwrap();
        assert!(changed.recv().await.is_none(), "nothing more changed");
    }

    /// The ends of the first probes of a backend that was ready, while the process does other work for three seconds of each
    /// dial; and whether it stays ready.
    async fn while_busy(http: Option<HttpGet>, probes: usize) -> (Vec<&'static str>, bool) {
        let prober = Prober::new(8, 1, group);
        let (told, mut hears) = mpsc::unbounded_channel();
        let tell = move |news: News<'_, &'static str>| {
            if let News::Answered { result, .. } = news {
                told.send(result.map_or_else(DialError::word, |()| "good")).expect("the test listens");
            }
        };
        let dial: Dial = Arc::new(|_| {
            async {
                tokio::time::advance(Duration::from_secs(3)).await;
                std::future::pending().await
            }
            .boxed()
        });
        let task = tokio::spawn(prober.clone().run(dial, tell, CancellationToken::new()));
        let check = Check { http, ..target(1).check };
        prober.set_targets("web", [(1, Target { recorded: Some(true), check, ..target(1) })].into());
        let mut ends = Vec::new();
        for _ in 0..probes {
            ends.extend(hears.recv().await);
        }
        tokio::task::yield_now().await;
        let is_ready = prober.verdicts(&"web").values().all(|verdict| verdict.ready);
        task.abort();
        (ends, is_ready)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_the_process_was_too_busy_to_read_changes_no_verdict() {
        let get = HttpGet::parse("/", "HTTP").unwrap();
        assert_eq!(while_busy(get, 5).await, (vec!["local"; 5], true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_never_answers_a_busy_process_is_not_ready_for_ever() {
        let get = HttpGet::parse("/", "HTTP").unwrap();
        let (ends, is_ready) = while_busy(get, 7).await;
        assert_eq!((&ends[4..], is_ready), (&["local", "no_answer", "no_answer"][..], false));
    }

    // a connection that stands is seen before the time-out, however late
    #[tokio::test(start_paused = true)]
    async fn a_backend_that_takes_no_connection_is_not_ready_also_while_the_process_is_busy() {
        assert_eq!(while_busy(None, 2).await, (vec!["no_answer"; 2], false));
    }

    // docs/contract/load-balancer.md#PR-4
    #[tokio::test(start_paused = true)]
    async fn a_probe_that_panics_is_one_that_failed_and_ends_no_other() {
        let prober = Prober::new(8, 1, group);
        let (changes, mut changed) = mpsc::unbounded_channel();
        let tell = move |news: News<'_, &'static str>| {
            if let News::Changed { object } = news {
                changes.send(object).expect("the test listens");
            }
        };
        let dial: Dial = Arc::new(|probe| {
            assert_ne!(probe.address.port(), 1, "a fault of ours, as it is called");
            async move {
                assert_ne!(probe.address.port(), 2, "a fault of ours, as it is awaited");
                Ok(())
            }
            .boxed()
        });
        let task = tokio::spawn(prober.clone().run(dial, tell, CancellationToken::new()));
        prober.set_targets("web", targets(1..3));
        changed.recv().await;
        changed.recv().await;
        let verdicts = prober.verdicts(&"web");
        assert!(verdicts.values().all(|verdict| verdict.error == Some(DialError::Panicked)), "{verdicts:?}");
        prober.set_targets("api", targets(3..4));
        changed.recv().await;
        assert!(prober.verdicts(&"api")[&3].ready);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_dials_are_under_way_than_allowed_and_everybody_gets_a_turn() {
        // docs/contract/load-balancer.md#PR-6
        let prober = Prober::new(8, 1, group);
        let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let task =
            tokio::spawn(prober.clone().run(dial(&under_way, &most), |_| {}, CancellationToken::new()));
        prober.set_targets("web", targets(100..150));
        tokio::time::sleep(Duration::from_secs(60)).await;

        let verdicts = prober.verdicts(&"web");
        assert!(verdicts.values().all(|verdict| verdict.error.is_some()), "{verdicts:?}");
        assert_eq!(most.load(Ordering::SeqCst), 8);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn one_groups_silent_targets_do_not_starve_another_groups_probes() {
        let prober = Prober::new(DIALS_AT_ONCE, 1, group);
        let (dialled, mut dials) = mpsc::unbounded_channel();
        let quiet = target(1);
        let dial: Dial = Arc::new(move |probe| {
            if probe.address.port() == 1 {
                dialled.send(Instant::now()).expect("the test listens");
                return async { Ok(()) }.boxed();
            }
            std::future::pending().boxed()
        });
        let task = tokio::spawn(prober.clone().run(dial, |_| {}, CancellationToken::new()));
        let day = Check { timeout: Duration::from_secs(24 * 60 * 60), ..quiet.check.clone() };
        let silent = (100..5_100).map(|port| (port, Target { check: day.clone(), ..target(port) })).collect();
        prober.set_targets("noisy/web", silent);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let period = quiet.check.period;
        prober.set_targets("quiet/web", [(1, quiet)].into());
        let mut due = Instant::now();
        for _ in 0..60 {
            let at = dials.recv().await.unwrap();
            assert!(at <= due + period, "{:?} late", at - due);
            due = at + period;
        }
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_dead_backends_is_removed_without_waiting() {
        // docs/contract/load-balancer.md#PR-1: in the Go program this takes backends x time-out under a lock
        let prober = Prober::new(DIALS_AT_ONCE, 1, group);
        let counts = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(prober.clone().run(dial(&counts, &counts), |_| {}, CancellationToken::new()));
        prober.set_targets("web", targets(100..150));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = Instant::now();
        prober.set_targets("web", BTreeMap::new());
        assert!(prober.verdicts(&"web").is_empty());
        assert_eq!(Instant::now(), before);
        task.abort();
    }
}
