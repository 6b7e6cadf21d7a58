//! An object that asks for a family. The pools edge (10.0.1.0/24) and core (10.0.2.0/24) have IPv4 addresses, six
//! (fd00:6::/64) has IPv6 addresses, and both (10.0.4.0/24, fd00:4::/64) has both. All serve it, best first: six, core,
//! edge, both.

use super::*;

pub(super) fn pools() -> [CheckedPool; 4] {
    let pool = |name: &str, priority: u32, subnets: &[&str]| {
        let ranges: Vec<_> = subnets.iter().map(|subnet| json!({"subnet": subnet})).collect();
        let json = json!({"metadata": {"name": name}, "spec": {"ranges": ranges,
            "selector": {"priority": priority, "scope": [{"namespace": "shop", "project": "*", "guestCluster": "*"}]}}});
        check(&serde_json::from_value::<IPPool>(json).unwrap(), [])
    };
    [
        pool("edge", 2, &["10.0.1.0/24"]),
        pool("core", 3, &["10.0.2.0/24"]),
        pool("six", 4, &["fd00:6::/64"]),
        pool("both", 1, &["10.0.4.0/24", "fd00:4::/64"]),
    ]
}

pub(super) fn asking(families: &str, policy: &str, has: Option<(&str, &str)>) -> LoadBalancer {
    let mut lb = load_balancer("", has);
    for (key, text) in [(annotations::IP_FAMILIES, families), (annotations::IP_FAMILY_POLICY, policy)] {
        lb.annotations_mut().insert(key.to_owned(), text.to_owned());
    }
    lb
}

fn decided(lb: &LoadBalancer, recorded: &[(&str, &str)]) -> Decided {
    decide(&Seen {
        lb,
        pools: &pools(),
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder: if lb.status.is_some() { RecordedHolder::Us } else { RecordedHolder::Nobody },
        recorded: &records(recorded),
        service_names_address: false,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    })
}

#[rstest]
// docs/contract/addresses.md#5: an object of the Go program, which asks for none, gets what the pool has
#[case::of_the_go_program("", "", "six")]
#[case::ipv4("IPv4", "", "core")]
#[case::ipv6(" IPv6 ", "SingleStack", "six")]
fn an_object_that_asks_for_one_family_draws_from_a_pool_that_has_it(
    #[case] families: &str,
    #[case] policy: &str,
    #[case] pool: &str,
) {
    assert_eq!(decided(&asking(families, policy, None), &[]), claim(pool).into());
}

#[rstest]
#[case::alone("", "IPv6", "both", Some(Family::V6))]
#[case::beside_another("six", "IPv6", "both", Some(Family::V6))]
#[case::of_an_object_of_ipv4("", "IPv4", "core", None)]
#[case::of_an_object_of_ipv4_that_names_another("edge", "IPv4", "edge", None)]
fn an_object_of_ipv6_alone_draws_from_the_pool_that_it_names_for_ipv6(
    #[case] ip_pool: &str,
    #[case] families: &str,
    #[case] pool: &str,
    #[case] family: Option<Family>,
) {
    let mut lb = asking(families, "", None);
    lb.spec.ip_pool = ip_pool.to_owned();
    lb.spec.ipv6_pool = "both".to_owned();
    let Decided { decision, dual, .. } = decided(&lb, &[]);
    assert_eq!((decision, dual.family), (claim(pool), family));
    lb.spec.ipv6_pool = "gone".to_owned();
    if let Decision::Claim { pool, .. } = decided(&lb, &[]).decision {
        assert_eq!(pool == "gone", family.is_some());
    }
}

#[test]
fn an_object_that_names_a_pool_for_ipv6_and_asks_for_ipv4_alone_is_told() {
    let mut lb = asking("IPv4", "", None);
    lb.spec.ipv6_pool = "six".to_owned();
    let Decided { decision, note, .. } = decided(&lb, &[]);
    let told = "spec.ipv6Pool has no effect: the load balancer does not ask for an IPv6 address";
    assert_eq!((decision, note.as_deref()), (claim("core"), Some(told)));
    lb.annotations_mut().insert(annotations::IP_FAMILIES.to_owned(), "IPv6".to_owned());
    assert_eq!(decided(&lb, &[]).note, None);
}

