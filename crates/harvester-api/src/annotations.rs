//! Annotation keys.

/// All keys for guest Services begin with it.
pub const SERVICE_PREFIX: &str = "cloudprovider.harvesterhci.io/";
/// All keys for LoadBalancer and IPPool objects begin with it, apart from those that the cloud controller manager copies.
pub const LB_PREFIX: &str = "loadbalancer.harvesterhci.io/";

/// On a guest Service: how its address is obtained, `pool` (default) or `dhcp`.
pub const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
/// On a guest Service: the Service port whose node port is probed. Its presence asks for the host datapath.
pub const HEALTH_CHECK_PORT: &str = "cloudprovider.harvesterhci.io/healthcheck-port";
/// On a guest Service: consecutive good probes before a backend gets traffic. Default 1.
pub const HEALTH_CHECK_SUCCESS_THRESHOLD: &str =
    "cloudprovider.harvesterhci.io/healthcheck-success-threshold";
/// On a guest Service: consecutive failed probes before a backend loses its traffic. Default 3.
pub const HEALTH_CHECK_FAILURE_THRESHOLD: &str =
    "cloudprovider.harvesterhci.io/healthcheck-failure-threshold";
/// On a guest Service: seconds between two probes of one backend. Default 5.
pub const HEALTH_CHECK_PERIOD_SECONDS: &str = "cloudprovider.harvesterhci.io/healthcheck-periodseconds";
/// On a guest Service: seconds after which a probe has failed. Default 3.
pub const HEALTH_CHECK_TIMEOUT_SECONDS: &str = "cloudprovider.harvesterhci.io/healthcheck-timeoutseconds";
/// On a guest Service: text for `spec.description` of its LoadBalancer object.
pub const DESCRIPTION: &str = "cloudprovider.harvesterhci.io/description";
/// On a guest Service: `guest` or `host`, wins over the flag `--data-path` where `--allowed-data-paths` admits it.
pub const DATA_PATH: &str = "cloudprovider.harvesterhci.io/data-path";
/// On a guest Service: the Service whose address it shares, `namespace/name` or a name in its own namespace.
pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";
/// On a guest Service: the namespaces whose Services may share its address, separated by commas, or `*`.
pub const ALLOW_SHARED_FROM: &str = "cloudprovider.harvesterhci.io/allow-shared-from";
/// On a guest Service: the Harvester network (`namespace/name` of a NetworkAttachmentDefinition) that carries it.
pub const SERVICE_NETWORK: &str = "cloudprovider.harvesterhci.io/network";
/// On a guest Service: Rancher project, copied to [`LB_PROJECT`].
pub const SERVICE_PROJECT: &str = "cloudprovider.harvesterhci.io/project";
/// On a guest Service: namespace for the choice of a pool, copied to [`LB_NAMESPACE`].
pub const SERVICE_NAMESPACE: &str = "cloudprovider.harvesterhci.io/namespace";
/// On a guest Service: an address that it demands, `v4[,v6]`.
pub const SERVICE_IP: &str = "cloudprovider.harvesterhci.io/ip";
/// On a guest Service: the pool that it asks for by name.
pub const SERVICE_IP_POOL: &str = "cloudprovider.harvesterhci.io/ip-pool";
/// On a guest Service, by us: the address that Harvester gave and [`KUBE_VIP_LOADBALANCER_IPS`] asks for. It stays when
/// Harvester takes the address back, until another is given: what came of it is ours to withdraw, and nothing else. Where
/// [`KUBE_VIP_LOADBALANCER_IPS`] names just the address that the LoadBalancer object has and shows, that counts as ours,
/// whoever wrote it.
pub const ALLOCATED_ADDRESS: &str = "cloudprovider.harvesterhci.io/allocated-address";
/// On a guest Service, by us: `host` from when it is served on that data path. [`KUBE_VIP_IGNORE`] alone says nothing,
/// since users set it too.
pub const RECORDED_DATA_PATH: &str = "cloudprovider.harvesterhci.io/recorded-data-path";

