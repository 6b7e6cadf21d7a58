use rstest::rstest;
use serde_json::json;

use super::super::patch::patched;
use super::*;
use crate::review::{FaultKind, Subject};

const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";

fn policy() -> Policy {
    Policy { status_writer: WRITER.to_owned() }
}

fn request(user: &str, operation: Operation, object: Value, old: Value) -> Request {
    let text = |value: &str| value.to_owned();
    Request {
        uid: text("u1"),
        operation,
        subject: Subject::IPPool,
        user: text(user),
        namespace: String::new(),
        name: text("edge"),
        object,
        old,
    }
}

/// A pool; scopes are (namespace, project, guestCluster).
fn pool(name: &str, priority: i64, ranges: &[(&str, &str)], scopes: &[(&str, &str, &str)]) -> Value {
    let ranges: Vec<Value> = ranges
        .iter()
        .map(|(start, end)| json!({"subnet": "192.168.100.0/24", "rangeStart": format!("192.168.100.{start}"), "rangeEnd": format!("192.168.100.{end}")}))
        .collect();
    let scopes: Vec<Value> = scopes
        .iter()
        .map(|(namespace, project, cluster)| json!({"namespace": namespace, "project": project, "guestCluster": cluster}))
        .collect();
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool", "metadata": {"name": name},
        "spec": {"ranges": ranges, "selector": {"priority": priority, "scope": scopes}},
    })
}

const GLOBAL: &[(&str, &str, &str)] = &[("*", "*", "*")];
const OWN: &[(&str, &str)] = &[("10", "20")];
const OTHER: &[(&str, &str)] = &[("30", "40")];

/// Creates `new` beside `existing`; the faults' texts.
fn faults(existing: &[Value], new: Value) -> Vec<String> {
    let pools = existing.iter().map(|pool| serde_json::from_value(pool.clone()).unwrap()).collect();
    let world = World { pools, network: None };
    let faults = validate(&request("alice", Operation::Create, new, Value::Null), &world, &policy());
    faults.into_iter().map(|fault| fault.text).collect()
}

#[rstest]
#[case::second_global(&[pool("old", 0, OTHER, GLOBAL)], pool("edge", 0, OWN, GLOBAL), Some("there is already a global IP pool: old"))]
#[case::first_global(&[pool("old", 0, OTHER, &[("ns1", "*", "*")])], pool("edge", 0, OWN, GLOBAL), None)]
#[case::beside_a_global(
    &[pool("old", 0, OTHER, GLOBAL)], pool("edge", 0, OWN, &[("ns1", "pj1", "*"), ("ns2", "pj1", "*"), ("ns1", "pj2", "cluster1")]), None)]
#[case::scopes_overlap(&[], pool("edge", 0, OWN, &[("ns1", "pj1", "*"), ("*", "pj1", "cluster1")]), Some("selector invalid: scope"))]
#[case::other_priority(&[pool("old", 1, OTHER, &[("*", "pj1", "*")])], pool("edge", 2, OWN, &[("*", "pj1", "*")]), None)]
#[case::same_priority(&[pool("old", 1, OTHER, &[("a", "pj1", "*")])], pool("edge", 1, OWN, &[("b", "pj2", "*")]), Some("the priority can't be the same as the pool old"))]
#[case::same_scope_differs(
    &[pool("old", 0, OTHER, &[("ns1", "pj1", "cluster1")])],
    pool("edge", 0, OWN, &[("ns1", "pj1", "cluster2"), ("ns2", "pj1", "cluster1"), ("*", "pj2", "*")]), None)]
#[case::same_scope(
    &[pool("old", 0, OTHER, &[("*", "pj1", "*")])], pool("edge", 0, OWN, &[("ns1", "pj1", "cluster2")]),
    Some("scope selector is same as the pool old with priority 0"))]
