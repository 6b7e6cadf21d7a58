//! The controller as a library call: waits for the Lease, lists, imports, then reconciles until it is told to stop.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::{HeaderValue, Request, header::USER_AGENT};
use controller_kit::{
    Cache, ObjectKey, RawObject, Recorder,
    election::{self, Election, Identity},
};
use harvester_api::{
    IPPool, LoadBalancer, VirtualMachine, VirtualMachineInstance, WorkloadType, annotations, labels, names,
};
use health_check::Dial;
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Service},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, client::Body, runtime::watcher};
use program::{Clock, TaskGroup, health::Health, http};
use prometheus_client::registry::Registry;
use serde_json::Map;
use tokio::net::TcpListener;

use crate::{
    balancer,
    context::{Caches, Config, Context},
    host_path::HostPath,
    import,
    insist::insist,
    machines, pool,
    sweep::Sweep,
    wiring::{self, Queues},
};

/// What the controller needs of the world.
pub struct Parts {
    /// With the rights of the load balancer.
    pub client: Client,
    pub clock: Clock,
    /// How health checks connect.
    pub dial: Dial,
    /// For jitter.
    pub seed: u64,
    /// Unique among all candidates for the Lease.
    pub identity: Identity,
    /// Where health and metrics are served, if at all.
    pub metrics: Option<TcpListener>,
    /// Receives our checks.
    pub health: Health,
}

/// How long a Lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTimes {
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Default for ElectionTimes {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease: seconds(45), renew_deadline: seconds(30), retry_period: seconds(2) }
    }
}

/// Why the controller ended though nobody told it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Election(#[from] election::Error),
    #[error("serve metrics at {address}")]
    Metrics { address: SocketAddr, source: std::io::Error },
}

/// Runs until `tasks` is told to stop.
///
/// # Errors
/// When the Lease was lost: everything has stopped, and the process should end.
pub async fn run(parts: Parts, times: ElectionTimes, config: Config, tasks: TaskGroup) -> Result<(), Error> {
    let Parts { client, clock, dial, seed, identity, metrics, health } = parts;
    let client = named(client);
    let ElectionTimes { lease, renew_deadline, retry_period } = times;
    let election = Election {
        namespace: names::KUBE_SYSTEM.to_owned(),
        name: names::LOAD_BALANCER_LEASE.to_owned(),
        identity,
        lease,
        renew_deadline,
        retry_period,
        health: health.clone(),
    };
    let registry = Arc::new(Mutex::new(Registry::with_prefix("harvester_load_balancer")));
    if let Some(listener) = metrics {
        http::serve(&tasks, listener, health, registry.clone());
    }
    let inner = tasks.child();
    let lead = election::lead(client.clone(), election, clock, &tasks, |leadership| {
        let (inner, stop) = (inner.clone(), tasks.stop.clone());
        async move {
            let client = leadership.client(client);
            if stop
                .run_until_cancelled(start(client, clock, dial, seed, config, &inner, &registry))
                .await
                .is_some()
            {
                stop.cancelled().await;
            }
            inner.end().await;
        }
    });
    let outcome = Box::pin(lead).await;
    inner.end().await;
    Ok(outcome?)
}

/// The client under our name, which tells our records from those of other programs (see [`crate::sweep`]).
fn named(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let name = HeaderValue::from_static(ip_pools::managers::OURS);
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().entry(USER_AGENT).or_insert_with(|| name.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

async fn start(
    client: Client,
    clock: Clock,
    dial: Dial,
    seed: u64,
    config: Config,
    tasks: &TaskGroup,
    registry: &Mutex<Registry>,
) {
    let caches = watch(tasks, &client);
    let import_map =
        watcher::Config::default().fields(&format!("metadata.name={}", names::KUBEVIP_CONFIG_MAP));
    let config_maps: Cache<RawObject<ConfigMap>> =
        Cache::start(tasks, Api::namespaced(client.clone(), names::KUBE_SYSTEM), import_map);
    tokio::join!(
        caches.pools.ready(),
        caches.balancers.ready(),
        caches.services.ready(),
        caches.slices.ready(),
        config_maps.ready(),
    );

    let queues = Queues::default();
    queues.register(&mut registry.lock().expect("no panic while registering metrics"));
    let host_path = HostPath::start(tasks, &client, dial, seed, queues.balancers.clone()).await;
    let cx = Arc::new(Context {
        backends_known: knows_backends(&client).await,
        pools: pool::Writers::new(
            client.clone(),
            clock,
            tasks.clone(),
            caches.pools.clone(),
            caches.balancers.clone(),
        ),
        recorder: Recorder::start(tasks, client.clone(), names::LOAD_BALANCER_LEASE, clock),
        queue: queues.balancers.clone(),
        waiting: pool::WaitingRoom::default(),
        machines_listed: AtomicBool::new(false),
        tasks: tasks.clone(),
        client,
        clock,
        config,
        caches,
        host_path,
    });

    // before anybody asks for an address: those who had one should find it remembered
    if let Err(error) = import::reconcile(cx.clone(), config_maps.clone()).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "will be tried again");
        queues.imports.add(import::key());
    }
    wiring::connect(&cx, &queues, &config_maps);
    work(&cx, &queues, config_maps, tasks);
    announce_machines(&cx, tasks);
    tracing::info!(
        balancers = cx.caches.balancers.list().len(),
        pools = cx.caches.pools.list().len(),
        backends_in_status = cx.backends_known,
        "at work"
    );
}

