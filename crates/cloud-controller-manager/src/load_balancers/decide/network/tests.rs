use std::time::Duration;

use cloud_provider::{Decision, LoadBalancerState};
use controller_kit::RawObject;
use harvester_api::LoadBalancer;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    super::{
        Write,
        tests::{decided, ip, object, reasons, service},
    },
    *,
};

const IPS: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const INTERFACE: &str = annotations::KUBE_VIP_SERVICE_INTERFACE;

fn missing() -> Interface {
    Interface::Missing("no VM has network default/net9".to_owned())
}

/// For a Service with a network and more annotations, whose object has this status.
fn about(more: &Value, object: Option<&RawObject<LoadBalancer>>, interface: Interface) -> Decision<Write> {
    let mut annotations = json!({annotations::SERVICE_NETWORK: "default/net9"});
    for (key, value) in more.as_object().into_iter().flatten() {
        annotations[key] = value.clone();
    }
    decided(&service(&annotations, &json!({})), object, |seen| {
        seen.interface = interface;
        seen.waited = Duration::from_secs(99);
    })
}

fn given_address() -> RawObject<LoadBalancer> {
    object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}))
}

fn set<'a>(decision: &'a Decision<Write>, key: &str) -> Option<&'a str> {
    decision.view.annotations.get(key).and_then(Option::as_deref)
}

// docs/contract/cloud-controller-manager.md#9.3
#[rstest]
#[case::first(json!({}))]
#[case::by_the_go_program(json!({IPS: "10.0.0.9", INTERFACE: "enp2s0"}))]
#[case::changed(json!({IPS: "10.0.0.9", INTERFACE: "enp7s0"}))]
fn the_interface_comes_with_the_address(#[case] there: Value) {
    let decision = about(&there, Some(&given_address()), Interface::Named("enp2s0".into()));
    assert_eq!((set(&decision, IPS), set(&decision, INTERFACE)), (Some("10.0.0.9"), Some("enp2s0")));
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses: ip("10.0.0.9") });
}

#[test]
fn the_interface_does_not_come_before_the_address() {
    let decision = about(&json!({}), Some(&object("cluster", &json!({}))), Interface::Named("enp2s0".into()));
    assert!(!decision.view.annotations.contains_key(INTERFACE));
}

#[test]
fn a_service_without_network_keeps_the_interface_that_its_user_chose() {
    let service = service(&json!({INTERFACE: "eth7"}), &json!({}));
    let decision = decided(&service, Some(&given_address()), |_| ());
    assert!(!decision.view.annotations.contains_key(INTERFACE));
    let given_up = decided(&service, Some(&given_address()), |seen| seen.wanted = false);
    assert!(!given_up.view.annotations.contains_key(INTERFACE));
}

#[test]
fn a_service_that_gives_its_load_balancer_up_loses_the_interface_of_its_network() {
    let network = json!({annotations::SERVICE_NETWORK: "a/b", INTERFACE: "enp2s0"});
    let decision =
        decided(&service(&network, &json!({})), Some(&given_address()), |seen| seen.wanted = false);
    assert_eq!(decision.view.annotations.get(INTERFACE), Some(&None));
}

#[test]
fn an_address_is_not_handed_over_while_its_network_has_no_interface() {
    let decision = about(&json!({}), Some(&given_address()), missing());
    assert_eq!((set(&decision, IPS), set(&decision, annotations::ALLOCATED_ADDRESS)), (None, None));
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses: vec![] });
    assert_eq!(reasons(&decision).iter().filter(|it| **it == "NetworkWithoutInterface").count(), 1);
    assert!(!reasons(&decision).contains(&"AddressNotPublished"), "kube-vip was not asked");
}

/// A process that just started, or a Node that just joined: the next look says which interface it is.
#[test]
fn an_address_waits_in_silence_until_it_is_known_whether_there_is_an_interface() {
    let decision = about(&json!({}), Some(&given_address()), Interface::NotYetKnown);
    assert_eq!((set(&decision, IPS), set(&decision, annotations::ALLOCATED_ADDRESS)), (None, None));
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses: vec![] });
    assert_eq!((reasons(&decision), decision.view.waiting), (vec![], None));
    let there = json!({IPS: "10.0.0.9", annotations::ALLOCATED_ADDRESS: "10.0.0.9"});
    let has = about(&there, Some(&given_address()), Interface::NotYetKnown);
    assert_eq!(set(&has, IPS), Some("10.0.0.9"));
    assert!(!reasons(&has).contains(&"NetworkWithoutInterface"));
}

// the pools' own sentence comes beside it
#[test]
fn a_network_that_no_vm_has_is_told_before_and_beside_the_sentence_of_the_pools() {
    let fresh = about(&json!({}), None, missing());
    assert!(matches!(fresh.write, Some(Write::Create { .. })), "{fresh:?}");
    let status =
        json!({"conditions": [{"type": "Ready", "status": "False", "message": "no pool of that network"}]});
    let waits = about(&json!({}), Some(&object("cluster", &status)), missing());
    assert_eq!(waits.view.waiting.as_deref(), Some("no pool of that network"));
    for decision in [fresh, waits] {
        let event = decision.events.iter().find(|event| event.reason == "NetworkWithoutInterface");
        let message = event.map(|event| event.message.as_str()).unwrap_or_default();
        assert!(
            message.contains("gets no address until") && message.contains("no VM has network"),
            "{message}"
        );
    }
}

#[rstest]
#[case::missing(missing(), "stays on the interface that it has")]
#[case::unknown(Interface::Unknown, "start the guest agents, or name it in that ConfigMap")]
#[case::on_no_vm(Interface::OnNoVm("no VM has it".to_owned()), "kube-vip takes its own interface: no VM has it")]
fn a_service_that_has_its_address_keeps_it_without_an_interface(
    #[case] interface: Interface,
    #[case] part: &str,
) {
    let there = json!({IPS: "10.0.0.9", annotations::ALLOCATED_ADDRESS: "10.0.0.9"});
    let decision = about(&there, Some(&given_address()), interface);
    assert_eq!(set(&decision, IPS), Some("10.0.0.9"));
    assert!(!decision.view.annotations.contains_key(INTERFACE), "somebody may have chosen one");
    let event = decision.events.iter().find(|event| event.reason == "NetworkWithoutInterface");
    assert!(event.is_some_and(|event| event.message.contains(part)), "{decision:?}");
}

#[test]
fn an_address_is_handed_over_while_nobody_says_which_interface_its_network_has() {
    let decision = about(&json!({}), Some(&given_address()), Interface::Unknown);
    assert_eq!(set(&decision, IPS), Some("10.0.0.9"));
}

#[test]
fn an_address_that_was_taken_back_is_withdrawn_without_an_interface_too() {
    let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    let there = json!({IPS: "10.0.0.9", annotations::ALLOCATED_ADDRESS: "10.0.0.9"});
    let decision = about(&there, Some(&object("cluster", &status)), missing());
    assert_eq!(decision.view.annotations.get(IPS), Some(&None));
}
