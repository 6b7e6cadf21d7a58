//! The stand-ins with the real driver behind them, in this process.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod disks;
mod lab;
mod order;
