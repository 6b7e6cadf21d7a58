use harvester_api::names::DHCP_ADDRESS;
use rstest::rstest;
use serde_json::json;

use super::{
    super::super::object::secondary_prefix,
    super::tests::{decided, ip, object, reasons, service},
    *,
};

const LABEL: &str = "cloudprovider.harvesterhci.io/primary-service";
const IPS: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;

fn primary(path: Datapath) -> Primary {
    Primary {
        service: ObjectKey::new("shop", "main"),
        path,
        address: Some("10.0.0.9".to_owned()),
        network: None,
        carries: true,
        taken_back: false,
    }
}

/// `shop/web` with this label, status and more annotations.
fn asking(annotations: &Value, label: Option<&str>, shown: Option<&str>) -> Service {
    let mut asking = service(annotations, &json!({}));
    asking.metadata.labels = label.map(|label| BTreeMap::from([(LABEL.to_owned(), label.to_owned())]));
    asking.metadata.finalizers = Some(vec![cloud_provider::FINALIZER.to_owned()]);
    let status = shown.map(|ip| json!({"loadBalancer": {"ingress": [{"ip": ip}]}}));
    asking.status = serde_json::from_value(status.unwrap_or_default()).unwrap();
    asking
}

fn refused(revoked: bool) -> Sharing {
    Sharing::Refused { fault: Some(Explanation::new("PortConflict", "port 80 is taken")), revoked }
}

fn label_in(view: &View) -> Option<&str> {
    view.labels.get(LABEL).and_then(Option::as_deref)
}

#[test]
fn on_the_guest_datapath_label_and_address_come_in_one_write() {
    let network = Some("default/vlan1".to_owned());
    let shared = Primary { network, ..primary(Datapath::Guest) };
    let decision =
        decided(&asking(&json!({}), None, None), None, |seen| seen.sharing = Sharing::With(shared));
    let view = decision.view;
    let expected = [
        (IPS, Some("10.0.0.9")),
        (annotations::ALLOCATED_ADDRESS, Some("10.0.0.9")),
        (annotations::SERVICE_NETWORK, Some("default/vlan1")),
        (annotations::IPAM, None),
        (annotations::KUBE_VIP_SERVICE_INTERFACE, None),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.map(str::to_owned)));
    assert_eq!(view.annotations, BTreeMap::from(expected));
    assert_eq!((label_in(&view), decision.write), (Some("shop.main"), None));
    assert_eq!(view.load_balancer, LoadBalancerState::Present { addresses: ip("10.0.0.9") });
    assert_eq!(view.publish, Publish::NotOurs);
}

#[rstest]
#[case::carried(Primary { ..primary(Datapath::Host) }, Publish::Addresses(ip("10.0.0.9")))]
#[case::not_carried_yet(Primary { carries: false, ..primary(Datapath::Host) }, Publish::Unchanged)]
#[case::without_address(Primary { address: None, ..primary(Datapath::Host) }, Publish::Unchanged)]
#[case::taken_back(Primary { taken_back: true, ..primary(Datapath::Host) }, Publish::Withdrawn)]
fn on_the_host_datapath_the_address_is_shown_when_the_ports_are_carried(
    #[case] primary: Primary,
    #[case] publish: Publish,
) {
    let service = asking(&json!({}), None, None);
    let view = decided(&service, None, |seen| seen.sharing = Sharing::With(primary)).view;
    assert_eq!((view.publish, view.annotations), (publish, super::super::on_host()));
}

/// Anybody may write a label that proves nothing, and an address of its own is its to show.
#[rstest]
#[case::anothers(None, Publish::Withdrawn)]
#[case::its_own(Some("10.0.0.7"), Publish::Unchanged)]
fn a_lost_address_is_shown_no_more_before_the_next_primary_carries_the_ports(
    #[case] own: Option<&str>,
    #[case] publish: Publish,
) {
    let own = own.map(|ip| object("vm", &json!({"allocatedAddress": {"ip": ip}})));
    let service = asking(&json!({}), Some("shop.main"), Some("10.0.0.7"));
    let view = decided(&service, own.as_ref(), |seen| {
        seen.sharing = Sharing::With(Primary { carries: false, ..primary(Datapath::Host) });
        seen.held = Held::Lost;
    });
    assert_eq!(view.view.publish, publish);
}

