//! What clients rely on, seen through `kube`: one module for each part of the behaviour of an API server.

mod deletion;
mod objects;
mod services;
mod support;
mod watches;
