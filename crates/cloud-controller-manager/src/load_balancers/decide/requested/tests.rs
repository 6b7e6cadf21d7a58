use std::time::Duration;

use cloud_provider::{Decision, LoadBalancerState, Publish};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::load_balancers::decide::{
    Write,
    sharing::Sharing,
    tests::{decided, ip, object, reasons, service},
};

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;
const DEMAND: &str = annotations::SERVICE_IP;

/// The status of an object: an address, and a Ready condition where there is one.
fn status(address: &str, ready: &Value) -> Value {
    let mut status = json!({"allocatedAddress": {"ipPool": "lab", "ip": address}, "address": address});
    if !ready.is_null() {
        let mut condition = json!({"type": "Ready"});
        for (key, value) in ready.as_object().unwrap() {
            condition[key] = value.clone();
        }
        status["conditions"] = json!([condition]);
    }
    status
}

/// An object that has `address` now, and whose status shows `shown`.
fn moved(workload: &str, shown: &str, address: &str, ready: &Value) -> RawObject<LoadBalancer> {
    let mut json = object(workload, &status(address, ready)).json().clone();
    json["status"]["address"] = shown.into();
    RawObject::from_json(json).unwrap()
}

fn after(service: &Service, object: &RawObject<LoadBalancer>, seconds: u64) -> Decision<Write> {
    decided(service, Some(object), |seen| seen.waited = Duration::from_secs(seconds))
}

fn showing(mut service: Service, address: &str) -> Service {
    service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": address}]}})).unwrap();
    service
}

fn addresses(decision: &Decision<Write>) -> Vec<String> {
    let LoadBalancerState::Present { addresses } = &decision.view.load_balancer else {
        panic!("{decision:?}")
    };
    addresses.iter().map(ToString::to_string).collect()
}

// docs/contract/addresses.md#5
#[rstest]
#[case::guest("cluster")]
#[case::host("vm")]
fn a_demand_that_was_met_is_published(#[case] workload: &str) {
    let service = service(&json!({DEMAND: "10.0.0.7"}), &json!({}));
    let decision = after(&service, &object(workload, &status("10.0.0.7", &Value::Null)), 0);
    assert_eq!(addresses(&decision), ["10.0.0.7"]);
    let handed = decision.view.annotations.get(ASKED).cloned().flatten();
    let published = decision.view.publish == Publish::Addresses(ip("10.0.0.7"));
    assert_eq!(
        (handed.as_deref(), published),
        if workload == "vm" { (None, true) } else { (Some("10.0.0.7"), false) }
    );
}

#[rstest]
#[case::guest("cluster")]
#[case::host("vm")]
fn another_address_than_the_demanded_one_is_not_published_whatever_the_load_balancer_says(
    #[case] workload: &str,
    #[values(json!(null), json!({"status": "True"}), json!({"status": "True", "reason": "AddressAllocated"}),
        json!({"status": "False", "reason": "AddressInUse", "message": "10.0.0.7 is in use"}))]
    ready: Value,
    #[values(0, 10, 99)] waited: u64,
) {
    let service = service(&json!({DEMAND: "10.0.0.7"}), &json!({}));
    let decision = after(&service, &object(workload, &status("10.0.0.9", &ready)), waited);
    assert_eq!(addresses(&decision), [""; 0]);
    assert!(!decision.view.annotations.contains_key(ASKED), "{decision:?}");
    assert!(!matches!(decision.view.publish, Publish::Addresses(_)), "{decision:?}");
}

/// The load balancer claims the new address before it releases the old one.
#[rstest]
#[case::guest("cluster", &json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9", DEMAND: "10.0.0.7"}))]
#[case::guest_by_the_go_program("cluster", &json!({ASKED: "10.0.0.9", DEMAND: "10.0.0.7"}))]
#[case::host("vm", &json!({DEMAND: "10.0.0.7"}))]
fn an_address_that_the_service_has_stays_until_the_demanded_one_is_there(
    #[case] workload: &str,
    #[case] annotations: &Value,
    #[values(0, 99)] waited: u64,
) {
    let service = showing(service(annotations, &json!({})), "10.0.0.9");
    let former = object(workload, &status("10.0.0.9", &Value::Null));
    let decision = after(&service, &former, waited);
    assert_eq!(addresses(&decision), ["10.0.0.9"]);
    assert_ne!(decision.view.annotations.get(ASKED), Some(&None));
    assert_ne!(decision.view.publish, Publish::Withdrawn);
    let Some(Write::Update(json)) = decision.write else { panic!("the object is not told") };
    assert_eq!(json["metadata"]["annotations"][annotations::REQUESTED_IP_STRICT], "10.0.0.7");
}

