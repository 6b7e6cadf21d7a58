use cloud_provider::{Decision, LoadBalancerState, Publish};
use harvester_api::annotations;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::load_balancers::decide::tests::{decided, ip, object, reasons, service};

const RANGES: &str = annotations::SOURCE_RANGES;
const APPLIED: &str = annotations::SOURCE_RANGES_APPLIED;

fn wanting(ranges: &[&str]) -> k8s_openapi::api::core::v1::Service {
    let host = json!({"cloudprovider.harvesterhci.io/data-path": "host"});
    service(&host, &json!({"loadBalancerSourceRanges": ranges}))
}

fn showing(mut service: k8s_openapi::api::core::v1::Service) -> k8s_openapi::api::core::v1::Service {
    service.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    service
}

/// An object with an address, annotations and a Ready condition.
fn made(annotations: &Value, ready: &Value) -> RawObject<LoadBalancer> {
    let mut status = json!({"allocatedAddress": {"ipPool": "lab", "ip": "10.0.0.9"}, "address": "10.0.0.9"});
    if !ready.is_null() {
        status["conditions"] = json!([ready]);
    }
    let mut json = object("vm", &status).json().clone();
    json["metadata"]["annotations"] = annotations.clone();
    RawObject::from_json(json).unwrap()
}

/// The object as it is to be: its ranges, and whether it has a selector.
fn written(decision: &Decision<Write>) -> (Option<String>, bool) {
    let (Some(Write::Create { json, .. }) | Some(Write::Update(json))) = &decision.write else {
        panic!("{decision:?}")
    };
    let ranges = json["metadata"]["annotations"].get(RANGES).and_then(Value::as_str);
    (ranges.map(str::to_owned), json["spec"].get("backendServerSelector").is_some())
}

// docs/contract/data-paths.md#row-15-selector
#[rstest]
#[case::none(&[], None, true)]
#[case::some(&["192.168.1.7/16", "10.0.0.0/8"], Some("10.0.0.0/8,192.168.0.0/16"), false)]
fn an_object_with_source_ranges_is_made_without_a_selector(
    #[case] ranges: &[&str],
    #[case] annotation: Option<&str>,
    #[case] selects: bool,
) {
    let decision = decided(&wanting(ranges), None, |_| ());
    assert_eq!(written(&decision), (annotation.map(str::to_owned), selects));
}

#[rstest]
#[case::confirmed(&["10.0.0.0/8"], json!({APPLIED: "10.0.0.0/8"}), true)]
#[case::in_other_words(&["10.0.0.0/8"], json!({APPLIED: " 10.1.0.0/8 "}), true)]
#[case::not_confirmed(&["10.0.0.0/8"], json!({}), false)]
#[case::unreadable(&["10.0.0.0/8"], json!({APPLIED: "yes"}), false)]
#[case::emptied(&["10.0.0.0/8"], json!({APPLIED: ""}), false)]
// the ranges in force admit others
#[case::narrowed(&["10.1.0.0/16"], json!({RANGES: "10.0.0.0/8", APPLIED: "10.0.0.0/8"}), false)]
#[case::replaced(&["192.168.0.0/16"], json!({RANGES: "10.0.0.0/8", APPLIED: "10.0.0.0/8"}), false)]
#[case::added_to_an_object_for_everybody(&["10.0.0.0/8"], json!({RANGES: "10.0.0.0/8"}), false)]
// they admit fewer for a moment
#[case::widened(&["10.0.0.0/8", "192.168.0.0/16"], json!({RANGES: "10.0.0.0/8", APPLIED: "10.0.0.0/8"}), true)]
#[case::removed(&[], json!({RANGES: "10.0.0.0/8", APPLIED: "10.0.0.0/8"}), true)]
fn an_object_has_a_selector_only_while_nobody_is_admitted_whom_the_service_does_not_admit(
    #[case] ranges: &[&str],
    #[case] annotations: Value,
    #[case] selects: bool,
) {
    let decision = decided(&showing(wanting(ranges)), Some(&made(&annotations, &Value::Null)), |_| ());
    let (annotation, has_selector) = written(&decision);
    assert_eq!((annotation.is_some(), has_selector), (!ranges.is_empty(), selects));
}

/// The load balancer takes its confirmation away before it gives its Service other ranges.
#[rstest]
#[case::widened(&["10.0.0.0/8"], true)]
#[case::narrowed_meanwhile(&["10.1.0.0/16"], false)]
fn traffic_goes_on_while_wider_ranges_are_put_in_force(#[case] ranges: &[&str], #[case] selects: bool) {
    let mut json = made(&json!({RANGES: "10.0.0.0/8"}), &Value::Null).json().clone();
    json["spec"]["backendServerSelector"] = json!({"guestcluster.harvesterhci.io/name": ["blue"]});
    let object = RawObject::from_json(json).unwrap();
    let decision = decided(&showing(wanting(ranges)), Some(&object), |_| ());
    assert_eq!(written(&decision).1, selects);
}

