//! The scripts of `deploy/` against the simulated Harvester, typed as people type them: under each shell of this machine,
//! piped and from a file, with the tools of another system, with and without the binary.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../pages/commands.rs"]
mod commands;
mod host;
mod interrupted;
mod rancher;
mod rights;
mod same;
mod served;
mod text;
mod typed;
mod watched;

use std::{fs, path::Path};

/// A script of `deploy/`.
fn script(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)).unwrap()
}
