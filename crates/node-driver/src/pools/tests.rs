use rstest::rstest;

use super::*;

const HOLDER: &str = "shop/demo-1";
const NOW: i64 = 1_767_225_600;
const ASKING: Asking<'static> = Asking { holder: HOLDER, now: NOW };

/// A pool with records, each with its writer.
fn pool(name: &str, spec: &Value, records: &[(&str, &str, &str)]) -> DynamicObject {
    let allocated: serde_json::Map<String, Value> =
        records.iter().map(|(address, holder, _)| ((*address).to_owned(), json!(holder))).collect();
    let owner = |(address, _, manager): &(&str, &str, &str)| {
        json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:status": {"f:allocated": {format!("f:{address}"): {}}}}})
    };
    let owners: Vec<Value> = records.iter().map(owner).collect();
    let created = if name == "edge" { "2026-01-02T00:00:00Z" } else { "2026-01-01T00:00:00Z" };
    serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": name, "creationTimestamp": created, "resourceVersion": "7", "managedFields": owners},
        "spec": spec,
        "status": {"total": 9, "available": 9, "lastAllocated": "", "allocated": allocated, "new": {"of": "others"}},
    }))
    .unwrap()
}

fn ranges(subnet: &str) -> Value {
    json!({"ranges": [{"subnet": subnet, "gateway": "192.0.2.1"}], "new": 1})
}

fn edge(records: &[(&str, &str, &str)]) -> DynamicObject {
    pool("edge", &ranges("192.0.2.0/29"), records)
}

fn allocated(pool: &DynamicObject) -> &Value {
    &pool.data["status"]["allocated"]
}

#[test]
fn a_claim_changes_the_record_and_leaves_what_it_does_not_know() {
    let claimed = claim(&edge(&[("192.0.2.2", "shop/web", "harvester-load-balancer")]), &[], ASKING).unwrap();
    assert_eq!(
        claimed.lease,
        Lease { address: "192.0.2.3/29".to_owned(), gateway: Some("192.0.2.1".to_owned()) }
    );
    let put = claimed.put.unwrap();
    assert_eq!(allocated(&put), &json!({"192.0.2.2": "shop/web", "192.0.2.3": HOLDER}));
    assert_eq!(put.data["status"]["new"], json!({"of": "others"}));
    assert_eq!(put.data["spec"]["new"], 1);
    assert_eq!(put.data["status"]["available"], 3, "of five");
    assert_eq!(
        put.metadata.resource_version.as_deref(),
        Some("7"),
        "the server refuses it where others wrote since"
    );
}

#[test]
fn a_machine_that_the_pool_knows_has_its_address_without_a_write() {
    let claimed = claim(&edge(&[("192.0.2.4", HOLDER, MANAGER)]), &[], ASKING).unwrap();
    assert_eq!((claimed.lease.address.as_str(), claimed.put.is_none()), ("192.0.2.4/29", true));
}

#[rstest]
#[case::a_load_balancer("harvester-load-balancer", "by the word of its load balancer")]
#[case::another_program("capi", "by the word of capi")]
fn an_address_that_another_program_recorded_under_the_name_is_neither_taken_nor_released(
    #[case] manager: &str,
    #[case] part: &str,
) {
    let pool = edge(&[("192.0.2.4", HOLDER, manager)]);
    let fault = claim(&pool, &[], ASKING).unwrap_err();
    assert!(
        fault.contains("IPPool edge gives 192.0.2.4 to shop/demo-1 already") && fault.contains(part),
        "{fault}"
    );
    assert!(release(&pool, ASKING).unwrap().is_none());
}

#[test]
fn an_address_that_another_pool_records_is_passed_over() {
    let other =
        pool("lab", &ranges("198.51.100.0/24"), &[("192.0.2.2", "shop/web", "harvester-load-balancer")]);
    let claimed = claim(&edge(&[]), &[other], ASKING).unwrap();
    assert_eq!(claimed.lease.address, "192.0.2.3/29");
}

#[rstest]
#[case::no_ranges(json!({"ranges": [{"subnet": "nonsense"}]}), "edge gives no address")]
#[case::drained(json!({"ranges": [{"subnet": "192.0.2.0/29", "drain": true}]}), "edge has no free IPv4 address")]
#[case::of_the_other_family(json!({"ranges": [{"subnet": "fd00::/120"}]}), "edge has no free IPv4 address")]
#[case::quota_of_the_namespace(
    json!({"ranges": [{"subnet": "192.0.2.0/29"}], "quota": [{"namespace": "shop", "max": 1}]}),
    "edge gives no more to namespace shop: its quota of 1 is used up")]
#[case::subnet_of_one(json!({"ranges": [{"subnet": "192.0.2.7/32"}]}), "give the range the subnet of its network")]
fn a_pool_that_gives_nothing_says_why(#[case] spec: Value, #[case] part: &str) {
    let pool = pool("edge", &spec, &[("198.51.100.1", "shop/web", "harvester-load-balancer")]);
    let fault = claim(&pool, &[], ASKING).unwrap_err();
    assert!(fault.contains(part), "{fault}");
}

#[test]
fn a_pool_that_an_older_one_overlaps_gives_nothing_new_and_keeps_what_it_gave() {
    let older = pool("older", &ranges("192.0.2.0/28"), &[]);
    let fault = claim(&edge(&[]), std::slice::from_ref(&older), ASKING).unwrap_err();
    assert!(fault.contains("its ranges overlap those of an older pool"), "{fault}");
    let kept = claim(&edge(&[("192.0.2.4", HOLDER, MANAGER)]), &[older], ASKING).unwrap();
    assert_eq!(kept.lease.address, "192.0.2.4/29");
}

#[test]
fn a_released_address_rests_and_comes_back_to_its_machine_alone() {
    let mut spec = ranges("192.0.2.0/29");
    spec["quarantineSeconds"] = json!(600);
    let held = pool(
        "edge",
        &spec,
        &[("192.0.2.2", HOLDER, MANAGER), ("192.0.2.3", "shop/web", "harvester-load-balancer")],
    );
    let free = release(&held, ASKING).unwrap().unwrap();
    assert_eq!(allocated(&free), &json!({"192.0.2.3": "shop/web"}));
    assert_eq!(free.data["status"]["allocatedHistory"], json!({"192.0.2.2": HOLDER}));
    assert!(free.annotations()[annotations::QUARANTINE].contains("192.0.2.2"));
    assert!(release(&free, ASKING).unwrap().is_none(), "a second release has nothing to do");

    let next = claim(&free, &[], Asking { holder: "shop/demo-2", ..ASKING }).unwrap();
    assert_eq!(next.lease.address, "192.0.2.4/29");
    let back = claim(&free, &[], ASKING).unwrap();
    assert_eq!(back.lease.address, "192.0.2.2/29");
    assert!(!back.put.unwrap().annotations().contains_key(annotations::QUARANTINE), "its rest is over");
}
