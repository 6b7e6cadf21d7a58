//! `docker-machine-driver-harvester`: Rancher's machines as virtual machines on Harvester.
//!
//! ```text
//! rancher-machine ──net/rpc──► plugin ──► Driver ──► Harvester's API
//!                                           │
//!            flags, options ──► Config ──► Machine (checked) ──► objects, cloud_init      pure
//!            watches ──► Seen ──► wait::decide ──► Done | Failed(cause)                   pure
//! ```
//! Three things are true whatever happens:
//! * One machine, one VM: an attempt that was cut off is gone on with by the next one of the same inputs, and of two
//!   attempts at once one is refused without harm to the other ([`ownership`]).
//! * A failed attempt leaves nothing that it made, and names the cause in the last words of its error ([`cause`]).
//! * A removal ends well only when the VM was seen to be gone.
//!
//! What rancher-machine and running clusters rely on is in [`flags`] (names, defaults, order), [`config`] (the stored
//! JSON), [`labels`] and [`objects`]. [`cli`] is the process. Nothing here polls, with one exception: where watching is
//! refused, what is waited for is read every five seconds ([`host::follow`]).

#![forbid(unsafe_code)]

pub mod access;
pub mod address;
pub mod cause;
pub mod cli;
pub mod cloud_init;
pub mod config;
pub mod driver;
pub mod flags;
pub mod host;
pub mod kubeconfig;
pub mod labels;
pub mod machine;
pub mod network_data;
pub mod objects;
pub mod options;
pub mod ownership;
pub mod plugin;
pub mod reference;
pub mod render;
pub mod say;
pub mod seen;
pub mod ssh_key;
pub mod text;
pub mod wait;
pub mod yaml;
