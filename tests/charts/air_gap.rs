//! The documented way to fill a registry behind an air gap.

use std::{collections::BTreeSet, env, fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{CHARTS, EVERYTHING, containers, helm, output, render, root, text};

/// Says what it would copy.
const SKOPEO: &str = "#!/bin/sh\necho \"$3 $4\"\n";

/// The images of all charts, as `cargo xtask charts` lists them.
fn images(helm: &Path, options: &[&str]) -> BTreeSet<String> {
    let mut all = options.to_vec();
    all.extend(EVERYTHING);
    let rendered = CHARTS.map(|(name, _)| render(helm, name, &all));
    let containers = rendered.iter().flat_map(|objects| containers(objects));
    containers.map(|(_, container)| text(container, "/image").to_owned()).collect()
}

/// Types the loop of docs/install.md beside that list; answers from where to where it copies.
fn copied(images: &BTreeSet<String>) -> BTreeSet<(String, String)> {
    let document = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let block = document.lines().skip_while(|line| !line.starts_with("    grep /rancher/"));
    let block: String =
        block.take_while(|line| line.starts_with("    ")).map(|line| format!("{line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let (programs, list) = (folder.path().join("bin"), folder.path().join("target/charts/images.txt"));
    for made in [programs.as_path(), list.parent().unwrap()] {
        fs::create_dir_all(made).unwrap();
    }
    let skopeo = programs.join("skopeo");
    fs::write(&skopeo, SKOPEO).unwrap();
    fs::set_permissions(&skopeo, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(list, images.iter().map(|image| format!("{image}\n")).collect::<String>()).unwrap();
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let mut typed = Command::new("sh");
    let told = output(typed.args(["-e", "-c", &block]).env("PATH", path).current_dir(folder.path())).unwrap();
    let pair = |line: &str| line.split_once(' ').map(|(from, to)| (from.to_owned(), to.to_owned()));
    told.lines().filter_map(pair).collect()
}

/// Harbor has no images outside of a project, so the name of its registry has a path. In a project `rancher` our images are too,
/// and at docker.io the Go programs have these names.
#[test]
fn every_image_that_is_not_ours_is_copied_from_where_it_is_published() {
    let Some(helm) = helm() else { return };
    let published = images(&helm, &[]);
    let others: Vec<_> = published.iter().filter(|image| image.contains('/')).collect();
    assert_eq!((others.len(), published.len()), (6, 8), "{published:?}");
    for registry in
        ["registry.example.com", "harbor.example.com/harvester", "registry.example.com:5000/rancher"]
    {
        let ours = ["image", "webhook.image"]
            .map(|at| format!("{at}.repository={registry}/harvester-cloud-provider"));
        let driver = format!("image.harvester.csiDriver.repository={registry}/harvester-csi-driver");
        let before = format!("global.cattle.systemDefaultRegistry={registry}");
        let listed = images(&helm, &[&ours[0], &ours[1], &driver, &before]);
        let one =
            |image: &&String| (format!("docker://docker.io/{image}"), format!("docker://{registry}/{image}"));
        assert_eq!(copied(&listed), others.iter().map(one).collect::<BTreeSet<_>>(), "{registry}");
    }
}
