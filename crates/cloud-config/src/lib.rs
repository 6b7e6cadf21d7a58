#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answered;
mod bearer;
mod connection;
mod connector;
mod error;
pub mod expiry;
mod file;
mod fingerprint;
mod limit;
mod local;
mod outside;
pub mod places;
pub mod proxy;
mod retry_after;
mod silence;

pub use answered::{Answered, Observer};
pub use connection::{Connection, Followed, Options};
pub use error::Error;
pub use file::{CloudConfig, find};
pub use limit::RequestLimit;
pub use local::{Local, local, merged};
pub use places::Places;
