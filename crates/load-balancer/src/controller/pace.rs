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

/// The times of writes of a status that carried only verdicts.
#[derive(Debug, Default)]
pub(crate) struct VerdictPace(Mutex<HashMap<ObjectKey, Instant>>);

impl VerdictPace {
    /// After which time the next one may go out; `None`: now.
    pub(crate) fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        left(*self.writes().get(key)?, VERDICTS_APART)
    }

    pub(crate) fn wrote(&self, key: &ObjectKey) {
        self.writes().insert(key.clone(), Instant::now());
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.writes().remove(key);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.0.lock().expect("no panic while the times of writes are locked")
    }
}

type OfBackends = BTreeMap<BackendId, Instant>;

/// For each backend whose readiness was written alone, when that may be written again.
#[derive(Debug, Default)]
pub(crate) struct ReadinessPace(Mutex<HashMap<ObjectKey, OfBackends>>);

impl ReadinessPace {
    /// The backends whose readiness was written a short while ago, and after which time it may be written again.
    pub(crate) fn waits(&self, key: &ObjectKey) -> BTreeMap<BackendId, Duration> {
        let due = self.due();
        let of_object = due.get(key).into_iter().flatten();
        of_object.filter_map(|(id, at)| Some((id.clone(), until(*at)?))).collect()
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
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.due().remove(key);
    }

    fn due(&self) -> MutexGuard<'_, HashMap<ObjectKey, OfBackends>> {
        self.0.lock().expect("no panic while the times of writes are locked")
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
}
