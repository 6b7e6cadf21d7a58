//! The program that made a record, according to the pool's managedFields.

use std::net::IpAddr;

use harvester_api::IPPool;
use kube::ResourceExt;
use serde_json::Value;

/// The field manager of the load balancer, the Go program's and ours: the user agent up to the first `/`.
pub const OURS: &str = "harvester-load-balancer";

/// The other program that made the record of this address; none if the load balancer did, or nobody is known to.
/// However the key is written.
pub fn foreign(pool: &IPPool, address: IpAddr) -> Option<String> {
    let is_of = |field: &String| {
        let key = field.strip_prefix("f:").and_then(|key| key.parse::<IpAddr>().ok());
        key.is_some_and(|key| key.to_canonical() == address)
    };
    let owners: Vec<_> = pool
        .managed_fields()
        .iter()
        .filter(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            let allocated = fields.and_then(|fields| fields.pointer("/f:status/f:allocated"));
            allocated.and_then(Value::as_object).is_some_and(|fields| fields.keys().any(is_of))
        })
        .map(|entry| entry.manager.clone().unwrap_or_default())
        .collect();
    if owners.iter().any(|manager| manager == OURS) { None } else { owners.into_iter().next() }
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
        assert_eq!(foreign(&pool, [10, 0, 0, 7].into()).as_deref(), expected);
    }
}
