//! Writes that tell what health checks found: those that flap keep nobody from the server.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, RawObject};
use harvester_api::{LoadBalancer, annotations};
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::host_datapath::BackendId;

/// Between two writes of a status that say only in which state backends are. Traffic does not follow them.
const BACKEND_STATUS_APART: Duration = Duration::from_secs(1);
/// Between two writes of one backend's readiness, and from its end as a backend to its return. A backend that flaps may get traffic
/// for so much longer than it answers; after a write that did not wait, for twice as long.
const READINESS_APART: Duration = Duration::from_secs(5);

/// Between two writes of the objects of one namespace, of each of the two kinds: a tenant may have thousands of objects,
/// each with a pace of its own.
const RATE_INTERVAL: Duration = Duration::from_millis(5);
/// So many of them may come at once.
const BURST: u32 = 200;
/// A reservation that nobody has used for so long is lost: the object may not need it any more.
const RESERVATION_LASTS: Duration = Duration::from_secs(5);

/// Gives the objects of a namespace times to write at, [`RATE_INTERVAL`] apart, in the order in which they ask.
#[derive(Debug, Default)]
pub(crate) struct NamespaceRateLimiter(Mutex<Reservations>);

#[derive(Debug, Default)]
struct Reservations {
    /// The first time that nobody has, by namespace.
    next: HashMap<String, Instant>,
    reserved: HashMap<ObjectKey, Instant>,
}

impl NamespaceRateLimiter {
    /// The time until the object's reservation; `None`: its time has come, or the object has not asked for one.
    fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        until(*self.reservations().reserved.get(key)?)
    }

    /// Whether the object may write now; if not, [`NamespaceRateLimiter::wait`] tells when.
    pub(crate) fn try_acquire(&self, key: &ObjectKey) -> bool {
        let (mut all, now) = (self.reservations(), Instant::now());
        if let Some(reserved) = all.reserved.get(key).copied()
            && reserved + RESERVATION_LASTS > now
        {
            return reserved <= now;
        }
        let first = now.checked_sub(RATE_INTERVAL * (BURST - 1)).unwrap_or(now);
        let next = all.next.entry(key.namespace.clone()).or_insert(first);
        let reserved = first.max(*next);
        *next = reserved + RATE_INTERVAL;
        all.reserved.insert(key.clone(), reserved);
        reserved <= now
    }

    /// The server has not stored the write: the object may send it again now, and for as long as a new reservation lasts,
    /// however long the server took. So a write that fails does not begin at the end of the line.
    pub(crate) fn keep(&self, key: &ObjectKey) {
        if let Some(reserved) = self.reservations().reserved.get_mut(key) {
            *reserved = Instant::now();
        }
    }

    fn used(&self, key: &ObjectKey) {
        self.reservations().reserved.remove(key);
    }

    /// Forgets the object, and every namespace that was silent for so long that it has its whole burst again.
    fn forget(&self, key: &ObjectKey) {
        let (mut all, now) = (self.reservations(), Instant::now());
        all.reserved.remove(key);
        all.next.retain(|_, next| *next + RATE_INTERVAL * BURST > now);
    }

    fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.0.lock().expect("no panic while reservations are locked")
    }
}

/// The times of writes of a status that said only in which state backends are.
#[derive(Debug, Default)]
pub(crate) struct StatusPace {
    writes: Mutex<HashMap<ObjectKey, Instant>>,
    pub(crate) limiter: NamespaceRateLimiter,
}

impl StatusPace {
    /// The time until the next one may go out; `None`: now.
    pub(crate) fn allowed_in(&self, key: &ObjectKey) -> Option<Duration> {
        let written = self.writes().get(key).copied();
        written.and_then(|written| left(written, BACKEND_STATUS_APART)).max(self.limiter.wait(key))
    }

    pub(crate) fn wrote(&self, key: &ObjectKey) {
        self.writes().insert(key.clone(), Instant::now());
        self.limiter.used(key);
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.writes().remove(key);
        self.limiter.forget(key);
    }

    fn writes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.writes.lock().expect("no panic while the times of writes are locked")
    }
}

#[derive(Debug, Default)]
struct OfObject {
    /// Of the object that was written for: see [`asks`].
    asked: Option<u64>,
    due: BTreeMap<BackendId, Instant>,
}

