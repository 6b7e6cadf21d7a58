use std::sync::Arc;

use cloud_provider::{FINALIZER, Publish};
use controller_kit::ObjectKey;
use harvester_api::labels;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    super::{
        Write,
        sharing::{Held, Primary, Sharing},
        tests::{decided, object, reasons, seen, service},
    },
    *,
};
use crate::datapath::{AllowedDatapaths, Policy};

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;

const DELETED: &str = "the LoadBalancer object of this Service was deleted in Harvester and cannot be made again, so its \
    address 10.0.0.9 may be given to another and is announced no more";
const WITHOUT_OBJECT: &str = "this Service has no LoadBalancer object in Harvester and none can be made, so 10.0.0.9 is \
    taken out of its status: a pool that gave it may give it to another; if another controller gave it, that one will write it \
    again";

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

/// A Service of ours that shows an address, with these annotations and one that is wrong.
fn wrong(there: &Value) -> Service {
    let mut had = service(there, &json!({}));
    had.annotations_mut().insert(annotations::IPAM.to_owned(), "static".to_owned());
    had.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    had
}

fn on_guest() -> Value {
    json!({ASKED: "10.0.0.9", GIVEN: "10.0.0.9"})
}

fn on_host() -> Value {
    json!({annotations::RECORDED_DATA_PATH: "host"})
}

/// The pool has the address back, and may give it to another.
#[rstest]
#[case::guest(on_guest(), DELETED)]
#[case::guest_after_a_restart_in_between(json!({GIVEN: "10.0.0.9"}), DELETED)]
#[case::host(on_host(), WITHOUT_OBJECT)]
fn an_address_whose_object_is_gone_goes_where_a_fault_keeps_another_object_from_being_made(
    #[case] there: Value,
    #[case] expected: &str,
) {
    let mut had = wrong(&there);
    let gone = decided(&had, None, |_| {});
    assert_eq!((&gone.write, &gone.view.publish), (&None, &Publish::Withdrawn));
    assert_eq!(reasons(&gone), ["AddressTakenBack", "InvalidIPAM"]);
    assert_eq!(gone.events[0].message, expected);
    if there.get(GIVEN).is_some() {
        assert_eq!(gone.view.annotations[GIVEN].as_deref(), Some("10.0.0.9"), "the record stays");
        assert_eq!(gone.view.annotations.get(ASKED), there.get(ASKED).is_some().then_some(&None));
        let written = LoadBalancerState::Present { addresses: Vec::new() };
        assert_eq!(gone.view.load_balancer, written, "annotations of an absent one stay as they are");
    }
    had.annotations_mut().remove(ASKED);
    had.status = None;
    assert_eq!(reasons(&decided(&had, None, |_| {})), ["InvalidIPAM"], "it is told once");

    had = wrong(&there);
    had.annotations_mut().remove(annotations::IPAM);
    let comes_back = decided(&had, None, |_| {});
    assert!(comes_back.write.is_some() && comes_back.view.publish != Publish::Withdrawn, "{comes_back:?}");
}

#[rstest]
#[case::guest(on_guest())]
#[case::host(on_host())]
fn an_address_whose_object_is_gone_goes_where_harvester_refuses_to_make_another_and_the_tries_go_on(
    #[case] there: Value,
) {
    let mut had = wrong(&there);
    had.annotations_mut().remove(annotations::IPAM);
    let gone = decided(&had, None, |seen| seen.creation_refused = true);
    assert!(gone.write.is_some() && gone.view.publish == Publish::Withdrawn, "{gone:?}");
    assert_eq!(gone.view.annotations.get(ASKED), there.get(ASKED).is_some().then_some(&None));
    assert_eq!(reasons(&gone), ["AddressTakenBack"]);
}

