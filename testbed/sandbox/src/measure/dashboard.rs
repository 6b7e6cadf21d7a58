//! The dashboard beside a thousand load balancers: its memory with a page open, and how soon the page is told of an object.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail};
use harvester_api::LoadBalancer;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    commands,
    environment::Environment,
    manifests::plain,
    measure::{direct::Direct, percentile},
    parts::{Part, PartCommand},
};

/// Load balancers beside which the dashboard is measured.
const BESIDE: usize = 1_000;
/// Their namespace and pool.
const NAMESPACE: &str = "bench-dashboard";
/// So many more come one after the other, and the page is told of them.
const OBJECTS: usize = 100;
/// Between two of them: some come while the page was told of the one before just now.
const BETWEEN: Duration = Duration::from_millis(70);
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn all(environment: &Environment, say: impl Fn(&str, f64)) -> Result<()> {
    let mut direct = Direct::prepare(environment.harvester.clone(), NAMESPACE).await?;
    direct.create("beside", BESIDE).await?;
    let port = commands::free_port()?;
    let kubeconfig = environment.folder().join("harvester.kubeconfig");
    let mut part = environment.another(PartCommand {
        name: "dashboard".to_owned(),
        program: commands::CLOUD_CONTROLLER_MANAGER,
        mounts_of: None,
        args: vec![
            "dashboard".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--address=127.0.0.1:{port}"),
        ],
        environment: BTreeMap::new(),
    })?;
    let outcome = measure(environment, &part, port, say).await;
    let outcome = outcome.map_err(|error| part.still_runs().err().unwrap_or(error));
    part.stop().await;
    direct.remove().await.context("after the dashboard")?;
    outcome
}

async fn measure(environment: &Environment, part: &Part, port: u16, say: impl Fn(&str, f64)) -> Result<()> {
    let mut page = Page::open(port).await?;
    page.until(|name, row| name == "panel/balancers" && row["listed"] == true).await?;

    let objects: Api<LoadBalancer> = Api::namespaced(environment.harvester.clone(), NAMESPACE);
    let mut delays = Vec::new();
    for number in 0..OBJECTS {
        let name = format!("delay-{number}");
        let object = json!({"metadata": {"name": name}, "spec": {"workloadType": "cluster", "ipam": "pool"}});
        let row = format!("balancer/{NAMESPACE}/{name}");
        let written = async {
            let object = serde_json::from_value(object)?;
            objects.create(&PostParams::default(), &object).await.map_err(plain)?;
            anyhow::Ok(Instant::now())
        };
        let told = async {
            page.until(|told, _| told == row).await?;
            anyhow::Ok(Instant::now())
        };
        // the page may be told before the answer is here
        let (written, told) = tokio::try_join!(written, told)?;
        delays.push(told.saturating_duration_since(written).as_secs_f64() * 1_000.0);
        sleep(BETWEEN).await;
    }
    say("dashboard-delay-p99-ms", percentile(&mut delays, 0.99));
    say("dashboard-rss-mib", part.resident_mib()?);
    Ok(())
}

/// A page that listens.
struct Page(Lines<BufReader<TcpStream>>);

impl Page {
    async fn open(port: u16) -> Result<Self> {
        let connect = async {
            loop {
                match TcpStream::connect(("127.0.0.1", port)).await {
                    Ok(stream) => return stream,
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let mut stream = timeout(PATIENCE, connect).await.context("the dashboard listens")?;
        let request = format!("GET /events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.context("ask for the events")?;
        Ok(Self(BufReader::new(stream).lines()))
    }

    /// Reads until a row is told that is so.
    async fn until(&mut self, is_it: impl Fn(&str, &Value) -> bool) -> Result<()> {
        let read = async {
            // headers, and sizes of chunks, stand on lines of their own
            while let Some(line) = self.0.next_line().await? {
                let Some(data) = line.strip_prefix("data: ") else { continue };
                let event: Value = serde_json::from_str(data).context("read an event")?;
                let rows = event["rows"].as_array().context("an event has rows")?;
                if rows.iter().any(|row| row[0].as_str().is_some_and(|name| is_it(name, &row[1]))) {
                    return Ok(());
                }
            }
            bail!("the dashboard ended the stream")
        };
        timeout(PATIENCE, read).await.context("the page is told")?
    }
}
