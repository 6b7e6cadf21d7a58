//! What clients rely on, seen through `kube`: one module for each part of the behaviour of an API server.

mod access;
mod admission;
mod deletion;
mod faults;
mod objects;
mod ownership;
mod services;
mod sockets;
mod support;
mod watches;
