//! Changes that come together.

use std::time::Duration;

use tokio::time::Instant;

use super::JOIN;

/// Joins changes of instances: the first is acted on at once, those of the time after it together at its end. A Node whose
/// instance is the last to come waits for nothing, and a pool that changes instance by instance is not looked at for each.
#[derive(Debug, Default)]
pub(super) struct Joined {
    until: Option<Instant>,
}

impl Joined {
    /// How long a change that comes now has to wait.
    pub(super) fn delay(&mut self, now: Instant) -> Duration {
        match self.until {
            Some(until) if now < until => until - now,
            _ => {
                self.until = Some(now + JOIN);
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_of_an_instance_is_acted_on_at_once_and_those_that_follow_together() {
        let (mut joined, first) = (Joined::default(), Instant::now());
        let mut due = |after: u64| {
            let at = Duration::from_millis(after);
            (at + joined.delay(first + at)).as_millis()
        };
        assert_eq!([0, 1, 150, 199].map(&mut due), [0, 200, 200, 200]);
        assert_eq!([200, 201, 399, 5_000].map(&mut due), [200, 400, 400, 5_000]);
    }
}
