//! The processes of the controller service, and the way of a call to one of them.

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use csi_driver::{
    attach::{self, Attacher},
    calls::{Calls, Observed},
    controller::{ControllerService, Settings},
    csi::controller_server::ControllerServer,
    healing::lead::{self, Candidate},
    host::Host,
    leading::Leading,
    node_id::OwnMachine,
    node_monitor::NodeMonitor,
};
use futures::future::join_all;
use kube::Client;
use program::{Clock, TaskGroup};
use sim_sidecars::Plugin;
use test_cluster::{TestCluster, User};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, codegen::http, service::Routes};
use tower::ServiceExt as _;

use super::invariants::Watch;
use crate::{
    cluster_setup::VMS,
    conditions::UnconditionalWrites,
    process::{CrashPlan, CrashPoint, Interruption, LateCreations, Process},
};

const REPLICAS: usize = 2;
/// A process starts again within this time.
const RESTART_WITHIN: Duration = Duration::from_secs(20);
/// A caller that goes away does so within this time.
const GONE_WITHIN: u64 = 6_000;

/// All processes. Clones are the same.
#[derive(Clone)]
pub(super) struct Controllers(Arc<Shared>);

struct Shared {
    environment: Environment,
    /// What the processes serve; nothing while one is dead.
    serving: [Mutex<Option<Serving>>; REPLICAS],
    random: Mutex<fastrand::Rng>,
    has_faults: AtomicBool,
    plans: Mutex<Vec<CrashPlan>>,
    late: LateCreations,
    unconditional: UnconditionalWrites,
    end: CancellationToken,
    deaths: AtomicUsize,
    running: Mutex<Vec<JoinHandle<()>>>,
}

struct Environment {
    guest: Client,
    harvester: Client,
    namespace: String,
    clock: Clock,
}

#[derive(Clone)]
struct Serving {
    process: Process,
    service: Observed<Routes>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Well,
    Refused,
    AnswerLost,
    CallerGone(Duration),
    Late(Duration),
}

impl Controllers {
    pub(super) fn start(cluster: &TestCluster, watch: &Watch, random: &mut fastrand::Rng) -> Self {
        let environment = Environment {
            guest: cluster.guest.client(User::CsiDriver),
            harvester: watch.client(cluster.harvester.client(User::CsiDriver)),
            namespace: cluster.guest_cluster().vm_namespace.clone(),
            clock: Clock::starting_at(cluster.start()),
        };
        let shared = Arc::new(Shared {
            environment,
            serving: Default::default(),
            random: Mutex::new(random.fork()),
            has_faults: true.into(),
            plans: Mutex::default(),
            late: LateCreations::default(),
            unconditional: UnconditionalWrites::default(),
            end: CancellationToken::new(),
            deaths: AtomicUsize::new(0),
            running: Mutex::default(),
        });
        let running =
            (0..REPLICAS).map(|index| tokio::spawn(keep_running(index, shared.clone(), random.fork())));
        *lock(&shared.running) = running.collect();
        Self(shared)
    }

    /// The way of the sidecars.
    pub(super) fn plugin(&self) -> Plugin {
        let shared = self.0.clone();
        Plugin::of(tower::service_fn(move |request| {
            let shared = shared.clone();
            async move { shared.call(request).await }
        }))
    }

    /// No process is interrupted any more, and no call fails by itself.
    pub(super) fn end_faults(&self) {
        self.0.has_faults.store(false, Ordering::Relaxed);
        lock(&self.0.plans).iter().for_each(CrashPlan::clear);
    }

    /// Names of the claims that stopped processes created after they went on. A POST carries no condition, so it may
    /// make the claim of a volume that another process has made and deleted meanwhile.
    pub(super) fn late_claims(&self) -> BTreeSet<String> {
        self.0.late.of("persistentvolumeclaims").into_iter().map(|key| key.name).collect()
    }

    /// Names of the claims that stopped processes patched after they went on. Another one may have answered meanwhile that the
    /// volume is nowhere, and has written nothing: then the annotation is there, and costs the next attachment a minute
    /// (docs/storage.md, What the driver writes on objects).
    pub(super) fn late_annotations(&self) -> BTreeSet<String> {
        self.0.late.patched("persistentvolumeclaims").into_iter().map(|key| key.name).collect()
    }

