//! Writes that tell what health checks found: those that flap keep nobody from the server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::ObjectKey;
use tokio::time::Instant;

use crate::host_datapath::BackendId;

/// Between two writes of a status that carry only verdicts. Traffic does not follow them.
const VERDICTS_APART: Duration = Duration::from_secs(1);
/// Between two writes of one backend's readiness. A backend that flaps may get traffic for so much longer than it answers;
/// after a write that did not wait, for twice as long.
const READINESS_APART: Duration = Duration::from_secs(5);

/// Between two writes of the objects of one namespace, of each of the two kinds: a tenant may have thousands of objects,
/// each with a pace of its own.
const TURNS_APART: Duration = Duration::from_millis(5);
/// So many of them may come at once.
const TURNS_AT_ONCE: u32 = 200;
/// A turn that nobody has taken for so long is lost: the object may not need it any more.
const TURN_LASTS: Duration = Duration::from_secs(5);

/// The turns of the objects of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<AllTurns>);

#[derive(Debug, Default)]
struct AllTurns {
    /// When the next turn begins that nobody has, by namespace.
    next: HashMap<String, Instant>,
    given: HashMap<ObjectKey, Instant>,
}

impl Turns {
    /// After which time the object's turn comes; `None`: it has come, or the object has not asked for one.
    fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        until(*self.all().given.get(key)?)
    }

    /// Whether the object may write now; if not, [`Turns::wait`] tells when. It keeps its turn until the server has stored
    /// the write: one that fails does not begin at the end of the line.
    pub(crate) fn take(&self, key: &ObjectKey) -> bool {
        let (mut all, now) = (self.all(), Instant::now());
        if let Some(turn) = all.given.get(key).copied() {
            if turn + TURN_LASTS > now {
                return turn <= now;
            }
        }
        let first = now.checked_sub(TURNS_APART * (TURNS_AT_ONCE - 1)).unwrap_or(now);
        let next = all.next.entry(key.namespace.clone()).or_insert(first);
        let turn = first.max(*next);
        *next = turn + TURNS_APART;
        all.given.insert(key.clone(), turn);
        turn <= now
    }

    fn used(&self, key: &ObjectKey) {
        self.all().given.remove(key);
    }

    fn forget(&self, key: &ObjectKey) {
        let (mut all, now) = (self.all(), Instant::now());
        all.given.remove(key);
        all.next.retain(|_, next| *next + TURNS_APART * TURNS_AT_ONCE > now);
    }

    fn all(&self) -> MutexGuard<'_, AllTurns> {
        self.0.lock().expect("no panic while turns are locked")
    }
}

/// The times of writes of a status that carried only verdicts.
#[derive(Debug, Default)]
pub(crate) struct VerdictPace {
    writes: Mutex<HashMap<ObjectKey, Instant>>,
    pub(crate) turns: Turns,
}

impl VerdictPace {
    /// After which time the next one may go out; `None`: now.
    pub(crate) fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        let written = self.writes().get(key).copied();
        written.and_then(|written| left(written, VERDICTS_APART)).max(self.turns.wait(key))
    }

    pub(crate) fn wrote(&self, key: &ObjectKey) {
        self.writes().insert(key.clone(), Instant::now());
        self.turns.used(key);
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.writes().remove(key);
        self.turns.forget(key);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.writes.lock().expect("no panic while the times of writes are locked")
    }
}

type OfBackends = BTreeMap<BackendId, Instant>;

/// For each backend whose readiness was written alone, when that may be written again.
#[derive(Debug, Default)]
pub(crate) struct ReadinessPace {
    due: Mutex<HashMap<ObjectKey, OfBackends>>,
    pub(crate) turns: Turns,
}

impl ReadinessPace {
    /// The backends whose readiness was written a short while ago, and after which time it may be written again.
    pub(crate) fn waits(&self, key: &ObjectKey) -> BTreeMap<BackendId, Duration> {
        let due = self.due();
        let of_object = due.get(key).into_iter().flatten();
        of_object.filter_map(|(id, at)| Some((id.clone(), until(*at)?))).collect()
    }

    /// After which time readiness of this object may be written at all; `None`: now.
    pub(crate) fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        self.turns.wait(key)
    }

    /// A write that did not wait (no backend was ready, or another backend's turn had come) uses up the backend's next turn.
    pub(crate) fn wrote(&self, key: &ObjectKey, turned: &[BackendId]) {
        let mut due = self.due();
        let of_object = due.entry(key.clone()).or_default();
        of_object.retain(|_, at| until(*at).is_some());
        let now = Instant::now();
        for id in turned {
            let turn = of_object.get(id).copied().unwrap_or(now) + READINESS_APART;
            of_object.insert(id.clone(), turn.min(now + READINESS_APART * 2));
        }
        self.turns.used(key);
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.due().remove(key);
        self.turns.forget(key);
    }

    fn due(&self) -> MutexGuard<'_, HashMap<ObjectKey, OfBackends>> {
        self.due.lock().expect("no panic while the times of writes are locked")
    }
}

