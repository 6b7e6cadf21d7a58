//! The time of day as an argument.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock that goes at the pace of tokio's clock, so that a test which pauses that one also stops this one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base: Timestamp,
    at: Instant,
}

impl Clock {
    /// The machine's time.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "here time becomes an argument")]
        Self::starting_at(Timestamp::now())
    }

    /// A clock that shows `base` now.
    pub fn starting_at(base: Timestamp) -> Self {
        Self { base, at: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.at.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// Now, as the text that conditions carry: RFC 3339 in UTC with whole seconds.
    pub fn now_text(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}
