//! The server's wall clock: it runs with tokio's clock, so a paused test has a paused server.

use jiff::{SignedDuration, Timestamp, fmt::strtime};
use tokio::time::Instant;

/// Wall-clock time from a start and tokio's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Timestamp,
    since: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the one place where a server learns the time of day")]
    pub(crate) fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.start.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// The time as objects carry it: in whole seconds.
    pub(crate) fn text(&self) -> String {
        strtime::format("%Y-%m-%dT%H:%M:%SZ", &self.now().to_zoned(jiff::tz::TimeZone::UTC))
            .expect("the format is a constant that fits a timestamp")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_runs_with_tokios() {
        let clock = Clock::starting_at("2026-01-02T03:04:05.9Z".parse().unwrap());
        assert_eq!(clock.text(), "2026-01-02T03:04:05Z");
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(clock.text(), "2026-01-02T04:04:05Z");
    }
}
