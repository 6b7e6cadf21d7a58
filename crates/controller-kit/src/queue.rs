//! A work queue: an item waits at most once, is worked on by one worker at a time, and comes back with a back-off
//! of its own when its work failed. Namespaces take turns where the queue is told to.

mod metrics;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt::{Debug, Display},
    future::Future,
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::{sync::Notify, time::Instant};

use program::TaskGroup;

pub use self::metrics::{QueueMetrics, WorkQueues};
use crate::{ObjectKey, error_message, retry_after};

/// First delay after a failure; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
/// A longer wait would hide a recovery.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The next step for an item whose work did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until somebody adds it again: everything that it waits for is watched.
    AwaitChange,
    /// Look again then, unless somebody adds it earlier.
    RequeueAfter(Duration),
    /// The work goes on when the answer to a question of its own adds the item, or then: nothing has succeeded yet, so
    /// failures before and after the answer are failures in a row, unless it is [forgiven](Queue::forgive).
    AwaitAnswer(Option<Duration>),
}

/// The items that wait: first in, first out within one group, and the groups take turns.
#[derive(Debug)]
struct FairQueue<T> {
    group_of: fn(&T) -> &str,
    lines: HashMap<String, VecDeque<T>>,
    /// The groups with an item that waits, the next one first.
    turns: VecDeque<String>,
}

impl<T> FairQueue<T> {
    fn push(&mut self, item: T) {
        let group = (self.group_of)(&item);
        if let Some(line) = self.lines.get_mut(group) {
            return line.push_back(item);
        }
        let group = group.to_owned();
        self.turns.push_back(group.clone());
        self.lines.insert(group, VecDeque::from([item]));
    }

    fn pop(&mut self) -> Option<T> {
        let group = self.turns.pop_front()?;
        let line = self.lines.get_mut(&group)?;
        let item = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        item
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[derive(Debug)]
struct State<T> {
    ready: FairQueue<T>,
    /// Everything in `ready`, and since when.
    waiting: HashMap<T, Instant>,
    /// Since when each is worked on.
    running: HashMap<T, Instant>,
    /// Added while running: goes to `ready` when the worker is done with it.
    again: HashSet<T>,
    timers: BTreeMap<(Instant, u64), T>,
    timer_of: HashMap<T, (Instant, u64)>,
    failures: HashMap<T, u32>,
    metrics: QueueMetrics,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    tick: AtomicU64,
    metrics: QueueMetrics,
}

/// A queue of items to reconcile. Cheap to clone; all clones are one queue.
#[derive(Debug)]
pub struct Queue<T>(Arc<Shared<T>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::grouped(|_| "")
    }
}

impl<T> Queue<T> {
    fn grouped(group_of: fn(&T) -> &str) -> Self {
        let metrics = QueueMetrics::default();
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                ready: FairQueue { group_of, lines: HashMap::new(), turns: VecDeque::new() },
                waiting: HashMap::new(),
                running: HashMap::new(),
                again: HashSet::new(),
                timers: BTreeMap::new(),
                timer_of: HashMap::new(),
                failures: HashMap::new(),
                metrics: metrics.clone(),
            }),
            wake: Notify::new(),
            tick: AtomicU64::new(0),
            metrics,
        }))
    }
}

impl Queue<ObjectKey> {
    /// A queue in which namespaces take turns: the thousands of keys of one tenant do not delay the key of another. Keys
    /// without namespace take the turn of one namespace.
    pub fn by_namespace() -> Self {
        Self::grouped(|key| &key.namespace)
    }
}