/// The load balancer moved the Service from .9 to .8 for a former demand, a wish or a pool, and gives .7 only after it has
/// .9 back: when the Service shows .8.
#[rstest]
#[case::recorded(json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9"}))]
#[case::by_the_go_program(json!({ASKED: "10.0.0.9"}))]
#[case::withdrawn(json!({GIVEN: "10.0.0.9"}))]
fn a_move_that_began_before_the_demand_changed_is_finished_first(#[case] mut there: Value) {
    there[DEMAND] = json!("10.0.0.7");
    let ours = json!({"status": "True", "reason": "AddressAllocated"});
    let moved = moved("cluster", "10.0.0.9", "10.0.0.8", &ours);
    let service = showing(service(&there, &json!({})), "10.0.0.9");
    let decision = after(&service, &moved, 0);
    assert_eq!(decision.view.annotations.get(ASKED).cloned().flatten().as_deref(), Some("10.0.0.8"));
    assert_eq!((addresses(&decision), reasons(&decision)), (vec!["10.0.0.8".to_owned()], vec![]));
    assert_ne!(decision.view.publish, Publish::Withdrawn);

    let mut handed = service.clone();
    for (key, text) in decision.view.annotations {
        if let Some(text) = text {
            handed.metadata.annotations.get_or_insert_default().insert(key, text);
        }
    }
    let shown = after(&showing(handed, "10.0.0.8"), &moved, 0);
    assert_eq!(addresses(&shown), ["10.0.0.8"]);
    let Some(Write::Update(json)) = shown.write else { panic!("the object is not told") };
    assert_eq!(json["status"]["address"], "10.0.0.8");
}

/// The load balancer ignored the demand and moved the Service elsewhere. The Go one has given the former address back by
/// then, and leaves it in the status of an object of a guest cluster.
#[rstest]
#[case::guest("cluster", "10.0.0.8")]
#[case::guest_that_shows_the_former_one("cluster", "10.0.0.9")]
#[case::host("vm", "10.0.0.8")]
fn a_former_address_goes_when_harvester_gives_neither_it_nor_the_demanded_one(
    #[case] workload: &str,
    #[case] shown: &str,
) {
    let annotations = json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9", DEMAND: "10.0.0.7"});
    let annotations = if workload == "vm" { json!({DEMAND: "10.0.0.7"}) } else { annotations };
    let service = showing(service(&annotations, &json!({})), "10.0.0.9");
    let by_go = moved(workload, shown, "10.0.0.8", &json!({"status": "True"}));
    let decision = after(&service, &by_go, 0);
    assert_eq!((addresses(&decision), &decision.view.publish), (vec![], &Publish::Withdrawn));
    assert_ne!(decision.view.annotations.get(ASKED).cloned().flatten().as_deref(), Some("10.0.0.8"));
}

#[rstest]
// it writes no reasons
#[case::the_go_program(json!({"status": "True"}), 10, &["RequestedAddressUnsupported"], None)]
#[case::the_go_program_at_once(json!({"status": "True"}), 9, &[], None)]
#[case::nobody(json!(null), 10, &["RequestedAddressUnsupported"], None)]
#[case::ours_before_it_looked(json!({"status": "True", "reason": "AddressAllocated"}), 9, &[], None)]
#[case::ours_that_does_not_look(json!({"status": "True", "reason": "AddressAllocated"}), 10, &[], Some("has not answered"))]
#[case::in_use(json!({"status": "False", "reason": "AddressInUse", "message": "10.0.0.7 is in use"}), 0,
    &["AddressInUse"], None)]
#[case::in_no_pool(json!({"status": "False", "reason": "AddressNotInPool", "message": "no pool has 10.0.0.7"}), 99,
    &["AddressNotInPool"], None)]
#[case::for_another_reason(json!({"status": "False", "reason": "PoolNotReady", "message": "pool lab is wrong"}), 99,
    &[], Some("pool lab is wrong"))]
