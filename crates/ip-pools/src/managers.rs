//! The program that made a record, according to the pool's managedFields.

use std::{collections::BTreeSet, net::IpAddr};

use harvester_api::IPPool;
use kube::ResourceExt;
use serde_json::Value;

/// The field manager of the load balancer, the Go program's and ours: the user agent up to the first `/`.
pub const OURS: &str = "harvester-load-balancer";

/// The field manager of the node driver, whose records are for machines.
pub const NODE_DRIVER: &str = "docker-machine-driver-harvester";

/// The other program that made the record of this address; none if the load balancer did, or nobody is known to.
/// However the key is written.
pub fn foreign(pool: &IPPool, address: IpAddr) -> Option<String> {
    let owners: Vec<_> = pool
        .managed_fields()
        .iter()
        .filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            records(fields).any(|recorded| recorded == address)
        })
        .map(|entry| entry.manager.clone().unwrap_or_default())
        .collect();
    if owners.iter().any(|manager| manager == OURS) { None } else { owners.into_iter().next() }
}

/// The addresses whose records the load balancer made.
pub fn ours(pool: &IPPool) -> BTreeSet<IpAddr> {
    let entries = pool.managed_fields().iter().filter(|entry| entry.manager.as_deref() == Some(OURS));
    entries.flat_map(|entry| records(entry.fields_v1.as_ref().map(|fields| &fields.0))).collect()
}

/// The addresses whose records are among the fields.
fn records(fields: Option<&Value>) -> impl Iterator<Item = IpAddr> {
    let allocated = fields.and_then(|fields| fields.pointer("/f:status/f:allocated"));
    let keys = allocated.and_then(Value::as_object).into_iter().flat_map(|fields| fields.keys());
    let addresses = keys.filter_map(|field| field.strip_prefix("f:")?.parse::<IpAddr>().ok());
    addresses.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::ours(&[("harvester-load-balancer", "10.0.0.7")], None)]
    #[case::another_program(&[("capi", "10.0.0.7"), ("harvester-load-balancer", "10.0.0.8")], Some("capi"))]
    #[case::both(&[("capi", "10.0.0.7"), ("harvester-load-balancer", "10.0.0.7")], None)]
    #[case::another_program_in_other_words(&[("capi", "::ffff:10.0.0.7")], Some("capi"))]
    #[case::nobody(&[("kubectl", "10.0.0.9")], None)]
    fn the_owner_of_the_key_made_the_record(#[case] owners: &[(&str, &str)], #[case] expected: Option<&str>) {
        let entry = |(manager, address): &(&str, &str)| {
            let mut record = serde_json::Map::new();
            record.insert(format!("f:{address}"), json!({}));
            json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:status": {"f:allocated": record}}})
        };
        let pool: IPPool = serde_json::from_value(json!({"metadata": {"name": "edge",
            "managedFields": owners.iter().map(entry).collect::<Vec<_>>()}, "spec": {"ranges": []}}))
        .unwrap();
        let address = IpAddr::from([10, 0, 0, 7]);
        assert_eq!(foreign(&pool, address).as_deref(), expected);
        assert_eq!(ours(&pool).contains(&address), owners.contains(&(OURS, "10.0.0.7")));
    }
}
