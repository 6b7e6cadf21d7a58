//! Runs the seeds that `FAULT_SEEDS` names, as `first..end`, or a few.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use test_cluster::on_simulated;

/// Enough to see that the harness works; `cargo xtask seeds` runs a thousand.
const A_FEW: Range<u64> = 0..6;

fn seeds() -> Range<u64> {
    std::env::var("FAULT_SEEDS").map_or(A_FEW, |text| {
        let (first, end) = text.split_once("..").expect("FAULT_SEEDS is first..end");
        first.parse().expect("a number")..end.parse().expect("a number")
    })
}

#[test]
fn after_any_storm_everything_is_as_if_there_had_been_none() {
    let log = tracing_subscriber::EnvFilter::try_from_default_env();
    if let Ok(filter) = log {
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init();
    }
    let seeds = seeds();
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(vec![]));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    // a thread of its own: a seed that fails does not keep the others from running
                    let run = thread::Builder::new().name(format!("seed {seed}")).spawn(move || {
                        on_simulated(fault_schedules::rights(seed), |cluster| {
                            fault_schedules::run(seed, cluster)
                        });
                    });
                    if run.expect("a thread for a seed").join().is_err() {
                        failed.lock().expect("nobody panics with the list").push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panics with the list");
    assert!(failed.is_empty(), "these seeds failed, `cargo xtask seeds --replay SEED` shows one: {failed:?}");
}
