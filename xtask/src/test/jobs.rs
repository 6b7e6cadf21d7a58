//! Test programs side by side: most of them wait for servers or timers more than they compute.

use std::process::Command;
use std::sync::Mutex;
use std::thread;

use anyhow::Result;

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

/// Runs all jobs, so many at once, the first ones first; counts, and the output of each, in the order of their ends.
///
/// # Errors
/// Where a program cannot be started.
pub(super) fn run(jobs: Vec<Job>) -> Result<Vec<(String, Counts, String)>> {
    // one more than the machine can run: one of them waits for a timer
    let at_once = thread::available_parallelism().map_or(1, usize::from) + 1;
    let (waiting, done) = (Mutex::new(jobs.into_iter()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        loop {
            let job = waiting.lock().expect("nobody panics with it").next();
            let Some(Job { name, mut command }) = job else { return Ok(()) };
            let outcome = step::run(&name, &mut command)?;
            let counts = counts::of(&outcome.output, outcome.succeeded);
            done.lock().expect("nobody panics with it").push((name, counts, outcome.output));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(done.into_inner().expect("nobody panics with it"))
}