#[rstest]
#[case::says_nothing("", None, claim("core"))]
#[case::ipv6("IPv6", None, claim("six"))]
#[case::has_one("", Some(("six", "fd00:6::5")), has(address("six", "fd00:6::5")))]
fn an_object_of_our_cloud_controller_manager_that_names_no_family_draws_ipv4_and_keeps_what_it_has(
    #[case] families: &str,
    #[case] had: Option<(&str, &str)>,
    #[case] expected: Decision,
) {
    let mut lb = asking(families, "", had);
    lb.annotations_mut().insert(annotations::CLUSTER_UID.to_owned(), "c1".to_owned());
    assert_eq!(decided(&lb, had.as_slice()), expected.into());
}

#[rstest]
#[case::ipv4_first("IPv4,IPv6", "PreferDualStack", "core")]
#[case::ipv6_first("IPv6,IPv4", "", "six")]
#[case::by_policy_alone("", "PreferDualStack", "core")]
fn where_the_crd_has_no_second_address_an_object_that_would_like_two_gets_one_and_is_told(
    #[case] families: &str,
    #[case] policy: &str,
    #[case] pool: &str,
) {
    let told = "only one of two families: the CRD of LoadBalancer objects has no field status.allocatedAddress.ipv6IP, \
                or may not be read: install that of this project";
    let told = Some(told.to_owned());
    let Decided { decision, note, .. } = decided(&asking(families, policy, None), &[]);
    assert_eq!((decision, note), (claim(pool), told.clone()));
    // whichever it has stays, also where it asks for both
    let mut lb = asking(families, policy, Some(("edge", "10.0.1.5")));
    let both = "10.0.1.5,fd00:6::9".to_owned();
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), both);
    let Decided { decision, note, .. } = decided(&lb, &[("edge", "10.0.1.5")]);
    assert_eq!((decision, note), (has(address("edge", "10.0.1.5")), told));
}

#[rstest]
#[case::two_required("IPv4,IPv6", "RequireDualStack", "DualStackNotSupported")]
#[case::no_family("IPv5", "", "InvalidIPFamilies")]
#[case::one_family_twice("IPv4,IPv4", "", "InvalidIPFamilies")]
#[case::no_policy("IPv4", "TripleStack", "InvalidIPFamilies")]
#[case::huge(&"IPv4,".repeat(10_000), "", "InvalidIPFamilies")]
fn an_object_that_cannot_have_what_it_asks_for_keeps_what_it_has(
    #[case] families: &str,
    #[case] policy: &str,
    #[case] reason: &str,
) {
    for (has, recorded) in [(None, &[][..]), (Some(("edge", "10.0.1.5")), &[("edge", "10.0.1.5")][..])] {
        let decision = decided(&asking(families, policy, has), recorded).decision;
        let Decision::Wait { waiting, meanwhile, .. } = decision else { panic!("{decision:?}") };
        assert_eq!(waiting.reason, reason);
        assert_eq!(meanwhile, has.map(|(pool, ip)| address(pool, ip)));
        assert!(waiting.message.len() < 400, "{}", waiting.message);
    }
}

#[test]
fn the_field_of_an_object_counts_before_its_annotation() {
    let mut lb = asking("IPv4", "RequireDualStack", None);
    lb.spec.ip_family_policy = Some(harvester_api::IpFamilyPolicy::SingleStack);
    assert_eq!(decided(&lb, &[]), claim("core").into());
}

#[test]
fn an_object_that_asks_for_the_other_family_now_claims_before_it_gives_back() {
    let lb = asking("IPv6", "", Some(("edge", "10.0.1.5")));
    let former = [("edge", "10.0.1.5")];
    let meanwhile = Some(address("edge", "10.0.1.5"));
    let expected = Decision::Claim { pool: "six".into(), known: None, exactly: None, meanwhile, lost: None };
    assert_eq!(decided(&lb, &former).decision, expected);
    let both = [former[0], ("six", "fd00:6::2")];
    let Decision::Has { address, .. } = decided(&lb, &both).decision else { panic!("it has both records") };
    assert_eq!((address.ip_pool.as_str(), address.ip.as_str()), ("six", "fd00:6::2"));
}

