//! The rights of the cloud controller manager in Harvester, in the namespace of the guest cluster's machines, and what is off
//! without each. People's tools ask about these.

use program::capabilities::Right;

/// The ClusterRole of Harvester that grants them.
pub const ROLE: &str = "harvesterhci.io:cloudprovider";

/// A right, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub verb: &'static str,
    pub group: &'static str,
    /// Plural, and a subresource behind a slash.
    pub resource: &'static str,
    /// What is so while it is refused.
    pub off: &'static str,
    /// Without it Services have no addresses, or Nodes no machines.
    pub is_vital: bool,
}

impl Grant {
    /// The right in the namespace of the machines.
    pub fn right(&self, namespace: &str) -> Right {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        Right::new(self.verb, self.group, resource).on(subresource).within(namespace)
    }
}

/// Group of LoadBalancers.
pub const LOAD_BALANCERS: &str = "loadbalancer.harvesterhci.io";
const KUBEVIRT: &str = "kubevirt.io";
const BALANCERS: &str = "loadbalancers";
const MACHINES: &str = "virtualmachines";
const INSTANCES: &str = "virtualmachineinstances";

const fn vital(verb: &'static str, group: &'static str, resource: &'static str, off: &'static str) -> Grant {
    Grant { verb, group, resource, off, is_vital: true }
}

const fn of_use(verb: &'static str, group: &'static str, resource: &'static str, off: &'static str) -> Grant {
    Grant { verb, group, resource, off, is_vital: false }
}

/// Every right that is asked for.
pub static GRANTS: [Grant; 13] = [
    of_use(
        "get",
        LOAD_BALANCERS,
        BALANCERS,
        "the load balancer of a Service that is deleted just after it was made stays",
    ),
    vital("list", LOAD_BALANCERS, BALANCERS, "no Service gets an address"),
    of_use("watch", LOAD_BALANCERS, BALANCERS, "addresses come late"),
    vital("create", LOAD_BALANCERS, BALANCERS, "no Service gets an address"),
    of_use("update", LOAD_BALANCERS, BALANCERS, "changed Services keep what they had"),
    of_use("delete", LOAD_BALANCERS, BALANCERS, "addresses of deleted Services stay taken"),
    of_use("get", KUBEVIRT, MACHINES, "Nodes are not initialised while machines cannot be listed"),
    vital("list", KUBEVIRT, MACHINES, "machines are read one by one, and Nodes of deleted ones stay"),
    of_use("watch", KUBEVIRT, MACHINES, "deleted and stopped machines are noticed late"),
    of_use("get", KUBEVIRT, INSTANCES, "Nodes have no addresses while instances cannot be listed"),
    vital("list", KUBEVIRT, INSTANCES, "Nodes have no addresses"),
    of_use("watch", KUBEVIRT, INSTANCES, "changed addresses and zones are noticed late"),
    of_use(
        "get",
        "subresources.kubevirt.io",
        "virtualmachineinstances/guestosinfo",
        "a Node is found only if its name is its machine's",
    ),
];
