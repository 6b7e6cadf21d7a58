#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod managers;
mod view;

pub use view::{
    CheckedPool, bare, check, check_specs, counts, definition, is_by_name_only, quotas, record, same_rules,
};
