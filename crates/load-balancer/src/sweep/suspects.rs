//! Which records look abandoned, and since when: pure.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use tokio::time::Instant;

/// A record must look abandoned for so long before it is read afresh.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What is known of the holder of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The load balancer is there.
    Exists {
        /// Pool and address of its status, if the record agrees with it.
        uses: Option<(String, IpAddr)>,
        /// The pool that its spec names.
        wants: String,
        /// What the network still carries for it.
        announced: Option<IpAddr>,
    },
    /// Only its Service is left, and may still announce the address.
    OnlyService,
    Gone,
    /// Not the name of a load balancer: never ours to release.
    NoName,
}

/// Whether a record looks as if nobody will come for it.
pub fn abandoned(pool: &str, address: IpAddr, holder: &Holder) -> bool {
    match holder {
        Holder::Gone => true,
        Holder::OnlyService | Holder::NoName => false,
        // its only record, or the one that it is about to move to
        Holder::Exists { uses: None, .. } => false,
        Holder::Exists { uses: Some((uses, _)), wants, .. } if wants == pool && uses != pool => false,
        // moved, but kube-vip has not followed yet
        Holder::Exists { announced, .. } if *announced == Some(address) => false,
        Holder::Exists { uses: Some(uses), .. } => (uses.0.as_str(), uses.1) != (pool, address),
    }
}

/// What to do after a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// To be read afresh now, and released if nothing has changed.
    pub due: Vec<(IpAddr, String)>,
    /// When to look again.
    pub again: Option<Duration>,
}

/// The suspicious records of one pool.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    since: HashMap<(IpAddr, String), Instant>,
    foreign: HashSet<(IpAddr, String)>,
}

impl Suspects {
    /// Takes in what looks abandoned now; what does not any more is forgotten.
    pub fn look(&mut self, suspicious: Vec<(IpAddr, String)>, now: Instant) -> Look {
        let seen: HashSet<_> = suspicious.into_iter().collect();
        self.since.retain(|record, _| seen.contains(record));
        self.foreign.retain(|record| seen.contains(record));
        let mut look = Look::default();
        for record in seen.into_iter().filter(|record| !self.foreign.contains(record)) {
            let since = *self.since.entry(record.clone()).or_insert(now);
            let waited = now.duration_since(since);
            if waited >= PATIENCE {
                look.due.push(record);
            } else {
                let left = PATIENCE - waited;
                look.again = Some(look.again.map_or(left, |again| again.min(left)));
            }
        }
        look.due.sort();
        look
    }

    /// A release did not take: patience begins anew.
    pub fn again(&mut self, address: IpAddr, holder: &str, now: Instant) {
        self.since.insert((address, holder.to_owned()), now);
    }

    /// The record is another program's.
    pub fn foreign(&mut self, address: IpAddr, holder: &str) {
        self.foreign.insert((address, holder.to_owned()));
    }

    pub fn foreign_records(&self) -> usize {
        self.foreign.len()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn exists(uses: Option<(&str, u8)>, wants: &str) -> Holder {
        let uses = uses.map(|(pool, last)| (pool.to_owned(), ip(last)));
        Holder::Exists { uses, wants: wants.to_owned(), announced: None }
    }

    fn announced(last: u8) -> Holder {
        Holder::Exists {
            uses: Some(("core".to_owned(), ip(9))),
            wants: "core".to_owned(),
            announced: Some(ip(last)),
        }
    }

    #[rstest]
    #[case::nobody(Holder::Gone, true)]
    #[case::still_announced(Holder::OnlyService, false)]
    #[case::not_a_load_balancer(Holder::NoName, false)]
    #[case::in_use(exists(Some(("edge", 7)), ""), false)]
    // a status was erased, or not written yet: the record is what tells the object its address
    #[case::only_record(exists(None, ""), false)]
    #[case::second_address(exists(Some(("edge", 8)), ""), true)]
    #[case::left_behind_after_a_move(exists(Some(("core", 7)), "core"), true)]
    #[case::moved_but_still_announced(announced(7), false)]
    #[case::moved_and_announced(announced(9), true)]
    #[case::about_to_move_here(exists(Some(("core", 7)), "edge"), false)]
    fn a_record_of_ten_dot_seven_in_edge_is_abandoned(#[case] holder: Holder, #[case] expected: bool) {
        assert_eq!(abandoned("edge", ip(7), &holder), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_due_when_it_looked_abandoned_for_thirty_seconds() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let record = |last| (ip(last), "shop/web".to_owned());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(suspects.look(vec![record(1)], at(0)), Look { due: vec![], again: Some(PATIENCE) });
        let look = suspects.look(vec![record(1), record(2)], at(20));
        assert_eq!(look, Look { due: vec![], again: Some(Duration::from_secs(10)) });
        let look = suspects.look(vec![record(1), record(2)], at(30));
        assert_eq!(look, Look { due: vec![record(1)], again: Some(Duration::from_secs(20)) });
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_was_in_use_in_between_begins_anew() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let record = vec![(ip(1), "shop/web".to_owned())];
        suspects.look(record.clone(), start);
        assert_eq!(suspects.look(vec![], start + PATIENCE), Look::default());
        assert_eq!(suspects.look(record, start + PATIENCE * 2).due, vec![]);
    }

    // whoever undoes our release changes the pool, and each change asks for another look
    #[tokio::test(start_paused = true)]
    async fn a_release_that_did_not_take_is_not_tried_with_every_change_of_the_pool() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let record = vec![(ip(1), "shop/web".to_owned())];
        suspects.look(record.clone(), start);
        assert_eq!(suspects.look(record.clone(), start + PATIENCE).due, record);
        suspects.again(ip(1), "shop/web", start + PATIENCE);
        let look = suspects.look(record.clone(), start + PATIENCE);
        assert_eq!(look, Look { due: vec![], again: Some(PATIENCE) });
        assert_eq!(suspects.look(record.clone(), start + PATIENCE * 2).due, record);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_of_another_program_is_asked_about_once() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let record = vec![(ip(1), "capi/machine".to_owned())];
        suspects.look(record.clone(), start);
        suspects.foreign(ip(1), "capi/machine");
        assert_eq!(suspects.look(record, start + PATIENCE * 2), Look::default());
        assert_eq!(suspects.foreign_records(), 1);
        suspects.look(vec![], start + PATIENCE * 3);
        assert_eq!(suspects.foreign_records(), 0);
    }
}
