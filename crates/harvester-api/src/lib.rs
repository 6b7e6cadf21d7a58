#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod annotations;
pub mod condition;
pub mod finalizers;
pub mod ip_pool;
pub mod kubevirt;
pub mod labels;
pub mod load_balancer;
pub mod names;

pub use condition::{Condition, ConditionStatus};
pub use ip_pool::{IPPool, IPPoolSpec, IPPoolStatus, PoolQuota, PoolRange, PoolScope, PoolSelector};
pub use kubevirt::{VirtualMachine, VirtualMachineInstance};
pub use load_balancer::{
    AllocatedAddress, BackendStatus, HealthCheck, IpFamilyPolicy, Ipam, Listener, LoadBalancer,
    LoadBalancerSpec, LoadBalancerStatus, WorkloadType,
};
