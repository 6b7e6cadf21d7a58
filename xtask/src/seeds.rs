//! `cargo xtask seeds`: the whole system in one process, on paused time, under fault schedules; a seed chooses faults,
//! crashes and timings, and the same seed always makes the same run.
//!
//! ```text
//! cargo xtask test    every seed that ever failed, and 100 that follow from the commit
//! cargo xtask seeds   as many as asked for, or as fit in --minutes
//! ```

use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::{step, workspace};

/// Seeds of the full run, beside those that failed once.
const OF_A_COMMIT: u64 = 100;
/// Seeds between two looks at the clock.
const BATCH: u64 = 100;
/// The test that runs seeds.
const TEST: &str = "after_any_storm";
/// Names the seeds to run, as `7,55,100..200`.
const SEEDS: &str = "FAULT_SEEDS";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// As many seeds as begin within so many minutes, however many.
    #[arg(long, conflicts_with = "count")]
    minutes: Option<u64>,
    /// This one seed, with its log.
    #[arg(long, conflicts_with_all = ["first", "count", "minutes"])]
    replay: Option<u64>,
}

/// Runs the schedules, and keeps the seeds that fail.
///
/// # Errors
/// Where cargo cannot be started.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if let Some(seed) = options.replay {
        let mut command = released(&seed.to_string());
        command.env("RUST_LOG", "info");
        return Ok(command.status()?.success());
    }
    let (begun, time) = (step::now(), options.minutes.map(|minutes| Duration::from_secs(60 * minutes)));
    let (mut next, mut held) = (options.first, true);
    loop {
        let batch = batch(options, next);
        if batch.is_empty() || time.is_some_and(|time| begun.elapsed() >= time) {
            println!(
                "{} seeds from {}: {}",
                next - options.first,
                options.first,
                if held { "all hold" } else { "not all hold" }
            );
            return Ok(held);
        }
        let name = format!("fault schedules {} to {}", batch.start, batch.end - 1);
        let outcome = step::run(&name, &mut released(&format!("{}..{}", batch.start, batch.end)))?;
        held &= outcome.succeeded;
        keep(&failed(&outcome.output))?;
        next = batch.end;
    }
}

fn batch(options: &Options, next: u64) -> Range<u64> {
    let end = next.saturating_add(BATCH);
    next..if options.minutes.is_some() { end } else { end.min(options.first + options.count) }
}

/// Built for speed: many seeds are worth the build.
fn released(seeds: &str) -> Command {
    let mut command = workspace::cargo(["test", "--release", "--package", "fault-schedules"]);
    command.args(["--test", "fault_schedules", "--", TEST, "--nocapture"]).env(SEEDS, seeds);
    command
}

/// Makes of the built test's `command` the one of the full run. The seeds that failed once are a test of their own there.
pub(crate) fn of_the_full_run(command: &mut Command) {
    let first = first_of(&commit());
    command.args([TEST, "--nocapture"]).env(SEEDS, format!("{first}..{}", first + OF_A_COMMIT));
}

/// The commit that is tested; without a repository, none.
fn commit() -> String {
    let told = Command::new("git").current_dir(workspace::root()).args(["rev-parse", "HEAD"]).output();
    told.ok()
        .filter(|told| told.status.success())
        .map(|told| String::from_utf8_lossy(&told.stdout).into_owned())
        .unwrap_or_default()
}

/// Every commit has seeds of its own, so that the search goes on.
fn first_of(commit: &str) -> u64 {
    commit.get(..10).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

fn file() -> PathBuf {
    workspace::root().join("testbed/fault-schedules/failed-seeds.txt")
}

fn known_to_fail() -> Result<Vec<u64>> {
    let text = fs::read_to_string(file()).with_context(|| format!("read {}", file().display()))?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect())
}

/// Notes seeds that failed, those that are new.
pub(crate) fn keep(failed: &[u64]) -> Result<()> {
    let known = known_to_fail()?;
    let new: Vec<u64> = failed.iter().copied().filter(|seed| !known.contains(seed)).collect();
    if new.is_empty() {
        return Ok(());
    }
    let mut file = File::options().append(true).open(file()).context("keep the seeds that failed")?;
    for seed in new {
        writeln!(file, "{seed} say here why").context("keep the seeds that failed")?;
    }
    Ok(())
}

/// How the line begins in which a run names the seeds that failed.
pub(crate) const FAILED: &str = "these seeds failed";

/// The seeds that a run says failed.
pub(crate) fn failed(output: &str) -> Vec<u64> {
    let list =
        output.lines().find_map(|line| line.split_once(FAILED)?.1.split_once(": [")).map(|(_, list)| list);
    let list = list.and_then(|list| list.split_once(']')).map_or("", |(list, _)| list);
    list.split(", ").filter_map(|seed| seed.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_that_failed_are_read_from_the_output() {
        let output =
            "noise\nthese seeds failed, `cargo xtask seeds --replay SEED` shows one: [3, 17]\nmore: [5]";
        assert_eq!(failed(output), [3, 17]);
        assert_eq!(failed("10 storms: 17013 requests"), [0; 0]);
    }

    #[test]
    fn every_commit_has_seeds_of_its_own() {
        assert_eq!(first_of("4efbf49aa1c2\n"), 0x004e_fbf4_9aa1);
        assert_eq!(first_of(""), 0);
    }

    #[test]
    fn the_seeds_that_failed_once_are_kept() {
        assert!(known_to_fail().unwrap().contains(&55));
    }
}
