#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod event;
mod event_reasons;
mod failure;
mod instances;
mod load_balancers;
mod node;
mod service;

pub use event_reasons::EVENT_REASONS;
pub use failure::Failure;
pub use instances::{AddressProblem, Instance, InstanceMetadata, InstanceState, Instances};
pub use load_balancers::{
    Annotations, Decision, IngressAddress, Labels, LoadBalancerState, LoadBalancers, Publish, Removal,
    Requeue, RequeueFn, View,
};
pub use node::{DELETE_NODES, Duties, NodeController, NodeLifecycle, waits_for_cloud};
pub use service::{DryRun, FINALIZER, ServiceController, dry_run, is_eligible, wants_load_balancer};