#[case::of_the_go_program(json!({"status": "False", "message": "no matched IPPool"}), 99, &[], Some("no matched IPPool"))]
fn a_demand_that_is_not_met_is_told_by_who_ignores_or_refuses_it(
    #[case] ready: Value,
    #[case] waited: u64,
    #[case] told: &[&str],
    #[case] waiting: Option<&str>,
) {
    let service = service(&json!({DEMAND: "10.0.0.7"}), &json!({}));
    let decision = after(&service, &object("cluster", &status("10.0.0.9", &ready)), waited);
    assert_eq!(reasons(&decision), told);
    let text = decision.view.waiting.unwrap_or_default();
    assert!(waiting.map_or(text.is_empty(), |part| text.contains(part)), "{text}");
    assert_eq!(decision.view.again.is_some(), waited < 10 && ready["status"] != "False");
    for event in decision.events {
        let sentence = ready["message"].as_str().map(str::to_owned);
        let parts =
            sentence.map_or_else(|| vec!["10.0.0.9".to_owned(), "10.0.0.7".to_owned()], |it| vec![it]);
        assert!(parts.iter().all(|part| event.message.contains(part)), "{}", event.message);
    }
}

#[test]
fn a_demand_that_cannot_be_had_yet_is_told_before_there_is_any_address() {
    let ready = json!({"status": "False", "reason": "AddressInUse", "message": "10.0.0.7 is in use"});
    let mut waits = status("", &ready);
    waits.as_object_mut().unwrap().remove("address");
    let decision = after(&service(&json!({DEMAND: "10.0.0.7"}), &json!({})), &object("cluster", &waits), 99);
    assert_eq!((reasons(&decision), decision.view.waiting), (vec!["AddressInUse"], None));
}

/// A Service that demands an address of each family.
fn demanding_both(policy: &str) -> Service {
    let spec = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": policy});
    service(&json!({DEMAND: "10.0.0.7,fd00::7"}), &spec)
}

#[test]
fn a_service_that_requires_both_demanded_families_gets_nothing_while_one_is_missing() {
    let service = demanding_both("RequireDualStack");
    for given in ["10.0.0.7", "10.0.0.8"] {
        let decision = after(&service, &object("cluster", &status(given, &Value::Null)), 10);
        assert_eq!((addresses(&decision), decision.view.waiting), (vec![], None));
    }
}

#[rstest]
#[case::nothing_published_yet("", &[])]
#[case::published("10.0.0.7,fd00::9", &["10.0.0.7", "fd00::9"])]
fn a_demand_that_an_ipv6_address_which_stays_never_meets_is_told_once_it_is_known(
    #[case] published: &str,
    #[case] expected: &[&str],
    #[values("PreferDualStack", "RequireDualStack")] policy: &str,
    #[values(0, 99)] waited: u64,
) {
    let message = "requested address fd00::7 is not used: an IPv6 address stays until the object is deleted";
    let ready = json!({"status": "True", "reason": "AddressAllocated", "message": message});
    let mut both = status("10.0.0.7", &ready);
    both["allocatedAddress"]["ipv6Pool"] = "six".into();
    both["allocatedAddress"]["ipv6IP"] = "fd00::9".into();
    let mut service = demanding_both(policy);
    if !published.is_empty() {
        service.annotations_mut().insert(ASKED.to_owned(), published.to_owned());
        service.annotations_mut().insert(GIVEN.to_owned(), published.to_owned());
    }
    let decision = after(&service, &object("cluster", &both), waited);
    assert_eq!(
        (addresses(&decision), decision.view.waiting.as_ref()),
        (expected.iter().map(|it| (*it).to_owned()).collect(), None)
    );
    let [event] = &decision.events[..] else { panic!("{:?}", decision.events) };
    assert_eq!((event.reason, event.message.as_str()), ("RequestedAddressNotUsed", message));
    assert_eq!(decision.view.again, None);
}

/// Harvester gives one address, and the data path host has IPv4 alone.
#[rstest]
#[case::guest("cluster")]
#[case::host("vm")]
fn of_two_demanded_families_the_service_gets_what_there_is(#[case] workload: &str) {
    let service = demanding_both("PreferDualStack");
    let decision = after(&service, &object(workload, &status("10.0.0.7", &Value::Null)), 10);
    assert_eq!((addresses(&decision), decision.view.waiting), (vec!["10.0.0.7".to_owned()], None));
    let other = after(&service, &object(workload, &status("10.0.0.8", &Value::Null)), 10);
    assert_eq!(addresses(&other), [""; 0]);
}

