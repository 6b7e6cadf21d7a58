use std::collections::BTreeMap;

use controller_kit::Explanation;
use guest_vms::Backend;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::cluster::GuestCluster;

const CHECK: &str = "cloudprovider.harvesterhci.io/healthcheck-port";
const HOST: &str = "cloudprovider.harvesterhci.io/data-path";

pub(super) fn service(annotations: &Value, spec: &Value) -> Service {
    let mut json = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "1", "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        json["spec"][key] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

pub(super) fn object(workload: &str, status: &Value) -> RawObject<LoadBalancer> {
    let json = json!({"metadata": {"name": "blue-shop-web-1", "namespace": "team-a"},
        "spec": {"workloadType": workload, "ipam": "pool"}, "status": status});
    RawObject::from_json(json).unwrap()
}

fn backends() -> Backends {
    let backend = Backend { vm: "a".into(), cluster: Some("blue".into()), name: Some("a".into()) };
    Backends {
        eligible: ["a".to_owned()].into(),
        are_identified: true,
        nodes_without_vm: vec![],
        all: vec![backend],
    }
}

/// Decides in mode `annotation`; `change` changes what is seen.
pub(super) fn decided(
    service: &Service,
    object: Option<&RawObject<LoadBalancer>>,
    change: impl FnOnce(&mut Seen<'_>),
) -> Decision<Write> {
    decided_in("blue", service, object, change)
}

fn decided_in(
    cluster: &str,
    service: &Service,
    object: Option<&RawObject<LoadBalancer>>,
    change: impl FnOnce(&mut Seen<'_>),
) -> Decision<Write> {
    let mut seen = seen_in(cluster, service, object);
    change(&mut seen);
    decide(&seen)
}

pub(super) fn seen(service: &Service) -> Seen<'_> {
    seen_in("blue", service, None)
}

fn seen_in<'a>(cluster: &str, service: &'a Service, object: Option<&RawObject<LoadBalancer>>) -> Seen<'a> {
    let identity =
        ClusterIdentity { cluster: GuestCluster::new(cluster), cluster_uid: None, management_network: None };
    let is_load_balancer =
        service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    Seen {
        identity,
        policy: Policy::Annotation,
        allowed: AllowedDatapaths::default(),
        key: ObjectKey::new("team-a", "blue-shop-web-1"),
        service,
        config: ServiceConfig::of(service),
        interface: Interface::NotAsked,
        wanted: is_load_balancer && service.metadata.deletion_timestamp.is_none(),
        load_balancer: object.map_or(Found::Absent, |object| Found::Present(Arc::new(object.clone()))),
        backends: Some(backends()),
        load_balancers_out_of_reach: None,
        vms_out_of_reach: None,
        sharing: Sharing::Own,
        held: Held::Nothing,
        is_carried: false,
        secondaries: Secondaries::default(),
        given_up: None,
        creation_refused: false,
        shown_by_others: false,
        waited: Duration::ZERO,
    }
}

/// The Events about a Service that gets no load balancer.
fn refusals(annotations: &Value, spec: &Value, change: impl FnOnce(&mut Seen<'_>)) -> Vec<&'static str> {
    let decision = decided(&service(annotations, spec), None, change);
    if decision.write.is_some() { vec![] } else { reasons(&decision) }
}

pub(super) fn reasons(decision: &Decision<Write>) -> Vec<&'static str> {
    decision.events.iter().map(|event| event.reason).collect()
}

/// Reasons of a Service for which a load balancer is made or kept.
fn told(decision: &Decision<Write>, object: Option<&RawObject<LoadBalancer>>) -> Vec<&'static str> {
    assert!(decision.write.is_some() || object.is_some(), "refused: {decision:?}");
    reasons(decision)
}

pub(super) fn ip(text: &str) -> Vec<IngressAddress> {
    vec![IngressAddress::parse(text)]
}

