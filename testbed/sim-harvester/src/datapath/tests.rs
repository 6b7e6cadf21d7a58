use std::net::Ipv4Addr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::settings::Behaviour;

const VIP: &str = "127.77.0.1";

fn vm(name: &str, last: u8, backend: Backend) -> VmState {
    VmState {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        address: Ipv4Addr::new(198, 18, 7, last),
        node: name.to_owned(),
        behaviour: Behaviour { backend, ..Behaviour::default() },
        cluster: Some("demo".to_owned()),
        running: Some(format!("{name}-uid")),
    }
}

fn pod(node: &str, last: u8) -> PodAt {
    PodAt {
        key: ObjectKey::new("default", format!("web-{node}")),
        node: node.to_owned(),
        address: Ipv4Addr::new(198, 18, 7, last).into(),
        ports: BTreeSet::from([(Protocol::Tcp, 80)]),
    }
}

fn balanced(policy: &str, node_port: u16, slice_port: u16, endpoints: &[(&str, &str, bool)]) -> Balanced {
    let service: Service =
        serde_json::from_value(json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": policy,
        "ports": [{"name": "http", "port": 80, "nodePort": node_port}]}}))
        .unwrap();
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, node, ready)| {
            json!({"addresses": [address], "nodeName": node, "conditions": {"ready": ready}})
        })
        .collect();
    let slice: EndpointSlice = serde_json::from_value(json!({"addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": slice_port, "protocol": "TCP"}]}))
    .unwrap();
    Balanced::of(&service, [&slice])
}

fn announced(service: Balanced, node: &str) -> Side {
    let key = ObjectKey::new("default", "web");
    Side { services: BTreeMap::from([(key.clone(), service)]), announced: vec![vip(key, node)] }
}

fn vip(service: ObjectKey, node: &str) -> Vip {
    Vip {
        service,
        service_uid: String::new(),
        addresses: BTreeSet::from([VIP.parse().unwrap()]),
        node: node.to_owned(),
        passed_over: false,
        was_passed_over: false,
    }
}

/// The parts of a [`World`]; tests change them before they make it.
struct Parts {
    vms: Vec<VmState>,
    pods: Vec<PodAt>,
    guest: Side,
    harvester: Side,
}

impl Parts {
    fn world(&self) -> World {
        World::new(self.vms.clone(), self.pods.clone(), self.guest.clone(), self.harvester.clone())
    }
}

/// Two VMs with a pod each; the guest's Service has node port 30080.
fn guest(policy: &str, ready: [bool; 2], backend_of_1: Backend) -> Parts {
    let endpoints = [("198.18.7.131", "vm-1", ready[0]), ("198.18.7.132", "vm-2", ready[1])];
    Parts {
        vms: vec![vm("vm-1", 11, backend_of_1), vm("vm-2", 12, Backend::Ok)],
        pods: vec![pod("vm-1", 131), pod("vm-2", 132)],
        guest: announced(balanced(policy, 30080, 80, &endpoints), "vm-1"),
        harvester: Side::default(),
    }
}

/// The same with Harvester announcing, whose slice has the VMs' node ports.
fn host(policy: &str, pods: [bool; 2], probed: [bool; 2], backend_of_1: Backend) -> Parts {
    let mut parts = guest(policy, pods, backend_of_1);
    parts.guest.announced.clear();
    let endpoints = [("198.18.7.11", "", probed[0]), ("198.18.7.12", "", probed[1])];
    parts.harvester = announced(balanced("Cluster", 31111, 30080, &endpoints), "host-1");
    parts
}

/// The VMs that answer over all choices, and whether some choice fails.
fn reached(parts: &Parts, port: u16) -> (Vec<String>, Vec<String>) {
    let world = parts.world();
    let (mut names, mut failures) = (BTreeSet::new(), BTreeSet::new());
    for first in 0..2 {
        for second in 0..2 {
            let mut choices = [first, second].into_iter();
            let at = Destination::tcp(SocketAddr::new(VIP.parse().unwrap(), port));
            match world.carry(at, |of| choices.next().unwrap_or_default() % of) {
                Ok((name, _)) => drop(names.insert(name.vm)),
                Err(why) => drop(failures.insert(why.to_string())),
            }
        }
    }
    (names.into_iter().collect(), failures.into_iter().collect())
}

#[rstest]
#[case::both("Cluster", [true, true], &["vm-1", "vm-2"], &[])]
#[case::only_ready("Cluster", [false, true], &["vm-2"], &[])]
#[case::none_ready("Cluster", [false, false], &[], &["Service default/web has no ready endpoint"])]
#[case::local("Local", [true, true], &["vm-1"], &[])]
#[case::local_elsewhere("Local", [false, true], &[], &["127.77.0.1:80 does not answer"])]
fn a_guest_vip_leads_to_ready_pods(
    #[case] policy: &str,
    #[case] ready: [bool; 2],
    #[case] names: &[&str],
    #[case] failures: &[&str],
) {
    let (seen, refused) = reached(&guest(policy, ready, Backend::Ok), 80);
    assert_eq!((seen, refused), (owned(names), owned(failures)));
}

