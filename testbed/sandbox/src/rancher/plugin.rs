//! One process of the driver, and calls to it.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use go_rpc::{Client, FromGob, Interface, Limits, ToGob, Typed};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinHandle,
};

use crate::parts::CHILD;

/// Between two heartbeats; without them the driver ends after 10 s.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// rancher-machine waits so long for the first line.
const FIRST_LINE: Duration = Duration::from_secs(10);
/// The longest call, Create, gives up by itself before this.
const PATIENCE: Duration = Duration::from_secs(700);

/// A plugin process that is kept alive by heartbeats, and ends with this.
pub(crate) struct Plugin {
    child: Child,
    client: Client,
    heart: JoinHandle<()>,
    /// The lines of the plugin after the address.
    said: Arc<Mutex<Vec<String>>>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.heart.abort();
    }
}

impl Plugin {
    /// Starts it with rancher-machine's token and arguments, and connects to where it says that it listens.
    pub(super) async fn start(program: &Path, kubeconfig: &str) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["create", "--driver", "harvester"])
            .env_clear()
            .env("MACHINE_PLUGIN_TOKEN", "42")
            .env("MACHINE_PLUGIN_DRIVER_NAME", "harvester")
            .env("HARVESTER_KUBECONFIG_CONTENT", kubeconfig)
            .env(CHILD, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut lines = BufReader::new(child.stdout.take().context("its standard output is piped")?).lines();
        let address = tokio::time::timeout(FIRST_LINE, lines.next_line()).await;
        let address = address.context("the driver did not say where it listens within 10 s")??;
        let address = address.context("the driver ended without a word")?;
        let stream = TcpStream::connect(&address).await.with_context(|| format!("connect to {address}"))?;
        let client = Client::connect(stream, Limits::default()).await.context("speak to the driver")?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let to = said.clone();
        // it must be read: a full pipe would stop the driver
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                to.lock().expect("no panic while a line is kept").push(line);
            }
        });
        let heart = tokio::spawn(beat(client.clone()));
        Ok(Self { child, client, heart, said })
    }

    /// A call without argument.
    pub(crate) async fn ask<R: FromGob>(&self, method: &str) -> Result<R> {
        self.call(method, &()).await
    }

    /// A call whose answer is its success.
    pub(crate) async fn act(&self, method: &str) -> Result<()> {
        self.ask(method).await
    }

    /// A call that only takes.
    pub(super) async fn tell(&self, method: &str, argument: &impl ToGob) -> Result<()> {
        self.call(method, argument).await
    }

    async fn call<R: FromGob>(&self, method: &str, argument: &impl ToGob) -> Result<R> {
        let name = full(method);
        let called = self.client.call(&name, argument);
        let called = tokio::time::timeout(PATIENCE, called).await.context("no answer for 700 s");
        called.and_then(|answer| Ok(answer?)).with_context(|| self.context(method))
    }

    pub(super) async fn call_typed(&self, method: &str, argument: Typed) -> Result<()> {
        let called = self.client.call_typed(&full(method), argument).await;
        called.map(drop).with_context(|| self.context(method))
    }

    fn context(&self, method: &str) -> String {
        let said = self.said.lock().expect("no panic while a line is kept").join(" | ");
        format!(
            "the driver's {method}{}",
            if said.is_empty() { String::new() } else { format!(" (it said: {said})") }
        )
    }

    /// The flags that it has, with the type of the answer.
    pub(crate) async fn flags_typed(&self) -> Result<Typed> {
        let answer = self.client.call_typed(&full("GetCreateFlags"), ().to_typed()).await;
        answer.with_context(|| self.context("GetCreateFlags"))
    }

    pub(super) async fn flags(&self) -> Result<Vec<Interface>> {
        let flags: Vec<Option<Interface>> = self.ask("GetCreateFlags").await?;
        ensure!(flags.iter().all(Option::is_some), "a flag of the driver is nil");
        Ok(flags.into_iter().flatten().collect())
    }

    /// Highest memory so far, in MiB.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn peak_mib(&self) -> Result<f64> {
        let file = format!("/proc/{}/status", self.child.id().context("the driver has ended")?);
        let status = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: f64 =
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("no VmHWM")?;
        Ok(kib / 1024.0)
    }

    /// Says goodbye; the process must then end with 0.
    ///
    /// # Errors
    /// When it ends otherwise, or not within ten seconds.
    pub(crate) async fn close(mut self) -> Result<()> {
        self.act("Close").await?;
        let ended = tokio::time::timeout(FIRST_LINE, self.child.wait()).await;
        let status = ended.context("the driver does not end after Close")??;
        if !status.success() {
            bail!("the driver ended with {status} after Close");
        }
        Ok(())
    }
}

fn full(method: &str) -> String {
    format!("RPCServerDriver.{method}")
}

async fn beat(client: Client) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if client.call::<()>(&full("Heartbeat"), &()).await.is_err() {
            return;
        }
    }
}
