//! The datapath on real sockets: bytes from a VIP to a backend and back.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};

use crate::fixtures::{Clusters, create, ingress};
use controller_kit::ObjectKey;
use program::TaskGroup;
use sim_harvester::{
    Backend, Lan, LowPorts, Protocol, Release, SimHarvester, Stretch, WireMap, ipv6, simulation::Carrier,
};

/// Longer than anything on loopback takes, short enough to wait for when nothing should come.
const PATIENCE: Duration = Duration::from_millis(500);

/// The networks of one test. Tests of this and other processes, and sandboxes, run beside it.
struct Nets(Stretch);

impl Nets {
    fn take() -> Self {
        Self(Stretch::take().unwrap())
    }

    fn vip(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, 80, self.0.number(), last)
    }

    fn vm(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.0.number(), last)
    }
}

async fn start(clusters: &Clusters, nets: &Nets, wire: WireMap, tasks: &TaskGroup) -> SimHarvester {
    let mut options = clusters.options(Release::From12, Carrier::Sockets(wire));
    options.network = nets.0.vms();
    let server = SocketAddr::new(nets.vip(254).into(), 0);
    options.lan = Lan::udp(server).await.unwrap();
    options.dhcp.pool = (nets.vip(100), nets.vip(120));
    SimHarvester::start(options, tasks)
}

async fn carried(sim: &SimHarvester, vip: IpAddr) -> SocketAddr {
    let find = |sim: &SimHarvester| sim.carried().into_iter().find(|carried| carried.vip.ip() == vip);
    sim.until(|sim| find(sim).is_some()).await;
    find(sim).unwrap().on_wire
}

/// The VM that answers, or nothing when the connection fails or nobody answers in time.
async fn get(at: SocketAddr) -> Option<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(at).await.ok()?;
        stream.write_all(b"GET /hello HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        assert_eq!(body["path"], "/hello");
        Some(body["vm"].as_str()?.to_owned())
    };
    timeout(PATIENCE, exchange).await.ok()?
}

async fn reached(at: SocketAddr, connections: usize) -> BTreeSet<Option<String>> {
    let mut names = BTreeSet::new();
    for _ in 0..connections {
        names.insert(get(at).await);
    }
    names
}

fn names(names: &[&str]) -> BTreeSet<Option<String>> {
    names.iter().map(|name| Some((*name).to_owned())).collect()
}

async fn ready_pods(sim: &SimHarvester, vip: IpAddr, wanted: &[&str]) {
    // asks the same world that the listeners ask
    let answers = |sim: &SimHarvester| -> BTreeSet<Option<String>> {
        (0..60).map(|_| sim.carry(vip, 80).ok().map(|name| name.vm)).collect()
    };
    sim.until(|sim| answers(sim) == names(wanted)).await;
}

#[tokio::test]
async fn a_guest_vip_answers_from_every_vm_until_one_stops_and_goes_with_its_service() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": nets.vip(1).to_string()})).await;
    let at = carried(&sim, nets.vip(1).into()).await;
    ready_pods(&sim, nets.vip(1).into(), &["guest-1", "guest-2", "guest-3"]).await;
    assert_eq!(reached(at, 60).await, names(&["guest-1", "guest-2", "guest-3"]));
    sim.set_backend(&ObjectKey::new("shop", "guest-2"), Backend::Stopped).await.unwrap();
    ready_pods(&sim, nets.vip(1).into(), &["guest-1", "guest-3"]).await;
    assert_eq!(reached(at, 40).await, names(&["guest-1", "guest-3"]));
    let api: Api<Service> = Api::namespaced(clusters.guest(), "default");
    api.delete("web", &DeleteParams::default()).await.unwrap();
    sim.until(|sim| sim.carried().is_empty()).await;
    assert_eq!(get(at).await, None);
    tasks.end().await;
}

