//! When a machine whose disks are on their way gets another one, and when one that the host does not bring leaves again.
//! One pod on the host brings all disks of a machine, and each change of them replaces it, also one that has done nothing
//! yet (docs/contract/csi-driver.md#hot-plug-pod).
//!
//! ```text
//! a change of the machine      others are on their way since    then it
//! ────────────────────────     ──────────────────────────────   ─────────────────────────────────────────────────
//! adds or removes a disk       less than 1 s                    is made, as part of the same change
//!                              1 s to 15 s                      waits, until the first of them has had 15 s
//!                              more                             is made: they do not come
//!
//! a disk that is not mounted   while others wait for the pod, it leaves (super::give_back) after
//! ──────────────────────────   ───────────────────────────────────────────────────────────────────────────────────
//! its claim is not bound, or   30 s, doubled with each time that it left, up to 300 s; up to 60 s while one waits of which
//!   it did not come before       nothing bad is known
//! nothing bad is known of it   30 s, 120 s where a disk left a moment ago; it stays while another may be to blame
//! ```
//! A disk that nobody waits for stays. One that left comes again after 15 s, doubled each time up to 300 s, or up to 60 s
//! where nobody else waits. It is doubtful then, until it comes or nobody has wanted it for an hour. Where its claim was not
//! bound, so are all such claims of its class, until one of those comes, or for an hour after the last one left. Doubtful
//! disks come one at a time, in the order in which they waited, and after all others. This process remembers all that: the
//! sidecars call one process at a time, and what another one does not know of only makes disks come later.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
    time::Duration,
};

use tokio::time::Instant;

use super::hotplug::Direction;

/// Changes of a machine that begin within so long of one another are one: the pod has done nothing yet.
pub const TOGETHER_WITHIN: Duration = Duration::from_secs(1);
/// Disks on their way are waited for no longer.
pub const WAITED_FOR: Duration = Duration::from_secs(15);
/// A disk that keeps others waiting and is not mounted after so long leaves, and no disk leaves earlier …
pub const UNMOUNTED_FOR: Duration = Duration::from_secs(30);
/// … doubled with each time that it left, up to this: a slow host brings it in the end …
const UNMOUNTED_LAST: Duration = Duration::from_secs(300);
/// … or up to this, while one waits of which nothing bad is known.
const UNMOUNTED_BEFORE_OTHERS: Duration = Duration::from_secs(60);
/// The same for one of which nothing bad is known, after another one was taken out.
const BLAMELESS_FOR: Duration = Duration::from_secs(120);
/// Before it is added again, doubled each time …
const KEPT_OUT_FIRST: Duration = Duration::from_secs(15);
/// … up to this …
const KEPT_OUT_LAST: Duration = Duration::from_secs(300);
/// … or up to this, while nobody else waits for the machine.
const KEPT_OUT_ALONE: Duration = Duration::from_secs(60);
/// That a disk did not come is known so long after it was taken out, or wanted, last.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);
/// Whoever had to wait for another disk counts as one that wants in for so long: an attacher calls again by then.
const WANTED_FOR: Duration = Duration::from_secs(300);
/// Whoever waits for a turn keeps it so long after the last call: others would wait for one that never comes again.
const TURN_KEPT_FOR: Duration = Duration::from_secs(60);
/// More machines than one process has to do with.
const MOST: usize = 4096;

/// What this process knows of disks on their way.
#[derive(Default)]
pub(super) struct Pace(Mutex<HashMap<String, Machine>>);

/// What is known of one machine.
#[derive(Default)]
struct Machine {
    volumes: HashMap<String, Known>,
    /// When a disk that was to blame was taken out last.
    freed: Option<Instant>,
    /// Classes of which a claim that was not bound did not come, and when.
    classes: HashMap<String, Instant>,
}

/// What is known of one volume in one machine.
#[derive(Default)]
struct Known {
    /// It is on its way so, since then.
    way: Option<(Direction, Instant)>,
    /// It was taken out again.
    kept_out: Option<KeptOut>,
    /// Calls for it waited for another disk.
    wanted: Option<Wanted>,
    /// The holder of the annotation by which it is added, and since when this process knows of it.
    holder: Option<(String, Instant)>,
    /// The class of its claim, which was not bound when this process added the disk, and when that was.
    unbound_class: Option<(String, Instant)>,
}

