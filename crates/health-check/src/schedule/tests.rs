use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::Thresholds;

const SECOND: Duration = Duration::from_secs(1);

fn check(success: u32, failure: u32, period: u64, timeout: u64) -> Check {
    Check {
        thresholds: Thresholds { success, failure },
        period: SECOND * u32::try_from(period).unwrap(),
        timeout: SECOND * u32::try_from(timeout).unwrap(),
        http: None,
    }
}

fn target(port: u16, check: Check, recorded: impl Into<Option<bool>>) -> Target {
    Target { address: SocketAddr::from(([198, 18, 0, 1], port)), check, recorded: recorded.into() }
}

/// Backends of which a verdict is recorded.
fn watch(object: &'static str, targets: &[(u16, Check, bool)]) -> Input<&'static str, u16> {
    let target = |(port, check, ready): &(u16, Check, bool)| (*port, target(*port, check.clone(), *ready));
    Input::Targets { object, targets: targets.iter().map(target).collect() }
}

/// New backends.
fn watch_new(
    object: &'static str,
    ports: impl IntoIterator<Item = u16>,
    check: &Check,
) -> Input<&'static str, u16> {
    let targets = ports.into_iter().map(|port| (port, target(port, check.clone(), None))).collect();
    Input::Targets { object, targets }
}

/// The part of an object's name before the slash.
fn group<'a>(object: &'a &'static str) -> &'a str {
    object.split('/').next().unwrap_or_default()
}

/// A schedule, the time, and backends with prepared answers.
struct World {
    schedule: Schedule<&'static str, u16>,
    start: Instant,
    now: Instant,
    answers: BTreeMap<u16, Result<(), DialError>>,
    /// Dials with their beginning and when they will end.
    under_way: Vec<(Instant, ProbeId, u16)>,
    /// How long an answer takes.
    latency: Duration,
    /// Ports from here on never answer.
    silent_from: u16,
    dialled: Vec<(Duration, u16)>,
    changes: Vec<(Duration, &'static str)>,
    most: usize,
    flaps: usize,
}

impl World {
    fn new(at_once: usize, seed: u64) -> Self {
        let start = Instant::now();
        Self {
            schedule: Schedule::new(at_once, seed, group),
            start,
            now: start,
            answers: BTreeMap::new(),
            under_way: Vec::new(),
            latency: Duration::ZERO,
            silent_from: u16::MAX,
            dialled: Vec::new(),
            changes: Vec::new(),
            most: 0,
            flaps: 0,
        }
    }

    fn on(&mut self, input: Input<&'static str, u16>) {
        for command in self.schedule.on(input, self.now) {
            match command {
                Command::Changed { object } => self.changes.push((self.now - self.start, object)),
                Command::Flaps => self.flaps += 1,
                Command::Dial { id, probe, timeout, may_be_late: _ } => {
                    let port = probe.address.port();
                    assert!(
                        self.under_way.iter().all(|(_, _, other)| *other != port),
                        "{port} is dialled twice"
                    );
                    self.dialled.push((self.now - self.start, port));
                    assert!(timeout <= LONGEST_DIAL);
                    let latency = if port < self.silent_from { self.latency.min(timeout) } else { timeout };
                    self.under_way.push((self.now + latency, id, port));
                    self.most = self.most.max(self.under_way.len());
                }
            }
        }
    }

    /// Lets time go by, with a tick and an answer exactly when they are due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let answer = self.under_way.iter().map(|(at, ..)| *at).min();
            let tick = self.schedule.wakes_at();
            let Some(next) = answer.into_iter().chain(tick).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if answer == Some(next) {
                let index = self.under_way.iter().position(|(at, ..)| *at == next).unwrap();
                let (_, id, port) = self.under_way.remove(index);
                let silent = port >= self.silent_from;
                let usual = if silent { Err(DialError::NoAnswer { within: self.latency }) } else { Ok(()) };
                let answer = self.answers.get(&port).cloned().unwrap_or(usual);
                self.on(Input::Answered { id, answer });
            } else {
                self.on(Input::Tick);
            }
        }
        self.now = end;
    }

    fn ready(&self, object: &'static str) -> Vec<(u16, bool)> {
        self.schedule.verdicts(&object).into_iter().map(|(port, verdict)| (port, verdict.ready)).collect()
    }

    fn fail(&mut self, port: u16) {
        self.answers.insert(port, Err(DialError::Refused));
    }
}

