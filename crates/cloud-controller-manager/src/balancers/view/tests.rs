use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{balancers::selector::Backend, cluster::GuestCluster};

const CHECK: &str = "cloudprovider.harvesterhci.io/healthcheck-port";
const HOST: &str = "cloudprovider.harvesterhci.io/data-path";

fn service(annotations: &Value, spec: &Value) -> Service {
    let mut json = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "1", "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        json["spec"][key] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

fn object(workload: &str, status: &Value) -> RawObject<LoadBalancer> {
    let json = json!({"metadata": {"name": "blue-shop-web-1", "namespace": "team-a"},
        "spec": {"workloadType": workload, "ipam": "pool"}, "status": status});
    RawObject::from_json(json).unwrap()
}

fn backends() -> Backends {
    let backend = Backend { vm: "a".into(), cluster: Some("blue".into()), name: Some("a".into()) };
    Backends { eligible: ["a".to_owned()].into(), nodes_without_vm: vec![], all: vec![backend] }
}

/// Judges in mode `annotation`; `change` makes the sight another one.
fn view(
    service: &Service,
    balancer: Option<&RawObject<LoadBalancer>>,
    change: impl FnOnce(&mut Sight<'_>),
) -> View {
    view_in("blue", service, balancer, change)
}

fn view_in(
    cluster: &str,
    service: &Service,
    balancer: Option<&RawObject<LoadBalancer>>,
    change: impl FnOnce(&mut Sight<'_>),
) -> View {
    judged(cluster, service, balancer, change, |view, _| view)
}

fn judged<T>(
    cluster: &str,
    service: &Service,
    balancer: Option<&RawObject<LoadBalancer>>,
    change: impl FnOnce(&mut Sight<'_>),
    then: impl FnOnce(View, Option<Wanted<'_>>) -> T,
) -> T {
    let identity =
        Identity { cluster: GuestCluster::new(cluster), cluster_uid: None, management_network: None };
    let wishes = Wishes::of(service);
    let mut sight = Sight {
        identity: &identity,
        policy: Policy::Annotation,
        allowed: Allowed::default(),
        service,
        wishes: &wishes,
        balancer: balancer.map_or(Found::Absent, Found::Present),
        backends: Some(backends()),
        waited: Duration::ZERO,
    };
    change(&mut sight);
    let (view, wanted) = judge(&sight);
    then(view, wanted)
}

fn refusals(annotations: &Value, spec: &Value, change: impl FnOnce(&mut Sight<'_>)) -> Vec<&'static str> {
    let view = view(&service(annotations, spec), None, change);
    view.refusals.iter().map(|notice| notice.reason).collect()
}

fn told(view: &View) -> Vec<&'static str> {
    view.notices.iter().map(|notice| notice.reason).collect()
}

// data-paths.md rows 1, 2, 9; the first reason names the Event, its text has them all
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
#[case::source_ranges(json!({}), json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), Some("NotSupported"))]
#[case::later_but_served(json!({annotations::SERVICE_IP: "10.0.0.1"}), json!({}), None)]
fn refused(#[case] annotations: Value, #[case] spec: Value, #[case] reason: Option<&str>) {
    assert_eq!(refusals(&annotations, &spec, |_| ()), reason.into_iter().collect::<Vec<_>>());
}

// the bad-input rule: one clear message
#[rstest]
#[case::local(json!({HOST: "host"}), json!({"externalTrafficPolicy": "Local"}), "healthcheck-port")]
#[case::local_and_more(json!({CHECK: "80"}), json!({"externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
    "node port")]
#[case::keys_of_both_sorts(json!({annotations::PRIMARY_SERVICE: "a/b", annotations::SERVICE_IP: "10.0.0.1"}),
    json!({}), "does not act on cloudprovider.harvesterhci.io/ip")]
#[case::ipv6_alone(json!({HOST: "host"}), json!({"ipFamilies": ["IPv6"]}), "IPv4 addresses only")]
fn a_refused_service_is_told_everything_in_one_event(
    #[case] annotations: Value,
    #[case] spec: Value,
    #[case] part: &str,
) {
    let view = view(&service(&annotations, &spec), None, |_| ());
    assert_eq!((view.refusals.len(), told(&view)), (1, vec![]));
    assert!(view.refusals[0].message.contains(part), "{}", view.refusals[0].message);
}

#[test]
fn kube_vips_annotation_is_no_wish_beside_an_object() {
    let service = service(&json!({annotations::KUBE_VIP_LOADBALANCER_IPS: "10.0.0.9"}), &json!({}));
    assert_eq!(told(&view(&service, None, |_| ())), ["NotSupported"]);
    let object = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.9"}}));
    assert_eq!(told(&view(&service, Some(&object), |_| ())), Vec::<&str>::new());
}

// contract 13: what Kubernetes' own controller says, also where the guest carries the traffic
#[test]
fn a_cluster_without_nodes_is_told_on_both_paths() {
    let nobody = |sight: &mut Sight<'_>| sight.backends = Some(Backends::default());
    let guest = view(&service(&json!({}), &json!({})), None, nobody);
    assert_eq!((guest.refusals.len(), told(&guest)), (0, vec!["UnAvailableLoadBalancer"]));
    assert_eq!(refusals(&json!({CHECK: "80"}), &json!({}), nobody), ["UnAvailableLoadBalancer"]);
}

// user-docs.md 17 e
#[test]
fn a_new_service_of_a_cluster_without_a_name_is_told_so_once() {
    let mut service = service(&json!({}), &json!({}));
    assert_eq!(told(&view_in("", &service, None, |_| ())), ["ClusterNameNotSet"]);
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    assert_eq!(told(&view_in("", &service, None, |_| ())), Vec::<&str>::new());
}

#[test]
fn the_host_path_waits_for_the_list_of_vms_in_silence() {
    let service = service(&json!({CHECK: "80"}), &json!({}));
    let unknown = view(&service, None, |sight| sight.backends = None);
    assert_eq!((unknown.held, unknown.refusals), (true, vec![]));
    let empty = view(&service, None, |sight| sight.backends = Some(Backends::default()));
    assert_eq!((empty.held, empty.refusals[0].reason), (false, "UnAvailableLoadBalancer"));
}

#[test]
fn an_object_that_exists_is_not_touched_because_of_what_became_wrong() {
    let object = object("vm", &json!({"address": "10.0.0.9"}));
    let view = view(&service(&json!({CHECK: "81"}), &json!({})), Some(&object), |_| ());
    assert_eq!((view.refusals.len(), told(&view)), (0, vec!["InvalidHealthCheck"]));
    let address = Some("10.0.0.9".to_owned());
    assert_eq!(view.balancer, Balancer::Present { in_step: true, address });
    assert_eq!(view.publish, Publish::Address("10.0.0.9".into()));
}

#[rstest]
#[case::nothing("cluster", json!({}), 0, None, Some(10))]
#[case::silence("cluster", json!({}), 10, Some("has not answered"), None)]
#[case::reason("cluster", json!({"conditions": [{"type": "Ready", "status": "False", "message": "pool lab is full"}]}),
    0, Some("pool lab is full"), None)]