#[rstest]
#[case::taken_back(Primary { taken_back: true, address: None, ..primary(Datapath::Host) })]
#[case::lost(Primary { carries: false, ..primary(Datapath::Host) })]
fn an_address_that_another_controller_would_write_again_stays_while_the_primary_has_none(
    #[case] primary: Primary,
) {
    let service = asking(&json!({}), Some("shop.main"), Some("192.0.2.7"));
    let decision = decided(&service, None, |seen| {
        (seen.sharing, seen.held, seen.shown_by_others) = (Sharing::With(primary), Held::Lost, true);
    });
    assert_eq!(decision.view.publish, Publish::Unchanged);
}

#[rstest]
#[case::guest(Datapath::Guest, "cluster", None, &[], true)]
// kube-vip in the guest follows after the write that comes with the label
#[case::guest_before_the_other_address_is_shown(Datapath::Guest, "cluster", Some("10.0.0.7"), &[], false)]
#[case::guest_that_shows_the_other_address(Datapath::Guest, "cluster", Some("10.0.0.9"), &[], true)]
#[case::used_by_others(Datapath::Guest, "cluster", None, &["api"], false)]
#[case::host(Datapath::Host, "vm", Some("10.0.0.9"), &[], true)]
#[case::host_before_the_other_address_is_shown(Datapath::Host, "vm", Some("10.0.0.7"), &[], false)]
fn the_object_of_a_former_primary_goes_when_nobody_uses_it(
    #[case] path: Datapath,
    #[case] workload: &str,
    #[case] shown: Option<&str>,
    #[case] users: &[&str],
    #[case] goes: bool,
) {
    let own = object(workload, &json!({"allocatedAddress": {"ip": "10.0.0.7"}}));
    let decision = decided(&asking(&json!({}), None, shown), Some(&own), |seen| {
        seen.sharing = Sharing::With(primary(path));
        seen.secondaries.all = users.iter().map(|name| ObjectKey::new("shop", *name)).collect();
    });
    let delete = Write::Delete(ObjectKey::new("team-a", "blue-shop-web-1"));
    let deletion = decision.write.filter(|write| !matches!(write, Write::Update(_)));
    assert_eq!(deletion, goes.then_some(delete));
}

#[rstest]
#[case::waits(Sharing::Waits("shop/main is not there".into()), "WaitingForPrimary")]
#[case::refused(refused(false), "PortConflict")]
fn a_service_that_cannot_share_gets_nothing_and_is_told(#[case] sharing: Sharing, #[case] reason: &str) {
    let decision = decided(&service(&json!({}), &json!({})), None, |seen| seen.sharing = sharing);
    assert_eq!(reasons(&decision), [reason]);
    assert!(decision.events[0].message.contains("shop/web"));
    assert_eq!((decision.view, decision.write), (View::default(), None));
}

#[rstest]
#[case::waits(Sharing::Waits("shop/main is being deleted".into()))]
#[case::refused(refused(false))]
fn a_service_with_an_object_of_its_own_keeps_it_until_it_shares(#[case] sharing: Sharing) {
    let own = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.7"}}));
    let service = asking(&json!({IPS: "10.0.0.7"}), None, Some("10.0.0.7"));
    let decision = decided(&service, Some(&own), |seen| seen.sharing = sharing);
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses: ip("10.0.0.7") });
    assert!(matches!(decision.write, None | Some(Write::Update(_))), "{:?}", decision.write);
    assert_eq!(decision.events.len(), 1, "{:?}", decision.events);
}

