//! The time of day as an argument.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock: the machine's, or one that goes at the pace of tokio's clock, so that a test which pauses that one
/// also stops this one.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    /// Asked each time: the machine's time is corrected while a program runs, and stands still while it sleeps.
    Wall(fn() -> Timestamp),
    Since {
        base: Timestamp,
        at: Instant,
    },
}

impl Clock {
    /// The machine's time.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "here time becomes an argument")]
        Self(Source::Wall(Timestamp::now))
    }

    /// A clock that shows `base` now, and goes on as tokio's does.
    pub fn starting_at(base: Timestamp) -> Self {
        Self(Source::Since { base, at: Instant::now() })
    }

    pub fn now(&self) -> Timestamp {
        match self.0 {
            Source::Wall(read) => read(),
            Source::Since { base, at } => {
                let elapsed = SignedDuration::try_from(at.elapsed()).unwrap_or(SignedDuration::MAX);
                base.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// Now, as the text that conditions carry: RFC 3339 in UTC with whole seconds.
    pub fn now_text(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicI64, Ordering},
        time::Duration,
    };

    use super::*;

    static SECONDS: AtomicI64 = AtomicI64::new(0);

    // an NTP step, or a virtual machine that was paused, shifted every time that was written from then on
    #[test]
    fn a_corrected_wall_clock_is_followed() {
        let clock = Clock(Source::Wall(|| {
            Timestamp::from_second(SECONDS.load(Ordering::Relaxed)).expect("seconds of a test")
        }));
        assert_eq!(clock.now_text(), "1970-01-01T00:00:00Z");
        SECONDS.store(3600, Ordering::Relaxed);
        assert_eq!(clock.now_text(), "1970-01-01T01:00:00Z");
    }

    #[tokio::test(start_paused = true)]
    async fn a_test_that_pauses_tokios_clock_stops_this_one() {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(clock.now_text(), "2026-01-01T00:01:00Z");
    }
}
