//! Decides which of the targets that are due dials next.
//!
//! Free slots go round between groups, and within a group between objects: a group with 5,000 silent targets gets
//! every second slot while one other target waits, not 5,000 before it.
//!
//! A short dial gives its slot back within [`LONG`]. Long dials could keep all slots for as long as their time-out,
//! so a group holds at most a third of the slots that no long dial holds: one silent group alone comes to a quarter
//! of all slots, `n` silent groups to `1 / (n + 3)` each, and some slots stay free for the next group.
//!
//! Targets that answer at once would let a group dial as fast as this process can. So a group begins at most
//! [`DIALS_A_SECOND`] dials a second; its other targets wait in their lines, and the turn goes to the next group.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Debug;
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use tokio::time::Instant;

/// A dial that may take longer is a long one.
const LONG: Duration = Duration::from_secs(1);
/// Dials that a group may begin in a second.
const DIALS_A_SECOND: u32 = 2_000;
/// How far a group may be ahead of an even pace, since timers are exact to a millisecond only.
const AHEAD: Duration = Duration::from_millis(10);

/// How long a dial may keep its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Short,
    Long,
}

impl Length {
    pub(super) fn of(limit: Duration) -> Self {
        if limit > LONG { Self::Long } else { Self::Short }
    }
}

/// The slots that dials hold, and the targets that wait for one.
#[derive(Debug)]
pub(super) struct Slots<K, B> {
    at_once: usize,
    /// Slots that are held, and how many of them by long dials.
    held: usize,
    held_long: usize,
    group_of: fn(&K) -> &str,
    groups: Ring<String, Group<K, B>>,
    pace: Pace,
}

/// One group's part. A group with nothing waiting and no long dial has no entry.
#[derive(Debug)]
struct Group<K, B> {
    short: Ring<K, VecDeque<B>>,
    long: Ring<K, VecDeque<B>>,
    held_long: usize,
    /// The length whose turn it is, where targets of both wait.
    next: Length,
}

impl<K: Ord + Clone + Debug, B: PartialEq> Slots<K, B> {
    /// At least one slot.
    pub(super) fn new(at_once: usize, group_of: fn(&K) -> &str) -> Self {
        Self {
            at_once: at_once.max(1),
            held: 0,
            held_long: 0,
            group_of,
            groups: Ring::default(),
            pace: Pace::default(),
        }
    }

    /// Puts a target at the end of its object's line.
    pub(super) fn wait(&mut self, object: K, backend: B, length: Length) {
        let group = self.groups.entry((self.group_of)(&object));
        group.line(length).entries.entry(object).or_default().push_back(backend);
    }

    /// Takes those targets of an object out of the line that `stays` refuses.
    pub(super) fn retain(&mut self, object: &K, stays: impl Fn(&B) -> bool) {
        let name = (self.group_of)(object);
        let Some(group) = self.groups.entries.get_mut(name) else { return };
        for length in [Length::Short, Length::Long] {
            let line = group.line(length);
            if let Some(backends) = line.entries.get_mut(object) {
                backends.retain(&stays);
                if backends.is_empty() {
                    line.entries.remove(object);
                }
            }
        }
        self.groups.remove_idle(name);
    }

    /// Gives a free slot to the target whose turn it is; [`Slots::free`] takes it back.
    pub(super) fn next(&mut self, now: Instant) -> Option<(K, B, Length)> {
        if self.held == self.at_once {
            return None;
        }
        let without_long = self.at_once - self.held_long;
        let (name, length) = self
            .groups
            .in_turn()
            .filter(|(name, _)| self.pace.may_dial_from(name).is_none_or(|from| from <= now))
            .find_map(|(name, group)| Some((name.clone(), group.next_length(without_long)?)))?;
        self.groups.last = Some(name.clone());
        self.pace.dialled(&name, now, 1);
        let group = self.groups.entries.get_mut(&name).expect("the turn came to this group");
        let (object, backend) = group.line(length).pop().expect("a target of this length waits");
        group.next = match length {
            Length::Short => Length::Long,
            Length::Long => Length::Short,
        };
        self.held += 1;
        if length == Length::Long {
            group.held_long += 1;
            self.held_long += 1;
        }
        self.groups.remove_idle(&name);
        Some((object, backend, length))
    }

    /// The dial that just got its slot counts as so many, for the pace of its group.
    pub(super) fn count_as(&mut self, object: &K, dials: u32, now: Instant) {
        self.pace.dialled((self.group_of)(object), now, dials - 1);
    }

