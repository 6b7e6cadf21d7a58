//! Rules and labels for IPPools. The rules about ranges and scopes are the crate `ipam`'s.
//!
//! A rule looks at what a write adds or changes. The controller writes a pool with every address that it gives and
//! takes back, so a record or a range that was wrong before must not refuse the writes that have no part in it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use harvester_api::{IPPool, IPPoolSpec, IPPoolStatus, PoolRange, annotations, labels};
use ipam::{Coverage, PoolFault, Range, RangeFault, RangeSpec};
use json_patch::PatchOperation;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::patch::{set, set_entries, set_status};
use crate::review::{Change, Fault, Faults, Write, cut, quoted};
use crate::{Policy, dns, owners, status};

/// The surroundings of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// All pools. The one that is written may be among them.
    pub(crate) pools: Arc<[IPPool]>,
    /// The NetworkAttachmentDefinition that the pool's selector names; nothing when it is not there.
    pub(crate) network: Option<DynamicObject>,
}

/// The beginning of a refusal's message.
pub(crate) fn prefix(write: &Write) -> String {
    let verb = match write.change {
        Change::Create(_) => "create",
        Change::Update { .. } => "update",
        Change::Delete(_) => "delete",
    };
    format!("can't {verb} IP pool {} because ", cut(&write.name))
}

/// Whether the rules need [`Seen::pools`]: they run only where the spec changes.
pub(crate) fn needs_pools(write: &Write) -> bool {
    write.reviewed().is_some_and(|pool| pool.data["spec"] != write.old_data()["spec"])
}

fn network(pool: &Value) -> &str {
    pool["spec"]["selector"]["network"].as_str().unwrap_or_default()
}

/// Whether the pool had the same network before. Then nothing about the network stands in the way: a pool is written
/// with every address that it gives and takes back, and must stay writable after a user deletes a definition.
fn keeps_network(write: &Write, pool: &DynamicObject) -> bool {
    write.old().is_some_and(|old| network(&old.data) == network(&pool.data))
}

/// Namespace and name of the NetworkAttachmentDefinition that the label needs. Nothing without network, and nothing
/// while the network stays as it was and the label is there.
///
/// # Errors
/// The selector's network is new, and not `namespace/name`.
pub(crate) fn needs_network(write: &Write) -> Result<Option<(&str, &str)>, Fault> {
    let Some(pool) = write.reviewed() else { return Ok(None) };
    let (network, keeps) = (network(&pool.data), keeps_network(write, pool));
    if (keeps && pool.labels().contains_key(labels::VID)) || network.is_empty() {
        return Ok(None);
    }
    match network.split_once('/') {
        // whatever else stands here would be read as a part of the path, and lead to other objects
        Some((namespace, name)) if dns::is_label(namespace) && dns::is_subdomain(name) => {
            Ok(Some((namespace, name)))
        }
        _ if keeps => Ok(None),
        _ => Err(Fault::invalid(format!(
            "selector.network {} is not namespace/name of a NetworkAttachmentDefinition",
            quoted(network)
        ))),
    }
}

/// Every rule that the write breaks.
pub(crate) fn validate(write: &Write, seen: &Seen, policy: &Policy) -> Faults {
    let mut faults = Faults::default();
    if matches!(write.change, Change::Delete(_)) {
        let allocated = write.old_data()["status"]["allocated"].as_object().map_or(0, serde_json::Map::len);
        if allocated > 0 {
            let fault = format!(
                "can't delete pool before releasing all the allocated IP: {allocated} of them are held"
            );
            faults.add(|| Fault::forbidden(fault));
        }
        return faults;
    }
    let Some(object) = write.reviewed() else {
        if let Some(object) = write.stored() {
            admitted_records(write, object, policy, &mut faults);
        }
        return faults;
    };
    let pool = match read(object) {
        Ok(pool) => pool,
        Err(error) => return Fault::invalid(format!("it cannot be read: {error}")).into(),
    };
    // a pool that cannot be read had no rule that it kept
    let old = write.old().and_then(|old| read(old).ok());
    let spec_changes = needs_pools(write);
    if old.as_ref().is_none_or(|old| old.spec.quota != pool.spec.quota) {
        for fault in ip_pools::quotas(&pool).1 {
            faults.add(|| Fault::invalid(fault.to_string()));
        }
    }
    if old.as_ref().is_none_or(|old| old.spec.quarantine_seconds != pool.spec.quarantine_seconds)
        && let Some(fault) = ip_pools::quarantine_fault(&pool)
    {
        faults.add(|| Fault::invalid(fault));
    }
    let auto_assign = object.annotations().get(annotations::AUTO_ASSIGN);
    let is_new = write.old().and_then(|old| old.annotations().get(annotations::AUTO_ASSIGN)) != auto_assign;
    if let Some(word) = auto_assign.filter(|word| is_new && !["true", "false"].contains(&word.as_str())) {
        faults.add(|| {
            Fault::invalid(format!(
                "annotation {} is {}: write \"true\" or \"false\", or leave it out",
                annotations::AUTO_ASSIGN,
                quoted(word)
            ))
        });
    }
    match ip_pools::definition(&pool) {
        Ok(own) => {
            if spec_changes {
                let others: Vec<_> = seen.pools.iter().map(definition_or_bare).collect();
                for fault in beside(&own, &pool, old.as_ref(), &others) {
                    faults.add(|| Fault::invalid(fault.to_string()));
                }
            }
            let records_change = records(&object.data) != records(write.old_data());
            if write.old().is_some() && (spec_changes || records_change) {
                for fault in excluded(&own, &pool, old.as_ref()) {
                    faults.add(|| Fault::invalid(fault.to_string()));
                }
            }
        }
        Err(range_faults) if spec_changes => {
            let former = old.as_ref().and_then(|old| ip_pools::definition(old).err()).unwrap_or_default();
            let texts = |faults: Vec<RangeFault>| faults.iter().map(ToString::to_string).collect::<Vec<_>>();
            let [now, former] = [range_faults, former].map(texts);
            for index in ipam::added(&now, &former) {
                faults.add(|| Fault::invalid(now[index].clone()));
            }
        }
        Err(_) => {}
    }
    admitted_records(write, object, policy, &mut faults);
    faults
}

