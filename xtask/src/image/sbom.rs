//! What is in an image, as CycloneDX 1.5: the program, the crates that are in it, the Debian packages, each with its version
//! and SHA-256.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::debian::Package;
use crate::workspace;

/// A crate that is in the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// Of what crates.io gives; none for a crate of this workspace.
    pub(super) checksum: Option<String>,
}

/// The crates that are compiled into the program for a target.
///
/// # Errors
/// Where cargo fails.
pub(super) fn crates(target: &str) -> Result<Vec<Crate>> {
    let mut tree = workspace::cargo([
        "tree",
        "--locked",
        "--no-default-features",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
        "--target",
        target,
    ]);
    let output = tree.output().context("start cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
    let lock = fs::read_to_string(workspace::root().join("Cargo.lock")).context("read Cargo.lock")?;
    Ok(listed(&String::from_utf8_lossy(&output.stdout), &lock))
}

/// The lines of `cargo tree`, with the checksums of Cargo.lock.
fn listed(tree: &str, lock: &str) -> Vec<Crate> {
    let field = |stanza: &str, name: &str| {
        let line = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let sums: BTreeMap<(String, String), String> = lock
        .split("[[package]]")
        .filter_map(|stanza| {
            Some(((field(stanza, "name")?, field(stanza, "version")?), field(stanza, "checksum")?))
        })
        .collect();
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned());
        let checksum = sums.get(&(name.clone(), version.clone())).cloned();
        Some(Crate { name, version, checksum })
    };
    let mut crates: Vec<Crate> = tree.lines().filter_map(read).collect();
    crates.sort();
    crates.dedup();
    crates
}

/// The list as text.
pub(super) fn of(image: &str, tag: &str, program: &str, packages: &[Package], crates: &[Crate]) -> String {
    let hash = |digest: &str| json!([{"alg": "SHA-256", "content": digest.trim_start_matches("sha256:")}]);
    let mut components =
        vec![json!({"type": "application", "name": "harvester-cloud-provider", "version": tag,
        "hashes": hash(program)})];
    components.extend(packages.iter().map(|Package { name, version, arch, digest }| {
        // a colon and a plus mean something else in such an address
        let escaped = version.replace(':', "%3A").replace('+', "%2B");
        json!({"type": "library", "name": name, "version": version, "hashes": hash(digest),
            "purl": format!("pkg:deb/debian/{name}@{escaped}?arch={arch}")})
    }));
    components.extend(crates.iter().map(|Crate { name, version, checksum }| {
        let mut component = json!({"type": "library", "name": name, "version": version,
            "purl": format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))});
        if let Some(checksum) = checksum {
            component["hashes"] = hash(checksum);
        }
        component
    }));
    let list: Value = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image, "version": tag}},
        "components": components,
    });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n\n[[package]]\nname = \
                        \"own\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";

    #[test]
    fn a_crate_is_listed_once_with_the_checksum_of_the_lock() {
        let found = listed("own v0.1.0 (/src)\na v1.0.0\na v1.0.0 (*)\n\n", LOCK);
        let expected = [
            Crate { name: "a".into(), version: "1.0.0".into(), checksum: Some("abc".into()) },
            Crate { name: "own".into(), version: "0.1.0".into(), checksum: None },
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn each_package_is_listed_with_version_and_sum() {
        let package = Package {
            name: "libc6".into(),
            version: "1:2.36-9+deb12u1".into(),
            arch: "amd64".into(),
            digest: "sha256:def".into(),
        };
        let list: Value = serde_json::from_str(&of("csi", "v1", "sha256:0", &[package], &[])).unwrap();
        assert_eq!((&list["bomFormat"], &list["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        let expected = json!({"type": "library", "name": "libc6", "version": "1:2.36-9+deb12u1",
            "hashes": [{"alg": "SHA-256", "content": "def"}],
            "purl": "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u1?arch=amd64"});
        assert_eq!(list["components"][1], expected);
        assert_eq!(list["components"][0]["hashes"][0]["content"], "0");
    }
}