// docs/contract/data-paths.md#row-1, #row-2 and #row-9; the first reason names the Event, its text has them all
#[rstest]
#[case::nothing_wrong(json!({CHECK: "80"}), json!({}), None)]
#[case::no_node_port(json!({CHECK: "80"}), json!({"ports": [{"port": 80}]}), Some("NodePortMissing"))]
#[case::sctp(json!({HOST: "host"}), json!({"ports": [{"port": 80, "protocol": "SCTP", "nodePort": 1}]}),
    Some("ProtocolNotSupported"))]
#[case::network(json!({HOST: "host", annotations::SERVICE_NETWORK: "a/b"}), json!({}), Some("NetworkNotSupported"))]
#[case::ipv6(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6"]}), Some("IPFamilyNotSupported"))]
#[case::dual(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6", "IPv4"]}), None)]
#[case::check(json!({CHECK: "81"}), json!({}), Some("InvalidHealthCheck"))]
#[case::announced(json!({CHECK: "80", annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.1"}), json!({}),
    Some("AnnouncedInGuest"))]
#[case::local(json!({HOST: "host"}), json!({"externalTrafficPolicy": "Local"}), Some("HealthCheckNeeded"))]
#[case::local_and_check(json!({CHECK: "80"}), json!({"externalTrafficPolicy": "Local"}), None)]
// docs: health checks of old manifests never fail a Service
#[case::check_on_guest(json!({HOST: "guest", CHECK: "81"}), json!({}), None)]
// docs/contract/data-paths.md#row-15: the guest's kube-proxy enforces them
#[case::source_ranges(json!({}), json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), None)]
#[case::source_ranges_on_host(json!({HOST: "host"}), json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), None)]
#[case::wrong_source_ranges(json!({}), json!({"loadBalancerSourceRanges": ["office"]}), None)]
#[case::wrong_source_ranges_on_host(json!({HOST: "host"}), json!({"loadBalancerSourceRanges": ["office"]}),
    Some("InvalidSourceRanges"))]
#[case::network_without_a_pool(json!({annotations::SERVICE_NETWORK: "a/b"}), json!({}), None)]
// docs/contract/addresses.md#5
#[case::wrong_demand(json!({annotations::SERVICE_IP: "0.0.0.0"}), json!({}), Some("InvalidRequestedAddress"))]
#[case::wrong_wish(json!({}), json!({"loadBalancerIP": "0.0.0.0"}), None)]
#[case::wrong_pool(json!({annotations::SERVICE_IP_POOL: "Edge"}), json!({}), Some("InvalidIPPool"))]
#[case::demand_and_dhcp(json!({annotations::SERVICE_IP: "10.0.0.1", annotations::IPAM: "dhcp"}), json!({}),
    Some("RequestedAddressNotUsed"))]
#[case::wish_and_dhcp(json!({annotations::IPAM: "dhcp"}), json!({"loadBalancerIP": "10.0.0.1"}), None)]
fn refused(#[case] annotations: Value, #[case] spec: Value, #[case] reason: Option<&str>) {
    assert_eq!(refusals(&annotations, &spec, |_| ()), reason.into_iter().collect::<Vec<_>>());
}

// the bad-input rule: one clear message
#[rstest]
#[case::local(json!({HOST: "host"}), json!({"externalTrafficPolicy": "Local"}), "healthcheck-port")]
#[case::local_and_more(json!({CHECK: "80"}), json!({"externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
    "node port")]
#[case::keys_of_both_sorts(json!({HOST: "left", annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.9"}),
    json!({}), "kube-vip.io/loadbalancerIPs has no effect")]
#[case::ipv6_alone(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6"]}), "IPv4 addresses only")]
fn a_refused_service_is_told_everything_in_one_event(
    #[case] annotations: Value,
    #[case] spec: Value,
    #[case] part: &str,
) {
    let decision = decided(&service(&annotations, &spec), None, |_| ());
    let [event] = &decision.events[..] else { panic!("{decision:?}") };
    assert!(decision.write.is_none() && event.message.contains(part), "{}", event.message);
    let refused = &decision.view.refused;
    assert_eq!(refused.first().map(|fault| fault.reason), Some(event.reason));
    assert!(refused.iter().all(|fault| event.message.contains(&fault.message)), "{refused:?}");
}

