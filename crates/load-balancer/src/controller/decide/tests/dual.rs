//! An object with two addresses: 10.0.1.7 of pool edge and fd00:6::7 of pool six.

use super::*;

const FIRST: (&str, &str) = ("edge", "10.0.1.7");
const SECOND: (&str, &str) = ("six", "fd00:6::7");

pub(super) fn pools() -> Arc<Vec<CheckedPool>> {
    let pool = |name: &str, subnet: &str| {
        json!({"metadata": {"name": name}, "spec": {"ranges": [{"subnet": subnet}],
            "selector": {"scope": [{"namespace": "*", "project": "*", "guestCluster": "*"}]}}})
    };
    let pools = [pool("edge", "10.0.1.0/24"), pool("six", "fd00:6::/64")];
    Arc::new(ip_pools::check_specs(&pools.map(|pool| serde_json::from_value(pool).unwrap())))
}

fn asking(policy: &str, rest: &Value) -> Value {
    let annotations = json!({annotations::IP_FAMILIES: "IPv4,IPv6", annotations::IP_FAMILY_POLICY: policy});
    let own = json!({"metadata": {"annotations": annotations}, "spec": {"ipPool": ""}});
    merged(own, rest)
}

/// With both in its status, and with these records.
fn with_both(policy: &str, shown: &str, records: &[(&str, &str)]) -> Seen {
    let second = json!({"status": {"address": shown, "addresses": ["10.0.1.7", "fd00:6::7"],
        "allocatedAddress": {"ipv6Pool": "six", "ipv6IP": "fd00:6::7", "ipv6Mask": "ffff:ffff:ffff:ffff::"}}});
    let seen = recorded(Seen { object: settled("cluster", &asking(policy, &second)), ..seen() }, records);
    let second_holder = RecordedHolder::Us;
    Seen { address: SeenAddress { pools: pools(), second_holder, ..seen.address }, ..seen }
}

fn new(policy: &str, records: &[(&str, &str)]) -> Seen {
    let seen = recorded(Seen { object: object("cluster", &asking(policy, &json!({}))), ..seen() }, records);
    let second_holder = RecordedHolder::Nobody;
    Seen { address: SeenAddress { pools: pools(), second_holder, ..seen.address }, ..seen }
}

#[rstest]
#[case::first_claim(new("PreferDualStack", &[]), &["claim from edge"])]
#[case::second_claim(new("PreferDualStack", &[FIRST]), &["claim from six"])]
#[case::both_are_there(new("PreferDualStack", &[FIRST, SECOND]), &["write object"])]
#[case::settled(with_both("PreferDualStack", "10.0.1.7", &[FIRST, SECOND]), &[])]
#[case::settled_and_required(with_both("RequireDualStack", "", &[FIRST, SECOND]), &[])]
#[case::given_up(with_both("SingleStack", "10.0.1.7", &[FIRST, SECOND]), &[])]
fn an_object_gets_two_addresses_with_one_write(#[case] seen: Seen, #[case] expected: &[&str]) {
    assert_eq!(steps(&seen), expected);
}

#[test]
fn both_addresses_stand_in_the_fields_for_them() {
    let status = written(&new("RequireDualStack", &[FIRST, SECOND]));
    assert_eq!(
        status["allocatedAddress"],
        json!({"ipPool": "edge", "ip": "10.0.1.7", "mask": "255.255.255.0", "gateway": "10.0.1.1",
            "ipv6Pool": "six", "ipv6IP": "fd00:6::7", "ipv6Mask": "ffff:ffff:ffff:ffff::", "ipv6Gateway": "fd00:6::1"})
    );
    assert_eq!(reason(&status), (true, "AddressAllocated".to_owned()));
}

#[rstest]
#[case::preferred("PreferDualStack", true, "no IPv6 address: no matched IPPool")]
#[case::required("RequireDualStack", false, "two addresses are required: no IPv6 address: no matched IPPool")]
fn without_a_pool_of_the_second_family_the_condition_names_that_family(
    #[case] policy: &str,
    #[case] is_served: bool,
    #[case] message: &str,
) {
    let mut seen = new(policy, &[FIRST]);
    let v4 = seen.address.pools.iter().filter(|checked| checked.pool.name == "edge").cloned();
    seen.address.pools = Arc::new(v4.collect());
    let status = written(&seen);
    let expected = if is_served { json!("10.0.1.7") } else { Value::Null };
    assert_eq!(status["allocatedAddress"]["ip"], expected);
    assert_eq!(reason(&status).0, is_served);
    let told = status["conditions"][0]["message"].as_str().unwrap();
    assert!(told.starts_with(message), "{told}");
    assert_eq!(decide(&seen).waits_for, Some(WaitingFor::Selection(Vec::new())), "a pool wakes it");
    // and it is told once
    seen.object = Some(after(&seen, &status));
    assert_eq!(steps(&seen), [""; 0], "what it holds stays held");
}

