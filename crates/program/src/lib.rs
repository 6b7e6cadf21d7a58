#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod capabilities;
mod clock;
pub mod duration;
pub mod flags;
pub mod health;
#[cfg(feature = "process")]
pub mod http;
#[cfg(feature = "process")]
pub mod logging;
pub mod pod;
#[cfg(feature = "process")]
mod process_metrics;
mod progress;
#[cfg(feature = "process")]
mod runtime;
#[cfg(feature = "process")]
pub mod serving;
#[cfg(feature = "process")]
mod slis;
mod subscribers;
mod task_group;
pub mod text;

pub use clock::Clock;
pub use progress::progress;
#[cfg(feature = "process")]
pub use runtime::{Process, asked_for, complain, failed, main, run, run_tool, show, words};
pub use subscribers::Subscribers;
pub use task_group::TaskGroup;
