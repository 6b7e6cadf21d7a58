//! All controllers as one library call, for the process and for tests that run the whole system on a paused clock.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_provider::{Duties, NodeController, ServiceController};
use controller_kit::{
    Cache, RawObject, Recorder,
    election::{self, Election, Identity, Leadership},
};
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, runtime::watcher};
use program::{
    Clock, TaskGroup,
    http::{Health, Metrics},
};
use prometheus_client::registry::Registry;

use crate::{
    balancers::{Balancers, Rules},
    machines::{AddressRules, Machines},
    outage::Outage,
};

/// The Lease that the Go program holds too, so that the two never act together.
const LEASE: &str = "cloud-controller-manager";
/// Services in work at once. Work is waiting for answers, so this is much more than there are cores.
const SERVICE_WORKERS: usize = 16;

/// What the controllers need of the world.
#[derive(Clone)]
pub struct Parts {
    /// The cluster whose Services and Nodes are looked after.
    pub guest: Client,
    /// Harvester, with the rights of the cloud-config.
    pub harvester: Client,
    pub clock: Clock,
    /// Tells what is not in order.
    pub health: Health,
    /// Receives our metrics.
    pub metrics: Metrics,
}

impl Parts {
    /// The two clients, the machine's clock, and health and metrics that nobody serves.
    pub fn new(guest: Client, harvester: Client, clock: Clock) -> Self {
        Self {
            guest,
            harvester,
            clock,
            health: Health::default(),
            metrics: Arc::new(Mutex::new(Registry::default())),
        }
    }
}

/// What the flags say.
#[derive(Clone, Debug)]
pub struct Settings {
    pub rules: Rules,
    pub addresses: AddressRules,
    /// `None`: act at once, without a Lease.
    pub election: Option<ElectionSettings>,
    /// The service controller is on.
    pub services: bool,
    /// What the Node controller does.
    pub nodes: Duties,
    /// Guest agents are asked for the host names of VMs that no Node is known to be.
    pub host_names: bool,
    /// Services in work at once; `None`: as many as do good.
    pub service_workers: Option<NonZeroUsize>,
    pub node_workers: usize,
}

/// Who we are among candidates, and how long things last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    pub identity: Identity,
    pub namespace: String,
    pub name: String,
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl ElectionSettings {
    /// The defaults of Kubernetes' components, on the Lease of all cloud controller managers.
    pub fn usual(identity: impl Into<Identity>) -> Self {
        Self {
            identity: identity.into(),
            namespace: harvester_api::names::KUBE_SYSTEM.to_owned(),
            name: LEASE.to_owned(),
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Runs until `tasks` is told to stop, as leader if there is an election. The Lease is given back at the end.
///
/// # Errors
/// When the Lease was lost: nothing writes any more, and the process should end.
pub async fn run(parts: Parts, settings: Settings, tasks: &TaskGroup) -> Result<(), election::Error> {
    let Some(election) = settings.election.clone() else {
        work(parts, settings, tasks).await;
        return Ok(());
    };
    let ElectionSettings { identity, namespace, name, lease, renew_deadline, retry_period } = election;
    let health = parts.health.clone();
    let election = Election { namespace, name, identity, lease, renew_deadline, retry_period, health };
    let (client, clock) = (parts.guest.clone(), parts.clock);
    Box::pin(election::lead(client, election, clock, tasks, |leadership: Leadership| {
        let parts = Parts {
            guest: leadership.client(parts.guest.clone()),
            harvester: leadership.client(parts.harvester.clone()),
            ..parts
        };
        work(parts, settings, tasks)
    }))
    .await
}

async fn work(parts: Parts, settings: Settings, tasks: &TaskGroup) {
    // a life of its own, which ends with this future: a lost Lease drops it
    let inner = tasks.child();
    let _ends = inner.stop.clone().drop_guard();
    let stop = inner.stop.clone();
    stop.run_until_cancelled(start(parts, settings, &inner)).await;
    stop.cancelled().await;
    inner.end().await;
}

/// Starts caches, waits for what decisions about absence need, and starts the controllers.
async fn start(parts: Parts, settings: Settings, tasks: &TaskGroup) {
    let Parts { guest, harvester, clock, health, metrics } = parts;
    let namespace = settings.rules.namespace.clone();
    let any = watcher::Config::default;
    let services: Cache<Service> = Cache::start(tasks, Api::all(guest.clone()), any());
    let nodes: Cache<Node> = Cache::start_trimmed(tasks, Api::all(guest.clone()), any(), trim_node);
    let objects: Cache<RawObject<LoadBalancer>> =
        Cache::start(tasks, Api::namespaced(harvester.clone(), &namespace), any());
    let machines =
        Machines::start(tasks, &harvester, &namespace, &settings.rules.cluster, settings.addresses);
    if settings.host_names {
        machines.ask_for_host_names(tasks, &harvester, &nodes);
    }
    let recorder = |component: &str| Recorder::start(tasks, guest.clone(), component, clock);
    let outage = |recorder: &Recorder| Outage {
        namespace: namespace.clone(),
        recorder: recorder.clone(),
        health: health.clone(),
    };

    health.wrong("guest", "Services and Nodes are not listed yet");
    services.ready().await;
    nodes.ready().await;
    health.right("guest");

    if settings.nodes.initialise || settings.nodes.follow_topology {
        let (tasks, guest, nodes, machines) = (tasks.clone(), guest.clone(), nodes.clone(), machines.clone());
        let (recorder, metrics) = (recorder("cloud-node-controller"), metrics.clone());
        let outage = outage(&recorder);
        tasks.clone().spawn_until_stop(async move {
            outage.of_nodes(&machines, &nodes).await;
            let cloud = Arc::new(machines);
            let workers = settings.node_workers.max(1);
            let queue =
                NodeController::start(&tasks, guest, &cloud, &nodes, recorder, workers, settings.nodes);
            queue.register(&mut metrics.lock().expect("no panic while registering"), "node");
        });
    }
    if settings.services {
        let recorder = recorder("service-controller");
        let outage = outage(&recorder);
        outage.of_balancers(&objects, &services).await;
        let balancers =
            Arc::new(Balancers::new(settings.rules, harvester, objects, services.clone(), machines.clone()));
        let (held, all) = (balancers.clone(), services.clone());
        tasks.spawn_until_stop(async move { outage.of_backends(&machines, &held, &all).await });
        let workers = settings.service_workers.map_or(SERVICE_WORKERS, NonZeroUsize::get);
        balancers.report_orphans(tasks, guest.clone(), recorder.clone());
        let queue = ServiceController::start(tasks, guest, &balancers, &services, &nodes, recorder, workers);
        queue.register(&mut metrics.lock().expect("no panic while registering"), "service");
    }
}

/// The list of images is most of a Node, and nobody here reads it.
fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.conditions = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}