#[case::hint_on_host("vm", json!({"conditions": [{"type": "Ready", "status": "False", "message": "no pool"}]}),
    0, Some("data-path: guest"), None)]
#[case::allocated("cluster", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 99, None, None)]
#[case::to_be_announced("vm", json!({"allocatedAddress": {"ip": "10.0.0.9"}}), 20, None, Some(40))]
fn what_is_waited_for_is_told(
    #[case] workload: &str,
    #[case] status: Value,
    #[case] waited: u64,
    #[case] waiting: Option<&str>,
    #[case] again: Option<u64>,
) {
    let object = object(workload, &status);
    let view = view(&service(&json!({}), &json!({})), Some(&object), |sight| {
        sight.waited = Duration::from_secs(waited);
    });
    let text = view.waiting.unwrap_or_default();
    assert!(waiting.map_or(text.is_empty(), |part| text.contains(part)), "{text}");
    assert_eq!(view.again, again.map(Duration::from_secs));
}

// data-paths.md row 2, last sentence: an object of v0.1.x, whose Service kube-vip announced
#[test]
fn an_address_announced_twice_is_told() {
    let marks = json!({annotations::KUBE_VIP_VIP_HOST: "worker-1"});
    let object = object("vm", &json!({"address": "10.0.0.9"}));
    let view = view(&service(&marks, &json!({})), Some(&object), |_| ());
    assert_eq!(told(&view), ["VipAnnouncedTwice"]);
    assert_eq!(view.before[annotations::KUBE_VIP_IGNORE].as_deref(), Some("true"));
}

