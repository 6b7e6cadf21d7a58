//! Everything together: one call starts it, one value is the handle on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
};

use futures::future::{BoxFuture, FutureExt};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use controller_kit::{Cache, ObjectKey, Recorder};
use harvester_api::{VirtualMachine, labels::SLICE_SERVICE_NAME};
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
};

use crate::{
    catalogue,
    datapath::{
        BackendName, Balanced, CannotCarry, Carried, Cluster, Destination, Hop, PodAt, Protocol, Refused,
        Side, Vip, World, WorldCache, listeners::Listeners,
    },
    dhcp::{self, Lan, server::Server},
    disks,
    disks::{LoopDevices, Machines},
    endpoint_slices,
    guest::{Workload, controller::Kubelets, heartbeat, pod_address, workloads as deployed},
    kube_vip::{Release, controller::KubeVip},
    settings::{self, Backend},
    storage, taints,
    vm::{VmState, controller::VmController},
    wire::WireMap,
};

/// The carrier of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Nothing listens; [`SimHarvester::carry`] and [`SimHarvester::dial`] say what would happen. For tests whose clock
    /// stands still.
    Memory,
    /// Real listeners on loopback.
    Sockets(WireMap),
}

/// The parts and settings of a simulation.
#[derive(Clone)]
pub struct Options {
    /// May do everything in the Harvester cluster.
    pub harvester: Client,
    /// May do everything in the guest cluster.
    pub guest: Client,
    /// Name of the guest cluster: its VMs carry it as label `guestcluster.harvesterhci.io/name`.
    pub cluster: String,
    /// Where VMs get addresses from, in the lower half, and pods, in the upper: part of 198.18.0.0/16.
    pub network: Ipv4Net,
    /// Pods that run on every guest Node.
    pub workloads: Vec<Workload>,
    /// Whether the slices of the guest's Services are written here; a real cluster has a controller for them.
    pub writes_slices: bool,
    /// kube-vip in Harvester, until the Setting `server-version` says otherwise.
    pub harvester_vip: Release,
    /// kube-vip in the guest, until an annotation of a Setting says otherwise.
    pub guest_vip: Release,
    pub carrier: Carrier,
    /// The network that VIPs are leased on, and what its server gives out until a Setting says otherwise.
    pub lan: Lan,
    pub dhcp: settings::Dhcp,
    pub clock: Clock,
    /// For every choice that a real system makes at random.
    pub seed: u64,
}

/// A running simulation. It ends with the [`TaskGroup`] that it was started in.
#[derive(Clone)]
pub struct SimHarvester {
    harvester: Client,
    vm_controller: VmController,
    kubelets: Kubelets,
    harvester_vip: KubeVip,
    guest_vip: KubeVip,
    listeners: Listeners,
    world_cache: WorldCache,
}

impl SimHarvester {
    /// Starts all parts. The definitions of [`crate::crds`] must be there already.
    pub fn start(options: Options, tasks: &TaskGroup) -> Self {
        let Options {
            harvester,
            guest,
            cluster,
            network,
            workloads,
            writes_slices,
            harvester_vip,
            guest_vip,
            carrier,
            lan,
            dhcp,
            clock,
            seed,
        } = options;
        let (lower, upper) = halves(network);
        // it asks for no right: the simulation may do everything
        let capabilities = Capabilities::start(tasks, harvester.clone(), Wanted::default());
        let events = Recorder::start(tasks, harvester.clone(), "sim-harvester", clock, &capabilities);
        let hosts: Cache<Node> = Cache::start(tasks, Api::all(harvester.clone()), Default::default());
        let vm_controller = VmController::start(tasks, &harvester, &hosts, lower, clock, &events);
        storage::controller::start(tasks, &harvester, &vm_controller, clock, &events);
        catalogue::start(tasks, &harvester);
        let kubelets = Kubelets::start(tasks, &guest, &vm_controller, &cluster, upper, workloads, clock);
        deployed::start(tasks, &guest, &kubelets);
        taints::start(tasks, &harvester, &hosts, clock);
        taints::start(tasks, &guest, &kubelets.nodes, clock);
        let world_cache = WorldCache::default();
        let releases = (harvester_vip, guest_vip);
        let harvester_vip = KubeVip::start(tasks, &harvester, releases.0, &hosts, &lan, seed, &world_cache);
        let nodes = &kubelets.nodes;
        let guest_vip =
            KubeVip::start(tasks, &guest, releases.1, nodes, &lan, seed.wrapping_add(1), &world_cache);
        vm_controller.report_vips(&guest_vip);
        if writes_slices {
            endpoint_slices::controller::start(
                tasks,
                &guest,
                &guest_vip.services,
                &guest_vip.slices,
                &kubelets.pods,
            );
        }
        let server = Arc::new(Mutex::new(Server::new(dhcp.pool.0, dhcp.clone())));
        dhcp::serve(tasks, &lan, server.clone());
        let (vips, vms) = ((harvester_vip.clone(), guest_vip.clone()), vm_controller.clone());
        settings::follow::start(tasks, &harvester, events, move |said| {
            vms.set_hot_plug(said.hot_plug.unwrap_or_default());
            let dhcp = said.dhcp.clone().unwrap_or_else(|| dhcp.clone());
            server.lock().expect("no panic while answering").reconfigure(dhcp);
            vips.0.upgrade(said.harvester_vip.unwrap_or(releases.0));
            vips.1.upgrade(said.guest_vip.unwrap_or(releases.1));
        });
        let wire = match carrier {
            Carrier::Sockets(wire) => wire,
            Carrier::Memory => WireMap::loopback(crate::wire::LowPorts::InPlace),
        };
        let listeners = Listeners::new(tasks, wire, seed.wrapping_add(2));
        let this =
            Self { harvester, vm_controller, kubelets, harvester_vip, guest_vip, listeners, world_cache };
        this.subscribe();
        if let Carrier::Sockets(_) = carrier {
            heartbeat::start(tasks, &guest, &this.kubelets, clock);
            let see = this.clone();
            this.listeners.follow(this.world_cache.changes(), move || see.world());
        }
        this
    }