#[rstest]
#[case::confirmed(json!({APPLIED: "10.0.0.0/8"}), true)]
#[case::not_confirmed(json!({}), false)]
fn an_address_is_published_after_the_ranges_are_in_force(
    #[case] annotations: Value,
    #[case] published: bool,
) {
    let decision = decided(&wanting(&["10.0.0.0/8"]), Some(&made(&annotations, &Value::Null)), |_| ());
    let addresses = if published { ip("10.0.0.9") } else { vec![] };
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses });
    assert_eq!(decision.view.publish == Publish::Addresses(ip("10.0.0.9")), published);
}

#[rstest]
#[case::at_once(json!(null), 9, false, false, false, None)]
#[case::the_go_program(json!({"type": "Ready", "status": "True"}), 10, false, false, true, None)]
// it says so of every object without backends
#[case::the_go_program_without_backends(json!({"type": "Ready", "status": "False", "message": "no running backend servers"}),
    10, false, false, true, None)]
#[case::ours_that_is_hindered(json!({"type": "Ready", "status": "False", "reason": "ServiceRefused", "message": "quota"}),
    99, false, false, false, None)]
#[case::out_of_reach(json!(null), 99, false, true, false, None)]
#[case::published(json!(null), 10, true, false, false, Some("SourceRangesUnsupported"))]
fn a_load_balancer_that_does_not_confirm_in_time_is_given_up_unless_the_address_is_in_use(
    #[case] ready: Value,
    #[case] waited: u64,
    #[case] published: bool,
    #[case] out_of_reach: bool,
    #[case] given_up: bool,
    #[case] reason: Option<&str>,
) {
    let service = wanting(&["10.0.0.0/8"]);
    let service = if published { showing(service) } else { service };
    let decision = decided(&service, Some(&made(&json!({RANGES: "10.0.0.0/8"}), &ready)), |seen| {
        seen.waited = Duration::from_secs(waited);
        seen.load_balancers_out_of_reach = out_of_reach.then(|| "no rights".to_owned());
    });
    assert_eq!(
        matches!(&decision.write, Some(Write::GiveUp { ranges, .. }) if ranges == "10.0.0.0/8"),
        given_up
    );
    assert_eq!(reasons(&decision), reason.into_iter().collect::<Vec<_>>());
    assert_eq!(decision.view.again.is_some(), waited < 10);
    if published {
        assert!(!written(&decision).1, "nobody reaches it");
    }
}

#[test]
fn ranges_that_were_widened_and_are_not_confirmed_are_told_and_traffic_goes_on() {
    let annotations = json!({RANGES: "10.0.0.0/8,192.168.0.0/16", APPLIED: "10.0.0.0/8"});
    let service = showing(wanting(&["10.0.0.0/8", "192.168.0.0/16"]));
    let decision = decided(&service, Some(&made(&annotations, &Value::Null)), |seen| seen.waited = ANSWER);
    assert_eq!(reasons(&decision), ["SourceRangesUnsupported"]);
    assert!(written(&decision).1 && decision.events[0].message.contains("stay in force"));
}

#[rstest]
#[case::not_confirmed(None, "did not confirm")]
#[case::refused(Some("admission webhook denied the request: no VM"), "no VM")]
fn an_object_that_was_given_up_is_not_made_again_for_a_while(
    #[case] refusal: Option<&str>,
    #[case] part: &str,
) {
    let again = Duration::from_secs(500);
    let decision = decided(&wanting(&["10.0.0.0/8"]), None, |seen| {
        seen.given_up = Some(GivenUp { again, refusal: refusal.map(str::to_owned) });
    });
    assert_eq!((&decision.write, reasons(&decision)), (&None, vec!["SourceRangesUnsupported"]));
    assert!(decision.events[0].message.contains(part), "{}", decision.events[0].message);
    assert_eq!(decision.view.again, Some(again));
}

#[test]
fn an_object_with_wrong_source_ranges_stays_as_it_is() {
    let mut right = made(&json!({APPLIED: "10.0.0.0/8"}), &Value::Null);
    let service = showing(wanting(&["10.0.0.0/8"]));
    let Some(Write::Update(json)) = decided(&service, Some(&right), |_| ()).write else {
        panic!("not filled")
    };
    right = RawObject::from_json(json).unwrap();
    let decision = decided(&showing(wanting(&["office"])), Some(&right), |_| ());
    assert_eq!((decision.write, decision.view.publish), (None, Publish::Addresses(ip("10.0.0.9"))));
}