struct KeptOut {
    times: u32,
    at: Instant,
    /// When it was taken out or a call waited for its turn last: one that had no turn has not come either.
    wanted_or_removed_at: Instant,
    pause: Duration,
    why: String,
}

#[derive(Clone, Copy)]
struct Wanted {
    first: Instant,
    last: Instant,
}

/// One disk on its way in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    pub(super) volume: String,
    pub(super) since: Duration,
    /// Its claim is bound.
    pub(super) is_bound: bool,
    /// So often it was taken out of the machine, since the host did not bring it.
    pub(super) times: u32,
}

impl Coming {
    pub(super) fn may_be_to_blame(&self) -> bool {
        !self.is_bound || self.times > 0
    }
}

impl Machine {
    fn volume(&mut self, volume: &str) -> &mut Known {
        self.volumes.entry(volume.to_owned()).or_default()
    }
}

impl Pace {
    /// This process has just written so of the machine. A claim that was not bound is given with its class.
    pub(super) fn wrote(
        &self,
        machine: &str,
        volume: &str,
        direction: Direction,
        unbound_class: Option<&str>,
    ) {
        self.of(machine, |it| {
            let (known, now) = (it.volume(volume), Instant::now());
            known.way = Some((direction, now));
            known.unbound_class = unbound_class.map(|class| (class.to_owned(), now));
            // it has had its turn
            known.wanted.take_if(|_| direction == Direction::In);
        });
    }

    /// For how long these have been on their way. What others wrote counts from its first sight, and as no part of a
    /// change that begins now.
    pub(super) fn look(
        &self,
        machine: &str,
        seen: &BTreeMap<String, Direction>,
    ) -> BTreeMap<String, Duration> {
        let now = Instant::now();
        let foreign = now.checked_sub(TOGETHER_WITHIN).unwrap_or(now);
        self.of(machine, |it| {
            it.volumes.retain(|volume, known| {
                known.way = known.way.filter(|(direction, _)| seen.get(volume) == Some(direction));
                known.wanted = known.wanted.filter(|wanted| wanted.last.elapsed() < WANTED_FOR);
                known.kept_out.take_if(|kept| !kept.is_remembered());
                known.unbound_class.take_if(|(_, at)| at.elapsed() >= REMEMBERED_FOR);
                let is_to_come = known.kept_out.is_some() || known.unbound_class.is_some();
                known.way.is_some() || is_to_come || known.wanted.is_some()
            });
            let ages = seen.iter().map(|(volume, direction)| {
                let (_, since) = it.volume(volume).way.get_or_insert((*direction, foreign));
                (volume.clone(), now - *since)
            });
            ages.collect()
        })
    }

    /// For how long this process has known that this holder's annotation is to bring the disk: no longer than it is there.
    /// The version of the claim says less, since others write claims too.
    pub(super) fn known_for(&self, machine: &str, volume: &str, holder: &str) -> Duration {
        self.of(machine, |it| {
            let known = it.volume(volume);
            known.holder.take_if(|(known, _)| known != holder);
            known.holder.get_or_insert_with(|| (holder.to_owned(), Instant::now())).1.elapsed()
        })
    }

    /// A call for the volume waits for another disk that comes into the machine.
    pub(super) fn wants(&self, machine: &str, volume: &str) {
        let now = Instant::now();
        self.of(machine, |it| {
            let known = it.volume(volume);
            let before = known.wanted.filter(|wanted| wanted.last.elapsed() < TURN_KEPT_FOR);
            known.wanted = Some(Wanted { first: before.map_or(now, |wanted| wanted.first), last: now });
            if let Some(kept) = known.kept_out.as_mut().filter(|kept| kept.is_remembered()) {
                kept.wanted_or_removed_at = now;
            }
        });
    }

    /// The volume cannot come for another reason, and keeps no turn meanwhile.
    pub(super) fn gives_way(&self, machine: &str, volume: &str) {
        self.of(machine, |it| it.volumes.get_mut(volume).and_then(|known| known.wanted.take()));
    }

