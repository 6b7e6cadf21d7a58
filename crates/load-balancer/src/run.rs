//! The controller as a library call: waits for the Lease, lists, imports, then reconciles until `tasks` ends.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use ::http::{HeaderValue, Request, header::USER_AGENT};
use controller_kit::{
    Cache, RawObject, Recorder,
    election::{self, Election, Identity},
};
use harvester_api::names;
use health_check::Dial;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, client::Body, runtime::watcher};
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, RightsMissing, Wanted},
    health::{Check, Health},
    http, serving,
};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
};

use crate::{
    Config,
    caches::Caches,
    controller::{Controller, RefusedWrites, SlicePace, StatusPace},
    fields,
    host_datapath::{HostDatapath, host_addresses::HostAddresses, vips::Vips},
    import::{self, Import},
    metrics::{self, Leading},
    pool::{Orders, Orphans, PoolIndex, PoolWaiters, Writers, controller::PoolController},
    record_gc::RecordGc,
    rights, stored_versions,
    vms::{self, VmWatch},
    wiring::{Queues, Wiring},
};

/// The parts that the process gives to the controller.
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
    /// The socket of health and metrics, if the process serves them.
    pub metrics: Option<TcpListener>,
    /// Receives our checks.
    pub health: Health,
}

/// The longest that a start waits for answers about rights, and then for the Nodes: an API server asks others about what its
/// roles do not grant, and an address should not wait for those.
pub(crate) const KNOWN_WITHIN: Duration = Duration::from_secs(5);

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

/// Why the controller ended before `tasks` did.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Election(#[from] election::Error),
    #[error("serve metrics at {address}")]
    Metrics { address: SocketAddr, source: std::io::Error },
}

/// Runs until `tasks` ends. Without `times` there is no election: it works at once, and another process beside it that does
/// so too is kept off its addresses by the versions of the pools alone.
///
/// # Errors
/// When the Lease was lost: everything has stopped, and the process should end.
pub async fn run(
    parts: Parts,
    times: impl Into<Option<ElectionTimes>>,
    config: Config,
    tasks: TaskGroup,
) -> Result<(), Error> {
    let Parts { client, clock, dial, seed, identity, metrics, health } = parts;
    let client = named(client);
    let registry = Arc::new(Mutex::new(Registry::with_prefix("harvester_load_balancer")));
    if let Some(listener) = metrics {
        serving::http_on(&tasks, listener, http::router(health.clone(), registry.clone()));
    }
    let leading = metrics::leading(&mut registry.lock().expect("no panic while registering metrics"));
    let times: Option<ElectionTimes> = times.into();
    let needs = rights::needs(times.is_some());
    let wanted = Wanted { rights: needs.rights(), fields: fields::OPTIONAL_FIELDS.to_vec() };
    let capabilities = Capabilities::start(&tasks, client.clone(), wanted);
    let missing = RightsMissing::default();
    missing.register(&mut registry.lock().expect("no panic while registering metrics"), rights::METRIC);
    capabilities.tell_missing(needs, missing, |line| tracing::warn!("{line}"));
    // a candidate has nothing to list
    let lists = health.readiness("lists");
    lists.pass();
    let inner = tasks.child();
    let Some(ElectionTimes { lease, renew_deadline, retry_period }) = times else {
        let parts =
            Start { client, clock, dial, seed, config, capabilities, lists, leading, registry: &registry };
        if tasks.stop.run_until_cancelled(Box::pin(start(parts, &inner))).await.is_some() {
            tasks.stop.cancelled().await;
        }
        inner.end().await;
        return Ok(());
    };
    let election = Election {
        namespace: names::KUBE_SYSTEM.to_owned(),
        name: names::LOAD_BALANCER_LEASE.to_owned(),
        identity,
        lease,
        renew_deadline,
        retry_period,
        health: health.clone(),
    };
    let lead = election::lead(client.clone(), election, clock, &tasks, |leadership| {
        let (inner, stop) = (inner.clone(), tasks.stop.clone());
        async move {
            let client = leadership.client(client);
            let parts = Start {
                client,
                clock,
                dial,
                seed,
                config,
                capabilities,
                lists,
                leading,
                registry: &registry,
            };
            if stop.run_until_cancelled(start(parts, &inner)).await.is_some() {
                stop.cancelled().await;
            }
            inner.end().await;
        }
    });
    let outcome = Box::pin(lead).await;
    inner.end().await;
    Ok(outcome?)
}