/// Others than the controller write their own records only, also while the pool is being deleted.
fn admitted_records(write: &Write, object: &DynamicObject, policy: &Policy, faults: &mut Faults) {
    if write.user == policy.status_writer {
        return;
    }
    let admitted = json!({"status": status::of_pool(object, write.old())});
    if records(&object.data) != records(&admitted) {
        faults.add(|| {
            Fault::forbidden(format!(
                "status.allocated is written by {} only: others may add a record on a free address and remove their own",
                policy.status_writer
            ))
        });
        return;
    }
    let had = records(write.old_data());
    let added = records(&object.data)
        .into_iter()
        .flatten()
        .filter(|(key, _)| !had.is_some_and(|had| had.contains_key(*key)));
    let keys = records(&object.data).into_iter().flatten().map(|(key, _)| key);
    let standing: HashMap<_, _> = keys
        .filter(|key| had.is_some_and(|had| had.contains_key(*key)))
        .filter_map(|key| Some((address_of(key)?, key)))
        .collect();
    // whose record it is follows from the key's owner in managedFields, and one address must not have two keys
    for (key, _) in added {
        let Some(address) = address_of(key) else { continue };
        let names = format!("status.allocated names address {}", quoted(key));
        if let Some(other) = standing.get(&address) {
            faults.add(|| Fault::invalid(format!("{names}, which {} names already", quoted(other))));
        } else if address.to_string() != *key {
            faults.add(|| Fault::invalid(format!("{names}: write {address}")));
        }
    }
}

