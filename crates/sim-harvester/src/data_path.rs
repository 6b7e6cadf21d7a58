//! The way of a connection from a VIP to a backend, as kube-vip and kube-proxy would carry it.
//!
//! ```text
//!   guest VIP ─► guest's slice ──────────────────────────────► pod
//!   host VIP ──► Harvester's slice ─► VM, node port ─► guest's slice ─► pod
//!                                 └─► VM, other port: the machine's own server
//! ```
//! [`World`] is the two clusters as this way sees them, made from nothing but their objects and what is announced;
//! [`World::at`] says what happens to a connection that arrives at an address. Sockets (`listeners`) and tests
//! ([`World::carry`]) ask the same function.

pub(crate) mod blackhole;
pub(crate) mod http;
pub(crate) mod listeners;
mod service;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use controller_kit::ObjectKey;

use crate::{machine::Machine, settings::Backend};

pub(crate) use service::{Balanced, endpoints_of};

/// Kubernetes' default range of node ports: a machine's own server keeps out of it.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
/// A way is never longer: VIP, node port, pod.
const HOPS: usize = 3;

/// Which of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cluster {
    Guest,
    Harvester,
}

/// Who answers: the pod of a machine, or the machine's own server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendName {
    /// Name of the VM.
    pub machine: String,
    /// `namespace/name` of the pod.
    pub pod: Option<String>,
}

impl fmt::Display for BackendName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pod {
            Some(pod) => write!(out, "{pod} on {}", self.machine),
            None => out.write_str(&self.machine),
        }
    }
}

/// Something that the data path goes by has changed.
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
    /// A time-out for whoever connects.
    #[error("{0} does not answer")]
    Silent(SocketAddr),
}

/// A pod that runs on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodAt {
    pub(crate) key: ObjectKey,
    pub(crate) node: String,
    pub(crate) address: IpAddr,
    /// The ports that its containers declare.
    pub(crate) ports: BTreeSet<u16>,
}

/// One cluster's share of the data path.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Side {
    pub(crate) services: BTreeMap<ObjectKey, Balanced>,
    /// What kube-vip announces for each Service, and the node that does.
    pub(crate) announced: BTreeMap<ObjectKey, (BTreeSet<IpAddr>, String)>,
}

/// Both clusters as the data path sees them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) machines: Vec<Machine>,
    pub(crate) pods: Vec<PodAt>,
    pub(crate) guest: Side,
    pub(crate) harvester: Side,
}

/// What happens to a connection that arrives somewhere.
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
    /// A machine or a pod.
    Backend,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vip(Cluster::Guest, service) => write!(out, "Service {service} of the guest"),
            Self::Vip(Cluster::Harvester, service) => write!(out, "Service {service} of Harvester"),
            Self::Backend => out.write_str("a machine or pod"),
        }
    }
}

impl World {
    /// What happens to a TCP connection that arrives at `at`.
    pub(crate) fn at(&self, at: SocketAddr) -> Hop {
        if let Some(machine) = self.machines.iter().find(|machine| at.ip() == machine.address) {
            return self.at_machine(machine, at);
        }
        if let Some(pod) = self.pods.iter().find(|pod| pod.address == at.ip()) {
            let machine = self.machines.iter().find(|machine| machine.node == pod.node);
            let name = |machine: &Machine| BackendName {
                machine: machine.name.clone(),
                pod: Some(pod.key.to_string()),
            };
            return machine.map_or(Hop::Refused(Refused::Silent(at)), |machine| {
                answer(at, machine.backend(), name(machine))
            });
        }
        match self.vip(at.ip()).next() {
            Some(_) => self.at_vip(at),
            // not one of ours, the dummy endpoint for instance: no answer ever comes
            None => Hop::Refused(Refused::Silent(at)),
        }
    }

    /// Who would answer a connection to `vip`, with `pick` choosing the index among so many.
    ///
    /// # Errors
    /// Why nobody would.
    pub(crate) fn carry(
        &self,
        vip: SocketAddr,
        mut pick: impl FnMut(usize) -> usize,
    ) -> Result<(BackendName, Backend), Refused> {
        if self.vip(vip.ip()).next().is_none() {
            return Err(Refused::NotAnnounced(vip.ip()));
        }
        let mut at = vip;
        for _ in 0..HOPS {
            match self.at(at) {
                Hop::Forward(to) => at = to[pick(to.len())],
                Hop::Answer(name, backend) => return Ok((name, backend)),
                Hop::Refused(why) => return Err(why),
            }
        }
        Err(Refused::Closed(at))
    }