#[rstest]
#[case::published(true, &["SourceRangesNotInForce"])]
// the failed sync tells
#[case::not_published(false, &[])]
fn a_published_service_is_told_what_hinders_the_load_balancer(
    #[case] published: bool,
    #[case] told: &[&str],
) {
    let ready = json!({"type": "Ready", "status": "False", "reason": "ServiceRefused", "message": "quota"});
    let annotations = json!({RANGES: "10.1.0.0/16", APPLIED: "10.0.0.0/8"});
    let service = wanting(&["10.1.0.0/16"]);
    let service = if published { showing(service) } else { service };
    let decision = decided(&service, Some(&made(&annotations, &ready)), |seen| seen.waited = ANSWER);
    assert_eq!(reasons(&decision), told);
    let parts = ["nobody reaches", "quota"];
    assert!(decision.events.iter().all(|event| parts.iter().all(|part| event.message.contains(part))));
    assert_eq!(decision.view.waiting.as_deref(), Some("quota"));
}

/// An object that serves ranges, and whose other fields stay as they are because of `change`.
fn frozen(
    ranges: &[&str],
    annotations: &Value,
    selects: bool,
    change: fn(&mut Seen<'_>),
) -> (Value, Decision<Write>) {
    let mut json = made(annotations, &Value::Null).json().clone();
    if selects {
        json["spec"]["backendServerSelector"] = json!({"guestcluster.harvesterhci.io/name": ["blue"]});
    }
    let object = RawObject::from_json(json.clone()).unwrap();
    (json, decided(&showing(wanting(ranges)), Some(&object), change))
}

#[rstest]
#[case::vms_not_known(|seen: &mut Seen<'_>| seen.backends = None)]
#[case::no_nodes(|seen: &mut Seen<'_>| seen.backends = Some(guest_vms::Backends::default()))]
#[case::a_fault(|seen: &mut Seen<'_>| {
    let mut service = seen.service.clone();
    service.spec.get_or_insert_default().external_traffic_policy = Some("Local".into());
    seen.service = Box::leak(Box::new(service));
})]
fn nobody_stays_admitted_by_an_object_that_otherwise_stays_as_it_is(
    #[case] change: fn(&mut Seen<'_>),
    #[values(json!({RANGES: "10.0.0.0/8", APPLIED: "10.0.0.0/8"}), json!({}))] annotations: Value,
) {
    let (mut before, decision) = frozen(&["10.1.0.0/16"], &annotations, true, change);
    assert_eq!(written(&decision), (Some("10.1.0.0/16".to_owned()), false));
    let Some(Write::Update(after)) = decision.write else { unreachable!() };
    before["spec"].as_object_mut().unwrap().remove("backendServerSelector");
    assert_eq!(after["spec"], before["spec"], "the rest of it");
}

#[rstest]
#[case::vms_not_known(|seen: &mut Seen<'_>| seen.backends = None, false)]
#[case::a_fault(|seen: &mut Seen<'_>| seen.config.network = "a/b".into(), true)]
fn an_object_that_stays_as_it_is_has_a_selector_again_when_its_ranges_are_in_force(
    #[case] change: fn(&mut Seen<'_>),
    #[case] selects: bool,
) {
    let confirmed = json!({RANGES: "10.1.0.0/16", APPLIED: "10.1.0.0/16"});
    let (_, decision) = frozen(&["10.1.0.0/16"], &confirmed, false, change);
    assert_eq!(written(&decision), (Some("10.1.0.0/16".to_owned()), selects));
    let widened = json!({RANGES: "10.1.0.0/16", APPLIED: "10.1.0.0/16"});
    let (_, decision) = frozen(&["10.0.0.0/8"], &widened, true, change);
    assert_eq!(written(&decision), (Some("10.0.0.0/8".to_owned()), true));
}

#[rstest]
#[case::asked_for_others(json!({RANGES: "10.0.0.0/8"}))]
#[case::asked_for_none(json!({}))]
fn a_load_balancer_is_not_late_with_ranges_that_it_was_not_asked_for(#[case] annotations: Value) {
    let object = made(&annotations, &Value::Null);
    let decision = decided(&wanting(&["10.1.0.0/16"]), Some(&object), |seen| {
        seen.waited = ANSWER;
        seen.backends = None;
    });
    assert_eq!((written(&decision).0, reasons(&decision)), (Some("10.1.0.0/16".to_owned()), vec![]));
}
