//! The Harvester-side load balancer: pools, LoadBalancer objects, health checks, admission webhook.
//!
//! ```text
//!                        ┌───────────── wiring: whom a change wakes ─────────────┐
//!  watches ──► caches ───┤                                                        ▼
//!                        │   balancer ──claim──► pool::Writers ──one PUT──► IPPool.status (rules)
//!                        │      │ └──vm──► host_path: Service, EndpointSlice, probes
//!                        │      └──one PUT──► LoadBalancer: finalizer, status
//!                        ├── sweep: records that nobody comes for
//!                        ├── import: the pools of Harvester before 1.2
//!                        └── machines: old finalizers, removed guest clusters
//! ```
//! * [`run`] is the controller as a library call; [`cli`] is the process under its production name.
//! * Guest clusters' Services are unknown here: a guest cluster asks with a LoadBalancer object of type `cluster`.
//! * Nothing polls. A settled cluster costs no request but the Lease.
//! * [`webhook`] admits and mutates both kinds; it shares no state with the controller.

pub mod balancer;
pub mod cli;
pub mod condition;
pub mod context;
pub mod host_path;
pub mod import;
mod insist;
pub mod machines;
pub mod pool;
mod put_back;
mod run;
pub mod sweep;
mod wiring;

pub use context::Config;
pub use run::{ElectionTimes, Error, Parts, run};