// docs/contract/addresses.md#9
#[rstest]
#[case::former_first("10.0.1.7", &[FIRST, ("edge", "10.0.1.9"), SECOND], &["release 10.0.1.9 of edge"])]
#[case::former_first_that_is_announced("10.0.1.9", &[FIRST, ("edge", "10.0.1.9"), SECOND], &[])]
// kube-vip announces the former first address beside the second, and nothing says so
#[case::only_the_second_is_told("fd00:6::7", &[FIRST, ("edge", "10.0.1.9"), SECOND], &[])]
#[case::another_of_ipv6("10.0.1.7", &[FIRST, SECOND, ("six", "fd00:6::9")], &[])]
fn a_second_ipv6_record_stays_and_a_former_ipv4_address_goes_once_the_new_one_is_announced(
    #[case] shown: &str,
    #[case] records: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    for policy in ["PreferDualStack", "RequireDualStack", "SingleStack"] {
        assert_eq!(steps(&with_both(policy, shown, records)), expected, "{policy}");
    }
}

#[test]
fn an_ipv6_record_that_an_older_pool_gives_to_another_goes_back() {
    let mut seen = with_both("PreferDualStack", "10.0.1.7", &[FIRST, SECOND]);
    seen.address.outranked = vec![("young".to_owned(), "fd00:6::9".parse().unwrap())];
    assert_eq!(steps(&seen), ["release fd00:6::9 of young"]);
}

// a server with an older schema drops the fields, and the annotations stay
#[test]
fn where_the_crd_loses_the_fields_the_second_record_stays_and_the_condition_says_why() {
    let mut seen = with_both("PreferDualStack", "10.0.1.7", &[FIRST, SECOND]);
    (seen.has_second_address_field, seen.has_addresses_field) = (false, false);
    seen.address.second_holder = RecordedHolder::Nobody;
    let mut json = seen.object.as_ref().unwrap().json();
    for field in ["ipv6Pool", "ipv6IP", "ipv6Mask"] {
        json["status"]["allocatedAddress"].as_object_mut().unwrap().remove(field);
    }
    json["status"].as_object_mut().unwrap().remove("addresses");
    let note = "only one of two families: the CRD of LoadBalancer objects has no field status.allocatedAddress.ipv6IP, \
                or may not be read: install that of this project";
    json["status"]["conditions"][0]["message"] = note.into();
    seen.object = Some(Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&seen), [""; 0]);
}

#[test]
fn where_the_crd_has_no_list_of_addresses_both_are_shown_and_the_condition_says_so() {
    let mut seen = Seen { has_addresses_field: false, ..new("RequireDualStack", &[FIRST, SECOND]) };
    let status = written(&seen);
    assert_eq!((&status["allocatedAddress"]["ipv6IP"], status.get("addresses")), (&json!("fd00:6::7"), None));
    let no_list = crate::controller::families::NO_LIST;
    assert_eq!((reason(&status).0, &status["conditions"][0]["message"]), (true, &json!(no_list)));
    seen.object = Some(after(&seen, &status));
    seen.address.second_holder = RecordedHolder::Us;
    assert_eq!(steps(&seen), [""; 0], "it is told once");
    let status = written(&Seen { has_addresses_field: true, ..seen });
    assert_eq!(status["addresses"], json!(["10.0.1.7", "fd00:6::7"]));
    assert_eq!(status["conditions"][0]["message"], "");
}

#[rstest]
#[case::to_be_deleted(true)]
#[case::gone(false)]
fn both_records_go_with_the_object(#[case] exists: bool) {
    let mut seen = with_both("PreferDualStack", "10.0.1.7", &[FIRST, SECOND]);
    let mut json = seen.object.as_ref().unwrap().json();
    json_patch::merge(&mut json, &deleting());
    seen.object = exists.then(|| Arc::new(RawObject::from_json(json).unwrap()));
    assert_eq!(steps(&seen), ["release 10.0.1.7 of edge", "release fd00:6::7 of six"]);
}

/// A claim from this pool that the server denied.
fn denied(pool: &str, family: Family) -> crate::pool::orders::Failed {
    crate::pool::orders::Failed {
        pool: pool.to_owned(),
        order: Order::Claim { holder: "shop/web".to_owned(), known: None, family: Some(family) },
        error: crate::pool::orders::WriteError { why: "denied by admission".to_owned(), is_denied: true },
        retry_in: Duration::from_secs(60),
    }
}

