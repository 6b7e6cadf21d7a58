//! The CSI driver as it is built and started, judged by others: `csi-sanity`, with a simulated Harvester behind it; and the
//! kernel, udev and programs of a node, in virtual machines.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod harvester;
mod process;
mod real_node;
mod sanity;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

/// The built binary. A wrapper of rustc that is a shell script loses Cargo's variable, for the dashes in its name.
fn binary() -> PathBuf {
    let told = option_env!("CARGO_BIN_EXE_harvester-cloud-provider").map(PathBuf::from);
    told.unwrap_or_else(|| {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("harvester-cloud-provider")
    })
}

/// The driver on a socket in `folder`.
fn driver(folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.arg("csi-driver").arg(format!("--endpoint=unix://{}", folder.join("csi.sock").display()));
    for variable in ["KUBECONFIG", "HOST_STORAGE_CLASS", "DEBUG", "HTTP_ENDPOINT"] {
        command.env_remove(variable);
    }
    command
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Running {
    fn terminate(&self) {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
    }
}

/// Waits for another process, in real time.
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: not within a minute");
}
