//! The CSI driver: volumes of the Harvester cluster in the nodes of a guest cluster.
//!
//! ```text
//! provisioner, attacher, … ─┐                     ┌► identity     who this is
//!                           ├─ gRPC, unix socket ─┼► controller   claims on the host, disks in and out of machines
//! kubelet ──────────────────┘                     └► node         devices, file systems, mounts
//! ```
//! [`volume`] is what a volume is, [`attach`] which machine it belongs to and how it gets there, and [`node`] which device
//! it is there; [`node_monitor`] taints Nodes whose machines are lost and labels claims with their cluster, and [`healing`]
//! heals attachments that nobody calls for; [`lease`] has the elections of both. [`endpoint`] takes calls, [`calls`] watches
//! over them; [`identity`], [`controller`] and [`node`] answer them, with a [`refusal`] where they cannot. [`host`] and
//! [`guest`] are the two clusters, and [`node_id`] says which machine this is. [`cli`] is the program, [`credential`] keeps the one for the host,
//! and [`run`] is all of it
//! as one library call.
#![forbid(unsafe_code)]

pub mod attach;
pub mod calls;
pub mod cli;
pub mod controller;
pub mod credential;
pub mod endpoint;
mod event_reasons;
pub mod guest;
pub mod healing;
pub mod host;
pub mod identity;
pub mod in_flight;
pub mod leading;
pub mod lease;
mod metrics;
pub mod node;
pub mod node_id;
pub mod node_monitor;
pub mod refusal;
mod replaceable;
pub mod run;
pub mod volume;

pub use event_reasons::EVENT_REASONS;

/// The messages and services of the Container Storage Interface 1.12, made from `proto/csi.proto`.
#[expect(
    clippy::all,
    clippy::pedantic,
    unused_qualifications,
    reason = "written by a generator from somebody else's text"
)]
pub mod csi {
    tonic::include_proto!("csi.v1");
}
