#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod apply;
pub mod body;
pub mod builtin;
pub mod conversion;
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
