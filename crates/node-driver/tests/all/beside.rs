//! Tests that wait in real time, until a process gives up its client after ten seconds. They begin together with the first
//! of them and run beside all other tests, so that the ten seconds pass once.

use std::{
    collections::HashMap,
    panic,
    sync::{LazyLock, Mutex},
    thread::{self, JoinHandle},
};

use crate::{go, wire};

static RUNNING: LazyLock<Mutex<HashMap<&str, JoinHandle<()>>>> = LazyLock::new(|| {
    let scenarios: [(&str, fn()); 3] = [
        ("wire: client gone", || run(wire::a_client_goes_away())),
        ("go: rancher-machine killed", || run(go::rancher_machine_is_killed())),
        ("go: probe", || run(go::probe())),
    ];
    Mutex::new(scenarios.into_iter().map(|(name, scenario)| (name, thread::spawn(scenario))).collect())
});

fn run(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(scenario);
}

/// Waits for the end of a scenario, and fails as it did.
pub(crate) fn outcome_of(name: &str) {
    let scenario = RUNNING.lock().unwrap().remove(name).expect("each is asked for once");
    if let Err(panicked) = scenario.join() {
        panic::resume_unwind(panicked);
    }
}