/// The client under our name, which tells our records from those of other programs (see `record_gc`).
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

/// The parts that the leader starts with.
struct Start<'a> {
    client: Client,
    clock: Clock,
    dial: Dial,
    seed: u64,
    config: Config,
    capabilities: Capabilities,
    /// Fails while a list is missing or not kept up to date.
    lists: Check,
    leading: Leading,
    registry: &'a Mutex<Registry>,
}

async fn start(parts: Start<'_>, tasks: &TaskGroup) {
    let Start { client, clock, dial, seed, config, capabilities, lists, leading, registry } = parts;
    lists.fail("not complete yet");
    let caches = Caches::watch(tasks, &client);
    let at_work = watch::Sender::new(false);
    tasks.spawn_until_stop(caches.clone().report(lists, at_work.subscribe()));
    let import_map =
        watcher::Config::default().fields(&format!("metadata.name={}", names::KUBEVIP_CONFIG_MAP));
    let config_maps: Cache<RawObject<ConfigMap>> =
        Cache::start(tasks, Api::namespaced(client.clone(), names::KUBE_SYSTEM), import_map);
    // all begin at once, and no address is claimed before each has ended
    let (host, (), (), ()) = tokio::join!(
        HostAddresses::watch(tasks, &client, capabilities.clone()),
        caches.ready(),
        capabilities.fields_known(),
        to_import(&capabilities, &config_maps),
    );
    fields::tell_missing(&capabilities, |line| tracing::warn!("{line}"));

    let queues = Queues::default();
    leading.set(1);
    queues.register(&mut registry.lock().expect("no panic while registering metrics"));
    // before all other subscribers: a controller that a change wakes finds the change in the index
    let index = PoolIndex::follow(&caches);
    let orphans = Orphans::counted_by(queues.metrics.orphans.clone());
    let writers = Writers::new(client.clone(), clock, tasks.clone(), &caches, index.clone(), orphans.clone());
    let orders = Orders::new(writers.clone(), queues.load_balancers.clone());
    let waiters = PoolWaiters::default();
    let recorder = Recorder::start(tasks, client.clone(), names::LOAD_BALANCER_LEASE, clock, &capabilities);
    tasks.spawn_until_stop(stored_versions::tell(client.clone(), recorder.clone()));
    let import = Arc::new(Import {
        client: client.clone(),
        recorder: recorder.clone(),
        config_maps: config_maps.clone(),
        pools: caches.pools.clone(),
        load_balancers: caches.load_balancers.clone(),
        writers: writers.clone(),
    });
    // before the first claim: holders find the addresses that they had in the history
    if let Err(error) = import.reconcile().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "will be tried again");
        queues.imports.add(import::key());
    }
    let vips = Vips::follow(&caches, &index, host, &queues.load_balancers);
    let (dummy_endpoint, pool_choice) = (config.dummy_endpoint, config.pool_choice);
    let workers = config.workers;
    let datapath = HostDatapath::start(tasks, dial, seed, config, &caches, vips, &queues);
    let wiring = Wiring {
        caches: &caches,
        queues: &queues,
        config_maps: &config_maps,
        capabilities: &capabilities,
        waiters: &waiters,
        writers: &writers,
        orders: &orders,
        orphans: &orphans,
        index: &index,
    };
    wiring.connect();
    let controller = Controller {
        client: client.clone(),
        clock,
        recorder: recorder.clone(),
        capabilities,
        vm_watch: VmWatch::start(tasks, &caches, &queues.load_balancers),
        index,
        orders,
        waiters,
        orphans,
        datapath,
        pools: queues.pools.clone(),
        records: queues.records.clone(),
        dummy_endpoint,
        pool_choice,
        status_pace: StatusPace::default(),
        slice_pace: SlicePace::default(),
        refused_writes: RefusedWrites::default(),
        metrics: queues.metrics.clone(),
        caches: caches.clone(),
    };
    let pool_controller = PoolController {
        client: client.clone(),
        recorder: recorder.clone(),
        pools: caches.pools.clone(),
        writers: writers.clone(),
        clock,
    };
    let record_gc = RecordGc::new(client.clone(), recorder, &caches, writers, queues.metrics.clone());
    work(tasks, workers, &queues, controller, pool_controller, record_gc, import);
    work_on_vms(tasks, &queues, &client, &caches);
    at_work.send_replace(true);
    tracing::info!(
        load_balancers = caches.load_balancers.list().len(),
        pools = caches.pools.list().len(),
        "at work"
    );
}

