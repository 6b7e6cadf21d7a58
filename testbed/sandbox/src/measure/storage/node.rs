//! Volumes on a node: how long a formatted one takes to be mounted, and what a hundred cost. Takes root.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use sim_sidecars::{Plugin, publish_path};
use tokio::time::Instant;

use super::{Tally, calls, calls::Attached, settled};
use crate::{
    environment::{Environment, GuestVm},
    measure::{MINUTE, Told, percentile},
};

/// Mounts of one volume, one after the other.
const ROUNDS: usize = 20;
/// Volumes on one node.
const VOLUMES: u32 = 100;
/// Calls of the sidecar at once, as `--worker-threads` of the external attacher has it.
const AT_ONCE: usize = 10;

/// A volume in a pod.
struct Mounted {
    volume: String,
    staged: PathBuf,
    published: PathBuf,
}

/// One VM, and the way to both services.
struct Node<'a> {
    controller: Plugin,
    driver: Plugin,
    vm: &'a GuestVm,
    /// Kubelet's folder.
    root: PathBuf,
}

pub(super) async fn all(environment: &mut Environment, vm: &GuestVm, told: &Told<'_>) -> Result<()> {
    let (storage, _) = environment.storage()?;
    let controller = storage.controller().plugin();
    let node =
        Node { controller, driver: storage.driver(&vm.name)?.plugin(), vm, root: storage.root(&vm.name) };
    told.figure("csi-stage-ms", node.stage().await?);
    let volumes: Vec<Mounted> = stream::iter(0..VOLUMES)
        .map(|number| node.mounted(format!("pvc-bench-many-{number}")))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    settled(environment).await?;
    // it asks Harvester of its own accord, and has the account of those on the nodes
    environment.storage()?.0.controller().part.stop().await;
    settled(environment).await?;
    let mut tally = Tally::new(environment.audit_files());
    let begun = Instant::now();
    for (number, one) in (1..).zip(&volumes) {
        calls::stats(&node.driver, &one.volume, &one.staged, &one.published).await?;
        tokio::time::sleep_until(begun + MINUTE * number / VOLUMES).await;
    }
    told.figure("csi-stats-requests-per-minute", tally.count()?.csi_driver as f64);
    let part = &environment.storage()?.0.driver(&vm.name)?.part;
    told.figure("csi-rss-100-mib", part.resident_mib()?);
    let controller = environment.storage()?.0.controller();
    controller.part.start_again()?;
    calls::takes(&controller.plugin()).await
}

impl Node<'_> {
    /// Milliseconds of NodeStageVolume for a formatted disk that is there.
    async fn stage(&self) -> Result<f64> {
        let (volume, attached, staged) = self.attached("pvc-bench-stage").await?;
        // the first call finds an empty disk and formats it
        calls::stage(&self.driver, &volume, &attached, &staged).await?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            calls::unstage(&self.driver, &volume, &staged).await?;
            let begun = Instant::now();
            calls::stage(&self.driver, &volume, &attached, &staged).await?;
            times.push(begun.elapsed().as_secs_f64() * 1_000.0);
        }
        calls::unstage(&self.driver, &volume, &staged).await?;
        calls::detach(&self.controller, &volume, &self.vm.name).await?;
        Ok(percentile(&mut times, 0.50))
    }

    /// A volume that is attached, and the folder that it is to be staged in.
    async fn attached(&self, name: &str) -> Result<(String, Attached, PathBuf)> {
        let volume = calls::create(&self.controller, name).await?;
        let attached = calls::attach(&self.controller, &volume, &self.vm.name).await?;
        let staged = self.root.join("plugins/kubernetes.io/csi/bench").join(&volume).join("globalmount");
        fs::create_dir_all(&staged).context("make a folder of kubelet")?;
        Ok((volume, attached, staged))
    }

    /// A volume in a pod of its own.
    async fn mounted(&self, name: String) -> Result<Mounted> {
        let (volume, attached, staged) = self.attached(&name).await?;
        calls::stage(&self.driver, &volume, &attached, &staged).await?;
        let published = publish_path(&self.root, &format!("pod-{name}"), &volume);
        fs::create_dir_all(published.parent().context("it lies in a folder")?)
            .context("make a folder of kubelet")?;
        calls::publish(&self.driver, &volume, &attached, &staged, &published).await?;
        Ok(Mounted { volume, staged, published })
    }
}