    /// Ends all processes, as SIGTERM does. Returns the number of those that had died before.
    ///
    /// # Panics
    /// When one sent a write that is for no particular version or object.
    pub(super) async fn end(self) -> usize {
        self.0.end.cancel();
        let running = std::mem::take(&mut *lock(&self.0.running));
        for ended in join_all(running).await {
            ended.expect("no process panics");
        }
        self.0.unconditional.must_be_none();
        self.0.deaths.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn call(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let lost = |why: &str| Status::unavailable(format!("connection error: {why}"));
        let (first, fate) = self.drawn();
        tracing::debug!(path = request.uri().path(), first, ?fate, "call");
        let order = [first, (first + 1) % REPLICAS];
        let serving = order.iter().find_map(|index| lock(&self.serving[*index]).clone());
        let Some(Serving { process, service }) = serving else { return Err(lost("nobody listens")) };
        match fate {
            Fate::Refused => return Err(lost("refused")),
            Fate::Late(time) => sleep(time).await,
            Fate::Well | Fate::AnswerLost | Fate::CallerGone(_) => {}
        }
        let answer = async {
            process.goes_on().await;
            let answer = process.run_until_dead(service.oneshot(request)).await;
            process.goes_on().await;
            answer
        };
        let answer = match fate {
            Fate::CallerGone(time) => {
                timeout(time, answer).await.map_err(|_| lost("the caller went away"))?
            }
            _ => answer.await,
        };
        match answer {
            None => Err(lost("the process died")),
            Some(_) if fate == Fate::AnswerLost => Err(lost("reset")),
            Some(Ok(answer)) => Ok(answer),
            Some(Err(never)) => match never {},
        }
    }

    /// Which process is called, and how that ends.
    fn drawn(&self) -> (usize, Fate) {
        if !self.has_faults.load(Ordering::Relaxed) {
            return (0, Fate::Well);
        }
        let mut random = lock(&self.random);
        let time = Duration::from_millis(random.u64(..GONE_WITHIN));
        let fate = match random.u8(..100) {
            0..5 => Fate::Refused,
            5..10 => Fate::AnswerLost,
            10..16 => Fate::CallerGone(time),
            16..22 => Fate::Late(time),
            _ => Fate::Well,
        };
        (random.usize(..REPLICAS), fate)
    }

    /// Ends at the moment at which somebody kills a process that has met none of its interruptions, between any requests.
    async fn killed(&self, random: &mut fastrand::Rng) {
        sleep(Duration::from_secs(random.u64(30..150))).await;
        if !self.has_faults.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    }

    /// A process whose interruptions come at writes of every kind, most of them at those that move volumes.
    fn process(&self, name: &str, random: &mut fastrand::Rng) -> Process {
        let plan = CrashPlan::default();
        if self.has_faults.load(Ordering::Relaxed) {
            for _ in 0..random.u32(..3) {
                plan.push(point(random, |random| {
                    Interruption::Stop(Duration::from_millis(random.u64(1_000..90_000)))
                }));
            }
            plan.push(point(random, |random| {
                if random.bool() { Interruption::DieAfter } else { Interruption::DieBefore }
            }));
            lock(&self.plans).push(plan.clone());
        }
        Process::new(name, plan, self.late.clone(), self.unconditional.clone())
    }
}

fn point(random: &mut fastrand::Rng, how: impl Fn(&mut fastrand::Rng) -> Interruption) -> CrashPoint {
    let (plural, within) = match random.u8(..6) {
        0 => ("", 60),
        1 | 2 => ("virtualmachines", 4),
        3 => ("volumeattachments", 2),
        _ => ("persistentvolumeclaims", 8),
    };
    CrashPoint { writes: random.u32(..within), plural, interruption: how(random) }
}

/// Runs one process, and starts it again each time it dies.
async fn keep_running(index: usize, shared: Arc<Shared>, mut random: fastrand::Rng) {
    for incarnation in 0.. {
        let name = format!("controller-{index}-{incarnation}");
        let process = shared.process(&name, &mut random);
        let tasks = TaskGroup::new();
        let (serving, _kept) = start(index, &name, &process, &shared.environment, &tasks);
        *lock(&shared.serving[index]) = Some(serving);
        tokio::select! {
            biased;
            () = shared.end.cancelled() => {
                tasks.end().await;
                return;
            }
            () = process.died() => {}
            () = shared.killed(&mut random) => process.die(),
        }
        shared.deaths.fetch_add(1, Ordering::Relaxed);
        *lock(&shared.serving[index]) = None;
        tasks.stop.cancel();
        let wait = RESTART_WITHIN.mul_f64(random.f64());
        shared.end.run_until_cancelled(sleep(wait)).await;
    }
}

/// What would end the work if it were dropped.
type Kept = (watch::Sender<Arc<Attacher>>, watch::Sender<OwnMachine>, watch::Sender<Result<Host, String>>);

/// The controller's part of a process, as `csi_driver::run` puts it together.
fn start(
    index: usize,
    name: &str,
    process: &Process,
    environment: &Environment,
    tasks: &TaskGroup,
) -> (Serving, Kept) {
    let guest = process.client(environment.guest.clone());
    let host = Host::new(process.client(environment.harvester.clone()), environment.namespace.clone());
    let attaching = attach::Options::new(name);
    let called = attaching.called.subscribe();
    let attacher = Arc::new(Attacher::new(host.clone(), tasks, attaching));
    let service = ControllerService::new(host.clone(), Settings::default(), attacher.clone());
    let routes = Routes::new(ControllerServer::new(service)).prepare();
    let (attachers, attacher) = watch::channel(attacher);
    let (machines, machine) = watch::channel(OwnMachine::Confirmed(VMS[index].to_owned()));
    let (hosts, host) = watch::channel(Ok(host));
    let candidate = Candidate {
        guest: guest.clone(),
        clock: environment.clock,
        identity: name.to_owned(),
        called,
        attacher,
        leading: Leading::default(),
        credential: None,
    };
    let monitor = NodeMonitor {
        guest,
        host,
        node: String::new(),
        machine,
        identity: name.to_owned(),
        clock: environment.clock,
        leading: Leading::default(),
    };
    tasks.spawn(lead::stand(candidate, tasks.clone()));
    tasks.spawn(monitor.run(tasks.clone()));
    let service = Calls::new(tasks).of(routes);
    (Serving { process: process.clone(), service }, (attachers, machines, hosts))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
