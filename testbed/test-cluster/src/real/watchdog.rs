//! A process that ends with ours, however ours ends: a shell holds it and waits on a pipe from us. The kernel closes
//! the pipe when we are gone, killed or not, and then the shell kills.
//!
//! A death signal of the kernel would not do: it comes when the *thread* ends that started the process, and tests run
//! in threads that come and go.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `$1` gets the output, the rest is the command. Ends when the pipe is closed, and when the command ends by itself.
const HOLD: &str = r#"
    log=$1; shift
    exec 3<&0
    "$@" >"$log" 2>&1 3<&- & child=$!
    { read -r _ <&3; kill -9 "$child"; } & reader=$!
    wait "$child"; kill "$reader"
"#;
/// A moment later, because the processes that write there are dying at the same time.
const REMOVE: &str = r#"read -r _; sleep 1; rm -rf "$1""#;

/// The shell that holds a process. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Watchdog(Child);

impl Watchdog {
    pub(super) fn over(program: &Path, arguments: &[String], log: &Path) -> io::Result<Self> {
        // on two cores the servers' garbage collection would take a quarter of what the programs under test need
        Self::shell(HOLD, |command| command.arg(log).arg(program).args(arguments).env("GOGC", "400"))
    }

    /// Whether the process has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    pub(super) fn that_removes(folder: &Path) -> io::Result<Self> {
        Self::shell(REMOVE, |command| command.arg(folder))
    }

    fn shell(script: &str, arguments: impl Fn(&mut Command) -> &mut Command) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        arguments(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for us: what the shell holds goes when we have gone
            .process_group(0)
            .spawn()
            .map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // it was ours to start; that it has ended already is no failure
        self.0.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    #[test]
    fn what_a_watchdog_holds_ends_with_it() {
        let folder = std::env::temp_dir().join(format!("watchdog-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (fifo, log) = (folder.join("fifo"), folder.join("log"));
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let script = format!("exec 3>{}; echo started >&3; exec sleep 1000", fifo.display());
        let watchdog = Watchdog::over(Path::new("sh"), &["-c".to_owned(), script], &log).unwrap();

        let mut from_it = BufReader::new(File::open(&fifo).unwrap());
        let mut line = String::new();
        from_it.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        drop(watchdog);
        // the end of the file is the end of the process that had it open
        assert_eq!(from_it.read_to_string(&mut line).unwrap(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