/// The label goes last: while it is there the primary keeps the object, and the object the address.
#[rstest]
#[case::goes_on(refused(false), Held::Valid, Some("10.0.0.9"), &[], Publish::NotOurs, None)]
#[case::revoked(refused(true), Held::Valid, Some("10.0.0.9"), &[IPS], Publish::Withdrawn, None)]
#[case::revoked_and_not_shown(refused(true), Held::Valid, None, &[IPS], Publish::NotOurs, Some(""))]
#[case::lost(Sharing::Waits("gone".into()), Held::Lost, Some("10.0.0.9"), &[IPS], Publish::Withdrawn, None)]
#[case::shows_anothers(refused(true), Held::Valid, Some("192.168.1.5"), &[IPS], Publish::NotOurs, Some(""))]
fn a_shared_address_is_kept_as_long_as_it_may_be_used(
    #[case] sharing: Sharing,
    #[case] held: Held,
    #[case] shown: Option<&str>,
    #[case] removed: &[&str],
    #[case] publish: Publish,
    #[case] label: Option<&str>,
) {
    let service = asking(&json!({IPS: "10.0.0.9"}), Some("shop.main"), shown);
    let decision = decided(&service, None, |seen| (seen.sharing, seen.held) = (sharing, held));
    let view = decision.view;
    let gone = view.annotations.iter().filter(|(_, value)| value.is_none());
    let gone: Vec<_> = gone.map(|(key, _)| key.as_str()).collect();
    assert_eq!((&gone[..], &view.publish, label_in(&view)), (removed, &publish, label));
    assert!(matches!(view.load_balancer, LoadBalancerState::Present { .. }) && decision.write.is_none());
}

/// Whatever its next primary says: the former one carries it, and the next one does not wait for it.
#[rstest]
#[case::waits(Sharing::Waits("shop/main is not there".into()))]
#[case::refused(refused(false))]
#[case::revoked(refused(true))]
fn on_the_host_datapath_a_service_that_could_not_move_keeps_its_former_place(#[case] sharing: Sharing) {
    let recorded = json!({annotations::RECORDED_DATA_PATH: "host"});
    let service = asking(&recorded, Some("shop.main"), Some("10.0.0.7"));
    let view =
        decided(&service, None, |seen| (seen.sharing, seen.held) = (sharing.clone(), Held::Former)).view;
    assert_eq!((&view.publish, label_in(&view)), (&Publish::Unchanged, Some("")));
    assert_eq!(view.load_balancer, LoadBalancerState::Present { addresses: ip("10.0.0.7") });
    // after its label is empty
    let service = asking(&recorded, Some(""), Some("10.0.0.7"));
    let view = decided(&service, None, |seen| (seen.sharing, seen.held) = (sharing, Held::Former)).view;
    assert_eq!((view.publish, view.labels), (Publish::Unchanged, Labels::new()));
}

/// Somebody deleted its own object in Harvester while it waits for its primary.
#[test]
fn an_address_of_its_own_that_is_gone_is_withdrawn_while_it_waits() {
    let annotations = json!({IPS: "10.0.0.7", annotations::ALLOCATED_ADDRESS: "10.0.0.7"});
    let service = asking(&annotations, None, Some("10.0.0.7"));
    let waits = Sharing::Waits("shop/main is not there".into());
    let decision = decided(&service, None, |seen| seen.sharing = waits);
    let told = decision.events.iter().find(|event| event.reason == "AddressTakenBack").expect("it is told");
    let expected = "the LoadBalancer object of this Service was deleted in Harvester and is not made again while the \
        Service asks for the address of another one, so its address 10.0.0.7 may be given to another and is announced no \
        more";
    assert_eq!(told.message, expected);
    let view = decision.view;
    assert_eq!((view.annotations.get(IPS), &view.publish), (Some(&None), &Publish::Withdrawn));
    assert_eq!(view.labels, Labels::new());
    // the list may be of another Harvester, or old
    let changes: [fn(&mut Seen<'_>); 2] = [
        |seen: &mut Seen<'_>| seen.backends = None,
        |seen: &mut Seen<'_>| seen.load_balancers_out_of_reach = Some("down".into()),
    ];
    for change in changes {
        let unknown = decided(&service, None, |seen| {
            seen.sharing = Sharing::Waits("shop/main is not there".into());
            change(seen);
        });
        assert_eq!(unknown.view, View::default());
        let told = &unknown.events[0].message;
        assert!(told.ends_with("; until then it keeps the address that it has"), "{told}");
    }
}

/// Nothing says whose address the status shows.
#[rstest]
#[case::shown(Some("10.0.0.7"), false, Publish::Withdrawn, &["WaitingForPrimary", "AddressTakenBack"])]
#[case::not_shown(None, false, Publish::NotOurs, &["WaitingForPrimary"])]
#[case::that_another_controller_would_write_again(
    Some("10.0.0.7"), true, Publish::NotOurs, &["WaitingForPrimary"])]
