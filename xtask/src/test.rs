//! `cargo xtask test`: everything that stands behind a change.
//!
//! ```text
//! options + what the machine has ──plan──► parts to run, parts not run and why ──► steps ──► counts, times
//! ```
//! There is one build with code in it, of all tests: the tour and the fault schedules run what it made, and clippy and
//! rustdoc only check. What ships is built for the node driver's package.
//!
//! Nothing is left out in silence: what was not run, and how to have it, is in the last lines, and with `CI=true` or
//! `--all` a part that the machine lacks is a failure.

mod built;
mod events;
mod jobs;
mod plan;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use outside_tools::{REAL_SERVER, Tool};

use self::built::Built;
use self::events::Events;
use self::jobs::Job;
use self::plan::{Extent, NotRun, Part, Plan, plan};
use crate::counts::{self, Counts};
use crate::step::Outcome;
use crate::{package_driver, seeds, step, tools, tour, workspace};

/// Generated inputs for the decoder of gobs; one test on its own is content with fewer.
const INPUTS: &str = "1000000";
/// The program whose sandbox is toured: as the tests were built, with all checks of a debug build.
const PROGRAM: &str = "harvester-cloud-provider";
/// The test program that runs fault schedules.
const SEEDS: &str = "fault-schedules fault_schedules";
/// How the name of the test program that boots virtual machines ends; it begins with the folder of this clone.
const REAL_NODE: &str = " csi_driver";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Parts to leave out, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    without: Vec<Part>,
    /// What this machine lacks is a failure, as with CI=true, and what takes too long for each change runs too.
    #[arg(long, conflicts_with = "without")]
    all: bool,
}

/// Runs the parts, all of them even where one fails.
///
/// # Errors
/// Where cargo itself cannot be started.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let start = step::now();
    let extent = if options.all {
        Extent::All
    } else if env::var("CI").is_ok_and(|ci| ci == "true") {
        Extent::Gate
    } else {
        Extent::Possible
    };
    let Plan { parts, not_run, complete } = plan(&options.without, extent, lacking);
    let notes = Notes::new()?;
    let mut run = Run {
        parts: &parts,
        notes: &notes,
        built: Built::default(),
        left_out: Vec::new(),
        failed: Vec::new(),
    };
    let (mut counts, mut times) = (Vec::new(), Vec::new());
    for part in &parts {
        let begun = step::now();
        let Some(counted) = run.part(*part)? else { continue };
        counts.push(counted);
        times.push((part.says(), begun.elapsed()));
    }
    let only_simulated = notes.read();

    println!();
    for (part, time) in &times {
        println!("{:>5.0} s  {part}", time.as_secs_f64());
    }
    println!("{:>5.0} s  in all", start.elapsed().as_secs_f64());
    if !not_run.is_empty() {
        println!("Not run:");
    }
    for NotRun { part, why } in &not_run {
        println!("  {part}: {why}");
    }
    for left_out in &run.left_out {
        println!("{left_out}");
    }
    for (reason, tests) in &only_simulated {
        println!("On the simulated server only ({tests}): {reason}");
    }
    let simulated: usize = only_simulated.iter().map(|(_, tests)| tests).sum();
    let Counts { passed, failed } = counts.into_iter().sum();
    // the output that tells why is a long way up by now
    for name in &run.failed {
        println!("FAILED {name}");
    }
    if simulated > 0 {
        println!("{simulated} tests ran on the simulated server only");
    }
    println!("{passed} passed, {failed} failed");
    Ok(complete && failed == 0)
}

/// What keeps `part` from being run on this machine, after an attempt to mend it.
fn lacking(part: Part) -> Option<String> {
    let needed: &[Tool] = match part {
        Part::RealServer | Part::RealTour => &REAL_SERVER,
        Part::Deny => &[Tool::CargoDeny],
        Part::Package => return package_driver::lacking(),
        Part::RealNode => return tools::ensure_real_node().err().map(|error| format!("{error:#}")),
        _ => &[],
    };
    needed.iter().find_map(|tool| tools::ensure(*tool).err()).map(|error| format!("{error:#}"))
}

/// A run under way.
struct Run<'a> {
    parts: &'a [Part],
    notes: &'a Notes,
    /// From [`Part::Build`] on.
    built: Built,
    /// What tests themselves left out.
    left_out: Vec<String>,
    /// What failed, by name.
    failed: Vec<String>,
}

