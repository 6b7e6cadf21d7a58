//! Pools: the record of the holder of each address, and all writes to an `IPPool`.
//!
//! ```text
//! load balancer ──► Orders ─┐
//! pool, record GC, import ──┴─► Writers ──► one task for each pool ──► batch::decide ──► one PUT ──► answers
//!                                                ▲                                         │
//!                                                └── conflict: read afresh, decide again ──┘
//! ```
//! An address is held if and only if it is a key of `status.allocated`, the record. Only the task of a pool writes it, so
//! our own claims never meet in a conflict, and what arrives while a PUT is under way shares the next.

pub(crate) mod batch;
mod clusters;
pub(crate) mod controller;
pub(crate) mod index;
mod maker;
pub(crate) mod orders;
pub(crate) mod orphans;
pub(crate) mod record_change;
mod reservations;
pub(crate) mod waiters;
mod writer;

pub(crate) use batch::{Answer, Order, RECORD_LIMIT, Refused, bytes_in_store};
pub(crate) use index::PoolIndex;
pub(crate) use maker::Maker;
pub(crate) use orders::Orders;
pub(crate) use orphans::Orphans;
pub(crate) use record_change::RecordChange;
pub(crate) use waiters::{PoolNews, PoolWaiters, WaitingFor};
pub(crate) use writer::{Failure, Writers};
