//! Virtual machines: whether they are listed, the finalizers that the Go program left on them, and the load balancers of
//! a guest cluster that is removed with its VMs.

pub(crate) mod finalizers;
pub(crate) mod removed_clusters;
mod watch;

pub(crate) use watch::VmWatch;
