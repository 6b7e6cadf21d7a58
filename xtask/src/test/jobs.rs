//! Test programs side by side: most of them wait for servers or timers more than they compute.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::built::TestProgram;
use crate::counts::{self, Counts};
use crate::{step, workspace};

/// How the names of tests on the real servers begin.
pub(super) const REAL: [&str; 2] = ["real::ours::", "real::existing::"];

/// A test program with its arguments.
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
}

/// The program's process, as cargo would start it.
pub(super) fn command(program: &TestProgram) -> Command {
    let mut command = Command::new(&program.file);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("CARGO", workspace::cargo([]).get_program());
    command
}

/// Whether a program has tests on the real servers.
///
/// # Errors
/// Where it cannot be started.
pub(super) fn has_real(program: &TestProgram) -> Result<bool> {
    let list = command(program).arg("--list").output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    Ok(REAL.iter().any(|name| list.contains(name)))
}

/// How long each job took when it last ran here, in a file of lines `seconds<TAB>name`.
fn times() -> PathBuf {
    workspace::target().join("xtask").join("times")
}

/// The longest first, or the run ends with one job and an idle machine. Those that never ran keep their order, before
/// the others.
fn sorted(mut jobs: Vec<Job>, times: &str) -> Vec<Job> {
    let seconds = |line: &str| {
        line.split_once('\t').and_then(|(time, name)| Some((name.to_owned(), time.parse().ok()?)))
    };
    let known: BTreeMap<String, f64> = times.lines().filter_map(seconds).collect();
    let took = |job: &Job| known.get(&job.name).copied().unwrap_or(f64::INFINITY);
    jobs.sort_by(|a, b| took(b).total_cmp(&took(a)));
    jobs
}

/// Runs all jobs, so many at once, the longest first; counts, and the output of each, in the order of their ends.
///
/// # Errors
/// Where a program cannot be started.
pub(super) fn run(jobs: Vec<Job>) -> Result<Vec<(String, Counts, String)>> {
    // one more than the machine can run: one of them waits for a timer
    let at_once = thread::available_parallelism().map_or(1, usize::from) + 1;
    let jobs = sorted(jobs, &fs::read_to_string(times()).unwrap_or_default());
    let (waiting, done) = (Mutex::new(jobs.into_iter()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        loop {
            let job = waiting.lock().expect("nobody panics with it").next();
            let Some(Job { name, mut command }) = job else { return Ok(()) };
            let outcome = step::run(&name, &mut command)?;
            let counts = counts::of(&outcome.output, outcome.succeeded);
            done.lock().expect("nobody panics with it").push((outcome.took, (name, counts, outcome.output)));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let done = done.into_inner().expect("nobody panics with it");
    let line = |(took, (name, ..)): &(Duration, (String, Counts, String))| {
        format!("{:.1}\t{name}\n", took.as_secs_f64())
    };
    fs::write(times(), done.iter().map(line).collect::<String>()).context("keep the times of the tests")?;
    Ok(done.into_iter().map(|(_, done)| done).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_longest_begins_first_and_what_is_new_before_it() {
        let job = |name: &str| Job { name: name.to_owned(), command: Command::new("true") };
        let jobs = sorted(vec![job("short"), job("new"), job("long")], "3.0\tshort\n200.5\tlong\nodd\n");
        let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["new", "long", "short"]);
    }
}
