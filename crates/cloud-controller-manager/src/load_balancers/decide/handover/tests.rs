use cloud_provider::{FINALIZER, LoadBalancerState, Publish};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;
use serde_json::json;

use super::{
    super::{
        Found,
        sharing::{Held, Sharing},
        tests::{decided, object, reasons, service},
    },
    *,
};

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;

/// A Service that shows this address, with these annotations for kube-vip.
fn showing(shown: &str, asked: Option<&str>, given: &str) -> Service {
    let mut annotations = json!({GIVEN: given});
    if let Some(asked) = asked {
        annotations[ASKED] = asked.into();
    }
    let mut service = service(&annotations, &json!({}));
    service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": shown}]}})).unwrap();
    service
}

#[rstest]
#[case::of_the_same_object("10.0.0.9", "10.0.0.9", "10.0.0.7,10.0.0.9")]
#[case::that_was_leased("10.0.0.9", DHCP_ADDRESS, "10.0.0.7,10.0.0.9")]
#[case::that_kube_vip_wrote_over("10.0.0.7", "10.0.0.7,10.0.0.9", "10.0.0.7")]
#[case::that_somebody_else_wrote("10.0.0.9", "10.0.0.8", "10.0.0.7")]
fn a_former_address_is_remembered_as_long_as_the_status_shows_it(
    #[case] shown: &str,
    #[case] given: &str,
    #[case] recorded: &str,
) {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.7"}}));
    let decision = decided(&showing(shown, Some("10.0.0.9"), given), Some(&object), |_| {});
    assert_eq!(decision.view.annotations[ASKED].as_deref(), Some("10.0.0.7"));
    assert_eq!(decision.view.annotations[GIVEN].as_deref(), Some(recorded));
    assert_eq!(decision.view.publish, Publish::NotOurs, "kube-vip writes over it");
}

#[rstest]
#[case::at_once(Some("10.0.0.7"))]
#[case::after_a_restart_in_between(None)]
fn an_address_that_is_taken_back_before_kube_vip_wrote_it_leaves_no_former_one_in_the_status(
    #[case] asked: Option<&str>,
) {
    let had = showing("10.0.0.9", asked, "10.0.0.7,10.0.0.9");
    let no = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    let decision = decided(&had, Some(&object("cluster", &no)), |_| {});
    assert_eq!(decision.view.publish, Publish::Withdrawn);
    let [event] = &decision.events[..] else { panic!("{:?}", decision.events) };
    assert!(event.message.starts_with("Harvester took 10.0.0.7 back"), "{event:?}");
    assert_eq!(reasons(&decision), ["AddressTakenBack"]);
}

#[rstest]
#[case::it_waits(Sharing::Waits("its primary is not there".to_owned()))]
#[case::it_is_to_have_its_own(Sharing::Own)]
fn a_shared_address_that_is_lost_before_kube_vip_wrote_it_leaves_no_former_one_in_the_status(
    #[case] sharing: Sharing,
) {
    let had = showing("10.0.0.9", Some("10.0.0.7"), "10.0.0.7,10.0.0.9");
    let decision = decided(&had, None, |seen| (seen.held, seen.sharing) = (Held::Lost, sharing.clone()));
    assert_eq!(decision.view.publish, Publish::Withdrawn);
    assert_eq!(decision.view.annotations[ASKED], None);
}

/// The pool has the address back, and may give it to another.
#[rstest]
#[case::guest(json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9"}))]
#[case::host(json!({annotations::RECORDED_DATA_PATH: "host"}))]
fn an_address_whose_object_is_gone_goes_where_a_fault_keeps_another_object_from_being_made(
    #[case] there: serde_json::Value,
) {
    let mut had = service(&there, &json!({}));
    had.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    let made = decided(&had, None, |_| {});
    assert!(made.write.is_some() && made.view.publish != Publish::Withdrawn, "it comes back: {made:?}");

    had.annotations_mut().insert(annotations::IPAM.to_owned(), "static".to_owned());
    let gone = decided(&had, None, |_| {});
    assert_eq!((&gone.write, &gone.view.publish), (&None, &Publish::Withdrawn));
    if there.get(ASKED).is_some() {
        assert_eq!(gone.view.annotations.get(ASKED), Some(&None));
        let written = LoadBalancerState::Present { addresses: Vec::new() };
        assert_eq!(gone.view.load_balancer, written, "annotations of an absent one stay as they are");
        assert!(reasons(&gone).contains(&"AddressTakenBack"));
        let new =
            Service { metadata: ObjectMeta { finalizers: None, ..had.metadata.clone() }, ..had.clone() };
        assert_eq!(decided(&new, None, |_| {}).view.publish, Publish::NotOurs, "it never was ours");
    }
    let unlisted = decided(&had, None, |seen| seen.load_balancer = Found::Unlisted);
    assert_ne!(unlisted.view.publish, Publish::Withdrawn);
}

#[rstest]
#[case::a_lease(json!({ASKED: DHCP_ADDRESS, GIVEN: DHCP_ADDRESS, annotations::IPAM: "static"}), false)]
// the list may be of another server
#[case::no_machine_is_known(json!({annotations::RECORDED_DATA_PATH: "host"}), true)]
#[case::nor_beside_a_fault(json!({annotations::RECORDED_DATA_PATH: "host", annotations::IPAM: "static"}), true)]
#[case::nor_in_the_guest(json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9", annotations::IPAM: "static"}), true)]
fn an_address_that_no_object_gave_or_that_an_unseen_one_may_hold_stays_published(
    #[case] there: serde_json::Value,
    #[case] are_machines_unknown: bool,
) {
    let mut had = service(&there, &json!({}));
    had.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    let decision = decided(&had, None, |seen| {
        if are_machines_unknown {
            seen.backends.as_mut().unwrap().eligible.clear();
        }
    });
    assert_eq!(decision.write, None);
    assert_ne!(decision.view.publish, Publish::Withdrawn);
    assert_eq!(decision.view.annotations.get(ASKED), None);
}

#[test]
fn a_lease_remembers_no_former_address() {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": DHCP_ADDRESS}}));
    let decision = decided(&showing("10.0.0.9", Some(DHCP_ADDRESS), DHCP_ADDRESS), Some(&object), |_| {});
    assert_eq!(decision.view.annotations[GIVEN].as_deref(), Some(DHCP_ADDRESS));
}

#[test]
fn the_latest_address_of_each_family_comes_first() {
    assert_eq!(latest("10.0.0.7,10.0.0.9,fd00::7,fd00::9"), "10.0.0.7,fd00::7");
    assert_eq!(latest(""), "");
}
