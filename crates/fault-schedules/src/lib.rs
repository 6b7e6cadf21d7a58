//! The whole system in one process and one thread, on a paused clock, under faults, crashes and timings that a seed
//! chooses. After the storm everything must be as if there had been none.
//!
//! ```text
//! seed ──► weather   lost requests and answers, delays, 409, 429, 500, watches that end or expire
//!      ──► fates     a program dies before or after its nth write; another starts later; two of each stand by
//!      ──► deeds     Services come, go, change their type and their ports
//!                                    │
//!          calm, a few minutes ──────┴──► invariants ──► everything is deleted ──► nothing is left
//! ```
//! Tests and `cargo xtask seeds` run it; see [`run`].
#![forbid(unsafe_code)]

mod deeds;
mod invariants;
mod process;
mod system;
mod weather;

use std::sync::Arc;
use std::time::Duration;

use test_cluster::{Request, Rights, Side, TestCluster};

use crate::deeds::Deeds;
use crate::system::System;

/// How long the faults go on.
const STORM: Duration = Duration::from_secs(180);
/// Enough for a Lease to change hands and for the sweep to have looked twice.
const CALM: Duration = Duration::from_secs(300);

/// The roles that a seed gives to the programs.
#[must_use]
pub fn rights(seed: u64) -> Rights {
    if seed.is_multiple_of(2) { Rights::Ours } else { Rights::Existing }
}

/// What happened in a run: of the same seed always the same.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// Everything that the programs asked, guest first.
    pub requests: Vec<Request>,
    /// How many requests were hit by a fault.
    pub faults: u64,
    /// How many programs died.
    pub deaths: usize,
}

/// Runs one schedule on fresh simulated servers.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn run(seed: u64, cluster: TestCluster) -> Story {
    let mut random = fastrand::Rng::with_seed(seed);
    let cluster = Arc::new(cluster);
    let mut deeds = Deeds::begin(cluster.clone(), random.fork()).await;
    let before = [cluster.objects(Side::Guest).await, cluster.objects(Side::Harvester).await];

    let system = System::start(&cluster, &mut random);
    weather::storm(&cluster, random.u64(..));
    deeds.go_on(STORM).await;
    weather::calm(&cluster);
    system.calm();
    cluster.advance(CALM).await;
    cluster.settle().await;
    invariants::hold(&cluster).await;

    deeds.undo().await;
    cluster.advance(CALM).await;
    cluster.settle().await;
    invariants::hold(&cluster).await;
    invariants::nothing_is_left(&cluster, &before).await;
    let deaths = system.end().await;
    let requests = [cluster.guest.requests(), cluster.harvester.requests()].concat();
    Story { requests, faults: weather::hits(&cluster), deaths }
}
