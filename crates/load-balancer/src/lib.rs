//! The Harvester-side load balancer: pools, LoadBalancer objects, health checks.
//!
//! ```text
//!                        ┌───────────── wiring: the keys that a change adds ─────────────┐
//!  watches ──► caches ───┤                                                                ▼
//!                        │   controller ──Orders──► pool::Writers ──one PUT──► IPPool.status (who has which address)
//!                        │      │ └──vm──► host_datapath: Service, EndpointSlice, probes
//!                        │      └──one PUT──► LoadBalancer: finalizer, status
//!                        ├── record_gc: records without load balancer
//!                        ├── import: the pools of Harvester before 1.2
//!                        └── vms: old finalizers, removed guest clusters
//! ```
//! * [`run`] is the controller as a library call; [`cli`] is the process under its production name.
//! * Each controller sees (caches, fresh reads), decides (a pure function with a table test), and acts (one step).
//! * One part writes each kind: `controller` LoadBalancers, their Services and slices; `pool::Writers` IPPools.
//! * `reuse` answers whether an address may be given to another holder, for all controllers that release one.
//! * Guest clusters' Services are unknown here: a guest cluster asks with a LoadBalancer object of type `cluster`.
//! * Nothing polls. A settled cluster costs no request but the Lease and the questions about rights.

use std::net::Ipv4Addr;

use harvester_api::names;
use ipnet::IpNet;

mod address_index;
mod caches;
pub mod cli;
mod condition;
mod controller;
mod event_reasons;
pub mod fields;
mod host_datapath;
mod import;
mod metrics;
mod ownership;
mod pool;
mod record_gc;
mod reuse;
mod rights;
mod run;
mod status_reverted;
mod steps;
mod stored_versions;
mod vms;
mod wiring;

pub use controller::dry_run;
pub use event_reasons::EVENT_REASONS;
pub use run::{ElectionTimes, Error, Parts, run};

/// The choices of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Workers for each queue.
    pub workers: usize,
    /// Backend addresses in here are used only on a NIC of the pod network.
    pub pod_cidrs: Vec<IpNet>,
    /// Backend addresses in here are never used.
    pub service_cidrs: Vec<IpNet>,
    /// Address of the endpoint that swallows traffic while no backend is ready.
    pub dummy_endpoint: Ipv4Addr,
    pub pool_choice: PoolChoice,
}

/// What the command line says without flags.
impl Default for Config {
    fn default() -> Self {
        let network = |text: &str| vec![text.parse().expect("it is a network")];
        Self {
            workers: cli::THREADINESS * cli::AT_ONCE,
            pod_cidrs: network(cli::POD_CIDRS),
            service_cidrs: network(cli::SERVICE_CIDRS),
            dummy_endpoint: names::DUMMY_ENDPOINT_ADDRESS.parse().expect("it is an address"),
            pool_choice: PoolChoice::default(),
        }
    }
}

/// Rules of the choice of a pool that the Go program does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolChoice {
    /// A pool that has nothing to give is passed over for the next one that matches.
    pub fall_over_when_full: bool,
    /// The global pool serves its own network alone.
    pub strict_global_network: bool,
    /// The selector of a pool counts also for objects that name the pool.
    pub enforce_named_pool_scope: bool,
}