#[rstest]
#[case::both("Cluster", [true, true], [true, true], Backend::Ok, &["vm-1", "vm-2"], &[])]
#[case::one_probed_bad("Cluster", [true, true], [false, true], Backend::Ok, &["vm-2"], &[])]
#[case::back_but_not_yet_probed_good("Cluster", [true, true], [false, true], Backend::Ok, &["vm-2"], &[])]
#[case::stopped_before_the_verdict("Cluster", [false, true], [true, true], Backend::Stopped, &["vm-2"],
    &["198.18.7.11:30080 does not answer"])]
#[case::refusing_before_the_verdict("Cluster", [false, true], [true, true], Backend::Refusing, &["vm-2"],
    &["nothing listens at 198.18.7.11:30080"])]
#[case::stopped_after_the_verdict("Cluster", [false, true], [false, true], Backend::Stopped, &["vm-2"], &[])]
#[case::vm_without_pod("Cluster", [false, true], [true, true], Backend::Ok, &["vm-2"], &[])]
#[case::local_vm_without_pod("Local", [false, true], [true, true], Backend::Ok, &["vm-2"],
    &["198.18.7.11:30080 does not answer"])]
fn a_host_vip_leads_through_node_ports_of_vms_that_were_probed_good(
    #[case] policy: &str,
    #[case] pods: [bool; 2],
    #[case] probed: [bool; 2],
    #[case] backend_of_1: Backend,
    #[case] names: &[&str],
    #[case] failures: &[&str],
) {
    let (seen, refused) = reached(&host(policy, pods, probed, backend_of_1), 80);
    assert_eq!((seen, refused), (owned(names), owned(failures)));
}

/// kube-proxy sends a connection to endpoints of its own family.
#[test]
fn a_vip_of_ipv6_leads_to_the_endpoints_of_an_ipv6_slice_alone() {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    let service: Service = serde_json::from_value(json!({"spec": {"type": "LoadBalancer",
        "ports": [{"name": "http", "port": 80}]}}))
    .unwrap();
    let slice = |family: &str, address: &str| -> EndpointSlice {
        serde_json::from_value(json!({"addressType": family,
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}))
        .unwrap()
    };
    let (v4, v6) = (slice("IPv4", "198.18.7.131"), slice("IPv6", "fd18::198.18.7.132"));
    parts.guest = announced(Balanced::of(&service, [&v4, &v6]), "vm-1");
    parts.guest.announced[0].addresses.insert("fd00::1".parse().unwrap());
    let world = parts.world();
    for (vip, vm) in [(VIP, "vm-1"), ("fd00::1", "vm-2")] {
        let at = Destination::tcp(SocketAddr::new(vip.parse().unwrap(), 80));
        assert_eq!(world.carry(at, |of| of - 1).unwrap().0.vm, vm);
    }
}

#[test]
fn the_dummy_endpoint_swallows_what_is_sent_to_it() {
    let mut parts = host("Cluster", [true, true], [false, false], Backend::Ok);
    parts.harvester = announced(balanced("Cluster", 31111, 30080, &[("10.52.0.255", "", true)]), "host-1");
    assert_eq!(reached(&parts, 80), (vec![], owned(&["10.52.0.255:30080 does not answer"])));
}

#[test]
fn another_port_or_an_address_that_nobody_announces_is_refused() {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    assert_eq!(reached(&parts, 81).1, owned(&["no Service has port 81 at 127.77.0.1"]));
    parts.guest.announced.clear();
    assert_eq!(reached(&parts, 80).1, owned(&["nobody announces 127.77.0.1"]));
}

#[test]
fn two_services_share_an_address_by_port() {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    let key = ObjectKey::new("default", "api");
    let service: Service = serde_json::from_value(
        json!({"spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": 81}]}}),
    )
    .unwrap();
    parts.guest.services.insert(key.clone(), Balanced::of(&service, []));
    parts.guest.announced.push(vip(key, "vm-1"));
    assert_eq!(reached(&parts, 80).1, owned(&[]));
    assert_eq!(reached(&parts, 81).1, owned(&["Service default/api has no ready endpoint"]));
}