/// Watches all namespaces; what nobody reads of VMs is not kept.
fn watch(tasks: &TaskGroup, client: &Client) -> Caches {
    let any = watcher::Config::default;
    let ours = || any().labels(&format!("{}=true", labels::SERVICE_LB));
    let all = || client.clone();
    Caches {
        balancers: Cache::<RawObject<LoadBalancer>>::start(tasks, Api::all(all()), any()),
        pools: Cache::<RawObject<IPPool>>::start(tasks, Api::all(all()), any()),
        services: Cache::<RawObject<Service>>::start(tasks, Api::all(all()), ours()),
        slices: Cache::<RawObject<EndpointSlice>>::start(tasks, Api::all(all()), ours()),
        vmis: Cache::start_trimmed(tasks, Api::all(all()), any(), trim_vmi),
        vms: Cache::start_trimmed(tasks, Api::all(all()), any(), trim_vm),
    }
}

fn trim_vmi(vmi: &mut VirtualMachineInstance) {
    vmi.metadata.annotations = None;
    vmi.metadata.owner_references = None;
    vmi.spec.rest = Map::new();
    if let Some(status) = &mut vmi.status {
        status.rest = Map::new();
        status.conditions = Vec::new();
        status.migration_state = None;
        for interface in &mut status.interfaces {
            interface.rest = Map::new();
        }
    }
}

fn trim_vm(vm: &mut VirtualMachine) {
    vm.spec.rest = Map::new();
    vm.status = None;
    vm.metadata.owner_references = None;
    if let Some(all) = &mut vm.metadata.annotations {
        all.retain(|key, _| key == annotations::REMOVE_ALL_PVCS);
    }
}

/// Whether the CRD in this cluster has the field `status.backends`. Where it may not be read, it has not.
async fn knows_backends(client: &Client) -> bool {
    const NAME: &str = "loadbalancers.loadbalancer.harvesterhci.io";
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let crd = match insist("read the CRD of load balancers", || api.get_opt(NAME)).await {
        Ok(crd) => crd,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "may not read CRD {NAME}: no backends in status"
            );
            None
        }
    };
    let versions = crd.map(|crd| crd.spec.versions).unwrap_or_default();
    versions.into_iter().filter(|version| version.name == "v1beta1").any(|version| {
        let root = version.schema.and_then(|schema| schema.open_api_v3_schema);
        let status = root.and_then(|root| root.properties?.remove("status"));
        status.and_then(|status| status.properties).is_some_and(|fields| fields.contains_key("backends"))
    })
}

fn work(cx: &Arc<Context>, queues: &Queues, config_maps: Cache<RawObject<ConfigMap>>, tasks: &TaskGroup) {
    let workers = cx.config.workers;
    let on = |cx: &Arc<Context>| cx.clone();
    let (a, b, c, d, e, f, g) = (on(cx), on(cx), on(cx), on(cx), on(cx), on(cx), on(cx));
    let sweep = Arc::new(Sweep::new(queues.foreign.clone()));
    queues.balancers.run(tasks, workers, move |key| balancer::reconcile(a.clone(), key));
    queues.pools.run(tasks, workers, move |key| pool::controller::reconcile(b.clone(), key));
    queues.sweeps.run(tasks, 1, move |key| {
        let (sweep, cx) = (sweep.clone(), c.clone());
        async move { sweep.reconcile(cx, key).await }
    });
    queues.vms.run(tasks, MACHINE_WORKERS, move |key| machines::reconcile_vm(d.clone(), key));
    queues.vmis.run(tasks, MACHINE_WORKERS, move |key| machines::reconcile_vmi(e.clone(), key));
    queues.removed_clusters.run(tasks, 1, move |key| machines::reconcile_removed_cluster(f.clone(), key));
    queues.imports.run(tasks, 1, move |_| import::reconcile(g.clone(), config_maps.clone()));
}

/// Taking old finalizers off a few thousand machines is no hurry.
const MACHINE_WORKERS: usize = 2;

/// Objects with a host path begin when the machines are known; while those cannot be listed, they say so.
fn announce_machines(cx: &Arc<Context>, tasks: &TaskGroup) {
    let cx = cx.clone();
    tasks.spawn_until_stop(async move {
        let wake = || {
            let all = cx.caches.balancers.list();
            let of_machines = all.iter().filter(|lb| lb.spec.workload() == WorkloadType::Vm);
            of_machines.for_each(|lb| cx.queue.add(ObjectKey::of(&**lb)));
        };
        let (mut troubles, mut told) = (cx.caches.vmis.troubles(), None);
        loop {
            tokio::select! {
                () = cx.caches.vmis.ready() => break,
                trouble = troubles.wait_for(|trouble| *trouble != told) => {
                    told = trouble.expect("the cache holds the sender").clone();
                }
            }
            wake();
        }
        cx.machines_listed.store(true, Ordering::Release);
        wake();
    });
}
