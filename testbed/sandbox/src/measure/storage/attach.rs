//! What an attachment and a detachment cost beyond the host's own work, and how a process ends in the middle of some.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_driver::attach::hotplug::Disk;
use futures::future::join_all;
use harvester_api::VirtualMachine;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use sim_harvester::settings::HOTPLUG;
use sim_sidecars::Plugin;
use tokio::time::Instant;

use super::{QUIET, Tally, calls, host::Host, settled};
use crate::{
    environment::{Environment, GuestVm},
    manifests::plain,
    measure::{Told, percentile},
};

/// Attachments one after the other, each followed by its detachment.
const ROUNDS: usize = 20;
/// Fresh processes.
const FRESH: usize = 5;
/// Calls under way when a process is told to end.
const UNDER_WAY: usize = 10;
/// They have reached the process by then.
const REACHED: Duration = Duration::from_millis(10);
/// What is seen late of the host.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn all(environment: &mut Environment, vm: &GuestVm, told: &Told<'_>) -> Result<()> {
    let mut host = Host::watch(&environment.harvester).await;
    warm(environment, &mut host, vm, told).await?;
    cold(environment, vm, told).await.context("the first call of a fresh process")?;
    sigterm(environment, &mut host, vm, told).await.context("a process that is told to end")
}

async fn warm(environment: &mut Environment, host: &mut Host, vm: &GuestVm, told: &Told<'_>) -> Result<()> {
    let plugin = environment.storage()?.0.controller().plugin();
    let volume = calls::create(&plugin, "pvc-bench-warm").await?;
    calls::attach(&plugin, &volume, &vm.name).await?;
    calls::detach(&plugin, &volume, &vm.name).await?;
    settled(environment).await?;
    let (mut times, mut requests) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..ROUNDS {
        for (which, is_in) in [true, false].into_iter().enumerate() {
            let mut tally = Tally::new(environment.audit_files());
            host.follow(&vm.name, &volume, is_in);
            let begun = Instant::now();
            if is_in {
                calls::attach(&plugin, &volume, &vm.name).await?;
            } else {
                calls::detach(&plugin, &volume, &vm.name).await?;
            }
            let total = begun.elapsed();
            let overhead = total.saturating_sub(host.took().await?);
            times[which].push(overhead.as_secs_f64() * 1_000.0);
            tally.quiet(QUIET).await?;
            requests[which].push(tally.total().csi_driver as f64);
        }
    }
    let [attach, detach] = &mut times;
    told.figure("csi-attach-overhead-ms", percentile(attach, 0.50));
    told.figure("csi-detach-overhead-ms", percentile(detach, 0.50));
    let [attach, detach] = &mut requests;
    told.figure("csi-attach-requests", percentile(attach, 1.0));
    told.figure("csi-detach-requests", percentile(detach, 1.0));
    Ok(())
}

async fn cold(environment: &mut Environment, vm: &GuestVm, told: &Told<'_>) -> Result<()> {
    let mut requests = Vec::new();
    for number in 0..FRESH {
        let plugin = environment.storage()?.0.controller().plugin();
        let volume = calls::create(&plugin, &format!("pvc-bench-cold-{number}")).await?;
        let plugin = restarted(environment).await?;
        let mut tally = Tally::new(environment.audit_files());
        calls::attach(&plugin, &volume, &vm.name).await?;
        tally.quiet(QUIET).await?;
        // in the guest it asks what it may, and begins to reconcile
        requests.push(tally.total().csi_driver_in_harvester as f64);
        calls::detach(&plugin, &volume, &vm.name).await?;
    }
    told.figure("csi-attach-cold-requests", percentile(&mut requests, 1.0));
    Ok(())
}

/// Another process of the controller service, which nobody has called.
async fn restarted(environment: &mut Environment) -> Result<Plugin> {
    let controller = environment.storage()?.0.controller();
    controller.part.stop().await;
    controller.part.start_again()?;
    let plugin = controller.plugin();
    calls::takes(&plugin).await?;
    settled(environment).await?;
    Ok(plugin)
}

/// Seconds from SIGTERM to the end of a process with calls under way: of a host that does its work, then of one that does
/// not.
async fn sigterm(
    environment: &mut Environment,
    host: &mut Host,
    vm: &GuestVm,
    told: &Told<'_>,
) -> Result<()> {
    let plugin = environment.storage()?.0.controller().plugin();
    let mut volumes = Vec::new();
    for number in 0..=UNDER_WAY {
        volumes.push(calls::create(&plugin, &format!("pvc-bench-end-{number}")).await?);
    }
    let hung = volumes.pop().context("there is one more")?;
    let attached = volumes.iter().map(|volume| {
        let (plugin, volume, vm) = (plugin.clone(), volume.clone(), vm.name.clone());
        tokio::spawn(async move { calls::attach(&plugin, &volume, &vm).await })
    });
    let attached: Vec<_> = attached.collect();
    tokio::time::sleep(REACHED).await;
    told.figure("csi-sigterm-s", ended(environment).await?);
    for answer in join_all(attached).await {
        answer?.context("a call that was under way")?;
    }

    let plugin = started(environment).await?;
    hot_plug(environment, vm, "stuck").await?;
    let (call, name) = (plugin.clone(), vm.name.clone());
    let volume = hung.clone();
    let waits = tokio::spawn(async move { calls::attach(&call, &volume, &name).await });
    let give_up = Instant::now() + PATIENCE;
    while host.disk(&vm.name, &hung) == Disk::Absent {
        host.moves(give_up).await?;
    }
    let took = ended(environment).await?;
    told.remark(&format!("csi-sigterm-s with a host that does nothing: {took:.2} s"));
    ensure!(waits.await?.is_err(), "the host did nothing, and a volume is attached");
    hot_plug(environment, vm, "ok").await?;
    let plugin = started(environment).await?;
    for volume in volumes.iter().chain([&hung]) {
        calls::detach(&plugin, volume, &vm.name).await?;
    }
    settled(environment).await
}

async fn ended(environment: &mut Environment) -> Result<f64> {
    let part = &mut environment.storage()?.0.controller().part;
    let begun = Instant::now();
    part.stop().await;
    Ok(begun.elapsed().as_secs_f64())
}

async fn started(environment: &mut Environment) -> Result<Plugin> {
    let controller = environment.storage()?.0.controller();
    controller.part.start_again()?;
    let plugin = controller.plugin();
    calls::takes(&plugin).await?;
    Ok(plugin)
}

/// Whether the host brings disks into a VM.
async fn hot_plug(environment: &Environment, vm: &GuestVm, how: &str) -> Result<()> {
    let vms = Api::<VirtualMachine>::namespaced(environment.harvester.clone(), crate::VM_NAMESPACE);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {HOTPLUG: how}}}));
    vms.patch(&vm.name, &PatchParams::default(), &patch).await.map(drop).map_err(plain)
}
