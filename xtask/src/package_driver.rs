//! `cargo xtask package-driver`: the node driver as Rancher downloads it.
//!
//! ```text
//! target/node-driver/docker-machine-driver-harvester-<arch>.tar.gz           one static ELF of exactly that name
//! target/node-driver/docker-machine-driver-harvester-<arch>.tar.gz.sha256
//! target/node-driver/node-driver.yaml                                        the NodeDriver that names it
//! target/node-driver/node-driver-beside.yaml                                 the same beside Rancher's own
//! target/node-driver/rancher-asset.yaml                                      the driver in the place of Rancher's asset
//! ```
//! Rancher starts the file in an empty chroot as another user before it believes in it; so does this task, where it may.

pub(crate) mod c_compiler;
mod rancher;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use self::c_compiler::Compiler;
use crate::{step, workspace};

/// What Rancher looks for in the archive.
const NAME: &str = "docker-machine-driver-harvester";
/// Architectures by Rancher's names, and Rust's targets for them.
const TARGETS: [(&str, &str); 2] =
    [("amd64", "x86_64-unknown-linux-musl"), ("arm64", "aarch64-unknown-linux-musl")];
/// Where Rancher downloads from, unless told otherwise.
const URL: &str = "https://github.com/harvester/docker-machine-driver-harvester/releases/download/v0.0.0";

/// Cargo's profile of what ships.
pub(crate) const PROFILE: &str = "dist";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Cargo's profile.
    #[arg(long, default_value = PROFILE)]
    profile: String,
    /// Where the archives will be downloaded from, without their names.
    #[arg(long, default_value = URL)]
    url: String,
}

/// Packages every architecture whose Rust target is installed.
///
/// # Errors
/// Where a command cannot be started, or a file cannot be written.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let folder = workspace::target().join("node-driver");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut packaged = vec![];
    for (arch, target) in TARGETS {
        let there = is_installed(target)? || is_own(target) && install(target)?;
        ensure!(
            there || !is_own(target),
            "there is no static library for this machine: `rustup target add {target}` would bring it"
        );
        if !there {
            println!("      {arch} is left out: `rustup target add {target}` would bring it");
            continue;
        }
        let compiler = match c_compiler::find(target) {
            Ok(compiler) => compiler,
            Err(error) => {
                println!("      {arch} is left out: {error:#}");
                continue;
            }
        };
        let Some(program) = build(target, &options.profile, &compiler)? else { return Ok(false) };
        let archive = pack(&program, &folder, arch)?;
        let sum = checksum(&archive)?;
        let file = format!("{}.sha256", archive.display());
        fs::write(&file, format!("{sum}  {NAME}-{arch}.tar.gz\n"))
            .with_context(|| format!("write {file}"))?;
        println!("ok    {} ({} KiB)", archive.display(), fs::metadata(&archive)?.len() >> 10);
        if is_own(target) && !starts_in_a_chroot(&archive, &folder)? {
            return Ok(false);
        }
        packaged.push((arch, sum));
    }
    // of amd64, where that can be built here
    let (arch, sum) = packaged.first().context("no architecture was packaged")?;
    for (file, text) in rancher::rendered(&options.url, arch, sum) {
        fs::write(folder.join(file), text).with_context(|| format!("write {file}"))?;
    }
    Ok(true)
}

/// The package as a part of the full run.
pub(crate) fn command() -> Command {
    workspace::cargo(["run", "--package", "xtask", "--", "package-driver"])
}

/// What keeps the package from being tested here.
pub(crate) fn lacking() -> Option<String> {
    let root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    (!root).then(|| {
        "only root may start the driver in an empty chroot as another user: run it as root".to_owned()
    })
}

/// Whether a target is of this machine's architecture.
pub(crate) fn is_own(target: &str) -> bool {
    target.starts_with(std::env::consts::ARCH)
}

/// Asks rustup for a target; without rustup there is none to be had.
pub(crate) fn install(target: &str) -> Result<bool> {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", target]);
    match step::run(&format!("get Rust's target {target}"), &mut rustup) {
        Ok(outcome) => Ok(outcome.succeeded),
        Err(_) => Ok(false),
    }
}

pub(crate) fn is_installed(target: &str) -> Result<bool> {
    let told = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let told = told.context("ask rustc for its targets")?;
    Ok(told.status.success() && Path::new(String::from_utf8_lossy(&told.stdout).trim()).is_dir())
}

/// Builds the driver as it ships for this machine's architecture; the answer is its file, or none where it does not
/// build.
///
/// # Errors
/// As [`run`].
pub(crate) fn build_for_this_machine() -> Result<Option<PathBuf>> {
    let (_, target) =
        TARGETS.into_iter().find(|(_, target)| is_own(target)).context("no target for this machine")?;
    ensure!(is_installed(target)? || install(target)?, "`rustup target add {target}` fails");
    build(target, PROFILE, &c_compiler::find(target)?)
}

