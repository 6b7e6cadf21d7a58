//! Behaviour that clients rely on, seen through `kube`: one module for each part of the behaviour of an API server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::needless_pass_by_value, reason = "JSON is written where it is used")]

mod access;
mod admission;
mod conversion;
mod deletion;
mod faults;
mod foreign;
mod kubectl;
mod objects;
mod ownership;
mod services;
mod sockets;
mod support;
mod vectors;
mod watches;