#[test]
fn a_wish_for_two_families_of_which_one_is_given_is_met() {
    let spec = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
        "loadBalancerIP": "10.0.0.7,fd00::7"});
    let service = showing(service(&json!({}), &spec), "10.0.0.7");
    let decision = after(&service, &object("cluster", &status("10.0.0.7", &Value::Null)), 99);
    assert_eq!((addresses(&decision), reasons(&decision)), (vec!["10.0.0.7".to_owned()], vec![]));
}

/// Both are answers of a load balancer that knows wishes; else the time decides.
#[rstest]
#[case::met("10.0.0.7", json!(null), 99, None)]
#[case::not_met_yet("10.0.0.9", json!({"status": "True", "reason": "AddressAllocated"}), 9, None)]
#[case::not_met("10.0.0.9", json!({"status": "True"}), 10, Some("it may be in use"))]
#[case::with_a_reason("10.0.0.9", json!({"status": "True", "reason": "AddressAllocated", "message": "10.0.0.7 is in use"}), 0,
    Some("10.0.0.7 is in use"))]
#[case::of_a_former_wish("10.0.0.9", json!({"status": "True", "reason": "AddressAllocated", "message": "10.0.0.5 is in use"}), 0,
    None)]
#[case::of_an_address_that_begins_alike("10.0.0.9",
    json!({"status": "True", "reason": "AddressAllocated", "message": "requested address 10.0.0.70 is not used: it is in use"}),
    0, None)]
#[case::with_a_colon("10.0.0.9",
    json!({"status": "True", "reason": "AddressAllocated", "message": "no pool gives 10.0.0.7: edge is full"}), 0,
    Some("edge is full"))]
fn a_wish_that_is_not_met_hinders_nothing_and_is_told(
    #[case] given: &str,
    #[case] ready: Value,
    #[case] waited: u64,
    #[case] part: Option<&str>,
) {
    let wishes = service(&json!({}), &json!({"loadBalancerIP": "10.0.0.7"}));
    let decision = after(&showing(wishes, given), &object("cluster", &status(given, &ready)), waited);
    assert_eq!((addresses(&decision), decision.view.waiting.as_ref()), (vec![given.to_owned()], None));
    assert_eq!(decision.view.annotations[ASKED].as_deref(), Some(given));
    let message = decision.events.iter().map(|event| (event.reason, event.message.as_str())).next();
    match part {
        None => assert_eq!(message, None),
        Some(part) => {
            let (reason, message) = message.expect("an Event");
            assert_eq!(reason, "RequestedAddressNotUsed");
            assert!(["10.0.0.7", given, part].iter().all(|part| message.contains(part)), "{message}");
        }
    }
}

/// kube-vip in the guest reads the field while it is asked for no address, and another may have that one.
#[rstest]
#[case::refused(json!({annotations::IPAM: "static"}), None, 0, "10.0.0.7", true)]
#[case::no_pool(json!({}), Some(json!({"conditions": [{"type": "Ready", "status": "False"}]})), 0, "10.0.0.7", true)]
#[case::no_answer(json!({}), Some(json!({})), 10, "10.0.0.7", true)]
#[case::an_answer_may_come(json!({}), Some(json!({})), 0, "10.0.0.7", false)]
#[case::anothers(json!({annotations::IPAM: "static"}), None, 0, "10.0.0.8", false)]
#[case::asked_for_another(json!({annotations::IPAM: "static", ASKED: "10.0.0.9"}), None, 0, "10.0.0.7", false)]
#[case::passed_over(json!({annotations::IPAM: "static", annotations::KUBE_VIP_IGNORE: "true"}), None, 0, "10.0.0.7",
    false)]
fn a_wish_that_kube_vip_announces_by_itself_and_that_nobody_gave_is_told(
    #[case] there: Value,
    #[case] status: Option<Value>,
    #[case] waited: u64,
    #[case] shown: &str,
    #[case] is_told: bool,
) {
    let wishing = showing(service(&there, &json!({"loadBalancerIP": "10.0.0.7"})), shown);
    let object = status.map(|status| object("cluster", &status));
    let decision = decided(&wishing, object.as_ref(), |seen| seen.waited = Duration::from_secs(waited));
    let told = decision.events.iter().find(|event| event.reason == "AddressNotAllocated");
    assert_eq!(told.is_some(), is_told, "{decision:?}");
    assert!(
        told.is_none_or(|event| event.message.contains("announces 10.0.0.7 because of spec.loadBalancerIP"))
    );
}

