//! `explain service NAMESPACE/NAME`: what is decided about one Service, by which rule, from which objects, and what would
//! change it.
//!
//! ```text
//!  guest      Service, Services, Nodes, Events, Lease ──┐           the functions of the running parts
//!                                                       ├─► read ──► cloud_controller_manager::…::dry_run ─┐
//!  Harvester  LoadBalancers, VMs, pools ────────────────┘       └──► load_balancer::dry_run ───────────────┴─► report
//! ```
//! * `read`: one list of each kind, in the caches that the running programs watch. A request that the server refuses is
//!   named, and the rest goes on.
//! * `decide`: a pure function from what was read to the [`report`]; `headline` is its first sentence.
//! * `text` prints the report for people; as JSON it is the shape that [`report`] documents.
//!
//! There is no second copy of a rule here: it calls the decisions of the cloud controller manager, of its service
//! controller and of the load balancer.

pub mod cli;
mod decide;
mod headline;
mod read;
pub mod report;
mod text;

use controller_kit::ObjectKey;
use jiff::Timestamp;
pub use read::{Assumed, Clusters, Error};
pub use text::render;

/// Explains one Service.
///
/// # Errors
/// The Service does not exist or cannot be read. Nothing else that is missing is an error: the report names it.
pub async fn explain(
    clusters: &Clusters,
    assumed: Assumed,
    service: &ObjectKey,
    now: Timestamp,
) -> Result<report::Report, Error> {
    Ok(decide::decide(&read::read(clusters, assumed, service, now).await?))
}