#[test]
fn a_service_with_more_ports_than_an_object_may_have_is_refused_on_the_host_datapath() {
    let ports: Vec<_> = (1..=101).map(|port| json!({"port": port, "nodePort": 30000 + port})).collect();
    let reasons = |path: &str| refusals(&json!({HOST: path}), &json!({"ports": ports}), |_| ());
    assert_eq!((reasons("host"), reasons("guest")), (vec!["TooManyPorts"], vec![]));
}

#[test]
fn kube_vips_annotation_is_no_request_beside_an_object() {
    let service = service(&json!({annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.9"}), &json!({}));
    assert_eq!(told(&decided(&service, None, |_| ()), None), ["AnnotationHasNoEffect"]);
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    assert_eq!(told(&decided(&service, Some(&object), |_| ()), Some(&object)), Vec::<&str>::new());
}

// docs/contract/cloud-controller-manager.md#13: the words of Kubernetes' own controller, also where the guest carries
// the traffic
#[test]
fn a_cluster_without_nodes_is_told_on_both_datapaths() {
    let nobody = |seen: &mut Seen<'_>| seen.backends = Some(Backends::default());
    let guest = decided(&service(&json!({}), &json!({})), None, nobody);
    assert_eq!(told(&guest, None), ["UnAvailableLoadBalancer"]);
    assert_eq!(refusals(&json!({CHECK: "80"}), &json!({}), nobody), ["UnAvailableLoadBalancer"]);
}

// docs/contract/user-docs.md#17e
#[test]
fn a_new_service_of_a_cluster_without_a_name_is_told_so_once() {
    let mut service = service(&json!({}), &json!({}));
    assert_eq!(told(&decided_in("", &service, None, |_| ()), None), ["ClusterNameNotSet"]);
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    assert_eq!(told(&decided_in("", &service, None, |_| ()), None), Vec::<&str>::new());
}

#[test]
fn the_host_datapath_waits_for_the_list_of_vms_in_silence_until_it_is_out_of_reach() {
    let service = service(&json!({CHECK: "80"}), &json!({}));
    let unknown = decided(&service, None, |seen| seen.backends = None);
    assert_eq!((&unknown.write, &unknown.view.waiting, reasons(&unknown)), (&None, &None, vec![]));
    let out_of_reach = decided(&service, None, |seen| {
        seen.backends = None;
        seen.vms_out_of_reach = Some("no rights".into());
    });
    assert_eq!((out_of_reach.write, out_of_reach.view.waiting.as_deref()), (None, Some("no rights")));
    let empty = decided(&service, None, |seen| seen.backends = Some(Backends::default()));
    assert_eq!((&empty.write, reasons(&empty)), (&None, vec!["UnAvailableLoadBalancer"]));
}

// otherwise it is reported as one whose Service is gone while the Service uses its address
#[rstest]
#[case::a_fault(|seen: &mut Seen<'_>| seen.config.source_ranges = Some(Err(Explanation::new("Wrong", "wrong"))))]
#[case::vms_not_known(|seen: &mut Seen<'_>| seen.backends = None)]
fn an_object_of_a_former_service_is_taken_over_also_where_the_rest_of_it_stays(
    #[case] change: fn(&mut Seen<'_>),
) {
    let former = object("vm", &json!({}));
    let service = service(&json!({HOST: "host"}), &json!({}));
    let Some(Write::Update(json)) = decided(&service, Some(&former), change).write else {
        panic!("not taken over")
    };
    assert_eq!(json["metadata"]["annotations"][annotations::SERVICE_UID], "1");
    assert_eq!(json["spec"], former.json()["spec"]);
}

#[test]
fn an_object_that_exists_follows_the_ports_of_a_service_whose_network_has_no_effect() {
    let annotations = json!({HOST: "host", annotations::SERVICE_NETWORK: "a/b"});
    let object = object("vm", &json!({"address": "10.0.0.9"}));
    let decision = decided(&service(&annotations, &json!({})), Some(&object), |_| ());
    assert_eq!(
        (told(&decision, Some(&object)), &decision.view.refused),
        (vec!["NetworkNotSupported"], &vec![])
    );
    let Some(Write::Update(json)) = decision.write else { panic!("not written") };
    assert_eq!(json["spec"]["listeners"][0]["backendPort"], 30080);
}

// docs/contract/cloud-controller-manager.md#L2
#[test]
fn an_object_that_exists_is_not_touched_because_of_what_became_wrong() {
    let right = service(&json!({CHECK: "80"}), &json!({}));
    let bare = object("vm", &json!({"address": "10.0.0.9"}));
    let Some(Write::Update(json)) = decided(&right, Some(&bare), |_| ()).write else { panic!("not filled") };
    let object = RawObject::from_json(json).unwrap();
    let decision = decided(&service(&json!({CHECK: "81"}), &json!({})), Some(&object), |_| ());
    assert_eq!((reasons(&decision), decision.write), (vec!["InvalidHealthCheck"], None));
    let addresses = ip("10.0.0.9");
    assert_eq!(decision.view.load_balancer, LoadBalancerState::Present { addresses: addresses.clone() });
    assert_eq!(decision.view.publish, Publish::Addresses(addresses));
}

// docs/contract/cloud-controller-manager.md#L11
#[test]
fn nothing_is_decided_before_the_objects_were_listed() {
    let unlisted = |seen: &mut Seen<'_>| {
        seen.load_balancer = Found::Unlisted;
        seen.load_balancers_out_of_reach = Some("no rights".into());
    };
    let going = service(&json!({}), &json!({"type": "ClusterIP"}));
    for service in [service(&json!({}), &json!({})), going] {
        let decision = decided(&service, None, unlisted);
        let unknown = LoadBalancerState::Unknown(Some("no rights".into()));
        assert_eq!(decision.view, View { load_balancer: unknown, ..View::default() });
        assert_eq!((decision.write, decision.events), (None, vec![]));
    }
}

#[rstest]
#[case::nothing("cluster", json!({}), 0, None, Some(10))]
#[case::silence("cluster", json!({}), 10, Some("has not answered"), None)]
#[case::reason("cluster", json!({"conditions": [{"type": "Ready", "status": "False", "message": "pool lab is full"}]}),
    0, Some("pool lab is full"), None)]
