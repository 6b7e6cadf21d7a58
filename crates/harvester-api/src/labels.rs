//! Label keys, fixed label values, and the form of others.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// On a LoadBalancer object: guest cluster name, or a hash of one that cannot be the value of a label.
pub const CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";
/// On a LoadBalancer object: namespace of the guest Service.
pub const SERVICE_NAMESPACE: &str = "cloudprovider.harvesterhci.io/serviceNamespace";
/// On a LoadBalancer object: name of the guest Service.
pub const SERVICE_NAME: &str = "cloudprovider.harvesterhci.io/serviceName";
/// On a guest Service, by the cloud controller manager: the Service whose address it uses, `namespace.name`; empty on one
/// that uses none any more. The annotation of the same key has the user's request.
pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";
/// On Services and EndpointSlices of Harvester, by the load balancer: `"true"` on those that it makes.
pub const SERVICE_LB: &str = "loadbalancer.harvesterhci.io/servicelb";
/// On an EndpointSlice of Harvester: the Service that it belongs to, by Kubernetes' own label.
pub const SLICE_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On an EndpointSlice of Harvester: who writes it, by Kubernetes' own label; ours carry `harvester-load-balancer`.
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of [`SLICE_MANAGED_BY`] on our slices: not one of the built-in controllers, so none of them touches it.
pub const SLICE_MANAGED_BY_US: &str = "harvester-load-balancer";
/// On an IPPool: `"true"` or `"false"`, made by the admission webhook from the scope.
pub const GLOBAL_IP_POOL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
/// On an IPPool: VLAN id of its network in decimal, `"0"` without one.
pub const VID: &str = "loadbalancer.harvesterhci.io/vid";
/// On a NetworkAttachmentDefinition: its VLAN id.
pub const VLAN_ID: &str = "network.harvesterhci.io/vlan-id";
/// On a VM and its VMI: who made it; `docker-machine-driver-harvester` for machines of the node driver.
pub const CREATOR: &str = "harvesterhci.io/creator";
/// Value of [`CREATOR`] for machines made by the node driver.
pub const NODE_DRIVER: &str = "docker-machine-driver-harvester";
/// On a VM and its VMI: guest cluster name, or a hash of one that cannot be the value of a label.
pub const GUEST_CLUSTER: &str = "guestcluster.harvesterhci.io/name";
/// On a VMI: name of its VM.
pub const VM_NAME: &str = "harvesterhci.io/vmName";
/// On a VM and its VMI, by the node driver: namespace and set of the machine; the affinity terms select by it.
pub const MACHINE_SET: &str = "harvesterhci.io/machineSetName";
/// On a VM and its VMI, by the node driver: pool of the machine with its machine set's suffix, as upstream sets it. It
/// changes with each rollout.
pub const NODE_POOL: &str = "nodepool.harvesterhci.io/name";
/// On a VM and its VMI, by the node driver: pool of the machine; it survives rollouts.
pub const STABLE_POOL: &str = "nodepool.harvesterhci.io/pool";
/// On a guest Node, by an administrator: `"true"` for a machine that is no VM of Harvester. Its life is its owner's affair.
pub const EXTERNALLY_MANAGED: &str = "cloudprovider.harvesterhci.io/externally-managed";
/// On a VirtualMachineImage: `iso` for an image to boot an installation from.
pub const IMAGE_TYPE: &str = "harvesterhci.io/image-type";

/// On a VolumeSnapshot, by the CSI driver: the host's StorageClass of the volume.
pub const SNAPSHOT_CLASS: &str = "harvesterhci.io/snapHostSC";
/// On a VolumeSnapshot, by the CSI driver: `Block` or `Filesystem`, the volumeMode of the volume's claim.
pub const SNAPSHOT_VOLUME_MODE: &str = "harvesterhci.io/snapHostVolumeMode";
/// On a VolumeRemoteBackup, by the CSI driver: the volume.
pub const BACKUP_SOURCE_VOLUME: &str = "harvesterhci.io/backupSourceVolume";

/// Longest value of a label.
const VALUE_MAX: usize = 63;

/// Whether Kubernetes takes this as a label's value.
pub fn is_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= VALUE_MAX
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// The text if it can be the value of a label, else a hash of it that can, as upstream's node driver hashes the names of
/// machine sets. The node driver labels VMs with the name of their guest cluster in this form, so whoever looks for
/// that label has to compare with it (docs/contract/node-driver.md#B13).
pub fn legal(text: &str) -> String {
    if is_value(text) {
        return text.to_owned();
    }
    let mut hash: u32 = 0x811c_9dc5; // FNV-1a
    for byte in text.bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    format!("hash_{}_z", URL_SAFE_NO_PAD.encode(hash.to_be_bytes()))
}