fn on_the_host_datapath_an_address_without_an_object_is_withdrawn_while_it_waits(
    #[case] shown: Option<&str>,
    #[case] shown_by_others: bool,
    #[case] publish: Publish,
    #[case] told: &[&str],
) {
    let service = asking(&json!({annotations::RECORDED_DATA_PATH: "host"}), None, shown);
    let decision = decided(&service, None, |seen| {
        seen.sharing = Sharing::Waits("shop/main is not there".into());
        seen.shown_by_others = shown_by_others;
    });
    assert_eq!((&decision.view.publish, &reasons(&decision)[..]), (&publish, told));
    let expected = "this Service has no LoadBalancer object in Harvester and none is made while the Service asks for the \
        address of another one, so 10.0.0.7 is taken out of its status: a pool that gave it may give it to another; if \
        another controller gave it, that one will write it again";
    let message = decision.events.get(1).map(|event| event.message.as_str());
    assert_eq!(message, (told.len() > 1).then_some(expected));
}

/// It is kube-vip's own, and no pool gives it to another.
#[test]
fn a_lease_of_its_own_whose_object_is_gone_stays_while_it_waits() {
    let annotations = json!({IPS: "0.0.0.0", annotations::ALLOCATED_ADDRESS: "0.0.0.0"});
    let service = asking(&annotations, None, Some("10.0.0.7"));
    let waits = Sharing::Waits("shop/main is not there".into());
    let decision = decided(&service, None, |seen| seen.sharing = waits);
    assert_eq!((reasons(&decision), decision.view), (vec!["WaitingForPrimary"], View::default()));
}

#[rstest]
#[case::shown(Some("10.0.0.9"), false, Publish::Withdrawn, None)]
#[case::carried(None, true, Publish::Withdrawn, None)]
#[case::free(None, false, Publish::Unchanged, Some(""))]
fn on_the_host_datapath_the_label_goes_after_status_and_listeners(
    #[case] shown: Option<&str>,
    #[case] is_carried: bool,
    #[case] publish: Publish,
    #[case] label: Option<&str>,
) {
    let recorded = json!({annotations::RECORDED_DATA_PATH: "host"});
    let decision = decided(&asking(&recorded, Some("shop.main"), shown), None, |seen| {
        (seen.sharing, seen.held, seen.is_carried) = (refused(true), Held::Valid, is_carried);
    });
    assert_eq!((decision.view.publish.clone(), label_in(&decision.view)), (publish, label));
}

/// Its primary is deleted before it carried the ports, and would wait for it.
#[rstest]
#[case::shown(Some("10.0.0.9"), false, None)]
#[case::carried(None, true, None)]
#[case::neither(None, false, Some(""))]
fn on_the_host_datapath_a_secondary_that_has_nothing_yet_lets_its_primary_go(
    #[case] shown: Option<&str>,
    #[case] is_carried: bool,
    #[case] label: Option<&str>,
) {
    let recorded = json!({annotations::RECORDED_DATA_PATH: "host"});
    let decision = decided(&asking(&recorded, Some("shop.main"), shown), None, |seen| {
        seen.sharing = Sharing::Waits("service shop/main is being deleted".into());
        (seen.held, seen.is_carried) = (Held::Valid, is_carried);
    });
    assert_eq!(label_in(&decision.view), label);
}

