use harvester_api::{IPPool, LoadBalancerSpec, LoadBalancerStatus};
use ip_pools::check;
use rstest::rstest;
use serde_json::json;

use super::*;
mod dual;
mod families;
mod requested;
mod scope;

fn pool(name: &str, third: u8, namespace: &str) -> CheckedPool {
    let json = json!({"metadata": {"name": name}, "spec": {
        "ranges": [{"subnet": format!("10.0.{third}.0/24")}],
        "selector": {"scope": [{"namespace": namespace, "project": "*", "guestCluster": "*"}]},
    }});
    check(&serde_json::from_value::<IPPool>(json).unwrap(), [])
}

fn load_balancer(pool: &str, has: Option<(&str, &str)>) -> LoadBalancer {
    let spec = LoadBalancerSpec {
        workload_type: Some(WorkloadType::Cluster),
        ip_pool: pool.to_owned(),
        ..LoadBalancerSpec::default()
    };
    let mut lb = LoadBalancer::new("web", spec);
    lb.metadata.namespace = Some("shop".into());
    lb.status = has.map(|has| LoadBalancerStatus {
        allocated_address: Some(address(has.0, has.1)),
        ..LoadBalancerStatus::default()
    });
    lb
}

fn address(pool: &str, ip: &str) -> AllocatedAddress {
    AllocatedAddress { ip_pool: pool.into(), ip: ip.into(), ..AllocatedAddress::default() }
}

/// As the record gives it, with mask and gateway.
fn given(pool: &str, ip: &str) -> AllocatedAddress {
    let third = ip.split('.').nth(2).unwrap();
    AllocatedAddress { mask: "255.255.255.0".into(), gateway: format!("10.0.{third}.1"), ..address(pool, ip) }
}

fn has(address: AllocatedAddress) -> Decision {
    Decision::Has { address, lost: None }
}

fn claim(pool: &str) -> Decision {
    Decision::Claim { pool: pool.to_owned(), known: None, exactly: None, meanwhile: None, lost: None }
}

fn claim_in_place_of(lost: &str, pool: &str) -> Decision {
    Decision::Claim {
        pool: pool.to_owned(),
        known: None,
        exactly: None,
        meanwhile: None,
        lost: Some(lost.to_owned()),
    }
}

fn pools() -> [CheckedPool; 3] {
    [pool("edge", 1, "shop"), pool("core", 2, "shop"), pool("lab", 3, "lab")]
}

fn records(recorded: &[(&str, &str)]) -> Vec<(String, IpAddr)> {
    recorded.iter().map(|(pool, ip)| ((*pool).to_owned(), ip.parse().unwrap())).collect()
}

fn decided(lb: &LoadBalancer, holder: RecordedHolder, recorded: &[(&str, &str)]) -> Decision {
    let (pools, recorded) = (pools(), records(recorded));
    let seen = Seen {
        lb,
        pools: &pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder,
        recorded: &recorded,
        service_names_address: false,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    decide(&seen).decision
}

#[rstest]
#[case::new(load_balancer("", None), RecordedHolder::Nobody, &[], claim("core"))]
#[case::new_by_name(load_balancer("lab", None), RecordedHolder::Nobody, &[], claim("lab"))]
#[case::by_the_name_of_none(load_balancer("nowhere", None), RecordedHolder::Nobody, &[], claim("nowhere"))]
// docs/contract/load-balancer.md#LB-20: an object that lost its status gave its address away and took another
#[case::status_erased(
    load_balancer("", None), RecordedHolder::Nobody, &[("edge", "10.0.1.5")], has(given("edge", "10.0.1.5")))]
#[case::claim_was_answered(
    load_balancer("core", None), RecordedHolder::Nobody, &[("core", "10.0.2.5")], has(given("core", "10.0.2.5")))]
#[case::settled(
    load_balancer("", Some(("edge", "10.0.1.5"))), RecordedHolder::Us, &[("edge", "10.0.1.5")], has(address("edge", "10.0.1.5")))]
#[case::settled_though_nothing_matches(
    load_balancer("", Some(("lab", "10.0.3.5"))), RecordedHolder::Us, &[("lab", "10.0.3.5")], has(address("lab", "10.0.3.5")))]
// docs/contract/load-balancer.md#LB-18
#[case::pool_name_taken_away(
    load_balancer("", Some(("core", "10.0.2.5"))), RecordedHolder::Us, &[("core", "10.0.2.5")], has(address("core", "10.0.2.5")))]