/// On a LoadBalancer object: UID of the guest's Service `default/kubernetes`, which tells guest clusters apart.
pub const CLUSTER_UID: &str = "cloudprovider.harvesterhci.io/cluster-uid";
/// On a LoadBalancer object: UID of the guest Service that it was made for.
pub const SERVICE_UID: &str = "cloudprovider.harvesterhci.io/service-uid";
/// On a LoadBalancer object: addresses that its Service wishes for, `v4[,v6]`. Any other of that family will do.
pub const REQUESTED_IP: &str = "cloudprovider.harvesterhci.io/requested-ip";
/// On a LoadBalancer object: addresses that its Service demands, `v4[,v6]`. It waits until it can have them.
pub const REQUESTED_IP_STRICT: &str = "cloudprovider.harvesterhci.io/requested-ip-strict";
/// On a LoadBalancer object: families of its addresses in their order, such as `IPv4,IPv6`; absent means IPv4. An
/// annotation and no field, because the server drops fields that an older schema does not have.
pub const IP_FAMILIES: &str = "cloudprovider.harvesterhci.io/ip-families";
/// On a LoadBalancer object: `spec.ipFamilyPolicy` of its Service. See [`IP_FAMILIES`].
pub const IP_FAMILY_POLICY: &str = "cloudprovider.harvesterhci.io/ip-family-policy";
/// On a LoadBalancer object: `spec.loadBalancerSourceRanges` of its Service, sorted, separated by commas.
pub const SOURCE_RANGES: &str = "loadbalancer.harvesterhci.io/source-ranges";
/// On a LoadBalancer object, by the load balancer: the [`SOURCE_RANGES`] that its Service in Harvester has now.
pub const SOURCE_RANGES_APPLIED: &str = "loadbalancer.harvesterhci.io/source-ranges-applied";
/// On a LoadBalancer object: its Service is gone, and what to do about it, in a sentence. Nobody deletes it by itself.
pub const WITHOUT_SERVICE: &str = "cloudprovider.harvesterhci.io/without-service";
/// On a LoadBalancer object: the Service's own network request; frozen at creation.
pub const LB_NETWORK_REQUEST: &str = "cloudprovider.harvesterhci.io/lb-network";
/// On a LoadBalancer object: `--management-network` of the cloud controller manager; second choice for the network.
pub const MANAGEMENT_NETWORK: &str = "cloudprovider.harvesterhci.io/managementNetwork";
/// On a LoadBalancer object: namespace used to choose a pool; absent means the object's own.
pub const LB_NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
/// On a LoadBalancer object: Rancher project as `c-xxxxx/p-xxxxx`.
pub const LB_PROJECT: &str = "loadbalancer.harvesterhci.io/project";
/// On a LoadBalancer object: `namespace/name` of the NetworkAttachmentDefinition of the guest's nodes.
pub const LB_NETWORK: &str = "loadbalancer.harvesterhci.io/network";
/// On a LoadBalancer object in version v1alpha1, by us: what only v1beta1 can say. It is never stored.
pub const V1BETA1: &str = "loadbalancer.harvesterhci.io/v1beta1";
/// On a LoadBalancer object: guest cluster name.
pub const LB_CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";

/// On an IPPool: `"<ip>: <namespace>/<load balancer>"` asks for the release of a leaked record.
pub const MANUALLY_RELEASE_IP: &str = "loadbalancer.harvesterhci.io/manuallyReleaseIP";
/// On an IPPool: `"false"` keeps it from load balancers that do not name it in `spec.ipPool`.
pub const AUTO_ASSIGN: &str = "loadbalancer.harvesterhci.io/auto-assign";
/// On an IPPool, by us: free addresses that are given to nobody but their former holder yet, as a JSON object of addresses
/// and ends in RFC 3339.
pub const QUARANTINE: &str = "loadbalancer.harvesterhci.io/quarantine";
/// On an IPPool, by us: why the last [`MANUALLY_RELEASE_IP`] released nothing; there until the next one is answered.
pub const MANUAL_RELEASE_REFUSED: &str = "loadbalancer.harvesterhci.io/manual-release-refused";
/// On ConfigMap `kube-system/kubevip`: `"true"` once its pools were imported.
pub const AFTER_CONVERSION: &str = "loadbalancer.harvesterhci.io/after-conversion";
/// On ConfigMap `kube-system/kubevip`, by us: the entries of pools as they were imported, each with the beginning of its
/// SHA-256, as JSON. Who changes one later is told that nobody reads it.
pub const IMPORTED_ENTRIES: &str = "loadbalancer.harvesterhci.io/imported-entries";
/// On ConfigMap `kube-system/kubevip`: what could not be imported and why, one line an entry.
pub const IMPORT_ERRORS: &str = "loadbalancer.harvesterhci.io/import-errors";
/// On a Namespace: Rancher project as `c-xxxxx:p-xxxxx`.
pub const PROJECT_ID: &str = "field.cattle.io/projectId";
/// On a VirtualMachine: `"true"` while its guest cluster is being removed.
pub const REMOVE_ALL_PVCS: &str = "harvesterhci.io/removeAllPersistentVolumeClaims";
/// On a VirtualMachine: the claims that Harvester creates, as JSON.
pub const CLAIM_TEMPLATES: &str = "harvesterhci.io/volumeClaimTemplates";
/// On a VirtualMachine: the claims that Harvester deletes with it, joined by commas.
pub const REMOVED_CLAIMS: &str = "harvesterhci.io/removedPersistentVolumeClaims";
/// On a VirtualMachine: memory that Harvester keeps for its overhead.
pub const RESERVED_MEMORY: &str = "harvesterhci.io/reservedMemory";
/// On a VirtualMachine that Harvester stopped because a quota is used up: a sentence about it.
pub const INSUFFICIENT_QUOTA: &str = "harvesterhci.io/insufficient-resource-quota";
/// On the template of a VirtualMachine: names of the KeyPairs that may log in, as JSON.
pub const SSH_NAMES: &str = "harvesterhci.io/sshNames";
/// On the template of a VirtualMachine: network interfaces whose DHCP lease Harvester waits for, as JSON.
pub const WAIT_FOR_LEASE: &str = "harvesterhci.io/waitForLeaseInterfaceNames";
/// On a PersistentVolumeClaim and its template: `namespace/name` of the image that it is a copy of.
pub const IMAGE_ID: &str = "harvesterhci.io/imageId";
/// On a PersistentVolumeClaim: `"true"` asks Harvester up to 1.7 for a disk image in a claim with a file system.
pub const VOLUME_FOR_VM: &str = "harvesterhci.io/volumeForVirtualMachine";
/// On a PersistentVolumeClaim, by Harvester: the VMs that use it.
pub const OWNED_BY: &str = "harvesterhci.io/owned-by";

