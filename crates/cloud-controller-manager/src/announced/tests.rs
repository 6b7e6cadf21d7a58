use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const ASKED: &str = annotations::KUBE_VIP_LOADBALANCER_IPS;

fn set(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

#[rstest]
#[case::nothing(json!({}), None, &[], &[], &[])]
#[case::asked(json!({ASKED: "10.0.0.9, FD00::9"}), None, &[], &["10.0.0.9", "fd00::9"], &[])]
#[case::shown(json!({}), None, &["10.0.0.9"], &[], &["10.0.0.9"])]
#[case::asked_and_shown(json!({ASKED: "10.0.0.9"}), None, &["10.0.0.9"], &["10.0.0.9"], &["10.0.0.9"])]
#[case::leased(json!({ASKED: "0.0.0.0"}), None, &["10.0.0.7"], &[], &["10.0.0.7"])]
#[case::our_class(json!({}), Some("harvesterhci.io/load-balancer"), &["10.0.0.9"], &[], &["10.0.0.9"])]
// such a controller may show the addresses of Nodes
#[case::another_class(json!({}), Some("io.cilium/node"), &["10.0.0.9"], &[], &[])]
#[case::another_class_that_asks(json!({ASKED: "10.0.0.9"}), Some("a/b"), &["10.0.0.9", "10.0.0.8"], &["10.0.0.9"],
    &[])]
#[case::another_class_of_kube_vip(json!({"kube-vip.io/vipHost": "worker-1"}), Some("kube-vip.io/kube-vip-class"),
    &["10.0.0.9"], &[], &["10.0.0.9"])]
#[case::no_address(json!({ASKED: "x,,10.0.0.0/8"}), None, &[""], &[], &[])]
#[case::too_many(json!({ASKED: "::1,::2,::3,::4,::5,::6,::7,::8,::9"}), None, &[],
    &["::1", "::2", "::3", "::4", "::5", "::6", "::7", "::8"], &[])]
fn a_service_says_what_kube_vip_is_asked_for_and_shows(
    #[case] annotations: Value,
    #[case] class: Option<&str>,
    #[case] ingress: &[&str],
    #[case] asks: &[&str],
    #[case] shows: &[&str],
) {
    let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    let service = json!({"metadata": {"annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": class},
        "status": {"loadBalancer": {"ingress": ingress}}});
    let service = serde_json::from_value(service).unwrap();
    assert_eq!((asked(&service), shown(&service)), (set(asks), set(shows)));
}

const VIP: &str = "10.0.0.9";

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

fn shows(list: &[&str]) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
    (set(list), set(&[]))
}

fn asks(list: &[&str]) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
    (set(&[]), set(list))
}

/// The state after a Service with an address came and went; `before`: a VM had the address already.
fn after_a_service(before: bool) -> Announced {
    let announced = Announced::default();
    let reported = set(if before { &[VIP] } else { &[] }).into_iter().collect();
    for now in [shows(&[VIP]), shows(&[])] {
        let mut state = announced.state();
        let changed = state.set_service(&key("a"), now);
        state.turned(&changed, &reported);
    }
    announced
}

fn reports_changed(announced: &Announced, reported: bool) {
    let reported = || set(if reported { &[VIP] } else { &[] }).into_iter().collect();
    announced.state().reports_changed(reported);
}