/// kube-vip takes it once it is asked for nothing else, whoever has that address.
#[rstest]
#[case::another(on_guest(), true)]
#[case::passed_over_by_kube_vip(json!({GIVEN: "10.0.0.9", annotations::KUBE_VIP_IGNORE: "true"}), false)]
#[case::asked_for_what_somebody_wrote(json!({ASKED: "10.0.0.3", GIVEN: "10.0.0.9"}), false)]
#[case::on_the_host(json!({annotations::RECORDED_DATA_PATH: "host", annotations::KUBE_VIP_IGNORE: "true"}), false)]
fn who_loses_an_address_is_told_to_remove_the_wish_that_kube_vip_announces_then(
    #[case] there: Value,
    #[case] is_told: bool,
) {
    let mut had = wrong(&there);
    had.spec.as_mut().unwrap().load_balancer_ip = Some("10.0.0.8".to_owned());
    let gone = decided(&had, None, |_| {});
    let told = gone.events.iter().find(|event| event.reason == "AddressTakenBack").expect("it is told");
    let part = "; remove spec.loadBalancerIP, because kube-vip in the guest announces 10.0.0.8 by itself now";
    assert_eq!(told.message.contains(part), is_told, "{}", told.message);
}

/// By the data path on which it was given.
#[test]
fn an_address_in_the_guest_whose_object_is_gone_goes_where_the_flags_exclude_that_data_path() {
    let host = AllowedDatapaths { guest: false, host: true };
    let gone = decided(&wrong(&on_guest()), None, |seen| (seen.allowed, seen.policy) = (host, Policy::Host));
    assert_eq!((&gone.write, &gone.view.publish), (&None, &Publish::Withdrawn));
    assert_eq!(gone.view.annotations.get(ASKED), Some(&None));
    assert_eq!(gone.view.annotations.get(annotations::KUBE_VIP_IGNORE), None);
}

#[rstest]
#[case::a_lease(json!({ASKED: DHCP_ADDRESS, GIVEN: DHCP_ADDRESS}), |_: &mut Seen<'_>| ())]
#[case::the_users_own(json!({ASKED: "10.0.0.9"}), |_: &mut Seen<'_>| ())]
#[case::before_the_objects_were_listed(on_guest(), |seen: &mut Seen<'_>| seen.load_balancer = Found::Unlisted)]
#[case::of_an_object_that_cannot_be_read(on_guest(), |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Unreadable("broken".to_owned());
})]
#[case::shared(on_guest(), |seen: &mut Seen<'_>| seen.held = Held::Valid)]
#[case::shared_for_certain(on_guest(), |seen: &mut Seen<'_>| seen.held = Held::Proven)]
// the list may be of another Harvester, whatever is wrong besides
#[case::no_machine_is_known(on_guest(), |seen: &mut Seen<'_>| seen.backends.as_mut().unwrap().are_identified = false)]
#[case::no_machine_is_known_on_the_host(on_host(), |seen: &mut Seen<'_>| {
    seen.backends.as_mut().unwrap().are_identified = false;
})]
// and it may be old
#[case::harvester_is_out_of_reach(on_guest(), |seen: &mut Seen<'_>| {
    seen.load_balancers_out_of_reach = Some("down".to_owned());
})]
#[case::harvester_is_out_of_reach_on_the_host(on_host(), |seen: &mut Seen<'_>| {
    seen.load_balancers_out_of_reach = Some("down".to_owned());
})]
// and another controller writes it again
#[case::shown_by_another_controller(on_host(), |seen: &mut Seen<'_>| seen.shown_by_others = true)]
#[case::no_machine_is_listed(on_guest(), |seen: &mut Seen<'_>| seen.backends = None)]
#[case::no_machine_is_listed_on_the_host(on_host(), |seen: &mut Seen<'_>| seen.backends = None)]
fn an_address_that_no_object_gave_or_that_an_unseen_one_may_hold_stays_published(
    #[case] there: Value,
    #[case] change: fn(&mut Seen<'_>),
    #[values(false, true)] creation_refused: bool,
) {
    let decision = decided(&wrong(&there), None, |seen| {
        seen.creation_refused = creation_refused;
        change(seen);
    });
    assert_eq!(decision.write, None);
    assert_ne!(decision.view.publish, Publish::Withdrawn);
    assert_eq!(decision.view.annotations.get(ASKED), None);
    assert!(!reasons(&decision).contains(&"AddressTakenBack"));
}

