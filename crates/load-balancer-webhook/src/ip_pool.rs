//! Rules and labels for IPPools. The rules about ranges and scopes are the crate `ipam`'s.

use harvester_api::{IPPool, labels};
use serde_json::{Value, json};

use super::patch::{set_entries, set_root};
use super::{Policy, owners, status};
use crate::review::{Fault, Operation, Request};

/// What the rules and labels follow from, beside the request.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// All pools. The one of the request may be among them.
    pub pools: Vec<IPPool>,
    /// The NetworkAttachmentDefinition that the pool's selector names; nothing when it is not there.
    pub network: Option<Value>,
}

/// What a fault's message begins with.
pub fn prefix(request: &Request) -> String {
    let verb = match request.operation {
        Operation::Create => "create",
        Operation::Delete => "delete",
        Operation::Update | Operation::Other => "update",
    };
    format!("can't {verb} IP pool {} because ", request.name)
}

/// Whether the rules need [`World::pools`]: they run only where the spec is new.
pub fn needs_pools(request: &Request) -> bool {
    matches!(request.operation, Operation::Create | Operation::Update)
        && !request.deleting()
        && request.object["spec"] != request.old["spec"]
}

fn network(pool: &Value) -> &str {
    pool["spec"]["selector"]["network"].as_str().unwrap_or_default()
}

/// Whether the pool had the same network before. Then nothing about the network stands in the way: a pool is written
/// with every address that it gives and takes back, and must not cease to be when somebody deletes a definition.
fn keeps_network(request: &Request) -> bool {
    !request.old.is_null() && network(&request.object) == network(&request.old)
}

/// The NetworkAttachmentDefinition that the label needs, as namespace and name: none without network, and none while
/// the network stays as it was and the label is there.
///
/// # Errors
/// The selector's network is new, and not `namespace/name`.
pub fn needs_network(request: &Request) -> Result<Option<(&str, &str)>, Fault> {
    let judged = matches!(request.operation, Operation::Create | Operation::Update) && !request.deleting();
    let labelled = !request.object["metadata"]["labels"][labels::VID].is_null();
    let (network, keeps) = (network(&request.object), keeps_network(request));
    if !judged || (keeps && labelled) || network.is_empty() {
        return Ok(None);
    }
    match network.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(Some((namespace, name)))
        }
        _ if keeps => Ok(None),
        _ => Err(Fault::invalid(format!(
            "selector.network {network:?} is not namespace/name of a NetworkAttachmentDefinition"
        ))),
    }
}

/// Every rule that the pool breaks.
pub fn validate(request: &Request, world: &World, policy: &Policy) -> Vec<Fault> {
    if request.operation == Operation::Delete {
        let allocated = request.old["status"]["allocated"].as_object().map_or(0, serde_json::Map::len);
        let text =
            format!("can't delete pool before releasing all the allocated IP: {allocated} of them are held");
        return if allocated > 0 { vec![Fault::forbidden(text)] } else { Vec::new() };
    }
    if request.operation == Operation::Other || request.deleting() {
        return Vec::new();
    }
    let pool: IPPool = match serde_json::from_value(request.object.clone()) {
        Ok(pool) => pool,
        Err(error) => return vec![Fault::invalid(format!("it cannot be read: {error}"))],
    };
    let mut faults = Vec::new();
    let spec_is_new = needs_pools(request);
    match ip_pools::definition(&pool) {
        Ok(own) => {
            if spec_is_new {
                let others = world
                    .pools
                    .iter()
                    .map(|other| ip_pools::definition(other).unwrap_or_else(|_| ip_pools::bare(other)));
                let others: Vec<_> = others.collect();
                faults.extend(own.faults(&others).iter().map(|fault| Fault::invalid(fault.to_string())));
            }
            let allocated_is_new =
                request.object["status"]["allocated"] != request.old["status"]["allocated"];
            if request.operation == Operation::Update && (spec_is_new || allocated_is_new) {
                let allocated = pool.status.iter().flat_map(|status| &status.allocated);
                faults.extend(own.excluded(allocated).iter().map(|fault| Fault::invalid(fault.to_string())));
            }
        }
        Err(range_faults) if spec_is_new => {
            faults.extend(range_faults.iter().map(|fault| Fault::invalid(fault.to_string())));
        }
        Err(_) => {}
    }
    if request.user != policy.status_writer {
        let standing = status::of_pool(&request.object, &request.old);
        if request.object["status"]["allocated"] != standing["allocated"] {
            faults.push(Fault::forbidden(format!(
                "status.allocated is written by {} only: others may add a record on a free address and remove their own",
                policy.status_writer
            )));
        }
    }
    faults
}

/// The operations that label the pool, and put a status back that is not the writer's to change, with the owners of
/// its records.
///
/// # Errors
/// The network is new, and its definition is wrong or not there.
pub fn mutate(request: &Request, world: &World, policy: &Policy) -> Result<Vec<Value>, Fault> {
    let judged = matches!(request.operation, Operation::Create | Operation::Update);
    if !judged || request.deleting() {
        return Ok(Vec::new());
    }
    let object = &request.object;
    let global = serde_json::from_value::<IPPool>(object.clone()).is_ok_and(|pool| pool.spec.is_global());
    let mut entries = vec![(labels::GLOBAL_IP_POOL, global.to_string())];
    match (needs_network(request)?, &world.network) {
        (Some(_), Some(definition)) => entries.push((labels::VID, vlan_id(definition))),
        (Some((namespace, name)), None) if !keeps_network(request) => {
            return Err(Fault::invalid(format!(
                "there is no NetworkAttachmentDefinition {namespace}/{name}: create it, or correct selector.network"
            )));
        }
        (None, _) if network(object).is_empty() => entries.push((labels::VID, "0".to_owned())),
        _ => {}
    }
    let mut operations = set_entries(object, "labels", &entries);
    if request.user != policy.status_writer {
        let standing = status::of_pool(object, &request.old);
        operations.extend(set_root(object, "status", &standing));
        let had = &request.old["status"]["allocated"];
        let stand = standing["allocated"].as_object().into_iter().flatten();
        let stand = stand.filter(|(address, holder)| had.get(*address) == Some(*holder));
        if let Some(owners) = owners::kept(object, &request.old, stand.map(|(address, _)| address)) {
            operations.push(json!({"op": "add", "path": "/metadata/managedFields", "value": owners}));
        }
    }
    Ok(operations)
}

/// The VLAN of a NetworkAttachmentDefinition: its label, else `vlan` of its configuration, else 0.
fn vlan_id(definition: &Value) -> String {
    if let Some(label) = definition["metadata"]["labels"][labels::VLAN_ID].as_str() {
        return label.to_owned();
    }
    let config = definition["spec"]["config"].as_str().unwrap_or_default();
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    config["vlan"].as_i64().unwrap_or(0).to_string()
}

#[cfg(test)]
mod tests;
