//! The border between a LoadBalancer object of type vm and its host path (Service, EndpointSlice, probers).
//!
//! `balancer` owns the object and its address; the host path owns what carries the traffic. The host path offers
//! ```text
//! HostPath::serve(&self, cx: &Context, lb: &RawObject<LoadBalancer>, address: &AllocatedAddress) -> Result<Served, host_path::Error>
//! HostPath::withdraw(&self, cx: &Context, lb: &RawObject<LoadBalancer>)                          -> Result<Withdrawal, host_path::Error>
//! HostPath::forget(&self, lb: &ObjectKey)          // the object is gone: probers and memory of it end
//! ```
//! Both async ones can be repeated at any time, write nothing that is already so, and never wait: what they wait for
//! is watched, and the watch adds the object's key to [`crate::context::Context::queue`].

use harvester_api::BackendStatus;

/// What the host path says of an object: its part of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// `status.backendServers`: addresses of all selected backends, healthy or not.
    pub backend_servers: Vec<String>,
    /// `status.address`: what kube-vip announces; empty while it announces nothing. Never `0.0.0.0`.
    pub address: String,
    /// `status.backends`; left out of the write where the CRD does not know it.
    pub backends: Vec<BackendStatus>,
    /// Why it is not ready, and what is waited for; none when it is.
    pub waiting: Option<Waiting>,
}

/// A reason code for programs and a sentence for people: the Ready condition while it is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// CamelCase, e.g. `WaitingForExternalIP`.
    pub reason: &'static str,
    /// What is missing and what ends the wait.
    pub message: String,
}

/// How far the host path is with taking an object's address from the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The Service is gone: the address may go back to its pool now, before the finalizer.
    Gone,
    /// The Service is on its way out; its DELETE event brings the object back.
    Going(Waiting),
    /// We may not delete the Service: its slice is empty and it is of type ClusterIP now. The finalizer goes, the
    /// garbage collector follows, and the record is released when both DELETE events were seen.
    LeftToGarbageCollector,
}
