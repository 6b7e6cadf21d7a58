//! What a load balancer says of itself, and the pool that it names, judged by what the cluster knows: with
//! `--enforce-named-pool-scope` alone. The Go program believes whatever users write (docs/contract/load-balancer.md#S-2,
//! #S-3, #WH-11).
//!
//! A write is judged by what it adds: an object that stands keeps what it says. Who names a pool is judged by all that the
//! object says, for by that the pool is chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use harvester_api::{
    IPPool, LoadBalancerSpec, VirtualMachine, VirtualMachineInstance, WorkloadType, annotations, labels,
    names,
};
use ipam::{Mode, Rejection, Requirement, admits};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::{Seen, qualified};
use crate::Policy;
use crate::review::{Fault, Faults, Write, cut, quoted};
use crate::steps::step;

/// The annotations by which a pool is chosen, apart from the namespace, which no user writes.
const CLAIMS: [&str; 3] = [annotations::LB_PROJECT, annotations::LB_NETWORK, annotations::LB_CLUSTER];

/// Longest value of a label, by which a VM says its guest cluster.
const LONGEST_LABEL: usize = 63;

/// What the rules need to know.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Rancher's project of the Namespace, `c-xxxxx/p-xxxxx`; empty without one.
    pub(crate) project: String,
    /// Whether other namespaces have VMs of the guest cluster that the object names, and this one has none.
    pub(crate) is_cluster_of_others: bool,
    /// All pools, where the write names one, or a guest cluster of others.
    pub(crate) pools: Arc<[IPPool]>,
}

/// Whether the rules need [`Facts`]: the object says something that it did not say before.
pub(crate) fn needs_facts(write: &Write, policy: &Policy) -> bool {
    let Some(object) = write.reviewed().filter(|_| policy.enforce_named_pool_scope) else { return false };
    CLAIMS.iter().any(|key| claim(write, object, key).is_some()) || names_pool(write)
}

/// Whether virtual machines say if what the object says is true: without their lists nobody knows.
pub(crate) fn needs_vms(write: &Write) -> bool {
    let Some(object) = write.reviewed() else { return false };
    claim(write, object, annotations::LB_NETWORK).is_some_and(|said| !is_own_network(write, said))
        || claim(write, object, annotations::LB_CLUSTER)
            .is_some_and(|said| said != names::DEFAULT_CLUSTER_NAME)
}

/// Whether the object names a pool that it did not name before.
pub(crate) fn names_pool(write: &Write) -> bool {
    let Some(object) = write.reviewed() else { return false };
    let old = write.old_data();
    ["ipPool", "ipv6Pool"].iter().any(|field| {
        let now = &object.data["spec"][*field];
        now.as_str().is_some_and(|name| !name.is_empty()) && *now != old["spec"][*field]
    })
}

/// The project of a Namespace with these annotations.
pub(crate) fn project(namespace: &BTreeMap<String, String>) -> String {
    namespace.get(annotations::PROJECT_ID).map(|id| id.replacen(':', "/", 1)).unwrap_or_default()
}

/// Whether other namespaces have VMs of the guest cluster that the object names, and this one has none. Lists the VMs of all
/// namespaces only for a cluster that has none in `seen`.
pub(crate) fn is_cluster_of_others(
    write: &Write,
    seen: &Seen,
    all: impl FnOnce() -> (Vec<Arc<VirtualMachine>>, Vec<Arc<VirtualMachineInstance>>),
) -> bool {
    let said = write.reviewed().and_then(|object| claim(write, object, annotations::LB_CLUSTER));
    let Some(cluster) = said.filter(|said| !has_cluster(seen, said)) else { return false };
    let (vms, vmis) = all();
    let namespaces = namespaces_of(cluster, &vms, &vmis);
    !namespaces.is_empty() && !namespaces.contains(write.namespace.as_str())
}

/// What the object says under this key, if the write is judged by it.
fn claim<'a>(write: &Write, object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    let said = object.annotations().get(key).filter(|value| !value.is_empty())?;
    let stood = write.old().and_then(|old| old.annotations().get(key)) == Some(said);
    (!stood || names_pool(write)).then_some(said.as_str())
}

