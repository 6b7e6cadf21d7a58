//! Kubernetes API machinery as pure functions over [`serde_json::Value`].
//!
//! ```text
//! request body ──protobuf──► Value ──schema──► defaulted, pruned, checked Value ──► store
//!                              │                                                    │
//!                       strategic_merge, apply                     table, openapi, discovery ──► answer
//! ```
//! What a Kubernetes API server decides without looking at its store is decided here: who may do what, which
//! fields a kind has, what a patch makes of an object, which fields belong to whom, what a wrong object is told.
//! Nothing here does I/O, waits, or reads a clock; nothing panics on foreign input.

pub mod apply;
pub mod body;
pub mod builtin;
pub mod defaults;
pub mod discovery;
pub mod event;
pub mod json;
pub mod kind;
pub mod managed_fields;
pub mod openapi;
pub mod options;
pub mod protobuf;
pub mod rbac;
pub mod schema;
pub mod selector;
pub mod service;
pub mod status;
pub mod strategic_merge;
pub mod table;
mod types;
pub mod validate;
