//! Fixed names and values.

/// Lease of the load balancer, shared with the Go program so that the two never run together.
pub const LOAD_BALANCER_LEASE: &str = "harvester-load-balancer";
/// Namespace of [`LOAD_BALANCER_LEASE`] and of the legacy pool ConfigMap.
pub const KUBE_SYSTEM: &str = "kube-system";
/// ConfigMap of kube-vip-cloud-provider: pools under `kube-system`, allocations in every namespace.
pub const KUBEVIP_CONFIG_MAP: &str = "kubevip";
/// ConfigMap of a guest cluster, in [`KUBE_SYSTEM`], that names the interfaces of networks.
pub const NETWORKS_CONFIG_MAP: &str = "harvester-nad-mapping";
/// Key of a [`KUBEVIP_CONFIG_MAP`] that lists the addresses in use.
pub const KUBEVIP_SERVICES: &str = "kubevip-services";
/// `allocatedAddress.ip` of a load balancer whose address comes from DHCP.
pub const DHCP_ADDRESS: &str = "0.0.0.0";
/// Endpoint that keeps a Service from having none: it swallows traffic while no backend is ready.
pub const DUMMY_ENDPOINT_ADDRESS: &str = "10.52.0.255";
/// `targetRef.uid` by which a dummy endpoint is recognised, whoever made it.
pub const DUMMY_ENDPOINT_UID: &str = "dummy347-546a-4642-9da6-5608endpoint";
/// Cluster name of a cloud controller manager that was given none: shared by everybody who did not choose.
pub const DEFAULT_CLUSTER_NAME: &str = "kubernetes";
/// Load balancer class by which a guest Service asks for the host datapath.
pub const LOAD_BALANCER_CLASS: &str = "harvesterhci.io/load-balancer";
/// Prefix of `spec.providerID` of a guest Node; the VM's UID follows.
pub const PROVIDER_ID_PREFIX: &str = "harvester://";
/// Name of the CSI driver in StorageClasses, PersistentVolumes and CSINodes.
pub const CSI_DRIVER: &str = "driver.harvesterhci.io";
