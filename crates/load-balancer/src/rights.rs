//! The rights of the load balancer, and what is off without each: all that `deploy/rbac/ours.yaml` grants it and that it asks
//! for.

use controller_kit::{CREATE_EVENTS, PATCH_EVENTS};
use harvester_api::names::{KUBE_SYSTEM, KUBEVIP_CONFIG_MAP, LOAD_BALANCER_LEASE};
use program::capabilities::{Need, Needs, Right};

use crate::{controller::DELETE_SERVICES, host_datapath::host_addresses::LIST_NODES};

/// The role of the charts and of `deploy/rbac`.
const ROLE: &str = "ClusterRole harvester-load-balancer, or the Role beside it,";

/// Of what is missing, after the prefix of all metrics.
pub(crate) const METRIC: &str = "rights_missing";

/// For the import, of all namespaces: the ConfigMaps `kubevip`.
pub(crate) const LIST_CONFIG_MAPS: Right = Right::new("list", "", "configmaps");

const OURS: &str = "loadbalancer.harvesterhci.io";
const SLICES: &str = "discovery.k8s.io";
const KUBEVIRT: &str = "kubevirt.io";
const CRDS: &str = "apiextensions.k8s.io";
const LEASES: &str = "coordination.k8s.io";

/// In every namespace.
const EVERYWHERE: [(&str, &str, &str, &str); 29] = [
    ("get", OURS, "loadbalancers", "conflicts about objects last, and records of objects that are gone stay"),
    ("list", OURS, "loadbalancers", "no object is looked after"),
    ("watch", OURS, "loadbalancers", "new and changed objects are not noticed"),
    ("update", OURS, "loadbalancers", "no object gets an address or a condition, and deleted ones stay"),
    ("delete", OURS, "loadbalancers", "objects of guest clusters that are removed stay"),
    (
        "get",
        OURS,
        "ippools",
        "records of objects that are gone stay, conflicts about pools last, and an object with a record that it does \
         not show waits, also before it ends",
    ),
    ("list", OURS, "ippools", "no object is looked after"),
    ("watch", OURS, "ippools", "new and changed pools are not noticed"),
    ("create", OURS, "ippools", "the pools of ConfigMap kubevip are not imported"),
    ("update", OURS, "ippools", "no pool gives an address or takes one back, and deleted objects stay"),
    ("get", "", "services", "no new object gets an address, and deleted ones stay"),
    ("list", "", "services", "no object is looked after"),
    ("watch", "", "services", "changes of Services by others are not noticed"),
    ("create", "", "services", "no new object has its address announced"),
    ("update", "", "services", "Services keep the ports and the address that they have"),
    ("get", SLICES, "endpointslices", "no new object gets an address"),
    ("list", SLICES, "endpointslices", "no object is looked after"),
    ("watch", SLICES, "endpointslices", "changes of slices by others are not noticed"),
    ("create", SLICES, "endpointslices", "no new object has backends or its address announced"),
    ("update", SLICES, "endpointslices", "backends and ports stay as they are"),
    (
        "get",
        KUBEVIRT,
        "virtualmachines",
        "finalizers of the Go program stay on VMs, and an object with a record of another program waits, also before it \
         ends",
    ),
    (
        "list",
        KUBEVIRT,
        "virtualmachines",
        "the end of a guest cluster, finalizers of the Go program and VMs that come under the name of an object are not \
         noticed",
    ),
    ("watch", KUBEVIRT, "virtualmachines", "new and changed VMs are not noticed"),
    ("update", KUBEVIRT, "virtualmachines", "finalizers of the Go program stay on VMs, which do not end"),
    ("get", KUBEVIRT, "virtualmachineinstances", "finalizers of the Go program stay on running VMs"),
    (
        "list",
        KUBEVIRT,
        "virtualmachineinstances",
        "objects of type vm keep the backends and ports that they have",
    ),
    ("watch", KUBEVIRT, "virtualmachineinstances", "new and changed backends are not noticed"),
    (
        "update",
        KUBEVIRT,
        "virtualmachineinstances",
        "finalizers of the Go program stay on running VMs, which do not end",
    ),
    ("watch", "", "configmaps", "a ConfigMap kubevip that comes or is edited is not noticed"),
];

/// Of the schema, whose optional fields are used.
const SCHEMA: [(&str, &str); 3] = [
    ("get", "optional fields of LoadBalancers, the state of backends among them, are not written"),
    ("list", "changed schemas are noticed within 30 s"),
    ("watch", "changed schemas are noticed within 30 s"),
];

/// Of the one Lease.
const LEASE: [(&str, &str); 4] = [
    ("get", "nobody leads, and nothing is done"),
    ("watch", "another leader begins some seconds late"),
    ("update", "nobody leads for long"),
    ("create", "nobody leads where there is no Lease yet"),
];

/// `is_elected`: the Lease is used.
pub(crate) fn needs(is_elected: bool) -> Needs {
    let mut all: Vec<_> = EVERYWHERE
        .into_iter()
        .map(|(verb, group, resource, off)| Need::new(Right::new(verb, group, resource), off))
        .collect();
    all.push(Need::new(
        DELETE_SERVICES,
        "Kubernetes' garbage collector ends the Services of deleted objects, and Services without object stay",
    ));
    all.push(Need::new(LIST_CONFIG_MAPS, "the pools of ConfigMap kubevip are not imported"));
    let marked = Right::new("update", "", "configmaps").within(KUBE_SYSTEM).named(KUBEVIP_CONFIG_MAP);
    all.push(Need::new(marked, "ConfigMap kubevip is imported again and again"));
    all.extend(SCHEMA.map(|(verb, off)| Need::new(Right::new(verb, CRDS, "customresourcedefinitions"), off)));
    all.push(Need::new(LIST_NODES, "of Harvester's hosts only the API servers' addresses are known"));
    all.push(Need::new(Right::new("watch", "", "nodes"), "new hosts are not noticed"));
    all.push(Need::new(CREATE_EVENTS, "what Events would say is in the log alone"));
    all.push(Need::new(PATCH_EVENTS, "Events that come again are not counted"));
    if is_elected {
        all.extend(LEASE.map(|(verb, off)| {
            let right = Right::new(verb, LEASES, "leases").within(KUBE_SYSTEM);
            // no rule can name what is to be created
            Need::new(if verb == "create" { right } else { right.named(LOAD_BALANCER_LEASE) }, off)
        }));
    }
    Needs { cluster: "harvester", role: ROLE.to_owned(), all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_say_what_is_off_without_each_right() {
        let needs = needs(true).all;
        let row = |need: &Need| (need.right.verb, need.right.kind(), need.off);
        test_cluster::grants::assert_documented(needs.iter().map(row));
    }
}
