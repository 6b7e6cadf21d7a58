//! The way of a connection from a VIP to a backend, as kube-vip and kube-proxy would carry it.
//!
//! ```text
//!   guest VIP ─► guest's slice ──────────────────────────────► pod
//!   host VIP ──► Harvester's slice ─► VM, node port ─► guest's slice ─► pod
//!                                 └─► VM, other port: the VM's own server
//! ```
//! `World` is the two clusters as this way sees them, made from nothing but their objects and what is announced;
//! `World::at` says what happens to a connection that arrives at an address. Sockets (`listeners`) and tests
//! (`World::carry`) ask the same function.

pub(crate) mod blackhole;
mod destination;
pub(crate) mod http;
pub(crate) mod listeners;
mod service;
mod world_cache;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::{IpAddr, SocketAddr},
};

use controller_kit::ObjectKey;

use crate::{settings::Backend, vm::VmState};

pub use destination::{Destination, Protocol};
pub use listeners::{CannotCarry, Carried};
pub(crate) use service::{Balanced, Endpoint, endpoints_of};
pub(crate) use world_cache::WorldCache;

/// Kubernetes' default range of node ports: a VM's own server keeps out of it.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
/// A way is never longer: VIP, node port, pod.
const HOPS: usize = 3;

/// Which of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cluster {
    Guest,
    Harvester,
}

/// The backend that answers: the pod of a VM, or the VM's own server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendName {
    /// Name of the VM.
    pub vm: String,
    /// `namespace/name` of the pod.
    pub pod: Option<String>,
}

impl fmt::Display for BackendName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(out, "{pod} on {}", self.vm),
            None => out.write_str(&self.vm),
        }
    }
}

/// Something that the datapath goes by has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Changed;

impl fmt::Display for Changed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the data path")
    }
}

/// Why a connection does not get to a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("nobody announces {0}")]
    NotAnnounced(IpAddr),
    #[error("no Service has port {1} at {0}")]
    NoSuchPort(IpAddr, u16),
    #[error("Service {0} has no ready endpoint")]
    NoEndpoints(ObjectKey),
    #[error("nothing listens at {0}")]
    Closed(SocketAddr),
    /// The client gets a time-out.
    #[error("{0} does not answer")]
    Silent(SocketAddr),
}

/// A pod that runs on a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodAt {
    pub(crate) key: ObjectKey,
    pub(crate) node: String,
    pub(crate) address: IpAddr,
    /// The ports that its containers declare.
    pub(crate) ports: BTreeSet<(Protocol, u16)>,
}

/// One cluster's share of the datapath.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Side {
    pub(crate) services: BTreeMap<ObjectKey, Balanced>,
    /// The addresses that kube-vip announces.
    pub(crate) announced: Vec<Vip>,
}

/// The addresses that kube-vip announces for one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// The Service, which may be deleted.
    pub service: ObjectKey,
    /// Tells it from another Service of its name.
    pub service_uid: String,
    pub addresses: BTreeSet<IpAddr>,
    /// The node that answers for the addresses.
    pub node: String,
    /// kube-vip passes over the Service now: the addresses are stale, and nothing but an event that kube-vip looks at
    /// takes them away.
    pub passed_over: bool,
    /// kube-vip has passed over the Service since it announced the addresses. It does not write them to the Service a
    /// second time.
    pub was_passed_over: bool,
}

impl Side {
    /// Whether kube-proxy forwards what arrives at the address: not for a Service that is gone, or of another type.
    fn serves(&self, vip: &Vip) -> bool {
        let service = self.services.get(&vip.service);
        service.is_some_and(|service| service.is_load_balancer && service.uid == vip.service_uid)
    }
}

/// Both clusters as the datapath sees them, with what is looked up for every connection.
#[derive(Debug, Default)]
pub(crate) struct World {
    vms: HashMap<IpAddr, VmState>,
    /// Address of the VM behind each guest Node.
    nodes: HashMap<String, IpAddr>,
    pods: HashMap<IpAddr, PodAt>,
    guest: Side,
    harvester: Side,
    /// The Services that each address is announced for, several where they share it, and the node that answers.
    vips: HashMap<IpAddr, Vec<(Cluster, ObjectKey, String)>>,
    /// The Service of the guest that has each node port.
    node_ports: HashMap<(Protocol, u16), ObjectKey>,
}

