//! A registration or a secret that the API server forbids: tried ever less often, and told once. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// How long after the first write that was forbidden, the second, and every later one the next is tried. The first is short:
/// a role that was just made takes effect a moment later.
const FORBIDDEN_AGAIN: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_mins(1), Duration::from_mins(10)];

/// The writes of one registration, or of secrets, that were forbidden since one was not.
#[derive(Debug, Default)]
pub(super) struct Refused {
    times: usize,
    again: Option<Instant>,
}

impl Refused {
    /// A write was forbidden. Whether somebody has to hear of it.
    pub(super) fn forbidden(&mut self, now: Instant) -> bool {
        let last = FORBIDDEN_AGAIN.len() - 1;
        self.again = Some(now + FORBIDDEN_AGAIN[self.times.min(last)]);
        self.times = (self.times + 1).min(FORBIDDEN_AGAIN.len());
        self.times == 1
    }

    /// Rights have changed: it may be tried at once.
    pub(super) fn try_now(&mut self) {
        self.again = None;
    }

    /// When to try again, while that is to come.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        self.again.filter(|again| *again > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_forbidden_is_tried_ever_less_often_and_told_once() {
        let (mut refused, mut now) = (Refused::default(), Instant::now());
        assert_eq!(refused.until(now), None);
        for (seconds, told) in [(5, true), (60, false), (600, false), (600, false)] {
            assert_eq!(refused.forbidden(now), told);
            let again = now + Duration::from_secs(seconds);
            assert_eq!(refused.until(now), Some(again));
            now = again;
            assert_eq!(refused.until(now), None);
        }
        refused.forbidden(now);
        refused.try_now();
        assert_eq!((refused.until(now), refused.forbidden(now)), (None, false));
        refused = Refused::default();
        assert!(refused.forbidden(now));
    }
}
