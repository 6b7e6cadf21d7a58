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
//! * [`Kept`] keeps the JSON beside the typed object, for writers that may only PUT.
//! * [`Clock`] and [`Life`] make time and the end of the process arguments.

mod cache;
mod clock;
pub mod election;
mod event;
pub mod http;
mod kept;
mod life;
mod object_key;
mod queue;
mod sentence;

pub use cache::{Cache, Change, Watched};
pub use clock::Clock;
pub use event::{Kind as EventKind, Recorder};
pub use kept::{Kept, replace};
pub use life::Life;
pub use object_key::ObjectKey;
pub use queue::{Next, Queue, QueueMetrics};
pub use sentence::sentence;
