//! `cargo xtask test`: everything that stands behind a change.
//!
//! ```text
//! options + what the machine has ──plan──► parts to run, parts not run and why ──► steps ──► counts
//! ```
//! Nothing is left out in silence: what was not run, and how to have it, is in the last lines, and with `CI=true` or
//! `--all` a part that the machine lacks is a failure.

mod plan;

use std::env;
use std::fs;
use std::process::Command;

use anyhow::Result;
use outside_tools::{REAL_SERVER, Tool};

use self::plan::{NotRun, Part, Plan, plan};
use crate::counts::{self, Counts};
use crate::{package_driver, seeds, step, tools, tour, workspace};

/// Generated inputs for the decoder of gobs; one test on its own is content with fewer.
const INPUTS: &str = "1000000";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Parts to leave out, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    without: Vec<Part>,
    /// What this machine lacks is a failure, as with CI=true.
    #[arg(long, conflicts_with = "without")]
    all: bool,
}

/// Runs the parts, all of them even where one fails.
///
/// # Errors
/// Where cargo itself cannot be started.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let start = step::now();
    let strict = options.all || env::var("CI").is_ok_and(|ci| ci == "true");
    let Plan { parts, not_run, complete } = plan(&options.without, strict, lacking);
    let notes = Notes::new()?;
    let mut counts = Vec::new();
    for part in &parts {
        let Some(mut command) = command(*part, &parts, &notes) else { continue };
        let outcome = step::run(part.says(), &mut command)?;
        counts.push(counts::of(&outcome.output, outcome.succeeded));
    }
    let only_simulated = notes.read();

    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    if !not_run.is_empty() {
        println!("Not run:");
    }
    for NotRun { part, why } in &not_run {
        println!("  {part}: {why}");
    }
    for (reason, tests) in &only_simulated {
        println!("On the simulated server only ({tests}): {reason}");
    }
    let simulated: usize = only_simulated.iter().map(|(_, tests)| tests).sum();
    let Counts { passed, failed } = counts.into_iter().sum();
    if simulated > 0 {
        println!("{simulated} tests ran on the simulated server only");
    }
    println!("{passed} passed, {failed} failed");
    Ok(complete && failed == 0)
}

/// What keeps `part` from being run on this machine, after an attempt to mend it.
fn lacking(part: Part) -> Option<String> {
    let needed: &[Tool] = match part {
        Part::RealServer => &REAL_SERVER,
        Part::Deny => &[Tool::CargoDeny],
        Part::Package => return package_driver::lacking(),
        _ => &[],
    };
    needed.iter().find_map(|tool| tools::ensure(*tool).err()).map(|error| format!("{error:#}"))
}

fn command(part: Part, parts: &[Part], notes: &Notes) -> Option<Command> {
    Some(match part {
        Part::Fmt => workspace::cargo(["fmt", "--all", "--check"]),
        Part::Clippy => workspace::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        Part::Tests => {
            let mut command = workspace::cargo(["test", "--workspace", "--no-fail-fast", "--all-targets"]);
            if !parts.contains(&Part::RealServer) {
                command.args(["--", "--skip", "real::ours::", "--skip", "real::existing::"]);
            }
            command.env(Notes::VARIABLE, &notes.file).env("GO_RPC_INPUTS", INPUTS);
            if let Err(error) = tools::ensure_go() {
                println!("      tests whose other side is in Go are left out: {error:#}");
            }
            command
        }
        // a server to test on, not a step of its own
        Part::RealServer => return None,
        Part::DocTests => workspace::cargo(["test", "--workspace", "--no-fail-fast", "--doc"]),
        Part::Docs => {
            let mut command = workspace::cargo(["doc", "--workspace", "--no-deps"]);
            command.env("RUSTDOCFLAGS", "-D warnings");
            command
        }
        Part::Deny => {
            let mut command = Command::new(Tool::CargoDeny.find()?);
            command.current_dir(workspace::root()).args(["check", "licenses", "bans", "sources"]);
            command
        }
        Part::Tour => tour::command(),
        Part::Package => package_driver::command(),
        Part::Seeds => seeds::command(0..seeds::FULL_RUN),
    })
}

/// A file in which `test-cluster` notes each test that runs on the simulated server only, with its reason.
struct Notes {
    file: std::path::PathBuf,
}

impl Notes {
    /// `test_cluster` writes to the file that this names: a line `reason<TAB>test`.
    const VARIABLE: &str = "TEST_CLUSTER_NOTES";

    fn new() -> Result<Self> {
        let folder = workspace::target().join("xtask");
        fs::create_dir_all(&folder)?;
        let file = folder.join("simulated-only");
        fs::write(&file, "")?;
        Ok(Self { file })
    }

    /// Reasons and how many tests have them.
    fn read(&self) -> Vec<(String, usize)> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let mut tests: Vec<&str> = text.lines().collect();
        tests.sort_unstable();
        tests.dedup();
        let reason = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        tests.chunk_by(|a, b| reason(a) == reason(b)).map(|same| (reason(same[0]), same.len())).collect()
    }
}