    /// The volumes for which calls wait, with how long they have.
    pub(super) fn waiting(&self, machine: &str) -> BTreeMap<String, Duration> {
        self.of(machine, |it| {
            let waiting = it.volumes.iter().filter_map(|(volume, known)| {
                let wanted = known.wanted.filter(|wanted| wanted.last.elapsed() < TURN_KEPT_FOR)?;
                Some((volume.clone(), wanted.first.elapsed()))
            });
            waiting.collect()
        })
    }

    /// Whether a call for another volume had to wait for a disk that comes into the machine.
    pub(super) fn is_waited_for(&self, machine: &str, volume: &str) -> bool {
        let waits = |known: &Known| known.wanted.is_some_and(|wanted| wanted.last.elapsed() < WANTED_FOR);
        self.of(machine, |it| it.volumes.iter().any(|(other, known)| other != volume && waits(known)))
    }

    /// The disk, whose claim is not bound where a class is given, is taken out of the machine again. Says for how long it
    /// is kept out.
    pub(super) fn keep_out(&self, machine: &str, volume: &str, class: Option<&str>, why: &str) -> Duration {
        let now = Instant::now();
        self.of(machine, |it| {
            it.freed = Some(now);
            it.classes.retain(|_, at| at.elapsed() < REMEMBERED_FOR);
            it.classes.extend(class.map(|class| (class.to_owned(), now)));
            let known = it.volume(volume);
            let times = known.times();
            let pause = doubled(KEPT_OUT_FIRST, times, KEPT_OUT_LAST);
            let kept = KeptOut {
                times: times.saturating_add(1),
                at: now,
                wanted_or_removed_at: now,
                pause,
                why: why.to_owned(),
            };
            known.kept_out = Some(kept);
            pause
        })
    }

    /// Why the disk is kept out of the machine, and for how much longer.
    pub(super) fn kept_out(&self, machine: &str, volume: &str, is_alone: bool) -> Option<(String, Duration)> {
        self.of(machine, |it| {
            let kept = it.volumes.get(volume)?.kept_out.as_ref()?;
            let pause = if is_alone { kept.pause.min(KEPT_OUT_ALONE) } else { kept.pause };
            let rest = pause.checked_sub(kept.at.elapsed()).filter(|rest| !rest.is_zero())?;
            Some((kept.why.clone(), rest))
        })
    }

    /// Whether the disk did not come before, or one of its class, which is given where its claim is not bound.
    pub(super) fn is_doubtful(&self, machine: &str, volume: &str, class: Option<&str>) -> bool {
        self.of(machine, |it| {
            let failed = class.and_then(|class| it.classes.get(class));
            let is_of_failed = failed.is_some_and(|at| at.elapsed() < REMEMBERED_FOR);
            is_of_failed || it.volumes.get(volume).is_some_and(|known| known.times() > 0)
        })
    }

    /// How often the disk was taken out of the machine, since the host did not bring it.
    pub(super) fn times(&self, machine: &str, volume: &str) -> u32 {
        self.of(machine, |it| it.volumes.get(volume).map_or(0, Known::times))
    }

    /// Whether a disk was taken out of the machine so lately that the others have not had their time since.
    pub(super) fn was_freed(&self, machine: &str) -> bool {
        self.of(machine, |it| it.freed.is_some_and(|freed| freed.elapsed() < UNMOUNTED_FOR))
    }

    /// The disk came into the machine, or only into the template of one that does not run. Its class has room where it was
    /// added unbound after the class was found full, and is ready.
    pub(super) fn came(&self, machine: &str, volume: &str, is_ready: bool) {
        self.of(machine, |it| {
            let added = it.volumes.remove(volume).and_then(|known| known.unbound_class);
            let Some((class, at)) = added.filter(|_| is_ready) else { return };
            if it.classes.get(&class).is_some_and(|full| *full <= at) {
                it.classes.remove(&class);
            }
        });
    }

    /// Nobody wants the disk in the machine any more. That it did not come is known for when it is wanted again.
    pub(super) fn is_unwanted(&self, machine: &str, volume: &str) {
        self.of(machine, |it| {
            let kept_out = it.volumes.remove(volume).and_then(|known| known.kept_out);
            if kept_out.is_some() {
                it.volume(volume).kept_out = kept_out;
            }
        });
    }

