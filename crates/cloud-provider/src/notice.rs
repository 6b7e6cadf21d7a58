//! What users are told, and that it is not told again and again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::{EventType, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

/// A standing notice is told again after this time, because Events expire after an hour.
const TELL_AGAIN: Duration = Duration::from_secs(30 * 60);

/// What was begun is told when it has not ended after this time. Mostly it has, and the end says all: a beginning of
/// each would be a fifth of all writes in a burst.
const AT_ONCE: Duration = Duration::from_secs(1);

/// One Event to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// Whether something is wrong.
    pub warning: bool,
    /// A CamelCase word for programs.
    pub reason: &'static str,
    /// What is so, about which object, and what to do next.
    pub message: String,
}

impl Notice {
    /// Something that went as wished.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: false, reason, message: message.into() }
    }

    /// Something that somebody should change.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, reason, message: message.into() }
    }
}

/// Tells each notice of an object once in a while, however often it is decided. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Crier {
    recorder: Recorder,
    memory: Arc<Mutex<Memory>>,
}

/// All by the UID of the object.
#[derive(Default)]
struct Memory {
    told: HashMap<String, HashMap<Notice, Instant>>,
    begun: HashMap<String, (Notice, Instant)>,
}

impl Crier {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder, memory: Arc::default() }
    }

    /// Tells `notice` unless it was told lately about the same object.
    pub(crate) fn tell(&self, about: &ObjectReference, notice: &Notice) {
        let uid = about.uid.clone().unwrap_or_default();
        let fresh = due(self.memory().told.entry(uid).or_default(), notice, Instant::now());
        if fresh {
            self.say(about, notice);
        }
    }

    /// Tells `notice` in any case: something happened, rather than being so.
    pub(crate) fn say(&self, about: &ObjectReference, notice: &Notice) {
        let kind = if notice.warning { EventType::Warning } else { EventType::Normal };
        let (name, reason) = (about.name.as_deref().unwrap_or_default(), notice.reason);
        let namespace = about.namespace.as_deref().unwrap_or_default();
        tracing::info!(namespace, name, reason, "{}", notice.message);
        self.recorder.publish(about, kind, notice.reason, &notice.message);
    }

    /// Something begins that mostly ends at once; `notice` is for when it does not.
    pub(crate) fn begin(&self, about: &ObjectReference, notice: Notice) {
        let uid = about.uid.clone().unwrap_or_default();
        self.memory().begin(uid, notice, Instant::now());
    }

    /// It has ended.
    pub(crate) fn end(&self, about: &ObjectReference) {
        self.memory().begun.remove(about.uid.as_deref().unwrap_or_default());
    }

    /// Tells what was begun and takes long; otherwise answers when to ask again.
    pub(crate) fn remind(&self, about: &ObjectReference) -> Option<Duration> {
        let (late, left) = self.memory().late(about.uid.as_deref().unwrap_or_default(), Instant::now());
        if let Some(notice) = late {
            self.tell(about, &notice);
        }
        left
    }

    /// The object is gone, or started afresh.
    pub(crate) fn forget(&self, uid: &str) {
        let mut memory = self.memory();
        memory.told.remove(uid);
        memory.begun.remove(uid);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no panic while remembering")
    }
}

impl Memory {
    fn begin(&mut self, uid: String, notice: Notice, now: Instant) {
        if self.begun.get(&uid).is_none_or(|(before, _)| *before != notice) {
            self.begun.insert(uid, (notice, now));
        }
    }

    /// What takes long and was not told yet; otherwise how long it may still take.
    fn late(&mut self, uid: &str, now: Instant) -> (Option<Notice>, Option<Duration>) {
        let Some((_, since)) = self.begun.get(uid) else { return (None, None) };
        match AT_ONCE.checked_sub(now - *since).filter(|left| !left.is_zero()) {
            None => (self.begun.remove(uid).map(|(notice, _)| notice), None),
            left => (None, left),
        }
    }
}

fn due(told: &mut HashMap<Notice, Instant>, notice: &Notice, now: Instant) -> bool {
    match told.get(notice) {
        Some(at) if now < *at + TELL_AGAIN => false,
        _ => {
            // sentences with changing parts must not pile up
            told.retain(|_, at| now < *at + TELL_AGAIN);
            told.insert(notice.clone(), now);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_beginning_is_told_once_when_its_end_is_long_in_coming() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        let beginning = || Notice::normal("EnsuringLoadBalancer", "Ensuring load balancer");
        memory.begin("a".into(), beginning(), start);
        assert_eq!(memory.late("a", start), (None, Some(AT_ONCE)));
        memory.begin("a".into(), beginning(), start + AT_ONCE / 2);
        assert_eq!(memory.late("a", start + AT_ONCE), (Some(beginning()), None));
        assert_eq!(memory.late("a", start + AT_ONCE), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_standing_notice_is_told_once_in_half_an_hour() {
        let (mut told, start) = (HashMap::new(), Instant::now());
        let notice = Notice::warning("Refused", "port 53 has no node port");
        assert!(due(&mut told, &notice, start));
        assert!(!due(&mut told, &notice, start + Duration::from_secs(60)));
        assert!(due(&mut told, &Notice::warning("Refused", "another"), start + Duration::from_secs(60)));
        assert!(due(&mut told, &notice, start + TELL_AGAIN));
        assert_eq!(told.len(), 2);
    }
}
