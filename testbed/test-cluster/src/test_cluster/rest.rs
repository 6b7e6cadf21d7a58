//! When a cluster has come to rest.

use std::time::Duration;

/// Nothing has happened for so long: it will stay so, whatever the parts are doing.
pub(super) const SILENCE: Duration = Duration::from_millis(500);
/// Enough for kube-controller-manager to begin with what it has seen. The parts themselves are asked, not waited for.
const PAUSE: Duration = Duration::from_millis(50);

/// What one look at the clusters says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Something goes on.
    Moving,
    /// No part has anything to do: it rests if it has seen everything.
    Idle,
    /// Nothing has happened for [`SILENCE`].
    Quiet,
}

/// The looks of one wait.
#[derive(Debug)]
pub(super) struct Rest {
    movements: u64,
    quiet: Duration,
    /// Nothing has moved since the last rest: somebody waits for time to pass, and only [`SILENCE`] passes it.
    unmoved: bool,
}

impl Rest {
    /// `rested_at`: how far things had moved when they last came to rest.
    pub(super) fn new(movements: u64, rested_at: Option<u64>) -> Self {
        Self { movements, quiet: Duration::ZERO, unmoved: rested_at == Some(movements) }
    }

    /// A look `since` the last one; `idle`: no request is in flight, no queue works.
    pub(super) fn look(&mut self, movements: u64, since: Duration, idle: bool) -> Look {
        if movements != self.movements {
            *self = Self { movements, quiet: Duration::ZERO, unmoved: false };
        } else if since.is_zero() {
            self.quiet = Duration::ZERO;
        } else {
            self.quiet += since;
        }
        match self.quiet {
            quiet if quiet >= SILENCE => Look::Quiet,
            quiet if quiet >= PAUSE && idle && !self.unmoved => Look::Idle,
            _ => Look::Moving,
        }
    }

    /// Whether nothing has moved since the last look.
    pub(super) fn is_same(&self, movements: u64) -> bool {
        self.movements == movements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Looks at `movements` until the wait says something else than that things move.
    fn looks(rest: &mut Rest, movements: u64, idle: bool) -> (usize, Look) {
        (1..)
            .map(|looks| (looks, rest.look(movements, STEP, idle)))
            .find(|(_, look)| *look != Look::Moving)
            .unwrap()
    }

    #[test]
    fn idle_parts_rest_after_a_pause_and_busy_ones_after_a_silence() {
        assert_eq!(looks(&mut Rest::new(7, None), 7, true), (5, Look::Idle));
        assert_eq!(looks(&mut Rest::new(7, Some(6)), 7, true), (5, Look::Idle));
        assert_eq!(looks(&mut Rest::new(7, None), 7, false), (50, Look::Quiet));
    }

    #[test]
    fn what_moves_begins_the_wait_again() {
        let mut rest = Rest::new(7, None);
        for _ in 0..4 {
            assert_eq!(rest.look(7, STEP, true), Look::Moving);
        }
        assert_eq!(rest.look(8, STEP, true), Look::Moving);
        assert_eq!(looks(&mut rest, 8, true), (5, Look::Idle));
        assert!(rest.is_same(8) && !rest.is_same(9));
    }

    #[test]
    fn a_look_that_came_late_counts_for_nothing() {
        let mut rest = Rest::new(7, None);
        rest.look(7, STEP * 4, true);
        rest.look(7, Duration::ZERO, true);
        assert_eq!(looks(&mut rest, 7, true), (5, Look::Idle));
    }

    #[test]
    fn whoever_waits_again_without_a_change_waits_for_time_to_pass() {
        assert_eq!(looks(&mut Rest::new(7, Some(7)), 7, true), (50, Look::Quiet));
        let mut rest = Rest::new(7, Some(7));
        assert_eq!(rest.look(8, STEP, true), Look::Moving);
        assert_eq!(looks(&mut rest, 8, true), (5, Look::Idle));
    }
}