#[test]
fn a_wish_of_a_service_that_waits_for_a_primary_is_told_where_kube_vip_announces_it() {
    let wishing = showing(service(&json!({}), &json!({"loadBalancerIP": "10.0.0.7"})), "10.0.0.7");
    let waits = Sharing::Waits("service shop/main is not there".to_owned());
    let decision = decided(&wishing, None, |seen| seen.sharing = waits);
    assert_eq!(reasons(&decision), ["WaitingForPrimary", "AddressNotAllocated"]);
}

#[rstest]
#[case::names_it("nix", "PoolNotFound", "nix", true)]
#[case::is_full("nix", "PoolExhausted", "nix", true)]
#[case::of_the_data_path("nix", "NoBackends", "nix", false)]
#[case::not_written_yet("nix", "PoolNotFound", "lab", false)]
#[case::has_an_address_of_it("lab", "PoolNotReady", "lab", false)]
// somebody in Harvester named it, and reads the condition
#[case::names_none("", "PoolNotFound", "nix", false)]
fn a_service_that_keeps_its_address_is_told_why_the_pool_that_it_names_gives_it_none(
    #[case] named: &str,
    #[case] reason: &str,
    #[case] pool: &str,
    #[case] is_told: bool,
    #[values("cluster", "vm")] workload: &str,
) {
    let message = "there is no such IPPool; address 10.0.0.7 of pool lab stays until then";
    let ready = json!({"status": "False", "reason": reason, "message": message});
    let mut json = object(workload, &status("10.0.0.7", &ready)).json();
    json["spec"]["ipPool"] = pool.into();
    let service = showing(service(&json!({annotations::SERVICE_IP_POOL: named}), &json!({})), "10.0.0.7");
    let decision = after(&service, &RawObject::from_json(json).unwrap(), 99);
    assert_eq!((addresses(&decision), decision.view.waiting), (vec!["10.0.0.7".to_owned()], None));
    let events = decision.events.iter().filter(|event| event.message == message);
    let told: Vec<_> = events.map(|event| event.reason).collect();
    assert_eq!(told, if is_told { vec!["RequestedAddressNotUsed"] } else { vec![] });
}

/// A Service that has an address goes on with it, and a former demand still holds.
#[rstest]
#[case::met("10.0.0.7", &["10.0.0.7"])]
#[case::not_met("10.0.0.9", &[])]
fn a_demand_that_becomes_malformed_changes_nothing(#[case] given: &str, #[case] published: &[&str]) {
    let mut former = object("cluster", &status(given, &Value::Null)).json().clone();
    former["metadata"]["annotations"] = json!({annotations::REQUESTED_IP_STRICT: "10.0.0.7"});
    let former = RawObject::from_json(former).unwrap();
    let decision = after(&service(&json!({DEMAND: "10.0.0.7.8"}), &json!({})), &former, 0);
    assert_eq!(
        (addresses(&decision), reasons(&decision)),
        (published.iter().map(|it| (*it).to_owned()).collect(), vec!["InvalidRequestedAddress"])
    );
    if let Some(Write::Update(json)) = decision.write {
        assert_eq!(json["metadata"]["annotations"][annotations::REQUESTED_IP_STRICT], "10.0.0.7");
    }
}

#[test]
fn a_lease_is_published_whatever_the_service_demands_since() {
    let mut leased = object("cluster", &status("0.0.0.0", &Value::Null)).json().clone();
    leased["spec"]["ipam"] = "dhcp".into();
    let leased = RawObject::from_json(leased).unwrap();
    let service =
        showing(service(&json!({DEMAND: "10.0.0.7", annotations::IPAM: "dhcp"}), &json!({})), "10.0.0.9");
    let decision = after(&service, &leased, 99);
    assert_eq!(
        (addresses(&decision), reasons(&decision)),
        (vec!["10.0.0.9".to_owned()], vec!["RequestedAddressNotUsed"])
    );
}
