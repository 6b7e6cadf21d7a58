//! The rights of the webhook, and what is off without each: all that `deploy/rbac/ours.yaml` grants it and that it asks for.

use program::capabilities::{Need, Needs, Right};

use crate::registration::NAME;
use crate::secret::{CA_SECRET, TLS_SECRET};

/// The role of the charts and of `deploy/rbac`.
const ROLE: &str = "ClusterRole harvester-load-balancer-webhook, or the Role beside it,";

/// Of LoadBalancers.
const DEFINITION: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const KUBEVIRT: &str = "kubevirt.io";
const REGISTERED: &str = "admissionregistration.k8s.io";
const UNREGISTERED: &str = "no object is judged where the webhook is not registered yet";
const OUTDATED: &str = "the API server goes by an outdated certificate and calls in vain";
const UNCONVERTED: &str = "objects of v1alpha1 are not converted by the present certificate";

const EVERYWHERE: [(&str, &str, &str, &str); 13] = [
    ("get", "", "namespaces", "objects in a namespace that was just made are refused"),
    ("list", "", "namespaces", "each review reads its namespace afresh"),
    ("watch", "", "namespaces", "a project that a namespace joins is not noticed"),
    (
        "get",
        "k8s.cni.cncf.io",
        "network-attachment-definitions",
        "a pool that names a network gets no label of its VLAN",
    ),
    ("list", "loadbalancer.harvesterhci.io", "ippools", "no pool is made or changed"),
    ("list", KUBEVIRT, "virtualmachines", "the removal of a guest cluster is not noticed"),
    ("watch", KUBEVIRT, "virtualmachines", "new and removed VMs are not noticed"),
    (
        "list",
        KUBEVIRT,
        "virtualmachineinstances",
        "load balancers of guest clusters get no network annotation",
    ),
    ("watch", KUBEVIRT, "virtualmachineinstances", "new and changed running VMs are not noticed"),
    // no rule can name what is to be created
    ("create", REGISTERED, "validatingwebhookconfigurations", UNREGISTERED),
    (
        "create",
        REGISTERED,
        "mutatingwebhookconfigurations",
        "no object is completed where the webhook is not registered yet",
    ),
    ("list", REGISTERED, "validatingwebhookconfigurations", UNREGISTERED),
    ("list", REGISTERED, "mutatingwebhookconfigurations", UNREGISTERED),
];

/// In the namespace of the webhook, where the Secrets are.
pub(crate) fn needs(namespace: &str) -> Needs {
    let mut all: Vec<_> = EVERYWHERE
        .into_iter()
        .map(|(verb, group, resource, off)| {
            let right = Right::new(verb, group, resource);
            let is_of_one = group == REGISTERED && verb != "create";
            Need::new(if is_of_one { right.named(NAME) } else { right }, off)
        })
        .collect();
    for resource in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        all.push(Need::new(Right::new("watch", REGISTERED, resource).named(NAME), OUTDATED));
        all.push(Need::new(Right::new("update", REGISTERED, resource).named(NAME), OUTDATED));
    }
    for verb in ["list", "watch", "update"] {
        let right = Right::new(verb, "apiextensions.k8s.io", "customresourcedefinitions");
        all.push(Need::new(right.named(DEFINITION), UNCONVERTED));
    }
    for name in [CA_SECRET, TLS_SECRET] {
        let of = |verb, off| Need::new(Right::new(verb, "", "secrets").within(namespace).named(name), off);
        all.push(of("get", "a certificate that another replica makes is seen late"));
        all.push(of("list", "the webhook has no certificate and answers nothing"));
        all.push(of("watch", "a certificate that another replica makes is seen late"));
        all.push(of("update", "no certificate is made or renewed"));
    }
    Needs { cluster: "harvester", role: ROLE.to_owned(), all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_say_what_is_off_without_each_right() {
        let mut needs = needs("harvester-system").all;
        // both Secrets alike
        needs.retain(|need| need.right.name.as_deref() != Some(TLS_SECRET));
        let row = |need: &Need| (need.right.verb, need.right.kind(), need.off);
        test_cluster::grants::assert_documented(needs.iter().map(row));
    }
}
