//! The reasons of the Events of Harvester's side of the cloud controller manager; `cloud_provider` has those of any cloud.

use controller_kit::{EventReason, EventReasons};

use crate::{guest_rights, notices};

const SERVICE: &[&str] = &["Service"];
const NODE: &[&str] = &["Node"];
const POD: &[&str] = &["Pod"];

/// Most faults of a Service are told so.
const fn fault(reason: &'static str, meaning: &'static str, help: &'static str) -> EventReason {
    EventReason::warning(reason, SERVICE, meaning, help)
}

/// The reasons that this crate gives.
pub const EVENT_REASONS: &[EventReasons] = &[
    EventReasons { component: "service-controller", reasons: ON_SERVICES },
    EventReasons { component: "cloud-node-controller", reasons: ON_NODES },
    EventReasons { component: "cloud-node-lifecycle-controller", reasons: ON_UNREADY_NODES },
    EventReasons { component: notices::COMPONENT, reasons: ON_OWN_POD },
];

const ON_SERVICES: &[EventReason] = &[
    fault(
        "AddressDiffers",
        "the Service demands another address than its primary has",
        "drop the demand, or the sharing",
    ),
    fault("AddressInUse", "somebody else has the demanded address", "wait, or demand another"),
    fault(
        "AddressNotAllocated",
        "kube-vip in the guest announces `spec.loadBalancerIP` by itself, and Harvester has not given it",
        "remove the field",
    ),
    fault("AddressNotInPool", "no pool for the Service has the demanded address", "demand another"),
    fault(
        "AddressNotPublished",
        "kube-vip in the guest does not show an address",
        "a ready Pod behind the Service; restart it there if the message says so",
    ),
    fault(
        "AddressTakenBack",
        "the pool gave the address to another load balancer, or may: this Service has no object, and none is made",
        "what the Event beside it says; restart kube-vip in the guest if it still announces the address",
    ),
    fault("AnnotationHasNoEffect", "an annotation that nothing reads here", "what the message says"),
    fault(
        "AnnouncedInGuest",
        "kube-vip in the guest has announced the Service, and would announce its address a second time",
        "make the Service anew for the data path host",
    ),
    fault(
        "ClassNeedsHostPath",
        "the class `harvesterhci.io/load-balancer` is for the data path host, which is not allowed, or not asked for",
        "allow it with `--allowed-data-paths`, or take the class away",
    ),
    EventReason::normal(
        "ClientAddressNotPreserved",
        SERVICE,
        "`externalTrafficPolicy: Local` does not keep the client's address on the data path host",
        "take the data path guest where it matters",
    ),
    fault("ClusterNameNotSet", "`--cluster-name` was not chosen", "choose one before more Services follow"),
    fault("DataPathDiffers", "the primary is on another data path", "put both on one"),
    fault("DataPathFixed", "the data path was decided when the Service was made", "make the Service anew"),
    fault(
        "DataPathNotAllowed",
        "`--allowed-data-paths` lacks the data path that the Service asks for",
        "ask for another, or change the flag",
    ),
    fault("HealthCheckNeeded", "a Service on the data path host has no health check", "give it one"),
    fault(
        "HealthCheckNotEnforced",
        "health checks need the data path host",
        "what the message says stands in the way",
    ),
    fault("HealthCheckWithoutPort", "health check annotations without a port", "give the port too"),
    fault(
        "HostNotAnnouncing",
        "kube-vip of Harvester does not announce the address",
        "look at kube-vip in Harvester",
    ),
    fault("IPAMFixed", "`ipam` was decided when the Service was made", "make the Service anew"),
    EventReason::either(
        "IPFamilyNotSupported",
        SERVICE,
        "the families that the Service wants, and what it gets",
        "ask for families that there are",
    ),
    fault("InvalidDataPath", "the annotation `data-path` is no data path", "`guest` or `host`"),
    fault("InvalidHealthCheck", "a health check annotation cannot be", "correct it"),
    fault("InvalidIPAM", "the annotation `ipam` is no way to get an address", "`pool` or `dhcp`"),
    fault("InvalidIPPool", "the annotation `ip-pool` is no name of a pool", "correct it"),
    fault(
        "InvalidPrimaryService",
        "`primary-service` names no Service, itself, or leads into a ring",
        "correct it",
    ),
    fault(
        "InvalidRequestedAddress",
        "what the Service asks for is no address that it can have",
        "correct it",
    ),
    fault("InvalidSourceRanges", "the source ranges are malformed, not of IPv4, or too many", "correct them"),
    fault(
        "LoadBalancerWithoutService",
        "the Service is gone, and its object in Harvester is not",
        "delete that object if nobody needs its address",
    ),
    fault(
        "NetworkDiffers",
        "the primary has its address on another network",
        "ask for the same, or do not share",
    ),
    fault("NetworkFixed", "`network` was decided when the Service was made", "make the Service anew"),
    fault("NetworkNotSupported", "the data path host knows no networks", "take the data path guest"),
    fault(
        "NetworkWithoutInterface",
        "no interface of the Nodes is known for the Service's network",
        "give all VMs that network on one interface",
    ),
    fault("NodePortMissing", "the data path host needs node ports", "`allocateLoadBalancerNodePorts: true`"),
    fault("NodeWithoutVM", "a Node that is no known VM gets no traffic", "look at the Events of that Node"),
    fault(
        "NodesNotSelectable",
        "VMs of Nodes have no label by which the load balancer finds them",
        "label them and their templates as the message says",
    ),
    fault("NotSupported", "a field that the data path host cannot carry", "take the data path guest"),
    fault("PortConflict", "another Service has the port at the shared address", "take another port"),
    fault(
        "PrimaryNotSuitable",
        "the primary is no load balancer, or of another class",
        "name another Service",
    ),
    fault("ProtocolNotSupported", "the data path host carries TCP and UDP alone", "take the data path guest"),
    fault(
        "RequestedAddressNotUsed",
        "the Service has another address than it wished for, or a request has no effect",
        "what the message says",
    ),
    fault(
        "RequestedAddressUnsupported",
        "the load balancer in Harvester gave another address than the demanded one",
        "install the load balancer of this project there",
    ),
    fault(
        "SharingNotAllowed",
        "the primary does not share its address with this namespace",
        "ask its owner for `allow-shared-from`",
    ),
    fault(
        "SourceRangesNotInForce",
        "the load balancer in Harvester says what hinders the ranges",
        "what the message says",
    ),
    fault(
        "SourceRangesUnsupported",
        "the load balancer in Harvester does not enforce source ranges",
        "install that of this project there, or remove the ranges",
    ),
    fault("TooManyPorts", "the data path host carries 100 ports at an address", "spread them over Services"),
    fault("UnAvailableLoadBalancer", "no Node can take traffic", "look at the Nodes"),
    fault("UnknownAnnotation", "a key that nobody knows, a misspelt one perhaps", "correct or remove it"),
    fault(
        "VipAnnouncedTwice",
        "kube-vip in the guest announces the address too",
        "restart kube-vip in the guest, or make the Service anew",
    ),
    fault(
        "VipStillAnnounced",
        "the Service is no LoadBalancer any more, and kube-vip in the guest goes on announcing its address",
        "restart kube-vip in the guest",
    ),
    EventReason::normal(
        "WaitingForPrimary",
        SERVICE,
        "the primary is not there, is being deleted, or has no address yet",
        "none: it goes on by itself",
    ),
];