    fn of<T>(&self, machine: &str, work: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machines = self.0.lock().expect("no panic while it is changed");
        if machines.len() >= MOST && !machines.contains_key(machine) {
            // disks come again earlier, and are taken out again
            machines.clear();
        }
        work(machines.entry(machine.to_owned()).or_default())
    }
}

impl KeptOut {
    fn is_remembered(&self) -> bool {
        self.wanted_or_removed_at.elapsed() < REMEMBERED_FOR
    }
}

impl Known {
    fn times(&self) -> u32 {
        let kept = self.kept_out.as_ref().filter(|kept| kept.is_remembered());
        kept.map_or(0, |kept| kept.times)
    }
}

fn doubled(first: Duration, times: u32, last: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(last)
}

/// For how long a change waits for others' disks that have been on their way for so long; `None` where it is made now.
pub(super) fn waits(on_their_way: impl IntoIterator<Item = Duration>) -> Option<Duration> {
    let young = on_their_way.into_iter().filter(|since| *since < WAITED_FOR);
    let oldest = young.max().filter(|since| *since >= TOGETHER_WITHIN)?;
    Some(WAITED_FOR - oldest)
}

/// In how long a disk leaves the machine that keeps others waiting, unless it is mounted by then. The pod does not say
/// which of its disks it waits for. `keeps_blameless` says whether it keeps one waiting of which nothing bad is known.
pub(super) fn leaves_in(
    own: &Coming,
    others: &[Coming],
    was_freed: bool,
    keeps_blameless: bool,
) -> Option<Duration> {
    let stays = match own.may_be_to_blame() {
        true if keeps_blameless => doubled(UNMOUNTED_FOR, own.times, UNMOUNTED_BEFORE_OTHERS),
        true => doubled(UNMOUNTED_FOR, own.times, UNMOUNTED_LAST),
        false if others.iter().any(Coming::may_be_to_blame) => return None,
        false if was_freed => BLAMELESS_FOR,
        false => UNMOUNTED_FOR,
    };
    Some(stays.saturating_sub(own.since))
}

