//! The node driver's figures: how quickly it is there, and what it adds to the host's own time for a machine.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use go_rpc::{Decoder, Encoder, Limits, Typed, next_value};
use harvester_api::VirtualMachineInstance;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{sync::oneshot, time::Instant};

use super::{audit::Tally, percentile};
use crate::{environment::Environment, rancher::Stored};

const STARTS: usize = 20;
const MACHINES: usize = 7;
const ROUNDS: u32 = 200;
/// An audit line is in its file by then.
const WRITTEN: Duration = Duration::from_millis(400);

/// Measures, and tells each figure.
///
/// # Errors
/// When the driver refuses a machine.
pub(super) async fn all(environment: &Environment, say: impl Fn(&str, f64)) -> Result<()> {
    // nodes that come and go would be in the way of the other figures
    let rancher = environment.rancher()?.of_cluster("bench");
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let begun = Instant::now();
        drop(rancher.start().await?);
        times.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    say("driver-address-line-ms", percentile(&mut times, 0.50));

    let (mut overheads, mut requests, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..MACHINES {
        let name = format!("bench-pool1-x7k2m-{number}");
        let plugin = rancher.start().await?;
        rancher.greet(&plugin, &name).await?;
        if number == 0 {
            say("gob-flags-us", flags(&plugin.flags_typed().await?)?);
        }
        // what the machine before this one asked is behind us
        tokio::time::sleep(WRITTEN).await;
        let mut tally = Tally::new(environment.audit_files());
        let host = host_time(&environment.harvester, &name);
        let begun = Instant::now();
        plugin.act("PreCreateCheck").await?;
        let stored: Vec<u8> = plugin.ask("GetConfigRaw").await?;
        plugin.act("Create").await?;
        let peak = plugin.peak_mib()?;
        let closing = Instant::now();
        plugin.close().await?;
        let total = closing.elapsed() + (closing - begun);
        let host = host.await.context("the VM's start was not seen")?;
        overheads.push(total.saturating_sub(host).as_secs_f64() * 1_000.0);
        peaks.push(peak);
        tokio::time::sleep(WRITTEN).await;
        #[expect(clippy::cast_precision_loss, reason = "a few requests")]
        requests.push(tally.count()?.rancher as f64);
        rancher.remove(&Stored { name, configuration: stored }).await?;
    }
    say("driver-create-overhead-ms", percentile(&mut overheads, 0.50));
    say("driver-create-requests", percentile(&mut requests, 1.0));
    say("driver-rss-mib", percentile(&mut peaks, 1.0));
    Ok(())
}

/// From the VM's instance to its address, as a watch sees it: what no driver can be quicker than.
fn host_time(harvester: &Client, name: &str) -> oneshot::Receiver<Duration> {
    let (tell, told) = oneshot::channel();
    let instances = Api::<VirtualMachineInstance>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    tokio::spawn(async move {
        let mut seen = std::pin::pin!(watcher(instances, config).default_backoff().applied_objects());
        let mut first = None;
        while let Some(instance) = seen.next().await {
            let Ok(instance) = instance else { continue };
            let since = *first.get_or_insert_with(Instant::now);
            let status = instance.status.unwrap_or_default();
            if status.interfaces.iter().any(|interface| !interface.ip_address.is_empty()) {
                // nobody waits any more when the machine could not be made
                tell.send(since.elapsed()).ok();
                return;
            }
        }
    });
    told
}

/// Microseconds for encoding and decoding the answer with all flags, types included.
fn flags(answer: &Typed) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let mut bytes = Vec::new();
        Encoder::new().encode_typed(answer, &mut bytes)?;
        let decoded = next_value(&mut Decoder::new(Limits::default()), &mut bytes.as_slice())?;
        ensure!(decoded.is_some(), "the flags cannot be read back");
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS))
}
