//! Everything that runs: the clusters, the simulated Harvester around them, and the real parts between them.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use kube::Client;
use program::{Clock, TaskGroup};
use sim_harvester::{Carrier, Lan, LowPorts, Release, SimHarvester, WireMap, Workload, settings};
use test_cluster::User;
use tokio::time::Instant;

use crate::{
    address_plan::AddressPlan,
    clusters::Clusters,
    commands,
    endpoints::{ClusterInfo, Endpoints, NodeInfo},
    example,
    folder::Folder,
    manifests::{self, Manifest},
    measure,
    options::{Options, Rights, Server},
    output::Output,
    parts::{Part, PartCommand, PartInfo},
    storage::{self, Storage},
    user_manifests::UserManifests,
};

mod fixtures;
mod ready;

/// Leases of the simulated DHCP server: short, so that renewals are seen.
const LEASE_SECONDS: u32 = 4;
/// What a new user applies, in the folder of the repository.
const POD_WITH_VOLUME: &str = "examples/guest/pod-with-volume.yaml";
/// Pool of `--measure`: as many addresses as it asks for Services, and more.
const MEASURED: &str = "127.200.0.0/20";

/// kubectl as it can be typed here: by its name, or the one that was built for the tests.
fn kubectl() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_on_path = std::env::split_paths(&path).any(|folder| folder.join("kubectl").is_file());
    let built = (!is_on_path).then(|| outside_tools::Tool::Kubectl.find()).flatten();
    built.map_or_else(|| "kubectl".to_owned(), |file| file.display().to_string())
}

/// A VM that is a node of the guest cluster.
#[derive(Clone, Debug)]
pub(crate) struct GuestVm {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) address: String,
}

pub(crate) struct Environment {
    pub(crate) guest: Client,
    pub(crate) harvester: Client,
    pub(crate) address_plan: AddressPlan,
    pub(crate) vms: Vec<GuestVm>,
    pub(crate) lease_seconds: u32,
    /// What the roles of the parts grant.
    pub(crate) rights: Rights,
    program: Option<PathBuf>,
    clusters: Clusters,
    simulation: SimHarvester,
    /// Of the simulation.
    simulating: TaskGroup,
    parts: Vec<Part>,
    storage: Option<Storage>,
    tasks: TaskGroup,
    admin: [PathBuf; 2],
    shows: Option<SocketAddr>,
    /// The last to be dropped.
    dir: Folder,
}

/// The port on the wire of a port of a Service: another one where low ports may not be bound.
pub(crate) fn wire_port(port: u16) -> u16 {
    WireMap::for_this_process().port(port)
}

/// Where an address and a port of a Service are found on the wire.
pub(crate) fn on_wire(socket: SocketAddr) -> SocketAddr {
    WireMap::for_this_process().socket(socket)
}

