//! The elections of this program, each for a Lease in namespace `kube-system` of the guest. Who loses one ends the work
//! that it is for, and nothing else: the process stands again.

use std::time::Duration;

use controller_kit::election::{Election, Identity};
use harvester_api::names::KUBE_SYSTEM;
use program::health::Health;

/// The namespace of all our Leases.
pub const NAMESPACE: &str = KUBE_SYSTEM;
/// The Lease of whoever watches Nodes and labels volumes. The Go program has it too, so that the two never act together.
pub const NODE_MONITOR: &str = "harvester-csi-node-monitor";
/// The Lease of whoever reconciles.
pub const HEALING: &str = "harvester-csi-attach";

/// The Go program's periods for its Lease.
const NODE_MONITOR_LASTS: Duration = Duration::from_secs(45);
const NODE_MONITOR_RENEWED_WITHIN: Duration = Duration::from_secs(30);
/// A volume waits no longer than that for a successor.
const HEALING_LASTS: Duration = Duration::from_secs(15);
const HEALING_RENEWED_WITHIN: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);

pub(crate) fn of_node_monitor(identity: &str) -> Election {
    election(NODE_MONITOR, identity, NODE_MONITOR_LASTS, NODE_MONITOR_RENEWED_WITHIN)
}

pub(crate) fn of_healing(identity: &str) -> Election {
    election(HEALING, identity, HEALING_LASTS, HEALING_RENEWED_WITHIN)
}

fn election(name: &str, identity: &str, lease: Duration, renew_deadline: Duration) -> Election {
    Election {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        identity: Identity::from(identity.to_owned()),
        lease,
        renew_deadline,
        retry_period: RETRY_PERIOD,
        // a Lease of others, one that is lost, and a guest cluster that is away say nothing against this process
        health: Health::default(),
    }
}
