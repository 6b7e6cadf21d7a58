//! The programs of a run: two load balancers and two cloud controller managers, one leader each, and in some runs the
//! admission webhook. A program that dies or loses its Lease starts again under another identity.

mod program;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::program::TaskGroup;
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::program::start;
pub(crate) use self::program::{Environment, Program};
use crate::conditions::UnconditionalWrites;
use crate::process::{CrashPlan, CrashPoint, LateCreations, Process};

/// Replicas of each program that has a Lease.
const REPLICAS: usize = 2;
/// A program starts again within this time.
const RESTART_WITHIN: Duration = Duration::from_secs(20);

/// All programs.
#[derive(Debug)]
pub(crate) struct System {
    replicas: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// State that all replicas share.
#[derive(Debug)]
struct Shared {
    crashes: Mutex<Crashes>,
    end: CancellationToken,
    deaths: AtomicUsize,
    late: LateCreations,
    unconditional: UnconditionalWrites,
}

/// The crash plans of the processes.
#[derive(Debug)]
enum Crashes {
    /// Each process draws its own plan. These are drawn.
    Drawn(Vec<CrashPlan>),
    /// All processes of this program share one plan; the others have none.
    Planned(Program, CrashPlan),
    /// No process dies any more.
    Over,
}

impl System {
    /// Starts all programs; each process draws its crash plan.
    pub(crate) fn start(environment: &Environment, random: &mut fastrand::Rng) -> Self {
        Self::under(Crashes::Drawn(vec![]), environment, random)
    }

    /// Starts all programs; [`System::crash_next`] says when one of `program` is interrupted.
    pub(crate) fn start_planned(
        program: Program,
        environment: &Environment,
        random: &mut fastrand::Rng,
    ) -> Self {
        Self::under(Crashes::Planned(program, CrashPlan::default()), environment, random)
    }

    fn under(crashes: Crashes, environment: &Environment, random: &mut fastrand::Rng) -> Self {
        let shared = Arc::new(Shared {
            crashes: Mutex::new(crashes),
            end: CancellationToken::new(),
            deaths: AtomicUsize::new(0),
            late: LateCreations::default(),
            unconditional: UnconditionalWrites::default(),
        });
        let with_lease = [Program::LoadBalancer, Program::CloudControllerManager];
        let replicas =
            with_lease.into_iter().flat_map(|program| (0..REPLICAS).map(move |index| (program, index)));
        let replicas = replicas
            .chain(environment.has_webhook().then_some((Program::Webhook, 0)))
            .map(|(program, index)| {
                let (environment, shared, random) = (environment.clone(), shared.clone(), random.fork());
                tokio::spawn(keep_running(program, index, environment, shared, random))
            })
            .collect();
        Self { replicas, shared }
    }

    /// The planned program is interrupted at this point, counted from now on.
    ///
    /// # Panics
    /// Where the crashes are drawn.
    pub(crate) fn crash_next(&self, point: CrashPoint) {
        match &*self.shared.crashes() {
            Crashes::Planned(_, plan) => plan.push(point),
            crashes => panic!("no crash can be planned: {crashes:?}"),
        }
    }

    /// No process is interrupted any more.
    pub(crate) fn end_crashes(&self) {
        let crashes = std::mem::replace(&mut *self.shared.crashes(), Crashes::Over);
        match crashes {
            Crashes::Drawn(plans) => plans.iter().for_each(CrashPlan::clear),
            Crashes::Planned(_, plan) => plan.clear(),
            Crashes::Over => {}
        }
    }

    /// Whether every planned crash has happened.
    pub(crate) fn has_crashed(&self) -> bool {
        matches!(&*self.shared.crashes(), Crashes::Planned(_, plan) if plan.is_empty())
    }

    /// The objects that stopped programs created after they went on.
    pub(crate) fn late_creations(&self) -> LateCreations {
        self.shared.late.clone()
    }

    /// Ends all programs, as SIGTERM does. Returns the number of processes that had died before.
    ///
    /// # Panics
    /// When a program sent a write that is for no particular version or object.
    pub(crate) async fn end(self) -> usize {
        self.shared.end.cancel();
        for ended in join_all(self.replicas).await {
            ended.expect("no program panics");
        }
        self.shared.unconditional.must_be_none();
        self.shared.deaths.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn crashes(&self) -> MutexGuard<'_, Crashes> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, program: Program, name: &str, random: &mut fastrand::Rng) -> Process {
        let plan = match &mut *self.crashes() {
            Crashes::Drawn(all) => {
                let plan = CrashPlan::drawn(random);
                all.push(plan.clone());
                plan
            }
            Crashes::Planned(of, plan) if *of == program => plan.clone(),
            Crashes::Planned(..) | Crashes::Over => CrashPlan::default(),
        };
        Process::new(name, plan, self.late.clone(), self.unconditional.clone())
    }
}

/// Runs one replica, and starts it again each time it ends.
async fn keep_running(
    program: Program,
    index: usize,
    environment: Environment,
    shared: Arc<Shared>,
    mut random: fastrand::Rng,
) {
    for incarnation in 0.. {
        let identity = format!("{program:?}-{index}-{incarnation}");
        let process = shared.process(program, &identity, &mut random);
        let tasks = TaskGroup::new();
        let mut running =
            tokio::spawn(start(program, &environment, &process, identity.clone(), random.u64(..), &tasks));
        tokio::select! {
            biased;
            () = shared.end.cancelled() => {
                tasks.end().await;
                running.await.expect("the program ends without a panic");
                return;
            }
            () = process.died() => {
                tracing::info!(identity, "dies");
                shared.deaths.fetch_add(1, Ordering::Relaxed);
                running.abort();
            }
            // the program lost its Lease: its requests under way end with the process
            ended = &mut running => ended.expect("the program ends without a panic"),
        }
        process.die();
        tasks.stop.cancel();
        let wait = RESTART_WITHIN.mul_f64(random.f64());
        shared.end.run_until_cancelled(sleep(wait)).await;
    }
}
