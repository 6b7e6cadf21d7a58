//! How long a watch waits after it broke, and whether the log says so.
//!
//! The wait grows while nothing comes of trying: a list that is refused must not be asked for every second, and a
//! reason that stays the same not be logged each time.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait; it doubles with each further failure.
const SHORTEST: Duration = Duration::from_millis(800);
/// A longer wait would hide that the server is back.
const LONGEST: Duration = Duration::from_secs(10);
/// A watch that held for so long was a good one, even if nothing happened in it.
const HELD: Duration = Duration::from_secs(60);
/// The same reason is said again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// The failures of a watch so far.
#[derive(Debug, Default)]
pub(super) struct WatchBackoff {
    failures: u32,
    broke: Option<Instant>,
    said: Option<(String, Instant)>,
}

impl WatchBackoff {
    /// A change came: the watch works.
    pub(super) fn works(&mut self) {
        *self = Self::default();
    }

    /// The watch broke. How long to wait, and whether the reason is news.
    pub(super) fn broke(&mut self, why: &str, now: Instant) -> (Duration, bool) {
        if self.broke.is_some_and(|before| now.duration_since(before) > HELD) {
            self.failures = 0;
        }
        let wait = (SHORTEST * (1 << self.failures.min(8))).min(LONGEST);
        self.failures += 1;
        self.broke = Some(now + wait);
        let is_news =
            self.said.as_ref().is_none_or(|(said, at)| said != why || now.duration_since(*at) > SAY_AGAIN);
        if is_news {
            self.said = Some((why.to_owned(), now));
        }
        (wait, is_news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_while_nothing_comes_and_begin_anew_when_something_does() {
        let (mut backoff, now) = (WatchBackoff::default(), Instant::now());
        let waits: Vec<_> = (0..6).map(|_| backoff.broke("no", now).0.as_millis()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 10_000, 10_000]);
        backoff.works();
        assert_eq!(backoff.broke("no", now).0, SHORTEST);
        assert_eq!(backoff.broke("no", now + HELD * 2).0, SHORTEST, "it held for a while");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_said_once_in_a_while_and_another_at_once() {
        let (mut backoff, now) = (WatchBackoff::default(), Instant::now());
        let mut is_news = |why, after: Duration| backoff.broke(why, now + after).1;
        assert!(is_news("forbidden", Duration::ZERO));
        assert!(!is_news("forbidden", HELD));
        assert!(is_news("unauthorized", HELD));
        assert!(!is_news("unauthorized", SAY_AGAIN));
        assert!(is_news("unauthorized", SAY_AGAIN * 2));
    }
}
