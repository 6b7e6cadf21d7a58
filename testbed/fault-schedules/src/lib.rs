//! The whole system in one process and one thread, on a paused clock, under faults, crashes and timings that a seed
//! chooses. When the faults end, the system must come to the state that it has without faults.
//!
//! ```text
//! seed ──► fault injection   lost requests and answers, delays, 409, 429, 500, watches that end or expire
//!      ──► crash plans       a program dies before or after its nth write, or is stopped in front of it and goes on
//!                            later; another starts later; two replicas of each; in some runs the webhook is there
//!      ──► user actions      Services of all sorts, of one family and of two, from pools and from DHCP, come, go, come
//!                            back, change type, ports and policy, and ask for each other's addresses, and in half of the
//!                            runs for one that they name, so that they move or wait; ranges drain and
//!                            rest, pools serve only who names them, in some runs a full pool is passed over; VMs fail,
//!                            migrate, stop, start, go and come back; kube-vip starts again; somebody overwrites a status
//!                                    │
//!          rest, a few minutes ──────┴──► invariants ──► users delete everything ──► nothing is left
//! ```
//! [`run`] is one such run, and [`storage::run`] one of the CSI driver, with claims, Pods and VMs instead of Services.
//! [`stopped_leader()`], [`stopped_before_a_mark`], [`stopped_before_an_object`] and [`hand_over`] are schedules with one
//! chosen fault. `sim-harvester` simulates hosts, VMs, kube-vip, kube-proxy and DHCP in memory. Tests run all this, and
//! `cargo xtask seeds` more of [`run`].
#![forbid(unsafe_code)]

mod cluster_setup;
mod conditions;
mod fault_injection;
mod fixture;
mod handover;
mod invariants;
mod process;
mod seeds;
mod stopped_leader;
pub mod storage;
mod system;
mod user_actions;
mod webhook_endpoint;

use std::time::Duration;

use test_cluster::{Request, Rights, TestCluster};

use crate::fixture::Fixture;
use crate::system::System;

pub use crate::handover::{Handover, hand_over};
pub use crate::seeds::{SeedError, failed_seeds, parse_seeds};
pub use crate::stopped_leader::{Meanwhile, stopped_before_a_mark, stopped_before_an_object, stopped_leader};

/// The length of the faults.
const FAULTS: Duration = Duration::from_secs(180);

/// The roles of the programs in the run of this seed.
#[must_use]
pub fn rights(seed: u64) -> Rights {
    if seed.is_multiple_of(2) { Rights::Ours } else { Rights::Existing }
}

/// The choices of users who demand addresses, in the runs of half of all seeds, with each role.
fn demands(seed: u64) -> Option<fastrand::Rng> {
    (seed % 4 >= 2).then(|| fastrand::Rng::with_seed(!seed))
}

/// The outcome of a run; equal for equal seeds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All requests of the programs, those to the guest first.
    pub requests: Vec<Request>,
    /// The number of requests that were hit by a fault.
    pub faults: u64,
    /// The number of processes that died.
    pub deaths: usize,
}

/// Runs the schedule of one seed on fresh simulated servers.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn run(seed: u64, cluster: TestCluster) -> Report {
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = Fixture::drawn(cluster, &mut random).await;
    let cluster = fixture.cluster.clone();
    let mut environment = fixture.environment();
    if random.u8(..3) == 0 {
        environment = environment.with_webhook(&cluster);
    }
    let system = System::start(&environment, &mut random);
    let mut users = fixture.users_who_demand(&system, random.fork(), demands(seed));
    fault_injection::start(&cluster, random.u64(..));
    users.act_for(FAULTS).await;
    fault_injection::stop(&cluster);
    system.end_crashes();
    users.withdraw_demands().await;
    users.open_pools().await;
    fixture.must_rest(&users).await;
    let deaths = fixture.must_be_cleared(users, system).await;
    let requests = [cluster.guest.requests(), cluster.harvester.requests()].concat();
    Report { requests, faults: fault_injection::hits(&cluster), deaths }
}
