//! Finalizers.

/// On every LoadBalancer object; the name of the Go program is kept so that a roll-back works.
pub const LOAD_BALANCER: &str = "wrangler.cattle.io/harvester-lb-controller";
/// On every IPPool.
pub const IP_POOL: &str = "wrangler.cattle.io/harvester-ipam-controller";
/// Left on every VirtualMachineInstance by the Go program: stripped, never added.
pub const LEGACY_VMI: &str = "wrangler.cattle.io/harvester-lb-vmi-controller";
/// Left on every VirtualMachine by the Go program from Harvester 1.8 on: stripped, never added.
pub const LEGACY_VM: &str = "wrangler.cattle.io/harvester-lb-vm-controller";
