//! A C compiler for a target: ring has C in it, which needs headers of a C library and nothing else of it. For another
//! architecture than this machine's it is one that is installed, or the one in PyPI's `ziglang`; the linker is Rust's own.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::is_own;
use crate::step;

/// A release of PyPI's `ziglang`, which carries clang and the headers of all targets.
const ZIGLANG: &str = "0.17.1";

/// How a target is compiled and linked.
#[derive(Debug, PartialEq)]
pub(crate) struct Compiler {
    /// For the variable `CC_<target>`; none where it is set.
    cc: Option<String>,
    /// Rust's linker instead of the system's, which may know this machine's architecture only.
    own_linker: bool,
}

impl Compiler {
    /// With Rust's linker for this machine's architecture too: it is the same on every machine, and makes smaller programs.
    pub(crate) fn with_own_linker(self) -> Self {
        Self { own_linker: true, ..self }
    }

    /// Tells cargo of it.
    pub(crate) fn announce(&self, target: &str, cargo: &mut Command) {
        if let Some(cc) = &self.cc {
            cargo.env(variable(target), cc);
        }
        let linker = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_ascii_uppercase());
        if self.own_linker && std::env::var_os(&linker).is_none() {
            cargo.env(linker, "rust-lld");
        }
    }
}

fn variable(target: &str) -> String {
    format!("CC_{}", target.replace('-', "_"))
}

/// Finds it.
///
/// # Errors
/// Says how to have one.
pub(crate) fn find(target: &str) -> Result<Compiler> {
    let own_linker = !is_own(target);
    if std::env::var_os(variable(target)).is_some() {
        return Ok(Compiler { cc: None, own_linker });
    }
    if !own_linker {
        return Ok(Compiler { cc: Some("cc".to_owned()), own_linker });
    }
    let cc = installed(target).map_or_else(|| zig(target), Ok)?;
    Ok(Compiler { cc: Some(cc), own_linker })
}

fn installed(target: &str) -> Option<String> {
    let arch = target.split('-').next()?;
    let gcc = [format!("{arch}-linux-musl-gcc"), format!("{arch}-linux-gnu-gcc")];
    let gcc = gcc.into_iter().find(|compiler| has_headers(compiler));
    // ring asks for none where it is clang
    gcc.or_else(|| runs(Path::new("clang"), &["--version"]).then(|| "clang".to_owned()))
}

/// Whether it finds a C library's headers, which are in another package than gcc.
fn has_headers(gcc: &str) -> bool {
    let source = ["-fsyntax-only", "-include", "assert.h", "-include", "stdint.h", "-x", "c", "/dev/null"];
    runs(Path::new(gcc), &source)
}

fn runs(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    let started = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    started.is_ok_and(|status| status.success())
}

/// The compiler in `ziglang`, installed into the cache.
fn zig(target: &str) -> Result<String> {
    let cache = outside_tools::cache().context("no folder for the cache: set HARVESTER_TOOLS or HOME")?;
    let folder = cache.join(format!("ziglang-{ZIGLANG}"));
    let zig: PathBuf = folder.join("ziglang").join("zig");
    if !runs(&zig, &["version"]) {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]).arg(&folder);
        pip.arg(format!("ziglang=={ZIGLANG}"));
        let outcome = step::run(&format!("install a C compiler for {target} from PyPI"), &mut pip);
        ensure!(
            outcome.is_ok_and(|outcome| outcome.succeeded) && runs(&zig, &["version"]),
            "a C compiler for {target} would bring it: install clang, or gcc-aarch64-linux-gnu with \
             libc6-dev-arm64-cross, or python3 with pip, which can fetch ziglang {ZIGLANG}"
        );
    }
    let wrapper = folder.join(format!("{target}-cc"));
    fs::write(&wrapper, wrapped(&zig, target)).with_context(|| format!("write {}", wrapper.display()))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    Ok(wrapper.display().to_string())
}

/// A script that calls zig as a C compiler for `target`, whatever Rust's build scripts call the target, and without the
/// checks that it puts into unoptimised code by itself.
fn wrapped(zig: &Path, target: &str) -> String {
    let zigs_name = target.replace("-unknown", "");
    format!(
        "#!/bin/sh
for argument do
    shift
    case $argument in --target=*) ;; *) set -- \"$@\" \"$argument\" ;; esac
done
exec '{}' cc -target {zigs_name} -fno-sanitize=undefined \"$@\"
",
        zig.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn another_architecture_is_compiled_by_its_compiler_and_linked_by_rusts_linker() {
        let mut cargo = Command::new("cargo");
        Compiler { cc: Some("clang".into()), own_linker: true }
            .announce("aarch64-unknown-linux-musl", &mut cargo);
        let told: Vec<_> =
            cargo.get_envs().map(|(key, value)| (key.to_str().unwrap(), value.unwrap())).collect();
        let expected = [
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld".as_ref()),
            ("CC_aarch64_unknown_linux_musl", "clang".as_ref()),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_compiler_without_headers_is_passed_over() {
        let folder = workspace::target().join("xtask");
        fs::create_dir_all(&folder).unwrap();
        for (name, lacks, expected) in [("gcc-alone", "assert.h", false), ("gcc-and-libc", "nothing.h", true)]
        {
            let gcc = folder.join(name);
            fs::write(&gcc, format!("#!/bin/sh\ncase \"$*\" in *{lacks}*) exit 1 ;; esac\n")).unwrap();
            fs::set_permissions(&gcc, fs::Permissions::from_mode(0o755)).unwrap();
            assert!(runs(&gcc, &["--version"]), "{name} is there");
            assert_eq!(has_headers(gcc.to_str().unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn zig_is_told_the_target_by_its_own_name_and_by_nobody_else() {
        let folder = workspace::target().join("xtask");
        fs::create_dir_all(&folder).unwrap();
        let wrapper = folder.join("zig-wrapper");
        fs::write(&wrapper, wrapped(Path::new("/bin/echo"), "aarch64-unknown-linux-musl")).unwrap();
        let mut called = Command::new("sh");
        called.arg(&wrapper).args(["-O2", "--target=aarch64-unknown-linux-musl", "-c", "a b.c"]);
        let told = String::from_utf8(called.output().unwrap().stdout).unwrap();
        assert_eq!(told, "cc -target aarch64-linux-musl -fno-sanitize=undefined -O2 -c a b.c\n");
    }
}