impl<T: Clone + Eq + Hash + Display + Send + Sync + 'static> Queue<T> {
    /// A queue that is first in, first out.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn metrics(&self) -> &QueueMetrics {
        &self.0.metrics
    }

    /// Wants `item` to be worked on as soon as a worker is free. A back-off or timer of the item ends.
    pub fn add(&self, item: T) {
        let mut state = self.state();
        state.forget_timer(&item);
        state.make_ready(item);
        drop(state);
        self.0.wake.notify_one();
    }

    /// Wants `item` to be worked on after `delay`, or earlier when somebody adds it. Of two delays the earlier
    /// one counts.
    pub fn add_after(&self, item: T, delay: Duration) {
        let mut state = self.state();
        let at = Instant::now() + delay;
        if state.timer_of.get(&item).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        state.forget_timer(&item);
        let timer = (at, self.0.tick.fetch_add(1, Ordering::Relaxed));
        state.timer_of.insert(item.clone(), timer);
        state.timers.insert(timer, item);
        drop(state);
        self.0.wake.notify_one();
    }

    /// Something for the item has succeeded: its failures before count no more.
    pub fn forgive(&self, item: &T) {
        self.state().failures.remove(item);
    }

    /// How many items wait or are worked on; those on a timer do not count.
    pub fn depth(&self) -> usize {
        let state = self.state();
        state.waiting.len() + state.running.len()
    }

    /// Works with `workers` at once until `tasks` ends; what runs then is finished. A failed item comes back after
    /// 5 ms, 10 ms, … 30 s, or when a busy server wants to be asked again (`Retry-After`), if that is later, even if
    /// somebody added it meanwhile; a panic counts as a failure of that item and of nothing else.
    pub fn run<F, W, E>(&self, tasks: &TaskGroup, workers: usize, work: F)
    where
        F: Fn(T) -> W + Send + Sync + 'static,
        W: Future<Output = Result<Action, E>> + Send,
        E: std::error::Error + 'static,
    {
        let work = Arc::new(work);
        let worked: Arc<dyn Pending> = Arc::new(self.clone());
        WORKED.with_borrow_mut(|all| {
            all.retain(|queue| queue.strong_count() > 0);
            all.push(Arc::downgrade(&worked));
        });
        for _ in 0..workers.max(1) {
            let (queue, work, stop) = (self.clone(), work.clone(), tasks.stop.clone());
            let worked = worked.clone();
            tasks.spawn(async move {
                let _worked = worked;
                while let Some(item) = stop.run_until_cancelled(queue.take()).await {
                    let outcome = AssertUnwindSafe(work(item.clone())).catch_unwind().await;
                    queue.finish(item, outcome);
                }
            });
        }
    }

    async fn take(&self) -> T {
        loop {
            let due = {
                let mut state = self.state();
                let now = Instant::now();
                state.ring(now);
                if let Some(item) = state.ready.pop() {
                    let since = state.waiting.remove(&item).unwrap_or(now);
                    state.running.insert(item.clone(), now);
                    self.0.metrics.waiting(state.waiting.len());
                    self.0.metrics.took(since, now);
                    if !state.ready.is_empty() {
                        self.0.wake.notify_one();
                    }
                    return item;
                }
                state.timers.first_key_value().map(|((due, _), _)| *due)
            };
            match due {
                Some(due) => {
                    tokio::select! {
                        () = self.0.wake.notified() => (),
                        () = tokio::time::sleep_until(due) => (),
                    }
                }
                None => self.0.wake.notified().await,
            }
        }
    }

    fn finish<E: std::error::Error + 'static>(
        &self,
        item: T,
        outcome: std::thread::Result<Result<Action, E>>,
    ) {
        self.0.metrics.reconciles.inc();
        let delay = match outcome {
            Ok(Ok(next)) => {
                if !matches!(next, Action::AwaitAnswer(_)) {
                    self.state().failures.remove(&item);
                }
                match next {
                    Action::AwaitChange => None,
                    Action::RequeueAfter(delay) => Some(delay),
                    Action::AwaitAnswer(delay) => delay,
                }
            }
            Ok(Err(error)) => {
                let asked = retry_after(&error);
                if asked.is_some() {
                    // the work's own writes add the item while it runs, and would repeat the request at once
                    self.state().again.remove(&item);
                }
                let delay = self.failed(&item).max(asked.unwrap_or_default());
                tracing::warn!(%item, retry_in = ?delay, "{}", error_message(&error));
                Some(delay)
            }
            Err(_) => {
                let delay = self.failed(&item);
                tracing::error!(%item, retry_in = ?delay, "reconcile panicked");
                Some(delay)
            }
        };
        let mut state = self.state();
        if let Some(begun) = state.running.remove(&item) {
            self.0.metrics.finished(begun);
        }
        if state.again.remove(&item) {
            state.make_ready(item);
            drop(state);
            self.0.wake.notify_one();
        } else if let Some(delay) = delay {
            drop(state);
            self.add_after(item, delay);
        }
    }

    fn failed(&self, item: &T) -> Duration {
        self.0.metrics.failures.inc();
        let mut state = self.state();
        let failures = state.failures.entry(item.clone()).or_default();
        *failures += 1;
        backoff(*failures)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State<T>> {
        self.0.state.lock().expect("no panic while the queue is locked")
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    fn make_ready(&mut self, item: T) {
        if self.running.contains_key(&item) {
            if self.again.insert(item) {
                self.metrics.added();
            }
        } else if !self.waiting.contains_key(&item) {
            self.waiting.insert(item.clone(), Instant::now());
            self.ready.push(item);
            self.metrics.added();
            self.metrics.waiting(self.waiting.len());
        }
    }

    fn forget_timer(&mut self, item: &T) {
        if let Some(timer) = self.timer_of.remove(item) {
            self.timers.remove(&timer);
        }
    }

    /// Moves what is due to the waiting ones.
    fn ring(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let item = entry.remove();
            self.timer_of.remove(&item);
            self.make_ready(item);
        }
    }
}