#[test]
fn a_host_service_is_cleaned_up_as_one_also_when_its_object_is_gone() {
    let mut service =
        service(&json!({annotations::RECORDED_DATA_PATH: "host"}), &json!({"type": "ClusterIP"}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let view = view(&service, None, |_| ());
    assert_eq!((view.outlives, view.publish), (true, Publish::Nothing));
    assert!(view.own_annotations.contains(&annotations::KUBE_VIP_IGNORE.to_owned()));
}

// an object that somebody deleted in Harvester comes back on its path, whatever the flags say now
#[rstest]
#[case::guest(annotations::KUBE_VIP_LOADBALANCER_IPS, "10.0.0.9", false)]
#[case::guest_without_address(annotations::ALLOCATED_ADDRESS, "10.0.0.9", false)]
#[case::host(annotations::RECORDED_DATA_PATH, "host", true)]
fn a_lost_object_comes_back_on_its_path(#[case] mark: &str, #[case] value: &str, #[case] host: bool) {
    let mut service = service(&json!({mark: value, HOST: if host { "guest" } else { "host" }}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let view = view(&service, None, |_| ());
    assert_eq!((view.outlives, view.refusals.len(), told(&view)), (host, 0, vec!["DataPathFixed"]));
}

#[test]
fn the_address_for_kube_vip_is_what_harvester_allocated() {
    for ip in ["10.0.0.9", DHCP_ADDRESS] {
        let object = object("cluster", &json!({"allocatedAddress": {"ip": ip}}));
        let view = view(&service(&json!({}), &json!({})), Some(&object), |_| ());
        assert_eq!(view.after[annotations::KUBE_VIP_LOADBALANCER_IPS].as_deref(), Some(ip));
        assert_eq!(view.publish, Publish::NotOurs);
    }
}

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;
const GIVEN: &str = annotations::ALLOCATED_ADDRESS;

fn marks(pairs: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
}

#[rstest]
#[case::first(&[], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::instead_of_what_somebody_wished(&[(ASKED, "10.0.0.5")], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::after_another_was_taken_back(&[(GIVEN, "10.0.0.9")], &[(ASKED, Some("10.0.0.7")), (GIVEN, Some("10.0.0.7"))])]
#[case::by_the_go_program(&[(ASKED, "10.0.0.7")], &[(ASKED, Some("10.0.0.7"))])]
fn what_is_handed_over_is_recorded(#[case] there: &[(&str, &str)], #[case] after: &[(&str, Option<&str>)]) {
    let annotations: BTreeMap<_, _> = there.iter().copied().collect();
    let waits = service(&json!(annotations), &json!({}));
    let given = object("cluster", &json!({"allocatedAddress": {"ip": "10.0.0.7"}}));
    let view = view(&waits, Some(&given), |_| {});
    assert_eq!((view.after, view.publish), (marks(after), Publish::NotOurs));
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
    let view = view(&had, Some(&object("cluster", &no)), |_| {});
    let asked = annotations.contains_key(ASKED).then_some((ASKED, None));
    let after: Vec<_> = asked.into_iter().chain([(GIVEN, Some(lost))]).collect();
    assert_eq!((&view.after, &view.publish), (&marks(&after), &publish));
    assert!(told(&view).contains(&"AddressTakenBack"));
}

#[rstest]
#[case::nothing(&[])]
#[case::a_wish_that_was_never_granted(&[(ASKED, "10.0.0.9")])]
fn what_harvester_never_gave_is_not_ours_to_take(#[case] there: &[(&str, &str)]) {
    let annotations: BTreeMap<_, _> = there.iter().copied().collect();
    let mut waits = service(&json!(annotations), &json!({}));
    waits.status =
        serde_json::from_value(json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})).unwrap();
    for conditions in [json!([]), json!([{"type": "Ready", "status": "False"}])] {
        let object = object("cluster", &json!({"conditions": conditions}));
        let view = view(&waits, Some(&object), |_| {});
        assert_eq!((view.after, view.publish), (BTreeMap::new(), Publish::NotOurs));
    }
}

#[test]
fn the_users_own_word_to_kube_vip_chooses_no_data_path() {
    let mut service = service(&json!({annotations::KUBE_VIP_IGNORE: "true"}), &json!({}));
    service.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let view = view(&service, None, |_| ());
    assert_eq!((view.outlives, view.refusals.len()), (false, 0));
    assert!(!view.own_annotations.contains(&annotations::KUBE_VIP_IGNORE.to_owned()));
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
    let balancer = object("cluster", &json!({"allocatedAddress": {"ip": ip}}));
    let written = judged(
        "blue",
        &had,
        Some(&balancer),
        |_| {},
        |_, wanted| balancer.edited(|json| wanted.expect("there is an object").apply(json)),
    );
    assert_eq!(written.unwrap()["status"]["address"].as_str(), address);
}
