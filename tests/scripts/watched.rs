//! `status --watch` in a pipe: a page whenever something has changed.

use std::process::Stdio;

use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{ChildStdout, Command},
};

use super::host::{Host, binary};

/// So many pages may come before the one that is waited for.
const PAGES: usize = 20;

/// Reads on until a page that is as it should be; it is judged line by line, because the last one is not known to have ended.
async fn until(lines: &mut Lines<BufReader<ChildStdout>>, is_it: impl Fn(&[String]) -> bool) {
    let (mut page, mut pages) = (Vec::new(), 0);
    while pages < PAGES {
        let line = lines.next_line().await.unwrap().unwrap_or_else(|| panic!("it ended: {page:#?}"));
        if line == "---" {
            pages += 1;
            page.clear();
        }
        page.push(line);
        if is_it(&page) {
            return;
        }
    }
    panic!("not in {PAGES} pages: {page:#?}");
}

fn names(page: &[String], name: &str) -> bool {
    page.iter().any(|line| line.contains(name))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_status_shows_what_came_and_what_went() {
    let Some(host) = Host::open().await else { return };
    let kubeconfig = host.kubeconfig().display().to_string();
    let mut command = Command::new(binary());
    command.args(["status", "--watch", "--kubeconfig", &kubeconfig, "--cloud-config", &kubeconfig]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut status = command.spawn().unwrap();
    let mut lines = BufReader::new(status.stdout.take().unwrap()).lines();
    until(&mut lines, |page| !page.is_empty()).await;
    for name in ["web-1", "web-2"] {
        host.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: vms}},
              spec: {{type: LoadBalancer, ports: [{{port: 80}}]}}}}"
        ))
        .await;
    }
    // in this order, so that a page which has got to the second one alone lacks the first
    until(&mut lines, |page| names(page, "web-1") && names(page, "web-2")).await;
    let (done, told) = host.kubectl("delete service web-1 -n vms").await;
    assert!(done, "{told}");
    until(&mut lines, |page| names(page, "web-2") && !names(page, "web-1")).await;
    status.kill().await.unwrap();
}
