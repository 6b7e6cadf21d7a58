//! Storage: the CSI driver's processes, and stand-ins for everything that calls them.
//!
//! ```text
//! guest ◄──► sim-sidecars ──socket──► harvester-csi-driver-controller ──► Harvester
//!                 └──────────socket──► harvester-csi-driver-<VM>, in the mounts of the VM ──► loop devices
//! ```
//! A VM is a mount namespace here: what its driver mounts is seen in it alone, and goes with it. Where this user may not have
//! such, the controller service runs alone: claims get volumes, and pods wait for them.

mod chart;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use controller_kit::ObjectKey;
use harvester_api::VirtualMachineInstance;
use kube::{Api, Client};
use program::{Clock, TaskGroup};
use sim_harvester::{SimHarvester, disks, host_objects};
use sim_sidecars::{Options, Pace, Plugin, Sidecars, kinds, machine, pod_process::From};
use test_cluster::User;
use tokio::process::{Child, Command};

use crate::{
    clusters::Clusters,
    commands::environment,
    environment::GuestVm,
    folder::Folder,
    manifests::{self, plain},
    parts::{Part, PartCommand, PartInfo},
};

const DRIVER: &str = "harvester-csi-driver";
const CLASSES: &str = include_str!("../../../examples/guest/storage-classes.yaml");
/// Linux takes no longer path of a socket.
const SOCKET_MAX: usize = 107;
/// A namespace is made at once, or never.
const NAMESPACE_WITHIN: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(5);

/// What is there before storage is.
pub(crate) struct Around<'a> {
    pub(crate) clusters: &'a Clusters,
    pub(crate) dir: &'a Folder,
    pub(crate) program: Option<&'a Path>,
    pub(crate) simulation: &'a SimHarvester,
    pub(crate) vms: &'a [GuestVm],
    pub(crate) harvester_version: &'a str,
    /// Sidecars and kubelets call the driver; else whoever measures does.
    pub(crate) has_callers: bool,
}

/// Everything that runs for storage.
pub(crate) struct Storage {
    controller: Service,
    machines: Vec<Machine>,
    /// Why there are no machines.
    left_out: Option<String>,
    sidecars: Option<Sidecars>,
    program: Option<PathBuf>,
    /// The arguments of every driver.
    args: Vec<String>,
    folder: PathBuf,
}

/// A process of the driver, and where it takes calls.
pub(crate) struct Service {
    pub(crate) part: Part,
    pub(crate) socket: PathBuf,
}

impl Service {
    /// The way to it.
    pub(crate) fn plugin(&self) -> Plugin {
        Plugin::at(&self.socket)
    }
}

/// The inside of a VM.
struct Machine {
    vm: GuestVm,
    mac: String,
    service: Service,
    /// Has the mounts, until its standard input is closed.
    mounts: Child,
    kubelet: TaskGroup,
}