/// The object with the status that was written.
fn after(seen: &Seen, status: &Value) -> Arc<RawObject<LoadBalancer>> {
    let mut json = seen.object.as_ref().unwrap().json();
    json["metadata"]["finalizers"] = json!([finalizers::LOAD_BALANCER]);
    json["status"] = status.clone();
    Arc::new(RawObject::from_json(json).unwrap())
}

#[test]
fn a_second_pool_that_cannot_be_written_keeps_no_preferred_address_back() {
    let mut seen = new("PreferDualStack", &[FIRST]);
    seen.address.pending.failed = vec![denied("six", Family::V6)];
    let status = written(&seen);
    assert_eq!((reason(&status).0, &status["allocatedAddress"]["ip"]), (true, &json!("10.0.1.7")));
    let told = status["conditions"][0]["message"].as_str().unwrap();
    assert!(told.contains("pool six: the pool cannot be written: denied by admission"), "{told}");
}

#[rstest]
#[case::nothing_yet(&[], &["claim from six"])]
#[case::six_is_there(&[SECOND], &["write object"])]
fn a_first_pool_that_cannot_be_written_keeps_no_ipv6_address_back(
    #[case] records: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    for policy in ["PreferDualStack", "RequireDualStack"] {
        let mut seen = new(policy, records);
        seen.address.pending.failed = vec![denied("edge", Family::V4)];
        assert_eq!(steps(&seen), expected, "{policy}");
        seen.address.pending.failed.push(denied("six", Family::V6));
        assert_eq!(steps(&seen), ["write object"], "{policy}");
    }
}

#[rstest]
#[case::first_denied(("edge", Family::V4), "six")]
#[case::second_denied(("six", Family::V6), "edge")]
fn while_the_claim_of_one_family_is_denied_an_address_of_the_other_family_s_pool_wakes_the_object(
    #[case] (pool, family): (&str, Family),
    #[case] full: &str,
) {
    let mut seen = new("PreferDualStack", &[]);
    let mut json = seen.object.as_ref().unwrap().json();
    json_patch::merge(&mut json, &json!({"spec": {"ipPool": "edge", "ipv6Pool": "six"}}));
    seen.object = Some(Arc::new(RawObject::from_json(json).unwrap()));
    let exhausted = Refused::Exhausted {
        pool: full.to_owned(),
        ranges: String::new(),
        family: None,
        drains: false,
        rests_for: 0,
    };
    seen.address.refused = vec![(full.to_owned(), exhausted)];
    seen.address.pending.failed = vec![denied(pool, family)];
    let named = |pool: &str| WaitingFor::Named(pool.to_owned());
    assert_eq!(decide(&seen).waits_for, Some(named(pool).or(named(full))));
}

#[test]
fn a_refused_wish_beside_a_pool_that_cannot_be_written_is_told_once() {
    let mut seen = new("PreferDualStack", &[FIRST]);
    let mut json = seen.object.as_ref().unwrap().json();
    json["metadata"]["annotations"][annotations::REQUESTED_IP] = "10.9.9.9".into();
    seen.object = Some(Arc::new(RawObject::from_json(json).unwrap()));
    seen.address.pending.failed = vec![denied("six", Family::V6)];
    let status = written(&seen);
    let told = status["conditions"][0]["message"].as_str().unwrap();
    assert!(told.contains("denied by admission; requested address 10.9.9.9 is not used: "), "{told}");
    seen.object = Some(after(&seen, &status));
    assert_eq!(steps(&seen), [""; 0]);
}

// else the address would move to the one that was wished for when that comes free
#[rstest]
#[case::no_pool_of_the_second_family(false)]
#[case::one_that_cannot_be_written(true)]
fn a_refused_wish_is_known_whatever_else_the_condition_has_to_say(#[case] has_six: bool) {
    let mut seen = new("PreferDualStack", &[FIRST]);
    let mut json = seen.object.as_ref().unwrap().json();
    let (project, cluster) = ("p".repeat(300), "c".repeat(63));
    let wish = json!({annotations::LB_PROJECT: project, annotations::LB_CLUSTER: cluster,
        annotations::REQUESTED_IP: "10.0.1.9"});
    json_patch::merge(&mut json, &json!({"metadata": {"annotations": wish}}));
    seen.object = Some(Arc::new(RawObject::from_json(json).unwrap()));
    if has_six {
        let mut denied = denied("six", Family::V6);
        denied.error.why = "n".repeat(500);
        seen.address.pending.failed = vec![denied];
    } else {
        let v4 = seen.address.pools.iter().filter(|checked| checked.pool.name == "edge").cloned();
        seen.address.pools = Arc::new(v4.collect());
    }
    seen.address.rivals = vec![([10, 0, 1, 9].into(), "other/api".to_owned())];
    let status = written(&seen);
    let told = status["conditions"][0]["message"].as_str().unwrap();
    assert!(told.ends_with("; requested address 10.0.1.9 is not used: it is in use"), "{told}");
    seen.object = Some(after(&seen, &status));
    seen.address.rivals = Vec::new();
    assert_eq!(steps(&seen), [""; 0]);
}

