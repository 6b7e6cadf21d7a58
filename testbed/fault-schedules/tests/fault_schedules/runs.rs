//! Seeds, each in a process of its own: the test binary runs one of its tests again.

use std::env;
use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::process::{Command, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use fault_schedules::Report;
use test_cluster::{TestCluster, on_simulated};
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::chance;

/// A run takes less than a second in a release build; a run that takes this long never ends.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// Seconds and thousandths since the process began, on the paused clock.
struct SchedulesTime;

impl FormatTime for SchedulesTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        write!(out, "{:8.3}", BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64())
    }
}

/// Requests, faults, deaths.
fn numbers(report: &str) -> [u64; 3] {
    let mut words = report.split_whitespace();
    [(); 3].map(|()| words.next().and_then(|word| word.parse().ok()).expect("a report has numbers"))
}

/// The runs of one kind of schedule.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    /// The test that makes one run.
    pub(crate) test: &'static str,
    /// The variable that tells it the seed.
    pub(crate) seed: &'static str,
}

type Run = Pin<Box<dyn Future<Output = Report>>>;

impl Runs {
    /// Makes the run of the seed that the variable names, prints its report and ends the process.
    pub(crate) fn one(self, run: impl FnOnce(u64, TestCluster) -> Run + Send + 'static) {
        if let Some(levels) = program::logging::given_levels() {
            let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_timer(SchedulesTime);
            tracing_subscriber::registry().with(levels).with(lines).init();
        }
        let seed = env::var(self.seed).map_or(0, |seed| seed.parse().expect("the seed is a number"));
        // a new thread has drawn no random number yet, with a log and without
        let run = thread::spawn(move || {
            chance::begin(seed);
            on_simulated(fault_schedules::rights(seed), async |cluster| {
                let Report { requests, faults, deaths } = run(seed, cluster).await;
                let mut digest = DefaultHasher::new();
                requests.iter().for_each(|request| format!("{request:?}").hash(&mut digest));
                println!("report {} {faults} {deaths} {:x}", requests.len(), digest.finish());
                // the kernel ends the clusters faster
                exit(0);
            });
        });
        thread::spawn(|| {
            thread::sleep(HANGS_AFTER);
            println!("hangs: a task is always ready, and no time passes");
            exit(1);
        });
        run.join().expect("the run does not panic");
    }

    /// The report of a run; `None` where it failed, after the output that shows why.
    pub(crate) fn report(self, seed: u64) -> Option<String> {
        let this = env::current_exe().expect("a test has a file");
        let run = Command::new(this)
            .args(["--exact", self.test, "--include-ignored", "--nocapture"])
            .env(self.seed, seed.to_string())
            .output()
            .expect("a test can be started");
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        let report =
            text.lines().find_map(|line| line.split_once("report ")).map(|(_, report)| report.to_owned());
        if env::var_os("RUST_LOG").is_some() || report.is_none() {
            println!("seed {seed}:\n{text}{}", String::from_utf8_lossy(&run.stderr));
        }
        report.filter(|_| run.status.success())
    }

    /// Runs the seeds, as many at a time as there are processors.
    pub(crate) fn must_hold(self, seeds: &[u64]) {
        let next = AtomicUsize::new(0);
        let (reports, failed) = (Mutex::new(vec![]), Mutex::new(vec![]));
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                        match self.report(seed) {
                            Some(report) => reports.lock().expect("no panic with it").push(numbers(&report)),
                            None => failed.lock().expect("no panic with it").push(seed),
                        }
                    }
                });
            }
        });
        let reports = reports.into_inner().expect("no panic with it");
        let sum = |at: usize| reports.iter().map(|numbers| numbers[at]).sum::<u64>();
        println!("{} runs: {} requests, {} faults, {} deaths", reports.len(), sum(0), sum(1), sum(2));
        let mut failed = failed.into_inner().expect("no panic with it");
        failed.sort_unstable();
        assert!(
            failed.is_empty(),
            "these seeds failed, `cargo xtask seeds --replay SEED` shows one: {failed:?}"
        );
        assert!(
            reports.iter().all(|[_, faults, deaths]| faults * deaths > 0),
            "a run without fault or death"
        );
    }
}
