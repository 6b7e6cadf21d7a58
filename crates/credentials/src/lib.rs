#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod cli;
mod error;
mod generate;
mod inspect;
mod object;
mod output;
mod plan;
mod request;
mod rotate;
pub mod serve;

pub use request::{Format, Part, Request};