#[case::hint_on_host("vm", json!({"conditions": [{"type": "Ready", "status": "False", "message": "no pool"}]}),
    0, Some("data-path: guest"), None)]
#[case::allocated("cluster", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 99, None, None)]
#[case::to_be_published("cluster", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 20, None, Some(40))]
#[case::to_be_announced("vm", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 20, None, Some(40))]
fn what_is_waited_for_is_told(
    #[case] workload: &str,
    #[case] status: Value,
    #[case] waited: u64,
    #[case] waiting: Option<&str>,
    #[case] again: Option<u64>,
) {
    let object = object(workload, &status);
    let view = decided(&service(&json!({}), &json!({})), Some(&object), |seen| {
        seen.waited = Duration::from_secs(waited);
    })
    .view;
    let text = view.waiting.unwrap_or_default();
    assert!(waiting.map_or(text.is_empty(), |part| text.contains(part)), "{text}");
    assert_eq!(view.again, again.map(Duration::from_secs));
}

// docs/contract/kube-vip.md#written-once: kube-vip passed over a change of the type, and announces the address already
#[rstest]
#[case::not_yet("10.0.0.9", json!({}), "", 59, None)]
#[case::for_a_minute("10.0.0.9", json!({annotations::KUBE_VIP_VIP_HOST: "worker-1"}), "", 60,
    Some("restart kube-vip on node worker-1 if the Service was of another type for a while"))]
#[case::without_a_pod("10.0.0.9", json!({}), "", 60,
    Some("announce 10.0.0.9 and has not written it to the Service's status: from version 1.2 on it waits until a Pod"))]
