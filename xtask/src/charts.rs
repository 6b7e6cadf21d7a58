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
    /// The registry that has our images: the default of the packages, and put before every image of the list.
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
    let made = make(options, &helm, &folder)?;
    if made {
        println!("{}: serve this folder over HTTP", folder.display());
    }
    Ok(made)
}

fn make(options: &Options, helm: &Path, folder: &Path) -> Result<bool> {
    if folder.exists() {
        // a package of another version would be in the index
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let mut images = BTreeSet::new();
    let mut sources = folder.as_os_str().to_owned();
    sources.push("-sources");
    let sources = PathBuf::from(sources);
    for chart in charts()? {
        let name = chart.file_name().unwrap_or_default();
        let chart = match &options.registry {
            Some(registry) => from_registry(&chart, &sources.join(name), registry)?,
            None => chart.clone(),
        };
        let name = name.display();
        let arguments =
            [OsStr::new("package"), chart.as_os_str(), OsStr::new("--destination"), folder.as_os_str()];
        if !step::run(&format!("package {name}"), Command::new(helm).args(arguments))?.succeeded {
            return Ok(false);
        }
        images.extend(images_of(helm, &chart, options.registry.as_deref())?);
    }
    let mut index = Command::new(helm);
    index.args(["repo", "index"]).arg(folder);
    if let Some(url) = &options.url {
        index.args(["--url", url]);
    }
    if !step::run("make the index", &mut index)?.succeeded {
        return Ok(false);
    }
    let list: String = images.iter().map(|image| format!("{image}\n")).collect();
    fs::write(folder.join("images.txt"), list).context("write images.txt")?;
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

/// A copy of a chart at `to` whose defaults ask this registry for our images.
fn from_registry(chart: &Path, to: &Path, registry: &str) -> Result<PathBuf> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("remove {}", to.display()))?;
    }
    workspace::copy_folder(chart, to)?;
    // helm shows templates the second one
    for file in ["values.yaml", "files/values.yaml"].map(|file| to.join(file)) {
        let values = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        fs::write(&file, with_registry(&values, registry))
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(to.to_owned())
}

/// Our images are those that no registry has yet: their names have no slash.
fn with_registry(values: &str, registry: &str) -> String {
    let registry = registry.trim_end_matches('/');
    let line = |line: &str| match line.split_once("repository: ") {
        Some((before, image)) if before.trim().is_empty() && !image.contains('/') => {
            format!("{before}repository: {registry}/{image}")
        }
        _ => line.to_owned(),
    };
    values.split('\n').map(line).collect::<Vec<_>>().join("\n")
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
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// A web server on loopback for the files of a folder, until the process ends.
    fn serve(folder: PathBuf) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut lines = Vec::new();
                let mut line = String::new();
                while stream.read_line(&mut line).unwrap_or(0) > 2 {
                    lines.push(std::mem::take(&mut line));
                }
                let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
                let found = fs::read(folder.join(path.trim_start_matches('/')));
                let (code, body) = found.map_or((404, Vec::new()), |body| (200, body));
                let head = format!(
                    "HTTP/1.1 {code} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // who is away needs no answer
                drop(stream.get_mut().write_all(&[head.as_bytes(), &body].concat()));
            }
        });
        format!("http://{address}")
    }

    /// As K3s and Rancher install them: by the address of the repository and the name of the chart.
    #[test]
    fn a_chart_out_of_the_index_renders_what_its_folder_does() {
        let Some(helm) = Tool::Helm.find() else {
            assert!(std::env::var_os("CI").is_none(), "no helm here: run `cargo xtask tools`");
            println!("left out: helm is not on this machine: `cargo xtask tools` builds it");
            return;
        };
        let folder = workspace::target().join("charts-served");
        let repository = serve(folder.clone());
        let rendered = |arguments: &[&OsStr]| {
            let mut command = Command::new(&helm);
            command.args(["template", "release"]).args(arguments);
            for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
                command.env(name, workspace::target().join("charts-served-helm"));
            }
            let told = command.output().unwrap();
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            String::from_utf8(told.stdout).unwrap()
        };
        // beside the index, and where its address says
        for url in [None, Some(repository.clone())] {
            assert!(make(&Options { url: url.clone(), registry: None }, &helm, &folder).unwrap());
            let index = fs::read_to_string(folder.join("index.yaml")).unwrap();
            assert_eq!(index.contains(&repository), url.is_some(), "{index}");
            for chart in charts().unwrap() {
                let by_folder = rendered(&[chart.as_os_str()]);
                let name = chart.file_name().unwrap();
                let by_index = rendered(&[name, OsStr::new("--repo"), OsStr::new(&repository)]);
                assert!(by_index == by_folder, "{}: {by_index}", name.display());
                assert!(by_index.contains("\nkind: Deployment\n"), "{by_index}");
            }
        }
        // with the registry of the images, K3s needs no values
        let registry = Some("registry.example.com".to_owned());
        assert!(make(&Options { url: None, registry }, &helm, &folder).unwrap());
        let images = fs::read_to_string(folder.join("images.txt")).unwrap();
        assert!(images.lines().all(|image| image.starts_with("registry.example.com/")), "{images}");
        let name = "harvester-cloud-provider";
        let ccm = rendered(&[OsStr::new(name), OsStr::new("--repo"), OsStr::new(&repository)]);
        assert!(ccm.contains("image: registry.example.com/harvester-cloud-provider:v"), "{ccm}");
    }

    /// K3s installs them without values, and a name without a registry is looked for at docker.io.
    #[test]
    fn the_packages_ask_the_registry_for_our_images_and_for_no_others() {
        let folder = workspace::target().join("charts-tested");
        let mut ours = BTreeSet::new();
        for chart in charts().unwrap() {
            let to = folder.join(chart.file_name().unwrap());
            let copy = from_registry(&chart, &to, "registry.example.com/").unwrap();
            for file in ["values.yaml", "files/values.yaml"] {
                let before = fs::read_to_string(chart.join(file)).unwrap();
                let after = fs::read_to_string(copy.join(file)).unwrap();
                let changed = before.lines().zip(after.lines()).filter(|(before, after)| before != after);
                ours.extend(changed.map(|(_, after)| after.trim().to_owned()));
            }
            assert!(copy.join("templates/_helpers.tpl").is_file() && copy.join("Chart.yaml").is_file());
        }
        let images = ["harvester-cloud-provider", "harvester-csi-driver"];
        assert_eq!(ours, images.map(|image| format!("repository: registry.example.com/{image}")).into());
    }

    #[test]
    fn the_list_has_every_image_of_the_manifests_once() {
        let manifests = "  - name: a\n    image: one:v1\n    imagePullPolicy: Always\n  - image: \"two:v2\"\n    image: one:v1\n";
        assert_eq!(images(manifests).into_iter().collect::<Vec<_>>(), ["one:v1", "two:v2"]);
    }
}
