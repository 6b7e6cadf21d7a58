//! Addresses for load balancers: ranges, the record of who holds what, which pool serves whom.
//!
//! ```text
//! RangeSpec ──parse──► Ranges ─┐
//!                              ├─► Record::claim(holder) ──► address
//! IPPool.status ──read──► Record┘   Record::release(address, holder)
//!
//! Pools + Requirement ──select──► Choice (a pool, the next ones, and why the others were not taken)
//! ```
//! An address belongs to one holder at a time; the record rules, and this crate only computes what it becomes. Nothing
//! here waits, keeps state of its own, or knows Kubernetes: the caller brings the record as it was read and writes
//! the one that comes out.

mod family;
mod holdings;
pub mod legacy;
mod pool;
mod range;
mod ranges;
mod record;
mod selection;

pub use family::Family;
pub use pool::{Pool, PoolFault, Scope, Selector};
pub use range::{Range, RangeError, RangeSpec};
pub use ranges::{RangeFault, Ranges};
pub use record::{Claim, Record, Refusal, Request};
pub use selection::{Choice, Mode, Rejection, Requirement, select};
