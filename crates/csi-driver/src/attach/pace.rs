//! When a machine whose disks are on their way gets another one. One pod on the host brings all disks of a machine, and
//! each change of them replaces it, also one that has done nothing yet (docs/contract/csi-driver.md#hot-plug-pod).
//!
//! So a change waits for the disks that are on their way, but not for long, and all that wait are made at once. A disk
//! that the host does not bring is taken out again ([`super::give_back`]), and waits longer before each further try.
//! This process remembers both: the sidecars call one process at a time, and what another one does not know of only makes
//! disks come later.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::hotplug::Direction;

/// Changes of a machine that begin within so long of one another are one: the pod has done nothing yet.
pub const TOGETHER_WITHIN: Duration = Duration::from_secs(1);
/// Disks on their way are waited for no longer.
pub const WAITED_FOR: Duration = Duration::from_secs(15);
/// A disk that is not mounted after so long may be what keeps others out: it is taken out of the machine again.
pub const UNMOUNTED_FOR: Duration = Duration::from_secs(30);
/// Before it is added again, doubled each time …
const KEPT_OUT_FIRST: Duration = Duration::from_secs(15);
/// … up to this.
const KEPT_OUT_LAST: Duration = Duration::from_secs(300);
/// More machines, and more disks that were taken out again, than one process has to do with.
const MOST: usize = 4096;

/// Volumes by names, and since when each is on its way.
type OnTheirWay = HashMap<String, Instant>;

/// What this process knows of disks on their way.
#[derive(Default)]
pub(super) struct Pace(Mutex<State>);

#[derive(Default)]
struct State {
    machines: HashMap<String, OnTheirWay>,
    kept_out: HashMap<(String, String), KeptOut>,
}

/// A disk that was taken out of a machine again.
struct KeptOut {
    times: u32,
    until: Instant,
    why: String,
}

/// One disk on its way in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    pub(super) volume: String,
    pub(super) since: Duration,
    /// Its claim is not bound, or the host did not bring it before.
    pub(super) is_doubtful: bool,
}

impl Pace {
    /// This process has just written so of the machine.
    pub(super) fn wrote(&self, machine: &str, volume: &str) {
        let mut state = self.state();
        if state.machines.len() >= MOST {
            state.machines.clear();
        }
        let volumes = state.machines.entry(machine.to_owned()).or_default();
        volumes.insert(volume.to_owned(), Instant::now());
    }

    /// For how long these have been on their way. What others wrote counts from its first sight, and as no part of a
    /// change that begins now.
    pub(super) fn look(
        &self,
        machine: &str,
        seen: &BTreeMap<String, Direction>,
    ) -> BTreeMap<String, Duration> {
        let mut state = self.state();
        if seen.is_empty() {
            state.machines.remove(machine);
            return BTreeMap::new();
        }
        let now = Instant::now();
        let foreign = now.checked_sub(TOGETHER_WITHIN).unwrap_or(now);
        let known = state.machines.entry(machine.to_owned()).or_default();
        known.retain(|volume, _| seen.contains_key(volume));
        let mut since = |volume: &String| *known.entry(volume.clone()).or_insert(foreign);
        seen.keys().map(|volume| (volume.clone(), now - since(volume))).collect()
    }

    /// The disk was taken out of the machine again. Says for how long it is kept out.
    pub(super) fn keep_out(&self, machine: &str, volume: &str, why: &str) -> Duration {
        let mut state = self.state();
        if state.kept_out.len() >= MOST {
            // they come again earlier, and are taken out again
            state.kept_out.clear();
        }
        let now = Instant::now();
        let entry = state.kept_out.entry((machine.to_owned(), volume.to_owned()));
        let kept = entry.or_insert(KeptOut { times: 0, until: now, why: String::new() });
        let pause = (KEPT_OUT_FIRST * 2_u32.saturating_pow(kept.times)).min(KEPT_OUT_LAST);
        *kept = KeptOut { times: kept.times.saturating_add(1), until: now + pause, why: why.to_owned() };
        pause
    }

