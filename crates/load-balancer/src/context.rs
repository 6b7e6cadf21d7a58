//! What every part of the controller shares: client, caches, queues, and what was given on the command line.
//!
//! Who owns what:
//! ```text
//! balancer   LoadBalancer objects: address, status, finalizer       (the only writer of LB objects)
//! host_path  Service, EndpointSlice, probers of vm objects          (called by `balancer`, see `balancer::host`)
//! pool       IPPool objects: claims, releases, status               (`pool::Writers` is the only writer of records)
//! ```
//! A part never writes an object that another part owns; it adds the object's key to that part's queue.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
};

use controller_kit::{Cache, ObjectKey, Queue, RawObject, Recorder};
use harvester_api::{IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance};
use ipnet::IpNet;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::Client;
use program::{Clock, TaskGroup};

use crate::{host_path::HostPath, pool};

/// Everything a reconcile may need; shared in an `Arc`.
pub struct Context {
    /// Refuses writes once the lease is older than its renew deadline: the only client that parts write with.
    pub client: Client,
    pub clock: Clock,
    pub recorder: Recorder,
    pub tasks: TaskGroup,
    pub config: Config,
    pub caches: Caches,
    /// LoadBalancer objects that want a reconcile. Whoever sees something change that concerns one adds its key.
    pub queue: Queue<ObjectKey>,
    /// Claims and releases; nothing else writes a pool's record.
    pub pools: pool::Writers,
    /// Objects that wait for a pool.
    pub waiting: pool::WaitingRoom,
    /// The host path's own state: probers and what it last wrote.
    pub host_path: HostPath,
    /// Whether the CRD knows `status.backends`: what it does not know, the server drops, and we would write it again
    /// for ever.
    pub backends_known: bool,
    /// Set once the list of VirtualMachineInstances is complete; where KubeVirt is not there, that is never.
    pub machines_listed: AtomicBool,
}

impl Context {
    /// Whether backends can be chosen.
    pub fn machines_listed(&self) -> bool {
        self.machines_listed.load(Ordering::Acquire)
    }
}

/// Watch caches, all namespaces. Without managedFields: where those matter, the object is read afresh.
#[derive(Clone)]
pub struct Caches {
    pub balancers: Cache<RawObject<LoadBalancer>>,
    pub pools: Cache<RawObject<IPPool>>,
    /// Only those with label [`harvester_api::labels::SERVICE_LB`].
    pub services: Cache<RawObject<Service>>,
    /// Only those with label [`harvester_api::labels::SERVICE_LB`].
    pub slices: Cache<RawObject<EndpointSlice>>,
    /// Pruned to labels, deletion, finalizers, networks and interfaces.
    pub vmis: Cache<VirtualMachineInstance>,
    /// Pruned to metadata.
    pub vms: Cache<VirtualMachine>,
}

/// What the command line decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Workers for each queue.
    pub workers: usize,
    /// Backend addresses in here are used only on a NIC of the pod network.
    pub pod_cidrs: Vec<IpNet>,
    /// Backend addresses in here are never used.
    pub service_cidrs: Vec<IpNet>,
    /// Address of the endpoint that swallows traffic while no backend is ready.
    pub dummy_endpoint: Ipv4Addr,
}
