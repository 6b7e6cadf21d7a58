//! The cloud controller manager: Harvester's side of the `cloud-provider` traits, and the program.
//!
//! ```text
//!  guest cluster                                        Harvester, namespace of the cloud-config
//!  Service ──► service_config ──┐                    ┌─► LoadBalancer object (POST, PUT of the JSON that was read)
//!  Node ─────► selector ────────┼─ load_balancers ───┤
//!                               │  see, decide, act  └─► DELETE
//!  kube-vip's status ───────────┘        ▲
//!                                        └── watch of LoadBalancer objects ◄── Harvester allocates and announces
//!
//!  Node ◄── provider ID, zone, region, addresses ── guest-vms ◄── watch of VirtualMachines and VirtualMachineInstances
//! ```
//!
//! * [`service_config`]: annotations become checked types once, here; one Event names every fault of a Service.
//! * [`datapath`]: the datapath of a Service, chosen before the object exists and never changed after.
//! * [`load_balancers`]: the LoadBalancer object of a Service. No GET, no polling: over a Service's life on the guest
//!   datapath one POST, at most one PUT, one DELETE.
//! * `announced`: the addresses that Services announce, which no Node has.
//! * `networks`: the interface of the Nodes on a network that a Service asks for, and the ConfigMap that lists them.
//! * `outage`: the kinds of Harvester that cannot be listed, and why; Services and Nodes that wait get the reason.
//! * [`notices`]: what the program says about itself, in the log and on its own Pod; who says it: `answers`,
//!   `cluster_names`, and `credential_rotation`.
//! * [`rights`]: what the program may do in Harvester, and what is off without; `guest_rights` asks for that and for the rights
//!   in the guest cluster, and tells what is missing.
//! * `metrics`: metrics under the names of Kubernetes.
//! * [`run()`]: all of it as a library call; [`cli`]: the process under its production name.

#![forbid(unsafe_code)]

mod announced;
pub mod answers;
pub mod cli;
pub mod cluster;
mod cluster_names;
pub mod datapath;
mod event_reasons;
mod guest_rights;
mod instances;
pub mod load_balancers;
mod metrics;
mod networks;
pub mod notices;
mod outage;
pub mod requested;
pub mod rights;
mod run;
pub mod service_config;
mod source_ranges;

pub use event_reasons::EVENT_REASONS;
pub use guest_vms::{AddressRules, TopologyLabels};
pub use run::{ElectionSettings, Parts, Settings, run};
