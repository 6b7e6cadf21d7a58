//! go-rpc against recorded streams of Go, against itself in memory, and against Go.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod corpus;
mod exact;
mod go;
mod replay;
mod rpc;
mod values;
