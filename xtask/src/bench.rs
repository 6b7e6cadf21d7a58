//! `cargo xtask bench`: measures the built program on a simulated or a real server, prints a table, and writes
//! `target/bench/<server>.json`.
//!
//! The measuring is the sandbox's (`sandbox --measure`), which prints a line `figure <name> <value>` for each figure;
//! names, units, aims and what the Go programs needed are in the table here. `--against` compares with another build of
//! the parts in turns, because times of one hour mean nothing in the next; `--builds` measures what a newcomer and a
//! developer wait for, in a clone.

mod figures;
mod report;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::report::Report;
use crate::{image, package_driver, step, workspace};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The API servers to measure on.
    #[arg(long, value_enum, default_value_t = Server::Sim)]
    server: Server,
    /// Another build of the parts, to compare the creation of a Service with, in turns.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "builds")]
    against: Option<PathBuf>,
    /// Some of the figures alone; they go to `target/bench/<server>-<figures>.json`.
    #[arg(long, value_enum, value_name = "FIGURES", conflicts_with_all = ["against", "builds"])]
    only: Option<Only>,
    /// How long the README's first command and `cargo xtask test` take in a fresh clone, and the tests when all is built.
    #[arg(long)]
    builds: bool,
}

/// How often each of two builds is measured.
const TURNS: usize = 3;

/// Release of Harvester that storage is measured on: from 1.8 on disks follow a VM's template.
const HARVESTER: &str = "v1.9.0";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Server {
    /// Simulated, in the sandbox's process.
    Sim,
    /// kube-apiserver and etcd.
    Real,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Only {
    /// Those of a single Service.
    Creation,
    /// Those of the cloud controller manager: nodes, sharing, ports, starts, a large cluster.
    Ccm,
    /// Those of health checks: ten thousand backends.
    Probes,
    /// Those of load balancers on Harvester: one that waits, one for VMs, ten thousand of them.
    Balancers,
    /// Those of the dashboard.
    Dashboard,
    /// Those of the CSI driver: attachments, nodes, inconsistent states, csi-sanity.
    Storage,
    /// Those of the programs that people call: the script for a cloud-config, doctor.
    Tools,
}

impl Only {
    fn name(self) -> &'static str {
        match self {
            Self::Creation => "creation",
            Self::Ccm => "ccm",
            Self::Probes => "probes",
            Self::Balancers => "balancers",
            Self::Dashboard => "dashboard",
            Self::Storage => "storage",
            Self::Tools => "tools",
        }
    }
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
    if options.builds {
        return builds();
    }
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
    if let Some(other) = &options.against {
        return compare(server, &program, other);
    }
    let mut outcome =
        step::run(&format!("measure ({server})"), &mut measure(server, &program, options.only))?;
    if options.only.is_none() {
        // in sandboxes of their own: the one before has thousands of objects, and no simulation and no webhook any more
        for only in [Only::Storage, Only::Tools] {
            let alone = &mut measure(server, &program, Some(only));
            let alone = step::run(&format!("measure {} ({server})", only.name()), alone)?;
            outcome.output.push_str(&alone.output);
            outcome.succeeded &= alone.succeeded;
        }
    }
    if matches!(options.only, None | Some(Only::Tools)) {
        outcome.output.push_str(&sizes());
    }
    let of = options.only.map_or_else(|| server.to_owned(), |only| format!("{server}-{}", only.name()));
    write(&of, &outcome.output)?;
    Ok(outcome.succeeded)
}

fn measure(server: &str, program: &Path, only: Option<Only>) -> Command {
    let mut command =
        workspace::cargo(["run", "--release", "--", "sandbox", "--measure", "--server", server]);
    command.arg("--program").arg(program);
    if let Some(only) = only {
        command.args(["--only", only.name()]);
    }
    if only == Some(Only::Storage) {
        command.args(["--harvester-behaviour", HARVESTER]);
    }
    command
}

/// The lines of what has to be downloaded: the images that `cargo xtask image` made last, and the program in them.
fn sizes() -> String {
    let line = |(figure, mib): (&str, Result<f64>)| match mib {
        Ok(mib) => format!("figure {figure} {mib:.4}\n"),
        Err(error) => format!("figure {figure} not measured: {error}\n"),
    };
    let sizes = [
        ("binary-mib", image::program_mib()),
        ("image-mib", image::unpacked_mib("harvester-cloud-provider")),
        ("csi-image-mib", image::unpacked_mib("harvester-csi-driver")),
    ];
    sizes.into_iter().map(line).collect()
}

/// The median time of a Service under both builds, in turns, and their ratio.
fn compare(server: &str, ours: &Path, other: &Path) -> Result<bool> {
    let name = "service-create-p50-ms";
    let (mut times, mut whole) = ([Vec::new(), Vec::new()], true);
    for turn in 1..=TURNS {
        for (program, times) in [ours, other].into_iter().zip(&mut times) {
            let says = format!("turn {turn} of {TURNS}: {}", program.display());
            let outcome = step::run(&says, &mut measure(server, program, Some(Only::Creation)))?;
            whole &= outcome.succeeded;
            times.extend(report::value(&outcome.output, name));
        }
    }
    let [ours, other] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
    });
    println!("{name}: {ours:.2} ms, the other {other:.2} ms");
    write(
        &format!("{server}-against"),
        &format!("figure {name} {ours}\nfigure service-create-p50-ratio {}\n", ours / other),
    )?;
    Ok(whole)
}

/// Builds and tests in a clone, whose dependencies are downloaded.
fn builds() -> Result<bool> {
    let clone = workspace::target().join("bench").join("clone");
    if clone.exists() {
        fs::remove_dir_all(&clone).with_context(|| format!("remove {}", clone.display()))?;
    }
    let mut git = Command::new("git");
    git.args(["clone", "--quiet"]).arg(workspace::root()).arg(&clone);
    let cargo = |arguments: &[&str]| {
        let mut command = workspace::cargo(arguments.iter().copied());
        command.current_dir(&clone).env_remove("CARGO_TARGET_DIR");
        command
    };
    let mut whole = step::run("clone", &mut git)?.succeeded;
    whole &= step::run("download the dependencies", &mut cargo(&["fetch"]))?.succeeded;
    let first = step::run("the README's first command", &mut cargo(&["build", "--release"]))?;
    let target = clone.join("target");
    fs::remove_dir_all(&target).with_context(|| format!("remove {}", target.display()))?;
    let fresh = step::run("tests, nothing built", &mut cargo(&["xtask", "test"]))?;
    let warm = step::run("tests, everything built", &mut cargo(&["xtask", "test"]))?;
    whole &= first.succeeded && fresh.succeeded && warm.succeeded;
    let minutes = |outcome: &step::Outcome| outcome.took.as_secs_f64() / 60.0;
    let figures = format!(
        "figure first-build-s {}\nfigure test-fresh-min {}\nfigure test-warm-min {}\n",
        first.took.as_secs_f64(),
        minutes(&fresh),
        minutes(&warm)
    );
    write("builds", &figures)?;
    Ok(whole)
}

/// Prints the figures in `output`, and writes them to `target/bench/<of>.json`.
fn write(of: &str, output: &str) -> Result<()> {
    let report = Report::new(of, &report::machine(), output);
    println!("{}", report.table());
    let folder = workspace::target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let file = folder.join(format!("{of}.json"));
    fs::write(&file, report.json()?).with_context(|| format!("write {}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(())
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
