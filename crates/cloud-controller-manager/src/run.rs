//! All controllers as one library call, for the process and for tests that run the whole system on a paused clock.

use std::{
    mem::take,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_config::Followed;
use cloud_provider::{Duties, NodeController, NodeLifecycle, ServiceController};
use controller_kit::{
    Cache, QueueMetrics, RawObject, Recorder,
    election::{self, Election, Identity, Leadership},
    error_message,
};
use credential_rotation::{Clusters, Rotation};
use guest_vms::{AddressRules, GuestVms, TopologyLabels, VmSettings};
use harvester_api::LoadBalancer;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Service};
use kube::{Api, Client, api::ListParams, runtime::watcher};
use program::{
    Clock, TaskGroup,
    health::{Check, Health},
    http::Metrics,
};
use prometheus_client::registry::Registry;
use tokio::{sync::watch, time::sleep};

use crate::{
    announced::Announced,
    cluster_names,
    guest_rights::{GUEST_ROLE, Granted},
    instances::VmInstances,
    load_balancers::{HarvesterLoadBalancers, ServiceSettings},
    metrics::OwnMetrics,
    networks::Networks,
    notices::Notices,
    outage::{self, Checks, LOAD_BALANCERS, Outage},
};

/// The Lease that the Go program holds too, so that the two never act together.
const LEASE: &str = "cloud-controller-manager";
/// Readiness check of a candidate that waits for the Lease.
const ACCESS: &str = "harvester-access";
/// A candidate has no watch on Harvester: it looks whether its credentials still work after this time …
const ACCESS_PERIOD: Duration = Duration::from_secs(600);
/// … and whether they work by now after this.
const NO_ACCESS_PERIOD: Duration = Duration::from_secs(30);
/// Services in work at once. Work is waiting for answers, so this is much more than there are cores.
const SERVICE_WORKERS: usize = 16;

/// Clients and services of the process that the controllers use.
#[derive(Clone)]
pub struct Parts {
    /// The cluster whose Services and Nodes are looked after.
    pub guest: Client,
    /// Harvester, with the rights of the cloud-config.
    pub harvester: Client,
    pub clock: Clock,
    /// Liveness and readiness.
    pub health: Health,
    /// Receives our metrics.
    pub metrics: Metrics,
    /// Where to say what concerns the program itself.
    pub notices: Notices,
    /// The leader renews its credential.
    pub rotation: Option<Rotation>,
    /// The cloud-config in use: with another one the leader tries at once what failed.
    pub followed: Option<watch::Receiver<Followed>>,
}

impl Parts {
    /// The two clients, a clock, and health and metrics that nobody serves.
    pub fn new(guest: Client, harvester: Client, clock: Clock) -> Self {
        Self {
            guest,
            harvester,
            clock,
            health: Health::default(),
            metrics: Arc::new(Mutex::new(Registry::default())),
            notices: Notices::default(),
            rotation: None,
            followed: None,
        }
    }
}

/// The settings that flags decide.
#[derive(Clone, Debug)]
pub struct Settings {
    pub rules: ServiceSettings,
    pub addresses: AddressRules,
    /// Labels of Nodes beside zone and region, by the annotation of the VM's instance that has the value.
    pub topology: TopologyLabels,
    /// `None`: act at once, without a Lease.
    pub election: Option<ElectionSettings>,
    /// The service controller is on.
    pub services: bool,
    /// The duties of the Node controller.
    pub nodes: Duties,
    /// Nodes of stopped VMs are tainted, those of deleted VMs removed.
    pub node_lifecycle: bool,
    /// Guest agents are asked for the host names of VMs that no Node is known to be.
    pub host_names: bool,
    /// Services in work at once; `None`: as many as do good.
    pub service_workers: Option<NonZeroUsize>,
    pub node_workers: usize,
}

/// Our name among the candidates for the Lease, and its periods.
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

