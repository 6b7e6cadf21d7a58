//! The vocabulary: every kind, annotation, label, finalizer and condition that the parts of the Harvester cloud
//! provider read or write, with its meaning. Parsing and defaults live here, nothing else does: no I/O, no policy.
//!
//! The custom resources belong to Harvester and KubeVirt; their schemas are shipped under `deploy/crds/`. The
//! structs here are the fields that we use. Whoever writes an object back starts from the JSON that was read
//! (`controller_kit::RawObject`), never from these structs, so that fields unknown to us survive.

pub mod annotations;
pub mod condition;
pub mod finalizers;
pub mod ip_pool;
pub mod kubevirt;
pub mod labels;
pub mod load_balancer;
pub mod names;

pub use condition::{Condition, ConditionStatus};
pub use ip_pool::{IPPool, IPPoolSpec, IPPoolStatus, PoolRange, PoolScope, PoolSelector};
pub use kubevirt::{VirtualMachine, VirtualMachineInstance};
pub use load_balancer::{
    AllocatedAddress, BackendStatus, HealthCheck, Ipam, Listener, LoadBalancer, LoadBalancerSpec,
    LoadBalancerStatus, WorkloadType,
};
