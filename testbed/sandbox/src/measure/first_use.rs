//! The first minute of a first_use: a second sandbox, from its start to the first answer of its example.

use std::{net::SocketAddr, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::Instant,
};

use crate::{curl::curl, options::Server};

/// A sandbox that has not answered by then never will.
const PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// From the start of `sandbox` to the first answered `curl`.
pub(super) async fn first_curl(server: Server) -> Result<Duration> {
    let program = std::env::current_exe().context("find this program")?;
    let kind = if server == Server::Sim { "sim" } else { "real" };
    let begun = Instant::now();
    let mut child = Command::new(program)
        .args(["sandbox", "--server", kind])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start a second sandbox")?;
    let mut lines = BufReader::new(child.stdout.take().context("it was piped")?).lines();
    let answered = async {
        while let Some(line) = lines.next_line().await.context("read what the second sandbox says")? {
            let Some(address) = line.trim().strip_prefix("curl http://") else { continue };
            let address: SocketAddr =
                if address.contains(':') { address.parse()? } else { format!("{address}:80").parse()? };
            while curl(address).await.is_err() {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            return anyhow::Ok(begun.elapsed());
        }
        bail!("the second sandbox ended without an address")
    };
    let took =
        tokio::time::timeout(PATIENCE, answered).await.context("the second sandbox does not answer")?;
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        kill_process(pid, Signal::INT).context("end the second sandbox")?;
        child.wait().await.context("wait for the second sandbox")?;
    }
    took
}
