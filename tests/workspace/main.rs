//! What is true of the workspace as a whole: its layers, its dependencies, its names, connections and periods, the reasons that it
//! gives, and what its comments and documents cite.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod citations;
mod connections;
mod dependencies;
mod documented_reasons;
mod documents;
mod layers;
mod monitoring;
mod names;
mod periods;
mod product;
mod reasons;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The workspace's folder.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `cargo metadata` says of a crate of the workspace.
#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or none.
    kind: Option<String>,
    rename: Option<String>,
    /// Where it lies, for crates of the workspace.
    path: Option<PathBuf>,
}

/// The crates of the workspace.
fn packages() -> Vec<Package> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let told = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    serde_json::from_slice::<Metadata>(&told).unwrap().packages
}

/// What cargo answers to this.
fn cargo(arguments: &[&str]) -> Vec<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let told = Command::new(cargo).current_dir(root()).args(arguments).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    told.stdout
}

/// The files under `folder` whose names end so, by path from the root; what is built or generated is not looked at.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path as people write it.
fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