#[rstest]
#[case::documented_defaults(Check::default())]
#[case::several_successes(check(3, 2, 4, 2))]
fn a_new_backend_is_probed_at_once_and_ready_after_as_many_probes_as_it_needs_less_one_period(
    #[case] check: Check,
    #[values(1, 2, 3, 4, 5)] seed: u64,
) {
    let mut world = World::new(8, seed);
    world.on(watch_new("web", [1], &check));
    assert_eq!(world.dialled, [(Duration::ZERO, 1)]);
    let success = check.thresholds.success;
    world.pass(check.period * success);
    let (ready_at, _) = world.changes[0];
    assert!(ready_at <= check.period * (success - 1), "{ready_at:?}");
    let probes = world.dialled.iter().filter(|(at, _)| *at <= ready_at).count();
    assert_eq!(probes, success as usize);
    assert_eq!((world.ready("web"), world.changes.len()), (vec![(1, true)], 1));
}

#[test]
fn a_new_backend_whose_check_changes_while_it_waits_for_its_first_probe_gets_it_when_a_slot_is_free() {
    let mut world = World::new(1, 7);
    world.latency = SECOND;
    world.on(watch_new("other", [1], &check(1, 1, 100, 10)));
    world.on(watch_new("web", [2], &check(1, 1, 100, 1)));
    world.on(watch_new("web", [2], &check(2, 1, 100, 1)));
    world.pass(SECOND);
    assert_eq!(world.dialled, [(Duration::ZERO, 1), (SECOND, 2)]);
}

#[test]
fn new_backends_that_come_together_do_not_stay_together() {
    let mut world = World::new(10_000, 7);
    world.on(watch_new("a/web", 0..1_000, &check(1, 3, 5, 3)));
    world.pass(SECOND * 6);
    let mut probes: BTreeMap<u16, Vec<Duration>> = BTreeMap::new();
    for (at, port) in &world.dialled {
        probes.entry(*port).or_default().push(*at);
    }
    assert_eq!(probes.len(), 1_000);
    assert!(probes.values().all(|at| at[0] <= SECOND / 2), "as fast as a group may");
    for half in 2..10 {
        let range = SECOND / 2 * half..SECOND / 2 * (half + 1);
        let dialled = probes.values().filter(|at| range.contains(&at[1])).count();
        assert!((70..130).contains(&dialled), "{dialled} in {range:?}");
    }
}

#[test]
fn a_group_dials_by_tls_two_hundred_times_a_second_and_delays_nobody() {
    let mut world = World::new(512, 7);
    let http = HttpGet::parse("/", "HTTPS").unwrap();
    world.on(watch_new("noisy/web", 100..2_100, &Check { http, ..check(1, 1, 1, 1) }));
    world.on(watch("quiet/web", &[(1, check(1, 3, 1, 1), false)]));
    world.pass(SECOND * 10);
    let of = |noisy: bool| -> Vec<Duration> {
        let chosen = world.dialled.iter().filter(|(_, port)| (*port >= 100) == noisy);
        chosen.map(|(at, _)| *at).collect()
    };
    let (noisy, quiet) = (of(true), of(false));
    assert!((1_990..=2_020).contains(&noisy.len()), "{} dials in ten seconds", noisy.len());
    assert!(quiet.windows(2).all(|pair| pair[1] - pair[0] == SECOND), "{quiet:?}");
}

#[rstest]
fn a_dead_backend_loses_its_traffic_after_failure_threshold_periods_and_one_timeout_at_the_latest(
    #[values(1, 2, 3, 4, 5)] seed: u64,
) {
    let mut world = World::new(8, seed);
    world.on(watch("web", &[(1, check(1, 3, 5, 3), true)]));
    world.pass(SECOND * 23);
    world.answers.insert(1, Err(DialError::NoAnswer { within: SECOND * 3 }));
    world.latency = SECOND * 3;
    world.pass(SECOND * (3 * 5 + 3));
    assert_eq!(world.ready("web"), [(1, false)]);
}

