//! The cloud controller manager: Harvester's side of the `cloud-provider` traits, and the program.
//!
//! ```text
//!  guest cluster                                        Harvester, namespace of the cloud-config
//!  Service ──► wishes ──┐                            ┌─► LoadBalancer object (POST, PUT of the JSON that was read)
//!  Node ──► selector ───┼─ balancers: view ──► same? ┤
//!                       │        ▲                   └─► DELETE
//!  kube-vip's status ───┘        └── watch of LoadBalancer objects ◄── Harvester allocates and announces
//!
//!  Node ◄── provider ID, zone, region ── machines ◄── watch of VirtualMachines and VirtualMachineInstances
//! ```
//!
//! * [`wishes`]: annotations become checked types once, here; every fault of a Service is told in one Event.
//! * [`data_path`]: who carries the traffic, chosen before the object exists and never changed after.
//! * [`balancers`]: the LoadBalancer object of a Service. No GET, no polling: over a Service's life on the guest path
//!   one POST, at most one PUT, one DELETE.
//! * [`machines`]: which VM is a Node.
//! * [`run`]: all of it as a library call; [`cli`]: the process under its production name.

#![forbid(unsafe_code)]

pub mod balancers;
pub mod cli;
pub mod cluster;
pub mod data_path;
pub mod machines;
mod outage;
mod run;
pub mod wishes;

pub use run::{ElectionSettings, Parts, Settings, run};
