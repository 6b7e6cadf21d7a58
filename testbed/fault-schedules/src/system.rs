//! The programs: two load balancers and two cloud controller managers, of which one each leads, and in some runs the
//! admission webhook. One that died or lost its Lease is started again, under another identity.

mod program;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::program::TaskGroup;
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::program::start;
pub(crate) use self::program::{Program, World};
use crate::process::{Fate, Fates, LateMakings, Process};

/// So many of each program that has a Lease.
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
#[derive(Debug)]
struct Sky {
    fortune: Mutex<Fortune>,
    end: CancellationToken,
    deaths: AtomicUsize,
    late: LateMakings,
}

/// What comes over those who start.
#[derive(Debug)]
enum Fortune {
    /// Fates that are drawn. These were.
    Drawn(Vec<Fates>),
    /// One fate for whichever of this program comes first, and nothing for others.
    Waiting(Program, Fates),
    /// Nothing.
    Good,
}

impl System {
    /// Starts everybody, under fates that are drawn for each.
    pub(crate) fn start(world: &World, random: &mut fastrand::Rng) -> Self {
        Self::under(Fortune::Drawn(vec![]), world, random)
    }

    /// Starts everybody; only one fate waits, for the first of `program` that it fits.
    pub(crate) fn with_one_fate(
        program: Program,
        fate: Fate,
        world: &World,
        random: &mut fastrand::Rng,
    ) -> Self {
        Self::under(Fortune::Waiting(program, Fates::one(fate)), world, random)
    }

    fn under(fortune: Fortune, world: &World, random: &mut fastrand::Rng) -> Self {
        let sky = Arc::new(Sky {
            fortune: Mutex::new(fortune),
            end: CancellationToken::new(),
            deaths: AtomicUsize::new(0),
            late: LateMakings::default(),
        });
        let with_lease = [Program::LoadBalancer, Program::CloudControllerManager];
        let replicas =
            with_lease.into_iter().flat_map(|program| (0..REPLICAS).map(move |index| (program, index)));
        let replicas = replicas
            .chain(world.has_webhook().then_some((Program::Webhook, 0)))
            .map(|(program, index)| {
                let (world, sky, random) = (world.clone(), sky.clone(), random.fork());
                tokio::spawn(keep(program, index, world, sky, random))
            })
            .collect();
        Self { replicas, sky }
    }

    /// Nothing comes over anybody any more.
    pub(crate) fn calm(&self) {
        let fortune = std::mem::replace(&mut *self.sky.fortune(), Fortune::Good);
        match fortune {
            Fortune::Drawn(fates) => fates.iter().for_each(Fates::clear),
            Fortune::Waiting(_, fates) => fates.clear(),
            Fortune::Good => {}
        }
    }

    /// Whether the one fate has come over somebody.
    pub(crate) fn fate_is_met(&self) -> bool {
        matches!(&*self.sky.fortune(), Fortune::Waiting(_, fates) if fates.is_empty())
    }

    /// How many LoadBalancers stopped programs made when they went on.
    pub(crate) fn late_makings(&self) -> usize {
        self.sky.late.count()
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
    fn fortune(&self) -> std::sync::MutexGuard<'_, Fortune> {
        self.fortune.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, program: Program, name: &str, random: &mut fastrand::Rng) -> Process {
        let fates = match &mut *self.fortune() {
            Fortune::Drawn(all) => {
                let fates = Fates::drawn(random);
                all.push(fates.clone());
                fates
            }
            Fortune::Waiting(whose, fates) if *whose == program => fates.clone(),
            Fortune::Waiting(..) | Fortune::Good => Fates::default(),
        };
        Process::new(name, fates, self.late.clone())
    }
}

async fn keep(program: Program, index: usize, world: World, sky: Arc<Sky>, mut random: fastrand::Rng) {
    for incarnation in 0.. {
        let identity = format!("{program:?}-{index}-{incarnation}");
        let process = sky.process(program, &identity, &mut random);
        let tasks = TaskGroup::new();
        let mut running =
            tokio::spawn(start(program, &world, &process, identity.clone(), random.u64(..), &tasks));
        tokio::select! {
            biased;
            () = sky.end.cancelled() => {
                tasks.end().await;
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
        tasks.stop.cancel();
        let wait = RESTART_WITHIN.mul_f64(random.f64());
        sky.end.run_until_cancelled(sleep(wait)).await;
    }
}
