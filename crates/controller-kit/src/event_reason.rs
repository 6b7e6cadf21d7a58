//! What the reasons of Events mean, for the reference of Events: tables that stand beside the code that gives the reasons.

use crate::EventType;

/// A reason of Events.
#[derive(Clone, Copy, Debug)]
pub struct EventReason {
    pub reason: &'static str,
    pub event_types: &'static [EventType],
    /// Kinds of the objects that it is about.
    pub about: &'static [&'static str],
    /// What is so.
    pub meaning: &'static str,
    /// What helps; nothing where nothing is wrong.
    pub help: &'static str,
}

impl EventReason {
    /// Something went as it should, or waits for what comes by itself.
    #[must_use]
    pub const fn normal(
        reason: &'static str,
        about: &'static [&'static str],
        meaning: &'static str,
        help: &'static str,
    ) -> Self {
        Self { reason, event_types: &[EventType::Normal], about, meaning, help }
    }

    /// Somebody should change something.
    #[must_use]
    pub const fn warning(
        reason: &'static str,
        about: &'static [&'static str],
        meaning: &'static str,
        help: &'static str,
    ) -> Self {
        Self { event_types: &[EventType::Warning], ..Self::normal(reason, about, meaning, help) }
    }

    /// Normal or a warning, as the case may be.
    #[must_use]
    pub const fn either(
        reason: &'static str,
        about: &'static [&'static str],
        meaning: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            event_types: &[EventType::Normal, EventType::Warning],
            ..Self::normal(reason, about, meaning, help)
        }
    }
}

/// The reasons that a component gives.
#[derive(Clone, Copy, Debug)]
pub struct EventReasons {
    /// `source.component` of the Events, the column FROM of `kubectl describe`.
    pub component: &'static str,
    pub reasons: &'static [EventReason],
}