fn until(at: Instant) -> Option<Duration> {
    Some(at.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn left(since: Instant, apart: Duration) -> Option<Duration> {
    apart.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_of_readiness_that_did_not_wait_takes_the_turn_of_the_next_one() {
        let (pace, key) = (ReadinessPace::default(), ObjectKey::new("shop", "web"));
        let id = BackendId { uid: "v1".to_owned(), address: [192, 168, 7, 11].into() };
        let wait = || pace.waits(&key).get(&id).map(Duration::as_secs);
        pace.wrote(&key, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(5));
        advance(Duration::from_secs(2)).await;
        pace.wrote(&key, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(8));
        pace.wrote(&key, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(10), "and no more than one");
        advance(Duration::from_secs(10)).await;
        assert_eq!(wait(), None);
        pace.wrote(&key, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(5));
    }

    /// How many of the objects may write at once.
    fn at_once(turns: &Turns, namespace: &str, objects: std::ops::Range<usize>) -> usize {
        let key = |n| ObjectKey::new(namespace, format!("web-{n}"));
        objects.filter(|n| turns.take(&key(*n))).count()
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_of_a_namespace_take_turns_and_keep_nobody_elses_waiting() {
        let (verdicts, readiness) = (VerdictPace::default(), ReadinessPace::default());
        assert_eq!(at_once(&verdicts.turns, "shop", 0..200), 200);
        let (next, last) = (ObjectKey::new("shop", "web-200"), ObjectKey::new("shop", "web-2199"));
        assert_eq!((verdicts.turns.take(&next), verdicts.wait(&next)), (false, Some(TURNS_APART)));
        assert_eq!(at_once(&verdicts.turns, "other", 0..1), 1);
        assert_eq!(at_once(&readiness.turns, "shop", 0..201), 200, "verdicts take no turn of readiness");
        assert_eq!(readiness.wait(&next), Some(TURNS_APART));

        assert_eq!(at_once(&verdicts.turns, "shop", 201..2200), 0);
        assert_eq!(verdicts.wait(&last), Some(Duration::from_secs(10)));
        advance(Duration::from_secs(1)).await;
        assert_eq!(at_once(&verdicts.turns, "shop", 2150..2250), 0, "nobody jumps the queue");
        assert_eq!(at_once(&verdicts.turns, "shop", 200..2200), 200, "as many as had their turn in a second");
    }

    // traffic must not go on to a backend that died because somebody else had written the slice a moment ago
    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_does_not_go_to_the_end_of_the_line() {
        let pace = ReadinessPace::default();
        let (first, last) = (ObjectKey::new("shop", "web-0"), ObjectKey::new("shop", "web-2199"));
        at_once(&pace.turns, "shop", 0..2200);
        assert!(pace.turns.take(&first), "its first write failed");
        advance(Duration::from_secs(10)).await;
        at_once(&pace.turns, "shop", 2200..4200);
        assert!(pace.turns.take(&last), "its turn has come");
        assert!(pace.turns.take(&last), "its first write failed");
        pace.wrote(&last, &[]);
        assert!(!pace.turns.take(&last), "a write that the server stored uses up the turn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_took_is_lost_and_a_namespace_that_was_silent_is_forgotten() {
        let turns = Turns::default();
        assert_eq!(at_once(&turns, "shop", 0..600), 200);
        advance(Duration::from_secs(60)).await;
        assert_eq!(at_once(&turns, "shop", 200..600), 200, "and no more at once than ever");
        advance(Duration::from_secs(60)).await;
        for n in 0..600 {
            turns.forget(&ObjectKey::new("shop", format!("web-{n}")));
        }
        assert!(turns.all().next.is_empty() && turns.all().given.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_its_own_pace_and_for_its_turn() {
        let (pace, key) = (VerdictPace::default(), ObjectKey::new("shop", "web-200"));
        at_once(&pace.turns, "shop", 0..201);
        pace.wrote(&key);
        assert_eq!(pace.wait(&key), Some(VERDICTS_APART));
        advance(VERDICTS_APART).await;
        assert_eq!((pace.wait(&key), pace.turns.take(&key)), (None, true));
    }
}
