//! The driver against a simulated Harvester: its calls in this process on a paused clock, and the process itself over
//! its wire protocol.

mod create;
mod support;
mod wire;
