//! The reasons of the Events of any cloud.

use controller_kit::{EventReason, EventReasons};

const SERVICE: &[&str] = &["Service"];
const NODE: &[&str] = &["Node"];

/// The reasons that this crate gives; a cloud adds its own.
pub const EVENT_REASONS: &[EventReasons] = &[
    EventReasons {
        component: "service-controller",
        reasons: &[
            EventReason::normal("DeletedLoadBalancer", SERVICE, "the load balancer is gone", ""),
            EventReason::normal("DeletingLoadBalancer", SERVICE, "its removal begins, and takes a while", ""),
            EventReason::normal("EnsuredLoadBalancer", SERVICE, "the Service has its address", ""),
            EventReason::normal("EnsuringLoadBalancer", SERVICE, "the load balancer is made", ""),
            EventReason::warning(
                "SyncLoadBalancerFailed",
                SERVICE,
                "what an API server answered, or what the load balancer in Harvester waits for",
                "what the message says; `explain service NAMESPACE/NAME` tells the rest",
            ),
            EventReason::normal(
                "WaitingForRemoval",
                SERVICE,
                "a former LoadBalancer object of the Service is not gone yet",
                "look at the finalizers of that object in Harvester if it stays",
            ),
        ],
    },
    EventReasons {
        component: "cloud-node-controller",
        reasons: &[
            EventReason::warning(
                "NodeAddressesKept",
                NODE,
                "the addresses of the Node do not follow its VM",
                "change the flag, `--node-ip` or annotation that the message names",
            ),
            EventReason::warning(
                "NodeWithoutAddress",
                NODE,
                "neither the Node nor its VM has an address, so the taint stays",
                "start the VM or its guest agent, or give it the network that the message names",
            ),
            EventReason::warning(
                "NodeWithoutInternalIP",
                NODE,
                "all addresses of the VM are outside of `--node-ip-cidr`",
                "correct the flag",
            ),
            EventReason::normal(
                "Synced",
                NODE,
                "the Node has provider ID, labels and addresses, and no taint of an uninitialised Node",
                "",
            ),
        ],
    },
    EventReasons {
        component: "cloud-node-lifecycle-controller",
        reasons: &[
            EventReason::normal(
                "DeletingNode",
                NODE,
                "the VM of the Node is gone for good, and how that is known",
                "",
            ),
            EventReason::warning(
                "DeletingNodeFailed",
                NODE,
                "the Node of such a VM could not be removed",
                "grant the right that the message names, or delete the Node",
            ),
        ],
    },
];