/// For each backend whose readiness was written alone, or that left, when that, or its return, may be written. What was written for
/// an object that asked for other backends counts no more: the cloud controller manager takes the selector out of an object, and
/// puts it back as soon as the source ranges are in force.
#[derive(Debug, Default)]
pub(crate) struct SlicePace {
    due: Mutex<HashMap<ObjectKey, OfObject>>,
    pub(crate) limiter: NamespaceRateLimiter,
}

impl SlicePace {
    /// The backends whose readiness was written a short while ago, and the time until it may be written again.
    pub(crate) fn backends_due_in(
        &self,
        key: &ObjectKey,
        lb: Option<&RawObject<LoadBalancer>>,
    ) -> BTreeMap<BackendId, Duration> {
        let all = self.due();
        let of_object = all.get(key).filter(|of_object| of_object.asked == asks(lb));
        let due = of_object.into_iter().flat_map(|of_object| &of_object.due);
        due.filter_map(|(id, at)| Some((id.clone(), until(*at)?))).collect()
    }

    /// The time until readiness of this object may be written at all; `None`: now.
    pub(crate) fn allowed_in(&self, key: &ObjectKey) -> Option<Duration> {
        self.limiter.wait(key)
    }

    /// The backends' readiness, or their end, was written. A write that did not wait (no backend was ready, or another backend was due) is
    /// made up for: the next one comes as much later.
    pub(crate) fn wrote(&self, key: &ObjectKey, lb: Option<&RawObject<LoadBalancer>>, flipped: &[BackendId]) {
        let mut all = self.due();
        let OfObject { asked, due } = all.entry(key.clone()).or_default();
        let asks = asks(lb);
        due.retain(|_, at| *asked == asks && until(*at).is_some());
        *asked = asks;
        let now = Instant::now();
        for id in flipped {
            let again = due.get(id).copied().unwrap_or(now) + READINESS_APART;
            due.insert(id.clone(), again.min(now + READINESS_APART * 2));
        }
        self.limiter.used(key);
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.due().remove(key);
        self.limiter.forget(key);
    }

    fn due(&self) -> MutexGuard<'_, HashMap<ObjectKey, OfObject>> {
        self.due.lock().expect("no panic while the times of writes are locked")
    }
}

/// A digest of what the object itself says of its backends: the selector, and the source ranges, without which it may have none.
fn asks(lb: Option<&RawObject<LoadBalancer>>) -> Option<u64> {
    let lb = lb?;
    let mut hasher = DefaultHasher::new();
    lb.spec.backend_server_selector.hash(&mut hasher);
    lb.annotations().get(annotations::SOURCE_RANGES).hash(&mut hasher);
    Some(hasher.finish())
}