// between the record and the status: the address that nobody showed yet is the object's all the same
#[case::told_to_move_before_it_was_shown(
    load_balancer("core", None), RecordedHolder::Nobody, &[("edge", "10.0.1.5")],
    Decision::Claim { pool: "core".into(), known: None, exactly: None, meanwhile: Some(given("edge", "10.0.1.5")), lost: None })]
#[case::pool_is_gone(
    load_balancer("", Some(("old", "10.0.9.5"))), RecordedHolder::NoSuchPool, &[], has(address("old", "10.0.9.5")))]
#[case::told_to_move(
    load_balancer("core", Some(("edge", "10.0.1.5"))), RecordedHolder::Us, &[("edge", "10.0.1.5")],
    Decision::Claim { pool: "core".into(), known: None, exactly: None, meanwhile: Some(address("edge", "10.0.1.5")), lost: None })]
#[case::told_to_move_and_answered(
    load_balancer("core", Some(("edge", "10.0.1.5"))), RecordedHolder::Us,
    &[("core", "10.0.2.5"), ("edge", "10.0.1.5")], has(given("core", "10.0.2.5")))]
// docs/contract/load-balancer.md#IP-16: the pool lost its record
#[case::record_erased(
    load_balancer("", Some(("edge", "10.0.1.5"))), RecordedHolder::Nobody, &[],
    Decision::Claim { pool: "edge".into(), known: Some([10, 0, 1, 5].into()), exactly: None, meanwhile: None, lost: None })]
#[case::given_to_another(
    load_balancer("", Some(("edge", "10.0.1.5"))), RecordedHolder::SomebodyElse, &[],
    claim_in_place_of("10.0.1.5", "core"))]
#[case::told_to_move_and_given_to_another(
    load_balancer("core", Some(("edge", "10.0.1.5"))), RecordedHolder::SomebodyElse, &[],
    claim_in_place_of("10.0.1.5", "core"))]
#[case::given_to_another_and_replaced(
    load_balancer("", Some(("edge", "10.0.1.5"))), RecordedHolder::SomebodyElse, &[("core", "10.0.2.5")],
    Decision::Has { address: given("core", "10.0.2.5"), lost: Some("10.0.1.5".into()) })]
fn an_object_gets_this_address(
    #[case] lb: LoadBalancer,
    #[case] holder: RecordedHolder,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: Decision,
) {
    assert_eq!(decided(&lb, holder, recorded), expected);
}

fn exhausted(pool: &str) -> (String, Refused) {
    (
        pool.to_owned(),
        Refused::Exhausted {
            pool: pool.to_owned(),
            ranges: String::new(),
            family: None,
            drains: false,
            rests_for: 0,
        },
    )
}

fn full(pool: &str) -> (String, Refused) {
    (pool.to_owned(), Refused::RecordFull { pool: pool.to_owned(), records: 15_000 })
}

#[rstest]
#[case::full_record_is_passed_over(vec![full("core")], Ok("edge"))]
#[case::every_record_is_full(vec![full("core"), full("edge")], Err(("RecordFull", &["core", "edge"][..])))]
#[case::full_pool_is_waited_for(vec![exhausted("core")], Err(("PoolExhausted", &["core"][..])))]
#[case::behind_a_full_record(vec![full("core"), exhausted("edge")], Err(("RecordFull", &["core", "edge"][..])))]
fn a_refused_claim_goes_on_to_the_next_pool_or_waits(
    #[case] refused: Vec<(String, Refused)>,
    #[case] expected: Result<&str, (&str, &[&str])>,
) {
    after(&refused, PoolChoice::default(), expected);
}

/// docs/contract/load-balancer.md#IP-8: a full pool is waited for, unless the flag is given.
#[rstest]
#[case::the_next_pool_is_asked(vec![exhausted("core")], Ok("edge"))]
#[case::that_is_full_as_well(vec![exhausted("core"), exhausted("edge")], Err(("PoolExhausted", &["core", "edge"][..])))]
fn with_the_flag_a_full_pool_is_passed_over(
    #[case] refused: Vec<(String, Refused)>,
    #[case] expected: Result<&str, (&str, &[&str])>,
) {
    let pool_choice = PoolChoice { fall_over_when_full: true, ..PoolChoice::default() };
    after(&refused, pool_choice, expected);
}

