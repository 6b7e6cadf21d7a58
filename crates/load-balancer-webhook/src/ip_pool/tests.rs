use rstest::rstest;
use serde_json::json;

use super::*;
use crate::patch::patched;
use crate::review::{Kind, Reason};

const WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";

fn policy() -> Policy {
    Policy { status_writer: WRITER.to_owned(), ..Policy::default() }
}

fn object(json: Value) -> Box<DynamicObject> {
    Box::new(serde_json::from_value(json).unwrap())
}

fn create(user: &str, pool: Value) -> Write {
    write(user, Change::Create(object(pool)))
}

fn update(user: &str, new: Value, old: Value) -> Write {
    write(user, Change::Update { old: object(old), new: object(new) })
}

fn write(user: &str, change: Change) -> Write {
    let text = ToOwned::to_owned;
    Write { kind: Kind::IPPool, user: text(user), namespace: String::new(), name: text("edge"), change }
}

/// The object after the mutator.
fn completed(write: &Write, seen: &Seen) -> Value {
    let operations = mutate(write, seen, &policy()).unwrap();
    patched(&serde_json::to_value(write.stored().unwrap()).unwrap(), &operations)
}

/// Every expected text occurs in a fault of its own, and there are no others.
fn assert_faults(faults: &Faults, expected: &[&str]) {
    assert_eq!(faults.named().len(), expected.len(), "{faults:?}");
    for (fault, expected) in faults.named().iter().zip(expected) {
        assert!(fault.message.contains(expected), "{:?} does not say {expected:?}", fault.message);
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
fn a_new_pool_is_checked_beside_the_others(
    #[case] existing: &[Value],
    #[case] new: Value,
    #[case] expected: Option<&str>,
) {
    // docs/contract/load-balancer.md#19.4
    let pools = existing.iter().map(|pool| serde_json::from_value(pool.clone()).unwrap()).collect();
    let seen = Seen { pools, network: None };
    let expected: Vec<_> = expected.into_iter().collect();
    assert_faults(&validate(&create("alice", new), &seen, &policy()), &expected);
}

fn with_status(mut pool: Value, allocated: &[&str]) -> Value {
    let records: Value =
        allocated.iter().map(|ip| (format!("192.168.100.{ip}"), json!("shop/web"))).collect();
    pool["status"] = json!({"total": 10, "available": i64::try_from(allocated.len()).map_or(0, |held| 10 - held), "lastAllocated": "", "allocated": records});
    pool
}

const WIDE: &[(&str, &str)] = &[("10", "40")];

#[rstest]
#[case::covered(WIDE, &["11", "12"], OWN, &["11", "12"], &[])]
#[case::newly_excluded(WIDE, &["30"], OWN, &["30"], &["allocated IP 192.168.100.30 is excluded: shop/web holds it and no range covers it; give it a range with drain: true"])]
#[case::every_holder_is_named(WIDE, &["30", "31"], OWN, &["30", "31"], &["100.30 is excluded: shop/web", "100.31 is excluded: shop/web"])]
#[case::outside_before(OWN, &["30", "11"], OWN, &["30", "11"], &[])]
#[case::outside_before_and_released_another(OWN, &["30", "11"], OWN, &["30"], &[])]
#[case::outside_before_and_claimed_another(OWN, &["30"], OWN, &["30", "12"], &[])]
#[case::outside_before_and_other_ranges(OWN, &["30"], &[("10", "15")], &["30"], &[])]
#[case::outside_before_and_another_newly_excluded(OWN, &["30", "18"], &[("10", "15")], &["30", "18"], &["allocated IP 192.168.100.18 is excluded"])]
#[case::record_added_outside(OWN, &["11"], OWN, &["11", "30"], &["allocated IP 192.168.100.30 is excluded"])]
#[case::a_range_split(WIDE, &["11", "30"], &[("10", "20"), ("25", "40")], &["11", "30"], &[])]
fn a_write_is_refused_only_for_addresses_that_it_excludes(
    #[case] before: &[(&str, &str)],
    #[case] held_before: &[&str],
    #[case] now: &[(&str, &str)],
    #[case] held: &[&str],
    #[case] expected: &[&str],
) {
    let old = with_status(pool("edge", 0, before, &[]), held_before);
    let new = with_status(pool("edge", 0, now, &[]), held);
    let faults = validate(&update(WRITER, new, old), &Seen::default(), &policy());
    assert_faults(&faults, expected);
}

/// The history, a label, a description: each is written while a record lies outside of the ranges.
#[rstest]
#[case::history(json!({"status": {"allocatedHistory": {"192.168.100.12": "shop/api"}}}))]
#[case::label(json!({"metadata": {"labels": {"team": "a"}}}))]
#[case::description(json!({"spec": {"description": "edge VLAN"}}))]
#[case::scope(json!({"spec": {"selector": {"scope": [{"namespace": "shop", "project": "*", "guestCluster": "*"}]}}}))]
fn a_record_outside_of_the_ranges_refuses_no_other_write(#[case] change: Value) {
    let old = with_status(pool("edge", 0, OWN, &[]), &["30"]);
    let mut new = old.clone();
    json_patch::merge(&mut new, &change);
    for user in ["alice", WRITER] {
        let faults = validate(&update(user, new.clone(), old.clone()), &Seen::default(), &policy());
        assert_faults(&faults, &[]);
    }
}

#[rstest]
#[case::a_range_of_nonsense(&[("10", "20"), ("9", "nonsense")], &["30"], &[])]
#[case::which_is_repaired(&[("10", "20")], &["30"], &[])]
#[case::which_is_repaired_by_exclusion(&[("12", "20")], &["11"], &["allocated IP 192.168.100.11 is excluded"])]
#[case::and_another(&[("10", "20"), ("9", "nonsense"), ("8", "nonsense")], &[], &["rangeEnd \"192.168.100.nonsense\" is not an IP address"])]
fn a_fault_of_the_ranges_that_stood_before_refuses_no_other_write(
    #[case] ranges: &[(&str, &str)],
    #[case] held: &[&str],
    #[case] expected: &[&str],
) {
    let broken: &[(&str, &str)] = &[("10", "20"), ("9", "nonsense")];
    let old = with_status(pool("edge", 0, broken, &[]), held);
    let mut new = with_status(pool("edge", 0, ranges, &[]), held);
    new["spec"]["description"] = "edge VLAN".into();
    assert_faults(&validate(&update("alice", new, old), &Seen::default(), &policy()), expected);
}

#[test]
fn two_pools_that_overlap_already_can_be_changed_but_not_made_to_overlap_more() {
    let others = [pool("old", 7, &[("15", "16"), ("60", "70")], &[]), pool("older", 8, &[("80", "90")], &[])];
    let pools = others.into_iter().map(|pool| serde_json::from_value(pool).unwrap()).collect();
    let seen = Seen { pools, network: None };
    let old = pool("edge", 9, OWN, &[]);
    let mut described = old.clone();
    described["spec"]["description"] = "edge VLAN".into();
    assert_faults(&validate(&update("alice", described, old.clone()), &seen, &policy()), &[]);
    let check = |ranges: &[(&str, &str)], expected: &[&str]| {
        let new = update("alice", pool("edge", 9, ranges, &[]), old.clone());
        assert_faults(&validate(&new, &seen, &policy()), expected);
    };
    check(&[("10", "20"), ("50", "55")], &[]);
    check(
        &[("10", "20"), ("65", "66")],
        &["192.168.100.65-192.168.100.66 with 192.168.100.60-192.168.100.70 of pool old"],
    );
    check(
        &[("10", "20"), ("85", "86")],
        &["192.168.100.85-192.168.100.86 with 192.168.100.80-192.168.100.90 of pool older"],
    );
    check(&[("10", "21")], &["192.168.100.10-192.168.100.21 with 192.168.100.15-192.168.100.16 of pool old"]);
}

#[test]
fn of_a_hundred_excluded_addresses_twenty_are_named() {
    let held: Vec<String> = (100..200).map(|ip| ip.to_string()).collect();
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    let old = with_status(pool("edge", 0, &[("10", "250")], &[]), &held);
    let new = with_status(pool("edge", 0, OWN, &[]), &held);
    let faults = validate(&update("alice", new, old), &Seen::default(), &policy());
    assert_eq!(faults.named().len(), 20);
    assert!(faults.denial("").unwrap().1.ends_with("; and 80 more"));
}

#[test]
fn an_update_is_not_checked_against_the_pool_itself_and_a_status_write_reads_no_other_pool() {
    // docs/contract/load-balancer.md#WH-8: in the Go program every address that is given re-validates all pools
    let old = with_status(pool("edge", 0, OWN, &[("ns1", "*", "*")]), &["11"]);
    let seen = Seen { pools: Arc::new([serde_json::from_value(old.clone()).unwrap()]), network: None };
    let mut new = old.clone();
    new["spec"]["description"] = "edge VLAN".into();
    let described = update("alice", new, old.clone());
    assert!(needs_pools(&described));
    assert_faults(&validate(&described, &seen, &policy()), &[]);

    let given = with_status(pool("edge", 0, OWN, &[("ns1", "*", "*")]), &["11", "12"]);
    let write = update(WRITER, given, old);
    assert!(!needs_pools(&write));
    assert_faults(&validate(&write, &Seen::default(), &policy()), &[]);
}

/// So many fit into one review, and may stand in a pool from before the limits. A look at every pair takes minutes.
const MANY: usize = 66_000;

#[test]
fn a_write_of_tens_of_thousands_of_scopes_is_decided_without_a_look_at_every_pair() {
    let other = pool("old", 0, OTHER, &[("elsewhere", "*", "*")]);
    let seen = Seen { pools: Arc::new([serde_json::from_value(other).unwrap()]), network: None };
    let scopes = |count: usize| -> Vec<Value> {
        (0..count).map(|number| json!({"namespace": format!("ns{number}")})).collect()
    };
    let with = |scopes: Value| {
        let mut pool = pool("edge", 0, OWN, &[]);
        pool["spec"]["selector"]["scope"] = scopes;
        pool
    };
    let many = with(scopes(MANY).into());
    // the former object of a forged review may be anything
    let forged = update("alice", many.clone(), with(vec![0; MANY].into()));
    assert_faults(&validate(&forged, &seen, &policy()), &[]);

    let part = |prefix: &str, number: usize, bit: usize| match number >> bit & 1 {
        0 => format!("{prefix}{number}"),
        _ => "*".to_owned(),
    };
    // with and without `*` in each part; those with `*` in all parts match every other
    let mixed = (0..MANY).map(|number| {
        json!({"project": part("pj", number, 0), "namespace": part("ns", number, 1), "guestCluster": part("c", number, 2)})
    });
    let mixed = create("alice", with(mixed.collect()));
    assert_eq!(validate(&mixed, &Seen::default(), &policy()).named().len(), 20);

    let mut described = many.clone();
    described["spec"]["description"] = "edge VLAN".into();
    assert_faults(&validate(&update("alice", described, many.clone()), &seen, &policy()), &[]);
    let mut another = many.clone();
    another["spec"]["selector"]["scope"][7] = json!({"namespace": "elsewhere"});
    let faults = validate(&update("alice", another, many), &seen, &policy());
    assert_faults(&faults, &["scope selector is same as the pool old with priority 0"]);
}

#[test]
fn tens_of_thousands_of_records_are_sought_in_as_many_ranges_without_a_look_at_every_pair() {
    let address =
        |number: usize| format!("10.{}.{}.{}", number >> 14, number >> 6 & 255, (number & 63) << 2 | 1);
    let ranges = |count: usize| -> Value {
        (0..count).map(|number| json!({"subnet": format!("{}/32", address(number))})).collect()
    };
    let records =
        |count: usize| -> Value { (0..count).map(|number| (address(number), json!("shop/web"))).collect() };
    let mut old = pool("edge", 0, &[], &[]);
    old["spec"]["ranges"] = ranges(MANY);
    old["status"] = json!({"total": MANY, "available": 0, "lastAllocated": "", "allocated": records(MANY)});
    let mut released = old.clone();
    released["status"]["allocated"] = records(MANY - 1);
    assert_faults(&validate(&update(WRITER, released, old.clone()), &Seen::default(), &policy()), &[]);
    let mut shrunk = old.clone();
    shrunk["spec"]["ranges"] = ranges(MANY - 1);
    let owned: Value = (0..MANY).map(|number| (format!("f:{}", address(number)), json!({}))).collect();
    old["metadata"]["managedFields"] = json!([{"manager": "other", "operation": "Update",
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:status": {"f:allocated": owned}}}]);
    let without_owners = update("alice", shrunk.clone(), old.clone());
    assert_eq!(
        completed(&without_owners, &Seen::default())["metadata"]["managedFields"],
        old["metadata"]["managedFields"]
    );
    let faults = validate(&update("alice", shrunk, old), &Seen::default(), &policy());
    assert_faults(&faults, &["is excluded: shop/web holds it"]);
}

#[rstest]
#[case::held(&["11"], Some("can't delete pool before releasing all the allocated IP"))]
#[case::free(&[], None)]
fn a_pool_is_deleted_only_while_none_of_its_addresses_is_held(
    #[case] held: &[&str],
    #[case] expected: Option<&str>,
) {
    let old = with_status(pool("edge", 0, OWN, &[]), held);
    let faults = validate(&write("alice", Change::Delete(object(old))), &Seen::default(), &policy());
    let expected: Vec<_> = expected.into_iter().collect();
    assert_faults(&faults, &expected);
    assert!(faults.named().iter().all(|fault| fault.reason == Reason::Forbidden));
}

#[test]
fn a_record_of_another_holder_is_not_overwritten_even_when_the_mutator_was_bypassed() {
    let old = with_status(pool("edge", 0, OWN, &[]), &["11"]);
    let mut new = old.clone();
    new["status"]["allocated"]["192.168.100.11"] = "evil/lb".into();
    let forged = update("alice", new, old.clone());
    let faults = validate(&forged, &Seen::default(), &policy());
    assert_faults(&faults, &["status.allocated is written by system:serviceaccount"]);
    assert_eq!(completed(&forged, &Seen::default())["status"], old["status"]);
}

#[rstest]
#[case::added(&[], &["names address \"FD00:6::15\": write fd00:6::15"])]
#[case::stands(&["FD00:6::15"], &[])]
fn a_new_record_names_its_address_in_the_words_of_the_load_balancer(
    #[case] stand: &[&str],
    #[case] expected: &[&str],
) {
    let mut old = pool("edge", 0, &[], GLOBAL);
    old["spec"]["ranges"] = json!([{"subnet": "fd00:6::/64"}]);
    let mut new = old.clone();
    for key in stand {
        old["status"]["allocated"][*key] = "capi/m-1".into();
    }
    new["status"] = json!({"allocated": {"FD00:6::15": "capi/m-1", "fd00:6::16": "capi/m-2"}});
    assert_faults(
        &validate(&update("capi", new.clone(), old.clone()), &Seen::default(), &policy()),
        expected,
    );
    // what stands is the load balancer's to write back
    assert_faults(&validate(&update(WRITER, new, old), &Seen::default(), &policy()), &[]);
}

// of one address under two keys the load balancer knows one holder, and the other is released not even by hand
#[rstest]
#[case::beside_the_standing_key(&["FD00:6::15", "fd00:6::15"], &["names address \"fd00:6::15\", which \"FD00:6::15\" names already"])]
#[case::another_address(&["FD00:6::15", "fd00:6::16"], &[])]
#[case::in_place_of_the_standing_key(&["fd00:6::15"], &[])]
fn an_address_is_not_recorded_twice(#[case] keys: &[&str], #[case] expected: &[&str]) {
    let mut old = pool("edge", 0, &[], GLOBAL);
    old["spec"]["ranges"] = json!([{"subnet": "fd00:6::/64"}]);
    let fields = json!({"f:status": {"f:allocated": {"f:FD00:6::15": {}}}});
    old["metadata"]["managedFields"] = json!([{"manager": "capi", "fieldsV1": fields}]);
    let mut new = old.clone();
    old["status"] = json!({"allocated": {"FD00:6::15": "capi/m-1"}});
    for key in keys {
        new["status"]["allocated"][*key] = "capi/m-1".into();
    }
    assert_faults(&validate(&update("capi", new, old), &Seen::default(), &policy()), expected);
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
#[case::path("team-a/secrets/x", None, Err("is not namespace/name"))]
#[case::query("team-a?watch=1/vlan10", None, Err("is not namespace/name"))]
#[case::above("../vlan10", None, Err("is not namespace/name"))]
fn a_pool_is_labelled_with_its_vlan_and_whether_it_is_global(
    #[case] network: &str,
    #[case] definition: Option<Value>,
    #[case] expected: Result<&str, &str>,
) {
    let object = with_network(network);
    let network = definition.map(|mut definition| {
        definition["metadata"]["name"] = "vlan10".into();
        serde_json::from_value(definition).unwrap()
    });
    let seen = Seen { network, ..Seen::default() };
    let answer = mutate(&create("alice", object.clone()), &seen, &policy());
    match (answer, expected) {
        (Ok(operations), Ok(vid)) => {
            let labels = json!({"loadbalancer.harvesterhci.io/vid": vid, "loadbalancer.harvesterhci.io/global-ip-pool": "true"});
            assert_eq!(patched(&object, &operations)["metadata"]["labels"], labels);
        }
        (Err(fault), Err(text)) => assert!(fault.message.contains(text), "{}", fault.message),
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
    let write = update(WRITER, new.clone(), old.clone());
    let written = completed(&write, &Seen::default());
    assert_eq!(written["status"], new["status"]);
    assert_eq!(written["metadata"]["labels"].get(labels::VID), None);
    let mut other = new;
    other["spec"]["selector"]["network"] = "team-a/vlan11".into();
    let write = update(WRITER, other, old);
    assert!(mutate(&write, &Seen::default(), &policy()).is_err(), "a new network must be there");
}

#[test]
fn a_status_write_reads_no_network() {
    let mut old = with_network("team-a/vlan10");
    old["metadata"]["labels"] = json!({labels::VID: "10", labels::GLOBAL_IP_POOL: "true"});
    let write = update(WRITER, with_status(old.clone(), &["11"]), old);
    assert_eq!(needs_network(&write), Ok(None));
    assert_eq!(mutate(&write, &Seen::default(), &policy()), Ok(vec![]));
}

#[test]
fn nobody_forges_the_record_of_a_pool_that_is_being_deleted() {
    let mut old = with_status(pool("edge", 0, &[("10", "20")], &[]), &["10"]);
    old["metadata"]["deletionTimestamp"] = "2026-08-20T10:00:00Z".into();
    let mut robbed = old.clone();
    robbed["status"]["allocated"] = json!({"192.168.100.10": "evil/lb"});
    let mut wiped = old.clone();
    wiped.as_object_mut().unwrap().remove("status");
    for new in [robbed, wiped] {
        let forged = update("alice", new, old.clone());
        assert_faults(&validate(&forged, &Seen::default(), &policy()), &["status.allocated is written by"]);
        let after = completed(&forged, &Seen::default());
        assert_eq!((&after["status"], &after["metadata"]), (&old["status"], &old["metadata"]));
    }
    let mut released = old.clone();
    released["metadata"]["finalizers"] = json!([]);
    let released = update("alice", released, old);
    assert_faults(&validate(&released, &Seen::default(), &policy()), &[]);
    assert_eq!(mutate(&released, &Seen::default(), &policy()), Ok(vec![]));
}

#[rstest]
#[case::begins(false, true)]
#[case::ends(true, false)]
fn a_range_that_begins_or_ends_to_drain_is_no_new_one(#[case] before: bool, #[case] now: bool) {
    let with = |drain: bool| {
        let mut pool = with_status(pool("edge", 1, OWN, &[]), &["11"]);
        pool["spec"]["ranges"][0]["drain"] = drain.into();
        pool
    };
    let other = serde_json::from_value(pool("older", 2, OWN, &[])).unwrap();
    let seen = Seen { pools: vec![other].into(), network: None };
    assert_faults(&validate(&update("alice", with(now), with(before)), &seen, &policy()), &[]);
}

#[test]
fn a_pool_shrinks_to_what_is_held_with_a_range_that_drains() {
    let old = with_status(pool("edge", 0, WIDE, &[]), &["30"]);
    let mut now = with_status(pool("edge", 0, &[("10", "20"), ("30", "30")], &[]), &["30"]);
    now["spec"]["ranges"][1]["drain"] = true.into();
    assert_faults(&validate(&update("alice", now, old), &Seen::default(), &policy()), &[]);
}

#[rstest]
#[case::right(json!([{"guestCluster": "blue", "max": 2}, {"namespace": "shop", "max": 0}]), &[])]
#[case::negative(json!([{"namespace": "shop", "max": -1}]), &["spec.quota[0].max -1 is negative"])]
#[case::no_name(json!([{"max": 1}]), &["spec.quota[0] names neither guestCluster nor namespace"])]
#[case::both_names(json!([{"guestCluster": "blue", "namespace": "shop", "max": 1}]), &["spec.quota[0] names both"])]
#[case::twice(json!([{"namespace": "shop", "max": 1}, {"namespace": "shop", "max": 2}]), &["names namespace shop a second time"])]
fn a_quota_is_refused_where_it_cannot_be_meant(#[case] quota: Value, #[case] expected: &[&str]) {
    let with = |quota: &Value| {
        let mut pool = pool("edge", 0, OWN, &[]);
        pool["spec"]["quota"] = quota.clone();
        pool
    };
    assert_faults(&validate(&create("alice", with(&quota)), &Seen::default(), &policy()), expected);
    let before = pool("edge", 0, OWN, &[]);
    assert_faults(&validate(&update("alice", with(&quota), before), &Seen::default(), &policy()), expected);
    // one that stood before, with the webhook away, refuses no other write
    let mut claimed = with_status(with(&quota), &["11"]);
    claimed["spec"]["description"] = "edge VLAN".into();
    assert_faults(&validate(&update(WRITER, claimed, with(&quota)), &Seen::default(), &policy()), &[]);
}

#[rstest]
#[case::none(0, &[])]
#[case::a_day(86_400, &[])]
#[case::negative(-1, &["spec.quarantineSeconds -1 is outside of 0 to"])]
#[case::huge(i64::MAX, &["is outside of 0 to"])]
fn a_rest_that_cannot_be_meant_is_refused(#[case] seconds: i64, #[case] expected: &[&str]) {
    let mut pool = pool("edge", 0, OWN, &[]);
    pool["spec"]["quarantineSeconds"] = seconds.into();
    assert_faults(&validate(&create("alice", pool.clone()), &Seen::default(), &policy()), expected);
    let claimed = with_status(pool.clone(), &["11"]);
    assert_faults(&validate(&update(WRITER, claimed, pool), &Seen::default(), &policy()), &[]);
}

/// A pool that its owner means to reserve would serve everybody.
#[rstest]
#[case::reserved("false", &[])]
#[case::for_all("true", &[])]
#[case::misspelt("flase", &["auto-assign is \"flase\": write \"true\" or \"false\", or leave it out"])]
fn a_word_that_reserves_no_pool_is_refused_where_it_is_new(#[case] word: &str, #[case] expected: &[&str]) {
    let mut pool = pool("edge", 0, OWN, &[]);
    pool["metadata"]["annotations"] = json!({annotations::AUTO_ASSIGN: word});
    assert_faults(&validate(&create("alice", pool.clone()), &Seen::default(), &policy()), expected);
    let mut changed = pool.clone();
    changed["spec"]["description"] = "edge VLAN".into();
    assert_faults(&validate(&update("alice", changed, pool), &Seen::default(), &policy()), &[]);
}

// kubectl replace, and tools that write as it does
#[test]
fn a_pool_that_is_replaced_without_status_keeps_its_rests() {
    let rests = r#"{"192.168.100.12":"2026-01-01T00:00:00Z"}"#;
    let mut old = with_status(pool("edge", 0, OWN, &[]), &["11"]);
    old["metadata"]["annotations"] = json!({annotations::QUARANTINE: rests, "team": "a"});
    let annotations_of = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        let after = completed(&update("alice", new, old.clone()), &Seen::default());
        after["metadata"]["annotations"][annotations::QUARANTINE].clone()
    };
    let replace = |annotations: Value| {
        annotations_of(&|new: &mut Value| {
            new.as_object_mut().unwrap().remove("status");
            new["metadata"]["annotations"] = annotations.clone();
        })
    };
    assert_eq!(replace(json!(null)), rests);
    assert_eq!(replace(json!({"team": "b"})), rests);
    assert_eq!(replace(json!({annotations::QUARANTINE: "{}"})), "{}", "who writes them means it");
    let removed = annotations_of(&|new: &mut Value| {
        new["metadata"]["annotations"].as_object_mut().unwrap().remove(annotations::QUARANTINE);
    });
    assert_eq!(removed, Value::Null, "kubectl annotate ends rests");
}