#[tokio::test(start_paused = true)]
async fn the_error_follows_its_newest_kind_and_the_same_again_is_no_news() {
    let mut world = World::new(8, 1);
    world.fail(1);
    world.on(watch("web", &[(1, check(1, 2, 1, 1), false)]));
    let error = |world: &World| world.schedule.verdicts(&"web")[&1].error.clone();
    world.pass(SECOND * 10);
    assert_eq!((error(&world), world.changes.len()), (Some(DialError::Refused), 1));
    world.answers.insert(1, Err(DialError::Unreachable("no route to host".to_owned())));
    world.pass(SECOND * 10);
    assert_eq!(world.changes.len(), 2);
    assert!(matches!(error(&world), Some(DialError::Unreachable(_))));
    world.answers.insert(1, Err(DialError::Unreachable("network is down".to_owned())));
    world.pass(SECOND * 10);
    assert_eq!(world.changes.len(), 2, "another wording is the same kind");
    for (status, changes) in [(503, 3), (503, 3), (404, 4)] {
        world.answers.insert(1, Err(DialError::Status(status)));
        world.pass(ERROR_AGAIN);
        assert_eq!((error(&world), world.changes.len()), (Some(DialError::Status(status)), changes));
    }
    world.answers.insert(1, Ok(()));
    world.pass(SECOND * 10);
    assert_eq!((error(&world), world.changes.len()), (None, 5));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_stays_down_writes_its_last_error_seldom() {
    let mut world = World::new(8, 1);
    world.on(watch("web", &[(1, check(1, 1, 1, 1), true)]));
    for second in 0..600 {
        world.answers.insert(1, Err(DialError::Status(if second % 2 == 0 { 502 } else { 503 })));
        world.pass(SECOND);
    }
    assert_eq!(world.ready("web"), [(1, false)]);
    assert!(world.changes.len() <= 3 + 10, "{:?}", world.changes);
    let last = world.changes.last().unwrap().0;
    world.answers.insert(1, Ok(()));
    world.pass(SECOND * 2);
    assert_eq!(world.ready("web"), [(1, true)], "that it serves again is no matter of a minute");
    world.fail(1);
    world.pass(SECOND * 2);
    assert_eq!(world.ready("web"), [(1, false)]);
    assert!(world.changes.last().unwrap().0 - last < ERROR_AGAIN);
}

// docs/contract/load-balancer.md#PR-11
#[tokio::test(start_paused = true)]
async fn a_backend_that_loses_its_readiness_again_and_again_flaps_and_one_that_is_down_does_not() {
    let mut world = World::new(8, 1);
    world.on(watch("web", &[(1, check(1, 1, 1, 1), true), (2, check(1, 1, 1, 1), true)]));
    world.fail(2);
    world.fail(1);
    world.pass(SECOND * 30);
    assert_eq!(world.flaps, 0);
    for (pause, flaps) in [(60, 1), (60, 2), (FLAPS_WITHIN.as_secs() + 1, 2)] {
        world.answers.insert(1, Ok(()));
        world.pass(Duration::from_secs(pause));
        world.fail(1);
        world.pass(SECOND * 30);
        assert_eq!(world.flaps, flaps);
    }
}

#[rstest]
// docs/contract/load-balancer.md#PR-4
#[case::ready_before(true, "lllll", true, 0)]
#[case::between_two_failures(true, "l-ll-", false, 1)]
#[case::between_a_success_and_another(false, "+ll+", true, 2)]
#[case::not_ready_before(false, "llll", false, 1)]
fn a_dial_that_failed_on_our_own_side_counts_for_and_against_no_backend(
    #[case] before: bool,
    #[case] answers: &str,
    #[case] ready: bool,
    #[case] changes: usize,
) {
    // `+` and `-` are the backend's answers, `l` is our own failure
    let mut world = World::new(8, 7);
    world.on(watch("web", &[(1, check(2, 2, 1, 1), before)]));
    let first = world.schedule.wakes_at().unwrap();
    world.pass(first - world.now - Duration::from_millis(1));
    for answer in answers.chars() {
        let answer = match answer {
            '+' => Ok(()),
            '-' => Err(DialError::Refused),
            _ => Err(DialError::Local("too many open files".to_owned())),
        };
        world.answers.insert(1, answer);
        world.pass(SECOND);
    }
    assert_eq!(world.dialled.len(), answers.len());
    assert_eq!((world.ready("web"), world.changes.len()), (vec![(1, ready)], changes));
    let error = world.schedule.verdicts(&"web")[&1].error.clone();
    assert_eq!(error.is_some(), !ready, "{error:?}");
}

#[test]
fn verdicts_survive_every_change_of_the_check_and_counters_do_not() {
    // docs/contract/load-balancer.md#10.5
    let mut world = World::new(8, 7);
    world.fail(1);
    world.on(watch("web", &[(1, check(1, 3, 1, 1), true)]));
    world.pass(SECOND * 2);
    assert_eq!(world.dialled.len(), 2, "two failures, one short of the threshold");
    world.on(watch("web", &[(1, check(1, 3, 2, 1), false)]));
    assert_eq!(world.ready("web"), [(1, true)]);
    world.pass(SECOND * 4);
    assert_eq!(world.ready("web"), [(1, true)], "two failures of the new check");
    world.pass(SECOND * 2);
    assert_eq!(world.ready("web"), [(1, false)]);
}

#[test]
fn a_verdict_survives_a_change_of_the_port() {
    // docs/contract/load-balancer.md#10.5
    let mut world = World::new(8, 7);
    let on_port = |port| Input::Targets {
        object: "web",
        targets: [(1, target(port, check(1, 1, 1, 1), false))].into(),
    };
    world.on(on_port(80));
    world.pass(SECOND);
    assert_eq!(world.ready("web"), [(1, true)]);
    world.fail(81);
    world.on(on_port(81));
    assert_eq!(world.ready("web"), [(1, true)]);
    world.pass(SECOND);
    assert_eq!(world.ready("web"), [(1, false)]);
}

#[test]
fn watching_the_same_targets_again_changes_nothing() {
    let mut world = World::new(8, 7);
    let mut once = World::new(8, 7);
    once.on(watch("web", &[(1, check(3, 3, 1, 1), false)]));
    once.pass(SECOND * 9);
    for _ in 0..90 {
        world.on(watch("web", &[(1, check(3, 3, 1, 1), false)]));
        world.pass(SECOND / 10);
    }
    assert_eq!(world.dialled, once.dialled);
    assert_eq!(world.changes, once.changes);
}

// docs/contract/load-balancer.md#PR-5
#[test]
fn a_backend_that_leaves_and_comes_back_is_new_and_an_old_answer_does_not_count_for_it() {
    let mut world = World::new(8, 7);
    world.latency = SECOND * 3;
    world.on(watch("web", &[(1, check(1, 1, 5, 4), false)]));
    world.pass(SECOND * 5);
    let dialled = world.dialled.len();
    assert_eq!((dialled, world.under_way.len()), (1, 1));
    world.on(watch("web", &[]));
    assert_eq!(world.ready("web"), []);
    world.on(watch("web", &[(1, check(1, 1, 5, 4), false)]));
    world.pass(SECOND * 3);
    assert_eq!(world.ready("web"), [(1, false)], "the answer was the old one's");
    world.pass(SECOND * 8);
    assert_eq!(world.ready("web"), [(1, true)]);
}

#[test]
fn a_backend_that_comes_back_during_its_dial_begins_with_the_verdict_it_is_given() {
    let mut world = World::new(8, 7);
    let with = |ready| watch("web", &[(1, check(1, 9, 5, 4), ready)]);
    world.on(with(true));
    world.latency = SECOND * 4;
    world.pass(SECOND * 5);
    assert_eq!(world.under_way.len(), 1);
    world.on(watch("web", &[]));
    world.on(with(false));
    assert_eq!(world.ready("web"), [(1, false)]);
}

#[test]
fn objects_that_probe_one_address_have_verdicts_of_their_own() {
    let mut world = World::new(8, 7);
    world.answers.insert(1, Err(DialError::Refused));
    let mut slow = check(1, 9, 1, 1);
    slow.period = SECOND * 3;
    let strict = target(1, check(1, 1, 1, 1), true);
    world
        .schedule
        .on(Input::Targets { object: "lenient", targets: [(1, target(1, slow, true))].into() }, world.now);
    world.schedule.on(Input::Targets { object: "strict", targets: [(1, strict)].into() }, world.now);
    world.pass(SECOND);
    assert_eq!((world.ready("strict"), world.ready("lenient")), (vec![(1, false)], vec![(1, true)]));
}

#[test]
fn an_answer_that_takes_longer_than_the_period_delays_the_next_probe() {
    let mut world = World::new(8, 7);
    world.latency = SECOND * 3;
    world.on(watch("web", &[(1, check(1, 1, 1, 3), false)]));
    world.pass(SECOND * 10);
    let gaps: Vec<Duration> = world.dialled.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps, [SECOND * 3; 3]);
}

