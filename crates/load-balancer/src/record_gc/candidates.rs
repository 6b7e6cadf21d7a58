//! Records that look abandoned, and since when: pure.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

use crate::reuse::InUse;

/// A record must look abandoned for so long before it is read afresh.
pub(super) const ABANDONED_AFTER: Duration = Duration::from_secs(30);

/// The longest pause before another look at a record that stays.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// A record that looked abandoned for [`ABANDONED_AFTER`], as fresh reads show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The pool is gone, or gives the address to nobody or to another holder.
    NoRecord,
    /// This other program made the record: nobody looked further.
    Foreign(String),
    Record {
        holder_exists: bool,
        /// Whether something may still announce the address.
        reuse: Result<(), InUse>,
    },
}

/// The decision about the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is not abandoned, or is no record any more.
    Keep,
    /// This other program made it.
    Foreign(String),
    /// Something may still announce the address.
    InUse(InUse),
    Release,
}

/// Decides.
pub(super) fn decide(seen: Seen) -> Outcome {
    match seen {
        Seen::NoRecord | Seen::Record { holder_exists: true, .. } => Outcome::Keep,
        Seen::Foreign(manager) => Outcome::Foreign(manager),
        Seen::Record { reuse: Err(why), .. } => Outcome::InUse(why),
        Seen::Record { reuse: Ok(()), .. } => Outcome::Release,
    }
}

/// The result of one look at the records of a pool.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// To be read afresh now, and released if nothing has changed.
    pub(super) due: Vec<(IpAddr, String)>,
    /// When to look again.
    pub(super) again: Option<Duration>,
}

/// The records of one pool that look abandoned.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    waiting: HashMap<(IpAddr, String), Waiting>,
    foreign: HashSet<(IpAddr, String)>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// It has looked abandoned since then.
    since: Instant,
    due: Instant,
}

impl Candidates {
    /// Takes in what looks abandoned now; what does not any more is forgotten.
    pub(super) fn look(&mut self, abandoned: Vec<(IpAddr, String)>, now: Instant) -> Look {
        let seen: HashSet<_> = abandoned.into_iter().collect();
        self.waiting.retain(|record, _| seen.contains(record));
        self.foreign.retain(|record| seen.contains(record));
        let mut look = Look::default();
        for record in seen.into_iter().filter(|record| !self.foreign.contains(record)) {
            let new = Waiting { since: now, due: now + ABANDONED_AFTER };
            let due = self.waiting.entry(record.clone()).or_insert(new).due;
            if due <= now {
                look.due.push(record);
            } else {
                let left = due - now;
                look.again = Some(look.again.map_or(left, |again| again.min(left)));
            }
        }
        look.due.sort();
        look
    }

    /// The record stays for now. Returns the pause before the next look, which grows with the time that has passed.
    pub(super) fn again(&mut self, address: IpAddr, holder: &str, now: Instant) -> Duration {
        let new = Waiting { since: now, due: now };
        let waiting = self.waiting.entry((address, holder.to_owned())).or_insert(new);
        let pause = (now.duration_since(waiting.since) / 4).clamp(ABANDONED_AFTER, LONGEST_PAUSE);
        waiting.due = now + pause;
        pause
    }

    /// The record is another program's.
    pub(super) fn foreign(&mut self, address: IpAddr, holder: &str) {
        self.foreign.insert((address, holder.to_owned()));
    }

    pub(super) fn foreign_records(&self) -> usize {
        self.foreign.len()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn seen(holder_exists: bool, reuse: Result<(), InUse>) -> Seen {
        Seen::Record { holder_exists, reuse }
    }

    #[rstest]
    #[case::not_recorded_any_more(Seen::NoRecord, Outcome::Keep)]
    #[case::its_load_balancer_is_there(seen(true, Ok(())), Outcome::Keep)]
    #[case::another_programs(Seen::Foreign("capi".to_owned()), Outcome::Foreign("capi".to_owned()))]
    #[case::still_announced(seen(false, Err(InUse::ByService)), Outcome::InUse(InUse::ByService))]
    #[case::abandoned(seen(false, Ok(())), Outcome::Release)]
    fn a_record_is_released_when_nobody_holds_it_and_nothing_announces_it(
        #[case] seen: Seen,
        #[case] expected: Outcome,
    ) {
        assert_eq!(decide(seen), expected);
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_due_when_it_looked_abandoned_for_thirty_seconds() {
        let (mut candidates, start) = (Candidates::default(), Instant::now());
        let record = |last| (ip(last), "shop/web".to_owned());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            candidates.look(vec![record(1)], at(0)),
            Look { due: vec![], again: Some(ABANDONED_AFTER) }
        );
        let look = candidates.look(vec![record(1), record(2)], at(20));
        assert_eq!(look, Look { due: vec![], again: Some(Duration::from_secs(10)) });
        let look = candidates.look(vec![record(1), record(2)], at(30));
        assert_eq!(look, Look { due: vec![record(1)], again: Some(Duration::from_secs(20)) });
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_was_in_use_in_between_begins_anew() {
        let (mut candidates, start) = (Candidates::default(), Instant::now());
        let record = vec![(ip(1), "shop/web".to_owned())];
        candidates.look(record.clone(), start);
        assert_eq!(candidates.look(vec![], start + ABANDONED_AFTER), Look::default());
        assert_eq!(candidates.look(record, start + ABANDONED_AFTER * 2).due, vec![]);
    }

    // admission that reverts our release changes the pool, and each change asks for another look
    #[tokio::test(start_paused = true)]
    async fn a_release_that_did_not_take_is_not_tried_with_every_change_of_the_pool() {
        let (mut candidates, start) = (Candidates::default(), Instant::now());
        let record = vec![(ip(1), "shop/web".to_owned())];
        candidates.look(record.clone(), start);
        assert_eq!(candidates.look(record.clone(), start + ABANDONED_AFTER).due, record);
        candidates.again(ip(1), "shop/web", start + ABANDONED_AFTER);
        let look = candidates.look(record.clone(), start + ABANDONED_AFTER);
        assert_eq!(look, Look { due: vec![], again: Some(ABANDONED_AFTER) });
        assert_eq!(candidates.look(record.clone(), start + ABANDONED_AFTER * 2).due, record);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_stays_is_read_after_a_quarter_of_its_time_and_at_least_every_ten_minutes() {
        let (mut candidates, mut now) = (Candidates::default(), Instant::now());
        let record = vec![(ip(1), "shop/web".to_owned())];
        let (mut pause, mut pauses) = (ABANDONED_AFTER, Vec::new());
        assert_eq!(candidates.look(record.clone(), now).again, Some(pause));
        for _ in 0..20 {
            now += pause;
            assert_eq!(candidates.look(record.clone(), now).due, record);
            pause = candidates.again(ip(1), "shop/web", now);
            assert_eq!(candidates.look(record.clone(), now), Look { due: vec![], again: Some(pause) });
            pauses.push(pause.as_secs());
        }
        assert_eq!((pauses[0], pauses[5], pauses[19]), (30, 46, 600));
        assert!(pauses.is_sorted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_of_another_program_is_asked_about_once() {
        let (mut candidates, start) = (Candidates::default(), Instant::now());
        let record = vec![(ip(1), "capi/machine".to_owned())];
        candidates.look(record.clone(), start);
        candidates.foreign(ip(1), "capi/machine");
        assert_eq!(candidates.look(record, start + ABANDONED_AFTER * 2), Look::default());
        assert_eq!(candidates.foreign_records(), 1);
        candidates.look(vec![], start + ABANDONED_AFTER * 3);
        assert_eq!(candidates.foreign_records(), 0);
    }
}
