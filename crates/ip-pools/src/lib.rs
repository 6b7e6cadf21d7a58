#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod managers;
mod view;

pub use view::{Judged, bare, definition, judge, judge_specs, record};
