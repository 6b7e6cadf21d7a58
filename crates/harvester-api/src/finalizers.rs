//! Finalizers.

/// On every LoadBalancer object, by the load balancer: it goes once its addresses are given back. The name of the Go program is kept
/// so that a roll-back works.
pub const LOAD_BALANCER: &str = "wrangler.cattle.io/harvester-lb-controller";
/// On every IPPool, by the load balancer: it goes once it has no record.
pub const IP_POOL: &str = "wrangler.cattle.io/harvester-ipam-controller";
/// On every VirtualMachineInstance, by the Go program: stripped, never added.
pub const LEGACY_VMI: &str = "wrangler.cattle.io/harvester-lb-vmi-controller";
/// On every VirtualMachine, by the Go program from Harvester 1.8 on: stripped, never added.
pub const LEGACY_VM: &str = "wrangler.cattle.io/harvester-lb-vm-controller";
