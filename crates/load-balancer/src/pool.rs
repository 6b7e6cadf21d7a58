//! Pools: the record of who holds which address, and everything that is written to an `IPPool`.
//!
//! ```text
//! claim, release, refresh ──► Writers ──► one task for each pool ──► batch::decide ──► one PUT ──► answers
//!                                              ▲                                         │
//!                                              └── conflict: read afresh, decide again ──┘
//! ```
//! The record rules: an address is held if and only if it is a key of `status.allocated`. Only the task of a pool
//! writes it, so our own claims never meet in a conflict, and what waits while a PUT is under way shares the next.

pub mod batch;
pub mod controller;
pub mod waiting;
mod writer;

pub use batch::{Answer, Given, Order, Refused};
pub use waiting::{News, WaitingFor, WaitingRoom};
pub use writer::{Failure, Writers};
