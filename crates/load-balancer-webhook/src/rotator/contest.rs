//! Two keepers of one registration: the Go program's while it is rolled back, or a replica that has an address of its own.
//!
//! Each would put its own certificate back whenever it sees the other's, in turn and for ever, and each such write of a
//! definition makes the API server drop what it knows of the objects. So what another keeper wrote is replaced once; what it
//! writes again is left for a while. A registration that trusts nobody is no keeper's, and is always put right. Pure.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

/// How long the registration, or the certificate in a secret, of another keeper is left that came back.
pub(super) const LEFT_FOR: Duration = Duration::from_mins(10);

/// What was replaced last.
#[derive(Debug, Default)]
pub(super) struct Contest(Option<Replaced>);

#[derive(Debug)]
struct Replaced {
    theirs: Value,
    ours: Value,
    at: Instant,
    /// It came back.
    left: bool,
}

impl Contest {
    /// Whether to leave what is there, and whether this is new.
    pub(super) fn leave(&mut self, theirs: &Value, ours: &Value, now: Instant) -> Option<Told> {
        let replaced = self.0.as_mut()?;
        let same = replaced.theirs == *theirs && replaced.ours == *ours;
        if !same || now >= replaced.at + LEFT_FOR {
            return None;
        }
        let told = if replaced.left { Told::Before } else { Told::Now };
        replaced.left = true;
        Some(told)
    }

    /// Another keeper's registration was replaced.
    pub(super) fn replaced(&mut self, theirs: Value, ours: Value, now: Instant) {
        let is_keepers = theirs["caBundle"].as_str().is_some_and(|bundle| !bundle.is_empty());
        self.0 = (is_keepers && theirs != ours).then_some(Replaced { theirs, ours, at: now, left: false });
    }

    /// When to try again what is left, while that is to come: another process may have ended the contest, and then nothing is
    /// written here that would forget it.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let left = self.0.as_ref().filter(|replaced| replaced.left)?;
        Some(left.at + LEFT_FOR).filter(|until| *until > now)
    }
}

/// Whether somebody heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Now,
    Before,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn trusting(bundle: &str) -> Value {
        json!({"service": {"name": "webhook"}, "caBundle": bundle})
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_keeper_writes_again_is_left_for_ten_minutes() {
        let (mut contest, begun) = (Contest::default(), Instant::now());
        let (theirs, ours) = (trusting("go"), trusting("ours"));
        assert_eq!(contest.leave(&theirs, &ours, begun), None);
        contest.replaced(theirs.clone(), ours.clone(), begun);
        assert_eq!(contest.until(begun), None);
        assert_eq!(contest.leave(&theirs, &ours, begun), Some(Told::Now));
        assert_eq!(contest.leave(&theirs, &ours, begun), Some(Told::Before));
        assert_eq!(contest.until(begun), Some(begun + LEFT_FOR));
        // a certificate of ours that is new is worth a write
        assert_eq!(contest.leave(&theirs, &trusting("renewed"), begun), None);
        assert_eq!(contest.leave(&theirs, &ours, begun + LEFT_FOR), None);
    }

    #[tokio::test(start_paused = true)]
    async fn ten_minutes_after_a_contest_that_another_replica_won_nobody_is_busy() {
        let (mut contest, begun) = (Contest::default(), Instant::now());
        contest.replaced(trusting("go"), trusting("ours"), begun);
        contest.leave(&trusting("go"), &trusting("ours"), begun);
        for later in [LEFT_FOR, LEFT_FOR * 2] {
            assert_eq!(contest.until(begun + later), None);
        }
    }

    #[rstest]
    #[case::nobody(json!(null))]
    #[case::no_certificate(json!({"service": {"name": "webhook"}}))]
    #[case::emptied(trusting(""))]
    #[tokio::test(start_paused = true)]
    async fn a_registration_that_trusts_nobody_is_put_right_each_time(#[case] theirs: Value) {
        let (mut contest, now) = (Contest::default(), Instant::now());
        contest.replaced(theirs.clone(), trusting("ours"), now);
        assert_eq!(contest.leave(&theirs, &trusting("ours"), now), None);
    }
}
