//! The figures of the cloud controller manager: nodes, shared addresses, changes of ports, starts and hand-overs, and a
//! large cluster among many.

mod fleet;
mod large;
mod nodes;
mod services;
mod starts;
mod wire;

use anyhow::{Context, Result};
use harvester_api::VirtualMachine;
use kube::{Api, api::ListParams};

pub(super) use self::starts::Probe;
use super::audit::Tally;
use super::{IDLE, QUIET, ServiceBatch};
use crate::{commands::CLOUD_CONTROLLER_MANAGER as NAME, environment::Environment, manifests::plain};

/// How the flags begin that a sandbox sets to be quick after a kill.
const LEASE_TIMES: &str = "--leader-elect-";

/// Measures, and tells each figure. The simulation of VMs ends meanwhile, and many objects stay behind.
///
/// # Errors
/// When something does not happen in time.
pub(super) async fn all(environment: &mut Environment, say: impl Fn(&str, f64)) -> Result<()> {
    let mut batch = ServiceBatch::watch(environment.guest.clone(), environment.harvester.clone()).await?;
    services::shared(&mut batch, &say).await.context("Services that share an address")?;
    services::port_changes(environment, &mut batch, &say).await.context("changes of ports")?;
    settled(environment).await?;
    say("ccm-start-ms", starts::start(environment).await.context("a start")?);
    say("ccm-takeover-ms", starts::takeover(environment).await.context("a hand-over")?);

    // from here on VMs and Nodes are objects alone
    environment.end_simulation().await;
    nodes::added(environment, &say).await.context("Nodes that are added")?;
    large::all(environment, &mut batch, &say).await.context("a large cluster")
}

/// Waits until nobody asks for anything.
async fn settled(environment: &Environment) -> Result<()> {
    Tally::new(environment.audit_files()).quiet(QUIET).await.map(drop)
}

/// Posts VMs of other guest clusters and of none, with their instances, until there are so many VMs.
pub(super) async fn vms_until(environment: &Environment, count: usize) -> Result<()> {
    let vms = Api::<VirtualMachine>::all(environment.harvester.clone());
    let there = vms.list_metadata(&ListParams::default()).await.map_err(plain)?.items.len();
    let machines: Vec<_> = (there..count).map(fleet::Machine::foreign).collect();
    fleet::post(&environment.harvester, &machines).await
}