    /// The ports of Services that are served at their VIPs now. Empty with [`Carrier::Memory`].
    pub fn carried(&self) -> Vec<Carried> {
        self.listeners.carried()
    }

    /// Waits until `holds` and the listeners have followed every change. With [`Carrier::Sockets`] only.
    pub async fn until(&self, mut holds: impl FnMut(&Self) -> bool) {
        let followed = || Arc::ptr_eq(&self.listeners.world(), &self.world());
        self.listeners.until(|| followed() && holds(self)).await;
    }

    /// The ports that cannot be served on this computer, and why.
    pub fn cannot_carry(&self) -> Vec<CannotCarry> {
        self.listeners.cannot_carry()
    }

    /// The addresses that kube-vip of each cluster announces, stale ones included.
    pub fn announced(&self) -> Vec<(Cluster, Vip)> {
        let of =
            |cluster, kube_vip: &KubeVip| kube_vip.announced().into_iter().map(move |vip| (cluster, vip));
        of(Cluster::Harvester, &self.harvester_vip).chain(of(Cluster::Guest, &self.guest_vip)).collect()
    }

    /// The addresses that the guest's kube-vip has on the interfaces of a node though no Service asks for them: it passed
    /// over what happened to their Services, a deletion too, or withdraws nothing from one that came back without a wish.
    pub fn left_on(&self, node: &str) -> BTreeSet<IpAddr> {
        self.guest_vip.left_on(node)
    }

    /// All VMs that have an address.
    pub fn vms(&self) -> Vec<VmState> {
        self.vm_controller.list()
    }

    /// Requests that each backend has answered so far; [`SimHarvester::carry`] counts as one.
    pub fn answered(&self) -> BTreeMap<BackendName, u64> {
        self.listeners.answered()
    }

    /// The backend that would answer a TCP connection to `vip` on `port` now. Each call chooses anew.
    ///
    /// # Errors
    /// Why nobody would.
    pub fn carry(&self, vip: IpAddr, port: u16) -> Result<BackendName, Refused> {
        let vip = Destination::tcp(SocketAddr::new(vip, port));
        let (name, _) = self.world().carry(vip, |of| self.listeners.pick(of))?;
        self.listeners.count(&name);
        Ok(name)
    }

