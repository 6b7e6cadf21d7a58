//! `docker-machine-driver-harvester`: Rancher's machines as virtual machines on Harvester.
//!
//! ```text
//! rancher-machine ──net/rpc──► plugin ──► Driver ──► Harvester's API
//!                                           │
//!            flags, options ──► Config ──► Machine (checked) ──► objects, cloud_init      pure
//!            watches ──► Seen ──► wait::decide ──► Done | Failed(cause)                   pure
//! ```
//! Three things are true whatever happens:
//! * One machine has one VM. An attempt continues with the VM of an earlier attempt that had the same inputs; of two
//!   attempts at the same time one is refused, and the other one's VM is left alone (`ownership`).
//! * A failed attempt deletes the objects that it created, and its error ends with the cause (`cause`).
//! * A removal deletes only objects that belong to the machine, and succeeds only once the VM is gone.
//!
//! rancher-machine and running clusters rely on [`flags`] (names, defaults, order), on [`config`] (the stored JSON), on
//! `labels` and on `objects`. [`cli`] is the process. The driver watches and does not poll, with one exception: where the
//! credential may not watch, the driver reads the objects every five seconds (`harvester::follow`).

#![forbid(unsafe_code)]

mod access;
mod address;
mod cause;
pub mod cli;
mod cloud_init;
pub mod config;
pub mod driver;
pub mod flags;
mod harvester;
mod kubeconfig;
mod labels;
mod machine;
mod network_data;
mod objects;
pub mod options;
pub mod output;
mod ownership;
pub mod plugin;
mod pools;
mod reference;
mod render;
mod seen;
pub mod ssh_key;
mod text;
mod wait;
mod yaml;