/// The next step of a connection that arrives somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// It goes on to one of these.
    Forward(Vec<SocketAddr>),
    Answer(BackendName, Backend),
    Refused(Refused),
}

/// Where something may listen, for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A port of a Service, at an address that is announced for it.
    Vip(Cluster, ObjectKey),
    /// A VM or a pod.
    Backend,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip(Cluster::Guest, service) => write!(out, "Service {service} of the guest"),
            Self::Vip(Cluster::Harvester, service) => write!(out, "Service {service} of Harvester"),
            Self::Backend => out.write_str("a vm or pod"),
        }
    }
}

impl World {
    pub(crate) fn new(vms: Vec<VmState>, pods: Vec<PodAt>, guest: Side, harvester: Side) -> Self {
        let mut vips: HashMap<IpAddr, Vec<_>> = HashMap::new();
        for (cluster, side) in [(Cluster::Harvester, &harvester), (Cluster::Guest, &guest)] {
            for vip in &side.announced {
                for address in &vip.addresses {
                    let services: &mut Vec<_> = vips.entry(*address).or_default();
                    if side.serves(vip) {
                        services.push((cluster, vip.service.clone(), vip.node.clone()));
                    }
                }
            }
        }
        let ports = |(key, service): (&ObjectKey, &Balanced)| {
            service.node_ports().map(|port| (port, key.clone())).collect::<Vec<_>>()
        };
        Self {
            nodes: vms.iter().map(|vm| (vm.node.clone(), vm.address.into())).collect(),
            vms: vms.into_iter().map(|vm| (vm.address.into(), vm)).collect(),
            pods: pods.into_iter().map(|pod| (pod.address, pod)).collect(),
            vips,
            node_ports: guest.services.iter().flat_map(ports).collect(),
            guest,
            harvester,
        }
    }

    /// The next step of a connection or datagram that arrives at `to`.
    pub(crate) fn at(&self, to: Destination) -> Hop {
        let at = to.at;
        if let Some(vm) = self.vms.get(&at.ip()) {
            return self.at_vm(vm, to);
        }
        if let Some(pod) = self.pods.get(&at.ip()) {
            let vm = self.nodes.get(&pod.node).and_then(|address| self.vms.get(address));
            return vm.map_or(Hop::Refused(Refused::Silent(at)), |vm| {
                let name = BackendName { vm: vm.name.clone(), pod: Some(pod.key.to_string()) };
                answer(at, vm.backend(), name)
            });
        }
        match self.vips.get(&at.ip()) {
            Some(services) => self.at_vip(services, to),
            // not one of ours, the dummy endpoint for instance: no answer ever comes
            None => Hop::Refused(Refused::Silent(at)),
        }
    }

    /// The backend that would answer a connection to `vip`, with `pick` choosing the index among so many.
    ///
    /// # Errors
    /// Why nobody would.
    pub(crate) fn carry(
        &self,
        vip: Destination,
        mut pick: impl FnMut(usize) -> usize,
    ) -> Result<(BackendName, Backend), Refused> {
        if !self.vips.contains_key(&vip.at.ip()) {
            return Err(Refused::NotAnnounced(vip.at.ip()));
        }
        let mut next = vip;
        for _ in 0..HOPS {
            match self.at(next) {
                Hop::Forward(to) => next.at = to[pick(to.len())],
                Hop::Answer(name, backend) => return Ok((name, backend)),
                Hop::Refused(why) => return Err(why),
            }
        }
        Err(Refused::Closed(next.at))
    }

    /// Every address at which somebody should listen or visibly not, and for whom; of what nobody carries only VIPs.
    pub(crate) fn places(&self) -> BTreeMap<Destination, Place> {
        let mut places = BTreeMap::new();
        for (address, services) in &self.vips {
            for (cluster, key, _) in services {
                let ports = self.side(*cluster).services.get(key).into_iter().flat_map(Balanced::ports);
                for (protocol, port) in ports {
                    let to = Destination { at: SocketAddr::new(*address, port), protocol };
                    places.entry(to).or_insert_with(|| Place::Vip(*cluster, key.clone()));
                }
            }
        }
        let carried = |port: &&(Protocol, u16)| port.0 != Protocol::Sctp;
        let in_harvester = sent_to(&self.harvester);
        for address in self.vms.keys() {
            let own = in_harvester.get(address).into_iter().flatten();
            let own = own.filter(|(_, port)| !NODE_PORTS.contains(port));
            for (protocol, port) in own.chain(self.node_ports.keys()).filter(carried) {
                let to = Destination { at: SocketAddr::new(*address, *port), protocol: *protocol };
                places.insert(to, Place::Backend);
            }
        }
        let in_guest = sent_to(&self.guest);
        for pod in self.pods.values() {
            // a pod's server listens wherever a Service sends it
            let sent = in_guest.get(&pod.address).into_iter().flatten();
            for (protocol, port) in pod.ports.iter().chain(sent).filter(carried) {
                let to = Destination { at: SocketAddr::new(pod.address, *port), protocol: *protocol };
                places.insert(to, Place::Backend);
            }
        }
        places
    }