    /// Why the disk is kept out of the machine, and for how much longer.
    pub(super) fn kept_out(&self, machine: &str, volume: &str) -> Option<(String, Duration)> {
        let state = self.state();
        let kept = state.kept_out.get(&(machine.to_owned(), volume.to_owned()))?;
        let rest = kept.until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())?;
        Some((kept.why.clone(), rest))
    }

    /// Whether the host did not bring the disk the last time.
    pub(super) fn was_kept_out(&self, machine: &str, volume: &str) -> bool {
        self.state().kept_out.contains_key(&(machine.to_owned(), volume.to_owned()))
    }

    /// The disk came into the machine, or nobody wants it there any more.
    pub(super) fn forget(&self, machine: &str, volume: &str) {
        self.state().kept_out.remove(&(machine.to_owned(), volume.to_owned()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while it is changed")
    }
}

/// For how long a change waits for others' disks that have been on their way for so long; `None` where it is made now.
pub(super) fn waits(on_their_way: impl IntoIterator<Item = Duration>) -> Option<Duration> {
    let young = on_their_way.into_iter().filter(|since| *since < WAITED_FOR);
    let oldest = young.max().filter(|since| *since >= TOGETHER_WITHIN)?;
    Some(WAITED_FOR - oldest)
}

/// Whether a disk leaves the machine that the host has not brought. One of which nothing bad is known stays for as long
/// as another may be to blame.
pub(super) fn must_leave(own: &Coming, others: &[Coming]) -> bool {
    let is_to_blame = |other: &Coming| other.is_doubtful && other.since < 2 * UNMOUNTED_FOR;
    own.since >= UNMOUNTED_FOR && (own.is_doubtful || !others.iter().any(is_to_blame))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::quiet(&[], None)]
    #[case::one_that_has_just_begun(&[0], None)]
    #[case::within_a_second(&[0, 900], None)]
    #[case::one_under_way(&[1_000], Some(14_000))]
    #[case::the_first_of_several(&[500, 5_000, 2_000], Some(10_000))]
    #[case::one_that_does_not_come(&[15_000], None)]
    #[case::and_one_after_it(&[40_000, 3_000], Some(12_000))]
    fn a_change_waits_for_disks_on_their_way_and_never_long(
        #[case] on_their_way: &[u64],
        #[case] expected: Option<u64>,
    ) {
        let on_their_way = on_their_way.iter().map(|millis| Duration::from_millis(*millis));
        assert_eq!(waits(on_their_way), expected.map(Duration::from_millis));
    }

    fn coming(since: u64, is_doubtful: bool) -> Coming {
        Coming { volume: "pvc-1".to_owned(), since: Duration::from_secs(since), is_doubtful }
    }

    #[rstest]
    #[case::early(coming(29, true), &[], false)]
    #[case::doubtful(coming(30, true), &[coming(90, true)], true)]
    #[case::nobody_else_is_to_blame(coming(30, false), &[coming(40, false)], true)]
    #[case::another_is(coming(50, false), &[coming(30, true)], false)]
    #[case::another_that_nobody_takes_out(coming(30, false), &[coming(60, true)], true)]
    fn a_disk_that_does_not_come_leaves_unless_another_is_to_blame(
        #[case] own: Coming,
        #[case] others: &[Coming],
        #[case] expected: bool,
    ) {
        assert_eq!(must_leave(&own, others), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_is_kept_out_longer_each_time_and_for_five_minutes_at_most() {
        let pace = Pace::default();
        assert!(!pace.was_kept_out("a", "pvc-1"));
        let pauses: Vec<_> = (0..40).map(|_| pace.keep_out("a", "pvc-1", "why").as_secs()).collect();
        assert_eq!(pauses[..6], [15, 30, 60, 120, 240, 300]);
        assert_eq!(pauses[39], 300);
        assert_eq!(pace.kept_out("a", "pvc-1"), Some(("why".to_owned(), Duration::from_secs(300))));
        assert_eq!(pace.kept_out("b", "pvc-1"), None);
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(pace.kept_out("a", "pvc-1"), None);
        assert!(pace.was_kept_out("a", "pvc-1"));
        pace.forget("a", "pvc-1");
        assert_eq!(pace.keep_out("a", "pvc-1", "why").as_secs(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_wrote_counts_from_its_first_sight() {
        let pace = Pace::default();
        pace.wrote("a", "ours");
        let seen =
            BTreeMap::from([("ours".to_owned(), Direction::In), ("theirs".to_owned(), Direction::Out)]);
        let ages =
            |seen: &_| pace.look("a", seen).into_values().map(|since| since.as_secs()).collect::<Vec<_>>();
        assert_eq!(ages(&seen), [0, 1]);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(ages(&seen), [3, 4]);
        assert_eq!(ages(&BTreeMap::new()), [0; 0]);
        assert_eq!(ages(&seen), [1, 1]);
    }
}