#[tokio::test(start_paused = true)]
async fn an_address_is_no_nodes_until_the_agent_that_reports_it_has_been_asked_again() {
    let (announced, ip) = (after_a_service(false), VIP.parse().unwrap());
    // reported late, for an hour, and then no more
    for (reported, wait, contained) in
        [(false, 59, true), (true, 1, true), (true, 3_600, true), (false, 0, false), (true, 0, false)]
    {
        reports_changed(&announced, reported);
        assert_eq!(announced.contains(ip, false), contained, "{reported}");
        tokio::time::advance(Duration::from_secs(wait)).await;
    }
    assert!(announced.state().let_go.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_no_agent_reports_may_be_a_nodes_after_a_minute() {
    let (announced, ip) = (after_a_service(false), VIP.parse().unwrap());
    assert!(announced.contains(ip, false));
    tokio::time::advance(LET_GO).await;
    assert!(!announced.contains(ip, false));
    reports_changed(&announced, true);
    assert!(!announced.contains(ip, false));
}

#[test]
fn an_address_that_a_vm_had_before_a_service_asked_for_it_is_the_vms_again_at_once() {
    assert!(!after_a_service(true).contains(VIP.parse().unwrap(), false));
}

#[test]
fn an_address_that_services_share_is_announced_until_the_last_one_lets_go() {
    let mut state = State::default();
    let [a, b] = ["a", "b"].map(key);
    assert_eq!(state.set_service(&a, shows(&[VIP])), set(&[VIP]));
    assert_eq!(state.set_service(&b, shows(&[VIP, "10.0.0.8"])), set(&["10.0.0.8"]));
    assert_eq!(state.set_service(&a, shows(&[])), set(&[]));
    assert_eq!(state.set_service(&b, shows(&[VIP])), set(&["10.0.0.8"]));
    assert_eq!(state.set_service(&b, shows(&[])), set(&[VIP]));
    assert!(state.shown.naming.is_empty() && state.shown.of.is_empty());
}

#[test]
fn an_address_that_a_user_writes_is_announced_only_while_harvester_has_given_it() {
    let mut state = State::default();
    let [service, object] = ["a", "cluster-shop-a"].map(key);
    assert_eq!(state.set_service(&service, asks(&[VIP, "10.0.0.5"])), set(&[]));
    assert_eq!(state.set_object(&object, set(&[VIP])), set(&[VIP]));
    assert!(state.is_announced(VIP.parse().unwrap()) && !state.is_announced("10.0.0.5".parse().unwrap()));
    // the status says the same: kube-vip has it still when the object is gone
    assert_eq!(state.set_service(&service, (set(&[VIP]), set(&[VIP]))), set(&[]));
    assert_eq!(state.set_object(&object, set(&[])), set(&[]));
    assert_eq!(state.set_service(&service, asks(&[VIP])), set(&[VIP]));
}

#[test]
fn an_internal_ip_is_taken_from_a_node_only_where_harvester_has_given_it_to_a_service() {
    let (announced, ip) = (Announced::default(), VIP.parse().unwrap());
    let [service, object] = ["a", "cluster-shop-a"].map(key);
    let reported = HashSet::from([ip]);
    let turn = |set: &dyn Fn(&mut State) -> BTreeSet<IpAddr>| {
        let mut state = announced.state();
        let changed = set(&mut state);
        state.turned(&changed, &reported);
        drop(state);
        (announced.contains(ip, true), announced.contains(ip, false))
    };
    // its author names the address of a Node, no pool has it, and kube-vip announces and shows it
    let forged = (set(&[VIP]), set(&[VIP]));
    assert_eq!(turn(&|state| state.set_service(&service, forged.clone())), (false, true));
    assert_eq!(turn(&|state| state.set_object(&object, set(&[VIP]))), (true, true));
    assert_eq!(turn(&|state| state.set_object(&object, set(&[]))), (false, true));
    assert_eq!(turn(&|state| state.set_service(&service, shows(&[]))), (false, false));
    // the VM reports it only after the Service came, as after a restart of this program, and goes on when that is gone
    for (now, expected) in [(shows(&[VIP]), (false, true)), (shows(&[]), (false, true))] {
        let mut state = announced.state();
        let changed = state.set_service(&service, now.clone());
        state.turned(&changed, &HashSet::new());
        state.reports_changed(|| reported.clone());
        drop(state);
        assert_eq!((announced.contains(ip, true), announced.contains(ip, false)), expected, "{now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn addresses_that_came_and_went_leave_nothing_behind() {
    let mut state = State::default();
    let turn = |state: &mut State, ips: &[String]| {
        let ips: Vec<_> = ips.iter().map(String::as_str).collect();
        let changed = state.set_service(&key("a"), shows(&ips));
        state.turned(&changed, &HashSet::new());
    };
    for update in 0..100 {
        let ips: Vec<_> = (0..100).map(|host| format!("10.0.{update}.{host}")).collect();
        turn(&mut state, &ips);
    }
    turn(&mut state, &[]);
    tokio::time::advance(LET_GO).await;
    // no VM has changed meanwhile
    turn(&mut state, &[VIP.to_owned()]);
    assert!(state.let_go.is_empty());
    assert_eq!(state.shown.naming.len(), 1);
}

/// Changes are told by the thread of the watch and by each one that writes.
#[test]
fn a_change_that_is_told_late_puts_no_former_version_over_a_newer_one() {
    let services = Cache::<Service>::empty();
    let announced = Announced::follow(&services, &Cache::empty());
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = told.clone();
    announced.on_change(move |ips| into.lock().unwrap().push(ips.clone()));
    let mut state = announced.state();
    std::thread::scope(|scope| {
        // both have written, and wait here
        for (version, ingress) in [("5", json!([])), ("6", json!([{"ip": VIP}]))] {
            let metadata = json!({"namespace": "shop", "name": "a", "uid": "u", "resourceVersion": version});
            let service = json!({"metadata": metadata, "status": {"loadBalancer": {"ingress": ingress}}});
            let (service, into) = (serde_json::from_value(service).unwrap(), services.clone());
            scope.spawn(move || drop(into.wrote(service)));
            let is_newest = |service: Arc<Service>| service.resource_version().as_deref() == Some(version);
            while !services.get(&key("a")).is_some_and(is_newest) {
                std::thread::yield_now();
            }
        }
        // the newer one comes first
        state.set_service(&key("a"), shows(&[VIP]));
        drop(state);
    });
    assert_eq!(*told.lock().unwrap(), []);
    assert!(announced.contains(VIP.parse().unwrap(), false));
}
