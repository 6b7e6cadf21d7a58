//! An unmodified kubectl as people type it, in a folder of its own.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Stdio,
};

use tempfile::TempDir;
use tokio::process::Command;

use crate::Tool;

/// kubectl, and the folder in which it is called: `kubeconfig` is there, and the files that its arguments name.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    namespace: &'static str,
    folder: TempDir,
}

impl Kubectl {
    /// The one of this machine, for objects of `namespace`; none where it has none, which is told on standard error.
    ///
    /// # Panics
    /// Where no folder can be made.
    pub fn find(namespace: &'static str) -> Option<Self> {
        let Some(program) = Tool::Kubectl.find() else {
            // past the test harness, which shows nothing of a test that passes
            let said = writeln!(io::stderr(), "left out: a test with kubectl: `cargo xtask tools` builds it");
            said.expect("standard error can be written to");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder can be made");
        Some(Self { program, namespace, folder })
    }

    /// Writes a file of the folder: `kubeconfig` first.
    ///
    /// # Panics
    /// Where it cannot be written.
    pub fn file(&self, name: &str, content: &str) {
        fs::write(self.folder.path().join(name), content).expect("a file can be written");
    }

    /// An editor for `edit` that takes `from` for `wrong`, and when it is called again, `wrong` for `right`.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn editor(&self, from: &str, wrong: &str, right: &str) {
        let told = self.folder.path().join("told");
        assert!(
            !told.exists() || fs::remove_file(told).is_ok(),
            "what the former one was shown cannot be removed"
        );
        let script = format!(
            "#!/bin/sh\nif [ -e told ]; then cp \"$1\" told; sed 's|{wrong}|{right}|' told > \"$1\"\n\
             else : > told; sed -i 's|{from}|{wrong}|' \"$1\"; fi\n"
        );
        self.file("editor", &script);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.folder.path().join("editor"), executable).expect("it can be executable");
    }

    /// What the editor was shown when it was called again.
    ///
    /// # Panics
    /// Where it was called once at most.
    pub fn told(&self) -> String {
        fs::read_to_string(self.folder.path().join("told")).expect("the editor was called")
    }

    /// Whether a line of arguments succeeds, and what it prints on both channels.
    ///
    /// # Panics
    /// Where it cannot be started.
    pub async fn run(&self, arguments: &str) -> (bool, String) {
        let mut command = Command::new(&self.program);
        command.args(["--kubeconfig", "kubeconfig", "--namespace", self.namespace]);
        command.args(arguments.split(' ')).current_dir(self.folder.path());
        command.env("HOME", self.folder.path()).env("EDITOR", "./editor");
        let output = command.stdin(Stdio::null()).output().await.expect("kubectl can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    /// Returns its output.
    ///
    /// # Panics
    /// Where it fails.
    pub async fn works(&self, arguments: &str) -> String {
        let (success, text) = self.run(arguments).await;
        assert!(success, "kubectl {arguments}: {text}");
        text
    }

    /// Returns its output.
    ///
    /// # Panics
    /// Where it succeeds.
    pub async fn fails(&self, arguments: &str) -> String {
        let (success, text) = self.run(arguments).await;
        assert!(!success, "kubectl {arguments}: {text}");
        text
    }
}
