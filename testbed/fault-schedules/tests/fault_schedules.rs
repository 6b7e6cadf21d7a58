//! Runs the seeds that `FAULT_SEEDS` names, as `first..end`, or a few. Each in a process of its own: tokio numbers the
//! runtimes of a process, and what it draws depends on the number.
#![cfg(test)]

#[path = "fault_schedules/chance.rs"]
mod chance;

use std::env;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::process::{Command, exit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use fault_schedules::{Meanwhile, Story, stopped_before_a_mark, stopped_leader};
use test_cluster::{Rights, on_simulated};
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Enough to see that the harness works; `cargo xtask seeds` runs a thousand.
const A_FEW: Range<u64> = 0..6;

/// A storm takes less than a second in a release build; one that takes so long never ends.
const HANGS_AFTER: Duration = Duration::from_secs(300);

fn seeds() -> Range<u64> {
    env::var("FAULT_SEEDS").map_or(A_FEW, |text| {
        let (first, end) = text.split_once("..").expect("FAULT_SEEDS is first..end");
        first.parse().expect("a number")..end.parse().expect("a number")
    })
}

/// Seconds and thousandths since the beginning of the storm's process, on the clock that stands still.
struct SchedulesTime;

impl FormatTime for SchedulesTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        write!(out, "{:8.3}", BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64())
    }
}

#[test]
#[ignore = "the other tests run it, with the seed in FAULT_SEED"]
fn one_storm() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_timer(SchedulesTime).init();
    }
    let seed = env::var("FAULT_SEED").map_or(0, |seed| seed.parse().expect("FAULT_SEED is a number"));
    // a thread that has drawn nothing yet, whether there is a log or not
    let storm = thread::spawn(move || {
        chance::begin(seed);
        on_simulated(fault_schedules::rights(seed), async |cluster| {
            let Story { requests, faults, deaths } = Box::pin(fault_schedules::run(seed, cluster)).await;
            let mut digest = DefaultHasher::new();
            requests.iter().for_each(|request| format!("{request:?}").hash(&mut digest));
            println!("story {} {faults} {deaths} {:x}", requests.len(), digest.finish());
            // the clusters are taken down by the kernel, which is quicker
            exit(0);
        });
    });
    thread::spawn(|| {
        thread::sleep(HANGS_AFTER);
        println!("hangs: everybody is busy, and no time passes");
        exit(1);
    });
    storm.join().expect("the storm does no harm");
}

/// What a storm says of itself; `None` where it failed, after showing why.
fn story(seed: u64) -> Option<String> {
    let this = env::current_exe().expect("a test has a file");
    let storm = Command::new(this)
        .args(["--exact", "one_storm", "--include-ignored", "--nocapture"])
        .env("FAULT_SEED", seed.to_string())
        .output()
        .expect("a test can be started");
    let text = String::from_utf8_lossy(&storm.stdout).into_owned();
    let story = text.lines().find_map(|line| line.split_once("story ")).map(|(_, story)| story.to_owned());
    if env::var_os("RUST_LOG").is_some() || story.is_none() {
        println!("seed {seed}:\n{text}{}", String::from_utf8_lossy(&storm.stderr));
    }
    story.filter(|_| storm.status.success())
}

/// Requests, faults, deaths.
fn numbers(story: &str) -> [u64; 3] {
    let mut words = story.split_whitespace();
    [(); 3].map(|()| words.next().and_then(|word| word.parse().ok()).expect("a story has numbers"))
}

#[test]
fn after_any_storm_everything_is_as_if_there_had_been_none() {
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let (stories, failed) = (Mutex::new(vec![]), Mutex::new(vec![]));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    match story(seed) {
                        Some(story) => stories.lock().expect("nobody panics with it").push(numbers(&story)),
                        None => failed.lock().expect("nobody panics with it").push(seed),
                    }
                }
            });
        }
    });
    let stories = stories.into_inner().expect("nobody panics with it");
    let sum = |at: usize| stories.iter().map(|numbers| numbers[at]).sum::<u64>();
    println!("{} storms: {} requests, {} faults, {} deaths", stories.len(), sum(0), sum(1), sum(2));
    let mut failed = failed.into_inner().expect("nobody panics with it");
    failed.sort_unstable();
    assert!(failed.is_empty(), "these seeds failed, `cargo xtask seeds --replay SEED` shows one: {failed:?}");
    assert!(stories.iter().all(|[_, faults, deaths]| faults * deaths > 0), "a storm that harms nobody");
}

#[test]
fn a_seed_always_makes_the_same_run() {
    for seed in [1, 2] {
        let [first, second] = [seed; 2].map(|seed| story(seed).expect("the seed holds"));
        assert_eq!(first, second);
    }
}

#[test]
fn a_leader_that_was_stopped_between_two_writes_of_a_claim_does_no_harm_when_it_goes_on() {
    for rights in [Rights::Ours, Rights::Existing] {
        for on_host in [false, true] {
            for meanwhile in [Meanwhile::Stays, Meanwhile::Goes, Meanwhile::GoesBeforeOthers] {
                println!("{rights:?}, on the host path: {on_host}, the owner: {meanwhile:?}");
                on_simulated(rights, async |cluster| {
                    Box::pin(stopped_leader(on_host, meanwhile, cluster)).await;
                });
            }
        }
    }
}

/// What seed 55 met: the Service was never announced, because the mark told the guest's kube-vip to leave it alone.
#[test]
fn the_mark_of_a_manager_that_was_stopped_does_not_come_over_a_new_service_of_the_same_name() {
    for rights in [Rights::Ours, Rights::Existing] {
        on_simulated(rights, async |cluster| Box::pin(stopped_before_a_mark(cluster)).await);
    }
}