fn until(at: Instant) -> Option<Duration> {
    Some(at.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

fn left(since: Instant, apart: Duration) -> Option<Duration> {
    apart.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::advance;

    use super::*;

    fn backend() -> BackendId {
        BackendId { uid: "v1".to_owned(), address: [192, 168, 7, 11].into() }
    }

    fn selecting(selector: &Value, source_ranges: &str) -> RawObject<LoadBalancer> {
        let json = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"namespace": "shop", "name": "web", "annotations": {(annotations::SOURCE_RANGES): source_ranges}},
            "spec": {"workloadType": "vm", "backendServerSelector": selector}});
        RawObject::from_json(json).unwrap()
    }

    // docs/contract/data-paths.md#row-15-harvester: the object has no selector while its ranges change
    #[tokio::test(start_paused = true)]
    async fn a_backend_that_its_own_object_put_out_comes_back_at_once_and_one_that_left_by_itself_waits() {
        let (pace, key, id) = (SlicePace::default(), ObjectKey::new("shop", "web"), backend());
        let left = std::slice::from_ref(&id);
        let wait = |lb: &RawObject<LoadBalancer>| {
            pace.backends_due_in(&key, Some(lb)).get(&id).map(Duration::as_secs)
        };
        let api = json!({"tier": ["api"]});
        let selects = selecting(&api, "10.0.0.0/8");
        let others = [
            selecting(&json!({}), "10.0.0.0/8"),
            selecting(&json!({"tier": ["db"]}), "10.0.0.0/8"),
            selecting(&api, "everybody"),
        ];
        for other in &others {
            pace.wrote(&key, Some(&selects), left);
            assert_eq!(wait(&selects), Some(5), "it left by itself");
            advance(Duration::from_secs(1)).await;
            pace.wrote(&key, Some(other), left);
            assert_eq!((wait(other), wait(&selects)), (Some(5), None), "the object asks for it anew");
            pace.wrote(&key, Some(&selects), &[]);
            assert_eq!((wait(other), wait(&selects)), (None, None), "it is back");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_of_readiness_that_did_not_wait_makes_the_next_one_wait_longer() {
        let (pace, key) = (SlicePace::default(), ObjectKey::new("shop", "web"));
        let id = backend();
        let wait = || pace.backends_due_in(&key, None).get(&id).map(Duration::as_secs);
        pace.wrote(&key, None, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(5));
        advance(Duration::from_secs(2)).await;
        pace.wrote(&key, None, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(8));
        pace.wrote(&key, None, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(10), "and no more than one");
        advance(Duration::from_secs(10)).await;
        assert_eq!(wait(), None);
        pace.wrote(&key, None, std::slice::from_ref(&id));
        assert_eq!(wait(), Some(5));
    }

    /// How many of the objects may write at once.
    fn at_once(limiter: &NamespaceRateLimiter, namespace: &str, objects: std::ops::Range<usize>) -> usize {
        let key = |n| ObjectKey::new(namespace, format!("web-{n}"));
        objects.filter(|n| limiter.try_acquire(&key(*n))).count()
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_of_a_namespace_share_a_rate_and_keep_nobody_elses_waiting() {
        let (statuses, slices) = (StatusPace::default(), SlicePace::default());
        assert_eq!(at_once(&statuses.limiter, "shop", 0..200), 200);
        let (next, last) = (ObjectKey::new("shop", "web-200"), ObjectKey::new("shop", "web-2199"));
        assert_eq!(
            (statuses.limiter.try_acquire(&next), statuses.allowed_in(&next)),
            (false, Some(RATE_INTERVAL))
        );
        assert_eq!(at_once(&statuses.limiter, "other", 0..1), 1);
        assert_eq!(at_once(&slices.limiter, "shop", 0..201), 200, "statuses take nothing from slices");
        assert_eq!(slices.allowed_in(&next), Some(RATE_INTERVAL));

        assert_eq!(at_once(&statuses.limiter, "shop", 201..2200), 0);
        assert_eq!(statuses.allowed_in(&last), Some(Duration::from_secs(10)));
        advance(Duration::from_secs(1)).await;
        assert_eq!(at_once(&statuses.limiter, "shop", 2150..2250), 0, "nobody jumps the queue");
        assert_eq!(at_once(&statuses.limiter, "shop", 200..2200), 200, "as many as a second allows");
    }

    // traffic must not go on to a backend that died because somebody else had written the slice a moment ago
    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_does_not_go_to_the_end_of_the_line() {
        let pace = SlicePace::default();
        let (first, last) = (ObjectKey::new("shop", "web-0"), ObjectKey::new("shop", "web-2199"));
        at_once(&pace.limiter, "shop", 0..2200);
        assert!(pace.limiter.try_acquire(&first), "its first write failed");
        advance(Duration::from_secs(10)).await;
        at_once(&pace.limiter, "shop", 2200..4200);
        assert!(pace.limiter.try_acquire(&last), "its time has come");
        // the server gave up after a while
        advance(RESERVATION_LASTS * 2).await;
        pace.limiter.keep(&last);
        assert!(pace.limiter.try_acquire(&last), "its first write failed");
        pace.wrote(&last, None, &[]);
        assert!(!pace.limiter.try_acquire(&last), "a write that the server stored uses up the reservation");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_nobody_used_is_lost_and_a_namespace_that_was_silent_is_forgotten() {
        let limiter = NamespaceRateLimiter::default();
        assert_eq!(at_once(&limiter, "shop", 0..600), 200);
        advance(Duration::from_secs(60)).await;
        assert_eq!(at_once(&limiter, "shop", 200..600), 200, "and no more at once than ever");
        advance(Duration::from_secs(60)).await;
        for n in 0..600 {
            limiter.forget(&ObjectKey::new("shop", format!("web-{n}")));
        }
        let all = limiter.reservations();
        assert!(all.next.is_empty() && all.reserved.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_its_own_pace_and_for_the_rate_of_its_namespace() {
        let (pace, key) = (StatusPace::default(), ObjectKey::new("shop", "web-200"));
        at_once(&pace.limiter, "shop", 0..201);
        pace.wrote(&key);
        assert_eq!(pace.allowed_in(&key), Some(BACKEND_STATUS_APART));
        advance(BACKEND_STATUS_APART).await;
        assert_eq!((pace.allowed_in(&key), pace.limiter.try_acquire(&key)), (None, true));
    }
}
