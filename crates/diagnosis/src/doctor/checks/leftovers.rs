//! LoadBalancers of this guest cluster whose Service is gone.
//!
//! Administrators delete what is named here, so nobody but Harvester says whose an object is: a VirtualMachine carries a
//! cluster's name, and a Node carries the UID of its VirtualMachine. What Pods of the guest cluster say of themselves does
//! not count.

use std::collections::BTreeSet;

use harvester_api::{annotations, labels, names};
use serde_json::Value;

use super::{
    super::{Outcome, facts::Facts, read},
    annotation, config,
    guest::{machine_uid, shown},
    items, key, some, text,
};

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key].as_str().unwrap_or_default()
}

fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The name that many clusters have, or none.
fn is_unnamed(cluster: &str) -> bool {
    matches!(cluster, "" | names::DEFAULT_CLUSTER_NAME)
}

/// What proves whose a LoadBalancer is.
struct Proof<'a> {
    /// UID of Service `default/kubernetes`.
    cluster: Option<&'a str>,
    /// Names of clusters on machines that are Nodes of this cluster, and on others; an empty one where a machine says none.
    own: BTreeSet<&'a str>,
    others: BTreeSet<&'a str>,
}

impl<'a> Proof<'a> {
    fn of(services: &'a [Value], nodes: &'a [Value], machines: &'a [Value]) -> Self {
        let kubernetes = services.iter().find(|service| key(service) == "default/kubernetes").map(uid);
        let nodes: BTreeSet<_> = nodes.iter().map(machine_uid).filter(|uid| !uid.is_empty()).collect();
        let names = |are_own: bool| {
            let those = machines.iter().filter(|machine| nodes.contains(uid(machine)) == are_own);
            those.map(|machine| label(machine, labels::GUEST_CLUSTER)).collect()
        };
        Self { cluster: kubernetes.filter(|uid| !uid.is_empty()), own: names(true), others: names(false) }
    }

    /// By the UID of the cluster, else by its name.
    fn names_this_cluster(&self, object: &Value) -> bool {
        let name = label(object, labels::CLUSTER);
        match annotation(object, annotations::CLUSTER_UID) {
            "" => !is_unnamed(name) && self.own.contains(name),
            its => self.cluster == Some(its),
        }
    }

    /// A cluster that was restored beside its original has the same UID, and two clusters may have one name: both are seen
    /// by machines that are no Nodes of this one, and may be of the object's cluster.
    fn may_be_of_another(&self, object: &Value) -> bool {
        let name = label(object, labels::CLUSTER);
        self.others.iter().any(|other| other.is_empty() || is_unnamed(name) || *other == name)
    }
}

pub(super) fn leftovers(facts: &Facts) -> Result<Outcome, Outcome> {
    let namespace = &config(facts)?.namespace;
    let services = items(&facts.guest, read::SERVICES)?;
    let nodes = items(&facts.guest, read::NODES)?;
    let proof = Proof::of(services, nodes, items(&facts.harvester, &read::machines(namespace))?);
    let keys: BTreeSet<_> = services.iter().map(key).collect();
    let uids: BTreeSet<_> = services.iter().map(uid).collect();
    let addresses: BTreeSet<_> = services.iter().flat_map(shown).collect();
    let is_used = |object: &Value| {
        let named = [labels::SERVICE_NAMESPACE, labels::SERVICE_NAME].map(|key| label(object, key));
        let of = annotation(object, annotations::SERVICE_UID);
        keys.contains(&named.join("/"))
            || !of.is_empty() && uids.contains(of)
            || text(object, "/status/address").parse().is_ok_and(|address| addresses.contains(&address))
    };
    let (doubtful, left): (Vec<_>, Vec<_>) = items(&facts.harvester, &read::balancers(namespace))?
        .iter()
        .filter(|object| text(object, "/metadata/deletionTimestamp").is_empty())
        .filter(|object| proof.names_this_cluster(object) && !is_used(object))
        .partition(|object| proof.may_be_of_another(object));
    let named = |objects: Vec<_>| some(&objects.into_iter().map(key).collect::<Vec<_>>());
    Ok(if !left.is_empty() {
        Outcome::red(
            format!("their Services are gone: {}", named(left)),
            "`harvester-cloud-provider orphans --delete` shows what proves whose each is, and asks: they hold addresses that \
             nobody uses",
        )
    } else if !doubtful.is_empty() {
        Outcome::not_asked(format!(
            "VirtualMachines that are no Nodes of this cluster carry its name, or none, so these may be another one's: {}",
            named(doubtful)
        ))
    } else {
        Outcome::green("none")
    })
}