fn after(refused: &[(String, Refused)], pool_choice: PoolChoice, expected: Result<&str, (&str, &[&str])>) {
    let (lb, pools) = (load_balancer("", None), pools());
    let seen = Seen {
        lb: &lb,
        pools: &pools,
        candidates: None,
        pool_choice,
        holder: RecordedHolder::Nobody,
        recorded: &[],
        service_names_address: false,
        refused,
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    match (decide(&seen).decision, expected) {
        (Decision::Claim { pool, .. }, Ok(expected)) => assert_eq!(pool, expected),
        (Decision::Wait { waiting, asked, .. }, Err((reason, pools))) => {
            assert_eq!(waiting.reason, reason);
            assert_eq!(asked, pools);
        }
        (other, _) => panic!("{other:?}"),
    }
}

#[test]
fn an_object_that_is_told_to_move_keeps_its_address_while_the_other_pool_has_none() {
    let (lb, pools, refused) =
        (load_balancer("core", Some(("edge", "10.0.1.5"))), pools(), [exhausted("core")]);
    let recorded = records(&[("edge", "10.0.1.5")]);
    let seen = Seen {
        lb: &lb,
        pools: &pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder: RecordedHolder::Us,
        recorded: &recorded,
        service_names_address: false,
        refused: &refused,
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    let Decision::Wait { waiting, meanwhile, lost: None, .. } = decide(&seen).decision else {
        panic!("it moved")
    };
    assert_eq!(meanwhile, Some(address("edge", "10.0.1.5")));
    assert!(
        waiting.message.ends_with("address 10.0.1.5 of pool edge stays until then"),
        "{}",
        waiting.message
    );
}

#[test]
fn without_a_matching_pool_the_object_says_what_it_waits_for() {
    let mut lb = load_balancer("", None);
    lb.annotations_mut().insert(annotations::LB_NETWORK.into(), "shop/vlan10".into());
    let Decision::Wait { waiting, lost: None, .. } = decided(&lb, RecordedHolder::Nobody, &[]) else {
        panic!("a pool matched")
    };
    assert_eq!(waiting.reason, "NoMatchingPool");
    assert!(
        waiting.message.starts_with("no matched IPPool with requirement network \"shop/vlan10\""),
        "{}",
        waiting.message
    );
}

// docs/contract/load-balancer.md#S-9: a status written by a tenant put any address on the network
#[test]
fn a_vm_object_cannot_bring_its_own_address_by_naming_a_pool_that_is_not_there() {
    let mut lb = load_balancer("", Some(("nowhere", "10.0.1.1")));
    lb.spec.workload_type = None;
    assert_eq!(decided(&lb, RecordedHolder::NoSuchPool, &[]), claim_in_place_of("10.0.1.1", "core"));
    let pools = pools();
    let seen = Seen {
        lb: &lb,
        pools: &pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder: RecordedHolder::NoSuchPool,
        recorded: &[],
        service_names_address: true,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    assert_eq!(decide(&seen).decision, has(address("nowhere", "10.0.1.1")));
}

// docs/contract/load-balancer.md#LB-14: the gateway of a /32 was the text "<nil>"
#[test]
fn a_single_address_has_no_gateway() {
    let json = json!({"metadata": {"name": "one"}, "spec": {"ranges": [{"subnet": "10.0.9.7/32"}]}});
    let pools = [check(&serde_json::from_value::<IPPool>(json).unwrap(), [])];
    let (lb, recorded) = (load_balancer("one", None), records(&[("one", "10.0.9.7")]));
    let seen = Seen {
        lb: &lb,
        pools: &pools,
        candidates: None,
        pool_choice: PoolChoice::default(),
        holder: RecordedHolder::Nobody,
        recorded: &recorded,
        service_names_address: false,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: false,
        leaving: &[],
        foreign_records: &[],
    };
    let mask = "255.255.255.255".to_owned();
    assert_eq!(decide(&seen).decision, has(AllocatedAddress { mask, ..address("one", "10.0.9.7") }));
}

#[test]
fn dhcp_needs_no_pool() {
    let mut lb = load_balancer("edge", None);
    lb.spec.ipam = Some(Ipam::Dhcp);
    assert_eq!(decided(&lb, RecordedHolder::Nobody, &[]), has(address("", "0.0.0.0")));
}

#[test]
fn an_object_that_the_webhook_never_saw_counts_with_its_own_namespace() {
    let requirement = requirement(&load_balancer("", None));
    assert_eq!(requirement, Requirement { namespace: "shop".into(), ..Requirement::default() });
}

#[test]
fn an_object_that_names_everybody_in_its_annotations_matches_nobodys_scope() {
    let mut lb = load_balancer("", None);
    for key in [annotations::LB_PROJECT, annotations::LB_CLUSTER, annotations::LB_NAMESPACE] {
        lb.annotations_mut().insert(key.to_owned(), "*".to_owned());
    }
    assert_eq!(requirement(&lb), Requirement { namespace: "shop".into(), ..Requirement::default() });
}