/// Until it is known which rights there are, and the ConfigMaps are listed: whoever may not list them imports none, and gives
/// addresses.
async fn to_import(capabilities: &Capabilities, config_maps: &Cache<RawObject<ConfigMap>>) {
    if tokio::time::timeout(KNOWN_WITHIN, capabilities.rights_known()).await.is_err() {
        tracing::warn!(
            "the API server does not say which rights there are: those that it has not told count as granted"
        );
    }
    let changed = Arc::new(Notify::new());
    let told = changed.clone();
    capabilities.on_change(move || told.notify_one());
    let is_refused = async {
        while capabilities.allows(&rights::LIST_CONFIG_MAPS) {
            changed.notified().await;
        }
    };
    tokio::select! {
        () = config_maps.ready() => {}
        () = is_refused => {}
    }
}

fn work(
    tasks: &TaskGroup,
    workers: usize,
    queues: &Queues,
    controller: Controller,
    pool_controller: PoolController,
    record_gc: RecordGc,
    import: Arc<Import>,
) {
    let (controller, pool_controller) = (Arc::new(controller), Arc::new(pool_controller));
    let record_gc = Arc::new(record_gc);
    queues.load_balancers.run(tasks, workers, move |key| {
        let controller = controller.clone();
        async move { controller.reconcile(key).await }
    });
    queues.pools.run(tasks, workers, move |key| {
        let controller = pool_controller.clone();
        async move { controller.reconcile(key).await }
    });
    queues.records.run(tasks, workers, move |key| {
        let record_gc = record_gc.clone();
        async move { record_gc.reconcile(key).await }
    });
    queues.imports.run(tasks, 1, move |_| {
        let import = import.clone();
        async move { import.reconcile().await }
    });
}

/// Taking old finalizers off a few thousand VMs is no hurry.
const VM_WORKERS: usize = 2;

fn work_on_vms(tasks: &TaskGroup, queues: &Queues, client: &Client, caches: &Caches) {
    let (used, vms) = (client.clone(), caches.vms.clone());
    queues
        .vms
        .run(tasks, VM_WORKERS, move |key| vms::finalizers::reconcile_vm(used.clone(), vms.clone(), key));
    let (used, vmis) = (client.clone(), caches.vmis.clone());
    queues
        .vmis
        .run(tasks, VM_WORKERS, move |key| vms::finalizers::reconcile_vmi(used.clone(), vmis.clone(), key));
    let (used, load_balancers) = (client.clone(), caches.load_balancers.clone());
    queues.removed_clusters.run(tasks, 1, move |key| {
        vms::removed_clusters::reconcile_removed_cluster(used.clone(), load_balancers.clone(), key)
    });
}
