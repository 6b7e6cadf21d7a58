//! Ten thousand objects in several pools: all at once, then beside five thousand VMs, then a restart when nothing changed.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use http::Request;
use kube::{Client, Config};
use serde_json::json;
use tokio::time::Instant;

use super::settled;
use crate::{
    commands::{self, LOAD_BALANCER},
    environment::Environment,
    manifests::plain,
    measure::{QUIET, Told, audit::Tally, ccm, direct::Direct},
};

/// Namespaces, each with a pool of its own.
const NAMES: [&str; 4] = ["bench-many-0", "bench-many-1", "bench-many-2", "bench-many-3"];
const EACH: usize = 2_500;
const VMS: usize = 5_000;
/// The line of `/readyz?verbose` of a leader whose lists are complete.
const IN_STEP: &str = "[+]lists ok";
const GLANCE: Duration = Duration::from_millis(1);
/// Whatever takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn all(environment: &mut Environment, told: &Told<'_>) -> Result<()> {
    let mut pools = Vec::new();
    for (number, name) in NAMES.into_iter().enumerate() {
        let range = json!({"subnet": format!("10.{}.0.0/16", 204 + number)});
        pools.push(Direct::with_range(environment.harvester.clone(), name, range).await?);
    }
    settled(environment).await?;
    let begun = Instant::now();
    try_join_all(pools.iter_mut().map(|pool| pool.create("web", EACH))).await?;
    told.figure("burst-10000-total-s", begun.elapsed().as_secs_f64());
    settled(environment).await?;

    ccm::vms_until(environment, VMS).await?;
    settled(environment).await?;
    told.figure("lb-rss-10000-mib", environment.resident_mib(LOAD_BALANCER)?);

    let usual = environment.command(LOAD_BALANCER)?.args;
    let port = commands::free_port()?;
    let mut args = usual.clone();
    args.push(format!("--metrics-address=127.0.0.1:{port}"));
    environment.stop_part(LOAD_BALANCER).await?;
    environment.set_args(LOAD_BALANCER, args)?;
    let mut restart = Tally::new(environment.audit_files());
    let begun = Instant::now();
    environment.start_part_again(LOAD_BALANCER)?;
    let ready = ready(port, begun).await?;
    let last = restart.quiet(QUIET).await?.max(ready);
    told.figure("lb-restart-10000-s", last.duration_since(begun).as_secs_f64());
    told.figure("lb-restart-10000-writes", restart.total().load_balancer_writes as f64);
    told.remark(&format!("after the restart: {:.1} MiB", environment.resident_mib(LOAD_BALANCER)?));
    environment.set_args(LOAD_BALANCER, usual)
}

/// Waits until the process is ready, and answers when that was.
async fn ready(port: u16, begun: Instant) -> Result<Instant> {
    let mut config = Config::new(format!("http://127.0.0.1:{port}").parse()?);
    config.default_retry = false;
    let client = Client::try_from(config).map_err(plain)?;
    loop {
        let request = Request::get("/readyz?verbose").body(Vec::new()).context("describe a request")?;
        // not ready is an error, as is a process that does not listen yet
        let answer = client.request_text(request).await;
        if answer.as_ref().is_ok_and(|answer| answer.lines().any(|line| line == IN_STEP)) {
            return Ok(Instant::now());
        }
        if begun.elapsed() > PATIENCE {
            bail!("/readyz does not say {IN_STEP:?} after {} s: {answer:?}", PATIENCE.as_secs());
        }
        tokio::time::sleep(GLANCE).await;
    }
}
