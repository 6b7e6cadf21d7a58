//! Writes of Services and slices that the server refused: the same write for the same object is sent again later and
//! later, and another one at once. And Services of somebody else, which stand in the way of any write.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{ObjectKey, RawObject};
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;
use tokio::time::Instant;

use super::decide::UNWATCHED_AGAIN;

/// The longest wait until a refused write is sent again.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Refusal {
    /// A digest of the write and of the object that it was for, without what the server changes by itself.
    asked: u64,
    why: String,
    wait: Duration,
    until: Instant,
}

/// What stands in the way of writes.
#[derive(Debug, Default)]
pub(crate) struct RefusedWrites {
    /// By object and kind of the refused write.
    writes: Mutex<HashMap<ObjectKey, HashMap<&'static str, Refusal>>>,
    strangers: Mutex<HashMap<ObjectKey, Stranger>>,
}

/// A Service of an object's name that is somebody else's, and when it was read: no watch tells of it.
#[derive(Debug)]
struct Stranger {
    service: Arc<RawObject<Service>>,
    read: Instant,
}

impl RefusedWrites {
    /// The server's words, while it is too early to send the write again.
    pub(crate) fn standing(
        &self,
        key: &ObjectKey,
        kind: &'static str,
        write: &Value,
        lb: Option<&RawObject<LoadBalancer>>,
    ) -> Option<String> {
        let all = self.all();
        let refusal = all.get(key)?.get(kind)?;
        let stands = refusal.until > Instant::now() && refusal.asked == asked(write, lb);
        stands.then(|| refusal.why.clone())
    }

    /// The server refused the write. After the same refusal the wait doubles, if it is `for_good`.
    pub(crate) fn note(
        &self,
        key: &ObjectKey,
        kind: &'static str,
        write: &Value,
        lb: Option<&RawObject<LoadBalancer>>,
        why: &str,
        for_good: bool,
    ) {
        let asked = asked(write, lb);
        let mut all = self.all();
        let of_object = all.entry(key.clone()).or_default();
        let before = of_object.get(kind).filter(|before| for_good && before.asked == asked);
        let wait = before.map_or(UNWATCHED_AGAIN, |before| (before.wait * 2).min(LONGEST_WAIT));
        of_object.insert(kind, Refusal { asked, why: why.to_owned(), wait, until: Instant::now() + wait });
    }