impl Environment {
    /// Starts everything that `options` ask for, in the order in which it needs each other, and says so.
    ///
    /// # Errors
    /// The part that did not start, and why; with [`crate::WrongInput`] in it when a manifest of the caller is wrong.
    pub(crate) async fn set(options: &Options, manifests: &UserManifests, output: &Output) -> Result<Self> {
        let started = Instant::now();
        let mut last = started;
        let mut progress = |what: &str| {
            output.progress(what, last.elapsed());
            last = Instant::now();
        };
        let dir = Folder::take(options.dir.as_deref())?;
        output.note(&format!("sandbox in {}", dir.display()));
        if options.server == Server::Real {
            output.note("real API servers do not obey ConfigMap kube-system/sim-faults");
        }
        let address_plan = AddressPlan::take()?;
        let tasks = TaskGroup::new();

        let clusters = Clusters::start(options, &dir, &tasks).await?;
        let kind = if options.server == Server::Sim { "simulated" } else { "real" };
        progress(&format!(
            "two {kind} API servers: guest {}, Harvester {}",
            clusters.guest.url(),
            clusters.harvester.url()
        ));
        let (guest, harvester) = (clusters.guest.admin.clone(), clusters.harvester.admin.clone());
        let admin = [
            clusters.guest.kubeconfig(User::Driver, "guest.kubeconfig", "default")?,
            clusters.harvester.kubeconfig(User::Driver, "harvester.kubeconfig", crate::VM_NAMESPACE)?,
        ];

        fixtures::hosts_and_vms(&harvester, options.guest_nodes, &options.harvester_behaviour.version)
            .await?;
        let simulating = tasks.child();
        let simulation = simulate(options, &clusters, &address_plan, &simulating).await?;
        // a review reads every VM of its namespace: with thousands of them the time of the stand-in would be measured
        let for_webhooks =
            (!options.measure).then(|| clusters.harvester.client_for_webhooks()).transpose()?;
        fixtures::serve(&clusters.harvester, for_webhooks, &tasks).await?;
        let vms = ready::vms(&guest, &harvester, options.guest_nodes).await?;
        progress(&format!("{} VMs, each a node of guest cluster {}", vms.len(), crate::GUEST_CLUSTER));

        let mut environment = Self {
            guest,
            harvester,
            address_plan,
            vms,
            lease_seconds: LEASE_SECONDS,
            rights: options.rights,
            dir,
            program: options.program.clone(),
            clusters,
            simulation,
            simulating,
            parts: Vec::new(),
            storage: None,
            tasks,
            admin,
            shows: None,
        };
        let [webhook, load_balancer, manager] = commands::all(&environment.clusters)?;
        if !options.no_controllers {
            environment.start_part(webhook)?;
            ready::webhook(&environment.harvester)
                .await
                .and_then(|()| environment.parts_still_run())
                .map_err(|error| environment.blame(error))?;
            progress("admission webhook");
        }
        environment.apply_to_harvester(options, manifests).await?;
        if !options.no_controllers {
            environment.start_part(load_balancer)?;
            environment.start_part(manager)?;
            ready::controllers(&environment.guest, &environment.harvester, &environment.vms)
                .await
                .map_err(|error| environment.blame(error))?;
            progress("load balancer and cloud controller manager");
        }
        if !options.no_controllers && options.wants_storage() {
            let storage = environment.start_storage(options).await;
            let left_out = storage.map_err(|error| environment.blame(error))?;
            progress(if options.measure {
                "CSI driver"
            } else {
                "CSI driver, with stand-ins for sidecars and kubelets"
            });
            if let Some(why) = left_out {
                output.note(&format!("pods get no volumes here: {why}"));
            }
        }
        environment.apply_to_guest(options, manifests).await?;
        if options.wants_example() && !options.no_controllers && !options.measure {
            let address =
                ready::example(&environment.guest).await.map_err(|error| environment.blame(error))?;
            progress(&format!("Service default/{} has address {address}", example::SERVICE));
            let on_wire = SocketAddr::new(address, wire_port(80));
            let answers = ready::answers(&environment.simulation, address, on_wire).await;
            if answers.map_err(|error| environment.blame(error))? {
                environment.shows = Some(on_wire);
                progress("it answers");
            }
        }
        environment.endpoints().write(&environment.dir)?;
        output.note(&format!("ready after {:.1} s", started.elapsed().as_secs_f64()));
        Ok(environment)
    }

    async fn apply_to_harvester(&self, options: &Options, manifests: &UserManifests) -> Result<()> {
        if options.measure {
            manifests::apply(&self.harvester, "pool", &example::pool(MEASURED)).await?;
        } else if options.wants_example() {
            manifests::apply(&self.harvester, "example", &example::pools(&self.address_plan)).await?;
        }
        apply_all(&self.harvester, &manifests.harvester).await
    }

    async fn apply_to_guest(&self, options: &Options, manifests: &UserManifests) -> Result<()> {
        if options.wants_example() && !options.measure {
            manifests::apply(&self.guest, "example", example::service()).await?;
        }
        apply_all(&self.guest, &manifests.guest).await
    }

