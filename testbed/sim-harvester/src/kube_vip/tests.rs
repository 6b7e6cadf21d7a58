use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const ANNOTATION: &str = "127.77.0.1";
const SPEC: &str = "127.77.0.2";
const STATUS: &str = "127.77.0.3";

fn service(annotations: &Value, spec: &Value, ingress: &[&str]) -> Service {
    let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    let mut json = json!({"metadata": {"name": "web", "annotations": annotations},
        "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": ingress}}});
    json_patch::merge(&mut json["spec"], spec);
    serde_json::from_value(json).unwrap()
}

fn slice(endpoints: &Value) -> EndpointSlice {
    serde_json::from_value(json!({"addressType": "IPv4", "endpoints": endpoints})).unwrap()
}

fn of(address: &str) -> Wanted {
    Wanted::Addresses(vec![address.parse().unwrap()])
}

/// The step after an event of a Service that has one endpoint.
fn step(service: &Service, deleted: bool, release: Release, previous: Option<&Wanted>) -> Step {
    let slice = slice(&json!([{"addresses": ["198.18.7.131"], "conditions": {"ready": false}}]));
    decide(&Seen { service, deleted, slices: &[&slice], node: "node-1", previous }, release)
}

fn check(service: &Service, release: Release, previous: Option<&Wanted>, expected: &Step) {
    assert_eq!(&step(service, false, release, previous), expected, "{release:?}");
}

const PASSED_OVER: Step = Step::PassOver { silent: false };
const ALL: [Release; 4] = [Release::UpTo06, Release::From07, Release::From09, Release::From12];

#[rstest]
#[case::annotation_wins(true, true, true, [ANNOTATION, ANNOTATION, ANNOTATION, ANNOTATION])]
#[case::status_and_spec(false, true, true, [SPEC, STATUS, SPEC, SPEC])]
#[case::spec_alone(false, true, false, [SPEC, SPEC, SPEC, SPEC])]
#[case::status_alone(false, false, true, ["", STATUS, STATUS, STATUS])]
#[case::nothing(false, false, false, ["", "", "", ""])]
fn takes_the_address_from_the_first_source_that_names_one(
    #[case] annotation: bool,
    #[case] spec: bool,
    #[case] status: bool,
    #[case] expected: [&str; 4],
) {
    let annotations = if annotation { json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}) } else { json!({}) };
    let spec = if spec { json!({"loadBalancerIP": SPEC}) } else { json!({}) };
    let service = service(&annotations, &spec, if status { &[STATUS] } else { &[] });
    for (release, expected) in ALL.into_iter().zip(expected) {
        let expected = if expected.is_empty() { Step::Keep } else { Step::Announce(of(expected)) };
        check(&service, release, None, &expected);
    }
}

#[test]
fn two_addresses_are_announced_and_shown_in_the_order_in_which_the_service_names_them() {
    let named = |list: &str| service(&json!({KUBE_VIP_LOADBALANCER_IPS: list}), &json!({}), &[]);
    let wanted = |list: [&str; 2]| Wanted::Addresses(list.map(|it| it.parse().unwrap()).to_vec());
    let (first, second) = (wanted(["fd7f::1", ANNOTATION]), wanted([ANNOTATION, "fd7f::1"]));
    for release in ALL {
        check(&named("fd7f::1, 127.77.0.1,127.77.0.1"), release, None, &Step::Announce(first.clone()));
        check(&named("fd7f::1,127.77.0.1"), release, Some(&first), &Step::Keep);
        check(&named("127.77.0.1,fd7f::1"), release, Some(&first), &Step::Announce(second.clone()));
        check(&named(ANNOTATION), release, Some(&first), &Step::Announce(of(ANNOTATION)));
    }
    let Wanted::Addresses(addresses) = &first else { panic!() };
    let shown = publish::ingress(&named(""), addresses);
    assert_eq!([&shown[0]["ip"], &shown[1]["ip"]], ["fd7f::1", ANNOTATION]);
}

#[rstest]
#[case::of_the_other_family("fd7f::1", &["fd7f::1"])]
#[case::of_its_family("127.77.0.1", &[SPEC])]
fn from_0_9_on_the_wish_counts_against_a_status_of_its_family(
    #[case] status: &str,
    #[case] expected: &[&str],
) {
    let service = service(&json!({}), &json!({"loadBalancerIP": SPEC}), &[status]);
    let expected = expected.iter().map(|it| it.parse().unwrap()).collect();
    check(&service, Release::From12, None, &Step::Announce(Wanted::Addresses(expected)));
}

#[rstest]
#[case::leased_before([STATUS], [Step::Announce(Wanted::Dhcp), Step::Announce(of(STATUS)),
    Step::Announce(Wanted::Dhcp), Step::Announce(Wanted::Dhcp)])]
