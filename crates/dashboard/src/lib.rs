#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod balancer;
pub mod cli;
mod events;
mod feed;
mod model;
mod panel;
mod pool;
mod server;
mod text;

use serde::Serialize;

pub use feed::{Feed, Scope};
pub use server::router;

fn json(row: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(row).expect("a row has text for keys")
}