fn address_of(key: &str) -> Option<IpAddr> {
    key.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn read(object: &DynamicObject) -> serde_json::Result<IPPool> {
    let metadata = object.metadata.clone();
    let spec = IPPoolSpec::deserialize(&object.data["spec"])?;
    let status = Option::<IPPoolStatus>::deserialize(&object.data["status"])?;
    Ok(IPPool { metadata, spec, status })
}

/// The records of a pool; nothing where there is none.
fn records(pool: &Value) -> Option<&serde_json::Map<String, Value>> {
    pool["status"]["allocated"].as_object().filter(|records| !records.is_empty())
}

fn definition_or_bare(pool: &IPPool) -> ipam::Pool {
    ip_pools::definition(pool).unwrap_or_else(|_| ip_pools::bare(pool))
}

/// The faults beside other pools that this write brings about: overlaps of the ranges that it adds, and faults of the
/// selector that were not there before.
fn beside(own: &ipam::Pool, pool: &IPPool, old: Option<&IPPool>, others: &[ipam::Pool]) -> Vec<PoolFault> {
    let mut spec = pool.spec.clone();
    // one that begins or ends to drain is the same
    let addresses = |range: &PoolRange| PoolRange { drain: false, ..range.clone() };
    let stood: HashSet<_> = old.iter().flat_map(|old| &old.spec.ranges).map(addresses).collect();
    spec.ranges.retain(|range| !stood.contains(&addresses(range)));
    let with_added_ranges = IPPool { metadata: pool.metadata.clone(), spec, status: None };
    let overlaps = ip_pools::definition(&with_added_ranges).map(|pool| pool.overlaps(others));
    let former = old.map(ip_pools::bare);
    let mut faults = overlaps.unwrap_or_default();
    faults.extend(own.selector_faults(former.as_ref().map(|former| &former.selector), others));
    faults
}

/// The records outside of the ranges that this write brings about: a record that it adds, or one that a range covered
/// before.
fn excluded(own: &ipam::Pool, pool: &IPPool, old: Option<&IPPool>) -> Vec<PoolFault> {
    let records = pool.status.iter().flat_map(|status| &status.allocated);
    let Some(old) = old else { return own.excluded(records) };
    let covered: Coverage = old.spec.ranges.iter().filter_map(range).collect();
    let stood = |address: &str| {
        let stands = old.status.as_ref().is_some_and(|status| status.allocated.contains_key(address));
        let was_covered =
            address.parse::<IpAddr>().is_ok_and(|address| covered.covers(address.to_canonical()));
        stands && !was_covered
    };
    own.excluded(records.filter(|(address, _)| !stood(address)))
}

/// A range by itself, if it is valid.
fn range(range: &PoolRange) -> Option<Range> {
    let PoolRange { subnet, range_start, range_end, gateway, drain } = range;
    let [subnet, start, end, gateway] = [subnet, range_start, range_end, gateway].map(Clone::clone);
    Range::parse(&RangeSpec { subnet, start, end, gateway, drain: *drain }).ok()
}

/// The operations that label the pool, and restore a status that this user may not change, with the owners of its
/// records.
///
/// # Errors
/// The network is new, and its definition is wrong or not there.
pub(crate) fn mutate(write: &Write, seen: &Seen, policy: &Policy) -> Result<Vec<PatchOperation>, Fault> {
    let Some(object) = write.reviewed() else { return Ok(restored_status(write, policy)) };
    let spec = IPPoolSpec::deserialize(&object.data["spec"]);
    let mut entries = vec![(labels::GLOBAL_IP_POOL, spec.is_ok_and(|spec| spec.is_global()).to_string())];
    match (needs_network(write)?, &seen.network) {
        (Some(_), Some(definition)) => entries.push((labels::VID, vlan_id(definition))),
        (Some((namespace, name)), None) if !keeps_network(write, object) => {
            return Err(Fault::invalid(format!(
                "there is no NetworkAttachmentDefinition {namespace}/{name}: create it, or correct selector.network"
            )));
        }
        (None, _) if network(&object.data).is_empty() => entries.push((labels::VID, "0".to_owned())),
        _ => {}
    }
    let mut operations = set_entries(object.metadata.labels.as_ref(), "labels", entries);
    operations.extend(restored_status(write, policy));
    Ok(operations)
}

/// Restores the part of the status that this user may not change, and the owners of its records.
fn restored_status(write: &Write, policy: &Policy) -> Vec<PatchOperation> {
    let Some(object) = write.stored().filter(|_| write.user != policy.status_writer) else {
        return Vec::new();
    };
    let admitted = status::of_pool(object, write.old());
    let had = &write.old_data()["status"]["allocated"];
    let stand = admitted["allocated"].as_object().into_iter().flatten();
    let stand = stand.filter(|(address, holder)| had.get(*address) == Some(*holder));
    let (now, before) = (object.managed_fields(), write.old().map_or(&[][..], |old| old.managed_fields()));
    let owners = owners::restored(now, before, stand.map(|(address, _)| address.as_str()));
    let mut operations: Vec<_> = set_status(&object.data["status"], admitted).into_iter().collect();
    operations.extend(restored_rests(object, write.old()));
    if let Some(owners) = owners {
        let owners = serde_json::to_value(owners).expect("managedFields have text keys only");
        operations.push(set(&["metadata", "managedFields"], owners));
    }
    operations
}

/// Restores the annotation of the addresses that rest, where the pool is replaced by one without status: who writes that
/// knows nothing of them. Who removes the annotation from the pool as it is ends the rests.
fn restored_rests(object: &DynamicObject, old: Option<&DynamicObject>) -> Vec<PatchOperation> {
    let is_replaced =
        object.data["status"].is_null() && !object.annotations().contains_key(annotations::QUARANTINE);
    let rests = old.and_then(|old| old.annotations().get(annotations::QUARANTINE));
    let entries = rests.filter(|_| is_replaced).map(|rests| (annotations::QUARANTINE, rests.clone()));
    entries.map_or_else(Vec::new, |entry| {
        set_entries(object.metadata.annotations.as_ref(), "annotations", vec![entry])
    })
}

/// The VLAN of a NetworkAttachmentDefinition: its label, else `vlan` of its configuration, else 0.
fn vlan_id(definition: &DynamicObject) -> String {
    if let Some(label) = definition.labels().get(labels::VLAN_ID) {
        return label.clone();
    }
    let config = definition.data["spec"]["config"].as_str().unwrap_or_default();
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    config["vlan"].as_i64().unwrap_or(0).to_string()
}

#[cfg(test)]
mod tests;
