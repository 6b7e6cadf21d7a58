//! Simulates Harvester and its guest clusters around their API servers, for tests and the sandbox.
//!
//! ```text
//!            Harvester's API server                          guest's API server
//!   VM ──► instance, migration (VM)            Node, Pods, slices (guest, endpoint_slices)
//!   VM ──► volumes (storage) ──┘ ◄── quota
//!    └───► disks that come and go while it runs (VM) ──► block devices (disks), where asked for
//!   images, key pairs (catalogue)
//!   Service of type LoadBalancer ──► kube-vip (kube_vip)   ◄── Service of type LoadBalancer
//!                                        │   ▲
//!                                        ▼   └── DHCP
//!              VIP ──► kube-proxy ──► VM ──► pod (datapath)
//! ```
//! Everything works on plain clients, so it stands beside the simulated API server in one process on a paused clock, and
//! beside real ones. Each part decides by a pure function; sockets are only opened with [`Carrier::Sockets`]. The data
//! path and kube-vip read nothing but objects: whether a controller of ours lives makes no difference to traffic.
//!
//! What a test adds for volumes: the objects of a release ([`host_objects::apply`]), what KubeVirt and Harvester refuse
//! ([`admission::router`], as webhooks of either server), KubeVirt's `addvolume` and `removevolume`
//! ([`subresources::router`]), block devices ([`SimHarvester::serve_disks`]). Not simulated: the pods `hp-volume-…` by which
//! KubeVirt plugs disks, PersistentVolumes, VolumeAttachments, VolumeSnapshotContents. A NetworkFilesystem gets its endpoint,
//! and nobody serves there.

pub mod admission;
mod catalogue;
pub mod crds;
pub mod datapath;
pub mod dhcp;
pub mod disks;
mod endpoint_slices;
pub mod guest;
mod harvester_version;
pub mod host;
pub mod host_objects;
pub mod kube_vip;
mod merge_patch;
mod quota;
mod refused;
pub mod settings;
pub mod simulation;
mod storage;
pub mod subresources;
mod taints;
pub mod vm;
mod volumes;
pub mod wire;

pub use datapath::{BackendName, CannotCarry, Carried, Cluster, Destination, Protocol, Refused, Vip};
pub use dhcp::Lan;
pub use guest::Workload;
pub use harvester_version::HotPlug;
pub use kube_vip::Release;
pub use settings::Backend;
pub use simulation::{Carrier, Options, SimHarvester};
pub use storage::{
    longhorn::Volume as LonghornVolume,
    snapshot::{READY_AFTER, VolumeSnapshot},
};
pub use vm::VmState;
pub use wire::{LowPorts, Stretch, WireMap, ipv6};