    /// When a target that waits may dial although no dial ends until then: its group has to keep its pace.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.held == self.at_once {
            return None;
        }
        let without_long = self.at_once - self.held_long;
        let waiting =
            self.groups.entries.iter().filter(|(_, group)| group.next_length(without_long).is_some());
        waiting.filter_map(|(name, _)| self.pace.may_dial_from(name)).min()
    }

    /// The dial of a target of `object` ended.
    pub(super) fn free(&mut self, object: &K, length: Length) {
        self.held -= 1;
        if length == Length::Long {
            let name = (self.group_of)(object);
            self.held_long -= 1;
            self.groups.entry(name).held_long -= 1;
            self.groups.remove_idle(name);
        }
    }
}

impl<K: Ord + Clone, B> Group<K, B> {
    fn line(&mut self, length: Length) -> &mut Ring<K, VecDeque<B>> {
        match length {
            Length::Short => &mut self.short,
            Length::Long => &mut self.long,
        }
    }

    /// The length of the next dial of this group, where `without_long` slots hold no long dial.
    fn next_length(&self, without_long: usize) -> Option<Length> {
        let short = !self.short.entries.is_empty();
        let room = self.held_long == 0 || 3 * (self.held_long + 1) <= without_long;
        let long = room && !self.long.entries.is_empty();
        match (short, long) {
            (true, true) => Some(self.next),
            (true, false) => Some(Length::Short),
            (false, true) => Some(Length::Long),
            (false, false) => None,
        }
    }

    fn is_idle(&self) -> bool {
        self.held_long == 0 && self.short.entries.is_empty() && self.long.entries.is_empty()
    }
}

impl<K, B> Default for Group<K, B> {
    fn default() -> Self {
        Self { short: Ring::default(), long: Ring::default(), held_long: 0, next: Length::Short }
    }
}

/// The pace at which each group dials.
#[derive(Debug, Default)]
struct Pace {
    /// When the dials of a group would have begun that it has begun, at an even pace.
    even: HashMap<String, Instant>,
    swept: Option<Instant>,
}

impl Pace {
    /// From when a group may begin its next dial; nothing for a group that has begun none lately.
    fn may_dial_from(&self, group: &str) -> Option<Instant> {
        self.even.get(group).and_then(|even| even.checked_sub(AHEAD))
    }

    fn dialled(&mut self, group: &str, now: Instant, dials: u32) {
        if self.swept.is_none_or(|swept| now >= swept + LONG) {
            self.even.retain(|_, even| *even > now);
            self.swept = Some(now);
        }
        let gap = Duration::from_secs(1) / DIALS_A_SECOND * dials;
        match self.even.get_mut(group) {
            Some(even) => *even = (*even).max(now) + gap,
            None => {
                self.even.insert(group.to_owned(), now + gap);
            }
        }
    }
}

/// Values by key, taken in turn: after a key comes the next greater one, after the greatest the smallest.
#[derive(Debug)]
struct Ring<K, V> {
    entries: BTreeMap<K, V>,
    /// The key that had the last turn; it need not be there any more.
    last: Option<K>,
}

impl<K, V> Default for Ring<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last: None }
    }
}

impl<K: Ord + Clone, V> Ring<K, V> {
    /// All entries, beginning with the one whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = (&K, &V)> {
        let after = self.last.as_ref().map(|last| self.entries.range((Excluded(last), Unbounded)));
        let up_to = self
            .last
            .as_ref()
            .map_or_else(|| self.entries.range::<K, _>(..), |last| self.entries.range(..=last));
        after.into_iter().flatten().chain(up_to)
    }
}

impl<K: Ord + Clone, B> Ring<K, VecDeque<B>> {
    /// Takes the first of the line whose turn it is.
    fn pop(&mut self) -> Option<(K, B)> {
        let key = self.in_turn().next()?.0.clone();
        let line = self.entries.get_mut(&key)?;
        let backend = line.pop_front()?;
        if line.is_empty() {
            self.entries.remove(&key);
        }
        self.last = Some(key.clone());
        Some((key, backend))
    }
}

impl<K: Ord + Clone, B> Ring<String, Group<K, B>> {
    fn entry(&mut self, name: &str) -> &mut Group<K, B> {
        if !self.entries.contains_key(name) {
            self.entries.insert(name.to_owned(), Group::default());
        }
        self.entries.get_mut(name).expect("it was just inserted")
    }

