//! `cargo xtask charts`: the charts as a repository that helm, Rancher, RKE2 and K3s install from.
//!
//! ```text
//! target/charts/<chart>-<version>.tgz
//! target/charts/index.yaml             what a web server has to serve beside them
//! target/charts/images.txt             every image that they can ask for, for a registry behind an air gap
//! ```

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use outside_tools::Tool;

use crate::{step, tools, workspace};

/// What the defaults leave out and has an image.
const EVERY_IMAGE: [&str; 2] = ["--api-versions", "snapshot.storage.k8s.io/v1"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the packages will be downloaded from; without it the index names them beside itself.
    #[arg(long)]
    url: Option<String>,
    /// Put before every image of the list, with a slash.
    #[arg(long)]
    registry: Option<String>,
}

/// Packages every chart, and makes the index and the list of images.
///
/// # Errors
/// Where helm is missing, or refuses a chart.
pub(crate) fn run(options: &Options) -> Result<bool> {
    tools::ensure(Tool::Helm)?;
    let helm = Tool::Helm.find().context("helm was just built")?;
    let folder = workspace::target().join("charts");
    if folder.exists() {
        // a package of another version would be in the index
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let mut images = BTreeSet::new();
    for chart in charts()? {
        let name = chart.file_name().unwrap_or_default().display();
        let arguments =
            [OsStr::new("package"), chart.as_os_str(), OsStr::new("--destination"), folder.as_os_str()];
        if !step::run(&format!("package {name}"), Command::new(&helm).args(arguments))?.succeeded {
            return Ok(false);
        }
        images.extend(images_of(&helm, &chart, options.registry.as_deref())?);
    }
    let mut index = Command::new(&helm);
    index.args(["repo", "index"]).arg(&folder);
    if let Some(url) = &options.url {
        index.args(["--url", url]);
    }
    if !step::run("make the index", &mut index)?.succeeded {
        return Ok(false);
    }
    let list: String = images.iter().map(|image| format!("{image}\n")).collect();
    fs::write(folder.join("images.txt"), list).context("write images.txt")?;
    println!("{}: serve this folder over HTTP", folder.display());
    Ok(true)
}

/// The folders of the charts.
fn charts() -> Result<Vec<PathBuf>> {
    let folder = workspace::root().join("deploy").join("charts");
    let entries = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let mut charts = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    charts.retain(|chart| chart.join("Chart.yaml").is_file());
    charts.sort();
    Ok(charts)
}

fn images_of(helm: &Path, chart: &Path, registry: Option<&str>) -> Result<BTreeSet<String>> {
    let mut template = Command::new(helm);
    template.args(["template", "images"]).arg(chart).args(EVERY_IMAGE);
    if let Some(registry) = registry {
        template.args(["--set", &format!("global.cattle.systemDefaultRegistry={registry}")]);
    }
    let output = template.output().context("run helm template")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(images(&String::from_utf8_lossy(&output.stdout)))
}

/// The images that manifests name.
fn images(manifests: &str) -> BTreeSet<String> {
    let lines = manifests.lines().map(|line| line.trim_start().trim_start_matches("- "));
    let images = lines.filter_map(|line| line.strip_prefix("image: "));
    images.map(|image| image.trim_matches(['"', '\'']).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_every_image_of_the_manifests_once() {
        let manifests = "  - name: a\n    image: one:v1\n    imagePullPolicy: Always\n  - image: \"two:v2\"\n    image: one:v1\n";
        assert_eq!(images(manifests).into_iter().collect::<Vec<_>>(), ["one:v1", "two:v2"]);
    }
}