/// The annotation is gone, and the object of its own is made.
#[rstest]
#[case::without_address(&json!({}), Held::Valid, None, None)]
#[case::refused_by_every_pool(
    &json!({"conditions": [{"type": "Ready", "status": "False"}]}), Held::Valid, None, None)]
#[case::the_shared_one_was_lost(&json!({}), Held::Lost, Some((IPS, None)), None)]
#[case::with_address(
    &json!({"allocatedAddress": {"ip": "10.0.0.7"}}), Held::Valid, Some((IPS, Some("10.0.0.7"))), Some(""))]
fn a_secondary_keeps_the_shared_address_until_it_has_its_own(
    #[case] status: &Value,
    #[case] held: Held,
    #[case] annotation: Option<(&str, Option<&str>)>,
    #[case] label: Option<&str>,
) {
    let service = asking(&json!({IPS: "10.0.0.9"}), Some("shop.main"), Some("10.0.0.9"));
    let view = decided(&service, Some(&object("cluster", status)), |seen| seen.held = held).view;
    let written = view.annotations.get_key_value(IPS).map(|(key, value)| (key.as_str(), value.as_deref()));
    assert_eq!((written, label_in(&view)), (annotation, label));
}

/// Else its former primary could not be deleted while no pool has an address for this one.
#[rstest]
#[case::shown("cluster", Held::Lost, Some("10.0.0.9"), false, None)]
#[case::not_shown("cluster", Held::Lost, None, false, Some(""))]
// kube-vip was asked for it
#[case::not_shown_yet("cluster", Held::Valid, None, false, None)]
#[case::on_the_host_datapath("vm", Held::Lost, None, false, Some(""))]
#[case::carried("vm", Held::Lost, None, true, None)]
#[case::never_given("vm", Held::Valid, None, false, Some(""))]
#[case::in_use("vm", Held::Valid, Some("10.0.0.9"), false, None)]
// by another one than the label names
#[case::carried_by_its_former_primary("vm", Held::Former, Some("10.0.0.9"), true, Some(""))]
fn a_service_that_does_not_have_the_shared_address_lets_its_former_primary_go(
    #[case] workload: &str,
    #[case] held: Held,
    #[case] shown: Option<&str>,
    #[case] is_carried: bool,
    #[case] label: Option<&str>,
) {
    let service = asking(&json!({annotations::ALLOCATED_ADDRESS: "10.0.0.9"}), Some("shop.main"), shown);
    let object = object(workload, &json!({}));
    let of = |seen: &mut Seen<'_>| (seen.held, seen.is_carried) = (held, is_carried);
    assert_eq!(label_in(&decided(&service, Some(&object), of).view), label);
}

// docs/contract/cloud-controller-manager.md#L15
#[rstest]
#[case::usual(json!({}), true)]
#[case::announced(json!({annotations::KUBE_VIP_VIP_HOST: "worker-1"}), false)]
fn a_service_of_another_type_loses_label_and_record_unless_kube_vip_may_announce_the_address(
    #[case] annotations: Value,
    #[case] goes: bool,
) {
    let record = annotations::ALLOCATED_ADDRESS;
    for (given, kept) in
        [(json!({IPS: "10.0.0.9", record: "10.0.0.9"}), record), (json!({IPS: "10.0.0.9"}), IPS)]
    {
        let mut all = annotations.clone();
        all.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let mut service = asking(&all, Some("shop.main"), None);
        service.spec.as_mut().unwrap().type_ = Some("ClusterIP".into());
        let view = decided(&service, None, |_| ()).view;
        assert_eq!(view.labels.get(LABEL), goes.then_some(&None));
        let gone: Vec<_> = view.annotations.into_keys().collect();
        let both = [record, IPS];
        let expected: Vec<_> = both.into_iter().filter(|key| goes || *key != kept).collect();
        assert_eq!(gone, expected, "{given}");
    }
}

