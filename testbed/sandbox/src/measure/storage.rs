//! The figures of the CSI driver. Its processes are those of a sandbox; whoever measures makes the calls of the sidecars and of
//! kubelet, so that nobody else calls at the same time.

mod attach;
mod calls;
mod heal;
mod host;
mod node;
mod sanity;

use anyhow::{Context, Result};

use super::{QUIET, Told, audit::Tally};
use crate::environment::Environment;

/// Measures, and tells each figure.
///
/// # Errors
/// When something does not happen in time.
pub(super) async fn all(environment: &mut Environment, told: &Told<'_>) -> Result<()> {
    environment.end_webhook().await?;
    let left_out = environment.storage()?.0.left_out().map(str::to_owned);
    let vm = environment.vms.first().cloned().context("there is no VM")?;
    calls::takes(&environment.storage()?.0.controller().plugin()).await?;
    if left_out.is_none() {
        calls::takes(&environment.storage()?.0.driver(&vm.name)?.plugin()).await?;
        settled(environment).await?;
        let part = &environment.storage()?.0.driver(&vm.name)?.part;
        told.figure("csi-rss-idle-mib", part.resident_mib()?);
    }
    attach::all(environment, &vm, told).await.context("attachments")?;
    heal::all(environment, told).await.context("inconsistent states")?;
    match left_out {
        Some(why) => {
            let of_root = ["csi-rss-idle-mib", "csi-rss-100-mib", "csi-stats-requests-per-minute"];
            told.left_out(&of_root, &why);
            told.left_out(&["csi-stage-ms", "csi-sanity-failed"], &why);
        }
        None => {
            node::all(environment, &vm, told).await.context("volumes on a node")?;
            let last = environment.vms.last().cloned().context("there is no VM")?;
            sanity::failed(environment, &last, told).await.context("csi-sanity")?;
        }
    }
    Ok(())
}

/// Waits until nobody asks for anything.
async fn settled(environment: &Environment) -> Result<()> {
    Tally::new(environment.audit_files()).quiet(QUIET).await.map(drop)
}
