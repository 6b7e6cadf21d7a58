//! `cargo xtask tour`: the sandbox's own check, as often as asked.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::{step, workspace};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often.
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Further arguments of the sandbox, after `--`.
    #[arg(last = true)]
    sandbox: Vec<String>,
}

/// Runs the tour and says how often it passed.
///
/// # Errors
/// Where cargo cannot be started.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if !step::run("build the sandbox", &mut workspace::cargo(["build", "--release"]))?.succeeded {
        return Ok(false);
    }
    let mut passed = 0;
    for turn in 1..=options.times {
        let name = format!("sandbox tour {turn} of {}", options.times);
        passed += u32::from(step::run(&name, command().args(&options.sandbox))?.succeeded);
    }
    println!("{passed} passed, {} failed", options.times - passed);
    Ok(passed == options.times)
}

/// The tour once, in the profile in which a newcomer meets it.
fn command() -> Command {
    workspace::cargo(["run", "--release", "--", "sandbox", "--check"])
}

/// The tour of a program that is built already.
pub(crate) fn of(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace::root()).args(["sandbox", "--check"]);
    command
}

/// The same where everything is another way: real API servers, a Harvester whose machines are patched, and the roles of
/// existing charts.
pub(crate) fn on_real_servers(program: &Path) -> Command {
    let mut command = of(program);
    command.args(["--server=real", "--rights=existing", "--harvester-behaviour=v1.9.0"]);
    command
}