#[case::a_lease(DHCP_ADDRESS, json!({}), "", 60, Some("an address of DHCP"))]
#[case::ignored("10.0.0.9", json!({annotations::KUBE_VIP_IGNORE: "true"}), "", 60, Some("remove the annotation"))]
#[case::another_is_shown("10.0.0.9", json!({}), "192.168.1.50", 60, Some("restart kube-vip if"))]
#[case::shown("10.0.0.9", json!({}), "10.0.0.9", 60, None)]
#[case::nothing_was_given("", json!({}), "", 60, None)]
fn an_address_that_kube_vip_in_the_guest_does_not_show_is_told(
    #[case] given: &str,
    #[case] annotations: Value,
    #[case] shown: &str,
    #[case] waited: u64,
    #[case] part: Option<&str>,
) {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": given}}));
    let mut service = service(&annotations, &json!({}));
    service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": shown}]}})).unwrap();
    let after = |service: &Service, seconds| {
        decided(service, Some(&object), |seen| seen.waited = Duration::from_secs(seconds))
    };
    let decision = after(&service, waited);
    let told = decision.events.iter().find(|event| event.reason == "AddressNotPublished");
    let message = told.map(|event| event.message.as_str());
    assert!(
        part.map_or(message.is_none(), |part| message.is_some_and(|it| it.contains(part))),
        "{message:?}"
    );
    let spec = service.spec.as_mut().unwrap();
    spec.type_ = Some("ClusterIP".into());
    assert!(!reasons(&after(&service, waited)).contains(&"AddressNotPublished"), "it asks for none");
}

// an outage may begin after the lists were complete
#[test]
fn a_service_that_waits_for_an_answer_out_of_reach_is_told_why_and_a_served_one_is_not() {
    let out_of_reach = |seen: &mut Seen<'_>| seen.load_balancers_out_of_reach = Some("no rights".into());
    let waiting = |status: &Value| {
        let object = object("cluster", status);
        decided(&service(&json!({}), &json!({})), Some(&object), out_of_reach).view.waiting
    };
    assert_eq!(waiting(&json!({})).as_deref(), Some("no rights"));
    assert_eq!(waiting(&json!({"allocatedAddress": {"ip": "10.0.0.9"}})), None);
}

// docs/contract/data-paths.md#row-2, last sentence: an object of v0.1.x, whose Service kube-vip announced
#[test]
fn an_address_announced_twice_is_told() {
    let annotations = json!({annotations::KUBE_VIP_VIP_HOST: "worker-1"});
    let object = object("vm", &json!({"address": "10.0.0.9"}));
    let decision = decided(&service(&annotations, &json!({})), Some(&object), |_| ());
    assert_eq!(told(&decision, Some(&object)), ["VipAnnouncedTwice"]);
    assert_eq!(decision.view.annotations[annotations::KUBE_VIP_IGNORE].as_deref(), Some("true"));
}

