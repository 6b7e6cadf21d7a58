#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod connection;
mod connector;
mod error;
pub mod expiry;
mod file;
mod limit;
mod local;
pub mod proxy;
mod retry_after;
mod silence;

pub use connection::{Connection, Options, RELOAD_PERIOD};
pub use error::Error;
pub use file::{CloudConfig, DEFAULT_PATHS, find};
pub use limit::RequestLimit;
pub use local::{Local, local};
