//! The controller service in front of an API server: what it writes on the host, and what it answers.

#[path = "controller/bench.rs"]
mod bench;
#[path = "controller/snapshots.rs"]
mod snapshots;
#[path = "controller/volumes.rs"]
mod volumes;
