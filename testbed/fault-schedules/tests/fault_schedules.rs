//! Runs the seeds that `FAULT_SEEDS` names, as `55,840,0..100`, or a few. Each seed runs in a process of its own: tokio
//! numbers the runtimes of a process, and its random choices depend on the number.
#![cfg(test)]

#[path = "fault_schedules/chance.rs"]
mod chance;

use std::env;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::{Command, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use fault_schedules::{
    Handover, Meanwhile, Report, failed_seeds, hand_over, parse_seeds, stopped_before_a_mark, stopped_leader,
};
use sim_harvester::Release;
use test_cluster::{Rights, on_simulated};
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Enough to see that the harness works; `cargo xtask seeds` runs more.
const A_FEW: &str = "0..6";

/// A run takes less than a second in a release build; a run that takes this long never ends.
const HANGS_AFTER: Duration = Duration::from_secs(300);

fn seeds() -> Vec<u64> {
    let text = env::var("FAULT_SEEDS");
    parse_seeds(text.as_deref().unwrap_or(A_FEW)).expect("FAULT_SEEDS is a list of seeds and ranges")
}

/// Seconds and thousandths since the process began, on the paused clock.
struct SchedulesTime;

impl FormatTime for SchedulesTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        write!(out, "{:8.3}", BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64())
    }
}

#[test]
#[ignore = "the other tests run it, with the seed in FAULT_SEED"]
fn one_run() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_timer(SchedulesTime).init();
    }
    let seed = env::var("FAULT_SEED").map_or(0, |seed| seed.parse().expect("FAULT_SEED is a number"));
    // a new thread has drawn no random number yet, with a log and without
    let run = thread::spawn(move || {
        chance::begin(seed);
        on_simulated(fault_schedules::rights(seed), async |cluster| {
            let Report { requests, faults, deaths } = Box::pin(fault_schedules::run(seed, cluster)).await;
            let mut digest = DefaultHasher::new();
            requests.iter().for_each(|request| format!("{request:?}").hash(&mut digest));
            println!("report {} {faults} {deaths} {:x}", requests.len(), digest.finish());
            // the kernel ends the clusters faster
            exit(0);
        });
    });
    thread::spawn(|| {
        thread::sleep(HANGS_AFTER);
        println!("hangs: a task is always ready, and no time passes");
        exit(1);
    });
    run.join().expect("the run does not panic");
}

/// The report of a run; `None` where it failed, after the output that shows why.
fn report(seed: u64) -> Option<String> {
    let this = env::current_exe().expect("a test has a file");
    let run = Command::new(this)
        .args(["--exact", "one_run", "--include-ignored", "--nocapture"])
        .env("FAULT_SEED", seed.to_string())
        .output()
        .expect("a test can be started");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let report =
        text.lines().find_map(|line| line.split_once("report ")).map(|(_, report)| report.to_owned());
    if env::var_os("RUST_LOG").is_some() || report.is_none() {
        println!("seed {seed}:\n{text}{}", String::from_utf8_lossy(&run.stderr));
    }
    report.filter(|_| run.status.success())
}

/// Requests, faults, deaths.
fn numbers(report: &str) -> [u64; 3] {
    let mut words = report.split_whitespace();
    [(); 3].map(|()| words.next().and_then(|word| word.parse().ok()).expect("a report has numbers"))
}

/// Runs the seeds, as many at a time as there are processors.
fn must_hold(seeds: &[u64]) {
    let next = AtomicUsize::new(0);
    let (reports, failed) = (Mutex::new(vec![]), Mutex::new(vec![]));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match report(seed) {
                        Some(report) => reports.lock().expect("no panic with it").push(numbers(&report)),
                        None => failed.lock().expect("no panic with it").push(seed),
                    }
                }
            });
        }
    });
    let reports = reports.into_inner().expect("no panic with it");
    let sum = |at: usize| reports.iter().map(|numbers| numbers[at]).sum::<u64>();
    println!("{} runs: {} requests, {} faults, {} deaths", reports.len(), sum(0), sum(1), sum(2));
    let mut failed = failed.into_inner().expect("no panic with it");
    failed.sort_unstable();
    assert!(failed.is_empty(), "these seeds failed, `cargo xtask seeds --replay SEED` shows one: {failed:?}");
    assert!(reports.iter().all(|[_, faults, deaths]| faults * deaths > 0), "a run without fault or death");
}

