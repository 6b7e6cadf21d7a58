//! Every dependency of every crate is used. A tool such as cargo-machete looks for the same words in the same sources and
//! would have to be built first, for minutes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Package, cargo, files, packages, root, short};

/// Dependencies that are there for another reason than to be named.
const NOT_NAMED: &[(&str, &str, &str)] = &[
    ("harvester-api", "k8s-openapi", "the derive macro CustomResource names it"),
    ("csi-driver", "prost", "the code that build.rs generates names it"),
    ("csi-driver", "prost-types", "the code that build.rs generates names it"),
    ("csi-driver", "tonic-prost", "the code that build.rs generates names it"),
];

/// The code of these files, without lines that are comments alone.
fn code(files: &[PathBuf]) -> String {
    let mut code = String::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Whether `word` stands in `text` by itself.
fn names(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

/// The sources in which a dependency of this kind may be used: those of the crate, or those of its tests too.
fn sources(package: &Package, kind: Option<&str>) -> Vec<PathBuf> {
    let folder: &Path = package.manifest_path.parent().unwrap();
    let all = if folder == root() {
        ["src", "tests"].iter().flat_map(|part| files(&folder.join(part), &[".rs"])).collect()
    } else {
        files(folder, &[".rs"])
    };
    let outside_tests = |file: &PathBuf| kind.is_some() || file.starts_with(folder.join("src"));
    all.into_iter().filter(outside_tests).collect()
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    for package in packages() {
        for kind in [None, Some("dev"), Some("build")] {
            let code = code(&sources(&package, kind));
            for dependency in package.dependencies.iter().filter(|it| it.kind.as_deref() == kind) {
                let named = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
                let excused =
                    NOT_NAMED.iter().any(|(of, name, _)| *of == package.name && *name == dependency.name);
                if !excused && !names(&code, &named) {
                    unused.push(format!("{}: {}", short(&package.manifest_path), dependency.name));
                }
            }
        }
    }
    assert!(unused.is_empty(), "these are used nowhere: {unused:#?}");
}

/// Rancher downloads the plugin, and starts one for each machine.
#[test]
fn the_plugin_of_the_node_driver_holds_no_server() {
    const SERVERS: [&str; 6] =
        ["axum", "axum-server", "h2", "prometheus-client", "rcgen", "tracing-subscriber"];
    let told =
        cargo(&["tree", "--offline", "--package", "node-driver", "--edges", "normal", "--prefix", "none"]);
    let text = String::from_utf8(told).unwrap();
    let crates: BTreeSet<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("kube-client"), "the tree is read: {crates:?}");
    let there: Vec<_> = SERVERS.into_iter().filter(|name| crates.contains(name)).collect();
    assert!(there.is_empty(), "`cargo tree -p node-driver -e normal -i {}` says for whom", there[0]);
}

#[test]
fn a_word_is_found_only_by_itself() {
    assert!(names("use http::Request;", "http"));
    assert!(!names("use hyper_http::Request; https", "http"));
}
