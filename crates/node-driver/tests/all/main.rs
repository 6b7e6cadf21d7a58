//! The driver against a simulated Harvester: its calls in this process on a paused clock, and the process itself over
//! its wire protocol.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod addresses;
mod beside;
mod create;
mod go;
mod ownership;
mod refusals;
mod remove;
mod render;
mod repeat;
mod replay;
mod states;
mod support;
mod terraform;
mod wire;
