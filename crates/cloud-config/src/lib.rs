//! The kubeconfig for Harvester, which this project calls the cloud-config: find it, read it, connect with it, and
//! follow the file when it is rotated.
//!
//! ```text
//! find ──file──► CloudConfig::read ──► Connection::open ──► kube::Client
//!                                           ▲                   (keeps its identity; what is behind it is swapped)
//!                     Connection::follow ───┘ every RELOAD_PERIOD
//! local ──► kube::Client for the cluster that a program runs in (flag, KUBECONFIG, service account)
//! ```
//!
//! What this crate decides, and kube would decide otherwise:
//! * Proxies ([`proxy`]): kube 5.0 compares `NO_PROXY` with the proxy's address instead of the server's, and fails on
//!   entries that Go ignores.
//! * Hidden repetition is off: kube would send a POST or PUT again up to 15 times behind the caller's back, also
//!   after the caller lost its lease. The controllers' queues and watches repeat, and they know when to stop.
//! * A busy server's `Retry-After` reaches the caller, as `details.retryAfterSeconds` of the `Status`.
//! * Every connection notices a peer that died without a word within 45 s, by TCP keep-alive and `TCP_USER_TIMEOUT`. Behind
//!   a proxy that holds for the proxy; a dead server behind a living proxy is noticed by silence, as follows.
//! * No request waits for ever: neither the beginning of an answer nor the next part of it may be 30 s away, or with a
//!   watch the time that it was asked to last. All share a request budget ([`RequestLimit`]).
//!
//! The file's period: nothing tells us that a file changed without inotify, which does not see a Secret's volume of
//! another mount. So its size, time and inode are looked at every [`RELOAD_PERIOD`]; that costs one system call.

#![forbid(unsafe_code)]

mod connection;
mod connector;
mod error;
pub mod expiry;
mod file;
mod limit;
mod local;
pub mod permissions;
pub mod proxy;
mod retry_after;
mod silence;

pub use connection::{Connection, Options, RELOAD_PERIOD};
pub use error::Error;
pub use file::{CloudConfig, DEFAULT_PATHS, find};
pub use limit::RequestLimit;
pub use local::{Local, local};
