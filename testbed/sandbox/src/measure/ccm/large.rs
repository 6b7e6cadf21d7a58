//! A cluster of 200 Nodes and 1,000 Services among 5,000 VMs: a restart when nothing changed, what is read for it, and
//! what it costs to be there.

use std::fs;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    LEASE_TIMES, NAME, QUIET, ServiceBatch, Tally,
    fleet::{self, Machine},
    nodes::{ONE_BY_ONE, Usable},
    settled,
    starts::{IN_STEP, Probe},
    wire::Relay,
};
use crate::{environment::Environment, manifests::plain, measure::MINUTE};

const NODES: usize = 200;
const VMS: usize = 5_000;
const SERVICES: usize = 1_000;
const AT_ONCE: usize = 32;
const MIB: f64 = 1024.0 * 1024.0;
const CLOUD_CONFIG: &str = "--cloud-config=";

pub(super) async fn all(
    environment: &mut Environment,
    batch: &mut ServiceBatch,
    say: impl Fn(&str, f64),
) -> Result<()> {
    let ours: Vec<_> = (ONE_BY_ONE..NODES).map(Machine::ours).collect();
    fleet::post(&environment.harvester, &ours).await?;
    let mut usable = Usable::watch(&environment.guest).await;
    let names: Vec<_> = ours.iter().map(|machine| machine.name.clone()).collect();
    stream::iter(&ours)
        .map(|machine| machine.join(&environment.guest))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    usable.until(&names).await?;
    batch.create("large", SERVICES).await?;
    settled(environment).await?;

    environment.stop_part(NAME).await?;
    let mut restart = Tally::new(environment.audit_files());
    let begun = Instant::now();
    environment.start_part_again(NAME)?;
    Probe::of(&environment.command(NAME)?)?.until(IN_STEP).await?;
    let last = restart.quiet(QUIET).await?;
    say("ccm-restart-200-nodes-s", last.duration_since(begun).as_secs_f64());
    say("ccm-restart-200-nodes-writes", restart.total().writes as f64);

    environment.stop_part(NAME).await?;
    let foreign: Vec<_> = (0..VMS - NODES).map(Machine::foreign).collect();
    fleet::post(&environment.harvester, &foreign).await?;
    fill_balancers(environment).await?;
    // the load balancer has heard of all that by then
    settled(environment).await?;
    let relay = Relay::to(&environment.harvester_url()).await?;
    let counted = environment.folder().join("cloud-config-counted");
    let usual = through(environment, &relay, &counted)?;
    let mut start = Tally::new(environment.audit_files());
    environment.start_part_again(NAME)?;
    // a page of a list may take longer than quiet lasts
    Probe::of(&environment.command(NAME)?)?.until(IN_STEP).await?;
    start.quiet(QUIET).await?;
    say("ccm-large-bytes-mib", relay.answered() as f64 / MIB);
    say("ccm-rss-large-mib", environment.resident_mib(NAME)?);

    let mut steady = Tally::new(environment.audit_files());
    tokio::time::sleep(MINUTE).await;
    say("steady-harvester-requests", steady.count()?.ccm_in_harvester_of_its_own as f64);
    environment.set_args(NAME, usual)?;
    Ok(())
}

/// Lets the cloud controller manager reach Harvester through the relay from its next start on, with the Lease times of
/// production: those of a sandbox are short for so much to read. Answers the arguments that it had.
fn through(environment: &mut Environment, relay: &Relay, file: &std::path::Path) -> Result<Vec<String>> {
    let usual = environment.command(NAME)?.args;
    let config = usual.iter().find_map(|flag| flag.strip_prefix(CLOUD_CONFIG)).context("no cloud-config")?;
    let text = fs::read_to_string(config).with_context(|| format!("read {config}"))?;
    let url = environment.harvester_url();
    anyhow::ensure!(text.contains(&url), "{config} does not name {url}");
    fs::write(file, text.replace(&url, &relay.url())).with_context(|| format!("write {}", file.display()))?;
    let kept = usual.iter().filter(|flag| !flag.starts_with(LEASE_TIMES));
    let args = kept.map(|flag| match flag.strip_prefix(CLOUD_CONFIG) {
        Some(_) => format!("{CLOUD_CONFIG}{}", file.display()),
        None => flag.clone(),
    });
    environment.set_args(NAME, args.collect())?;
    Ok(usual)
}

/// Makes LoadBalancer objects as big as real ones.
async fn fill_balancers(environment: &Environment) -> Result<()> {
    let kind = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1beta1", "LoadBalancer");
    let balancers = Api::<DynamicObject>::namespaced_with(
        environment.harvester.clone(),
        crate::VM_NAMESPACE,
        &ApiResource::from_gvk(&kind),
    );
    let all = balancers.list(&ListParams::default()).await.map_err(plain)?;
    let patches = all.iter().filter_map(|object| {
        let json: Value = serde_json::to_value(object).expect("an object is JSON");
        Some((object.metadata.name.clone()?, fleet::balancer_patch(&json)?))
    });
    stream::iter(patches)
        .map(async |(name, patch)| {
            let how = PatchParams::default();
            balancers.patch(&name, &how, &Patch::Merge(patch)).await.map_err(plain).map(drop)
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
