//! Runs storage schedules under the seeds that `STORAGE_SEEDS` names, as `55,840,0..100`, or some. As in
//! `fault_schedules.rs`, each seed runs in a process of its own.
#![cfg(test)]

#[path = "fault_schedules/chance.rs"]
mod chance;
#[path = "fault_schedules/runs.rs"]
mod runs;

use std::env;

use fault_schedules::{parse_seeds, storage};
use runs::Runs;

/// As many as the gate has time for, besides those that failed once.
const SOME: &str = "0,1,3..6";
const RUNS: Runs = Runs { test: "one_run", seed: "STORAGE_SEED" };

#[test]
#[ignore = "the other tests run it, with the seed in STORAGE_SEED"]
fn one_run() {
    RUNS.one(|seed, cluster| Box::pin(storage::run(seed, cluster)));
}

#[test]
fn after_any_storm_every_pod_has_its_volume_and_no_volume_was_ever_in_two_machines() {
    let text = env::var("STORAGE_SEEDS");
    let seeds = parse_seeds(text.as_deref().unwrap_or(SOME));
    RUNS.must_hold(&seeds.expect("STORAGE_SEEDS is a list of seeds and ranges"));
}

#[test]
fn every_storage_seed_that_ever_failed_holds() {
    RUNS.must_hold(&storage::failed_seeds());
}

#[test]
fn a_seed_of_a_storage_schedule_always_makes_the_same_run() {
    let [first, second] = [1; 2].map(|seed| RUNS.report(seed).expect("the seed holds"));
    assert_eq!(first, second);
}