/// Adds what is not true, and the pool that does not admit the object.
pub(super) fn judge(
    write: &Write,
    object: &DynamicObject,
    spec: &LoadBalancerSpec,
    seen: &Seen,
    faults: &mut Faults,
) {
    let Some(facts) = &seen.facts else { return };
    let namespace = cut(&write.namespace);
    let mut refuse = |key: &str, said: &str, truth: String| {
        faults.add(|| Fault::forbidden(format!("annotation {key} is {}, but {truth}", quoted(said))));
    };
    if let Some(said) = claim(write, object, annotations::LB_PROJECT).filter(|said| *said != facts.project) {
        let truth = match facts.project.as_str() {
            "" => format!("namespace {namespace} is in no project: leave the annotation out"),
            project => {
                format!("namespace {namespace} is in project {}: leave the annotation out", quoted(project))
            }
        };
        refuse(annotations::LB_PROJECT, said, truth);
    }
    let network = claim(write, object, annotations::LB_NETWORK);
    if let Some(said) = network.filter(|said| !has_network(write, seen, said)) {
        let truth = format!(
            "no running VM of namespace {namespace} is on this network, nor is it one of the namespace: name a network \
             that its VMs have"
        );
        refuse(annotations::LB_NETWORK, said, truth);
    }
    // the cloud controller manager of a guest cluster has its VMs where its objects are, and may not label them; of the
    // VMs of a cluster that was made by hand nobody says whose they are
    let is_vm = spec.workload() == WorkloadType::Vm;
    let cluster = claim(write, object, annotations::LB_CLUSTER);
    let is_untrue = |said: &&str| {
        if is_vm {
            !has_cluster(seen, said)
        } else {
            facts.is_cluster_of_others && a_pool_is_for(facts, said)
        }
    };
    if let Some(said) = cluster.filter(is_untrue) {
        let truth = format!(
            "no VM of namespace {namespace} belongs to that guest cluster{}: {}, or label its VMs {}",
            if is_vm { "" } else { ", VMs of another namespace do, and an IPPool is for that cluster" },
            if is_vm { "leave the annotation out" } else { "give the cluster another --cluster-name" },
            labels::GUEST_CLUSTER
        );
        refuse(annotations::LB_CLUSTER, said, truth);
    }
    for pool in named(write, spec).into_iter().flat_map(|name| pool(facts, name)) {
        let requirement = requirement(write, object, facts);
        let mode = if is_vm { Mode::Strict } else { Mode::StrictThenLoose };
        let why = match admits(&ip_pools::bare(pool).selector, &requirement, mode) {
            Ok(()) => continue,
            // its name may be another tenant's
            Err(Rejection::Network(_)) => "it is for another network".to_owned(),
            Err(why) => why.to_string(),
        };
        faults.add(|| {
            Fault::forbidden(format!(
                "pool {} does not serve this load balancer, which has {requirement}: {why}; name another pool, or none, \
                 or have the selector of the pool changed",
                cut(&pool.name_any())
            ))
        });
    }
}

/// The pools that the object names and did not name before.
fn named<'a>(write: &Write, spec: &'a LoadBalancerSpec) -> Vec<&'a str> {
    let old = &write.old_data()["spec"];
    let fields = [("ipPool", spec.ip_pool.as_str()), ("ipv6Pool", spec.ipv6_pool.as_str())];
    let is_new = |(field, name): &(&str, &str)| !name.is_empty() && old[*field] != **name;
    let mut named: Vec<_> = fields.into_iter().filter(is_new).map(|(_, name)| name).collect();
    named.dedup();
    named
}

/// One that is not there may come: the controller looks then.
fn pool<'a>(facts: &'a Facts, name: &str) -> Option<&'a IPPool> {
    facts.pools.iter().find(|pool| pool.name_any() == name)
}

fn requirement(write: &Write, object: &DynamicObject, facts: &Facts) -> Requirement {
    // `*` is a word of pools' scopes
    let said =
        |key: &str| object.annotations().get(key).filter(|said| *said != "*").cloned().unwrap_or_default();
    Requirement {
        network: said(annotations::LB_NETWORK),
        project: facts.project.clone(),
        namespace: write.namespace.clone(),
        cluster: said(annotations::LB_CLUSTER),
        family: None,
    }
}

