//! Rancher's own decoder and RPC client against the plugin: the program in `tests/node-driver` plays rancher-machine.

use std::{
    env,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{support::Harvester, wire};

/// The built program; none without Go, which is a failure where `CI` is set.
#[expect(clippy::explicit_write, reason = "the test runner keeps what `eprintln` prints to itself")]
fn peer() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/node-driver");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-driver-peer");
    let built = Command::new("go").arg("build").arg("-o").arg(&program).arg(".").current_dir(source).status();
    match built {
        Ok(status) => {
            assert!(status.success(), "go build: {status}");
            Some(program)
        }
        Err(error) => {
            assert!(env::var_os("CI").is_none(), "no Go here, and CI wants this test: {error}");
            writeln!(io::stderr(), "skipped: no Go to play rancher-machine; see https://go.dev/dl").unwrap();
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gos_own_client_makes_drives_and_removes_a_machine() {
    let Some(peer) = tokio::task::spawn_blocking(peer).await.unwrap() else { return };
    let harvester = Harvester::start().await.with_machines().await;
    let kubeconfig = harvester.serve().await;
    let store = tempfile::tempdir().unwrap();
    let mut command = Command::new(peer);
    command
        .arg(wire::path())
        .arg(store.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let told = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(kubeconfig.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap();
    assert!(
        told.status.success(),
        "{}{}",
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr)
    );
    assert!(harvester.vm().await.is_null() && harvester.secret().await.is_null());
}
