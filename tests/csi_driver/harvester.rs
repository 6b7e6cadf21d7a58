//! A simulated Harvester with running VMs, and the guest cluster whose nodes they are, on sockets of this machine.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use controller_kit::ObjectKey;
use harvester_api::VirtualMachineInstance;
use program::{Clock, TaskGroup};
use sim_harvester::{
    Carrier, Lan, Options, Release, SimHarvester,
    admission::{self, Place, SERVICE},
    disks, host_objects,
    settings::Dhcp,
    subresources,
};
use tempfile::TempDir;
use test_cluster::{Cluster, GuestCluster, Rights, Side, TestCluster, User};
use tokio::net::TcpListener;

use crate::driver;

/// The VM, which has another name than its Node.
pub(crate) const MACHINE: &str = "vm-1";
pub(crate) const NODE: &str = "node-1";
const HOST: &str = "{apiVersion: v1, kind: Node, metadata: {name: host-1}}";
const VM: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: NAME, namespace: team-a}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {devices: {disks: [], interfaces: [{name: default, bridge: {}}]}}
      networks: [{name: default, pod: {}}]
      volumes: []
";

/// Both clusters, until this is dropped.
pub(crate) struct Lab {
    folder: TempDir,
    pub(crate) tasks: TaskGroup,
    pub(crate) clusters: TestCluster,
    pub(crate) sim: SimHarvester,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.tasks.stop.cancel();
    }
}

impl Lab {
    /// As Harvester of `version` with these roles and one VM; with block devices where this user may make them.
    pub(crate) async fn start(version: &str, rights: Rights) -> Self {
        let lab = Self::without_machines(version, rights).await;
        if may_make_disks() {
            lab.sim.serve_disks(&lab.path().join("disks"), &lab.tasks).unwrap();
        }
        let address = lab.machine(MACHINE).await;
        let folder = lab.path().join("net/enp1s0");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("address"), address).unwrap();
        fs::create_dir_all(lab.kubelet_root()).unwrap();
        lab
    }

    /// As Harvester of `version` with these roles, without a VM and without disks.
    pub(crate) async fn without_machines(version: &str, rights: Rights) -> Self {
        let (folder, tasks) = (tempfile::tempdir().unwrap(), TaskGroup::new());
        let clusters = TestCluster::simulated(rights).await;
        let harvester = clusters.harvester.client(User::Driver);
        host_objects::apply(&harvester, version).await.unwrap();
        let server = clusters.harvester.simulated().expect("it is simulated");
        server.aggregate("subresources.kubevirt.io", subresources::router(harvester.clone()));
        server.webhook(SERVICE.0, SERVICE.1, admission::router(harvester.clone()));
        admission::register(&harvester, Place::Service).await.unwrap();
        let sim = SimHarvester::start(options(&clusters), &tasks);
        for (side, name) in [(Side::Guest, "guest.kubeconfig"), (Side::Harvester, "harvester.kubeconfig")] {
            let text = served(clusters.side(side), side, clusters.guest_cluster(), &tasks).await;
            fs::write(folder.path().join(name), text).unwrap();
        }
        clusters.harvester.apply(HOST).await;
        Self { folder, tasks, clusters, sim }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("csi.sock")
    }

    /// Where volumes are mounted.
    pub(crate) fn kubelet_root(&self) -> PathBuf {
        self.path().join("kubelet")
    }

    /// The driver as it runs in the VM.
    pub(crate) fn driver(&self) -> Command {
        let mut command = driver(self.path());
        let machine = ObjectKey::new(&GuestCluster::default().vm_namespace, MACHINE);
        for (flag, path) in [
            ("guest-kubeconfig", self.path().join("guest.kubeconfig")),
            ("kubeconfig", self.path().join("harvester.kubeconfig")),
            ("interfaces", self.path().join("net")),
            ("kubelet-root", self.kubelet_root()),
            ("device-directory", disks::links(&self.path().join("disks"), &machine)),
        ] {
            command.arg(format!("--{flag}={}", path.display()));
        }
        command.arg(format!("--nodeid={NODE}"));
        command
    }

    /// Makes a VM that runs, and answers its MAC address.
    pub(crate) async fn machine(&self, name: &str) -> String {
        self.clusters.harvester.apply(&VM.replace("NAME", name)).await;
        loop {
            let instance =
                self.clusters.harvester.get::<VirtualMachineInstance>(&format!("team-a/{name}")).await;
            let status = instance.and_then(|instance| instance.status).unwrap_or_default();
            match status.interfaces.first().filter(|_| status.phase == "Running") {
                Some(interface) => return interface.mac.clone(),
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

/// Only root may, and not in every container.
pub(crate) fn may_make_disks() -> bool {
    fs::File::options().write(true).open("/dev/loop-control").is_ok()
}

/// Serves the cluster, and answers a kubeconfig for the CSI driver's account there.
async fn served(cluster: &Cluster, side: Side, guest: &GuestCluster, tasks: &TaskGroup) -> String {
    let server = cluster.simulated().expect("it is simulated").clone();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let text = server.kubeconfig(User::CsiDriver.account(side, guest), address);
    tasks.spawn_until_stop(async move { server.serve(listener).await.unwrap() });
    text.replace("namespace: default", &format!("namespace: {}", guest.vm_namespace))
}

fn options(clusters: &TestCluster) -> Options {
    let lease = |last| Ipv4Addr::new(127, 79, 0, last);
    Options {
        harvester: clusters.harvester.client(User::Driver),
        guest: clusters.guest.client(User::Driver),
        cluster: clusters.guest_cluster().name.clone(),
        network: "198.18.250.0/24".parse().unwrap(),
        workloads: vec![],
        writes_slices: true,
        harvester_vip: Release::From12,
        guest_vip: Release::From12,
        carrier: Carrier::Memory,
        lan: Lan::memory(),
        dhcp: Dhcp { pool: (lease(100), lease(120)), lease_seconds: 600, silent: false },
        clock: Clock::system(),
        seed: 7,
    }
}