/// Whether the network is one of the object's namespace.
fn is_own_network(write: &Write, network: &str) -> bool {
    let network = qualified(network, &write.namespace);
    network.split_once('/').is_some_and(|(namespace, _)| namespace == write.namespace)
}

fn has_network(write: &Write, seen: &Seen, network: &str) -> bool {
    let qualified_name = qualified(network, &write.namespace);
    is_own_network(write, network)
        || seen.vmis.iter().any(|vmi| {
            let namespace = vmi.namespace().unwrap_or_default();
            let mut attached = vmi.spec.networks.iter().filter_map(|network| network.multus.as_ref());
            attached.any(|multus| qualified(&multus.network_name, &namespace) == qualified_name)
        })
}

fn has_cluster(seen: &Seen, cluster: &str) -> bool {
    cluster == names::DEFAULT_CLUSTER_NAME || !namespaces_of(cluster, &seen.vms, &seen.vmis).is_empty()
}

/// Whether an IPPool serves this project for the name of the guest cluster alone. Elsewhere the name gives nothing, and a tenant
/// who labels a VM with the name that others use must not keep them from every pool. A scope with a namespace serves that
/// namespace, whoever names the cluster in it, and a quota of the cluster is counted in each namespace apart.
fn a_pool_is_for(facts: &Facts, cluster: &str) -> bool {
    let projects = ["*", "", facts.project.as_str()];
    facts.pools.iter().flat_map(|pool| &pool.spec.selector.scope).any(|scope| {
        scope.guest_cluster == cluster && scope.namespace == "*" && projects.contains(&scope.project.as_str())
    })
}

/// The namespaces that have VMs of a guest cluster. The label of a VM says which it belongs to; one without is known by its
/// name, where the node driver made it, unless that begins with the longer name of another cluster of the namespace.
fn namespaces_of<'a>(
    cluster: &str,
    vms: &'a [Arc<VirtualMachine>],
    vmis: &'a [Arc<VirtualMachineInstance>],
) -> BTreeSet<&'a str> {
    let machines = vms.iter().map(|vm| &vm.metadata).chain(vmis.iter().map(|vmi| &vmi.metadata));
    let machines: Vec<_> = machines
        .map(|metadata| {
            let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
            (text(&metadata.namespace), text(&metadata.name), metadata.labels.as_ref())
        })
        .collect();
    let label =
        |labels: Option<&'a BTreeMap<String, String>>, key: &str| labels?.get(key).map(String::as_str);
    let labelled =
        |labels| label(labels, labels::GUEST_CLUSTER).filter(|name| *name != names::DEFAULT_CLUSTER_NAME);
    let begins =
        |name: &str, cluster: &str| name.strip_prefix(cluster).is_some_and(|rest| rest.starts_with('-'));
    // where the name of a VM begins with the cluster's and with a longer one, the longer one begins with the cluster's, too
    let longer: BTreeSet<_> = machines
        .iter()
        .filter_map(|(namespace, _, labels)| Some((*namespace, labelled(*labels)?)))
        .filter(|(_, other)| begins(other, cluster))
        .collect();
    let is_of_longer = |namespace: &'a str, name: &'a str| {
        let ends = name.match_indices('-').map(|(at, _)| at).take_while(|at| *at <= LONGEST_LABEL);
        ends.filter(|at| *at > cluster.len()).any(|at| {
            step();
            longer.contains(&(namespace, &name[..at]))
        })
    };
    let legal = labels::legal(cluster);
    let belongs =
        |&&(namespace, name, labels): &&(&'a str, &'a str, Option<&'a BTreeMap<String, String>>)| {
            step();
            if let Some(label) = labelled(labels) {
                return label == legal;
            }
            label(labels, labels::CREATOR) == Some(labels::NODE_DRIVER)
                && begins(name, cluster)
                && !is_of_longer(namespace, name)
        };
    machines.iter().filter(belongs).map(|(namespace, ..)| *namespace).collect()
}

#[cfg(test)]
mod tests;
