//! An object that names its pool, where the selector of the pool counts. The pools edge (10.0.1.0/24) and core
//! (10.0.2.0/24) serve it, lab (10.0.3.0/24) is for another namespace.
// docs/contract/load-balancer.md#S-2, #S-3

use super::*;

fn decided(
    lb: &LoadBalancer,
    holder: RecordedHolder,
    recorded: &[(&str, &str)],
    enforce_named_pool_scope: bool,
) -> Decision {
    let seen = Seen {
        lb,
        pools: &pools(),
        candidates: None,
        pool_choice: PoolChoice { enforce_named_pool_scope, ..PoolChoice::default() },
        holder,
        recorded: &records(recorded),
        service_names_address: false,
        refused: &[],
        rivals: &[],
        second_holder: RecordedHolder::Nobody,
        has_second_address_field: true,
        leaving: &[],
        foreign_records: &[],
    };
    decide(&seen).decision
}

fn not_allowed(meanwhile: Option<AllocatedAddress>) -> Decision {
    let why = "pool lab does not serve this load balancer, which has network \"\", project \"\", namespace \"shop\", \
               cluster \"\": none of its scopes matches; name another pool, or none, or have the selector of the pool \
               changed";
    let waiting = Explanation::new(NOT_ALLOWED, why.to_owned() + &stays(&meanwhile));
    Decision::Wait { waiting, meanwhile, lost: None, asked: Vec::new(), until_free: None }
}

const AT_EDGE: (&str, &str) = ("edge", "10.0.1.5");
const IN_LAB: (&str, &str) = ("lab", "10.0.3.5");

#[rstest]
#[case::admitted(load_balancer("core", None), RecordedHolder::Nobody, &[], claim("core"))]
#[case::another_namespaces(load_balancer("lab", None), RecordedHolder::Nobody, &[], not_allowed(None))]
#[case::told_to_move(
    load_balancer("lab", Some(AT_EDGE)), RecordedHolder::Us, &[AT_EDGE], not_allowed(Some(address("edge", "10.0.1.5"))))]
#[case::has_it_already(load_balancer("lab", Some(IN_LAB)), RecordedHolder::Us, &[IN_LAB], has(address("lab", "10.0.3.5")))]
#[case::has_the_record(load_balancer("lab", None), RecordedHolder::Nobody, &[IN_LAB], has(given("lab", "10.0.3.5")))]
#[case::names_none(load_balancer("", None), RecordedHolder::Nobody, &[], claim("core"))]
// the claim is answered with what to do
#[case::of_no_pool(load_balancer("nowhere", None), RecordedHolder::Nobody, &[], claim("nowhere"))]
fn a_pool_that_does_not_admit_an_object_gives_it_nothing_and_takes_nothing_from_it(
    #[case] lb: LoadBalancer,
    #[case] holder: RecordedHolder,
    #[case] recorded: &[(&str, &str)],
    #[case] expected: Decision,
) {
    assert_eq!(decided(&lb, holder, recorded, true), expected);
}

#[test]
fn the_word_of_an_object_about_its_namespace_does_not_count() {
    let mut lb = load_balancer("lab", None);
    for said in ["lab", "*"] {
        lb.annotations_mut().insert(annotations::LB_NAMESPACE.into(), said.to_owned());
        assert_eq!(decided(&lb, RecordedHolder::Nobody, &[], true), not_allowed(None));
    }
}

#[test]
fn a_demand_for_an_address_of_such_a_pool_waits_for_another_selector() {
    let mut lb = load_balancer("lab", None);
    lb.annotations_mut().insert(annotations::REQUESTED_IP_STRICT.into(), "10.0.3.9".into());
    assert_eq!(decided(&lb, RecordedHolder::Nobody, &[], true), not_allowed(None));
    assert_eq!(
        decided(&lb, RecordedHolder::Nobody, &[], false),
        Decision::claim_exactly("lab".into(), [10, 0, 3, 9].into(), Standing { meanwhile: None, lost: None })
    );
}

#[test]
fn each_of_two_named_pools_is_asked() {
    let mut lb = load_balancer("core", None);
    lb.spec.ip_family_policy = Some(harvester_api::IpFamilyPolicy::RequireDualStack);
    lb.spec.ipv6_pool = "lab".to_owned();
    let answered = decided(&lb, RecordedHolder::Nobody, &[("core", "10.0.2.5")], true);
    let Decision::Wait { waiting, meanwhile: None, .. } = answered else { panic!("{answered:?}") };
    assert_eq!(waiting.reason, NOT_ALLOWED);
    assert!(waiting.message.contains("no IPv6 address: pool lab does not serve"), "{}", waiting.message);
}

#[test]
fn without_the_flag_a_name_goes_before_all_selectors() {
    assert_eq!(decided(&load_balancer("lab", None), RecordedHolder::Nobody, &[], false), claim("lab"));
}
