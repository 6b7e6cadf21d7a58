//! A process in a pod's place: it has a mount namespace of its own, and works on a file in a volume.
//!
//! Only root may have such a namespace. The kernel hands mounts down from the namespace that the process comes from, as it does
//! from a node to a container.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The namespace that the process comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// That of this process.
    Here,
    /// That of the process with this ID.
    Process(u32),
}

/// Writes `content` into the file `name` of the volume at `target`, through to the disk.
///
/// # Errors
/// What the process says.
pub fn write(from: &From, target: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    // `sync FILE` would not write out the folder
    run(from, "cat > \"$0\" && sync -f \"$0\"", &target.join(name), content).map(drop)
}

/// What is in the file `name` of the volume at `target`.
///
/// # Errors
/// What the process says.
pub fn read(from: &From, target: &Path, name: &str) -> io::Result<Vec<u8>> {
    run(from, "cat \"$0\"", &target.join(name), &[])
}

/// The size of the file system at `target`.
///
/// # Errors
/// What the process says.
pub fn size(from: &From, target: &Path) -> io::Result<u64> {
    let said = run(from, "stat -f -c '%S %b' \"$0\"", target, &[])?;
    let said = String::from_utf8_lossy(&said);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [size, blocks] => Ok(size * blocks),
        _ => Err(io::Error::other(format!("stat says {said:?}"))),
    }
}

fn run(from: &From, script: &str, argument: &Path, input: &[u8]) -> io::Result<Vec<u8>> {
    let own = ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", script].map(PathBuf::from);
    let mut words: Vec<PathBuf> = Vec::new();
    if let From::Process(id) = from {
        words.extend(["nsenter".into(), format!("--mount=/proc/{id}/ns/mnt").into(), "--".into()]);
    }
    words.extend(own);
    words.push(argument.to_owned());
    let mut process = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = process.stdin.take() {
        // a process that ended says why below
        stdin.write_all(input).ok();
    }
    let output = process.wait_with_output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("a process in a pod's place: {why}")))
}
