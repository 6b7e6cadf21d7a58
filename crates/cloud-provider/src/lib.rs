//! A cloud controller manager: what a cloud implements, and the controllers that drive it.
//!
//! ```text
//!  Services, Nodes (watched) ─┐                                   ┌─► PATCH of Services and Nodes, Events
//!                             ├─► see ──► decide ──► act ─────────┤
//!  LoadBalancers, Instances ──┘    (pure)                         └─► LoadBalancers::ensure, ::delete
//!        ▲  subscribe: "look at this Service again"
//! ```
//!
//! Two things differ from the framework in Go that has the same duties.
//! * A cloud answers at once, from watch caches of its own, and says when an answer changed. So no worker waits for
//!   a cloud, nothing is asked periodically, and an object that vanished in the cloud is noticed and repaired.
//! * What is written is what differs, as patches of our own keys; a reconcile of a settled object sends nothing.
//!
//! Nothing here knows Harvester.

#![forbid(unsafe_code)]

mod failure;
mod instances;
mod load_balancers;
mod node;
mod notice;
mod service;

pub use failure::Failure;
pub use instances::{Instance, Instances, Machine};
pub use load_balancers::{Balancer, LoadBalancers, Publish, View, Wake, Whom};
pub use node::{Duties, NodeController, waits_for_cloud};
pub use notice::Notice;
pub use service::{EligibleNodes, FINALIZER, ServiceController, asks_for_another_class, asks_for_balancer};
