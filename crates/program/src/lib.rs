//! What every program of this repository needs to be a process, whatever it does: time and the end of the process as
//! arguments, logging, flags, health and metrics.
//!
//! Nothing here knows a part of the product.

#![forbid(unsafe_code)]

pub mod capabilities;
mod clock;
pub mod health;
pub mod http;
pub mod logging;
pub mod pod;
mod task_group;

pub use clock::Clock;
pub use task_group::TaskGroup;