// docs/contract/data-paths.md#row-12: node ports are reused
#[test]
fn a_secondary_that_goes_waits_until_its_ports_are_no_listeners() {
    let mut service = asking(&json!({annotations::RECORDED_DATA_PATH: "host"}), Some("shop.main"), None);
    service.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let state = |is_carried| {
        let view = decided(&service, None, |seen| seen.is_carried = is_carried).view;
        (view.load_balancer, view.removal)
    };
    assert_eq!(state(true), (LoadBalancerState::Deleting, Removal::Foreground));
    assert_eq!(state(false), (LoadBalancerState::Absent, Removal::Foreground));
}

/// The object stays as long as `stays` uses the address.
#[test]
fn a_primary_that_goes_carries_the_secondaries_that_are_left_at_the_ports_that_they_have_now() {
    let stays = Arc::new(asking(&json!({}), Some("shop.main"), Some("10.0.0.9")));
    let prefix = secondary_prefix(&ObjectKey::new("shop", "web"));
    let listener = |name: &str| json!({"name": name, "port": 1, "protocol": "TCP", "backendPort": 30080});
    let mut json = object("vm", &Value::Null).json();
    json["spec"]["listeners"] =
        json!([listener("http"), listener(&format!("{prefix}tcp-81")), listener("api-0123abcd-tcp-82")]);
    json["spec"]["backendServerSelector"] = json!({"harvesterhci.io/vmName": ["gone"]});
    let own = RawObject::from_json(json).unwrap();
    let mut leaving = asking(&json!({}), None, None);
    leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let decision = decided(&leaving, Some(&own), |seen| {
        seen.secondaries = Secondaries {
            all: vec![ObjectKey::new("shop", "web")],
            carried: vec![stays],
            ..Secondaries::default()
        };
    });
    let Some(Write::Update(json)) = decision.write else { panic!("{decision:?}") };
    let listeners: Vec<_> =
        json["spec"]["listeners"].as_array().unwrap().iter().map(|it| (&it["name"], &it["port"])).collect();
    let now = json!(format!("{prefix}tcp-80"));
    assert_eq!(listeners, [(&json!("http"), &json!(1)), (&now, &json!(80))]);
    assert_ne!(json["spec"]["backendServerSelector"], json!({"harvesterhci.io/vmName": ["gone"]}));
    assert!(matches!(decision.view.removal, Removal::Blocked(_)));
}

/// docs/contract/data-paths.md#row-12: the node ports of the primary are anybody's.
#[rstest]
#[case::tcp("TCP", Some(json!({"port": 30080, "periodSeconds": 5})))]
// nothing can be asked whether it serves
#[case::udp("UDP", None)]
fn a_primary_of_another_type_keeps_the_listeners_of_its_secondaries_and_not_its_own(
    #[case] protocol: &str,
    #[case] check: Option<Value>,
    // a secondary may have got the port that the primary had
    #[values(443, 80)] port: u16,
) {
    let mut stays = asking(&json!({}), Some("shop.main"), Some("10.0.0.9"));
    stays.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].protocol = Some(protocol.to_owned());
    let mut json = object("vm", &Value::Null).json();
    json["spec"]["listeners"] =
        json!([{"name": "http", "port": port, "protocol": "TCP", "backendPort": 30443}]);
    json["spec"]["healthCheck"] = json!({"port": 30443, "periodSeconds": 5});
    let own = RawObject::from_json(json).unwrap();
    let inside = service(&json!({}), &json!({"type": "ClusterIP", "ports": [{"port": 443}]}));
    let decision = decided(&inside, Some(&own), |seen| {
        seen.secondaries = Secondaries {
            all: vec![ObjectKey::new("shop", "web")],
            carried: vec![Arc::new(stays)],
            ..Secondaries::default()
        };
    });
    let Some(Write::Update(json)) = decision.write else { panic!("{decision:?}") };
    let listeners = json["spec"]["listeners"].as_array().unwrap();
    let ports: Vec<_> = listeners.iter().map(|it| &it["backendPort"]).collect();
    assert_eq!((ports, json["spec"].get("healthCheck")), (vec![&json!(30080)], check.as_ref()));
}