    /// Every address at which somebody should listen or visibly not, and for whom.
    pub(crate) fn places(&self) -> BTreeMap<SocketAddr, Place> {
        let mut places = BTreeMap::new();
        for (cluster, side) in [(Cluster::Harvester, &self.harvester), (Cluster::Guest, &self.guest)] {
            for (key, (addresses, _)) in &side.announced {
                for port in side.services.get(key).iter().flat_map(|service| service.tcp_ports()) {
                    for address in addresses {
                        let at = SocketAddr::new(*address, port);
                        places.entry(at).or_insert_with(|| Place::Vip(cluster, key.clone()));
                    }
                }
            }
        }
        let sent_to = |side: &Side, address: IpAddr| -> BTreeSet<u16> {
            let services = side.services.values();
            services.flat_map(|service| service.ports_at(address)).collect()
        };
        for machine in &self.machines {
            let address = IpAddr::V4(machine.address);
            let own = sent_to(&self.harvester, address).into_iter().filter(|port| !NODE_PORTS.contains(port));
            let node_ports = self.guest.services.values().flat_map(Balanced::node_ports);
            for port in own.chain(node_ports) {
                places.insert(SocketAddr::new(address, port), Place::Backend);
            }
        }
        for pod in &self.pods {
            // the example's server listens wherever a Service sends it
            for port in pod.ports.union(&sent_to(&self.guest, pod.address)) {
                places.insert(SocketAddr::new(pod.address, *port), Place::Backend);
            }
        }
        places
    }

    fn vip(&self, address: IpAddr) -> impl Iterator<Item = (&Side, &ObjectKey, &str)> {
        [&self.harvester, &self.guest].into_iter().flat_map(move |side| {
            let announced =
                side.announced.iter().filter(move |(_, (addresses, _))| addresses.contains(&address));
            announced.map(move |(key, (_, node))| (side, key, node.as_str()))
        })
    }

    fn at_vip(&self, at: SocketAddr) -> Hop {
        // several Services may share an address: the port decides
        let service = self.vip(at.ip()).find_map(|(side, key, node)| {
            let service = side.services.get(key)?;
            Some((key, service, service.port(at.port())?, node))
        });
        let Some((key, service, port, node)) = service else {
            return Hop::Refused(Refused::NoSuchPort(at.ip(), at.port()));
        };
        let ready = service.ready(port);
        let local = || ready.iter().filter(|endpoint| endpoint.node.as_deref() == Some(node));
        let to: Vec<_> = if service.local_only {
            local().map(|endpoint| endpoint.at).collect()
        } else {
            ready.iter().map(|endpoint| endpoint.at).collect()
        };
        match (to.is_empty(), service.local_only && !ready.is_empty()) {
            (false, _) => Hop::Forward(to),
            // kube-proxy drops what it has no local endpoint for, and rejects what has none anywhere
            (true, true) => Hop::Refused(Refused::Silent(at)),
            (true, false) => Hop::Refused(Refused::NoEndpoints(key.clone())),
        }
    }

    fn at_machine(&self, machine: &Machine, at: SocketAddr) -> Hop {
        let name = BackendName { machine: machine.name.clone(), pod: None };
        if !NODE_PORTS.contains(&at.port()) || !machine.backend().is_serving() {
            return answer(at, machine.backend(), name);
        }
        let service = self
            .guest
            .services
            .iter()
            .find_map(|(key, service)| Some((key, service, service.node_port(at.port())?)));
        let Some((key, service, port)) = service else { return Hop::Refused(Refused::Closed(at)) };
        let ready = service.ready(port);
        let local = ready.iter().filter(|endpoint| endpoint.node.as_deref() == Some(machine.node.as_str()));
        let local: Vec<_> = local.map(|endpoint| endpoint.at).collect();
        if !local.is_empty() {
            // kube-proxy would choose among all; we prefer the machine's own pods, as with
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

fn answer(at: SocketAddr, backend: Backend, name: BackendName) -> Hop {
    match backend {
        Backend::Ok | Backend::Slow(_) => Hop::Answer(name, backend),
        Backend::Refusing => Hop::Refused(Refused::Closed(at)),
        Backend::Stopped => Hop::Refused(Refused::Silent(at)),
    }
}

#[cfg(test)]
mod tests;