/// An object that requires two and has been told so, while there is no pool of IPv6.
fn lacking_ipv6(spec: &Value, annotations: &Value, records: &[(&str, &str)]) -> Seen {
    let mut seen = new("RequireDualStack", records);
    let mut json = seen.object.as_ref().unwrap().json();
    json_patch::merge(&mut json, &json!({"spec": spec, "metadata": {"annotations": annotations}}));
    seen.object = Some(Arc::new(RawObject::from_json(json).unwrap()));
    let v4 = seen.address.pools.iter().filter(|checked| checked.pool.name != "six").cloned();
    seen.address.pools = Arc::new(v4.collect());
    let nowhere = "nowhere".to_owned();
    seen.address.refused = vec![(nowhere.clone(), Refused::NoSuchPool { pool: nowhere })];
    seen.object = Some(after(&seen, &written(&seen)));
    seen
}

// one that is never served holds no address of each pool that it names
#[rstest]
#[case::of_another_pool(json!({"ipPool": "edge", "ipv6Pool": "nowhere"}), json!({}), &[("core", "10.0.2.5"), FIRST],
    &["release 10.0.2.5 of core"])]
#[case::a_former_demand(json!({}), json!({annotations::REQUESTED_IP_STRICT: "10.0.1.9"}), &[FIRST, ("edge", "10.0.1.9")],
    &["release 10.0.1.7 of edge"])]
#[case::two_former_ones(json!({}), json!({annotations::REQUESTED_IP_STRICT: "10.0.1.8"}), &[FIRST, ("edge", "10.0.1.9")],
    &["release 10.0.1.9 of edge"])]
#[case::one_alone(json!({"ipPool": "edge", "ipv6Pool": "nowhere"}), json!({}), &[FIRST], &[])]
fn an_object_that_shows_nothing_holds_one_record_of_each_family(
    #[case] spec: Value,
    #[case] annotations: Value,
    #[case] records: &[(&str, &str)],
    #[case] expected: &[&str],
) {
    assert_eq!(steps(&lacking_ipv6(&spec, &annotations, records)), expected);
}

/// One pool of both families, of which these refusals are known.
fn of_one_pool(records: &[(&str, &str)], refused: &[Refused]) -> Seen {
    let mut seen = new("RequireDualStack", records);
    let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [{"subnet": "10.0.1.0/24"}, {"subnet": "fd00:6::/64"}],
        "selector": {"scope": [{"namespace": "*", "project": "*", "guestCluster": "*"}]}}});
    seen.address.pools = Arc::new(ip_pools::check_specs([&serde_json::from_value(pool).unwrap()]));
    seen.address.refused = refused.iter().map(|why| ("edge".to_owned(), why.clone())).collect();
    seen
}

#[test]
fn two_that_are_required_of_one_pool_are_claimed_together() {
    assert_eq!(steps(&of_one_pool(&[], &[])), ["claim both families from edge"]);
    assert_eq!(steps(&of_one_pool(&[FIRST], &[])), ["claim from edge"]);
    let mut prefers = of_one_pool(&[], &[]);
    prefers.object = Some(object("cluster", &asking("PreferDualStack", &json!({}))).unwrap());
    assert_eq!(steps(&prefers), ["claim from edge"], "it is served with one");
}

// an earlier version left it, or the range of the other family was full when it asked
#[test]
fn half_of_two_goes_back_when_the_quota_has_no_room_for_the_other() {
    let tenant = ipam::Tenant::Namespace("shop".into());
    let refused = Refused::QuotaExceeded {
        pool: "edge".into(),
        tenant,
        max: 9,
        asked: 1,
        is_more_held: false,
        rests: false,
        moves: false,
    };
    let mut seen = of_one_pool(&[FIRST], &[refused]);
    seen.object = Some(after(&seen, &written(&seen)));
    assert_eq!(steps(&seen), ["release 10.0.1.7 of edge"]);
    let full = Refused::Exhausted {
        pool: "edge".into(),
        ranges: String::new(),
        family: Some(Family::V6),
        drains: false,
        rests_for: 0,
    };
    let mut seen = of_one_pool(&[FIRST], &[full]);
    seen.object = Some(after(&seen, &written(&seen)));
    assert_eq!(steps(&seen), [""; 0]);
}