    fn remove_idle(&mut self, name: &str) {
        if self.entries.get(name).is_some_and(Group::is_idle) {
            self.entries.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// `group/object` and the number of a backend; numbers from 100 on dial long.
    fn slots(at_once: usize, waiting: &[(&'static str, std::ops::Range<u32>)]) -> Slots<&'static str, u32> {
        let mut slots = Slots::new(at_once, group);
        for (object, backends) in waiting {
            for backend in backends.clone() {
                slots.wait(object, backend, if backend < 100 { Length::Short } else { Length::Long });
            }
        }
        slots
    }

    fn group<'a>(object: &'a &'static str) -> &'a str {
        object.split('/').next().unwrap_or_default()
    }

    /// The targets that get the slots that are free now.
    fn order(slots: &mut Slots<&'static str, u32>) -> Vec<String> {
        let mut now = Instant::now();
        let next = || {
            slots.next(now).or_else(|| {
                now = slots.wakes_at()?;
                slots.next(now)
            })
        };
        std::iter::from_fn(next).map(|(object, backend, _)| format!("{object}:{backend}")).collect()
    }

    #[rstest]
    #[case::in_the_order_of_arrival(&[("a/x", 1..4)], &["a/x:1", "a/x:2", "a/x:3"])]
    #[case::between_groups(&[("a/x", 1..5), ("b/x", 1..3)], &["a/x:1", "b/x:1", "a/x:2", "b/x:2", "a/x:3", "a/x:4"])]
    #[case::then_between_objects(
        &[("a/x", 1..4), ("a/y", 1..2), ("b/x", 1..3)],
        &["a/x:1", "b/x:1", "a/y:1", "b/x:2", "a/x:2", "a/x:3"])]
    #[case::of_both_lengths_in_turn(&[("a/x", 98..102)], &["a/x:98", "a/x:100", "a/x:99", "a/x:101"])]
    fn free_slots_go_round(
        #[case] waiting: &[(&'static str, std::ops::Range<u32>)],
        #[case] expected: &[&str],
    ) {
        assert_eq!(order(&mut slots(100, waiting)), expected);
    }

    #[rstest]
    #[case::alone(512, 1, &[128])]
    #[case::alone_with_few_slots(8, 1, &[2])]
    #[case::alone_with_one_slot(1, 1, &[1])]
    #[case::two(512, 2, &[102, 102])]
    #[case::five(512, 5, &[64, 64, 64, 64, 64])]
    fn silent_groups_leave_slots_for_the_next(
        #[case] at_once: usize,
        #[case] groups: usize,
        #[case] expected: &[usize],
    ) {
        let names = ["a/x", "b/x", "c/x", "d/x", "e/x"];
        let waiting: Vec<_> = names[..groups].iter().map(|name| (*name, 100..1100)).collect();
        let mut slots = slots(at_once, &waiting);
        let order = order(&mut slots);
        let of = |name: &&str| order.iter().filter(|target| target.starts_with(*name)).count();
        assert_eq!(names[..groups].iter().map(of).collect::<Vec<_>>(), expected);
        assert_eq!(slots.next(Instant::now() + LONG), None);
        if at_once > groups {
            slots.wait("z/new", 100, Length::Long);
            assert!(slots.next(Instant::now()).is_some(), "a group that holds none gets a slot");
        }
    }

    #[test]
    fn a_group_at_its_limit_still_dials_short_and_goes_on_when_a_long_dial_ends() {
        let mut slots = slots(8, &[("a/x", 100..110), ("a/y", 1..3)]);
        assert_eq!(order(&mut slots), ["a/y:1", "a/x:100", "a/y:2", "a/x:101"]);
        slots.free(&"a/y", Length::Short);
        assert_eq!(order(&mut slots), [""; 0]);
        slots.free(&"a/x", Length::Long);
        assert_eq!(order(&mut slots), ["a/x:102"]);
    }

    #[test]
    fn no_slot_is_lost_and_nothing_is_kept_of_a_group_that_is_done() {
        let mut slots = slots(4, &[("a/x", 1..9), ("b/x", 100..101)]);
        for _ in 0..9 {
            let (object, _, length) = slots.next(Instant::now()).unwrap();
            slots.free(&object, length);
        }
        assert_eq!((slots.held, slots.held_long, slots.groups.entries.len()), (0, 0, 0));
    }

    #[test]
    fn a_target_that_leaves_the_line_gets_no_slot() {
        let mut slots = slots(8, &[("a/x", 1..4), ("a/y", 1..2)]);
        slots.retain(&"a/x", |backend| *backend == 3);
        slots.retain(&"a/y", |_| false);
        slots.retain(&"b/x", |_| false);
        assert_eq!(order(&mut slots), ["a/x:3"]);
    }

    #[rstest]
    #[case(Duration::from_secs(1), Length::Short)]
    #[case(Duration::from_nanos(1_000_000_001), Length::Long)]
    fn a_dial_over_one_second_is_long(#[case] limit: Duration, #[case] expected: Length) {
        assert_eq!(Length::of(limit), expected);
    }
}