#[test]
fn of_the_records_in_a_pool_of_both_families_the_one_that_is_asked_for_counts() {
    let recorded = [("both", "10.0.4.5"), ("both", "fd00:4::5")];
    for (family, ip) in [("IPv4", "10.0.4.5"), ("IPv6", "fd00:4::5")] {
        let mut lb = asking(family, "", None);
        lb.spec.ip_pool = "both".to_owned();
        let Decision::Has { address, .. } = decided(&lb, &recorded).decision else {
            panic!("it has a record")
        };
        assert_eq!(address.ip, ip);
        let other = if family == "IPv4" { &recorded[1..] } else { &recorded[..1] };
        assert_eq!(
            decided(&lb, other).decision,
            claim("both"),
            "a record of the other family answers no claim"
        );
    }
}

#[test]
fn of_two_requested_addresses_the_one_of_the_family_counts() {
    let mut lb = asking("IPv6", "", None);
    let mut ask = |text: &str| {
        lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.to_owned(), text.to_owned());
        decided(&lb, &[]).decision
    };
    let Decision::Claim { pool, exactly, .. } = ask("10.0.1.9,fd00:6::9") else { panic!("it is free") };
    assert_eq!((pool.as_str(), exactly), ("six", "fd00:6::9".parse().ok()));
    let Decision::Wait { waiting, .. } = ask("10.0.1.9") else { panic!("it asks for IPv6") };
    assert_eq!(waiting.reason, "AddressNotInPool");
    assert!(waiting.message.ends_with("asks for an address of the other family"), "{}", waiting.message);
}

#[test]
fn an_object_of_vms_draws_an_address_of_the_one_family_that_it_asks_for_and_keeps_it() {
    let vm = |families: &str, has| {
        let mut lb = asking(families, "", has);
        lb.spec.workload_type = None;
        lb
    };
    assert_eq!(decided(&vm("", None), &[]), claim("core").into());
    assert_eq!(decided(&vm("IPv6", None), &[]), claim("six").into());
    // the first family of a Service cannot be changed
    let served = [("core", "10.0.2.5")];
    let Decision::Wait { waiting, meanwhile, .. } = decided(&vm("IPv6", Some(served[0])), &served).decision
    else {
        panic!("it moves")
    };
    assert_eq!(waiting.reason, "IPFamilyNotSupported");
    assert_eq!(meanwhile, Some(address("core", "10.0.2.5")));
    let note = decided(&vm("IPv6,IPv4", None), &[]).note;
    assert_eq!(note.as_deref(), Some("only one of two families: an object of type vm has one address"));
    let has = Some(("six", "fd00:6::5"));
    assert_eq!(decided(&vm("", has), &[("six", "fd00:6::5")]), self::has(address("six", "fd00:6::5")).into());
}

#[rstest]
#[case::silent("", "", None)]
#[case::ipv4("IPv4", "SingleStack", None)]
#[case::ipv6("IPv6", "", Some("one of IPv4"))]
#[case::both("IPv4,IPv6", "PreferDualStack", Some("one of IPv4"))]
#[case::both_required("", "RequireDualStack", Some("one of IPv4"))]
#[case::unreadable("IPv5", "", Some("say IPv4, IPv6, or both"))]
fn an_object_with_dhcp_that_asks_for_another_family_is_told_that_its_lease_is_of_ipv4(
    #[case] families: &str,
    #[case] policy: &str,
    #[case] expected: Option<&str>,
    #[values(WorkloadType::Cluster, WorkloadType::Vm)] workload: WorkloadType,
) {
    let mut lb = asking(families, policy, None);
    (lb.spec.workload_type, lb.spec.ipam) = (Some(workload), Some(Ipam::Dhcp));
    let Decided { decision, note, .. } = decided(&lb, &[]);
    assert_eq!(decision, has(address("", names::DHCP_ADDRESS)));
    assert_eq!(note.is_some(), expected.is_some(), "{note:?}");
    assert!(
        expected.is_none_or(|expected| note.as_deref().is_some_and(|note| note.contains(expected))),
        "{note:?}"
    );
}