impl Storage {
    /// Brings what a Harvester and a guest have for volumes, and starts the driver and its callers.
    ///
    /// # Errors
    /// When something is refused or does not start.
    pub(crate) async fn start(around: Around<'_>, tasks: &TaskGroup) -> Result<Self> {
        let Around { clusters, dir, program, simulation, vms, harvester_version, has_callers } = around;
        let (guest, harvester) = (&clusters.guest.admin, &clusters.harvester.admin);
        host_objects::apply(harvester, harvester_version).await.context("Harvester's objects for volumes")?;
        kinds::apply(guest).await.context("the kinds of snapshots")?;
        for kind in kinds::all() {
            crate::clusters::established(guest, kind.metadata.name.as_deref().unwrap_or_default()).await?;
        }
        manifests::apply(guest, "storage classes", CLASSES).await?;
        let user = User::CsiDriver;
        let cloud = clusters.harvester.kubeconfig(user, "csi-driver-cloud-config", crate::VM_NAMESPACE)?;
        let own = clusters.guest.kubeconfig(user, "csi-driver.kubeconfig", "kube-system")?;
        let folder = dir.run().join("vms");
        fs::create_dir_all(&folder).context("make a folder for VMs")?;
        let args = vec![
            format!("--kubeconfig={}", cloud.display()),
            format!("--guest-kubeconfig={}", own.display()),
        ];
        let mut machines = Vec::new();
        for vm in vms {
            machines.push((vm.clone(), mac(harvester, &vm.name).await?));
        }
        let (first, address) = machines.first().context("there is no VM")?;
        // as in the chart it is told no node: so it watches all of them, and finds its machine by an address
        let mut own = vec![format!("--interfaces={}", interfaces(&folder, first, address)?.display())];
        if !has_callers {
            // what it does for nodes is not to be measured
            own.push(format!("--nodeid={}", first.node));
        }
        let socket = socket(&folder, "controller")?;
        let command = PartCommand {
            name: format!("{DRIVER}-controller"),
            program: DRIVER,
            mounts_of: None,
            args: [&args[..], &own, &[format!("--endpoint=unix://{}", socket.display())]].concat(),
            environment: environment(&[]),
        };
        let controller = Service { part: Part::start(dir, program, command)?, socket };
        let options = Options {
            guest: guest.clone(),
            controller: controller.plugin(),
            pace: Pace::quick(),
            clock: Clock::system(),
        };
        let mut storage = Self {
            controller,
            machines: Vec::new(),
            left_out: machine::lacking(),
            sidecars: has_callers.then(|| Sidecars::start(options, tasks)),
            program: program.map(Path::to_owned),
            args,
            folder,
        };
        if storage.left_out.is_none() {
            simulation.serve_disks(&storage.disks(), tasks).context("make a folder for disks")?;
            for (vm, mac) in machines {
                let machine = storage.machine(dir, vm, mac).await?;
                storage.machines.push(machine);
            }
        }
        if has_callers {
            chart::apply(guest, &storage.nodes()).await.context("what the driver's chart makes")?;
        }
        Ok(storage)
    }

    fn disks(&self) -> PathBuf {
        self.folder.join("disks")
    }

    /// Kubelet's folder in a VM.
    pub(crate) fn root(&self, vm: &str) -> PathBuf {
        self.folder.join(vm).join("kubelet")
    }

    /// Starts the inside of a VM.
    async fn machine(&self, dir: &Folder, vm: GuestVm, mac: String) -> Result<Machine> {
        let (mounts, id) = mounts().await?;
        let (root, interfaces) = (self.root(&vm.name), interfaces(&self.folder, &vm, &mac)?);
        fs::create_dir_all(&root).context("make kubelet's folder")?;
        let socket = socket(&self.folder, &vm.name)?;
        let devices = disks::links(&self.disks(), &ObjectKey::new(crate::VM_NAMESPACE, &vm.name));
        let own = [
            format!("--endpoint=unix://{}", socket.display()),
            format!("--nodeid={}", vm.node),
            format!("--kubelet-root={}", root.display()),
            format!("--device-directory={}", devices.display()),
            format!("--interfaces={}", interfaces.display()),
        ];
        let command = PartCommand {
            name: format!("{DRIVER}-{}", vm.name),
            program: DRIVER,
            mounts_of: Some(id),
            args: [&self.args[..], &own].concat(),
            environment: environment(&[]),
        };
        let part = Part::start(dir, self.program.as_deref(), command)?;
        let (service, kubelet) = (Service { part, socket }, TaskGroup::new());
        if let Some(sidecars) = &self.sidecars {
            sidecars.kubelet(&vm.node, service.plugin(), &root, &kubelet);
        }
        Ok(Machine { vm, mac, service, mounts, kubelet })
    }

    /// The controller service that the sidecars call.
    pub(crate) fn controller(&mut self) -> &mut Service {
        &mut self.controller
    }

    /// The driver in a VM.
    pub(crate) fn driver(&self, vm: &str) -> Result<&Service> {
        let machine = self.machines.iter().find(|machine| machine.vm.name == vm);
        machine.map(|machine| &machine.service).with_context(|| format!("VM {vm} has no inside"))
    }

    /// Why pods get no volumes on this computer, if they do not.
    pub(crate) fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// Where a process of a pod on this VM comes from.
    pub(crate) fn inside(&self, vm: &str) -> Result<From> {
        let machine = self.machines.iter().find(|machine| machine.vm.name == vm);
        let id = machine.and_then(|machine| machine.service.part.command.mounts_of);
        id.map(From::Process).with_context(|| format!("VM {vm} has no inside"))
    }