    /// Opens a connection in memory: what a prober's dialler is in tests whose clock stands still. It never ends where a
    /// real one would time out.
    pub fn dial(&self, at: SocketAddr) -> BoxFuture<'static, io::Result<()>> {
        let mut next = self.world().at(Destination::tcp(at));
        if let Hop::Forward(to) = next {
            // kube-proxy forwards packets: a handshake with a node port is one with the pod behind it
            next = self.world().at(Destination::tcp(to[self.listeners.pick(to.len())]));
        }
        match next {
            Hop::Answer(..) | Hop::Forward(_) => std::future::ready(Ok(())).boxed(),
            Hop::Refused(Refused::Silent(_)) => std::future::pending().boxed(),
            Hop::Refused(why) => {
                std::future::ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, why))).boxed()
            }
        }
    }

    /// Changes how a VM answers, by the annotation that a user would write.
    ///
    /// # Errors
    /// The server's.
    pub async fn set_backend(&self, vm: &ObjectKey, backend: Backend) -> kube::Result<()> {
        let api: Api<VirtualMachine> = Api::namespaced(self.harvester.clone(), &vm.namespace);
        let patch = json!({"metadata": {"annotations": {settings::BACKEND: backend.text()}}});
        api.patch(&vm.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Ends kube-vip of one cluster, as SIGKILL does, and starts it again: it forgets what it announced, gives no lease
    /// back, and announces what the Services ask for now.
    pub fn restart_vip(&self, cluster: Cluster) {
        match cluster {
            Cluster::Guest => self.guest_vip.restart(),
            Cluster::Harvester => self.harvester_vip.restart(),
        }
    }

    /// Has the disks of hot-plugged volumes in `folder`, as block devices of this computer, until `tasks` ends
    /// ([`crate::disks`]). For root only.
    ///
    /// # Errors
    /// When the folder cannot be prepared.
    pub fn serve_disks(&self, folder: &Path, tasks: &TaskGroup) -> io::Result<()> {
        self.plug_disks(folder, Box::new(LoopDevices::new(folder)?), tasks)
    }

    /// Has the volumes of claims as files in `folder`, and plugs those of hot-plugged volumes into `machines`, until `tasks`
    /// ends.
    ///
    /// # Errors
    /// When the folder cannot be prepared.
    pub fn plug_disks(
        &self,
        folder: &Path,
        machines: Box<dyn Machines>,
        tasks: &TaskGroup,
    ) -> io::Result<()> {
        disks::start(tasks, &self.harvester, folder, machines, &self.vm_controller)
    }

    fn subscribe(&self) {
        let world_cache = || self.world_cache.clone();
        let it = world_cache();
        self.vm_controller.vms.on_change(move |_| it.changed());
        let it = world_cache();
        self.vm_controller.hosts.on_change(move |_| it.changed());
        let it = world_cache();
        self.vm_controller.instances.on_change(move |_| it.changed());
        let it = world_cache();
        self.kubelets.pods.on_change(move |_| it.changed());
        for kube_vip in [&self.harvester_vip, &self.guest_vip] {
            let it = world_cache();
            kube_vip.services.on_change(move |_| it.changed());
            let it = world_cache();
            kube_vip.slices.on_change(move |_| it.changed());
        }
    }

    fn world(&self) -> Arc<World> {
        self.world_cache.world(|| self.build_world())
    }

    fn build_world(&self) -> World {
        let pods = self.kubelets.pods.list().into_iter().filter_map(|pod| {
            let spec = pod.spec.as_ref()?;
            let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
            Some(PodAt {
                key: ObjectKey::of(&*pod),
                node: spec.node_name.clone()?,
                address: pod_address(&pod)?.into(),
                ports: ports
                    .filter_map(|port| {
                        let protocol = Protocol::of(port.protocol.as_deref())?;
                        Some((protocol, u16::try_from(port.container_port).ok()?))
                    })
                    .collect(),
            })
        });
        World::new(
            self.vm_controller.list(),
            pods.collect(),
            side(&self.guest_vip),
            side(&self.harvester_vip),
        )
    }
}

fn side(kube_vip: &KubeVip) -> Side {
    let slices = kube_vip.slices.list();
    let mut of: BTreeMap<ObjectKey, Vec<_>> = BTreeMap::new();
    for slice in &slices {
        if let (Some(namespace), Some(name)) = (slice.namespace(), slice.labels().get(SLICE_SERVICE_NAME)) {
            of.entry(ObjectKey::new(namespace, name)).or_default().push(&**slice);
        }
    }
    let services = kube_vip.services.list().into_iter().map(|service| {
        let key = ObjectKey::of(&*service);
        let slices = of.remove(&key).unwrap_or_default();
        (key, Balanced::of(&service, slices))
    });
    Side { services: services.collect(), announced: kube_vip.announced() }
}

/// VMs have addresses of the lower half of a network, pods in the upper.
fn halves(network: Ipv4Net) -> (Ipv4Net, Ipv4Net) {
    let mut halves = network.subnets(network.prefix_len() + 1).expect("a network of two or more addresses");
    (halves.next().unwrap_or(network), halves.next().unwrap_or(network))
}
