//! The whole system in one process and one thread, on a paused clock, under faults, crashes and timings that a seed
//! chooses. After the storm everything must be as if there had been none.
//!
//! ```text
//! seed ──► weather   lost requests and answers, delays, 409, 429, 500, watches that end or expire
//!      ──► fates     a program dies before or after its nth write, or is stopped in front of it and goes on later;
//!                    another starts later; two of each stand by; in some runs the webhook has its say, or is dead
//!      ──► deeds     Services of all kinds, from two pools and from DHCP, come, go, come back, change type, ports and
//!                    policy; machines fail and migrate; kube-vip starts again; somebody overwrites a status
//!                                    │
//!          calm, a few minutes ──────┴──► invariants ──► everything is deleted ──► nothing is left
//! ```
//! Hosts, VMs, kube-vip, kube-proxy and DHCP are `sim-harvester`'s, in memory. Tests and `cargo xtask seeds` run it; see
//! [`run`].
#![forbid(unsafe_code)]

mod deeds;
mod door;
mod invariants;
mod land;
mod process;
mod stage;
mod stopped;
mod system;
mod weather;

use std::time::Duration;

use test_cluster::{Request, Rights, TestCluster};

use crate::stage::Stage;
use crate::system::System;

pub use crate::stopped::{Meanwhile, stopped_before_a_mark, stopped_leader};

/// How long the faults go on.
const STORM: Duration = Duration::from_secs(180);

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
    let stage = Stage::set(cluster, &mut random).await;
    let cluster = stage.cluster.clone();
    let mut world = stage.world();
    if random.u8(..3) == 0 {
        world = world.with_webhook(&cluster);
    }
    let system = System::start(&world, &mut random);
    let mut deeds = stage.deeds(random.fork());
    weather::storm(&cluster, random.u64(..));
    deeds.go_on(STORM).await;
    weather::calm(&cluster);
    system.calm();
    stage.must_rest(&deeds, &system).await;
    let deaths = stage.must_be_cleared(deeds, system).await;
    let requests = [cluster.guest.requests(), cluster.harvester.requests()].concat();
    Story { requests, faults: weather::hits(&cluster), deaths }
}
