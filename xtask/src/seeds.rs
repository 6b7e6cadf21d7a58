//! `cargo xtask seeds`: the whole system in one process, on paused time, under fault schedules; a seed chooses faults,
//! crashes and timings, and the same seed always makes the same run.

use std::ops::Range;
use std::process::Command;

use anyhow::Result;

use crate::{step, workspace};

/// Seeds of the full run.
pub(crate) const FULL_RUN: u64 = 1000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many seeds.
    #[arg(long, default_value_t = FULL_RUN)]
    count: u64,
    /// This one seed, with its log.
    #[arg(long, conflicts_with_all = ["first", "count"])]
    replay: Option<u64>,
}

/// Runs the schedules.
///
/// # Errors
/// Where cargo cannot be started.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if let Some(seed) = options.replay {
        let mut command = command(seed..seed + 1);
        command.env("RUST_LOG", "info");
        return Ok(command.status()?.success());
    }
    let seeds = options.first..options.first + options.count;
    let name = format!("fault schedules {} to {}", seeds.start, seeds.end.saturating_sub(1));
    Ok(step::run(&name, &mut command(seeds))?.succeeded)
}

/// The test of the fault schedules over `seeds`: it reads them from `FAULT_SEEDS`, as `first..end`.
pub(crate) fn command(seeds: Range<u64>) -> Command {
    let mut command = workspace::cargo(["test", "--release", "--package", "fault-schedules"]);
    command.args(["--test", "fault_schedules", "--", "after_any_storm", "--nocapture"]);
    command.env("FAULT_SEEDS", format!("{}..{}", seeds.start, seeds.end));
    command
}