#[test]
fn a_dial_lasts_thirty_seconds_at_most_and_the_next_probe_waits_for_it() {
    // docs/contract/load-balancer.md#10.3
    let mut world = World::new(8, 7);
    world.silent_from = 1;
    world.on(watch("web", &[(1, check(1, 1, 5, 24 * 60 * 60), true)]));
    world.pass(SECOND * 100);
    let gaps: Vec<Duration> = world.dialled.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps, [LONGEST_DIAL; 3]);
    assert_eq!(world.ready("web"), [(1, false)]);
}

/// Silent targets in one group, and one target of another group, all due in the same way.
#[rstest]
#[case::short_dials_of_one_object(1, 1, 5_000, 1)]
#[case::long_dials_of_one_object(1, 1, 5_000, 3)]
#[case::dials_of_a_day_in_one_object(1, 1, 5_000, 24 * 60 * 60)]
#[case::dials_of_a_day_in_many_objects(1, 100, 50, 24 * 60 * 60)]
#[case::dials_of_a_day_in_five_groups(5, 1, 1_000, 24 * 60 * 60)]
fn five_thousand_silent_targets_delay_another_groups_probe_by_a_period_at_most(
    #[case] groups: usize,
    #[case] objects: usize,
    #[case] targets: u16,
    #[case] timeout: u64,
    #[values(1, 5)] period: u64,
) {
    let mut world = World::new(512, 7);
    world.silent_from = 100;
    let mut port = 100;
    for group in 0..groups {
        for object in 0..objects {
            let all: Vec<_> =
                (0..targets).map(|target| (port + target, check(1, 1, 1, timeout), true)).collect();
            port += targets;
            let name: &'static str = format!("noisy-{group}/{object}").leak();
            world.on(watch(name, &all));
        }
    }
    world.pass(SECOND * 40);
    world.on(watch("quiet/web", &[(1, check(1, 3, period, 3), false)]));
    world.pass(SECOND * 60);
    let period = SECOND * u32::try_from(period).unwrap();
    let probes: Vec<Duration> =
        world.dialled.iter().filter(|(_, port)| *port == 1).map(|(at, _)| *at).collect();
    let latest = probes.windows(2).map(|pair| pair[1] - pair[0] - period).max().unwrap();
    assert!(latest <= period.max(SECOND), "a probe came {latest:?} late");
    assert!(probes[0] <= SECOND * 40 + period * 2);
    assert_eq!(world.ready("quiet/web"), [(1, true)]);
    assert!(world.most <= 512);
}