    /// Starts what has to do with volumes, and returns why pods get none, if they do not.
    async fn start_storage(&mut self, options: &Options) -> Result<Option<String>> {
        let around = storage::Around {
            clusters: &self.clusters,
            dir: &self.dir,
            program: self.program.as_deref(),
            simulation: &self.simulation,
            vms: &self.vms,
            harvester_version: &options.harvester_behaviour.version,
            has_callers: !options.measure,
        };
        let storage = Storage::start(around, &self.simulating).await?;
        let (nodes, left_out) = (storage.nodes(), storage.left_out().map(str::to_owned));
        self.storage = Some(storage);
        if !options.measure {
            ready::storage(&self.guest, &nodes).await?;
        }
        Ok(left_out)
    }

    /// Everything for volumes, and the folder that it works in.
    pub(crate) fn storage(&mut self) -> Result<(&mut Storage, &Folder)> {
        Ok((self.storage.as_mut().context("this sandbox has no storage")?, &self.dir))
    }

    fn start_part(&mut self, command: PartCommand) -> Result<()> {
        self.parts.push(Part::start(&self.dir, self.program.as_deref(), command)?);
        Ok(())
    }

    /// `error`, or why a part has ended, which is then the reason for it.
    fn blame(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.parts_still_run().err().unwrap_or(error)
    }

    /// # Errors
    /// The first part that has ended, with its last words.
    pub(crate) fn parts_still_run(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Part::still_runs)?;
        self.storage.iter_mut().try_for_each(Storage::still_runs)
    }

    /// SIGKILL for the load balancer and the cloud controller manager.
    ///
    /// # Errors
    /// When one cannot be killed.
    pub(crate) async fn kill_controllers(&mut self) -> Result<()> {
        for part in self.parts.iter_mut().filter(|part| part.command.name != commands::WEBHOOK) {
            part.kill().await?;
        }
        Ok(())
    }

    /// Starts again what [`Environment::kill_controllers`] killed.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(crate) fn start_controllers_again(&mut self) -> Result<()> {
        self.parts
            .iter_mut()
            .filter(|part| part.command.name != commands::WEBHOOK)
            .try_for_each(Part::start_again)
    }

    fn endpoints(&self) -> Endpoints {
        let wire = WireMap::for_this_process();
        let cluster = |server: String, kubeconfig: &Path| ClusterInfo {
            server,
            kubeconfig: kubeconfig.display().to_string(),
        };
        let nodes = self.vms.iter().map(|vm| NodeInfo {
            name: vm.node.clone(),
            vm: vm.name.clone(),
            address: vm.address.clone(),
            loopback_address: vm
                .address
                .parse()
                .map_or_else(|_| String::new(), |address| wire.address(address).to_string()),
        });
        Endpoints {
            guest: cluster(self.clusters.guest.url(), &self.admin[0]),
            harvester: cluster(self.clusters.harvester.url(), &self.admin[1]),
            nodes: nodes.collect(),
            vip_range: self.address_plan.vips().to_string(),
            parts: self
                .parts
                .iter()
                .map(Part::info)
                .chain(self.storage.iter().flat_map(Storage::infos))
                .collect::<Vec<PartInfo>>(),
        }
    }

    /// Prints the commands that a new user tries next.
    pub(crate) fn say_what_to_type(&self, output: &Output) {
        output.note("\nTry:");
        if let Some(address) = self.shows {
            let port = if address.port() == 80 { String::new() } else { format!(":{}", address.port()) };
            output.note(&format!("  curl http://{}{port}", address.ip()));
        }
        let [guest, harvester] = &self.admin;
        let kubectl = kubectl();
        output.note(&format!("  {kubectl} --kubeconfig {} get nodes,services", guest.display()));
        output.note(&format!(
            "  {kubectl} --kubeconfig {} get vm,loadbalancers,ippools.loadbalancer.harvesterhci.io",
            harvester.display()
        ));
        let program = std::env::current_exe().unwrap_or_else(|_| "harvester-cloud-provider".into());
        output.note(&format!(
            "  {} status --kubeconfig {} --cloud-config {}",
            program.display(),
            guest.display(),
            harvester.display()
        ));
        output.note(&format!("  {} dashboard --kubeconfig {}", program.display(), harvester.display()));
        // elsewhere than in the folder of the repository it is not there
        if self.storage.is_some() && Path::new(POD_WITH_VOLUME).is_file() {
            output.note(&format!("  {kubectl} --kubeconfig {} apply -f {POD_WITH_VOLUME}", guest.display()));
        }
        output.note("  docs/node-driver.md: rancher-machine makes VMs here");
        if WireMap::for_this_process().low_ports() == LowPorts::Shifted {
            output.note("Ports below 1024 may not be bound here: they are served at port + 8000.");
        }
        output.note("Ctrl-C ends the sandbox.");
    }

    /// Tells of parts that end, until everything ends.
    pub(crate) async fn watch_parts(&mut self, output: &Output) -> Result<()> {
        let mut told = BTreeSet::new();
        let mut uncarried = BTreeSet::new();
        loop {
            // twice in a row: an address that changes hands cannot be bound for a moment
            let seen: BTreeSet<_> = self.uncarried();
            tokio::time::sleep(Duration::from_secs(1)).await;
            for line in seen.intersection(&self.uncarried()) {
                if uncarried.insert(line.clone()) {
                    output.note(line);
                }
            }
            let of_storage = self.storage.iter_mut().flat_map(Storage::parts_mut);
            for part in self.parts.iter_mut().chain(of_storage) {
                if let Err(ended) = part.still_runs()
                    && told.insert(part.command.name.clone())
                {
                    output.note(&format!("{ended}"));
                }
            }
        }
    }

    /// Addresses that Services have and this machine cannot serve, and why.
    fn uncarried(&self) -> BTreeSet<String> {
        self.simulation.cannot_carry().iter().map(ToString::to_string).collect()
    }

    /// Ends everything, children first.
    pub(crate) async fn strike(self) {
        if let Some(storage) = self.storage {
            storage.stop().await;
        }
        for mut part in self.parts.into_iter().rev() {
            part.stop().await;
        }
        self.simulating.end().await;
        self.tasks.end().await;
        drop(self.clusters);
        drop(self.dir);
    }
}