/// On a VirtualMachine, by the node driver: hash of its inputs. An attempt continues with a VM that has its own hash.
pub const MACHINE_INPUTS: &str = "node-driver.harvesterhci.io/inputs";
/// On a VirtualMachine, by the node driver: the attempt that created it, and that alone deletes it after a failure.
pub const MACHINE_ATTEMPT: &str = "node-driver.harvesterhci.io/attempt";

/// On a Secret of the webhook: the day on which the certificate ends. A Secret without it is not of our making.
pub const CERTIFICATE_ENDS: &str = "loadbalancer.harvesterhci.io/certificate-ends";
/// On a Secret of the webhook: names that the certificate is good for, separated by commas.
pub const CERTIFICATE_NAMES: &str = "loadbalancer.harvesterhci.io/certificate-names";

/// On a Service, for kube-vip: the addresses to announce.
pub const KUBE_VIP_LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
/// On a Service, for kube-vip: the interface of the node that gets the address.
pub const KUBE_VIP_SERVICE_INTERFACE: &str = "kube-vip.io/serviceInterface";
/// On a Service, for kube-vip: `"true"` keeps it away (it does not withdraw what it already announces).
pub const KUBE_VIP_IGNORE: &str = "kube-vip.io/ignore";
/// On a Service, by kube-vip: node that announces its address now.
pub const KUBE_VIP_VIP_HOST: &str = "kube-vip.io/vipHost";
/// On a Service, by kube-vip: MAC address of the DHCP lease, reused after a restart.
pub const KUBE_VIP_HWADDR: &str = "kube-vip.io/hwaddr";
/// On a Service, by kube-vip: address of the DHCP lease, asked for again after a restart.
pub const KUBE_VIP_REQUESTED_IP: &str = "kube-vip.io/requestedIP";

/// On a Node, by its kubelet: its `--node-ip`, one address or `v4,v6`. A kubelet without that flag writes none.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// On a Node, by users: a JSON list of addresses that are not to be its ExternalIPs.
pub const ADDITIONAL_INTERNAL_IPS: &str = "cloudprovider.harvesterhci.io/additional-internal-ips";

/// On a VirtualMachineInstance, by Harvester: the region of its host; as a label on guest Nodes, by the cloud controller
/// manager.
pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
/// On a VirtualMachineInstance, by Harvester: the zone of its host; as a label on guest Nodes, by the cloud controller
/// manager.
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
/// On a guest Node, by the cloud controller manager: the namespace of Harvester in which it saw the VM of the Node's
/// provider ID. That the VM is missing says something in this namespace alone.
pub const VM_NAMESPACE: &str = "cloudprovider.harvesterhci.io/vm-namespace";
/// On the PersistentVolumeClaim of a volume, by the CSI driver: which machine it is in, or on its way to or from, as JSON.
pub const CSI_ATTACH: &str = "driver.harvesterhci.io/attach";
/// On the PersistentVolumeClaim of a volume and a VolumeRemoteRestore that makes one, by the CSI driver: its name, size and
/// reach as CSI knows them, as JSON.
pub const CSI_VOLUME: &str = "driver.harvesterhci.io/volume";
/// On the PersistentVolumeClaim of a volume, by the CSI driver: when the host began to wait for a pod to grow the file system,
/// as it stood there when the last growth was asked for.
pub const CSI_FORMER_GROWTH: &str = "driver.harvesterhci.io/former-growth";
/// On a VolumeSnapshot and a VolumeRemoteBackup, by the CSI driver: the volume as it was, as JSON.
pub const CSI_SNAPSHOT: &str = "driver.harvesterhci.io/snapshot";
/// On a VirtualMachine, by the CSI driver: which of its processes last changed the version of the machine, so that writes
/// of another one that were still on their way fail.
pub const CSI_FENCE: &str = "driver.harvesterhci.io/fence";
/// On a NetworkFilesystem: the guest clusters that have the export on, with commas between them. The Go driver writes none.
pub const CSI_EXPORT_ON_FOR: &str = "driver.harvesterhci.io/on-for";
/// On a VolumeAttachment of the guest, by the CSI driver: changed so that the external attacher looks at it at once.
pub const CSI_NUDGE: &str = "driver.harvesterhci.io/nudge";
/// On a guest Node, by the cloud controller manager: the labels that it wrote there, as a JSON map. It takes away only these.
pub const APPLIED_LABELS: &str = "cloudprovider.harvesterhci.io/applied-labels";