// docs/contract/load-balancer.md#S-4
#[test]
fn a_group_of_fifty_thousand_targets_dials_two_thousand_times_a_second_and_delays_nobody() {
    let mut world = World::new(512, 7);
    let all: Vec<_> = (100..50_100).map(|port| (port, check(1, 1, 1, 1), false)).collect();
    world.on(watch("noisy/web", &all));
    world.on(watch("quiet/web", &[(1, check(1, 3, 1, 1), false)]));
    world.pass(SECOND * 30);
    let of = |noisy: bool| -> Vec<Duration> {
        let chosen = world.dialled.iter().filter(|(_, port)| (*port >= 100) == noisy);
        chosen.map(|(at, _)| *at).collect()
    };
    let (noisy, quiet) = (of(true), of(false));
    let second_after =
        |first: usize| noisy[first..].iter().take_while(|at| **at < noisy[first] + SECOND).count();
    let most = (0..noisy.len()).step_by(100).map(second_after).max().unwrap();
    assert!((1_990..=2_020).contains(&most), "{most} dials in one second");
    assert!(quiet.windows(2).all(|pair| pair[1] - pair[0] == SECOND), "{quiet:?}");
    assert!(world.ready("noisy/web").iter().all(|(_, ready)| *ready), "everybody gets a turn");
}