/// The parts of the environment that `--measure` needs.
impl Environment {
    pub(crate) fn audit_files(&self) -> measure::AuditFiles {
        measure::AuditFiles {
            guest: self.clusters.guest.audit.clone(),
            harvester: self.clusters.harvester.audit.clone(),
        }
    }

    /// Which API servers these are.
    pub(crate) fn server(&self) -> Server {
        if self.clusters.guest.simulated().is_some() { Server::Sim } else { Server::Real }
    }

    /// The webhook ends, and its configurations go: nobody is asked on writes any more.
    pub(crate) async fn end_webhook(&mut self) -> Result<()> {
        let (webhook, others): (Vec<Part>, _) = std::mem::take(&mut self.parts)
            .into_iter()
            .partition(|part: &Part| part.command.name == commands::WEBHOOK);
        self.parts = others;
        for mut part in webhook {
            part.stop().await;
        }
        ready::no_webhook(&self.harvester).await
    }

    /// SIGTERM for the load balancer and the cloud controller manager: they give their Leases back.
    pub(crate) async fn stop_controllers(&mut self) -> Result<()> {
        for part in self.parts.iter_mut().filter(|part| part.command.name != commands::WEBHOOK) {
            part.stop().await;
        }
        Ok(())
    }

    /// Where this sandbox has its files.
    pub(crate) fn folder(&self) -> &Path {
        &self.dir
    }

