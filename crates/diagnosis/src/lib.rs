//! `explain service NAMESPACE/NAME`: what is decided about one Service, by which rule, from which objects, and what would
//! change it.
//!
//! ```text
//!  guest      Service, Services, Nodes, Events, Lease ──┐           the functions of the running parts
//!                                                       ├─► read ──► cloud_controller_manager::…::dry_run ─┐
//!  Harvester  LoadBalancers, VMs, pools ────────────────┘       └──► load_balancer::dry_run ───────────────┴─► report
//! ```
//! * `access`: clients that can only read.
//! * `read`: one list of each kind, in the caches that the running programs watch. A request that the server refuses is
//!   named, and the rest goes on.
//! * `explain`: a pure function from what was read to the [`report`]; `headline` is its first sentence.
//! * `text` prints the report for people; as JSON it is the shape that [`report`] documents.
//!
//! [`doctor`] looks at both clusters instead of at one Service; [`orphans`] at what is left behind on Harvester;
//! [`status`] shows both clusters on one screen.
//!
//! There is no second copy of a rule here: the crate calls the decisions of the cloud controller manager, of its service
//! controller and of the load balancer.

#![forbid(unsafe_code)]

mod access;
pub mod cli;
pub mod doctor;
mod explain;
mod headline;
pub mod orphans;
mod read;
pub mod report;
pub mod screen;
mod shell;
pub mod status;
mod text;

pub use access::read_only;
pub use read::{Assumed, Clusters, Error, explain};
pub use text::render;
