//! `cargo xtask bench`: measures the built program on a simulated or a real server, prints a table, and writes
//! `target/bench/<server>.json`.
//!
//! The measuring is the sandbox's (`sandbox --measure`), which prints a line `figure <name> <value>` for each figure;
//! names, units, aims and what the Go programs needed are in the table here.

mod figures;
mod report;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::report::Report;
use crate::{package_driver, step, workspace};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The API servers to measure on.
    #[arg(long, value_enum, default_value_t = Server::Sim)]
    server: Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Server {
    /// Simulated, in the sandbox's process.
    Sim,
    /// kube-apiserver and etcd.
    Real,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Real => "real",
        }
    }
}

/// Measures.
///
/// # Errors
/// Where cargo cannot be started, or the report cannot be written.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let server = options.server.name();
    if !step::run("build the sandbox", &mut workspace::cargo(["build", "--release"]))?.succeeded {
        return Ok(false);
    }
    // the parts as they ship: their memory is that of images, not of a binary with simulators in it
    let shipped = ["build", "--profile", "dist", "--no-default-features", "--features", "dial-map"];
    if !step::run("build what ships", &mut workspace::cargo(shipped))?.succeeded {
        return Ok(false);
    }
    let Some(program) = shipped_programs()? else { return Ok(false) };
    let mut command =
        workspace::cargo(["run", "--release", "--", "sandbox", "--measure", "--server", server]);
    command.arg("--program").arg(program);
    let outcome = step::run(&format!("measure ({server})"), &mut command)?;
    let report = Report::new(server, &report::machine(), &outcome.output);
    println!("{}", report.table());
    let folder = workspace::target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let file = folder.join(format!("{server}.json"));
    fs::write(&file, report.json()?).with_context(|| format!("write {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(outcome.succeeded)
}

/// The programs as they ship, side by side in a folder of their own; the answer is the first one's file.
fn shipped_programs() -> Result<Option<PathBuf>> {
    let Some(driver) = package_driver::build_for_this_machine()? else { return Ok(None) };
    let folder = workspace::target().join("bench").join("shipped");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let parts = workspace::target().join("dist/harvester-cloud-provider");
    for program in [&parts, &driver] {
        let copy = folder.join(program.file_name().expect("a program has a name"));
        fs::copy(program, &copy).with_context(|| format!("copy {}", program.display()))?;
    }
    Ok(Some(folder.join("harvester-cloud-provider")))
}
