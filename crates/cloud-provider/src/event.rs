//! Events of the controllers, and the deduplicator that records each once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{PendingEvent, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

/// An Event that still holds is recorded again after this time, because Events expire after an hour.
const RECORD_AGAIN: Duration = Duration::from_secs(30 * 60);

/// The Event for the start of an operation is recorded when the operation has not ended after this time. Most end
/// earlier, and the Event for the end says all: one for each start would be a fifth of all writes in a burst.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// Records the Events of objects, each once in a while, however often a controller decides it. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EventDeduplicator {
    recorder: Recorder,
    memory: Arc<Mutex<Memory>>,
}

/// Everything by the UID of the object.
#[derive(Default)]
struct Memory {
    published: HashMap<String, HashMap<PendingEvent, Instant>>,
    /// The last outcome that was recorded.
    outcomes: HashMap<String, PendingEvent>,
    started: HashMap<String, (PendingEvent, Instant)>,
}

impl EventDeduplicator {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder, memory: Arc::default() }
    }

    /// Records `event` unless it was recorded for the same object within the last half hour.
    pub(crate) fn record(&self, about: &ObjectReference, event: &PendingEvent) {
        if is_due(self.memory().published.entry(uid(about)).or_default(), event, Instant::now()) {
            self.publish(about, event);
        }
    }

    /// Records the outcome of an operation unless it is the one that was recorded last for the same object.
    pub(crate) fn record_outcome(&self, about: &ObjectReference, outcome: &PendingEvent) {
        if self.memory().is_new_outcome(uid(about), outcome) {
            self.publish(about, outcome);
        }
    }

    /// An operation starts that mostly ends at once; `event` is for one that does not.
    pub(crate) fn start(&self, about: &ObjectReference, event: PendingEvent) {
        self.memory().start(uid(about), event, Instant::now());
    }

    /// The operation has ended.
    pub(crate) fn end(&self, about: &ObjectReference) {
        self.memory().started.remove(&uid(about));
    }

    /// Records the start of an operation that takes long; otherwise answers when to ask again.
    pub(crate) fn remind(&self, about: &ObjectReference) -> Option<Duration> {
        let (late, left) = self.memory().late(&uid(about), Instant::now());
        if let Some(event) = late {
            self.record(about, &event);
        }
        left
    }

    /// The object is gone, or its life with us starts afresh.
    pub(crate) fn forget(&self, uid: &str) {
        let mut memory = self.memory();
        memory.published.remove(uid);
        memory.outcomes.remove(uid);
        memory.started.remove(uid);
    }

    fn publish(&self, about: &ObjectReference, event: &PendingEvent) {
        let (name, reason) = (about.name.as_deref().unwrap_or_default(), event.reason);
        let namespace = about.namespace.as_deref().unwrap_or_default();
        tracing::info!(namespace, name, reason, "{}", event.message);
        self.recorder.publish(about, event);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no panic while remembering")
    }
}

fn uid(about: &ObjectReference) -> String {
    about.uid.clone().unwrap_or_default()
}

impl Memory {
    fn is_new_outcome(&mut self, uid: String, outcome: &PendingEvent) -> bool {
        self.outcomes.insert(uid, outcome.clone()).as_ref() != Some(outcome)
    }

    fn start(&mut self, uid: String, event: PendingEvent, now: Instant) {
        if self.started.get(&uid).is_none_or(|(before, _)| *before != event) {
            self.started.insert(uid, (event, now));
        }
    }

    /// The start of an operation that takes long and was not recorded; otherwise how long it may still take.
    fn late(&mut self, uid: &str, now: Instant) -> (Option<PendingEvent>, Option<Duration>) {
        let Some((_, since)) = self.started.get(uid) else { return (None, None) };
        match SLOW_AFTER.checked_sub(now - *since).filter(|left| !left.is_zero()) {
            None => (self.started.remove(uid).map(|(event, _)| event), None),
            left => (None, left),
        }
    }
}

fn is_due(published: &mut HashMap<PendingEvent, Instant>, event: &PendingEvent, now: Instant) -> bool {
    match published.get(event) {
        Some(at) if now < *at + RECORD_AGAIN => false,
        _ => {
            // messages with changing parts must not pile up
            published.retain(|_, at| now < *at + RECORD_AGAIN);
            published.insert(event.clone(), now);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_start_of_an_operation_is_recorded_once_when_its_end_is_long_in_coming() {
        let (mut memory, begin) = (Memory::default(), Instant::now());
        let event = || PendingEvent::normal("EnsuringLoadBalancer", "Ensuring load balancer");
        memory.start("a".into(), event(), begin);
        assert_eq!(memory.late("a", begin), (None, Some(SLOW_AFTER)));
        memory.start("a".into(), event(), begin + SLOW_AFTER / 2);
        assert_eq!(memory.late("a", begin + SLOW_AFTER), (Some(event()), None));
        assert_eq!(memory.late("a", begin + SLOW_AFTER), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_still_holds_is_recorded_once_in_half_an_hour() {
        let (mut published, start) = (HashMap::new(), Instant::now());
        let event = PendingEvent::warning("Refused", "port 53 has no node port");
        assert!(is_due(&mut published, &event, start));
        assert!(!is_due(&mut published, &event, start + Duration::from_secs(60)));
        let other = PendingEvent::warning("Refused", "another");
        assert!(is_due(&mut published, &other, start + Duration::from_secs(60)));
        assert!(is_due(&mut published, &event, start + RECORD_AGAIN));
        assert_eq!(published.len(), 2);
    }

    #[test]
    fn an_outcome_is_recorded_once_until_there_is_another() {
        let mut memory = Memory::default();
        let [first, second] = ["10.0.0.9", "10.0.0.7"].map(|ip| PendingEvent::normal("Ensured", ip));
        let news: Vec<_> = [&first, &first, &second, &first]
            .into_iter()
            .map(|outcome| memory.is_new_outcome("a".into(), outcome))
            .collect();
        assert_eq!(news, [true, false, true, true]);
        assert!(memory.is_new_outcome("b".into(), &first), "of another object");
    }
}