#[test]
fn every_silent_target_of_a_group_at_its_limit_gets_its_turn() {
    let mut world = World::new(8, 7);
    world.silent_from = 1;
    let of = |first: u16| (first..first + 10).map(|port| (port, check(1, 1, 1, 2), true)).collect::<Vec<_>>();
    world.on(watch("noisy/one", &of(1)));
    world.on(watch("noisy/two", &of(11)));
    world.pass(SECOND * 30);
    let verdicts = [world.ready("noisy/one"), world.ready("noisy/two")].concat();
    assert!(verdicts.iter().all(|(_, ready)| !ready), "{verdicts:?}");
    assert_eq!(world.most, 2, "a quarter of the slots");
}

#[test]
fn a_target_that_changes_while_it_waits_for_a_slot_is_dialled_once_and_by_its_new_check() {
    let mut world = World::new(1, 7);
    world.latency = SECOND * 10;
    world.on(watch("web", &[(1, check(1, 1, 1, 10), false), (2, check(1, 1, 1, 10), false)]));
    world.pass(SECOND);
    let (_, first) = world.dialled[0];
    let waits = 3 - first;
    let changed = |port: u16| (port, check(1, 1, if port == waits { 100 } else { 1 }, 10), false);
    world.on(watch("web", &[changed(1), changed(2)]));
    world.pass(SECOND * 20);
    assert!(world.dialled.iter().all(|(_, port)| *port == first), "{:?}", world.dialled);
    world.pass(SECOND * 200);
    assert_eq!(world.ready("web"), [(1, true), (2, true)]);
}

#[test]
fn first_probes_are_spread_over_the_period() {
    // docs/contract/load-balancer.md#PR-6: in the Go program ten thousand states fire together
    let mut world = World::new(10_000, 7);
    for (group, first) in [("a/web", 0), ("b/web", 2_500), ("c/web", 5_000), ("d/web", 7_500)] {
        let targets = (first..first + 2_500).map(|port| (port, check(1, 3, 5, 3), true));
        world.on(watch(group, &targets.collect::<Vec<_>>()));
    }
    world.pass(SECOND * 5);
    assert_eq!(world.dialled.len(), 10_000);
    for tenth in 0..10 {
        let half_second = Duration::from_millis(500);
        let range = half_second * tenth..half_second * (tenth + 1);
        let dialled = world.dialled.iter().filter(|(at, _)| range.contains(at)).count();
        assert!((800..1200).contains(&dialled), "{dialled} in {range:?}");
    }
}

proptest! {
    /// For any order of watches, changes and removals, and however slow answers are: never two probes of one backend
    /// at once (asserted in `World::on`), never more dials than allowed, and in the end every verdict is true.
    #[test]
    fn any_history_ends_in_true_verdicts(
        seed: u64,
        at_once in 1..4_usize,
        latency in 0..3_u64,
        history in proptest::collection::vec((0..4_usize, proptest::collection::btree_map(0..6_u16, (1..3_u32, 1..3_u32, 1..4_u64, 1..4_u64), 0..6), 0..6_u64), 0..12),
        dead in proptest::collection::btree_set(0..24_u16, 0..12),
    ) {
        const OBJECTS: [&str; 4] = ["shop/web", "shop/api", "bank/web", "mail/smtp"];
        let mut world = World::new(at_once, seed);
        world.latency = SECOND * u32::try_from(latency).unwrap() / 2;
        for port in &dead {
            world.fail(*port);
        }
        let mut last: [Vec<(u16, Check, bool)>; 4] = Default::default();
        for (object, targets, pause) in history {
            // every object has ports of its own
            let first = u16::try_from(object).unwrap() * 6;
            last[object] = targets.into_iter().map(|(port, (success, failure, period, timeout))| (first + port, check(success, failure, period, timeout), port % 2 == 0)).collect();
            world.on(watch(OBJECTS[object], &last[object]));
            world.pass(SECOND * u32::try_from(pause).unwrap());
        }
        world.pass(SECOND * 120);
        prop_assert!(world.most <= at_once);
        for (object, last) in OBJECTS.into_iter().zip(last) {
            let truth: Vec<(u16, bool)> = last.iter().map(|(port, ..)| (*port, !dead.contains(port))).collect();
            prop_assert_eq!(world.ready(object), truth);
            for (port, verdict) in world.schedule.verdicts(&object) {
                prop_assert_eq!(verdict.error.is_some(), dead.contains(&port));
            }
        }
    }
}