/// Runs until `tasks` ends, as leader if there is an election, and gives the Lease back at the end.
///
/// # Errors
/// When the Lease was lost: nothing writes any more, and the process should end.
pub async fn run(parts: Parts, settings: Settings, tasks: &TaskGroup) -> Result<(), election::Error> {
    let own = OwnMetrics::new(parts.clock);
    own.register(&mut parts.metrics.lock().expect("no panic while registering"));
    let granted = Granted::ask(&parts, &settings, &own, tasks);
    let Some(election) = settings.election.clone() else {
        work(parts, settings, own, granted, tasks).await;
        return Ok(());
    };
    let ElectionSettings { identity, namespace, name, lease, renew_deadline, retry_period } = election;
    let (health, lease_name) = (parts.health.clone(), name.clone());
    own.set_leading(&lease_name, false);
    let election = Election { namespace, name, identity, lease, renew_deadline, retry_period, health };
    let (client, clock) = (parts.guest.clone(), parts.clock);
    let waiting = tasks.child();
    let access = Arc::new(Mutex::new(Some(parts.health.readiness(ACCESS))));
    let namespace = settings.rules.namespace.clone();
    waiting.spawn_until_stop(check_access(parts.harvester.clone(), namespace, access.clone()));
    Box::pin(election::lead(client, election, clock, tasks, |leadership: Leadership| {
        // from here on the lists of the leader say it
        waiting.stop.cancel();
        if let Some(check) = access.lock().expect("no panic while the check is locked").take() {
            check.remove();
        }
        own.set_leading(&lease_name, true);
        let parts = Parts {
            guest: leadership.client(parts.guest.clone()),
            harvester: leadership.client(parts.harvester.clone()),
            ..parts
        };
        work(parts, settings, own, granted, tasks)
    }))
    .await
}

/// Keeps the readiness check of a candidate true: Harvester takes its credentials, and lets it list load balancers. A
/// leader takes the check away.
async fn check_access(harvester: Client, namespace: String, check: Arc<Mutex<Option<Check>>>) {
    let objects: Api<LoadBalancer> = Api::namespaced(harvester, &namespace);
    loop {
        let answer = objects.list_metadata(&ListParams::default().limit(1)).await;
        let wait = {
            let check = check.lock().expect("no panic while the check is locked");
            let Some(check) = &*check else { return };
            match answer {
                Ok(_) => {
                    check.pass();
                    ACCESS_PERIOD
                }
                Err(error) => {
                    check.fail(format!("Harvester, namespace {namespace}: {}", error_message(&error)));
                    NO_ACCESS_PERIOD
                }
            }
        };
        sleep(wait).await;
    }
}

async fn work(parts: Parts, settings: Settings, own: OwnMetrics, granted: Granted, tasks: &TaskGroup) {
    // tasks of its own, which end with this future: a lost Lease drops it
    let inner = tasks.child();
    let _ends = inner.stop.clone().drop_guard();
    let stop = inner.stop.clone();
    stop.run_until_cancelled(start(parts, settings, own, granted, &inner)).await;
    stop.cancelled().await;
    inner.end().await;
}

