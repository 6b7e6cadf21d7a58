//! Starts every program of an image: in its folder by chroot, and by bubblewrap without root where the machine lets it. One of
//! another architecture runs under qemu.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result};

use super::{Arch, Image, debian, used};
use crate::workspace;

/// Shells and loaders end with this, and what was not started.
const NOT_STARTED: i32 = 126;

/// qemu, while programs of another architecture are started.
const QEMU: &str = "qemu-aarch64-static";

/// Starts all of them in each way that this machine has.
///
/// # Errors
/// Where a program of this machine cannot be started.
pub(super) fn all(image: &Image, arch: Arch, root: &Path) -> Result<bool> {
    let qemu = match arch.is_own() {
        true => None,
        false => match qemu(root)? {
            Some(inside) => Some(inside),
            None => {
                println!("       {} for {} is not started: no {QEMU} here", image.name, arch.name());
                return Ok(true);
            }
        },
    };
    let (mut ways, mut lacking) = (vec![], vec![]);
    match fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        true => ways.push(("chroot", in_chroot as fn(&Path) -> Command)),
        false => lacking.push("chroot (only root may)".to_owned()),
    }
    match bubblewrap() {
        Ok(()) => ways.push(("bubblewrap", in_bubblewrap as fn(&Path) -> Command)),
        Err(why) => lacking.push(format!("bubblewrap ({why})")),
    }
    // a program of this machine that was started in no way was not tried
    let mut good = !ways.is_empty();
    if ways.is_empty() {
        println!("FAILED {} for {}: no way to start it here", image.name, arch.name());
    }
    for (way, command) in ways {
        let mut faults = vec![];
        for (program, argument) in programs(image) {
            let mut command = command(root);
            command.args(qemu.as_deref()).arg(&program).arg(argument);
            command.env_clear().env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", image.path));
            let why = started(root, &program, &mut command).with_context(|| format!("start {way}"))?;
            faults.extend(why.map(|why| format!("{program}: {why}")));
        }
        let word = if faults.is_empty() { "ok     " } else { "FAILED " };
        println!("{word}{} for {} starts by {way}", image.name, arch.name());
        faults.iter().for_each(|fault| println!("       {fault}"));
        good &= faults.is_empty();
    }
    for way in lacking {
        println!("       not started by {way}");
    }
    if qemu.is_some() {
        fs::remove_file(root.join(QEMU)).context("remove qemu")?;
    }
    Ok(good)
}

/// What is started, and an argument that ends it: the parts explain themselves, the tools say their version.
fn programs(image: &Image) -> Vec<(String, &'static str)> {
    let (folder, name) = image.program.rsplit_once('/').unwrap_or(("", image.program));
    let names = image.links.iter().copied().chain([name]);
    let parts = names.map(|name| (format!("/{folder}/{name}"), "--help"));
    let tools = if image.has_tools { debian::programs(debian::TOOLS) } else { vec![] };
    let tools = tools.into_iter().map(|tool| {
        // the loader of a foreign program knows no PATH
        let folder =
            if ["blkid", "mount.nfs"].contains(&tool) || tool.contains("fs") { "sbin" } else { "bin" };
        (format!("/usr/{folder}/{tool}"), "-V")
    });
    parts.chain(tools).collect()
}

/// Starts a program of the image; the answer is why it did not start. qemu ends with 1 where there is none, as some programs do.
fn started(root: &Path, program: &str, command: &mut Command) -> Result<Option<String>> {
    match used::target(root, &root.join(program.trim_start_matches('/'))) {
        Ok(_) => Ok(fault(&command.output()?)),
        Err(_) => Ok(Some("it is not in the image".to_owned())),
    }
}

/// Why a program did not start. Any status of its own will do: some tools know no version.
fn fault(output: &Output) -> Option<String> {
    match output.status.code() {
        Some(code) if code < NOT_STARTED => None,
        _ => Some(format!("{}, {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn in_chroot(root: &Path) -> Command {
    let mut chroot = Command::new("chroot");
    chroot.arg(root);
    chroot
}

fn in_bubblewrap(root: &Path) -> Command {
    let mut bwrap = Command::new(debian_program("bwrap").unwrap_or_else(|| PathBuf::from("bwrap")));
    bwrap.args(["--unshare-all", "--ro-bind"]).arg(root).args(["/", "--"]);
    bwrap
}

/// Whether bubblewrap starts anything here: it takes a user namespace.
fn bubblewrap() -> Result<(), String> {
    let Some(bwrap) = debian_program("bwrap") else { return Err("there is none to be had".to_owned()) };
    let mut trial = Command::new(bwrap);
    trial.args(["--unshare-all", "--ro-bind", "/", "/", "--", "/bin/true"]);
    match trial.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Puts qemu into the folder; the answer is its path there.
fn qemu(root: &Path) -> Result<Option<String>> {
    let Some(qemu) = debian_program(QEMU) else { return Ok(None) };
    let inside = root.join(QEMU);
    fs::copy(&qemu, &inside).with_context(|| format!("copy {}", qemu.display()))?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
    Ok(Some(format!("/{QEMU}")))
}

/// A program of this machine, or of a Debian package.
fn debian_program(name: &str) -> Option<PathBuf> {
    let script = workspace::root().join("tests/debian-program.sh");
    let output = Command::new("sh").arg(script).arg(name).output().ok()?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !path.is_empty()).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::IMAGES;

    #[test]
    fn a_program_that_was_not_started_is_told_from_one_that_refuses_its_argument() {
        let ended = |script: &str| Command::new("sh").args(["-c", script]).output().unwrap();
        assert_eq!(fault(&ended("exit 1")), None);
        let missing = fault(&ended("/no/such/program")).unwrap();
        assert!(missing.contains("127") && missing.contains("/no/such/program"), "{missing}");
        assert!(fault(&ended("kill -9 $$")).is_some());
    }

    #[test]
    fn a_program_that_is_not_in_the_image_did_not_start_whatever_qemu_says() {
        let root = workspace::target().join("xtask").join("started");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/program"), "").unwrap();
        let status = |program| started(&root, program, &mut Command::new("false")).unwrap();
        assert_eq!(status("/bin/program"), None);
        assert_eq!(status("/bin/other").unwrap(), "it is not in the image");
    }

    #[test]
    fn every_name_of_the_program_and_every_tool_is_started() {
        let of = |at: usize| programs(&IMAGES[at]).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(of(0).len(), 4);
        assert!(of(0).contains(&"/bin/harvester-load-balancer-webhook".to_owned()));
        let with_tools = of(1);
        assert_eq!(with_tools.len(), 1 + debian::programs(debian::TOOLS).len());
        for path in [
            "/usr/bin/harvester-csi-driver",
            "/usr/bin/nsenter",
            "/usr/bin/mount",
            "/usr/sbin/mount.nfs",
            "/usr/sbin/blkid",
        ] {
            assert!(with_tools.contains(&path.to_owned()), "{path}: {with_tools:?}");
        }
    }
}