#[test]
fn a_host_service_is_cleaned_up_as_one_also_when_its_object_is_gone() {
    let mut service =
        service(&json!({annotations::RECORDED_DATA_PATH: "host"}), &json!({"type": "ClusterIP"}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    for allowed in [AllowedDatapaths::default(), AllowedDatapaths { guest: true, host: false }] {
        let view = decided(&service, None, |seen| seen.allowed = allowed).view;
        assert_eq!((view.removal, view.publish), (Removal::Foreground, Publish::Unchanged));
        assert_eq!(view.annotations.get(annotations::KUBE_VIP_IGNORE), Some(&None));
    }
}

fn is_host(decision: &Decision<Write>) -> bool {
    decision.view.removal == Removal::Foreground
}

// an object that somebody deleted in Harvester comes back on its path, whatever the flags choose now
#[rstest]
#[case::guest(annotations::KUBE_VIP_LOADBALANCER_IPS, "10.0.0.9", false)]
#[case::guest_without_address(annotations::ALLOCATED_ADDRESS, "10.0.0.9", false)]
#[case::host(annotations::RECORDED_DATA_PATH, "host", true)]
fn a_lost_object_comes_back_on_its_path(#[case] key: &str, #[case] value: &str, #[case] host: bool) {
    let mut service = service(&json!({key: value, HOST: if host { "guest" } else { "host" }}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let decision = decided(&service, None, |_| ());
    assert_eq!((is_host(&decision), told(&decision, None)), (host, vec!["DataPathFixed"]));
}

#[rstest]
#[case::host(annotations::RECORDED_DATA_PATH, "host", AllowedDatapaths { guest: true, host: false }, Policy::Guest)]
#[case::guest(annotations::ALLOCATED_ADDRESS, "10.0.0.9", AllowedDatapaths { guest: false, host: true }, Policy::Host)]
fn a_new_service_that_brings_a_recorded_datapath_gets_only_one_that_is_allowed(
    #[case] key: &str,
    #[case] value: &str,
    #[case] allowed: AllowedDatapaths,
    #[case] policy: Policy,
) {
    let mut service = service(&json!({key: value}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let decision = decided(&service, None, |seen| (seen.allowed, seen.policy) = (allowed, policy));
    let Some(Write::Create { json, .. }) = &decision.write else { panic!("{decision:?}") };
    assert_eq!(json["spec"]["workloadType"], if allowed.host { "vm" } else { "cluster" });
    if !allowed.host {
        assert_eq!(decision.view.annotations.get(key), Some(&None), "the annotation goes");
    }
    // where the object stands, the record holds
    let object = object(if allowed.host { "cluster" } else { "vm" }, &json!({}));
    let decision = decided(&service, Some(&object), |seen| (seen.allowed, seen.policy) = (allowed, policy));
    assert_eq!(is_host(&decision), !allowed.host);
}

// docs/contract/data-paths.md#row-2: the operator excluded the host datapath, and somebody deleted the object in Harvester
#[test]
fn a_service_whose_host_datapath_is_excluded_is_handed_to_kube_vip_without_its_former_address() {
    let allowed = |seen: &mut Seen<'_>| seen.allowed = AllowedDatapaths { guest: true, host: false };
    let ours = json!({annotations::RECORDED_DATA_PATH: "host", annotations::KUBE_VIP_IGNORE: "true"});
    let mut service = service(&ours, &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    service.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    // kube-vip takes an address from the status too, and this one may be another's by now
    let shown = decided(&service, None, allowed);
    assert_eq!((shown.write, shown.view.publish), (None, Publish::Withdrawn));
    assert_eq!(shown.view.annotations, annotation_changes(&[]));

    service.status = None;
    let hidden = decided(&service, None, allowed);
    let Some(Write::Create { json, .. }) = &hidden.write else { panic!("{hidden:?}") };
    assert_eq!(json["spec"]["workloadType"], "cluster");
    let taken_away =
        annotation_changes(&[(annotations::RECORDED_DATA_PATH, None), (annotations::KUBE_VIP_IGNORE, None)]);
    assert_eq!((hidden.view.annotations, hidden.view.publish), (taken_away, Publish::NotOurs));
}

// docs/contract/cloud-controller-manager.md#12.5
#[test]
fn a_primary_keeps_its_object_while_secondaries_use_it_and_they_are_named() {
    let service = service(&json!({}), &json!({"type": "ClusterIP"}));
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    let removal = |object, secondaries: &[&str]| {
        let keys = secondaries.iter().map(|name| ObjectKey::new("shop", *name)).collect();
        decided(&service, object, |seen| seen.secondaries.all = keys).view.removal
    };
    assert_eq!(removal(Some(&object), &[]), Removal::Background);
    assert_eq!(removal(None, &["api", "admin"]), Removal::Background, "there is nothing to keep");
    let Removal::Blocked(why) = removal(Some(&object), &["api", "admin"]) else { panic!("not blocked") };
    assert!(why.contains("still used by other services: shop/api, shop/admin;"), "{why}");
}

// docs/contract/kube-vip.md#withdrawal: kube-vip passes over every event of such a Service
#[rstest]
#[case::type_changed(json!({"kube-vip.io/vipHost": "worker-1"}), json!({"type": "ClusterIP"}), true)]
#[case::status_only(json!({}), json!({"type": "ClusterIP"}), true)]
#[case::ignored(json!({"kube-vip.io/vipHost": "worker-1", "kube-vip.io/ignore": "true"}), json!({"gone": true}), true)]
#[case::deleted(json!({"kube-vip.io/vipHost": "worker-1"}), json!({"gone": true}), false)]
fn an_address_that_kube_vip_does_not_let_go_is_told(
    #[case] annotations: Value,
    #[case] spec: Value,
    #[case] still_announced: bool,
) {
    let mut service = service(&annotations, &spec);
    service.annotations_mut().insert(annotations::ALLOCATED_ADDRESS.into(), "10.0.0.9".into());
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    service.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    let gone = spec.get("gone").is_some();
    let decision = decided(&service, Some(&object), |seen| seen.wanted &= !gone);
    let reasons: &[&str] = if still_announced { &["VipStillAnnounced"] } else { &[] };
    assert_eq!(self::reasons(&decision), reasons);
    let host = self::object("vm", &json!({"address": "10.0.0.9"}));
    assert_eq!(self::reasons(&decided(&service, Some(&host), |seen| seen.wanted = false)), [""; 0]);
}

#[test]
fn the_address_for_kube_vip_is_what_harvester_allocated() {
    for ip in ["10.0.0.9", DHCP_ADDRESS] {
        let object = object("cluster", &json!({"allocatedAddress": {"ip": ip}}));
        let decision = decided(&service(&json!({}), &json!({})), Some(&object), |_| ());
        assert_eq!(decision.view.annotations[annotations::KUBE_VIP_LOADBALANCER_IPS].as_deref(), Some(ip));
        assert_eq!(decision.view.publish, Publish::NotOurs);
    }
}

#[test]
fn an_allocation_in_both_families_is_handed_over_as_one() {
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9", "ipv6IP": "fd00::9"}}));
    let both = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"});
    let view = decided(&service(&json!({}), &both), Some(&object), |_| ()).view;
    assert_eq!(view.annotations[annotations::KUBE_VIP_LOADBALANCER_IPS].as_deref(), Some("10.0.0.9,fd00::9"));
    let addresses = [ip("10.0.0.9"), ip("fd00::9")].concat();
    assert_eq!(view.load_balancer, LoadBalancerState::Present { addresses });
}

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;

fn annotation_changes(pairs: &[(&str, Option<&str>)]) -> Annotations {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
}

#[rstest]
#[case::first(&[], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::instead_of_what_somebody_asked_for(&[(ASKED, "10.0.0.5")], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::after_another_was_taken_back(&[(GIVEN, "10.0.0.9")], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::by_the_go_program(&[(ASKED, "10.0.0.7")], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
fn what_is_handed_over_is_recorded(#[case] there: &[(&str, &str)], #[case] after: &[(&str, Option<&str>)]) {
    let annotations: BTreeMap<_, _> = there.iter().copied().collect();
    let waits = service(&json!(annotations), &json!({}));
    let given = object("cluster", &json!({"address": "10.0.0.7", "allocatedAddress": {"ip": "10.0.0.7"}}));
    let decision = decided(&waits, Some(&given), |_| {});
    assert_eq!(
        (decision.view.annotations, decision.view.publish),
        (annotation_changes(after), Publish::NotOurs)
    );
}

#[rstest]
#[case::handed_over(&[(ASKED, "10.0.0.9"), (GIVEN, "10.0.0.9")], "", "10.0.0.9", Publish::Withdrawn)]
#[case::after_a_restart_in_between(&[(GIVEN, "10.0.0.9")], "", "10.0.0.9", Publish::Withdrawn)]
#[case::leased(&[(ASKED, DHCP_ADDRESS), (GIVEN, DHCP_ADDRESS)], "", DHCP_ADDRESS, Publish::Withdrawn)]
#[case::by_the_go_program(&[(ASKED, "10.0.0.9")], "10.0.0.9", "10.0.0.9", Publish::Withdrawn)]
// others may write the status, and would write it again: K3s' servicelb, or kube-vip because of spec.loadBalancerIP
#[case::now_of_another(&[(GIVEN, "10.0.0.8")], "", "10.0.0.8", Publish::NotOurs)]
#[case::asked_for_in_spec_too(&[(ASKED, "10.0.0.3"), (GIVEN, "10.0.0.3")], "", "10.0.0.3", Publish::NotOurs)]
fn an_address_that_was_taken_back_is_taken_from_the_service_too(
    #[case] there: &[(&str, &str)],
    #[case] recorded: &str,
    #[case] lost: &str,
    #[case] publish: Publish,
) {
    let annotations: BTreeMap<_, _> = there.iter().copied().collect();
    let ingress = if lost == "10.0.0.3" { lost } else { "10.0.0.9" };
    let mut had = service(&json!(annotations), &json!({"loadBalancerIP": "10.0.0.3"}));
    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": ingress}]}})).unwrap();
    let no = json!({"address": recorded, "conditions": [{"type": "Ready", "status": "False"}]});
    let decision = decided(&had, Some(&object("cluster", &no)), |_| {});
    let asked = annotations.contains_key(ASKED).then_some((ASKED, None));
    let after: Vec<_> = asked.into_iter().chain([(GIVEN, Some(lost))]).collect();
    assert_eq!((&decision.view.annotations, &decision.view.publish), (&annotation_changes(&after), &publish));
    assert!(reasons(&decision).contains(&"AddressTakenBack"));
}

#[rstest]
#[case::nothing(&[])]
#[case::a_request_that_was_never_granted(&[(ASKED, "10.0.0.9")])]
fn what_harvester_never_gave_is_not_ours_to_take(#[case] there: &[(&str, &str)]) {
    let annotations: BTreeMap<_, _> = there.iter().copied().collect();
    let mut waits = service(&json!(annotations), &json!({}));
    waits.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    for conditions in [json!([]), json!([{"type": "Ready", "status": "False"}])] {
        let object = object("cluster", &json!({"conditions": conditions}));
        let decision = decided(&waits, Some(&object), |_| {});
        assert_eq!(
            (decision.view.annotations, decision.view.publish),
            (Annotations::new(), Publish::NotOurs)
        );
    }
}

#[test]
fn the_users_own_annotation_for_kube_vip_chooses_no_datapath() {
    let mut service = service(&json!({annotations::KUBE_VIP_IGNORE: "true"}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let decision = decided(&service, None, |_| ());
    assert!(!is_host(&decision) && decision.write.is_some());
    assert_eq!(decision.view.annotations.get(annotations::KUBE_VIP_IGNORE), None);
    let given_up = decided(&service, None, |seen| seen.wanted = false);
    assert_eq!(given_up.view.annotations.get(annotations::KUBE_VIP_IGNORE), None);
}

// another's address would be put back by Harvester's webhook, and written again, for ever
#[rstest]
#[case::what_was_given("10.0.0.7", "10.0.0.7", Some("10.0.0.7"))]
#[case::a_lease(DHCP_ADDRESS, "10.0.0.7", Some("10.0.0.7"))]
#[case::of_another_program("10.0.0.7", "192.168.1.50", None)]
#[case::nothing_was_given("", "192.168.1.50", None)]
fn harvester_is_told_the_address_that_it_gave(
    #[case] ip: &str,
    #[case] ingress: &str,
    #[case] address: Option<&str>,
) {
    let mut had = service(&json!({}), &json!({}));
    had.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": ingress}]}})).unwrap();
    let object = object("cluster", &json!({"allocatedAddress": {"ip": ip}}));
    let decision = decided(&had, Some(&object), |_| {});
    let Some(Write::Update(written)) = decision.write else { panic!("{decision:?}") };
    assert_eq!(written["status"]["address"].as_str(), address);
}