/// Starts the caches, then the controllers. A controller decides nothing about an object of Harvester before the lists
/// that it needs are complete.
async fn start(parts: Parts, settings: Settings, own: OwnMetrics, granted: Granted, tasks: &TaskGroup) {
    let Parts { guest, harvester, clock, health, metrics, notices, rotation, followed } = parts;
    if let Some(rotation) = rotation {
        let clusters = Clusters { guest: guest.clone(), harvester: harvester.clone() };
        tasks.spawn_until_stop(rotation.run(clusters));
    }
    let Settings { rules, addresses, nodes: duties, .. } = settings;
    let namespace = rules.namespace.clone();
    let initialises_nodes = duties.initialise || duties.follow_topology;
    let any = watcher::Config::default;
    let services: Cache<Service> = Cache::start(tasks, Api::all(guest.clone()), any());
    let nodes: Cache<Node> = Cache::start_trimmed(tasks, Api::all(guest.clone()), any(), trim_node);
    let objects: Cache<RawObject<LoadBalancer>> =
        Cache::start(tasks, Api::namespaced(harvester.clone(), &namespace), any());
    cluster_names::follow_objects(tasks, &rules, &objects, &services, &notices);
    own.follow_nodes(&nodes);
    let cluster = rules.cluster.chosen_name().map(str::to_owned);
    let looked_at = VmSettings { namespace: namespace.clone(), cluster, topology: settings.topology };
    let vms = GuestVms::start(tasks, &harvester, looked_at);
    let host_names = settings.host_names.then_some(&granted.harvester);
    vms.follow_nodes(tasks, &harvester, &nodes, host_names);

    let follows_nodes = initialises_nodes || settings.node_lifecycle;
    let outage =
        Outage::new(&namespace, &health, Checks { services: settings.services, nodes: follows_nodes });
    let listed = objects.clone();
    outage.follow(tasks, LOAD_BALANCERS, async move { listed.ready().await }, objects.watch_errors());
    for (kind, errors) in vms.watch_errors() {
        let listed = vms.clone();
        outage.follow(tasks, kind, async move { listed.ready().await }, errors);
    }
    let (into, read) = (outage.clone(), vms.clone());
    vms.on_change(move || into.set_read_by_name(read.are_read_by_name()));
    if let Some(followed) = followed {
        outage.follow_cloud_config(tasks, followed, &objects, &vms);
    }

    outage::follow_guest(tasks, &services, "services", health.readiness("guest services"));
    outage::follow_guest(tasks, &nodes, "nodes", health.readiness("guest nodes"));
    services.ready().await;
    nodes.ready().await;

    let capabilities = granted.guest;
    let recorder = |component: &str| Recorder::start(tasks, guest.clone(), component, clock, &capabilities);
    let register = |queue: QueueMetrics, name: &str, known_as: &'static str, controller: &'static str| {
        queue.register(&mut metrics.lock().expect("no panic while registering"), name);
        own.started(known_as, controller, queue);
    };
    cluster_names::suggest(&rules, &vms, &nodes, &notices);
    let announced = Announced::follow(&services, &objects);
    let instances =
        Arc::new(VmInstances::new(vms.clone(), outage.clone(), addresses, announced, nodes.clone()));
    if initialises_nodes {
        let (recorder, workers) = (recorder("cloud-node-controller"), settings.node_workers.max(1));
        let queue =
            NodeController::start(tasks, guest.clone(), &instances, &nodes, recorder, workers, duties);
        register(queue, "node", "Nodes", "cloud-node");
    }
    if settings.node_lifecycle {
        let recorder = recorder("cloud-node-lifecycle-controller");
        let (client, role) = (guest.clone(), GUEST_ROLE);
        let queue = NodeLifecycle::start(tasks, client, &instances, &nodes, recorder, &capabilities, role);
        register(queue, "node_lifecycle", "node_lifecycle", "cloud-node-lifecycle");
    }
    if settings.services {
        let recorder = recorder("service-controller");
        // the flag that switches the Go program's controller of topology and networks off
        let read = duties.follow_topology.then(|| vms.clone());
        let networks = Networks::start(tasks, guest.clone(), read, &nodes, &capabilities);
        let cloud =
            HarvesterLoadBalancers::new(rules, harvester, objects, services.clone(), vms, networks, outage);
        cloud.report_objects_without_service(tasks, guest.clone(), recorder.clone());
        let workers = settings.service_workers.map_or(SERVICE_WORKERS, NonZeroUsize::get);
        let queue =
            ServiceController::start(tasks, guest.clone(), &cloud, &services, &nodes, recorder, workers);
        register(queue, "service", "service", "service");
    }
}

/// Drops the parts of a Node that nobody here reads; the list of images is most of one.
fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
            for ready in conditions {
                *ready = NodeCondition {
                    status: take(&mut ready.status),
                    type_: take(&mut ready.type_),
                    ..NodeCondition::default()
                };
            }
        }
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}