fn after_a_restart_0_7_takes_a_leased_address_for_a_fixed_one(
    #[case] ingress: [&str; 1],
    #[case] expected: [Step; 4],
) {
    let service = service(&json!({}), &json!({"loadBalancerIP": "0.0.0.0"}), &ingress);
    for (release, expected) in ALL.into_iter().zip(expected) {
        check(&service, release, None, &expected);
    }
}

/// kube-vip issue 1700: up to 1.2.3 nothing takes such an address away.
#[rstest]
#[case::node_port(json!({"type": "NodePort"}), false)]
#[case::cluster_ip(json!({"type": "ClusterIP"}), false)]
#[case::ignored(json!({}), true)]
fn passes_over_every_event_of_a_service_that_is_ignored_or_of_another_type_the_deletion_too(
    #[case] spec: Value,
    #[case] ignored: bool,
) {
    let mut annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION});
    if ignored {
        annotations[KUBE_VIP_IGNORE] = "true".into();
    }
    let service = service(&annotations, &spec, &[STATUS]);
    for release in ALL {
        for (deleted, previous) in
            [(false, None), (false, Some(of(SPEC))), (true, None), (true, Some(of(SPEC)))]
        {
            assert_eq!(step(&service, deleted, release, previous.as_ref()), PASSED_OVER, "{release:?}");
        }
    }
}

#[test]
fn withdraws_when_a_load_balancer_service_is_deleted() {
    let service = service(&json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}), &json!({}), &[]);
    for release in ALL {
        assert_eq!(step(&service, true, release, Some(&of(ANNOTATION))), Step::Withdraw);
        assert_eq!(step(&service, true, release, None), Step::Keep);
    }
}

#[test]
fn from_1_2_on_a_service_that_is_passed_over_is_silent_while_it_has_no_endpoints() {
    let service =
        service(&json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}), &json!({"type": "ClusterIP"}), &[]);
    let previous = of(ANNOTATION);
    for release in ALL {
        let seen = Seen {
            service: &service,
            deleted: false,
            slices: &[],
            node: "node-1",
            previous: Some(&previous),
        };
        assert_eq!(decide(&seen, release), Step::PassOver { silent: release == Release::From12 });
    }
}

#[rstest]
#[case::none(json!(null), true)]
#[case::empty(json!(""), true)]
#[case::its_own(json!(CLASS), true)]
#[case::another("harvesterhci.io/load-balancer".into(), false)]
fn serves_services_without_class_and_of_its_own(#[case] class: Value, #[case] served: bool) {
    let annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION});
    let service = service(&annotations, &json!({"loadBalancerClass": class}), &[]);
    let expected = if served { Step::Announce(of(ANNOTATION)) } else { PASSED_OVER };
    check(&service, Release::From12, None, &expected);
}

#[test]
fn an_address_that_changed_replaces_the_old_one_and_one_that_did_not_is_left_alone() {
    let service = service(&json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION}), &json!({}), &[]);
    check(&service, Release::From09, Some(&of(SPEC)), &Step::Announce(of(ANNOTATION)));
    check(&service, Release::From09, Some(&of(ANNOTATION)), &Step::Keep);
}

#[rstest]
#[case::none("Cluster", false, json!([]), false)]
#[case::allowed_without("Cluster", true, json!([]), true)]
#[case::any_readiness("Cluster", false, json!([{"addresses": ["a"], "conditions": {"ready": false}}]), true)]
#[case::local_elsewhere("Local", false, json!([{"addresses": ["a"], "nodeName": "node-2"}]), false)]
#[case::local_here("Local", false, json!([{"addresses": ["a"], "nodeName": "node-1"}]), true)]
#[case::local_here_not_serving("Local", false,
    json!([{"addresses": ["a"], "nodeName": "node-1", "conditions": {"serving": false}}]), false)]
#[case::local_is_not_allowed_without("Local", true, json!([]), false)]
fn from_1_2_on_a_service_needs_endpoints(
    #[case] policy: &str,
    #[case] allowed: bool,
    #[case] endpoints: Value,
    #[case] announced: bool,
) {
    let mut annotations = json!({KUBE_VIP_LOADBALANCER_IPS: ANNOTATION});
    if allowed {
        annotations[WITHOUT_ENDPOINTS] = "true".into();
    }
    let service = service(&annotations, &json!({"externalTrafficPolicy": policy}), &[]);
    let slice = slice(&endpoints);
    let decide = |release, previous: Option<&Wanted>| {
        let seen = Seen { service: &service, deleted: false, slices: &[&slice], node: "node-1", previous };
        decide(&seen, release)
    };
    let (wanted, expected) = (of(ANNOTATION), Step::Announce(of(ANNOTATION)));
    assert_eq!(decide(Release::From09, None), expected);
    assert_eq!(decide(Release::From12, None), if announced { expected } else { Step::Keep });
    let later = if announced { Step::Keep } else { Step::Withdraw };
    assert_eq!(decide(Release::From12, Some(&wanted)), later);
}
