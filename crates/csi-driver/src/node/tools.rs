//! The programs for disks and file systems. They run without a shell, for a limited time, and what they print is cut.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tonic::Code;

use crate::refusal::Refusal;

/// A program of the image. All of them are in `tools.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// It is ended when it takes longer.
    limit: Option<Duration>,
    /// It reads what is on a disk, which may be made so that this takes all memory.
    reads_disk: bool,
}

/// For what ends soon, unless the disk or the server is away.
const SHORT: Option<Duration> = Some(Duration::from_secs(100));
/// For what reads or writes a whole disk, however large: one that is ended halfway and begun again would never end, and a
/// repair that is ended halfway may do harm. The caller has long gone: it comes again, and gets ABORTED until then.
const UNLIMITED: Option<Duration> = None;

pub(crate) const BLKID: Tool = Tool { name: "blkid", limit: SHORT, reads_disk: true };
pub(crate) const MOUNT: Tool = Tool { name: "mount", limit: SHORT, reads_disk: false };
/// Enters the network of the machine; see [`super::export`].
pub(crate) const NSENTER: Tool = Tool { name: "nsenter", limit: SHORT, reads_disk: false };
pub(crate) const E2FSCK: Tool = Tool { name: "e2fsck", limit: UNLIMITED, reads_disk: true };
pub(crate) const MKFS_EXT4: Tool = Tool { name: "mkfs.ext4", limit: UNLIMITED, reads_disk: true };
pub(crate) const MKFS_XFS: Tool = Tool { name: "mkfs.xfs", limit: UNLIMITED, reads_disk: true };
pub(crate) const RESIZE2FS: Tool = Tool { name: "resize2fs", limit: UNLIMITED, reads_disk: true };
pub(crate) const XFS_GROWFS: Tool = Tool { name: "xfs_growfs", limit: UNLIMITED, reads_disk: true };

/// The highest score that the kernel has for those that it ends when memory runs out.
const FIRST_TO_GO: &str = "1000";
/// As much of a program's output as is kept. The rest is read and dropped, so that the program can end.
const OUTPUT_MAX: u64 = 16 << 10;
/// As much of it as a message has.
const SAID_MAX: usize = 300;

/// What a program said at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// What it said about its failure, in one line.
    pub(crate) fn said(&self) -> String {
        let text = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let line: String = line.chars().filter(|one| !one.is_control()).take(SAID_MAX).collect();
        match self.code {
            Some(code) => format!("exit status {code}: {line}"),
            None => format!("ended by a signal: {line}"),
        }
    }

    /// # Errors
    /// INTERNAL where the program failed. `doing` says what it was run for, as in "format /dev/sdb".
    pub(crate) fn succeeded(self, doing: &str, tool: Tool) -> Result<Self, Refusal> {
        if self.code == Some(0) {
            return Ok(self);
        }
        Err(Refusal::new(Code::Internal, format!("{doing} by {}: {}", tool.name, self.said())))
    }
}

/// Ends a program and all that it started, unless it ended by itself.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        // an error means that none of them is left
        let _none_left = self.0.map(|pid| kill_process_group(pid, Signal::KILL));
    }
}

