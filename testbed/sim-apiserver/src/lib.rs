#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod admission;
mod aggregated;
mod audit;
mod builder;
mod clock;
mod collect;
mod conversion;
mod documents;
mod endpoint;
pub mod faults;
mod form;
mod kind;
mod machinery;
mod options;
mod read;
mod request;
mod review;
mod rights;
mod rules;
mod scale;
mod seen_events;
mod selection;
mod server;
mod store;
mod tokens;
mod transport;
mod user;
mod watch;
mod write;

pub use audit::{Audit, Record};
pub use builder::Builder;
pub use endpoint::Endpoint;
pub use faults::Faults;
pub use request::Verb;
pub use server::{ApiServer, Dropped};
pub use user::User;

/// A refused request: the `Status` that the client gets.
pub(crate) use sim_apimachinery::status::Status as Failure;