fn build(target: &str, profile: &str, compiler: &Compiler) -> Result<Option<PathBuf>> {
    let arguments =
        ["build", "--package", "node-driver", "--bin", NAME, "--target", target, "--profile", profile];
    let mut command = workspace::cargo(arguments);
    compiler.announce(target, &mut command);
    if !step::run(&format!("build {NAME} for {target}"), &mut command)?.succeeded {
        return Ok(None);
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(Some(workspace::target().join(target).join(folder).join(NAME)))
}

/// An archive with the program alone in it, the same for the same program.
fn pack(program: &Path, folder: &Path, arch: &str) -> Result<PathBuf> {
    let stage = folder.join(format!("stage-{arch}"));
    fs::create_dir_all(&stage)?;
    let staged = stage.join(NAME);
    // a copy, not a link
    fs::copy(program, &staged).with_context(|| format!("copy {}", program.display()))?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
    ensure!(
        is_static(&fs::read(&staged)?),
        "{} needs a loader: Rancher's chroot has none",
        program.display()
    );
    let archive = folder.join(format!("{NAME}-{arch}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.env("GZIP", "-n").args([
        "--create",
        "--gzip",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
    ]);
    tar.arg("--file").arg(&archive).arg("--directory").arg(&stage).arg(NAME);
    ensure!(step::run(&format!("pack {arch}"), &mut tar)?.succeeded, "tar failed");
    fs::remove_dir_all(&stage)?;
    let listed = Command::new("tar").arg("--list").arg("--verbose").arg("--file").arg(&archive).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // Rancher takes no link, and the machine image's script looks for exactly this path
    ensure!(
        listed.lines().count() == 1
            && listed.starts_with("-rwxr-xr-x")
            && listed.trim_end().ends_with(&format!(" {NAME}")),
        "{} does not hold {NAME} alone: {listed}",
        archive.display()
    );
    Ok(archive)
}

/// Whether a 64-bit little-endian ELF asks for no loader: no program header of type `PT_INTERP`.
pub(crate) fn is_static(elf: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = elf.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || -> Option<Vec<u32>> {
        let (start, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        (0..count)
            .map(|at| number(usize::try_from(start + at * size).ok()?, 4).map(|kind| kind as u32))
            .collect()
    };
    elf.starts_with(b"\x7fELF\x02\x01") && headers().is_some_and(|kinds| !kinds.contains(&PT_INTERP))
}

fn checksum(file: &Path) -> Result<String> {
    let content = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    Ok(Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Starts what is in the archive in an empty folder as user 1000: it must explain itself and end.
fn starts_in_a_chroot(archive: &Path, folder: &Path) -> Result<bool> {
    let jail = folder.join("jail");
    fs::create_dir_all(&jail)?;
    // whatever the umask is: the other user must get in
    fs::set_permissions(&jail, fs::Permissions::from_mode(0o755))?;
    if fs::metadata(&jail)?.uid() != 0 {
        println!("      not started in a chroot: only root may do that");
        return Ok(true);
    }
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&jail);
    ensure!(unpack.status()?.success(), "unpack {}", archive.display());
    let started = || {
        let mut chroot = Command::new("chroot");
        chroot.arg("--userspec=1000:1000").arg(&jail).arg(format!("/{NAME}"));
        chroot.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        chroot
    };
    let told = started().output().context("start chroot")?;
    let address = address_line(&mut started())?;
    fs::remove_dir_all(&jail)?;
    let explained = String::from_utf8_lossy(&told.stderr).contains("plugin API version 1");
    let listens =
        address.strip_prefix("127.0.0.1:").is_some_and(|port| port.trim_end().parse::<u16>().is_ok());
    let good = told.status.code() == Some(1) && told.stdout.is_empty() && explained && listens;
    println!("{}starts in an empty chroot as another user", if good { "ok     " } else { "FAILED " });
    if !good {
        println!("{told:?}, and as a plugin it began with {address:?}");
    }
    Ok(good)
}

/// What the driver says first as rancher-machine's plugin.
fn address_line(command: &mut Command) -> Result<String> {
    let mut plugin = command.env("MACHINE_PLUGIN_TOKEN", "42").stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let out = plugin.stdout.take().context("its standard output is piped")?;
    BufReader::new(out).read_line(&mut line)?;
    plugin.kill()?;
    plugin.wait()?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut elf = vec![0; 0x40];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[0x20] = 0x40;
        elf[0x36] = 0x38;
        elf[0x38] = u8::try_from(kinds.len()).unwrap();
        for kind in kinds {
            elf.extend(kind.to_le_bytes());
            elf.extend([0; 0x34]);
        }
        elf
    }

    #[test]
    fn a_program_is_static_if_it_asks_for_no_loader() {
        assert!(is_static(&elf(&[1, 2])));
        assert!(!is_static(&elf(&[6, 3, 1])));
        assert!(!is_static(&elf(&[1])[..0x42]), "cut off");
        assert!(!is_static(b"#!/bin/sh"));
    }
}