/// Runs a program to its end. It is killed when the returned future is dropped.
///
/// # Errors
/// FAILED_PRECONDITION where the program is missing, DEADLINE_EXCEEDED where it does not end in time.
pub(crate) async fn run<A: AsRef<OsStr>>(tool: Tool, arguments: &[A]) -> Result<Output, Refusal> {
    let failed = |error: std::io::Error| {
        let next = "the image of the driver needs the programs of crates/csi-driver/tools.txt";
        Refusal::precondition(format!("run {}: {error}; {next}", tool.name))
    };
    let mut child = Command::new(tool.name)
        .args(arguments)
        .env("PATH", search_path())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    if let Some(id) = child.id().filter(|_| tool.reads_disk) {
        goes_first(id);
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let whole = async { tokio::join!(text(stdout), text(stderr), child.wait()) };
    let ended = match tool.limit {
        Some(limit) => tokio::time::timeout(limit, whole).await.map_err(|_| limit),
        None => Ok(whole.await),
    };
    match ended {
        Ok((stdout, stderr, status)) => {
            group.0 = None;
            Ok(Output { code: status.map_err(failed)?.code(), stdout, stderr })
        }
        Err(limit) => {
            let seconds = limit.as_secs();
            let message =
                format!("{} has not ended after {seconds} s: is the disk or the server away?", tool.name);
            Err(Refusal::new(Code::DeadlineExceeded, message))
        }
    }
}

/// Lets the kernel end this program before any other when memory runs out. It would inherit the score of this process,
/// which is critical for the node, and the node's other processes would end for a disk of one tenant.
fn goes_first(id: u32) {
    let score = format!("/proc/{id}/oom_score_adj");
    if let Err(error) = std::fs::write(&score, FIRST_TO_GO) {
        tracing::debug!(%error, score, "a program keeps the score of this process");
    }
}

/// Programs of file systems are in the folders for the system's programs, which not every image has in its `PATH`.
fn search_path() -> String {
    let given = std::env::var("PATH").unwrap_or_default();
    format!("{given}:/usr/sbin:/usr/bin:/sbin:/bin")
}

async fn text(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut bytes = Vec::new();
    // a pipe that breaks ends the text; the exit status tells the rest
    let read = (&mut pipe).take(OUTPUT_MAX).read_to_end(&mut bytes).await;
    if read.is_ok() {
        let _dropped = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SH: Tool = Tool { name: "sh", limit: SHORT, reads_disk: false };

    /// Everything that `run` is called with.
    const ALL: [Tool; 8] = [BLKID, MOUNT, NSENTER, E2FSCK, MKFS_EXT4, MKFS_XFS, RESIZE2FS, XFS_GROWFS];

    #[test]
    fn the_list_for_images_has_every_program_that_is_run() {
        let list = include_str!("../../tools.txt");
        let listed: Vec<_> = list
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split_whitespace().next().unwrap())
            .collect();
        for tool in ALL {
            assert!(listed.contains(&tool.name), "{} is not in tools.txt", tool.name);
        }
        // mount runs it for NFS
        assert_eq!(listed.iter().filter(|name| !ALL.iter().any(|tool| tool.name == **name)).count(), 1);
        assert!(listed.contains(&"mount.nfs"));
    }

    #[test]
    fn no_other_file_of_the_crate_starts_a_program() {
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut constants = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.ends_with("node/tools.rs") {
                    let text = std::fs::read_to_string(path).unwrap();
                    constants = text.lines().filter(|line| line.starts_with("pub(crate) const ")).count();
                } else {
                    let text = std::fs::read_to_string(&path).unwrap();
                    assert!(!text.contains("Command::new"), "{}", path.display());
                }
            }
        }
        assert_eq!(constants, ALL.len());
    }

    #[tokio::test]
    async fn the_output_of_a_program_is_cut_and_the_program_ends_all_the_same() {
        let output =
            run(SH, &["-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo why >&2; exit 3"]).await.unwrap();
        assert_eq!(output.code, Some(3));
        assert_eq!(output.stdout.len(), 16 << 10);
        assert_eq!(output.said(), "exit status 3: why");
        let refusal = output.succeeded("format /dev/sdb", SH).unwrap_err();
        assert_eq!(refusal.message, "format /dev/sdb by sh: exit status 3: why");
    }

    #[tokio::test]
    async fn a_missing_program_is_named_with_the_list_of_all() {
        let none = Tool { name: "mkfs.nothing", ..SH };
        let refusal = run::<&str>(none, &[]).await.unwrap_err();
        assert_eq!(refusal.code, Code::FailedPrecondition);
        assert!(refusal.message.starts_with("run mkfs.nothing: "), "{refusal}");
        assert!(refusal.message.contains("tools.txt"), "{refusal}");
    }

    // the score is written when the program runs already
    #[rstest]
    #[case::a_disk(true, "1000")]
    #[case::a_server(false, "")]
    #[tokio::test]
    async fn what_reads_a_disk_goes_first_when_memory_runs_out(
        #[case] reads_disk: bool,
        #[case] expected: &str,
    ) {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let expected = if expected.is_empty() { own.trim() } else { expected };
        let script = format!(
            "for _ in $(seq 1000); do read score < /proc/self/oom_score_adj; [ \"$score\" = {expected} ] && break; done; echo $score"
        );
        let output = run(Tool { reads_disk, ..SH }, &["-c", &script]).await.unwrap();
        assert_eq!(output.stdout.trim(), expected);
    }

    // a check of many terabytes takes hours
    #[rstest]
    fn what_reads_or_writes_a_whole_disk_is_never_ended(
        #[values(E2FSCK, MKFS_EXT4, MKFS_XFS, RESIZE2FS, XFS_GROWFS)] tool: Tool,
    ) {
        assert_eq!(tool.limit, None, "{}", tool.name);
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let stuck = Tool { limit: Some(Duration::from_millis(200)), ..SH };
        // the inner shell holds the pipe open for writing as long as it lives
        let script = format!("sh -c 'sleep 1000' > {}", fifo.display());
        let reader = tokio::task::spawn_blocking(move || std::fs::read(fifo));
        let refusal = run(stuck, &["-c", &script]).await.unwrap_err();
        assert_eq!(refusal.code, Code::DeadlineExceeded);
        assert_eq!(reader.await.unwrap().unwrap(), b"");
    }
}