    /// The binary that the parts are started from.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        self.program.clone().map_or_else(|| std::env::current_exe().context("find this program"), Ok)
    }

    /// The process of a part.
    pub(crate) fn pid(&self, name: &str) -> Result<u32> {
        Ok(self.parts.iter().find(|part| part.command.name == name).context("no such part")?.info().pid)
    }

    /// VMs and Nodes are objects alone from now on: nobody starts or stops a VM, and no kubelet reports.
    pub(crate) async fn end_simulation(&self) {
        self.simulating.end().await;
    }

    /// `https://127.0.0.1:<port>` of the Harvester cluster.
    pub(crate) fn harvester_url(&self) -> String {
        self.clusters.harvester.url()
    }

    /// How a part is started.
    pub(crate) fn command(&self, name: &str) -> Result<PartCommand> {
        let part = self.parts.iter().find(|part| part.command.name == name).context("no such part")?;
        Ok(part.command.clone())
    }

    /// Sets the arguments of the next start of a part.
    pub(crate) fn set_args(&mut self, name: &str, args: Vec<String>) -> Result<()> {
        self.part(name)?.command.args = args;
        Ok(())
    }

    /// SIGTERM, and the end of the process.
    pub(crate) async fn stop_part(&mut self, name: &str) -> Result<()> {
        self.part(name)?.stop().await;
        Ok(())
    }

    /// Starts what [`Environment::stop_part`] stopped.
    pub(crate) fn start_part_again(&mut self, name: &str) -> Result<()> {
        self.part(name)?.start_again()
    }

    /// A further process, which the caller has to stop.
    pub(crate) fn another(&self, command: PartCommand) -> Result<Part> {
        Part::start(&self.dir, self.program.as_deref(), command)
    }

    fn part(&mut self, name: &str) -> Result<&mut Part> {
        self.parts.iter_mut().find(|part| part.command.name == name).context("no such part")
    }

    /// Stops a part and starts it by a changed command; answers the one that it had.
    pub(crate) async fn change_recipe(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut PartCommand),
    ) -> Result<PartCommand> {
        let part = self.part(name)?;
        part.stop().await;
        let before = part.command.clone();
        change(&mut part.command);
        part.start_again()?;
        Ok(before)
    }

    /// SIGKILL, and a new process at once.
    pub(crate) async fn kill_and_start_again(&mut self, name: &str) -> Result<()> {
        let part = self.part(name)?;
        part.kill().await?;
        part.start_again()
    }

    /// Memory of a part, in MiB.
    pub(crate) fn resident_mib(&self, name: &str) -> Result<f64> {
        let part = self.parts.iter().find(|part| part.command.name == name).context("no such part")?;
        part.resident_mib()
    }
}

async fn simulate(
    options: &Options,
    clusters: &Clusters,
    address_plan: &AddressPlan,
    tasks: &TaskGroup,
) -> Result<SimHarvester> {
    let leases = address_plan.leases();
    let pool = (host(leases.network(), 10), host(leases.network(), 250));
    let dhcp = settings::Dhcp { pool, lease_seconds: LEASE_SECONDS, silent: false };
    let lan =
        Lan::udp(SocketAddr::from((host(leases.network(), 1), 0))).await.context("bind the DHCP server")?;
    let simulation = SimHarvester::start(
        sim_harvester::Options {
            harvester: clusters.harvester.admin.clone(),
            guest: clusters.guest.admin.clone(),
            cluster: crate::GUEST_CLUSTER.to_owned(),
            network: address_plan.vms(),
            workloads: vec![Workload::web()],
            writes_slices: options.server == Server::Sim,
            harvester_vip: Release::of_harvester(&options.harvester_behaviour.version)
                .context("a release of Harvester")?,
            guest_vip: Release::From12,
            carrier: Carrier::Sockets(WireMap::for_this_process()),
            lan,
            dhcp,
            clock: Clock::system(),
            seed: fastrand::u64(..),
        },
        tasks,
    );
    Ok(simulation)
}

fn host(network: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(network) + number)
}

async fn apply_all(client: &Client, manifests: &[Manifest]) -> Result<()> {
    for manifest in manifests {
        manifest.apply(client).await.map_err(|error| crate::WrongInput(format!("{error:#}")))?;
    }
    Ok(())
}
