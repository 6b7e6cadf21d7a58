#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod mac;
mod packet;

pub use client::{Client, Command, Config, Event};
pub use mac::Mac;
pub use packet::{Destination, Lease};
