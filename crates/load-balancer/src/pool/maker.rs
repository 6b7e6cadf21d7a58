//! Records that other programs made for machines: the node driver records a static address under the namespace and name of the
//! VM, and a load balancer of that name would take the record for its own.
//!
//! The node driver records the address before it makes the VM, so that its records count whether or not the VM is there. A
//! record that an administrator wrote back for a load balancer has another maker too, so that of others only those count which
//! name a VM as well. Who made a record only a fresh read of the pool tells.

/// Who made a record that names a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    LoadBalancer,
    /// Another program, and there was no VM of the name: an answer for as long as the record stands and no such VM is seen.
    Other,
    /// The node driver, or another program for the VM of the name.
    Machine,
}