#[test]
fn after_any_storm_everything_is_as_if_there_had_been_none() {
    must_hold(&seeds());
}

#[test]
fn every_seed_that_ever_failed_holds() {
    must_hold(&failed_seeds());
}

#[test]
fn a_seed_always_makes_the_same_run() {
    for seed in [1, 2] {
        let [first, second] = [seed; 2].map(|seed| report(seed).expect("the seed holds"));
        assert_eq!(first, second);
    }
}

#[test]
fn a_leader_that_was_stopped_between_two_writes_of_a_claim_does_no_harm_when_it_goes_on() {
    for rights in [Rights::Ours, Rights::Existing] {
        for on_host in [false, true] {
            for meanwhile in [Meanwhile::Stays, Meanwhile::Goes, Meanwhile::GoesBeforeOthers] {
                println!("{rights:?}, on the data path host: {on_host}, the owner: {meanwhile:?}");
                on_simulated(rights, async |cluster| {
                    Box::pin(stopped_leader(on_host, meanwhile, cluster)).await;
                });
            }
        }
    }
}

/// Seed 55 found it: nothing announced the Service, because the mark tells the guest's kube-vip to ignore it.
#[test]
fn the_mark_of_a_manager_that_was_stopped_does_not_come_over_a_new_service_of_the_same_name() {
    for rights in [Rights::Ours, Rights::Existing] {
        on_simulated(rights, async |cluster| Box::pin(stopped_before_a_mark(cluster)).await);
    }
}

fn hands_over(way: Handover, rights: Rights) {
    for release in [Release::UpTo06, Release::From07, Release::From09, Release::From12] {
        println!("{way:?}, {rights:?}, kube-vip {release:?}");
        on_simulated(rights, async |cluster| Box::pin(hand_over(way, release, cluster)).await);
    }
}

#[test]
fn a_deleted_load_balancers_address_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::Deleted, Rights::Ours);
}

#[test]
fn a_deleted_load_balancers_address_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role() {
    hands_over(Handover::Deleted, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherPool, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherPool, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherType, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherType, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_dhcp_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::AnotherIpam, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_made_again_with_dhcp_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::AnotherIpam, Rights::Existing);
}

#[test]
fn the_address_of_a_load_balancer_whose_program_died_after_the_finalizer_went_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::CrashAfterFinalizer, Rights::Ours);
}

#[test]
fn the_address_of_a_load_balancer_whose_program_died_after_the_finalizer_went_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::CrashAfterFinalizer, Rights::Existing);
}

#[test]
fn the_former_address_of_a_load_balancer_that_moves_to_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::MoveBetweenPools, Rights::Ours);
}

#[test]
fn the_former_address_of_a_load_balancer_that_moves_to_another_pool_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::MoveBetweenPools, Rights::Existing);
}

#[test]
fn the_address_of_an_orphaned_service_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::Orphaned, Rights::Ours);
}

#[test]
fn the_address_of_an_orphaned_service_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
{
    hands_over(Handover::Orphaned, Rights::Existing);
}

#[test]
fn the_address_of_a_service_that_kube_vip_ignores_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role()
 {
    hands_over(Handover::Ignored, Rights::Ours);
}

#[test]
fn the_address_of_a_service_that_kube_vip_ignores_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::Ignored, Rights::Existing);
}

#[test]
fn the_address_of_a_service_of_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_our_role() {
    hands_over(Handover::OfAnotherType, Rights::Ours);
}

#[test]
fn the_address_of_a_service_of_another_type_goes_to_another_only_after_kube_vip_withdrew_it_with_the_existing_role()
 {
    hands_over(Handover::OfAnotherType, Rights::Existing);
}
