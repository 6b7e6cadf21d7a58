//! From `main` to the work and back: runtime, signals, and an end that waits for tasks.

use std::{ffi::OsString, fmt::Display, future::Future, io, io::Write as _, process::ExitCode};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    Clock, TaskGroup,
    flags::{Reader, Table},
    health::Health,
    http::Metrics,
    logging::{self, Logging},
    process_metrics,
};

/// The parts that every program has while it runs. Clones share them.
#[derive(Clone, Debug)]
pub struct Process {
    /// Ends with the work, and by [`run`] on SIGTERM or SIGINT.
    pub tasks: TaskGroup,
    pub clock: Clock,
    pub health: Health,
    pub metrics: Metrics,
}

/// Runs `work` until it ends, on two threads: these programs wait more than they work. SIGTERM and SIGINT tell
/// [`Process::tasks`] to stop; `work` is expected to end then. Tasks have ten seconds after it; threads that hang in a
/// system call (a file system that does not answer) are left to the end of the process.
///
/// # Errors
/// When there is no runtime or no signal handler to be had.
pub fn run<T, W: Future<Output = T>>(work: impl FnOnce(Process) -> W) -> io::Result<T> {
    run_with(TaskGroup::stop_on_signals, work)
}

/// As [`run`], for the command of a person: SIGTERM and SIGINT end the process at once, as they end kubectl, with the exit code
/// that a shell has for that, 128 and the number of the signal. The work may hang in the exec plugin of a kubeconfig, in a thread
/// that nobody can cancel.
///
/// # Errors
/// When there is no runtime or no signal handler to be had.
pub fn run_tool<T, W: Future<Output = T>>(work: impl FnOnce(Process) -> W) -> io::Result<T> {
    run_with(|_| end_on_signals(), work)
}

/// By handlers of our own: in a container the program is process 1, to which Linux passes no signal that has none.
fn end_on_signals() -> io::Result<()> {
    tokio::spawn(end_on(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?));
    Ok(())
}

async fn end_on(mut terminate: Signal, mut interrupt: Signal) {
    let came = tokio::select! {
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    };
    std::process::exit(128 + came.as_raw_value())
}

fn run_with<T, W: Future<Output = T>>(
    install_handlers: impl FnOnce(&TaskGroup) -> io::Result<()>,
    work: impl FnOnce(Process) -> W,
) -> io::Result<T> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // another thread may have been quicker: there is one provider in this program, so it is the same
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let tasks = TaskGroup::new();
        install_handlers(&tasks)?;
        let process = Process {
            tasks: tasks.clone(),
            clock: Clock::system(),
            health: Health::default(),
            metrics: process_metrics::registry(),
        };
        let outcome = work(process).await;
        tasks.end().await;
        Ok(outcome)
    });
    runtime.shutdown_background();
    outcome
}

/// A whole program: help and version, checked flags, logging, [`run`]. `args` begins with the program's name. `check`
/// reads the flags into the program's own type and says how to log.
///
/// Exit code 0 after SIGTERM, 1 after a failure, 2 for wrong flags; faults and failures are logged.
pub fn main<C, E: Display, W: Future<Output = Result<(), E>>>(
    table: &Table,
    version: &str,
    args: impl IntoIterator<Item = OsString>,
    check: impl FnOnce(Reader<'_>) -> Result<(Logging, C), Vec<String>>,
    work: impl FnOnce(C, Process) -> W,
) -> ExitCode {
    let args = words(args);
    if let Some(text) = asked_for(table, version, &args) {
        return show(&text);
    }
    let config = match check(table.read(&args, |name| std::env::var(name).ok())) {
        Ok((logging, config)) => {
            logging.start();
            config
        }
        Err(faults) => return logging::refuse(&faults),
    };
    match run(|process| work(config, process)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("start the runtime: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The arguments after the program's name.
pub fn words(args: impl IntoIterator<Item = OsString>) -> Vec<String> {
    args.into_iter().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// The text that `--help` or `--version` asks for, unless other arguments are wrong.
pub fn asked_for(table: &Table, version: &str, args: &[String]) -> Option<String> {
    let (given, faults) = table.parse(args);
    if !faults.is_empty() {
        return None;
    }
    if given.is_on("help") {
        return Some(table.help());
    }
    given.is_on("version").then(|| format!("{} {version}\n", table.program))
}

/// Prints what was asked for. Whoever puts it into a file, on a disk that is full, is told.
pub fn show(text: &str) -> ExitCode {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // a reader that has read enough is no reason to fail
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            failed(&format!("write to standard output: {error}"))
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Says it on the error output.
pub fn complain(text: &str) {
    // a parent that is gone is no reason to panic
    writeln!(io::stderr(), "{text}").ok();
}

/// Says why the program fails.
pub fn failed(why: &str) -> ExitCode {
    complain(why);
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::flags::Flag;

    const TABLE: Table = Table {
        program: "part",
        about: "A part.",
        flags: &[Flag::value("port", "PORT", "where it listens")],
    };

    fn code(args: &[&str], work: Result<(), &'static str>) -> String {
        let check = |mut reader: Reader<'_>| {
            let port = reader.number::<u16>("port", 0);
            reader.finish((Logging::logrus("error"), port))
        };
        let code = main(&TABLE, "1", args.iter().map(OsString::from), check, |_: u16, _| async move { work });
        format!("{code:?}")
    }

    #[test]
    fn the_exit_code_tells_wrong_flags_from_a_failure() {
        assert_eq!(code(&["part"], Ok(())), format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(code(&["part"], Err("no server")), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&["part", "--port=x"], Ok(())), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["part", "--nope"], Ok(())), format!("{:?}", ExitCode::from(2)));
        assert_eq!(code(&["part", "--help"], Err("not reached")), format!("{:?}", ExitCode::SUCCESS));
    }

    // a file system of a dead NFS server answers nobody, and no thread leaves its system call
    #[test]
    fn a_thread_that_hangs_does_not_keep_the_process_from_its_end() {
        let (release, hangs) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        thread::spawn(move || {
            let work = move |_| async move { drop(tokio::task::spawn_blocking(move || hangs.recv())) };
            ended.send(run(work).is_ok()).expect("the test waits");
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
        drop(release);
    }

    #[test]
    fn version_and_help_are_texts() {
        let asked = |args: &[&str]| asked_for(&TABLE, "1.2", &words(args.iter().map(OsString::from)));
        assert_eq!(asked(&["part", "--version"]).unwrap(), "part 1.2\n");
        assert!(asked(&["part", "-h"]).unwrap().starts_with("A part.\n"));
        assert_eq!(asked(&["part", "-h", "--nope"]), None);
    }
}