    /// The time until the refused write of this kind may be sent again.
    pub(crate) fn again(&self, key: &ObjectKey, kind: &'static str) -> Option<Duration> {
        let until = self.all().get(key)?.get(kind)?.until;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// The server stored a write of this kind.
    pub(crate) fn stored(&self, key: &ObjectKey, kind: &'static str) {
        let mut all = self.all();
        if let Some(of_object) = all.get_mut(key) {
            of_object.remove(kind);
            if of_object.is_empty() {
                all.remove(key);
            }
        }
    }

    /// The Service of somebody else that was read a short while ago: others' changes may have the object looked at often.
    pub(crate) fn stranger(&self, key: &ObjectKey) -> Option<Arc<RawObject<Service>>> {
        let all = self.strangers();
        let known = all.get(key).filter(|known| known.read.elapsed() < UNWATCHED_AGAIN)?;
        Some(known.service.clone())
    }

    /// The time until that Service is read again.
    pub(crate) fn stranger_again(&self, key: &ObjectKey) -> Option<Duration> {
        let read = self.strangers().get(key)?.read;
        UNWATCHED_AGAIN.checked_sub(read.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// The Service of this name was read: somebody else's, or none.
    pub(crate) fn note_stranger(&self, key: &ObjectKey, service: Option<Arc<RawObject<Service>>>) {
        let mut all = self.strangers();
        match service {
            Some(service) => drop(all.insert(key.clone(), Stranger { service, read: Instant::now() })),
            None => drop(all.remove(key)),
        }
    }

    /// The object is gone.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.all().remove(key);
        self.strangers().remove(key);
    }

    fn strangers(&self) -> MutexGuard<'_, HashMap<ObjectKey, Stranger>> {
        self.strangers.lock().expect("no panic while the strangers are locked")
    }

    fn all(&self) -> MutexGuard<'_, HashMap<ObjectKey, HashMap<&'static str, Refusal>>> {
        self.writes.lock().expect("no panic while the refusals are locked")
    }
}

fn asked(write: &Value, lb: Option<&RawObject<LoadBalancer>>) -> u64 {
    let lb = lb.map(RawObject::json).unwrap_or_default();
    let mut digest = DefaultHasher::new();
    for mut json in [write.clone(), lb] {
        if let Some(object) = json.as_object_mut() {
            object.remove("status");
        }
        if let Some(metadata) = json.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            // our own writes of the status change both
            metadata.remove("resourceVersion");
            metadata.remove("generation");
        }
        json.to_string().hash(&mut digest);
    }
    digest.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lb(listener: &str, version: &str) -> RawObject<LoadBalancer> {
        RawObject::from_json(json!({"metadata": {"name": "web", "resourceVersion": version},
            "spec": {"listeners": [{"name": listener, "port": 80, "protocol": "TCP", "backendPort": 80}]},
            "status": {"address": version}}))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_write_waits_twice_as_long_after_each_refusal_and_another_one_not_at_all() {
        let (refused, key) = (RefusedWrites::default(), ObjectKey::new("shop", "web"));
        let write = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer"}});
        let mut waits = Vec::new();
        for version in ["1", "2", "3", "4", "5", "6"] {
            let lb = lb("A_B", version);
            assert_eq!(refused.standing(&key, "Service", &write, Some(&lb)), None);
            refused.note(&key, "Service", &write, Some(&lb), "bad name", true);
            assert_eq!(refused.standing(&key, "Service", &write, Some(&lb)).as_deref(), Some("bad name"));
            let wait = refused.again(&key, "Service").unwrap();
            waits.push(wait.as_secs());
            tokio::time::advance(wait).await;
        }
        assert_eq!(waits, [60, 120, 240, 480, 600, 600]);

        let old = lb("A_B", "7");
        refused.note(&key, "Service", &write, Some(&old), "bad name", true);
        assert_eq!(refused.standing(&key, "Service", &write, Some(&lb("http", "8"))), None, "an event");
        assert_eq!(refused.standing(&key, "Service", &json!({}), Some(&old)), None, "another write");
        assert_eq!(refused.standing(&key, "EndpointSlice", &write, Some(&old)), None);
        refused.stored(&key, "Service");
        assert!(refused.all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_or_a_quota_is_tried_again_every_minute_whatever_else_was_refused() {
        let (refused, key) = (RefusedWrites::default(), ObjectKey::new("shop", "web"));
        let (service, slice) = (json!({"kind": "Service"}), json!({"kind": "EndpointSlice"}));
        refused.note(&key, "EndpointSlice", &slice, None, "bad port", true);
        for _ in 0..5 {
            refused.note(&key, "Service", &service, None, "exceeded quota", false);
            assert_eq!(refused.again(&key, "Service"), Some(UNWATCHED_AGAIN));
            tokio::time::sleep(UNWATCHED_AGAIN).await;
        }
        // a refusal that is over and that nobody has repeated makes nobody look at once, again and again
        refused.note(&key, "Service", &service, None, "exceeded quota", false);
        assert_eq!(refused.again(&key, "EndpointSlice"), Some(Duration::ZERO));
        assert_eq!(refused.again(&key, "Service"), Some(UNWATCHED_AGAIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_strangers_service_is_read_again_a_minute_after_it_was_read_however_often_the_object_is_looked_at()
     {
        let (refused, key) = (RefusedWrites::default(), ObjectKey::new("shop", "web"));
        assert_eq!(refused.stranger_again(&key), None);
        let service = RawObject::from_json(json!({"metadata": {"name": "web"}})).unwrap();
        refused.note_stranger(&key, Some(Arc::new(service)));
        for left in [60, 20] {
            assert!(refused.stranger(&key).is_some());
            assert_eq!(refused.stranger_again(&key), Some(Duration::from_secs(left)));
            tokio::time::advance(Duration::from_secs(left.min(40))).await;
        }
        assert!(refused.stranger(&key).is_none());
        assert_eq!(refused.stranger_again(&key), None, "it was read, and is nobody's");
    }
}