// docs/contract/data-paths.md#row-12: a secondary that goes waits until its ports are no listeners
#[rstest]
#[case::live(None, Removal::Foreground)]
// else its finalizer goes after our DELETE, and nobody looks any more whether the object leads to the secondary
#[case::being_deleted(Some("2026-01-01T00:00:00Z"), Removal::Foreground)]
fn a_primary_of_another_type_goes_with_the_last_listener_of_its_secondaries(
    #[case] deleted: Option<&str>,
    #[case] removal: Removal,
) {
    let prefix = secondary_prefix(&ObjectKey::new("shop", "web"));
    let mut json = object("vm", &Value::Null).json();
    json["spec"]["listeners"] =
        json!([{"name": format!("{prefix}tcp-81"), "port": 81, "protocol": "TCP", "backendPort": 30001}]);
    json["metadata"]["deletionTimestamp"] = json!(deleted);
    let own = RawObject::from_json(json).unwrap();
    let mut primary = asking(&json!({}), None, None);
    primary.spec.as_mut().unwrap().type_ = Some("ClusterIP".into());
    let decision = decided(&primary, Some(&own), |seen| {
        seen.secondaries = Secondaries {
            all: vec![ObjectKey::new("shop", "web")],
            carried: vec![],
            ..Secondaries::default()
        };
    });
    assert_eq!((decision.write, decision.view.removal), (None, removal));
}

/// docs/contract/data-paths.md#row-12: its node ports are anybody's, and nobody is carried.
#[rstest]
// else the address would be another Service's while it is shown
#[case::that_we_are_to_take_from_a_status(true)]
#[case::of_a_service_that_others_serve(false)]
fn the_object_of_a_primary_of_another_type_goes_when_no_status_of_ours_shows_its_address(
    #[case] shown: bool,
) {
    let mut json = object("vm", &Value::Null).json();
    json["spec"]["listeners"] =
        json!([{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 30443}]);
    let own = RawObject::from_json(json).unwrap();
    let inside = service(&json!({}), &json!({"type": "ClusterIP", "ports": [{"port": 80}]}));
    let decision = decided(&inside, Some(&own), |seen| {
        let all = vec![ObjectKey::new("shop", "api")];
        seen.secondaries = Secondaries { all, shown, ..Secondaries::default() };
    });
    let stays = matches!(decision.view.removal, Removal::Blocked(_));
    assert_eq!(stays, shown);
    if let Some(Write::Update(written)) = decision.write {
        assert_eq!(written["spec"]["listeners"], own.json()["spec"]["listeners"]);
    }
}

/// On the guest datapath the webhook of the load balancer lets everybody write them.
#[test]
fn listeners_in_an_object_of_the_guest_datapath_do_not_free_its_address() {
    let mut json = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}})).json();
    json["spec"]["listeners"] =
        json!([{"name": "x-01234567-tcp-80", "port": 80, "protocol": "TCP", "backendPort": 30001}]);
    let own = RawObject::from_json(json).unwrap();
    let mut primary = asking(&json!({}), None, None);
    primary.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let decision = decided(&primary, Some(&own), |seen| {
        seen.secondaries = Secondaries {
            all: vec![ObjectKey::new("shop", "api")],
            carried: vec![],
            ..Secondaries::default()
        };
    });
    assert!(matches!(decision.view.removal, Removal::Blocked(_)), "{decision:?}");
    let Some(Write::Update(written)) = decision.write else { panic!("its labels are written") };
    assert_eq!(written["spec"], own.json()["spec"]);
}