/// No pool has an address, or the one that it shared is lost.
#[rstest]
#[case::no_pool_has_one(true, Held::Nothing)]
#[case::the_shared_one_is_lost(false, Held::Lost)]
fn an_address_on_the_host_datapath_that_another_controller_would_write_again_stays(
    #[case] is_refused: bool,
    #[case] held: Held,
    #[values(false, true)] shown_by_others: bool,
) {
    let no = object("vm", &json!({"conditions": [{"type": "Ready", "status": "False"}]}));
    let had = wrong(&on_host());
    let decision = decided(&had, is_refused.then_some(&no), |seen| {
        (seen.held, seen.shown_by_others) = (held.clone(), shown_by_others);
    });
    let expected = if shown_by_others { Publish::Unchanged } else { Publish::Withdrawn };
    assert_eq!(decision.view.publish, expected);
}

#[test]
fn a_service_that_never_was_ours_loses_nothing_by_a_fault() {
    let mut new = wrong(&on_guest());
    new.metadata.finalizers = None;
    let decision = decided(&new, None, |_| {});
    assert_eq!(
        (decision.view.publish, decision.view.load_balancer),
        (Publish::NotOurs, LoadBalancerState::Absent)
    );
}

/// The object proves that it is the Go program's, and may go.
#[test]
fn an_address_of_the_go_program_is_recorded_while_its_object_stands() {
    let object = object("cluster", &json!({"address": "10.0.0.9", "allocatedAddress": {"ip": "10.0.0.9"}}));
    for is_wrong in [true, false] {
        let mut had = wrong(&json!({ASKED: "10.0.0.9"}));
        if !is_wrong {
            had.annotations_mut().remove(annotations::IPAM);
        }
        let stands = decided(&had, Some(&object), |_| {});
        assert_eq!(stands.view.annotations.get(GIVEN), Some(&Some("10.0.0.9".to_owned())));
        had.annotations_mut().insert(GIVEN.to_owned(), "10.0.0.9".to_owned());
        let gone = decided(&had, None, |seen| seen.creation_refused = !is_wrong);
        assert_eq!(gone.view.publish, Publish::Withdrawn);
    }
}

/// Its user asked kube-vip for the address before Harvester gave it.
#[test]
fn an_address_that_somebody_else_asks_for_is_not_recorded_as_given() {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    let asks = service(&json!({ASKED: "10.0.0.9"}), &json!({}));
    assert_eq!(decided(&asks, Some(&object), |_| {}).view.annotations.get(GIVEN), None);
}

/// kube-vip announces it still, and writes nothing a second time. Where the process ends in between, the next one goes on.
#[rstest]
#[case::announced_still("10.0.0.9", Some("worker-1"), "10.0.0.9", true)]
// withdrawn before kube-vip had written it over the former one
#[case::the_latest_of_several("10.0.0.9,10.0.0.7", Some("worker-1"), "10.0.0.9", true)]
#[case::announced_by_nobody("10.0.0.9", None, "10.0.0.9", false)]
#[case::another_address("10.0.0.8", Some("worker-1"), "10.0.0.9", false)]
#[case::a_lease(DHCP_ADDRESS, Some("worker-1"), DHCP_ADDRESS, false)]
fn an_address_that_comes_back_is_shown_before_kube_vip_is_asked_for_it_again(
    #[case] recorded: &str,
    #[case] announcer: Option<&str>,
    #[case] allocated: &str,
    #[case] is_shown: bool,
) {
    let mut had = service(&json!({GIVEN: recorded}), &json!({}));
    if let Some(node) = announcer {
        had.annotations_mut().insert(annotations::KUBE_VIP_VIP_HOST.to_owned(), node.to_owned());
    }
    let object = object("cluster", &json!({"allocatedAddress": {"ip": allocated}}));
    let first = decided(&had, Some(&object), |_| {});
    let shown = Publish::Addresses(vec![IngressAddress::parse(allocated)]);
    assert_eq!(first.view.publish, if is_shown { shown } else { Publish::NotOurs });
    assert_eq!(first.view.annotations.contains_key(ASKED), !is_shown);

    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": allocated}]}})).unwrap();
    let then = decided(&had, Some(&object), |_| {});
    assert_eq!(then.view.annotations[ASKED].as_deref(), Some(allocated));
    assert_eq!(then.view.publish, Publish::NotOurs);
}

