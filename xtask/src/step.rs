//! One command of a task: a line when it starts, a sign of life while it runs, a line with its time when it ends, and
//! its output only where it fails.

use std::io::{self, BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long a step may be silent before it says that it is alive.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// What became of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) succeeded: bool,
    /// Standard output and error as they came.
    pub(crate) output: String,
    pub(crate) took: Duration,
}

/// The time: what a person waited, nothing decides by it.
#[expect(clippy::disallowed_methods, reason = "a task measures real time, it has no clock to be given")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Runs `command` to its end and prints one line for it, and all of its output where it failed.
///
/// # Errors
/// Where it cannot be started.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<Outcome> {
    run_showing(name, command, str::to_owned)
}

/// [`run`], but of the output it prints what `shown` leaves.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_showing(
    name: &str,
    command: &mut Command,
    shown: impl Fn(&str) -> String,
) -> Result<Outcome> {
    println!("       {name} …");
    let outcome = watch(name, command)?;
    if !outcome.succeeded {
        println!("{}", shown(&outcome.output).trim_end());
    }
    let word = if outcome.succeeded { "ok" } else { "FAILED" };
    println!("{word:<7}{name} ({:.1} s)", outcome.took.as_secs_f64());
    Ok(outcome)
}

fn watch(name: &str, command: &mut Command) -> Result<Outcome> {
    let start = now();
    let (reader, writer) = io::pipe()?;
    let mut child = command
        .stdin(std::process::Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    // the command holds the write end too: without this the output never ends
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());

    let (lines, incoming) = mpsc::channel();
    let reading = thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    let mut output = String::new();
    let mut said = start;
    loop {
        match incoming.recv_timeout(SIGN_OF_LIFE) {
            Ok(line) => output.push_str(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if said.elapsed() >= SIGN_OF_LIFE {
            said = now();
            // JSON lines are for programs
            let last = output.lines().rfind(|line| !line.starts_with('{')).unwrap_or_default().trim();
            println!("       {name}: {:.0} s, {last}", start.elapsed().as_secs_f64());
        }
    }
    reading.join().expect("the reader does not panic");
    let succeeded = child.wait()?.success();
    Ok(Outcome { succeeded, output, took: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Outcome {
        watch("a script", Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn both_outputs_are_kept_in_order() {
        let outcome = shell("echo one; echo two >&2; echo three");
        assert_eq!((outcome.succeeded, outcome.output.as_str()), (true, "one\ntwo\nthree\n"));
    }

    #[test]
    fn a_failure_is_told() {
        assert!(!shell("exit 3").succeeded);
    }

    #[test]
    fn a_command_that_is_not_there_is_an_error_that_names_it() {
        let error = watch("none", &mut Command::new("no-such-program")).unwrap_err();
        assert!(format!("{error:#}").starts_with("start no-such-program: "), "{error:#}");
    }
}
