//! Faults of requests and watches on both servers, for every client but the test's own.

use std::time::Duration;

use sim_apiserver::faults::{Answer, Rule, When};
use test_cluster::{Side, TestCluster};

/// Of a hundred requests this many get this answer.
fn faults() -> Vec<(u32, Answer, When)> {
    let delay = |milliseconds| Answer::Delay(Duration::from_millis(milliseconds));
    vec![
        (3, Answer::Drop, When::Before),
        (3, Answer::Drop, When::After),
        (3, delay(700), When::Before),
        (2, delay(4_000), When::After),
        (2, Answer::Code(409), When::Before),
        (2, Answer::Code(429), When::Before),
        (2, Answer::Code(500), When::Before),
        (1, Answer::Code(500), When::After),
    ]
}

/// Starts the faults.
pub(crate) fn start(cluster: &TestCluster, seed: u64) {
    for side in Side::ALL {
        let Some(server) = cluster.side(side).simulated() else { continue };
        server.faults().reseed(seed ^ side as u64);
        for (percent, answer, when) in faults() {
            let mut rule = Rule::new(answer);
            rule.probability = Some(f64::from(percent) / 100.0);
            rule.when = when;
            server.faults().add(rule);
        }
    }
}

/// Ends the faults.
pub(crate) fn stop(cluster: &TestCluster) {
    for side in Side::ALL {
        if let Some(server) = cluster.side(side).simulated() {
            server.faults().clear();
        }
    }
}

/// The number of requests that were hit.
pub(crate) fn hits(cluster: &TestCluster) -> u64 {
    Side::ALL
        .iter()
        .filter_map(|side| cluster.side(*side).simulated())
        .map(|server| server.faults().hits())
        .sum()
}

/// Closes or expires all watches of one server.
pub(crate) fn disturb_watches(cluster: &TestCluster, random: &mut fastrand::Rng) {
    let side = Side::ALL[random.usize(..Side::ALL.len())];
    let Some(server) = cluster.side(side).simulated() else { return };
    match random.u8(..3) {
        0 => server.faults().close_watches(),
        1 => server.faults().expire_watches(),
        // a watch that comes back with an old revision must list again
        _ => {
            server.compact();
            server.faults().close_watches();
        }
    }
}
