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
/// Between two writes of a slice for the readiness of one backend: for so much longer one that flaps may get traffic.
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

/// The times of writes of a slice that said only who is ready, for each backend whose readiness turned.
#[derive(Debug, Default)]
pub(crate) struct ReadinessPace(Mutex<HashMap<ObjectKey, OfBackends>>);

impl ReadinessPace {
    /// The backends whose readiness was written a short while ago, and after which time it may be written again.
    pub(crate) fn waits(&self, key: &ObjectKey) -> BTreeMap<BackendId, Duration> {
        let writes = self.writes();
        let of_object = writes.get(key).into_iter().flatten();
        of_object.filter_map(|(id, at)| Some((id.clone(), left(*at, READINESS_APART)?))).collect()
    }

    pub(crate) fn wrote(&self, key: &ObjectKey, turned: &[BackendId]) {
        let mut writes = self.writes();
        let of_object = writes.entry(key.clone()).or_default();
        of_object.retain(|_, at| left(*at, READINESS_APART).is_some());
        of_object.extend(turned.iter().map(|id| (id.clone(), Instant::now())));
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.writes().remove(key);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, OfBackends>> {
        self.0.lock().expect("no panic while the times of writes are locked")
    }
}

fn left(since: Instant, apart: Duration) -> Option<Duration> {
    apart.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}