#[case::another_stretch(&[pool("old", 0, &[("10", "20"), ("30", "40")], &[])], pool("edge", 0, &[("50", "60")], &[]), None)]
#[case::the_whole_subnet(&[pool("old", 0, &[("10", "20"), ("30", "40")], &[])], pool("edge", 0, &[("1", "254")], &[]), Some("the ranges overlap with other pools"))]
#[case::no_range(&[], pool("edge", 0, &[], &[]), Some("range can't be empty"))]
#[case::own_ranges_overlap(&[], pool("edge", 0, &[("10", "20"), ("20", "30")], &[]), Some("there are overlaps between range"))]
#[case::bad_range(&[], pool("edge", 0, &[("0", "10")], &[]), Some("is the network address"))]
fn a_new_pool_is_judged_beside_the_others(
    #[case] existing: &[Value],
    #[case] new: Value,
    #[case] expected: Option<&str>,
) {
    // load-balancer.md 19.4
    let faults = faults(existing, new);
    assert_eq!(faults.len(), expected.iter().len(), "{faults:?}");
    assert!(faults.iter().zip(expected).all(|(fault, expected)| fault.contains(expected)), "{faults:?}");
}

fn with_status(mut pool: Value, allocated: &[&str]) -> Value {
    let records: Value =
        allocated.iter().map(|ip| (format!("192.168.100.{ip}"), json!("shop/web"))).collect();
    pool["status"] =
        json!({"total": 10, "available": 10 - allocated.len(), "lastAllocated": "", "allocated": records});
    pool
}

#[rstest]
#[case::covered(&["11", "12"], OWN, None)]
#[case::excluded(&["30"], OWN, Some("allocated IP 192.168.100.30 is excluded"))]
fn a_pool_keeps_what_it_gave(
    #[case] held: &[&str],
    #[case] ranges: &[(&str, &str)],
    #[case] expected: Option<&str>,
) {
    let old = with_status(pool("edge", 0, &[("10", "40")], &[]), held);
    let mut new = old.clone();
    new["spec"] = pool("edge", 0, ranges, &[])["spec"].clone();
    let faults = validate(&request("alice", Operation::Update, new, old), &World::default(), &policy());
    assert_eq!(faults.len(), expected.iter().len(), "{faults:?}");
    assert!(faults.iter().zip(expected).all(|(fault, expected)| fault.text.contains(expected)), "{faults:?}");
}

#[test]
fn an_update_is_not_judged_against_the_pool_itself_and_a_status_write_asks_for_no_other_pool() {
    // pitfalls-load-balancer.md WH-8: there, every address that is given re-validates all pools
    let old = with_status(pool("edge", 0, OWN, &[("ns1", "*", "*")]), &["11"]);
    let world = World { pools: vec![serde_json::from_value(old.clone()).unwrap()], network: None };
    let mut new = old.clone();
    new["spec"]["description"] = "edge VLAN".into();
    let update = request("alice", Operation::Update, new, old.clone());
    assert!(needs_pools(&update));
    assert_eq!(validate(&update, &world, &policy()), []);

    let given = with_status(pool("edge", 0, OWN, &[("ns1", "*", "*")]), &["11", "12"]);
    let write = request(WRITER, Operation::Update, given, old);
    assert!(!needs_pools(&write));
    assert_eq!(validate(&write, &World::default(), &policy()), []);
}

#[rstest]
#[case::held(&["11"], Some("can't delete pool before releasing all the allocated IP"))]
#[case::free(&[], None)]
fn a_pool_goes_when_nobody_holds_an_address(#[case] held: &[&str], #[case] expected: Option<&str>) {
    let old = with_status(pool("edge", 0, OWN, &[]), held);
    let faults =
        validate(&request("alice", Operation::Delete, Value::Null, old), &World::default(), &policy());
    assert_eq!(faults.len(), expected.iter().len());
    let good =
        |(fault, text): (&Fault, &str)| fault.text.contains(text) && fault.kind == FaultKind::Forbidden;
    assert!(faults.iter().zip(expected).all(good));
}