#[test]
fn no_port_of_an_object_goes_to_a_secondary_too() {
    let web = Arc::new(asking(&json!({}), Some("shop.main"), None));
    let own = json!({"name": "http", "port": 80, "protocol": "TCP", "backendPort": 30001});
    let mut json = json!({"spec": {"listeners": [own]}});
    let before = json.clone();
    Secondaries { all: vec![], carried: vec![web], ..Secondaries::default() }.carry(&mut json);
    assert_eq!(json, before);
}

/// kube-vip passed over the other type, and announces the address still.
#[test]
fn a_service_that_keeps_a_shared_address_asks_kube_vip_for_it_after_another_type() {
    let record = json!({annotations::ALLOCATED_ADDRESS: "10.0.0.9"});
    let of = |waited| {
        decided(&asking(&record, Some("shop.main"), None), None, |seen| {
            seen.sharing = Sharing::Waits("service shop/main is being deleted".into());
            (seen.held, seen.waited) = (Held::Valid, waited);
        })
    };
    let early = of(Duration::ZERO);
    assert_eq!(early.view.annotations.get(IPS), Some(&Some("10.0.0.9".to_owned())));
    assert_eq!(
        (reasons(&early), early.view.again),
        (vec!["WaitingForPrimary"], Some(Duration::from_secs(60)))
    );
    let told = &early.events[0].message;
    assert!(told.contains("it keeps 10.0.0.9, which its status does not show yet"), "{told}");
    assert_eq!(reasons(&of(Duration::from_secs(60))), ["WaitingForPrimary", "AddressNotPublished"]);
}

/// kube-vip announces it still, and writes nothing a second time.
#[test]
fn a_service_that_keeps_a_shared_address_shows_it_again_before_kube_vip_is_asked_for_it() {
    let record =
        json!({annotations::ALLOCATED_ADDRESS: "10.0.0.9", annotations::KUBE_VIP_VIP_HOST: "worker-1"});
    let of = |held: &Held, shown| {
        decided(&asking(&record, Some("shop.main"), shown), None, |seen| {
            seen.sharing = Sharing::Waits("service shop/main is being deleted".into());
            (seen.held, seen.waited) = (held.clone(), super::super::ANNOUNCEMENT);
        })
    };
    let first = of(&Held::Proven, None).view;
    assert_eq!((&first.publish, first.annotations.get(IPS)), (&Publish::Addresses(ip("10.0.0.9")), None));
    let then = of(&Held::Proven, Some("10.0.0.9")).view;
    assert_eq!((&then.publish, then.annotations[IPS].as_deref()), (&Publish::NotOurs, Some("10.0.0.9")));
    // no object of the primary gives it now, and whoever writes Services may have written the rest
    let unproven = of(&Held::Valid, None);
    assert_eq!((&unproven.view.publish, unproven.view.annotations.get(IPS)), (&Publish::NotOurs, None));
    assert_eq!(reasons(&unproven), ["WaitingForPrimary"], "kube-vip is asked for nothing");
}

/// Its own object, which gave it the lease, was deleted as it was of another type.
#[test]
fn a_service_that_cannot_share_keeps_its_lease_and_says_so() {
    let leased = json!({IPS: DHCP_ADDRESS, annotations::ALLOCATED_ADDRESS: DHCP_ADDRESS});
    let decision = decided(&asking(&leased, None, Some("192.0.2.101")), None, |seen| {
        seen.sharing = refused(false);
    });
    assert!(decision.view.publish == Publish::NotOurs && decision.view.annotations.is_empty());
    let told = &decision.events[0].message;
    assert!(told.ends_with("; it keeps the address that it has"), "{told}");
}

#[test]
fn the_phase_of_a_secondary_is_publication_until_kube_vip_shows_the_address() {
    let of = |shown: Option<&str>, path| phase(&asking(&json!({}), None, shown), &primary(path));
    assert_eq!(of(None, Datapath::Guest), Some(Phase::Publication("10.0.0.9".into())));
    assert_eq!(of(Some("10.0.0.9"), Datapath::Guest), None);
    assert_eq!(of(None, Datapath::Host), None);
}
