//! The part of a status that each user may write.
//!
//! Neither kind has a status subresource: every user who may update an object can write its status, and a PUT without
//! one erases it. So a tenant could take any address, and a `kubectl replace` would lose the record of a pool. These
//! functions compute the status that is admitted; the mutator restores it without an error, and the validator refuses
//! only where the mutator was bypassed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use harvester_api::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

/// The user agent of the load balancer, the Go program's and ours: the manager of its records in `managedFields`.
const MANAGER: &str = "harvester-load-balancer";

/// The status that a LoadBalancer object gets when another user than its controller writes `object` over `old` (null:
/// creates it). The controller owns all of it but for `address` of cluster objects, which their cloud controller
/// manager writes: the allocated address, or with DHCP any, but nothing that is no address.
pub(crate) fn of_load_balancer(object: &Value, old: &Value) -> Value {
    let mut status = old["status"].clone();
    let asked = &object["status"]["address"];
    let allocated = &status["allocatedAddress"]["ip"];
    let is_address = asked.as_str().is_some_and(|asked| asked.parse::<IpAddr>().is_ok());
    let is_empty = asked.is_null() || asked == "";
    let admitted = old["spec"]["workloadType"] == "cluster"
        && !object["status"].is_null()
        && (asked == allocated || allocated == names::DHCP_ADDRESS && is_address || is_empty);
    if admitted && let Some(status) = status.as_object_mut() {
        match asked {
            Value::Null => status.remove("address"),
            asked => status.insert("address".to_owned(), asked.clone()),
        };
    }
    status
}

/// The status that a pool gets likewise. Other users may add a record on a free address, remove records that another
/// program than the load balancer added, and edit the history; the counts follow from the records.
pub(crate) fn of_pool(object: &DynamicObject, old: Option<&DynamicObject>) -> Value {
    let asked = &object.data["status"];
    let Some(old) = old else { return Value::Null };
    let old_status = &old.data["status"];
    if asked.is_null() {
        return old_status.clone();
    }
    let mut status = match old_status {
        Value::Null => json!({"total": 0, "available": 0, "lastAllocated": ""}),
        status => status.clone(),
    };
    let had = entries(&status["allocated"]);
    let wanted = entries(&asked["allocated"]);
    let foreign = foreign_records(old.managed_fields());

    let mut allocated: Map<String, Value> = had
        .iter()
        .filter(|(address, _)| wanted.contains_key(*address) || !foreign.contains(address.as_str()))
        .map(|(address, holder)| (address.clone(), holder.clone()))
        .collect();
    for (address, holder) in &wanted {
        allocated.entry(address.clone()).or_insert_with(|| holder.clone());
    }
    if allocated != had {
        let total = status["total"].as_i64().unwrap_or_default();
        let held = i64::try_from(allocated.len()).unwrap_or(i64::MAX);
        status["available"] = total.saturating_sub(held).into();
        if asked["lastAllocated"].as_str().is_some_and(|last| !last.is_empty()) {
            status["lastAllocated"] = asked["lastAllocated"].clone();
        }
    }
    // the history is of free addresses: where a release is not admitted, neither is what it leaves there
    let mut history = entries(&asked["allocatedHistory"]);
    history.retain(|address, _| !allocated.contains_key(address));
    set_or_remove(&mut status, "allocated", allocated);
    set_or_remove(&mut status, "allocatedHistory", history);
    if old_status.is_null() && status == json!({"total": 0, "available": 0, "lastAllocated": ""}) {
        return Value::Null;
    }
    status
}

fn entries(map: &Value) -> Map<String, Value> {
    map.as_object().cloned().unwrap_or_default()
}

fn set_or_remove(status: &mut Value, key: &str, map: Map<String, Value>) {
    let Some(status) = status.as_object_mut() else { return };
    if map.is_empty() {
        status.remove(key);
    } else {
        status.insert(key.to_owned(), map.into());
    }
}

/// The records that somebody else than the load balancer made, by the pool's `managedFields`: providers of Cluster
/// API hold addresses for machines that way.
fn foreign_records(managed_fields: &[ManagedFieldsEntry]) -> BTreeSet<&str> {
    let (ours, others): (Vec<_>, Vec<_>) =
        managed_fields.iter().partition(|entry| entry.manager.as_deref() == Some(MANAGER));
    let ours: BTreeSet<&str> = ours.into_iter().flat_map(records).collect();
    others.into_iter().flat_map(records).filter(|key| !ours.contains(key)).collect()
}

