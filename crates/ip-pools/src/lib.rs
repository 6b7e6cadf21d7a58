#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod managers;
mod resting;
mod view;

pub use resting::{resting, resting_text, time_text, written_rests};
pub use view::{
    CheckedPool, bare, check, check_specs, counts, definition, is_by_name_only, quarantine_fault, quotas,
    record, same_rules, with_records,
};
