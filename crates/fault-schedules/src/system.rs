//! The programs: two load balancers and two cloud controller managers, of which one each leads. One that died or lost
//! its Lease is started again, under another identity.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cloud_controller_manager::balancers::Rules;
use cloud_controller_manager::cluster::GuestCluster;
use cloud_controller_manager::data_path::{Allowed, Policy};
use cloud_controller_manager::machines::AddressRules;
use cloud_controller_manager::{ElectionSettings, Settings};
use cloud_provider::Duties;
use controller_kit::{Clock, Life};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use health_check::DialError;
use kube::Client;
use load_balancer::ElectionTimes;
use test_cluster::{TestCluster, User};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::process::Process;

/// So many of each program.
const REPLICAS: usize = 2;
/// Nobody starts again at once.
const RESTART_WITHIN: Duration = Duration::from_secs(20);

/// All programs.
#[derive(Debug)]
pub(crate) struct System {
    replicas: Vec<JoinHandle<()>>,
    sky: Arc<Sky>,
}

/// What all programs live under.
#[derive(Debug, Default)]
struct Sky {
    /// The lives that were begun, and `None` once nobody dies any more.
    doomed: Mutex<Option<Vec<Process>>>,
    end: CancellationToken,
    deaths: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
enum Program {
    LoadBalancer,
    CloudControllerManager,
}

/// Clients with the rights of the programs, and what their flags say.
#[derive(Clone)]
struct World {
    load_balancer: Client,
    guest: Client,
    harvester: Client,
    clock: Clock,
    cluster: String,
    vm_namespace: String,
}

impl System {
    pub(crate) fn start(cluster: &TestCluster, random: &mut fastrand::Rng) -> Self {
        let world = World {
            load_balancer: cluster.harvester.client(User::LoadBalancer),
            guest: cluster.guest.client(User::CloudControllerManager),
            harvester: cluster.harvester.client(User::CloudControllerManager),
            clock: Clock::starting_at(cluster.start()),
            cluster: cluster.guest_cluster().name.clone(),
            vm_namespace: cluster.guest_cluster().vm_namespace.clone(),
        };
        let sky = Arc::new(Sky { doomed: Mutex::new(Some(vec![])), ..Sky::default() });
        let replicas = [Program::LoadBalancer, Program::CloudControllerManager]
            .into_iter()
            .flat_map(|program| (0..REPLICAS).map(move |index| (program, index)))
            .map(|(program, index)| {
                let (world, sky, random) = (world.clone(), sky.clone(), random.fork());
                tokio::spawn(keep(program, index, world, sky, random))
            })
            .collect();
        Self { replicas, sky }
    }

    /// Nobody dies any more.
    pub(crate) fn calm(&self) {
        let doomed = self.sky.doomed.lock().unwrap_or_else(PoisonError::into_inner).take();
        doomed.into_iter().flatten().for_each(|process| process.spare());
    }

    /// As SIGTERM does; says how many died before.
    pub(crate) async fn end(self) -> usize {
        self.sky.end.cancel();
        for ended in join_all(self.replicas).await {
            ended.expect("no program panics");
        }
        self.sky.deaths.load(Ordering::Relaxed)
    }
}

impl Sky {
    fn process(&self, random: &mut fastrand::Rng) -> Process {
        match self.doomed.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            None => Process::immortal(),
            Some(doomed) => {
                let process = Process::doomed(random);
                doomed.push(process.clone());
                process
            }
        }
    }
}

async fn keep(program: Program, index: usize, world: World, sky: Arc<Sky>, mut random: fastrand::Rng) {
    for incarnation in 0.. {
        let process = sky.process(&mut random);
        let life = Life::new();
        let identity = format!("{program:?}-{index}-{incarnation}");
        let mut running =
            tokio::spawn(start(program, &world, &process, identity.clone(), random.u64(..), &life));
        tokio::select! {
            biased;
            () = sky.end.cancelled() => {
                life.end().await;
                running.await.expect("the program ends without a panic");
                return;
            }
            () = process.died() => {
                tracing::info!(identity, "dies");
                sky.deaths.fetch_add(1, Ordering::Relaxed);
                running.abort();
            }
            // it lost its Lease: what it still has under way goes with the process
            ended = &mut running => ended.expect("the program ends without a panic"),
        }
        process.die();
        life.stop.cancel();
        let wait = RESTART_WITHIN.mul_f64(random.f64());
        sky.end.run_until_cancelled(sleep(wait)).await;
    }
}

fn start(
    program: Program,
    world: &World,
    process: &Process,
    identity: String,
    seed: u64,
    life: &Life,
) -> BoxFuture<'static, ()> {
    let life = life.clone();
    match program {
        Program::LoadBalancer => {
            let parts = load_balancer::Parts {
                client: process.client(world.load_balancer.clone()),
                clock: world.clock,
                dial: Arc::new(|_| async { Err(DialError::Refused) }.boxed()),
                seed,
                identity,
                metrics: None,
            };
            let seconds = Duration::from_secs;
            let times =
                ElectionTimes { lease: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) };
            let config = load_balancer::Config {
                workers: 8,
                pod_cidrs: vec![],
                service_cidrs: vec![],
                dummy_endpoint: [10, 52, 0, 255].into(),
            };
            async move {
                if let Err(error) = load_balancer::run(parts, times, config, life).await {
                    tracing::info!(error = &error as &dyn std::error::Error, "ends");
                }
            }
            .boxed()
        }
        Program::CloudControllerManager => {
            let guest = process.client(world.guest.clone());
            let harvester = process.client(world.harvester.clone());
            let parts = cloud_controller_manager::Parts::new(guest, harvester, world.clock);
            let settings = Settings {
                rules: Rules {
                    cluster: GuestCluster::new(&world.cluster),
                    namespace: world.vm_namespace.clone(),
                    management_network: None,
                    policy: Policy::Annotation,
                    allowed: Allowed::default(),
                },
                addresses: AddressRules::default(),
                election: Some(ElectionSettings::usual(identity)),
                services: true,
                nodes: Duties { initialise: true, follow_topology: true },
                service_workers: None,
                node_workers: 1,
            };
            async move {
                if let Err(error) = cloud_controller_manager::run(parts, settings, &life).await {
                    tracing::info!(error = &error as &dyn std::error::Error, "ends");
                }
            }
            .boxed()
        }
    }
}