/// Its user shows a host name in place of the address, and kube-vip does not write over it.
#[test]
fn a_status_with_a_host_name_stays_as_it_is_when_the_address_comes_back() {
    let mut had =
        service(&json!({GIVEN: "10.0.0.9", annotations::KUBE_VIP_VIP_HOST: "worker-1"}), &json!({}));
    had.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"hostname": "a.example"}]}})).unwrap();
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    let view = decided(&had, Some(&object), |_| {}).view;
    assert_eq!(view.publish, Publish::NotOurs);
    assert_eq!(view.annotations[ASKED].as_deref(), Some("10.0.0.9"));
}

/// Its own object is not made, and the primary has another address by now, or none.
#[test]
fn a_shared_address_that_is_lost_is_taken_from_a_service_whose_own_object_a_fault_keeps_from_being_made() {
    let lost = decided(&wrong(&on_guest()), None, |seen| seen.held = Held::Lost);
    assert_eq!((lost.view.annotations.get(ASKED), &lost.write), (Some(&None), &None));
    assert_eq!(lost.view.load_balancer, LoadBalancerState::Present { addresses: Vec::new() });
}

#[test]
fn a_lease_remembers_no_former_address() {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": DHCP_ADDRESS}}));
    let decision = decided(&showing("10.0.0.9", Some(DHCP_ADDRESS), DHCP_ADDRESS), Some(&object), |_| {});
    assert_eq!(decision.view.annotations[GIVEN].as_deref(), Some(DHCP_ADDRESS));
}

/// kube-vip announces `spec.loadBalancerIP` until it is asked for a lease. A DHCP server may give that address, and then
/// kube-vip's annotations say so; one that writes no hardware address asked for none.
#[rstest]
#[case::the_wish("10.0.0.7", "", "", &[])]
#[case::a_lease("10.0.0.9", "", "", &["10.0.0.9"])]
#[case::a_lease_of_the_wish("10.0.0.7", "00:00:6c:01:02:03", "10.0.0.7", &["10.0.0.7"])]
#[case::a_lease_of_the_wish_and_of_ipv6("10.0.0.7", "00:00:6c:01:02:03", "10.0.0.7,fd00::7", &["10.0.0.7"])]
#[case::the_wish_after_another_lease("10.0.0.7", "00:00:6c:01:02:03", "10.0.0.70", &[])]
#[case::the_users_own_annotation("10.0.0.7", "", "10.0.0.7", &[])]
fn a_status_that_shows_the_wish_shows_a_lease_where_kube_vip_says_so(
    #[case] shown: &str,
    #[case] hardware_address: &str,
    #[case] requested: &str,
    #[case] expected: &[&str],
) {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": DHCP_ADDRESS}}));
    let mut had = showing(shown, Some(DHCP_ADDRESS), DHCP_ADDRESS);
    let by_kube_vip =
        [(annotations::KUBE_VIP_HWADDR, hardware_address), (annotations::KUBE_VIP_REQUESTED_IP, requested)];
    had.annotations_mut().extend(by_kube_vip.map(|(key, text)| (key.to_owned(), text.to_owned())));
    had.spec.as_mut().unwrap().load_balancer_ip = Some("10.0.0.7".to_owned());
    let decision = decided(&had, Some(&object), |_| {});
    let addresses: Vec<_> = expected.iter().map(|ip| IngressAddress::parse(ip)).collect();
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses });
    let Some(Write::Update(written)) = decision.write else { panic!("its labels are written") };
    assert_eq!(written["status"]["address"].as_str(), expected.first().copied());
    assert_eq!(not_shown(&had, &object).is_some(), expected.is_empty(), "it is waited for");
}

