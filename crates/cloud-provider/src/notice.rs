//! What users are told, and that it is not told again and again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use controller_kit::{EventKind, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

/// A standing notice is told again after this time, because Events expire after an hour.
const TELL_AGAIN: Duration = Duration::from_secs(30 * 60);

/// Reasons of Events that say what is about to be done.
const BEGINNINGS: [&str; 2] = ["EnsuringLoadBalancer", "DeletingLoadBalancer"];

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
    told: Arc<Mutex<Told>>,
}

type Told = HashMap<String, HashMap<Notice, Instant>>;

impl Crier {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder, told: Arc::default() }
    }

    /// Tells `notice` unless it was told lately about the same object.
    pub(crate) fn tell(&self, about: &ObjectReference, notice: &Notice) {
        let uid = about.uid.clone().unwrap_or_default();
        let fresh = {
            let mut told = self.told.lock().expect("no panic while remembering");
            due(told.entry(uid).or_default(), notice, Instant::now())
        };
        if fresh {
            self.say(about, notice);
        }
    }

    /// Tells `notice` in any case: something happened, rather than being so.
    pub(crate) fn say(&self, about: &ObjectReference, notice: &Notice) {
        let kind = if notice.warning { EventKind::Warning } else { EventKind::Normal };
        let (name, reason) = (about.name.as_deref().unwrap_or_default(), notice.reason);
        let namespace = about.namespace.as_deref().unwrap_or_default();
        // of a Service's life the log has what came of it: an address, an end, and what is wrong
        if BEGINNINGS.contains(&reason) {
            tracing::debug!(namespace, name, reason, "{}", notice.message);
        } else {
            tracing::info!(namespace, name, reason, "{}", notice.message);
        }
        self.recorder.publish(about, kind, notice.reason, &notice.message);
    }

    /// The object is gone, or started afresh.
    pub(crate) fn forget(&self, uid: &str) {
        self.told.lock().expect("no panic while remembering").remove(uid);
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