/// Loopback has one IPv6 address, which a VIP may be; further ones stand for an IPv4 address.
#[tokio::test]
async fn a_service_of_both_families_answers_at_both_of_its_vips() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    // a port of this test's own on an address that is everybody's
    let port = 20_000 + u16::from(nets.0.number());
    let v6: IpAddr = match TcpListener::bind(("::1", port)).await {
        Ok(_) => "::1".parse().unwrap(),
        Err(_) => ipv6(nets.vip(2)).into(),
    };
    let vips = [nets.vip(1).into(), v6];
    let list = vips.map(|vip: IpAddr| vip.to_string()).join(",");
    let service = json!({"metadata": {"name": "web", "annotations": {"kube-vip.io/loadbalancerIPs": list}},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "http", "port": port, "targetPort": 80}]}});
    create::<Service>(Api::namespaced(clusters.guest(), "default"), service).await;
    let all = names(&["guest-1", "guest-2", "guest-3"]);
    for vip in vips {
        let at = carried(&sim, vip).await;
        sim.until(|sim| {
            (0..60).map(|_| sim.carry(vip, port).ok().map(|name| name.vm)).collect::<BTreeSet<_>>() == all
        })
        .await;
        assert_eq!(reached(at, 60).await, all);
    }
    assert_eq!(ingress(&clusters.service("web").await), vips.map(|vip| vip.to_string()));
    tasks.end().await;
}

#[tokio::test]
async fn a_host_vip_goes_through_node_ports_and_a_stopped_vm_leaves_its_connections_unanswered() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    let guest = clusters.guest_service("web", json!({"kube-vip.io/ignore": "true"})).await;
    let node_port = guest.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerIP": nets.vip(2), "ports": [{"name": "http", "port": 80}]}});
    create::<Service>(Api::namespaced(clusters.harvester(), "shop"), service).await;
    let endpoint = |last: u8| json!({"addresses": [nets.vm(last)], "conditions": {"ready": true}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "lb", "namespace": "shop", "labels": {"kubernetes.io/service-name": "lb"}},
        "addressType": "IPv4", "endpoints": [endpoint(10), endpoint(11), endpoint(12)],
        "ports": [{"name": "http", "port": node_port, "protocol": "TCP"}]});
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(clusters.harvester(), "shop");
    create(slices, slice).await;
    let at = carried(&sim, nets.vip(2).into()).await;
    ready_pods(&sim, nets.vip(2).into(), &["guest-1", "guest-2", "guest-3"]).await;
    assert_eq!(reached(at, 60).await, names(&["guest-1", "guest-2", "guest-3"]));
    // a prober dials the node port on the wire
    let probe = WireMap::for_this_process()
        .socket(SocketAddr::new(nets.vm(11).into(), u16::try_from(node_port).unwrap()));
    timeout(PATIENCE, TcpStream::connect(probe)).await.unwrap().unwrap();
    sim.set_backend(&ObjectKey::new("shop", "guest-2"), Backend::Stopped).await.unwrap();
    let vm = |sim: &SimHarvester| sim.vms().into_iter().find(|vm| vm.name == "guest-2").unwrap();
    sim.until(|sim| vm(sim).backend() == Backend::Stopped).await;
    assert!(timeout(PATIENCE, TcpStream::connect(probe)).await.is_err(), "no answer, not even a refusal");
    let answers = reached(at, 20).await;
    assert!(!answers.contains(&Some("guest-2".to_owned())), "{answers:?}");
    sim.set_backend(&ObjectKey::new("shop", "guest-2"), Backend::Refusing).await.unwrap();
    sim.until(|sim| vm(sim).backend() == Backend::Refusing).await;
    let refused = timeout(PATIENCE, TcpStream::connect(probe)).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    tasks.end().await;
}

#[tokio::test]
async fn who_connects_before_a_backend_is_there_gets_through_when_one_comes() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    let guest = clusters.guest_service("web", json!({"kube-vip.io/ignore": "true"})).await;
    let node_port = guest.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "lb", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerIP": nets.vip(3), "ports": [{"name": "http", "port": 80}]}});
    create::<Service>(Api::namespaced(clusters.harvester(), "shop"), service).await;
    let slices: Api<k8s_openapi::api::discovery::v1::EndpointSlice> =
        Api::namespaced(clusters.harvester(), "shop");
    // what the load balancer writes until a backend is healthy
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "lb", "namespace": "shop", "labels": {"kubernetes.io/service-name": "lb"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.52.0.255"]}],
        "ports": [{"name": "http", "port": node_port, "protocol": "TCP"}]});
    create(slices.clone(), slice).await;
    let at = carried(&sim, nets.vip(3).into()).await;
    assert!(timeout(PATIENCE, TcpStream::connect(at)).await.is_err(), "neither an answer nor a refusal");
    let early = tokio::spawn(TcpStream::connect(at));
    let endpoints = json!({"endpoints": [{"addresses": [nets.vm(11)], "conditions": {"ready": true}}]});
    slices.patch("lb", &PatchParams::default(), &Patch::Merge(endpoints)).await.unwrap();
    early.await.unwrap().unwrap();
    assert_eq!(get(at).await, Some("guest-2".to_owned()));
    tasks.end().await;
}