    fn side(&self, cluster: Cluster) -> &Side {
        match cluster {
            Cluster::Guest => &self.guest,
            Cluster::Harvester => &self.harvester,
        }
    }

    fn at_vip(&self, services: &[(Cluster, ObjectKey, String)], to: Destination) -> Hop {
        let Destination { at, protocol } = to;
        let found = services.iter().find_map(|(cluster, key, node)| {
            let service = self.side(*cluster).services.get(key)?;
            Some((key, service, service.port(protocol, at.port())?, node))
        });
        let Some((key, service, port, node)) = found else {
            return Hop::Refused(Refused::NoSuchPort(at.ip(), at.port()));
        };
        // kube-proxy sends no connection from one family to the other
        let ready = service.ready(port, at.is_ipv6());
        let on_node = |endpoint: &&&Endpoint| endpoint.node.as_ref() == Some(node);
        let to: Vec<_> = if service.local_only {
            ready.iter().filter(on_node).map(|endpoint| endpoint.at).collect()
        } else {
            ready.iter().map(|endpoint| endpoint.at).collect()
        };
        if !to.is_empty() {
            Hop::Forward(to)
        } else if ready.is_empty() {
            // kube-proxy rejects what has no endpoint anywhere, and drops what has none here
            Hop::Refused(Refused::NoEndpoints(key.clone()))
        } else {
            Hop::Refused(Refused::Silent(at))
        }
    }

    fn at_vm(&self, vm: &VmState, to: Destination) -> Hop {
        let Destination { at, protocol } = to;
        let name = BackendName { vm: vm.name.clone(), pod: None };
        if !NODE_PORTS.contains(&at.port()) || !vm.backend().is_serving() {
            return answer(at, vm.backend(), name);
        }
        let service = self.node_ports.get(&(protocol, at.port())).and_then(|key| {
            let service = self.guest.services.get(key)?;
            Some((key, service, service.node_port(protocol, at.port())?))
        });
        let Some((key, service, port)) = service else { return Hop::Refused(Refused::Closed(at)) };
        let ready = service.ready(port, false);
        let local = ready.iter().filter(|endpoint| endpoint.node.as_deref() == Some(vm.node.as_str()));
        let local: Vec<_> = local.map(|endpoint| endpoint.at).collect();
        if !local.is_empty() {
            // kube-proxy would choose among all; we prefer the VM's own pods, as with
            // `trafficDistribution: PreferSameNode`, so that what a probe finds out is what a connection gets
            Hop::Forward(local)
        } else if ready.is_empty() {
            Hop::Refused(Refused::NoEndpoints(key.clone()))
        } else if service.local_only {
            Hop::Refused(Refused::Silent(at))
        } else {
            Hop::Forward(ready.iter().map(|endpoint| endpoint.at).collect())
        }
    }
}

/// The ports that Services of a cluster send to at each address, ready or not.
fn sent_to(side: &Side) -> HashMap<IpAddr, BTreeSet<(Protocol, u16)>> {
    let mut ports: HashMap<_, BTreeSet<_>> = HashMap::new();
    for Destination { at, protocol } in side.services.values().flat_map(Balanced::targets) {
        ports.entry(at.ip()).or_default().insert((protocol, at.port()));
    }
    ports
}

fn answer(at: SocketAddr, backend: Backend, name: BackendName) -> Hop {
    match backend {
        Backend::Ok | Backend::Slow(_) => Hop::Answer(name, backend),
        Backend::Refusing => Hop::Refused(Refused::Closed(at)),
        Backend::Stopped => Hop::Refused(Refused::Silent(at)),
    }
}

#[cfg(test)]
mod tests;
