//! `IPPool` objects as the crate `ipam` sees them: what a pool's spec defines, what speaks against it, and who made its
//! records. The controller and the webhook judge pools by this one reading.

#![forbid(unsafe_code)]

pub mod managers;
mod view;

pub use view::{Judged, bare, definition, judge, judge_specs, record};
