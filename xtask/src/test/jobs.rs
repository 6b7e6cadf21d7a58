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

/// What the names of tests on the real servers contain.
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

/// As many tests as one pair of real servers is given. Most of a test's time there is a wait for a period of the
/// product, so that two pairs take half as long as one.
const AT_ONE_PAIR: usize = 50;

/// The program's tests on the real servers, in groups that have servers of their own.
///
/// # Errors
/// Where it cannot be started.
pub(super) fn on_real(program: &TestProgram) -> Result<Vec<Vec<String>>> {
    let list = command(program).arg("--list").output()?;
    Ok(groups(&String::from_utf8_lossy(&list.stdout)))
}

/// Neighbours in the list are alike, so each group has its share of them.
fn groups(list: &str) -> Vec<Vec<String>> {
    let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let tests: Vec<_> = tests.filter(|test| REAL.iter().any(|name| test.contains(name))).collect();
    let mut groups = vec![Vec::new(); tests.len().div_ceil(AT_ONE_PAIR)];
    for (test, group) in tests.iter().zip((0..groups.len()).cycle()) {
        groups[group].push((*test).to_owned());
    }
    groups
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
    fn each_test_on_the_real_servers_is_in_one_group_and_no_group_is_large() {
        let names: Vec<_> = (0..101).map(|n| format!("a::real::ours::t{n}")).collect();
        let list: String = names.iter().map(|name| format!("{name}: test\n")).collect();
        let list = format!("a::simulated::ours::t1: test\n{list}b::real::ours::t1: benchmark\n\n101 tests\n");
        let groups = groups(&list);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [34, 34, 33]);
        assert_eq!(groups[1][..2], [names[1].clone(), names[4].clone()]);
        let mut all: Vec<_> = groups.concat();
        all.sort_by_key(|name| names.iter().position(|one| one == name));
        assert_eq!(all, names);
        assert!(super::groups("a::simulated::ours::t1: test\n").is_empty());
    }

    #[test]
    fn what_took_longest_begins_first_and_what_is_new_before_it() {
        let job = |name: &str| Job { name: name.to_owned(), command: Command::new("true") };
        let jobs = sorted(vec![job("short"), job("new"), job("long")], "3.0\tshort\n200.5\tlong\nodd\n");
        let names: Vec<_> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["new", "long", "short"]);
    }
}
