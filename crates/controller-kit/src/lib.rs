//! How every long-running part of the house lives. Nothing here knows a provider, and nothing here reads
//! credentials: whoever starts a part hands it a [`kube::Client`].
//!
//! ```text
//!   watch ──► Cache ──Change──► Queue ──item──► reconcile (see, decide, act) ──write──► API server
//!               ▲                                                              │
//!               └────────────── wrote(answer): newest-known version ◄──────────┘
//! ```
//!
//! * [`Cache`] holds the newest version known of each object, from the watch or from the answer to our own write.
//! * [`Queue`] runs one reconcile for each item at a time, with back-off of its own for each item.
//! * [`election`] shares a Lease with client-go programs, and fences off writes once the Lease is stale.
//! * [`Recorder`] sends Events without being in the way of work.
//! * [`RawObject`] keeps the JSON beside the typed object, for writers that may only PUT.
//! * [`Clock`] and [`TaskGroup`] make time and the end of the process arguments.

mod cache;
pub mod election;
mod error_message;
mod event;
mod explanation;
mod object_key;
mod queue;
mod raw_object;
mod retry_after;

pub use cache::{Cache, Change, Watched};
pub use error_message::error_message;
pub use event::{Kind as EventType, Recorder};
pub use explanation::Explanation;
pub use object_key::ObjectKey;
pub use queue::{Action, Queue, QueueMetrics, pending_within};
pub use raw_object::{RawObject, replace};
pub use retry_after::retry_after;