/// The addresses whose records an entry of `managedFields` owns.
fn records(entry: &ManagedFieldsEntry) -> impl Iterator<Item = &str> {
    let fields = entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0);
    let names = fields["f:status"]["f:allocated"].as_object().into_iter().flat_map(Map::keys);
    names.filter_map(|name| name.strip_prefix("f:"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn lb(workload: &str, status: &Value) -> Value {
        json!({"spec": {"workloadType": workload}, "status": status})
    }

    fn allocated(ip: &str, address: &str) -> Value {
        json!({"allocatedAddress": {"ip": ip, "ipPool": "edge"}, "address": address, "backendServers": ["192.168.7.11"]})
    }

    fn second(address: &str) -> Value {
        let mut status = allocated("10.0.0.9", address);
        status["allocatedAddress"]["ipv6IP"] = "fd00::9".into();
        status["allocatedAddress"]["ipv6Pool"] = "six".into();
        status["addresses"] = json!(["10.0.0.9", "fd00::9"]);
        status
    }

    fn forged_addresses() -> Value {
        let mut status = second("");
        status["addresses"] = json!(["10.0.0.9", "fd00::bad"]);
        status
    }

    #[rstest]
    #[case::given_at_creation(lb("vm", &allocated("10.0.0.1", "")), json!(null), json!(null))]
    // docs/contract/load-balancer.md#LB-20: in the Go program an edit as YAML loses the address
    #[case::wiped(lb("vm", &json!(null)), lb("vm", &allocated("10.0.0.9", "10.0.0.9")), allocated("10.0.0.9", "10.0.0.9"))]
    // docs/contract/load-balancer.md#S-9: in the Go program a tenant takes any address
    #[case::forged(lb("vm", &allocated("10.0.0.1", "10.0.0.1")), lb("vm", &allocated("10.0.0.9", "10.0.0.9")), allocated("10.0.0.9", "10.0.0.9"))]
    #[case::address_of_a_vm_object(lb("vm", &allocated("10.0.0.9", "10.0.0.9")), lb("vm", &allocated("10.0.0.9", "")), allocated("10.0.0.9", ""))]
    #[case::ccm_writes_back(lb("cluster", &allocated("10.0.0.9", "10.0.0.9")), lb("cluster", &allocated("10.0.0.9", "")), allocated("10.0.0.9", "10.0.0.9"))]
    #[case::ccm_writes_only_the_address(
        lb("cluster", &json!({"address": "10.0.0.9"})), lb("cluster", &allocated("10.0.0.9", "")), allocated("10.0.0.9", "10.0.0.9"))]
    #[case::ccm_writes_another(lb("cluster", &allocated("10.0.0.9", "10.0.0.1")), lb("cluster", &allocated("10.0.0.9", "10.0.0.9")), allocated("10.0.0.9", "10.0.0.9"))]
    #[case::ccm_writes_a_lease(lb("cluster", &allocated("0.0.0.0", "10.0.0.77")), lb("cluster", &allocated("0.0.0.0", "")), allocated("0.0.0.0", "10.0.0.77"))]
    #[case::ccm_clears_a_lease(lb("cluster", &allocated("0.0.0.0", "")), lb("cluster", &allocated("0.0.0.0", "10.0.0.77")), allocated("0.0.0.0", ""))]
    // the controller keeps all objects in memory
    #[case::lease_of_a_megabyte(lb("cluster", &allocated("0.0.0.0", &"x".repeat(1 << 20))), lb("cluster", &allocated("0.0.0.0", "10.0.0.77")), allocated("0.0.0.0", "10.0.0.77"))]
    #[case::lease_that_is_no_text(lb("cluster", &json!({"address": [7]})), lb("cluster", &allocated("0.0.0.0", "10.0.0.77")), allocated("0.0.0.0", "10.0.0.77"))]
    #[case::ccm_clears(
        lb("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}})), lb("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}, "address": "10.0.0.9"})),
        json!({"allocatedAddress": {"ip": "10.0.0.9"}}))]
    #[case::second_wiped_by_a_program_that_does_not_know_it(
        lb("cluster", &allocated("10.0.0.9", "10.0.0.9")), lb("cluster", &second("10.0.0.9")), second("10.0.0.9"))]
    #[case::addresses_forged(lb("cluster", &forged_addresses()), lb("cluster", &second("")), second(""))]
    #[case::addresses_wiped(
        lb("cluster", &json!({"allocatedAddress": second("")["allocatedAddress"]})), lb("cluster", &second("10.0.0.9")),
        json!({"allocatedAddress": second("")["allocatedAddress"], "backendServers": ["192.168.7.11"], "addresses": ["10.0.0.9", "fd00::9"]}))]
    #[case::addresses_given_at_creation(lb("vm", &second("")), json!(null), json!(null))]
    #[case::second_forged(lb("cluster", &second("")), lb("cluster", &allocated("10.0.0.9", "")), allocated("10.0.0.9", ""))]
    // the load balancer gives a former first address away once another one is announced
    #[case::ccm_writes_the_second(lb("cluster", &second("fd00::9")), lb("cluster", &second("10.0.0.9")), second("10.0.0.9"))]
    #[case::ccm_wipes(lb("cluster", &json!(null)), lb("cluster", &allocated("10.0.0.9", "10.0.0.9")), allocated("10.0.0.9", "10.0.0.9"))]
    #[case::nothing_yet(lb("cluster", &json!({"address": "10.0.0.9"})), lb("cluster", &json!(null)), json!(null))]
    fn the_status_of_a_load_balancer_is_its_controllers(
        #[case] object: Value,
        #[case] old: Value,
        #[case] expected: Value,
    ) {
        assert_eq!(of_load_balancer(&object, &old), expected);
    }

    fn pool(status: Value) -> DynamicObject {
        let managed = json!([
            {"manager": "harvester-load-balancer", "fieldsV1": {"f:status": {"f:allocated": {"f:10.0.0.2": {}}}}},
            {"manager": "capi", "fieldsV1": {"f:status": {"f:allocated": {"f:10.0.0.3": {}}}}},
        ]);
        let mut pool = json!({"metadata": {"managedFields": managed}});
        if !status.is_null() {
            pool["status"] = status;
        }
        serde_json::from_value(pool).unwrap()
    }

    fn record(available: i64, last: &str, allocated: &Value, history: &Value) -> Value {
        let mut status = json!({"total": 9, "available": available, "lastAllocated": last});
        if !allocated.is_null() {
            status["allocated"] = allocated.clone();
        }
        if !history.is_null() {
            status["allocatedHistory"] = history.clone();
        }
        status
    }

    fn standing() -> Value {
        record(7, "10.0.0.3", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1"}), &json!(null))
    }

    #[rstest]
    // docs/contract/load-balancer.md#IP-16: in the Go program a replace without status gives held addresses out again
    #[case::wiped(json!(null), standing())]
    #[case::emptied(record(9, "", &json!(null), &json!(null)), record(8, "10.0.0.3", &json!({"10.0.0.2": "shop/web"}), &json!(null)))]
    #[case::robbed(record(7, "10.0.0.3", &json!({"10.0.0.2": "evil/lb", "10.0.0.3": "capi/m-1"}), &json!(null)), standing())]
    #[case::counts_forged(record(900, "10.0.0.3", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1"}), &json!(null)), standing())]
    #[case::record_added(
        record(6, "10.0.0.4", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1", "10.0.0.4": "capi/m-2"}), &json!(null)),
        record(6, "10.0.0.4", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1", "10.0.0.4": "capi/m-2"}), &json!(null)))]
    #[case::foreign_record_removed(
        record(8, "10.0.0.3", &json!({"10.0.0.2": "shop/web"}), &json!({"10.0.0.3": "capi/m-1"})),
        record(8, "10.0.0.3", &json!({"10.0.0.2": "shop/web"}), &json!({"10.0.0.3": "capi/m-1"})))]
    #[case::history_edited(
        record(7, "10.0.0.3", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1"}), &json!({"10.0.0.8": "shop/api"})),
        record(7, "10.0.0.3", &json!({"10.0.0.2": "shop/web", "10.0.0.3": "capi/m-1"}), &json!({"10.0.0.8": "shop/api"})))]
    #[case::release_of_a_record_of_ours(
        record(8, "10.0.0.3", &json!({"10.0.0.3": "capi/m-1"}), &json!({"10.0.0.2": "shop/web"})), standing())]
    fn others_add_and_remove_their_own_records_of_a_pool_and_nothing_else(
        #[case] asked: Value,
        #[case] expected: Value,
    ) {
        assert_eq!(of_pool(&pool(asked), Some(&pool(standing()))), expected);
    }

    #[rstest]
    #[case::given_at_creation(pool(standing()), None, json!(null))]
    #[case::none_before_none_after(pool(json!(null)), Some(pool(json!(null))), json!(null))]
    #[case::first_history(
        pool(record(0, "", &json!(null), &json!({"10.0.0.8": "shop/api"}))), Some(pool(json!(null))),
        json!({"total": 0, "available": 0, "lastAllocated": "", "allocatedHistory": {"10.0.0.8": "shop/api"}}))]
    fn a_pool_begins_without_record(
        #[case] object: DynamicObject,
        #[case] old: Option<DynamicObject>,
        #[case] expected: Value,
    ) {
        assert_eq!(of_pool(&object, old.as_ref()), expected);
    }
}
