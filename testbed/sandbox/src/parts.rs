//! The real parts, as child processes of this same binary under their production names.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::process::{Child, Command};

use crate::folder::Folder;

/// A child that was told to stop is killed after this long.
const GRACE: Duration = Duration::from_secs(5);
/// Set for children, so that none outlives its sandbox, however that ends.
pub(crate) const CHILD: &str = "HARVESTER_SANDBOX_CHILD";

/// How to start one part; the same for its first start and for those after a kill.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartCommand {
    /// No other part has it.
    pub(crate) name: String,
    /// Production name of the program.
    pub(crate) program: &'static str,
    /// A process whose mounts it has; else it has those of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mounts_of: Option<u32>,
    pub(crate) args: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
}

impl PartCommand {
    /// The words before those of the program.
    fn entering(&self) -> Vec<String> {
        match self.mounts_of {
            Some(id) => {
                vec!["nsenter".to_owned(), format!("--mount=/proc/{id}/ns/mnt"), "--".to_owned()]
            }
            None => Vec::new(),
        }
    }
}

/// One running part.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) command: PartCommand,
    program: PathBuf,
    log: PathBuf,
    child: Child,
}

/// A part in `endpoints.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PartInfo {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) command: Vec<String>,
}

impl Part {
    /// Starts the part, from another binary than this one where `from` says so; its log goes to `<folder>/<name>.log`.
    ///
    /// # Errors
    /// When this binary cannot be linked or started under that name.
    pub(crate) fn start(folder: &Folder, from: Option<&Path>, command: PartCommand) -> Result<Self> {
        let bin = folder.run().join("bin");
        fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
        let program = bin.join(command.program);
        if !program.exists() {
            let binary = match from {
                Some(binary) => {
                    binary.canonicalize().with_context(|| format!("find {}", binary.display()))?
                }
                None => std::env::current_exe().context("find this program")?,
            };
            symlink(binary, &program).with_context(|| format!("link {}", program.display()))?;
        }
        let log = folder.join(format!("{}.log", command.name));
        let child = spawn(&program, &command, &log)?;
        Ok(Self { command, program, log, child })
    }

    pub(crate) fn info(&self) -> PartInfo {
        // self-contained: a user who kills the part can start it again with these words
        let mut command = vec!["env".to_owned()];
        command.extend(self.command.environment.iter().map(|(key, value)| format!("{key}={value}")));
        command.extend(self.command.entering());
        command.push(self.program.display().to_string());
        command.extend(self.command.args.clone());
        PartInfo { name: self.command.name.clone(), pid: self.child.id().unwrap_or_default(), command }
    }

    /// Its memory, in MiB.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn resident_mib(&self) -> Result<f64> {
        let file = format!("/proc/{}/status", self.info().pid);
        let status = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 =
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("no VmRSS")?;
        Ok(kib / 1024.0)
    }

    /// SIGKILL: nothing is said to the part, nothing is put in order by it.
    ///
    /// # Errors
    /// When the process cannot be killed.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("kill {}", self.command.name))
    }

    /// Starts it again after [`Part::kill`], with the same command.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.command, &self.log)?;
        Ok(())
    }

    /// An error with the end of its log when the part has ended by itself.
    ///
    /// # Errors
    /// That one.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("ask for a child's state")? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<_> = log.lines().rev().take(15).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            bail!("{} ended with {status}; its last words:\n{}", self.command.name, tail.join("\n"));
        }
        Ok(())
    }

    /// SIGTERM; does not wait for the end.
    ///
    /// # Errors
    /// When the process has ended.
    pub(crate) fn terminate(&self) -> Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.with_context(|| format!("{} has ended", self.command.name))?;
        kill_process(pid, Signal::TERM).with_context(|| format!("stop {}", self.command.name))
    }

    /// SIGTERM, and SIGKILL when that does not help.
    pub(crate) async fn stop(&mut self) {
        if self.terminate().is_ok() && tokio::time::timeout(GRACE, self.child.wait()).await.is_ok() {
            return;
        }
        if let Err(error) = self.child.kill().await {
            tracing::warn!(part = self.command.name, %error, "could not be killed");
        }
    }
}

fn spawn(program: &Path, command: &PartCommand, log: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open {}", log.display()))?;
    let errors = log.try_clone().context("share a log file")?;
    let program = program.to_str().with_context(|| format!("{} is no UTF-8", program.display()))?;
    let words: Vec<_> = command.entering().into_iter().chain([program.to_owned()]).collect();
    Command::new(&words[0])
        .args(&words[1..])
        .args(&command.args)
        .env_remove("KUBECONFIG")
        .envs(&command.environment)
        .env(CHILD, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {program}"))
}
