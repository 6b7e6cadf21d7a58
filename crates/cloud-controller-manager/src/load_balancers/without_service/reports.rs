//! The pace of the reports. Anybody who may write an object in our namespace of Harvester can make it look as if its
//! Service were gone, a thousand times, and change it without end.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use controller_kit::ObjectKey;
use tokio::time::Instant;

/// So many objects are looked at at once …
const BURST: u32 = 25;
/// … and one more in each such period.
const REFILL: Duration = Duration::from_secs(10);
/// An object is reported once within this time, whatever becomes of it.
const AGAIN: Duration = Duration::from_secs(600);

/// What was reported lately.
#[derive(Debug)]
pub(super) struct Reports(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Bounded by the pace.
    of: HashMap<ObjectKey, Report>,
    left: u32,
    since: Instant,
}

#[derive(Debug)]
struct Report {
    at: Instant,
    is_told: bool,
    is_done: bool,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { of: HashMap::new(), left: BURST, since: Instant::now() }))
    }

    /// How long a look at this object has to wait; `None`: it is due, and counts.
    pub(super) fn wait(&self, object: &ObjectKey) -> Option<Duration> {
        let (mut state, now) = (self.state(), Instant::now());
        state.of.retain(|_, report| now < report.at + AGAIN);
        if let Some(report) = state.of.get(object) {
            return report.is_done.then(|| report.at + AGAIN - now);
        }
        let periods = now.duration_since(state.since).as_secs() / REFILL.as_secs();
        let refill = u32::try_from(periods).unwrap_or(BURST);
        if refill > 0 {
            state.left = state.left.saturating_add(refill).min(BURST);
            state.since += REFILL * refill;
        }
        if state.left == 0 {
            return Some(state.since + REFILL - now);
        }
        state.left -= 1;
        state.of.insert(object.clone(), Report { at: now, is_told: false, is_done: false });
        None
    }

    /// Whether this is the first time that the object at which we look is told of.
    pub(super) fn tell(&self, object: &ObjectKey) -> bool {
        let mut state = self.state();
        state.of.get_mut(object).is_some_and(|report| !std::mem::replace(&mut report.is_told, true))
    }

    /// Nothing is left to do about the object.
    pub(super) fn done(&self, object: &ObjectKey) {
        if let Some(report) = self.state().of.get_mut(object) {
            report.is_done = true;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while counting")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_object_is_reported_once_in_ten_minutes_and_all_of_them_at_a_pace() {
        let reports = Reports::new();
        let key = |n: u32| ObjectKey::new("team-a", n.to_string());
        let reported = || {
            (0..1_000)
                .filter(|n| {
                    let is_due = reports.wait(&key(*n)).is_none();
                    if is_due {
                        assert!(reports.tell(&key(*n)));
                        assert!(
                            reports.wait(&key(*n)).is_none() && !reports.tell(&key(*n)),
                            "the same report"
                        );
                        reports.done(&key(*n));
                    }
                    is_due
                })
                .count()
        };
        assert_eq!([reported(), reported()], [BURST as usize, 0]);
        tokio::time::advance(REFILL).await;
        assert_eq!(reported(), 1);
        assert!(reports.wait(&key(0)).is_some_and(|rest| rest < AGAIN));
        tokio::time::advance(AGAIN).await;
        assert_eq!(reported(), BURST as usize);
        assert_eq!(reports.state().of.len(), BURST as usize);
    }
}