#[test]
fn a_record_of_somebody_else_is_not_overwritten_even_past_the_mutator() {
    let old = with_status(pool("edge", 0, OWN, &[]), &["11"]);
    let mut new = old.clone();
    new["status"]["allocated"]["192.168.100.11"] = "evil/lb".into();
    let forged = request("alice", Operation::Update, new, old);
    let faults = validate(&forged, &World::default(), &policy());
    assert_eq!(faults.len(), 1);
    assert!(faults[0].text.starts_with("status.allocated is written by system:serviceaccount"), "{faults:?}");
    let after = patched(&forged.object, &mutate(&forged, &World::default(), &policy()).unwrap());
    assert_eq!(after["status"], forged.old["status"]);
}

fn with_network(network: &str) -> Value {
    let mut pool = pool("edge", 0, OWN, GLOBAL);
    pool["spec"]["selector"]["network"] = network.into();
    pool
}

#[rstest]
#[case::none("", None, Ok("0"))]
#[case::label("team-a/vlan10", Some(json!({"metadata": {"labels": {"network.harvesterhci.io/vlan-id": "10"}}})), Ok("10"))]
#[case::config("team-a/vlan10", Some(json!({"spec": {"config": "{\"vlan\": 12}"}})), Ok("12"))]
#[case::untagged("team-a/vlan10", Some(json!({"spec": {"config": "{}"}})), Ok("0"))]
#[case::missing("team-a/vlan10", None, Err("there is no NetworkAttachmentDefinition team-a/vlan10"))]
#[case::malformed("vlan10", None, Err("selector.network \"vlan10\" is not namespace/name"))]
fn a_pool_is_labelled_with_its_vlan_and_whether_it_is_global(
    #[case] network: &str,
    #[case] definition: Option<Value>,
    #[case] expected: Result<&str, &str>,
) {
    let object = with_network(network);
    let world = World { network: definition, ..World::default() };
    let answer = mutate(&request("alice", Operation::Create, object.clone(), Value::Null), &world, &policy());
    match (answer, expected) {
        (Ok(operations), Ok(vid)) => {
            let labels = json!({"loadbalancer.harvesterhci.io/vid": vid, "loadbalancer.harvesterhci.io/global-ip-pool": "true"});
            assert_eq!(patched(&object, &operations)["metadata"]["labels"], labels);
        }
        (Err(fault), Err(text)) => assert!(fault.text.contains(text), "{}", fault.text),
        (answer, expected) => panic!("{answer:?}, expected {expected:?}"),
    }
}

/// The Go webhook refuses every write to such a pool, so that no address of it is given or taken back any more.
#[rstest]
#[case::deleted("team-a/vlan10")]
#[case::malformed("vlan10")]
fn a_pool_without_label_whose_network_is_not_there_still_gives_addresses(#[case] network: &str) {
    let old = with_network(network);
    let mut new = old.clone();
    new["status"] = json!({"allocated": {"192.168.100.10": "team-a/web"}});
    let write = request(WRITER, Operation::Update, new.clone(), old.clone());
    let operations = mutate(&write, &World::default(), &policy()).unwrap();
    let written = patched(&new, &operations);
    assert_eq!(written["status"], new["status"]);
    assert_eq!(written["metadata"]["labels"].get(labels::VID), None);
    let mut other = new;
    other["spec"]["selector"]["network"] = "team-a/vlan11".into();
    let write = request(WRITER, Operation::Update, other, old);
    assert!(mutate(&write, &World::default(), &policy()).is_err(), "a new network must be there");
}

#[test]
fn a_status_write_looks_no_network_up() {
    let mut old = with_network("team-a/vlan10");
    old["metadata"]["labels"] = json!({labels::VID: "10", labels::GLOBAL_IP_POOL: "true"});
    let write = request(WRITER, Operation::Update, with_status(old.clone(), &["11"]), old);
    assert_eq!(needs_network(&write), Ok(None));
    assert_eq!(mutate(&write, &World::default(), &policy()), Ok(vec![]));
}
