//! The programs as library calls, with settings in place of flags.

use std::sync::Arc;
use std::time::Duration;

use ::program::{Clock, TaskGroup, health::Health};
use cloud_controller_manager::cluster::GuestCluster;
use cloud_controller_manager::datapath::{AllowedDatapaths, Policy};
use cloud_controller_manager::load_balancers::ServiceSettings;
use cloud_controller_manager::requested::Aliases;
use cloud_controller_manager::{AddressRules, TopologyLabels};
use cloud_controller_manager::{ElectionSettings, Settings};
use cloud_provider::Duties;
use futures::future::BoxFuture;
use futures::{FutureExt as _, TryFutureExt as _};
use health_check::{Dial, DialError};
use kube::Client;
use load_balancer::{ElectionTimes, PoolChoice};
use load_balancer_webhook as webhook;
use sim_harvester::SimHarvester;
use test_cluster::{TestCluster, User};

use crate::process::Process;
use crate::webhook_endpoint::WebhookEndpoint;

/// Namespace and Service of the webhook.
const WEBHOOK: (&str, &str) = ("harvester-system", "harvester-load-balancer-webhook");
const STATUS_WRITER: &str = "system:serviceaccount:harvester-system:harvester-load-balancer";

/// A program of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    LoadBalancer,
    CloudControllerManager,
    Webhook,
}

/// The clients of the programs, each with the program's rights, and their settings.
#[derive(Clone)]
pub(crate) struct Environment {
    load_balancer: Client,
    guest: Client,
    harvester: Client,
    webhook: Client,
    /// The endpoint of the webhook, if there is one.
    endpoint: Option<WebhookEndpoint>,
    dial: Dial,
    clock: Clock,
    cluster: String,
    vm_namespace: String,
    pool_choice: PoolChoice,
}

impl Environment {
    /// `falls_over`: the load balancer passes over a full pool.
    pub(crate) fn new(cluster: &TestCluster, simulation: &SimHarvester, falls_over: bool) -> Self {
        let simulation = simulation.clone();
        let dial: Dial =
            Arc::new(move |probe| simulation.dial(probe.address).map_err(DialError::from).boxed());
        let guest = cluster.guest_cluster();
        Self {
            load_balancer: cluster.harvester.client(User::LoadBalancer),
            guest: cluster.guest.client(User::CloudControllerManager),
            harvester: cluster.harvester.client(User::CloudControllerManager),
            webhook: cluster.harvester.client(User::Webhook),
            endpoint: None,
            dial,
            clock: Clock::starting_at(cluster.start()),
            cluster: guest.name.clone(),
            vm_namespace: guest.vm_namespace.clone(),
            pool_choice: PoolChoice { fall_over_when_full: falls_over, ..PoolChoice::default() },
        }
    }

    /// Adds the admission webhook.
    pub(crate) fn with_webhook(self, cluster: &TestCluster) -> Self {
        let endpoint = WebhookEndpoint::default();
        let (namespace, name) = WEBHOOK;
        let server = cluster.harvester.simulated().expect("a schedule runs on simulated servers");
        let at_endpoint = endpoint.clone();
        server.webhook(
            namespace,
            name,
            tower::service_fn(move |request| at_endpoint.clone().answer(request)),
        );
        Self { endpoint: Some(endpoint), ..self }
    }

    pub(super) fn has_webhook(&self) -> bool {
        self.endpoint.is_some()
    }
}

/// Runs the program from its start to its end.
pub(super) fn start(
    program: Program,
    environment: &Environment,
    process: &Process,
    identity: String,
    seed: u64,
    tasks: &TaskGroup,
) -> BoxFuture<'static, ()> {
    let (environment, process, tasks) = (environment.clone(), process.clone(), tasks.clone());
    match program {
        Program::LoadBalancer => load_balancer(environment, process, identity, seed, tasks).boxed(),
        Program::CloudControllerManager => {
            cloud_controller_manager(environment, process, identity, tasks).boxed()
        }
        Program::Webhook => admission(environment, process, tasks).boxed(),
    }
}

async fn load_balancer(
    environment: Environment,
    process: Process,
    identity: String,
    seed: u64,
    tasks: TaskGroup,
) {
    let parts = load_balancer::Parts {
        client: process.client(environment.load_balancer),
        clock: environment.clock,
        dial: environment.dial,
        seed,
        identity: identity.into(),
        metrics: None,
        health: Health::default(),
    };
    let seconds = Duration::from_secs;
    let times = ElectionTimes { lease: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) };
    let pool_choice = environment.pool_choice;
    let config = load_balancer::Config { workers: 8, pool_choice, ..load_balancer::Config::default() };
    if let Err(error) = load_balancer::run(parts, times, config, tasks).await {
        tracing::info!(error = &error as &dyn std::error::Error, "ends");
    }
}

async fn cloud_controller_manager(
    environment: Environment,
    process: Process,
    identity: String,
    tasks: TaskGroup,
) {
    let (guest, harvester) = (process.client(environment.guest), process.client(environment.harvester));
    let parts = cloud_controller_manager::Parts::new(guest, harvester, environment.clock);
    let settings = Settings {
        rules: ServiceSettings {
            cluster: GuestCluster::new(&environment.cluster),
            namespace: environment.vm_namespace,
            management_network: None,
            policy: Policy::Annotation,
            allowed: AllowedDatapaths::default(),
            restrict_sharing: false,
            aliases: Aliases::default(),
        },
        addresses: AddressRules::default(),
        topology: TopologyLabels::new(),
        election: Some(ElectionSettings::usual(identity)),
        services: true,
        host_names: true,
        nodes: Duties { initialise: true, follow_topology: true },
        node_lifecycle: true,
        service_workers: None,
        node_workers: 1,
    };
    if let Err(error) = cloud_controller_manager::run(parts, settings, &tasks).await {
        tracing::info!(error = &error as &dyn std::error::Error, "ends");
    }
}

async fn admission(environment: Environment, process: Process, tasks: TaskGroup) {
    let Some(endpoint) = environment.endpoint else { return };
    let config = webhook::Config {
        namespace: WEBHOOK.0.to_owned(),
        policy: webhook::Policy { status_writer: STATUS_WRITER.to_owned(), ..webhook::Policy::default() },
        address: webhook::Address::Service,
    };
    match webhook::prepare(
        process.client(environment.webhook),
        environment.clock,
        config,
        &webhook::Metrics::default(),
        &tasks,
    )
    .await
    {
        Ok((router, _)) => {
            endpoint.serve(process, router);
            tasks.stop.cancelled().await;
        }
        Err(error) => tracing::info!(error = &error as &dyn std::error::Error, "ends"),
    }
}