    /// Ends the inside of a VM, as the loss of power does: nothing is unmounted by the driver.
    pub(crate) async fn lose(&mut self, vm: &str) -> Result<()> {
        let at = self.machines.iter().position(|machine| machine.vm.name == vm);
        let machine = &mut self.machines[at.with_context(|| format!("VM {vm} has no inside"))?];
        machine.kubelet.end().await;
        machine.service.part.kill().await?;
        machine.mounts.kill().await.context("end the mounts of a VM")
    }

    /// Starts the inside of a VM again after [`Storage::lose`].
    pub(crate) async fn start_again(&mut self, dir: &Folder, vm: &str) -> Result<()> {
        let at = self.machines.iter().position(|machine| machine.vm.name == vm);
        let at = at.with_context(|| format!("VM {vm} has no inside"))?;
        let (vm, mac) = (self.machines[at].vm.clone(), self.machines[at].mac.clone());
        self.machines[at] = self.machine(dir, vm, mac).await?;
        Ok(())
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        [&self.controller]
            .into_iter()
            .chain(self.machines.iter().map(|machine| &machine.service))
            .map(|service| &service.part)
    }

    pub(crate) fn infos(&self) -> Vec<PartInfo> {
        self.parts().map(Part::info).collect()
    }

    /// Names of the Nodes that have the driver.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.machines.iter().map(|machine| machine.vm.node.clone()).collect()
    }

    /// Its processes.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let machines = self.machines.iter_mut().map(|machine| &mut machine.service);
        [&mut self.controller].into_iter().chain(machines).map(|service| &mut service.part)
    }

    /// # Errors
    /// The first part that has ended, with its last words.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        self.parts_mut().try_for_each(Part::still_runs)
    }

    /// Ends the processes; kubelets and sidecars first.
    pub(crate) async fn stop(self) {
        for mut machine in self.machines {
            machine.kubelet.end().await;
            machine.service.part.stop().await;
            if let Err(error) = machine.mounts.kill().await {
                tracing::warn!(vm = machine.vm.name, %error, "the mounts of a VM stay");
            }
        }
        let mut controller = self.controller;
        controller.part.stop().await;
    }
}

/// A process with mounts of its own, which ends when this process does: its standard input is closed then.
async fn mounts() -> Result<(Child, u32)> {
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start unshare")?;
    let id = child.id().context("unshare has ended")?;
    let ours = fs::read_link("/proc/self/ns/mnt").context("look at our mounts")?;
    let made = async {
        while fs::read_link(format!("/proc/{id}/ns/mnt")).is_ok_and(|its| its == ours) {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::time::timeout(NAMESPACE_WITHIN, made).await.context("unshare makes no mount namespace")?;
    Ok((child, id))
}

/// Makes the folder in which the kernel of a VM shows its network interfaces.
fn interfaces(folder: &Path, vm: &GuestVm, mac: &str) -> Result<PathBuf> {
    let all = folder.join(&vm.name).join("net");
    fs::create_dir_all(all.join("enp1s0")).context("make a network interface")?;
    fs::write(all.join("enp1s0/address"), mac).context("make a network interface")?;
    Ok(all)
}

/// The socket of one driver.
fn socket(folder: &Path, name: &str) -> Result<PathBuf> {
    let socket = folder.join(format!("{name}.sock"));
    if socket.as_os_str().len() > SOCKET_MAX {
        bail!("{} is too long for the path of a socket: choose a shorter --dir", socket.display());
    }
    Ok(socket)
}

async fn mac(harvester: &Client, vm: &str) -> Result<String> {
    let instances = Api::<VirtualMachineInstance>::namespaced(harvester.clone(), crate::VM_NAMESPACE);
    let status = instances.get(vm).await.map_err(plain)?.status.unwrap_or_default();
    let mac = status.interfaces.first().map(|interface| interface.mac.clone()).unwrap_or_default();
    ensure!(!mac.is_empty(), "VM {vm} has no MAC address");
    Ok(mac)
}
