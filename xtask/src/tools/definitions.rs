//! Copies the definitions of other projects' kinds out of their Go modules into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use outside_tools::definitions::{SOURCES, Source, cached};
use serde::Deserialize;

use super::go;
use crate::workspace;

/// Makes sure that they are in the cache.
///
/// # Errors
/// Names the module that cannot be had.
pub(super) fn ensure(cache: &Path) -> Result<PathBuf> {
    let folder = cached(cache);
    if folder.is_dir() {
        return Ok(folder);
    }
    let go = go::find(cache)?;
    let fresh = folder.with_extension("new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("remove {}", fresh.display()))?;
    }
    fs::create_dir_all(&fresh).with_context(|| format!("make {}", fresh.display()))?;
    for source in &SOURCES {
        let module = download(&go, source)?;
        for file in source.files {
            let from = module.join(source.folder).join(file);
            fs::copy(&from, fresh.join(file)).with_context(|| format!("copy {}", from.display()))?;
        }
    }
    fs::rename(&fresh, &folder).with_context(|| format!("put {} in its place", folder.display()))?;
    Ok(folder)
}

/// The folder of a module, once Go has it.
fn download(go: &Path, source: &Source) -> Result<PathBuf> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Downloaded {
        dir: PathBuf,
    }
    let version = source.version().with_context(|| format!("{} is not pinned", source.module))?;
    let told = Command::new(go)
        .current_dir(workspace::root().join("tests").join("envtest").join("crds"))
        .env("GOTOOLCHAIN", "local")
        .args(["mod", "download", "-json", &format!("{}@{version}", source.module)])
        .output()
        .context("run go mod download")?;
    let why =
        || format!("{}{}", String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    ensure!(told.status.success(), "{} {version}: {}", source.module, why().trim());
    let downloaded: Downloaded = serde_json::from_slice(&told.stdout).with_context(why)?;
    Ok(downloaded.dir)
}