/// A queue of any items.
trait Pending: Send + Sync {
    fn pending_until(&self, then: Instant) -> bool;
}

impl<T: Clone + Eq + Hash + Display + Send + Sync + 'static> Pending for Queue<T> {
    fn pending_until(&self, then: Instant) -> bool {
        let state = self.state();
        !state.ready.is_empty()
            || !state.running.is_empty()
            || state.timers.first_key_value().is_some_and(|((due, _), _)| *due <= then)
    }
}

thread_local! {
    /// The queues whose workers this thread started; each goes with its last worker.
    static WORKED: RefCell<Vec<Weak<dyn Pending>>> = const { RefCell::new(Vec::new()) };
}

/// Whether a queue whose workers this thread started works on an item, or will within `time`. A test that runs a
/// program in its own thread knows by this that the program rests.
pub fn pending_within(time: Duration) -> bool {
    let then = Instant::now() + time;
    WORKED.with_borrow(|all| all.iter().filter_map(Weak::upgrade).any(|queue| queue.pending_until(then)))
}

/// The wait after the last of so many failures in a row: 5 ms, 10 ms, … 30 s.
pub fn backoff(failures: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io, sync::atomic::AtomicBool};

    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn log<T: Send + 'static>() -> (Arc<Mutex<Vec<T>>>, impl Fn(T) + Clone) {
        let log = Arc::new(Mutex::new(Vec::new()));
        let into = log.clone();
        (log, move |item| into.lock().unwrap().push(item))
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_added_twice_is_worked_on_once_and_one_added_while_running_once_more() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.add(1);
        queue.add(1);
        let inner = queue.clone();
        queue.run(&tasks, 4, move |item| {
            note(item);
            let (inner, first) = (inner.clone(), inner.0.metrics.reconciles.get() == 0);
            async move {
                if first {
                    inner.add(item);
                    inner.add(item);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Ok::<_, Infallible>(Action::AwaitChange)
            }
        });
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_item_backs_off_by_doubling_and_holds_up_nobody() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.run(&tasks, 1, move |item| {
            note(item);
            async move { if item == 1 { Err(io::Error::other("refused")) } else { Ok(Action::AwaitChange) } }
        });
        queue.add(1);
        queue.add(2);
        tokio::time::sleep(Duration::from_millis(5 + 10 + 20 + 1)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 2, 1, 1, 1]);
        assert_eq!(backoff(40), BACKOFF_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_fails_after_each_answer_to_its_question_backs_off_by_doubling() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        let answers = queue.clone();
        let asks = AtomicBool::new(true);
        queue.run(&tasks, 1, move |item| {
            let is_question = asks.fetch_not(Ordering::Relaxed);
            if is_question {
                answers.add(item);
            } else {
                note(item);
            }
            async move {
                if is_question { Ok(Action::AwaitAnswer(None)) } else { Err(io::Error::other("refused")) }
            }
        });
        queue.add(1);
        tokio::time::sleep(Duration::from_millis(5 + 10 + 20 + 1)).await;
        assert_eq!(*seen.lock().unwrap(), [1; 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_of_another_namespace_is_taken_second_although_a_thousand_wait() {
        let (queue, tasks, (seen, note)) = (Queue::by_namespace(), TaskGroup::new(), log());
        for n in 0..1_000 {
            queue.add(ObjectKey::new("a", n.to_string()));
        }
        queue.add(ObjectKey::new("b", "web"));
        queue.add(ObjectKey::new("", "node"));
        queue.add(ObjectKey::new("b", "api"));
        assert_eq!(queue.depth(), 1_003);
        queue.run(&tasks, 1, move |key| {
            note(key.to_string());
            async { Ok::<_, Infallible>(Action::AwaitChange) }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seen = seen.lock().unwrap();
        assert_eq!(seen[..6], ["a/0", "b/web", "node", "a/1", "b/api", "a/2"]);
        assert_eq!((seen.len(), seen.last().map(String::as_str)), (1_003, Some("a/999")));
    }

    // fault 17
    #[tokio::test(start_paused = true)]
    async fn an_item_refused_by_a_busy_server_waits_as_long_as_the_server_asks() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.run(&tasks, 1, move |item| {
            note(item);
            async {
                let details = serde_json::from_value(json!({"retryAfterSeconds": 7})).unwrap();
                let status = Status::failure("busy", "TooManyRequests").with_code(429).with_details(details);
                Err::<Action, _>(kube::Error::Api(Box::new(status)))
            }
        });
        queue.add(1);
        tokio::time::sleep(Duration::from_millis(6_999)).await;
        assert_eq!(*seen.lock().unwrap(), [1]);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure_of_its_item_alone() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.run(&tasks, 1, move |item| {
            note(item);
            async move {
                assert_ne!(item, 1, "a bug");
                Ok::<_, Infallible>(Action::AwaitChange)
            }
        });
        queue.add(1);
        queue.add(2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_timers_counts_and_adding_ends_it() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.run(&tasks, 1, move |item| {
            note(item);
            async { Ok::<_, Infallible>(Action::AwaitChange) }
        });
        queue.add_after(1, Duration::from_secs(60));
        queue.add_after(1, Duration::from_secs(5));
        queue.add_after(1, Duration::from_secs(30));
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(*seen.lock().unwrap(), [1]);
        queue.add_after(1, Duration::from_secs(5));
        queue.add(1);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*seen.lock().unwrap(), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_pending_until_it_is_done_and_shortly_before_it_is_due() {
        let (queue, tasks) = (Queue::<u32>::new(), TaskGroup::new());
        queue.run(&tasks, 2, move |_| async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok::<_, Infallible>(Action::RequeueAfter(Duration::from_secs(60)))
        });
        assert!(!pending_within(Duration::from_secs(1)));
        queue.add(1);
        assert!(pending_within(Duration::ZERO));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(pending_within(Duration::ZERO));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!pending_within(Duration::from_secs(50)));
        assert!(pending_within(Duration::from_secs(60)));
        tasks.end().await;
        assert!(!pending_within(Duration::from_secs(60)));
    }

    // docs/contract/cloud-controller-manager.md#S1
    #[tokio::test(start_paused = true)]
    async fn work_that_runs_when_the_life_ends_is_finished() {
        let (queue, tasks, (seen, note)) = (Queue::<u32>::new(), TaskGroup::new(), log());
        queue.run(&tasks, 1, move |item| {
            let note = note.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(2)).await;
                note(item);
                Ok::<_, Infallible>(Action::AwaitChange)
            }
        });
        queue.add(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        tasks.end().await;
        assert_eq!(*seen.lock().unwrap(), [1]);
    }
}