impl Run<'_> {
    /// `None` where a part is not a step of its own.
    fn part(&mut self, part: Part) -> Result<Option<Counts>> {
        let mut command = match part {
            Part::Fmt => workspace::cargo(["fmt", "--all", "--check"]),
            Part::Clippy => {
                workspace::cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
            }
            Part::Build => {
                let mut command = workspace::cargo(["test", "--workspace", "--all-targets", "--no-run"]);
                command.arg("--message-format=json-render-diagnostics");
                let outcome = step::run_showing(part.says(), &mut command, built::without_progress)?;
                self.built = built::of(&outcome.output);
                return Ok(Some(self.counted(part, &Outcome { output: String::new(), ..outcome })));
            }
            Part::Tests => return self.tests().map(Some),
            // a server to test on, not a step of its own
            Part::RealServer => return Ok(None),
            Part::DocTests => workspace::cargo(["test", "--workspace", "--no-fail-fast", "--doc"]),
            Part::Docs => {
                let mut command = workspace::cargo(["doc", "--workspace", "--no-deps"]);
                command.env("RUSTDOCFLAGS", "-D warnings");
                command
            }
            Part::Deny => {
                let Some(program) = Tool::CargoDeny.find() else { return Ok(Some(counts::of("", false))) };
                let mut command = Command::new(program);
                command.current_dir(workspace::root()).args(["check", "licenses", "bans", "sources"]);
                command
            }
            Part::Tour | Part::RealTour => match self.built.program(PROGRAM) {
                Some(program) if part == Part::RealTour => tour::on_real_servers(program),
                Some(program) => tour::of(program),
                None => return Ok(Some(counts::of("", false))),
            },
            Part::Package => package_driver::command(),
            Part::Seeds => {
                let tests = &self.built.tests;
                let Some(program) = tests.iter().find(|program| program.name == SEEDS) else {
                    println!("FAILED {}: no test program {SEEDS} was built", part.says());
                    return Ok(Some(counts::of("", false)));
                };
                let mut command = jobs::command(program);
                seeds::of_the_full_run(&mut command);
                let outcome = step::run(part.says(), &mut command)?;
                seeds::keep(&seeds::failed(&outcome.output))?;
                return Ok(Some(self.counted(part, &outcome)));
            }
            Part::RealNode => {
                let tests = &self.built.tests;
                let Some(program) = tests.iter().find(|program| program.name.ends_with(REAL_NODE)) else {
                    println!("FAILED {}: no test program{REAL_NODE} was built", part.says());
                    return Ok(Some(counts::of("", false)));
                };
                let mut command = jobs::command(program);
                command.args(["--ignored", "--test-threads=1", "real_node::"]);
                command
            }
        };
        let outcome = step::run_showing(part.says(), &mut command, built::without_progress)?;
        Ok(Some(self.counted(part, &outcome)))
    }

    fn counted(&mut self, part: Part, outcome: &Outcome) -> Counts {
        self.failed.extend(counts::failures(part.says(), &outcome.output, outcome.succeeded));
        counts::of(&outcome.output, outcome.succeeded)
    }

    /// Tests on the real servers take longest, so they begin first.
    fn tests(&mut self) -> Result<Counts> {
        if let Err(error) = tools::ensure_go() {
            self.left_out.push(format!("Left out: tests whose other side is in Go: {error:#}"));
        }
        if let Err(error) = tools::ensure_cloud_init() {
            self.left_out.push(format!("Left out: tests of user data with cloud-init itself: {error:#}"));
        }
        if let Err(error) = tools::ensure(Tool::CsiSanity) {
            self.left_out.push(format!("Left out: csi-sanity against the CSI driver: {error:#}"));
        }
        if let Err(error) = tools::ensure(Tool::Helm) {
            self.left_out.push(format!("Left out: the charts in helm: {error:#}"));
        }
        if let Err(error) = tools::ensure_definitions() {
            self.left_out.push(format!("Left out: the schemas of other projects' kinds: {error:#}"));
        }
        let path = match tools::ensure_xfsprogs() {
            Ok(folder) => with_folder(&env::var_os("PATH").unwrap_or_default(), folder)?,
            Err(error) => {
                self.left_out.push(format!("Left out: xfs in tests of the CSI driver: {error:#}"));
                env::var_os("PATH").unwrap_or_default()
            }
        };
        for (program, what) in tools::OF_DEBIAN {
            if let Err(error) = tools::ensure_of_debian(program) {
                self.left_out.push(format!("Left out: {what}: {error:#}"));
            }
        }
        let events = Events::new()?;
        let (mut real, mut others) = (Vec::new(), Vec::new());
        for program in &self.built.tests {
            let prepared = || {
                let mut command = jobs::command(program);
                command.env("PATH", &path);
                command.env(Notes::VARIABLE, &self.notes.file).env("GO_RPC_INPUTS", INPUTS);
                command.env(Events::VARIABLE, &events.file);
                command
            };
            let mut command = prepared();
            let groups = jobs::on_real(program)?;
            if !groups.is_empty() {
                command.args(jobs::REAL.iter().flat_map(|name| ["--skip", name]));
            }
            for (number, tests) in (1..).zip(&groups) {
                let mut on_real = prepared();
                // they take turns: there is one pair of servers for each process
                on_real.args(tests).args(["--exact", "--test-threads=1"]).env("TEST_CLUSTER_NEED_REAL", "1");
                let name = format!("{} on real servers, {number} of {}", program.name, groups.len());
                real.push(Job { name, command: on_real });
            }
            others.push(Job { name: program.name.clone(), command });
        }
        if !self.parts.contains(&Part::RealServer) {
            real.clear();
        }
        let begun = self.built.tests.is_empty();
        let done = jobs::run(real.into_iter().chain(others).collect())?;
        self.left_out.extend(
            done.iter()
                .flat_map(|(_, _, output)| output.lines())
                .filter(|line| line.starts_with("left out: "))
                .map(str::to_owned),
        );
        for (name, counts, output) in &done {
            self.failed.extend(counts::failures(name, output, counts.failed == 0));
        }
        let mut counts: Counts = done.iter().map(|(_, counts, _)| *counts).sum();
        if begun {
            // nothing was built, so nothing was tested
            return Ok(counts::of("", false));
        }
        // a test that failed may be the one that provokes an Event
        let faults = if counts.failed == 0 { events.faults()? } else { Vec::new() };
        self.failed.extend(faults.iter().cloned());
        counts.failed += faults.len();
        Ok(counts)
    }
}

/// The search path, with one more folder at its end.
fn with_folder(path: &OsStr, folder: PathBuf) -> Result<OsString> {
    Ok(env::join_paths(env::split_paths(path).chain([folder]))?)
}

/// A file in which `test-cluster` notes each test that runs on the simulated server only, with its reason.
struct Notes {
    file: PathBuf,
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
