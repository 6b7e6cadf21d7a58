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
    }
}

fn target(port: u16, check: Check, ready: bool) -> Target {
    Target { address: SocketAddr::from(([198, 18, 0, 1], port)), check, ready }
}

fn watch(group: &'static str, targets: &[(u16, Check, bool)]) -> Event<&'static str, u16> {
    let targets = targets.iter().map(|(port, check, ready)| (*port, target(*port, *check, *ready))).collect();
    Event::Watch { group, targets }
}

/// A schedule, the time, and backends that answer as they are told.
struct World {
    schedule: Schedule<&'static str, u16>,
    start: Instant,
    now: Instant,
    answers: BTreeMap<u16, Result<(), DialError>>,
    /// Dials with their beginning and when they will end.
    under_way: Vec<(Instant, ProbeId, u16)>,
    /// How long an answer takes.
    latency: Duration,
    dialled: Vec<(Duration, u16)>,
    changes: Vec<(Duration, &'static str)>,
    most: usize,
}

impl World {
    fn new(at_once: usize, seed: u64) -> Self {
        let start = Instant::now();
        Self {
            schedule: Schedule::new(at_once, seed),
            start,
            now: start,
            answers: BTreeMap::new(),
            under_way: Vec::new(),
            latency: Duration::ZERO,
            dialled: Vec::new(),
            changes: Vec::new(),
            most: 0,
        }
    }

    fn on(&mut self, event: Event<&'static str, u16>) {
        for command in self.schedule.on(event, self.now) {
            match command {
                Command::Changed { group } => self.changes.push((self.now - self.start, group)),
                Command::Dial { probe, address, timeout } => {
                    let port = address.port();
                    assert!(
                        self.under_way.iter().all(|(_, _, other)| *other != port),
                        "{port} is dialled twice"
                    );
                    self.dialled.push((self.now - self.start, port));
                    self.under_way.push((self.now + self.latency.min(timeout), probe, port));
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
                let (_, probe, port) = self.under_way.remove(index);
                let answer = self.answers.get(&port).cloned().unwrap_or(Ok(()));
                self.on(Event::Answered { probe, answer });
            } else {
                self.on(Event::Tick);
            }
        }
        self.now = end;
    }

    fn ready(&self, group: &'static str) -> Vec<(u16, bool)> {
        self.schedule.verdicts(&group).into_iter().map(|(port, verdict)| (port, verdict.ready)).collect()
    }

    fn fail(&mut self, port: u16) {
        self.answers.insert(port, Err(DialError::Refused));
    }
}

#[rstest]
#[case::documented_defaults(Check::default())]
#[case::several_successes(check(3, 2, 4, 2))]
fn a_new_backend_is_ready_after_success_threshold_periods_at_the_latest_and_not_before_as_many_probes(
    #[case] check: Check,
    #[values(1, 2, 3, 4, 5)] seed: u64,
) {
    let mut world = World::new(8, seed);
    world.on(watch("web", &[(1, check, false)]));
    let mut probes_before = 0;
    let latest = check.period * check.thresholds.success;
    while world.ready("web") == [(1, false)] {
        probes_before = world.dialled.len();
        assert!(world.now - world.start <= latest, "too late");
        world.pass(Duration::from_millis(50));
    }
    assert_eq!(probes_before + 1, check.thresholds.success as usize);
    assert_eq!(world.changes.len(), 1);
}

#[rstest]
fn a_dead_backend_loses_its_traffic_after_failure_threshold_periods_and_one_timeout_at_the_latest(
    #[values(1, 2, 3, 4, 5)] seed: u64,
) {
    let mut world = World::new(8, seed);
    world.on(watch("web", &[(1, check(1, 3, 5, 3), true)]));
    world.pass(SECOND * 23);
    world.answers.insert(1, Err(DialError::TimedOut));
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
    world.answers.insert(1, Ok(()));
    world.pass(SECOND * 10);
    assert_eq!((error(&world), world.changes.len()), (None, 3));
}

#[rstest]
#[case::ready_before(true, "lllll", true, 0)]
#[case::between_two_failures(true, "l-ll-", false, 1)]
#[case::between_a_success_and_another(false, "+ll+", true, 2)]
#[case::not_ready_before(false, "llll", false, 1)]
fn that_we_could_not_dial_is_counted_for_and_against_nobody(
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
    // load-balancer.md 10.5
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
    // load-balancer.md 10.5
    let mut world = World::new(8, 7);
    let on_port =
        |port| Event::Watch { group: "web", targets: [(1, target(port, check(1, 1, 1, 1), false))].into() };
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
fn groups_that_probe_one_address_are_judged_apart() {
    let mut world = World::new(8, 7);
    world.answers.insert(1, Err(DialError::Refused));
    let mut slow = check(1, 9, 1, 1);
    slow.period = SECOND * 3;
    let strict = target(1, check(1, 1, 1, 1), true);
    world
        .schedule
        .on(Event::Watch { group: "lenient", targets: [(1, target(1, slow, true))].into() }, world.now);
    world.schedule.on(Event::Watch { group: "strict", targets: [(1, strict)].into() }, world.now);
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
fn first_probes_are_spread_over_the_period() {
    // pitfalls-load-balancer.md PR-6: there, ten thousand workers fire together
    let mut world = World::new(10_000, 7);
    let all: Vec<(u16, Check, bool)> = (0..10_000).map(|port| (port, check(1, 3, 5, 3), true)).collect();
    world.on(watch("web", &all));
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
    /// Whatever is watched, changed and removed, and however slow answers are: never two probes of one backend at
    /// once (asserted in `World::on`), never more dials than allowed, and in the end everybody is judged truly.
    #[test]
    fn any_history_ends_in_true_verdicts(
        seed: u64,
        at_once in 1..4_usize,
        latency in 0..3_u64,
        history in proptest::collection::vec((proptest::collection::btree_map(0..6_u16, (1..3_u32, 1..3_u32, 1..4_u64), 0..6), 0..6_u64), 0..12),
        dead in proptest::collection::btree_set(0..6_u16, 0..6),
    ) {
        let mut world = World::new(at_once, seed);
        world.latency = SECOND * u32::try_from(latency).unwrap() / 2;
        for port in &dead {
            world.fail(*port);
        }
        let mut last = Vec::new();
        for (targets, pause) in history {
            last = targets.into_iter().map(|(port, (success, failure, period))| (port, check(success, failure, period, 2), port % 2 == 0)).collect();
            world.on(watch("web", &last));
            world.pass(SECOND * u32::try_from(pause).unwrap());
        }
        world.pass(SECOND * 60);
        prop_assert!(world.most <= at_once);
        let truth: Vec<(u16, bool)> = last.iter().map(|(port, ..)| (*port, !dead.contains(port))).collect();
        prop_assert_eq!(world.ready("web"), truth);
        for (port, verdict) in world.schedule.verdicts(&"web") {
            prop_assert_eq!(verdict.error.is_some(), dead.contains(&port));
        }
    }
}
