//! Start and end of the process, without a cluster.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
};

use crate::{Running, binary, driver, until};

/// A kubeconfig for a server that nobody runs.
fn kubeconfig(folder: &Path) -> String {
    let file = folder.join("guest.kubeconfig");
    let text = "{current-context: a, clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}],
                 contexts: [{name: a, context: {cluster: a}}]}";
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

// docs/contract/csi-driver.md#end
// docs/contract/csi-driver.md#exits
#[test]
fn sigterm_ends_a_driver_without_clusters_with_zero_and_its_socket_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = driver(folder.path());
    command.arg(format!("--guest-kubeconfig={}", kubeconfig(folder.path())));
    command.arg(format!("--kubeconfig={}", folder.path().join("none").display()));
    let mut driver = Running(command.stderr(Stdio::null()).spawn().unwrap());
    let socket = folder.path().join("csi.sock");
    until("the driver listens", || socket.exists());
    driver.terminate();
    let status = driver.0.wait().unwrap();
    assert_eq!((status.code(), socket.exists()), (Some(0), false));
}

/// The answer to a request, head and body.
fn got(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

// docs/contract/csi-driver.md#observed
#[test]
fn health_is_about_the_process_and_readiness_says_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = driver(folder.path());
    command.arg(format!("--guest-kubeconfig={}", kubeconfig(folder.path())));
    command.arg(format!("--kubeconfig={}", folder.path().join("none").display()));
    // as a chart without the flag has it
    command.env("HTTP_ENDPOINT", format!("127.0.0.1:{port}"));
    let _driver = Running(command.stderr(Stdio::null()).spawn().unwrap());
    until("the driver listens", || folder.path().join("csi.sock").exists());
    assert!(got(port, "/healthz").starts_with("HTTP/1.1 200 "));
    let ready = got(port, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("kubeconfig: no kubeconfig"), "{ready}");
    let metrics = got(port, "/metrics");
    assert!(metrics.contains("# TYPE process_cpu_seconds counter"), "{metrics}");
}

// docs/contract/csi-driver.md#exits
#[test]
fn a_driver_outside_of_a_pod_names_the_flag_that_it_lacks_and_ends_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = driver(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--guest-kubeconfig"), "{said}");
}

#[test]
fn the_name_of_the_program_chooses_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("harvester-csi-driver");
    std::os::unix::fs::symlink(binary(), &program).unwrap();
    let output = Command::new(program).arg("--version").output().unwrap();
    let expected = format!("harvester-csi-driver {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
