//! What a load balancer says of itself, and the pool that it names, judged by what the cluster knows: with
//! `--enforce-named-pool-scope` alone. The Go program believes whatever users write (docs/contract/load-balancer.md#S-2,
//! #S-3, #WH-11).
//!
//! A write is judged by what it adds: an object that stands keeps what it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use harvester_api::{IPPool, LoadBalancerSpec, WorkloadType, annotations, labels, names};
use ipam::{Mode, Rejection, Requirement, admits};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::{Seen, qualified};
use crate::Policy;
use crate::review::{Fault, Faults, Write, cut, quoted};

/// The annotations by which a pool is chosen, apart from the namespace, which no user writes.
const CLAIMS: [&str; 3] = [annotations::LB_PROJECT, annotations::LB_NETWORK, annotations::LB_CLUSTER];

/// What the rules need to know.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Rancher's project of the Namespace, `c-xxxxx/p-xxxxx`; empty without one.
    pub(crate) project: String,
    /// Whether the lists of virtual machines are complete. Without them nothing is said about clusters and networks.
    pub(crate) are_vms_listed: bool,
    /// All pools, where the write names one.
    pub(crate) pools: Arc<[IPPool]>,
}

/// Whether the rules need [`Known`]: the object says something that it did not say before.
pub(crate) fn are_made(write: &Write, policy: &Policy) -> bool {
    let Some(object) = write.reviewed().filter(|_| policy.enforce_named_pool_scope) else { return false };
    CLAIMS.iter().any(|key| claim(write, object, key).is_some()) || names_pool(write)
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

/// What the object says under this key, if it is new.
fn claim<'a>(write: &Write, object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    let said = object.annotations().get(key).filter(|value| !value.is_empty())?;
    let stood = write.old().and_then(|old| old.annotations().get(key)) == Some(said);
    (!stood).then_some(said.as_str())
}

/// Adds what is not true, and the pool that does not admit the object.
pub(super) fn judge(
    write: &Write,
    object: &DynamicObject,
    spec: &LoadBalancerSpec,
    seen: &Seen,
    faults: &mut Faults,
) {
    let Some(known) = &seen.known else { return };
    let namespace = cut(&write.namespace);
    let mut refuse = |key: &str, said: &str, truth: String| {
        faults.add(|| Fault::forbidden(format!("annotation {key} is {}, but {truth}", quoted(said))));
    };
    if let Some(said) = claim(write, object, annotations::LB_PROJECT).filter(|said| *said != known.project) {
        let truth = match known.project.as_str() {
            "" => format!("namespace {namespace} is in no project: leave the annotation out"),
            project => {
                format!("namespace {namespace} is in project {}: leave the annotation out", quoted(project))
            }
        };
        refuse(annotations::LB_PROJECT, said, truth);
    }
    let network = claim(write, object, annotations::LB_NETWORK);
    if let Some(said) = network.filter(|said| known.are_vms_listed && !has_network(write, seen, said)) {
        let truth = format!(
            "no running VM of namespace {namespace} is on this network, nor is it one of the namespace: name a network \
             that its VMs have"
        );
        refuse(annotations::LB_NETWORK, said, truth);
    }
    // the cloud controller manager of a guest cluster says its name; a user says whatever he likes
    let is_vm = spec.workload() == WorkloadType::Vm;
    let cluster = claim(write, object, annotations::LB_CLUSTER).filter(|_| is_vm && known.are_vms_listed);
    if let Some(said) = cluster.filter(|said| !has_cluster(seen, said)) {
        let truth = format!(
            "no VM of namespace {namespace} belongs to that guest cluster: leave the annotation out, or label its VMs {}",
            labels::GUEST_CLUSTER
        );
        refuse(annotations::LB_CLUSTER, said, truth);
    }
    for pool in named(write, spec).into_iter().flat_map(|name| pool(known, name)) {
        let requirement = requirement(write, object, known);
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
fn pool<'a>(known: &'a Known, name: &str) -> Option<&'a IPPool> {
    known.pools.iter().find(|pool| pool.name_any() == name)
}

fn requirement(write: &Write, object: &DynamicObject, known: &Known) -> Requirement {
    // `*` is a word of pools' scopes
    let said =
        |key: &str| object.annotations().get(key).filter(|said| *said != "*").cloned().unwrap_or_default();
    Requirement {
        network: said(annotations::LB_NETWORK),
        project: known.project.clone(),
        namespace: write.namespace.clone(),
        cluster: said(annotations::LB_CLUSTER),
        family: None,
    }
}

fn has_network(write: &Write, seen: &Seen, network: &str) -> bool {
    let network = qualified(network, &write.namespace);
    let is_own = network.split_once('/').is_some_and(|(namespace, _)| namespace == write.namespace);
    is_own
        || seen.vmis.iter().any(|vmi| {
            let namespace = vmi.namespace().unwrap_or_default();
            let mut attached = vmi.spec.networks.iter().filter_map(|network| network.multus.as_ref());
            attached.any(|multus| qualified(&multus.network_name, &namespace) == network)
        })
}

fn has_cluster(seen: &Seen, cluster: &str) -> bool {
    let label = labels::legal(cluster);
    let is_node = |labels: &BTreeMap<String, String>, name: &str| {
        labels.get(labels::GUEST_CLUSTER) == Some(&label)
            || labels.get(labels::CREATOR).is_some_and(|creator| creator == labels::NODE_DRIVER)
                && name.starts_with(cluster)
    };
    cluster == names::DEFAULT_CLUSTER_NAME
        || seen.vms.iter().any(|vm| is_node(vm.labels(), &vm.name_any()))
        || seen.vmis.iter().any(|vmi| is_node(vmi.labels(), &vmi.name_any()))
}

#[cfg(test)]
mod tests;
