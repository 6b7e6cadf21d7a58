//! The programs that `cargo test --no-run` built, as its JSON lines name them.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A file with tests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    /// Such as `load-balancer component`.
    pub(super) name: String,
    pub(super) file: PathBuf,
    /// Where tests expect to run.
    pub(super) folder: PathBuf,
}

/// All of a build.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Built {
    pub(super) tests: Vec<TestProgram>,
    /// Programs themselves, by name.
    pub(super) programs: Vec<(String, PathBuf)>,
}

impl Built {
    /// The program of this name.
    pub(super) fn program(&self, name: &str) -> Option<&Path> {
        self.programs.iter().find(|(its, _)| its == name).map(|(_, file)| file.as_path())
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
struct Target {
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Profile {
    #[serde(default)]
    test: bool,
}

/// Reads the JSON lines in `output`.
pub(super) fn of(output: &str) -> Built {
    let mut built = Built::default();
    for line in output.lines().filter(|line| line.starts_with('{')) {
        let Ok(Line { manifest_path, target, profile, executable: Some(file) }) = serde_json::from_str(line)
        else {
            continue;
        };
        if profile.test {
            let folder = manifest_path.parent().unwrap_or(Path::new("/")).to_owned();
            let of = folder.file_name().unwrap_or_default().display().to_string();
            // a file of tests may have the name of its crate
            let is_file_of_tests = target.kind.iter().any(|kind| kind == "test");
            let name = if of.replace('-', "_") == target.name.replace('-', "_") && !is_file_of_tests {
                of
            } else {
                format!("{of} {}", target.name)
            };
            built.tests.push(TestProgram { name, file, folder });
        } else {
            built.programs.push((target.name, file));
        }
    }
    built
}

/// The words by which cargo says what it is about to do.
const PROGRESS: [&str; 6] = ["Blocking", "Checking", "Compiling", "Documenting", "Downloaded", "Downloading"];

/// What is left of cargo's `output` where somebody looks for the reason of a failure.
pub(super) fn without_progress(output: &str) -> String {
    let says_nothing = |line: &&str| {
        line.starts_with('{') || line.split_whitespace().next().is_some_and(|word| PROGRESS.contains(&word))
    };
    output.lines().filter(|line| !says_nothing(line)).fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"   Compiling ipam v0.1.0
{"reason":"compiler-artifact","manifest_path":"/w/crates/ipam/Cargo.toml","target":{"name":"ipam"},"profile":{"test":true},"executable":"/t/ipam-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/load-balancer/Cargo.toml","target":{"name":"component"},"profile":{"test":true},"executable":"/t/component-1"}
{"reason":"compiler-artifact","manifest_path":"/w/testbed/fault-schedules/Cargo.toml","target":{"name":"fault_schedules","kind":["lib"]},"profile":{"test":true},"executable":"/t/fault-1"}
{"reason":"compiler-artifact","manifest_path":"/w/testbed/fault-schedules/Cargo.toml","target":{"name":"fault_schedules","kind":["test"]},"profile":{"test":true},"executable":"/t/fault-2"}
{"reason":"compiler-artifact","manifest_path":"/w/Cargo.toml","target":{"name":"harvester-cloud-provider"},"profile":{"test":false},"executable":"/t/h"}
{"reason":"compiler-artifact","manifest_path":"/r/serde/Cargo.toml","target":{"name":"serde"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}
"#;

    #[test]
    fn the_tests_and_programs_of_a_build_are_found() {
        let test = |name: &str, file: &str, folder: &str| TestProgram {
            name: name.to_owned(),
            file: file.into(),
            folder: folder.into(),
        };
        let expected = Built {
            tests: vec![
                test("ipam", "/t/ipam-1", "/w/crates/ipam"),
                test("load-balancer component", "/t/component-1", "/w/crates/load-balancer"),
                test("fault-schedules", "/t/fault-1", "/w/testbed/fault-schedules"),
                test("fault-schedules fault_schedules", "/t/fault-2", "/w/testbed/fault-schedules"),
            ],
            programs: vec![("harvester-cloud-provider".to_owned(), "/t/h".into())],
        };
        assert_eq!(of(OUTPUT), expected);
    }

    #[test]
    fn of_a_build_that_failed_the_reason_is_told_and_not_what_went_well() {
        let reason = "error: linking with `cc` failed\n  = note: No space left on device\n";
        assert_eq!(without_progress(&format!("{OUTPUT}    Checking ipam v0.1.0\n{reason}")), reason);
    }
}