/// The one of those that wait which comes into the machine before a doubtful one: any that is not doubtful, else the one
/// that has waited longest.
pub(super) fn before<'a>(
    own: &str,
    waiting: &'a BTreeMap<String, Duration>,
    is_doubtful: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let waited = waiting.get(own).copied().unwrap_or_default();
    let others = || waiting.iter().filter(|(volume, _)| *volume != own);
    let first = others().find(|(volume, _)| !is_doubtful(volume));
    let first = first.or_else(|| others().find(|(volume, since)| (**since, own) > (waited, volume.as_str())));
    first.map(|(volume, _)| volume.as_str())
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

    const UNBOUND: (bool, u32) = (false, 0);
    const BOUND: (bool, u32) = (true, 0);

    fn coming(since: u64, (is_bound, times): (bool, u32)) -> Coming {
        Coming { volume: "pvc-1".to_owned(), since: Duration::from_secs(since), is_bound, times }
    }

    #[rstest]
    #[case::early(coming(29, UNBOUND), &[], false, Some(1))]
    #[case::late(coming(31, UNBOUND), &[coming(90, UNBOUND)], false, Some(0))]
    #[case::nobody_else_is_to_blame(coming(10, BOUND), &[coming(40, BOUND)], false, Some(20))]
    #[case::another_is(coming(50, BOUND), &[coming(30, UNBOUND)], false, None)]
    #[case::another_did_not_come_before(coming(50, BOUND), &[coming(30, (true, 1))], false, None)]
    #[case::another_was_a_moment_ago(coming(50, BOUND), &[], true, Some(70))]
    #[case::another_that_nobody_takes_out(coming(120, BOUND), &[coming(500, UNBOUND)], true, None)]
    #[case::the_second_time(coming(45, (true, 1)), &[], false, Some(15))]
    #[case::the_third_time(coming(45, (true, 2)), &[], false, Some(75))]
    #[case::for_the_hundredth_time(coming(45, (false, 100)), &[], false, Some(255))]
    fn a_disk_that_did_not_come_has_more_time_and_one_beside_it_is_not_blamed(
        #[case] own: Coming,
        #[case] others: &[Coming],
        #[case] was_freed: bool,
        #[case] expected: Option<u64>,
    ) {
        let leaves_in = |waits| leaves_in(&own, others, was_freed, waits).map(|rest| rest.as_secs());
        assert_eq!(leaves_in(false), expected);
        // one of which nothing bad is known waits for a minute at most
        let most = Duration::from_secs(60).saturating_sub(own.since).as_secs();
        let expected = expected.map(|rest| if own.may_be_to_blame() { rest.min(most) } else { rest });
        assert_eq!(leaves_in(true), expected);
    }

    #[rstest]
    #[case::alone(&[("own", 5)], None)]
    #[case::who_waited_longer(&[("own", 5), ("bad-1", 6), ("bad-2", 4)], Some("bad-1"))]
    #[case::at_once(&[("own", 5), ("bad-1", 5)], Some("bad-1"))]
    #[case::at_once_and_later_by_name(&[("own", 5), ("pbad", 5)], None)]
    #[case::whoever_is_not_doubtful(&[("own", 5), ("bad-1", 6), ("good", 1)], Some("good"))]
    #[case::who_has_just_come(&[("bad-1", 0)], Some("bad-1"))]
    fn doubtful_disks_come_after_all_others_in_the_order_in_which_they_waited(
        #[case] waiting: &[(&str, u64)],
        #[case] expected: Option<&str>,
    ) {
        let waiting: BTreeMap<_, _> = waiting
            .iter()
            .map(|(volume, since)| ((*volume).to_owned(), Duration::from_secs(*since)))
            .collect();
        assert_eq!(before("own", &waiting, |volume| volume != "good"), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn that_a_disk_did_not_come_is_known_for_an_hour_or_until_it_came_though_it_was_detached() {
        let pace = Pace::default();
        pace.keep_out("a", "pvc-1", Some("lvm"), "why");
        pace.is_unwanted("a", "pvc-1");
        assert_eq!(pace.times("a", "pvc-1"), 1);
        assert!(pace.is_doubtful("a", "pvc-1", None) && pace.is_doubtful("a", "pvc-2", Some("lvm")));
        assert!(!pace.is_doubtful("a", "pvc-2", None) && !pace.is_doubtful("a", "pvc-2", Some("longhorn")));
        for (volume, unbound_class) in [("bound", None), ("longhorn", Some("longhorn"))] {
            pace.wrote("a", volume, Direction::In, unbound_class);
            pace.came("a", volume, true);
            assert!(pace.is_doubtful("a", "pvc-3", Some("lvm")), "{volume} says nothing of the class");
        }
        pace.wrote("a", "pvc-2", Direction::In, Some("lvm"));
        // it is on its way no more, and another call has looked
        pace.look("a", &BTreeMap::new());
        pace.came("a", "pvc-2", true);
        assert!(!pace.is_doubtful("a", "pvc-3", Some("lvm")) && pace.is_doubtful("a", "pvc-1", Some("lvm")));
        tokio::time::advance(REMEMBERED_FOR).await;
        assert!(!pace.is_doubtful("a", "pvc-1", None));
    }

    /// It may have had the last room of its class.
    #[rstest]
    #[case::before_its_class_was_full(true, Some("lvm"), true)]
    #[case::bound_meanwhile(false, None, true)]
    #[case::into_a_template_alone(false, Some("lvm"), false)]
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_came_leaves_its_class_doubtful(
        #[case] is_before: bool,
        #[case] of_last_write: Option<&str>,
        #[case] is_ready: bool,
    ) {
        let pace = Pace::default();
        pace.wrote("a", "pvc-2", Direction::In, Some("lvm"));
        tokio::time::advance(Duration::from_secs(30)).await;
        pace.keep_out("a", "pvc-1", Some("lvm"), "why");
        if !is_before {
            tokio::time::advance(Duration::from_secs(1)).await;
            pace.wrote("a", "pvc-2", Direction::In, of_last_write);
        }
        pace.came("a", "pvc-2", is_ready);
        assert!(pace.is_doubtful("a", "pvc-3", Some("lvm")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_keeps_its_turn_between_calls_and_has_none_when_it_had_it() {
        let pace = Pace::default();
        pace.wants("a", "pvc-1");
        tokio::time::advance(Duration::from_secs(59)).await;
        pace.wants("a", "pvc-1");
        pace.wants("a", "pvc-2");
        let waiting = || pace.waiting("a").into_values().map(|since| since.as_secs()).collect::<Vec<_>>();
        assert_eq!(waiting(), [59, 0]);
        pace.wrote("a", "pvc-1", Direction::In, None);
        assert_eq!(waiting(), [0]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(waiting(), [0; 0]);
        pace.wants("a", "pvc-2");
        pace.gives_way("a", "pvc-2");
        assert_eq!(waiting(), [0; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_is_kept_out_longer_each_time_and_for_five_minutes_at_most() {
        let pace = Pace::default();
        assert_eq!(pace.times("a", "pvc-1"), 0);
        let pauses: Vec<_> = (0..40).map(|_| pace.keep_out("a", "pvc-1", None, "why").as_secs()).collect();
        assert_eq!(pauses[..6], [15, 30, 60, 120, 240, 300]);
        assert_eq!(pauses[39], 300);
        let kept_out = |is_alone| pace.kept_out("a", "pvc-1", is_alone).map(|(_, rest)| rest.as_secs());
        assert_eq!((kept_out(false), kept_out(true)), (Some(300), Some(60)));
        assert_eq!(pace.kept_out("b", "pvc-1", false), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!((kept_out(false), kept_out(true)), (Some(240), None));
        tokio::time::advance(Duration::from_secs(240)).await;
        assert_eq!(kept_out(false), None);
        assert_eq!(pace.times("a", "pvc-1"), 40);
        pace.came("a", "pvc-1", true);
        assert_eq!(pace.keep_out("a", "pvc-1", None, "why").as_secs(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_did_not_come_stays_doubtful_while_it_waits_for_a_turn() {
        let pace = Pace::default();
        pace.keep_out("a", "pvc-1", None, "why");
        for _ in 0..3 {
            tokio::time::advance(REMEMBERED_FOR / 2).await;
            pace.wants("a", "pvc-1");
            pace.is_unwanted("a", "pvc-1");
            assert!(pace.is_doubtful("a", "pvc-1", None));
        }
        tokio::time::advance(REMEMBERED_FOR).await;
        assert!(!pace.is_doubtful("a", "pvc-1", None));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_had_to_wait_wants_in_for_five_minutes_or_until_it_came() {
        let pace = Pace::default();
        pace.wants("a", "pvc-1");
        assert!(pace.is_waited_for("a", "pvc-2") && !pace.is_waited_for("b", "pvc-2"));
        assert!(!pace.is_waited_for("a", "pvc-1"), "for itself nobody waits");
        tokio::time::advance(Duration::from_secs(299)).await;
        assert!(pace.is_waited_for("a", "pvc-2"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!pace.is_waited_for("a", "pvc-2"));
        pace.wants("a", "pvc-1");
        pace.is_unwanted("a", "pvc-1");
        assert!(!pace.is_waited_for("a", "pvc-2"));
    }

    #[tokio::test(start_paused = true)]
    async fn another_annotation_is_known_from_its_first_sight() {
        let pace = Pace::default();
        for holder in ["p1#1", "p1#2", "p1#1"] {
            assert_eq!(pace.known_for("a", "pvc-1", holder), Duration::ZERO);
            tokio::time::advance(Duration::from_secs(40)).await;
            assert_eq!(pace.known_for("a", "pvc-1", holder).as_secs(), 40);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_wrote_counts_from_its_first_sight() {
        let pace = Pace::default();
        pace.wrote("a", "ours", Direction::In, None);
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

    /// Another process has answered, or has moved it out and in again, while nobody here looked.
    #[rstest]
    #[case::it_came(None)]
    #[case::it_left(Some(Direction::Out))]
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_came_and_comes_again_counts_from_its_new_way(#[case] between: Option<Direction>) {
        let pace = Pace::default();
        let seen = |direction| BTreeMap::from([("pvc-1".to_owned(), direction)]);
        pace.wrote("a", "pvc-1", Direction::In, None);
        tokio::time::advance(Duration::from_secs(5)).await;
        match between {
            Some(direction) => drop(pace.look("a", &seen(direction))),
            None => pace.came("a", "pvc-1", true),
        }
        tokio::time::advance(Duration::from_secs(10_000)).await;
        assert_eq!(pace.look("a", &seen(Direction::In))["pvc-1"], TOGETHER_WITHIN);
    }
}
