use cloud_provider::Publish;
use rstest::rstest;
use serde_json::json;

use super::{
    super::{
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