#[test]
fn the_latest_address_of_each_family_comes_first() {
    assert_eq!(latest("10.0.0.7,10.0.0.9,fd00::7,fd00::9"), "10.0.0.7,fd00::7");
    assert_eq!(latest(""), "");
}

#[rstest]
#[case::in_another_form("fd00::7", "fd00:0:0::7", true)]
#[case::another("fd00::7", "fd00::8", false)]
fn an_address_in_the_status_is_the_one_that_was_given_in_every_form(
    #[case] lost: &str,
    #[case] shown: &str,
    #[case] expected: bool,
) {
    assert_eq!(came_of(lost, &showing(shown, None, lost)), expected);
}

#[rstest]
#[case::empty(&[], true, |_: &mut Seen<'_>| (), StatusOwner::Others)]
#[case::of_anybody(&["192.0.2.7"], true, |_: &mut Seen<'_>| (), StatusOwner::AsBefore)]
#[case::not_ours_yet(&[], false, |_: &mut Seen<'_>| (), StatusOwner::Others)]
#[case::of_anybody_and_not_ours_yet(&["192.0.2.7"], false, |_: &mut Seen<'_>| (), StatusOwner::Others)]
#[case::with_an_object(&[], true, |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Present(Arc::new(object("vm", &json!({}))));
}, StatusOwner::Others)]
// somebody took our finalizer off
#[case::of_anybody_with_an_object(&["192.0.2.7"], false, |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Present(Arc::new(object("vm", &json!({}))));
}, StatusOwner::AsBefore)]
#[case::with_an_address(&[], true, |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Present(Arc::new(object("vm", &json!({"address": "192.0.2.9"}))));
}, StatusOwner::Ours)]
#[case::with_an_address_in_the_guest(&[], true, |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Present(Arc::new(object("cluster", &json!({"address": "10.0.0.9"}))));
}, StatusOwner::Ours)]
#[case::with_an_object_that_cannot_be_read(&[], true, |seen: &mut Seen<'_>| {
    seen.load_balancer = Found::Unreadable("broken".to_owned());
}, StatusOwner::Others)]
// nothing is written so long
#[case::before_the_objects_were_listed(&[], true, |seen: &mut Seen<'_>| seen.load_balancer = Found::Unlisted,
    StatusOwner::AsBefore)]
#[case::of_another_type_before_the_objects_were_listed(&[], true, |seen: &mut Seen<'_>| {
    (seen.load_balancer, seen.wanted) = (Found::Unlisted, false);
}, StatusOwner::AsBefore)]
#[case::of_another_type(&[], true, |seen: &mut Seen<'_>| seen.wanted = false, StatusOwner::Ours)]
#[case::that_waits_for_a_primary(&[], true, |seen: &mut Seen<'_>| seen.sharing = Sharing::Waits(String::new()),
    StatusOwner::Others)]
fn an_empty_status_is_remembered_of_a_service_that_has_nothing_of_ours(
    #[case] shown: &[&str],
    #[case] has_finalizer: bool,
    #[case] change: fn(&mut Seen<'_>),
    #[case] expected: StatusOwner,
) {
    let mut service = service(&json!({}), &json!({}));
    service.metadata.finalizers = has_finalizer.then(|| vec![FINALIZER.to_owned()]);
    let ingress: Vec<_> = shown.iter().map(|ip| json!({"ip": ip})).collect();
    service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": ingress}})).unwrap();
    let mut seen = seen(&service);
    change(&mut seen);
    assert_eq!(owner(&seen), expected);
}