const ON_NODES: &[EventReason] = &[
    EventReason::warning(
        "InvalidNodeAnnotation",
        NODE,
        "an annotation of the Node is no JSON list of addresses",
        "correct it",
    ),
    EventReason::warning(
        "InvalidTopologyLabel",
        NODE,
        "an annotation of the VM has a value that no label can have",
        "correct it on the VM",
    ),
    EventReason::warning(
        "MachineNotFound",
        NODE,
        "Harvester has no VM for the Node, so the taint stays",
        "look at namespace, name and labels of the VM",
    ),
    EventReason::warning(
        "MachinesNotListed",
        NODE,
        "VMs cannot be listed, so the taint stays",
        "what the message says: a right, or Harvester is away",
    ),
    EventReason::normal(
        "NodeExternallyManaged",
        NODE,
        "the Node is labelled as none of ours, and waits for a cloud",
        "remove the taint, or the label",
    ),
    EventReason::normal(
        "NodeOfAnotherCloud",
        NODE,
        "its provider ID is another cloud's: it is left alone",
        "",
    ),
    EventReason::warning(
        "ProviderIdOutdated",
        NODE,
        "the VM was made again under its name, and the Node has the former one's provider ID",
        "one Node at a time: drain it, delete it and restart its kubelet; a server with etcd of RKE2 or K3s is replaced",
    ),
];

const ON_UNREADY_NODES: &[EventReason] = &[EventReason::warning(
    "NodeKept",
    NODE,
    "the VM of the Node is not found, and nothing shows that this is the right Harvester",
    "delete the Node if its VM is gone",
)];

const ON_OWN_POD: &[EventReason] = &[
    EventReason::warning("ClockSkew", POD, "two clocks are more than a minute apart", "set both by NTP"),
    EventReason::warning(
        "CloudConfigNotUsed",
        POD,
        "the changed cloud-config is of no use, and the former one goes on",
        "correct the file; restart where the namespace changes",
    ),
    EventReason::warning(
        "ClusterNameNotSet",
        POD,
        "`--cluster-name` was not chosen, and the VMs carry a better name",
        "set the name that the message suggests",
    ),
    EventReason::warning(
        "ClusterNameTaken",
        POD,
        "another guest cluster has objects under this cluster's name",
        "give each cluster a name of its own",
    ),
    EventReason::warning("CredentialExpired", POD, "the credential has ended", "replace the cloud-config"),
    EventReason::warning(
        "CredentialExpires",
        POD,
        "the credential ends within 14 days, 7 days, one day",
        "replace the cloud-config",
    ),
    EventReason::warning(
        "CredentialNotRotated",
        POD,
        "the token of the cloud-config is due, and no newer one could be asked for or written",
        "grant what the message names; it is tried again by itself",
    ),
    EventReason::warning(
        "CredentialRefused",
        POD,
        "an API server has answered 401 for ten seconds",
        "replace the cloud-config",
    ),
    EventReason::normal(
        "CredentialRotated",
        POD,
        "the token of the cloud-config was renewed before its end",
        "none",
    ),
    guest_rights::REASON,
];
