//! The whole simulation on two API servers: in this process, and where said so on real ones.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod clusters;
mod disks;
mod fixtures;
mod host_loss;
mod hotplug;
mod leases;
mod remote;
mod servers;
mod sockets;
mod volumes;
mod webhooks;