fn owner(seen: &Seen<'_>) -> StatusOwner {
    status_owner(seen, &super::super::decide(seen).view.publish)
}

/// It demands another address than its object has: nothing is published.
#[test]
fn a_status_is_another_controllers_also_while_a_demand_is_not_met() {
    let mut service = service(&on_host(), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let allocated = json!({"address": "10.0.0.9", "allocatedAddress": {"ipPool": "lab", "ip": "10.0.0.9"}});
    let mut seen = seen(&service);
    seen.load_balancer = Found::Present(Arc::new(object("vm", &allocated)));
    assert_eq!(status_owner(&seen, &Publish::Unchanged), StatusOwner::Others);
    let given = Publish::Addresses(vec![IngressAddress::parse("10.0.0.9")]);
    assert_eq!(status_owner(&seen, &given), StatusOwner::Ours);
}

/// Before it was taken off, the program may have written the address.
#[test]
fn a_status_is_nobodys_for_certain_where_somebody_took_the_finalizer_off_and_the_record_is_there() {
    let mut service = wrong(&on_host());
    service.metadata.finalizers = None;
    assert_eq!(owner(&seen(&service)), StatusOwner::AsBefore);
    service.status = None;
    assert_eq!(owner(&seen(&service)), StatusOwner::Others);
}

/// A primary whose object carries the ports and has this address.
fn with(path: Datapath, address: Option<&str>) -> Primary {
    Primary {
        service: ObjectKey::new("shop", "main"),
        path,
        address: address.map(str::to_owned),
        network: None,
        carries: true,
        taken_back: false,
    }
}

/// On the host datapath nothing is written before the primary has an address and carries the ports.
#[rstest]
#[case::that_has_an_address(Sharing::With(with(Datapath::Host, Some("10.0.0.9"))), StatusOwner::Ours)]
#[case::that_has_none(Sharing::With(with(Datapath::Host, None)), StatusOwner::Others)]
#[case::that_does_not_carry_it(
    Sharing::With(Primary { carries: false, ..with(Datapath::Host, Some("10.0.0.9")) }), StatusOwner::Others)]
#[case::whose_address_is_taken_back(
    Sharing::With(Primary { taken_back: true, ..with(Datapath::Host, Some("10.0.0.9")) }), StatusOwner::Others)]
#[case::that_is_waited_for(Sharing::Waits(String::new()), StatusOwner::Others)]
#[case::in_the_guest(Sharing::With(with(Datapath::Guest, None)), StatusOwner::Ours)]
fn an_empty_status_is_remembered_of_a_service_with_a_primary(
    #[case] sharing: Sharing,
    #[case] expected: StatusOwner,
    #[values(false, true)] is_readable: bool,
) {
    let mut service = service(&on_host(), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    service.metadata.labels = Some([(labels::PRIMARY_SERVICE.to_owned(), "shop.main".to_owned())].into());
    let mut seen = seen(&service);
    seen.sharing = sharing;
    if !is_readable {
        seen.load_balancer = Found::Unreadable("broken".to_owned());
    }
    assert_eq!(owner(&seen), expected);
}

/// kube-vip writes that status.
#[test]
fn no_empty_status_is_remembered_of_a_service_in_the_guest_that_shared_an_address() {
    let mut service = service(&json!({}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    service.metadata.labels = Some([(labels::PRIMARY_SERVICE.to_owned(), "shop.main".to_owned())].into());
    let mut seen = seen(&service);
    seen.sharing = Sharing::Waits(String::new());
    assert_eq!(owner(&seen), StatusOwner::Ours);
}
