//! One leader, stopped between its two writes of a claim, while another takes over and sweeps; then it goes on
//! (`addresses.md`, section 2).

use std::sync::Arc;
use std::time::Duration;

use controller_kit::Life;
use test_cluster::{Side, TestCluster};

use crate::deeds::{Deeds, Kind};
use crate::land::{self, ADDRESSES};
use crate::process::{Fate, Turn};
use crate::system::{System, World};
use crate::{CALM, invariants};

/// Long enough for another to lead, and to sweep twice.
const STOPPED: Duration = Duration::from_secs(60);
/// Until everybody is at work, or has done what it was asked.
const A_WHILE: Duration = Duration::from_secs(20);

/// What becomes of the claim's owner meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// It waits for its address.
    Stays,
    /// Its Service is deleted.
    Goes,
    /// Its Service is deleted, and somebody waits for the address.
    GoesBeforeOthers,
}

/// Runs the story on fresh simulated servers.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_leader(on_host: bool, meanwhile: Meanwhile, cluster: TestCluster) {
    let mut random = fastrand::Rng::with_seed(7);
    let (cluster, life) = (Arc::new(cluster), Life::new());
    let simulation = land::furnish(&cluster, &mut random, &life).await;
    let before = [
        invariants::objects(&cluster, Side::Guest).await,
        invariants::objects(&cluster, Side::Harvester).await,
    ];
    let fate = Fate { writes: 0, plural: "loadbalancers", turn: Turn::Stop(STOPPED) };
    let system = System::with_one_fate(fate, &World::new(&cluster, &simulation), &mut random);
    let mut deeds = Deeds::new(cluster.clone(), simulation.clone(), random);
    cluster.advance(A_WHILE).await;

    let kind = Kind { on_host, leased: false };
    deeds.make(0, kind).await;
    cluster.advance(Duration::from_secs(1)).await;
    assert!(system.fate_is_met(), "the leader is stopped in front of its write to the LoadBalancer");
    assert_eq!(invariants::records(&cluster).await.len(), 1, "and after that to the pool");
    if meanwhile == Meanwhile::GoesBeforeOthers {
        for index in 1..=ADDRESSES {
            deeds.make(index, kind).await;
        }
    }
    if meanwhile != Meanwhile::Stays {
        deeds.delete(0).await;
    }
    for _ in 0..STOPPED.as_secs() + A_WHILE.as_secs() {
        cluster.advance(Duration::from_secs(1)).await;
        invariants::nobody_shares(&cluster).await;
    }
    cluster.advance(CALM).await;
    cluster.settle().await;
    invariants::hold(&cluster, &simulation).await;

    deeds.undo().await;
    cluster.advance(CALM).await;
    cluster.settle().await;
    invariants::nothing_is_left(&cluster, &before).await;
    system.end().await;
    life.end().await;
}