#[tokio::test]
async fn datagrams_stay_with_a_backend_until_it_goes_and_sctp_says_that_it_is_not_carried() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "dns", "namespace": "default",
            "annotations": {"kube-vip.io/loadbalancerIPs": nets.vip(4).to_string()}},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [
            {"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "s", "port": 99, "protocol": "SCTP"}]}});
    create::<Service>(Api::namespaced(clusters.guest(), "default"), service).await;
    let vip = IpAddr::from(nets.vip(4));
    let find = |sim: &SimHarvester| sim.carried().into_iter().find(|carried| carried.vip.ip() == vip);
    sim.until(|sim| find(sim).is_some()).await;
    let carried = find(&sim).unwrap();
    assert_eq!((carried.protocol, carried.on_wire), (Protocol::Udp, SocketAddr::new(vip, 5353)));
    let report = sim.cannot_carry()[0].to_string();
    assert!(report.contains(":99/SCTP (Service default/dns of the guest): SCTP needs a module"), "{report}");

    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(carried.on_wire).await.unwrap();
    let first = ask(&socket).await.unwrap();
    for _ in 0..10 {
        assert_eq!(ask(&socket).await.as_ref(), Some(&first), "one flow, one backend");
    }
    let mut others = BTreeSet::new();
    while others.len() < 3 {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        socket.connect(carried.on_wire).await.unwrap();
        others.insert(ask(&socket).await.unwrap());
    }
    sim.set_backend(&ObjectKey::new("shop", &first), Backend::Stopped).await.unwrap();
    let second = loop {
        // lost until the slice says that the backend is gone
        match ask(&socket).await {
            Some(answer) if answer != first => break answer,
            _ => {}
        }
    };
    assert_eq!(ask(&socket).await, Some(second));
    tasks.end().await;
}

/// The VM that answers a datagram, or nothing when nobody does in time.
async fn ask(socket: &UdpSocket) -> Option<String> {
    socket.send(b"hello").await.ok()?;
    let mut buffer = [0; 512];
    let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.ok()?.ok()?;
    let answer: Value = serde_json::from_slice(&buffer[..length]).ok()?;
    assert_eq!(answer["bytes"], 5);
    Some(answer["vm"].as_str()?.to_owned())
}

#[tokio::test]
async fn an_address_that_this_vm_does_not_have_is_reported_and_the_service_still_gets_it() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::for_this_process(), &tasks).await;
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": "203.0.113.7"})).await;
    sim.until(|sim| !sim.cannot_carry().is_empty()).await;
    let report = sim.cannot_carry()[0].to_string();
    assert!(report.contains("203.0.113.7:80/TCP (Service default/web of the guest)"), "{report}");
    tasks.end().await;
}

#[tokio::test]
async fn dhcp_over_udp_leases_an_address_that_then_carries_traffic() {
    let (clusters, tasks, nets) = (Clusters::new().await, TaskGroup::new(), Nets::take());
    let sim = start(&clusters, &nets, WireMap::loopback(LowPorts::Shifted), &tasks).await;
    clusters.guest_service("web", json!({"kube-vip.io/loadbalancerIPs": "0.0.0.0"})).await;
    let at = carried(&sim, nets.vip(100).into()).await;
    assert_eq!(at.port(), 8080, "port 80 is served elsewhere when an ordinary user may not bind it");
    ready_pods(&sim, nets.vip(100).into(), &["guest-1", "guest-2", "guest-3"]).await;
    assert!(get(at).await.is_some());
    tasks.end().await;
}
