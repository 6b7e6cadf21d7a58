//! The elections of this program, each for a Lease in namespace `kube-system` of the guest. Who loses one ends the work
//! that it is for, and nothing else: the process stands again.

use std::time::Duration;

use controller_kit::election::{Election, Identity};
use harvester_api::names::KUBE_SYSTEM;
use kube::Client;
use program::{
    capabilities::{self, REFUSED_PERIOD, Right},
    health::Health,
};
use tokio::time::sleep;

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

/// Waits until the role grants what it takes to lead by this Lease; those of others are not asked about. The client tells
/// what is missing ([`crate::host::missing`]).
pub(crate) async fn granted(guest: &Client, name: &'static str) {
    let right = |verb| Right::new(verb, "coordination.k8s.io", "leases");
    let rights = [right("get").named(name), right("create"), right("update").named(name)];
    while !capabilities::denied(guest, NAMESPACE, &rights).await.is_empty() {
        sleep(REFUSED_PERIOD).await;
    }
}
