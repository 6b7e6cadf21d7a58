//! Two clusters on one machine: a Harvester and a guest cluster whose nodes are its VMs, with the real load balancer,
//! its webhook and the cloud controller manager as child processes between them.
//!
//! ```text
//! options ──► address plan ──► clusters (API servers) ──► environment (VMs, datapath, parts) ──► tour
//! ```
//! Everything that is seen here goes over real sockets on loopback. The parts do not know where they are.

mod address_plan;
pub mod cli;
mod clusters;
mod commands;
mod curl;
mod endpoints;
mod environment;
mod example;
mod faults;
mod folder;
mod manifests;
mod measure;
mod options;
mod output;
mod parts;
mod rancher;
mod snapshot;
mod storage;
mod tour;
mod user_manifests;

/// Name of the guest cluster.
const GUEST_CLUSTER: &str = "demo";
/// Namespace of its VMs in Harvester.
const VM_NAMESPACE: &str = "default";

/// Something that the caller gave is wrong, not the sandbox.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongInput(pub(crate) String);

/// Makes a child process of a sandbox end with its parent, however that ends. Does nothing in any other process.
pub fn end_with_parent() {
    if std::env::var_os(parts::CHILD).is_none() {
        return;
    }
    let outcome = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if let Err(error) = outcome {
        eprintln!("this part will not end with its sandbox: {error}");
    }
}