/// A Service with these ports, given as protocol, number and node port, and a slice with an endpoint for each.
fn of_protocols(ports: &[(&str, u16, u16)]) -> Balanced {
    let of = |key: &str, value: fn(&(&str, u16, u16)) -> u16| -> Vec<Value> {
        ports.iter().map(|port| json!({"name": port.0, "protocol": port.0, key: value(port)})).collect()
    };
    let mut service = json!({"spec": {"type": "LoadBalancer", "ports": of("port", |port| port.1)}});
    for (json, port) in service["spec"]["ports"].as_array_mut().unwrap().iter_mut().zip(ports) {
        json["nodePort"] = port.2.into();
    }
    let slice = json!({"addressType": "IPv4", "ports": of("port", |port| port.1),
        "endpoints": [{"addresses": ["198.18.7.131"], "nodeName": "vm-1"}]});
    Balanced::of(&serde_json::from_value(service).unwrap(), [&serde_json::from_value(slice).unwrap()])
}

#[test]
fn a_port_is_one_of_its_protocol() {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    let ports = [("TCP", 53, 30053), ("UDP", 53, 30053), ("UDP", 123, 30123)];
    parts.guest.services.insert(ObjectKey::new("default", "web"), of_protocols(&ports));
    let world = parts.world();
    let carry = |at: &str, protocol| {
        let to = Destination { at: at.parse().unwrap(), protocol };
        world.carry(to, |_| 0).map(|(name, _)| name.vm).map_err(|why| why.to_string())
    };
    assert_eq!(carry("127.77.0.1:53", Protocol::Udp), Ok("vm-1".to_owned()));
    assert_eq!(carry("127.77.0.1:53", Protocol::Tcp), Ok("vm-1".to_owned()));
    let refused = "no Service has port 123 at 127.77.0.1";
    assert_eq!(carry("127.77.0.1:123", Protocol::Tcp), Err(refused.to_owned()));
    let at_node = |protocol| world.at(Destination { at: "198.18.7.12:30123".parse().unwrap(), protocol });
    assert!(matches!(at_node(Protocol::Udp), Hop::Forward(_)));
    assert!(matches!(at_node(Protocol::Tcp), Hop::Refused(Refused::Closed(_))));
}

#[test]
fn of_sctp_only_the_vip_has_a_place() {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    let ports = of_protocols(&[("SCTP", 9000, 30900)]);
    parts.guest.services.insert(ObjectKey::new("default", "web"), ports);
    let places = parts.world().places().into_keys().filter(|to| to.protocol == Protocol::Sctp);
    assert_eq!(places.map(|to| to.to_string()).collect::<Vec<_>>(), ["127.77.0.1:9000/SCTP"]);
}

#[test]
fn something_listens_at_vips_node_ports_pods_and_the_servers_of_vms() {
    let mut parts = host("Cluster", [true, true], [true, true], Backend::Ok);
    parts.pods[0].ports.insert((Protocol::Tcp, 8080));
    // a plain VM behind a load balancer with an ordinary backend port
    let key = ObjectKey::new("shop", "db");
    parts.harvester.services.insert(key, balanced("Cluster", 31112, 5432, &[("198.18.7.12", "", false)]));
    let world = parts.world();
    let places: Vec<_> = world.places().into_keys().map(|at| at.to_string()).collect();
    let expected = [
        "127.77.0.1:80/TCP",
        "198.18.7.11:30080/TCP",
        "198.18.7.12:5432/TCP",
        "198.18.7.12:30080/TCP",
        "198.18.7.131:80/TCP",
        "198.18.7.131:8080/TCP",
        "198.18.7.132:80/TCP",
    ];
    assert_eq!(places, expected);
    let at = Destination::tcp("198.18.7.12:5432".parse().unwrap());
    let name = BackendName { vm: "vm-2".to_owned(), pod: None };
    assert_eq!(world.at(at), Hop::Answer(name, Backend::Ok));
}

#[test]
fn a_vm_that_does_not_run_does_not_answer() {
    let mut parts = host("Cluster", [false, true], [true, true], Backend::Ok);
    parts.vms[0].running = None;
    let at: SocketAddr = "198.18.7.11:30080".parse().unwrap();
    assert_eq!(parts.world().at(Destination::tcp(at)), Hop::Refused(Refused::Silent(at)));
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[rstest]
#[case::of_a_service_of_another_type(json!({"spec": {"type": "ClusterIP", "ports": [{"name": "http", "port": 80}]}}), "")]
#[case::of_a_former_service_of_the_name(
    json!({"spec": {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80}]}}), "former")]
fn a_stale_vip_is_answered_for_and_leads_nowhere(#[case] service: Value, #[case] uid: &str) {
    let mut parts = guest("Cluster", [true, true], Backend::Ok);
    let service: Service = serde_json::from_value(service).unwrap();
    let key = ObjectKey::new("default", "web");
    parts.guest.services.insert(key, Balanced::of(&service, []));
    parts.guest.announced[0].service_uid = uid.to_owned();
    assert_eq!(reached(&parts, 80).1, owned(&["no Service has port 80 at 127.77.0.1"]));
}
