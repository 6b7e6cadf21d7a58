//! A leader that is stopped in front of a write. Another takes over and users go on; then the first goes on too, with a
//! write that has passed every check.

use std::time::Duration;

use test_cluster::TestCluster;

use crate::cluster_setup::LAB;
use crate::fixture::Fixture;
use crate::invariants;
use crate::process::{CrashPoint, Interruption};
use crate::system::{Program, System};
use crate::user_actions::{Families, ServiceOptions, Users};

/// Long enough for another to lead, and for its record garbage collector to look twice.
const STOPPED: Duration = Duration::from_secs(60);
/// Until all programs are at work, or have done what users asked.
const A_WHILE: Duration = Duration::from_secs(20);

/// The fate of the load balancer that the stopped leader claims an address for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meanwhile {
    /// It waits for its address.
    Stays,
    /// A user deletes its Service.
    Goes,
    /// A user deletes its Service, and others wait for the address.
    GoesBeforeOthers,
}

/// A load balancer program is stopped between its two writes of a claim (docs/contract/addresses.md#2).
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_leader(on_host: bool, meanwhile: Meanwhile, cluster: TestCluster) {
    let options = ServiceOptions::plain(on_host);
    let stopped = StoppedLeader::of(Program::LoadBalancer, "loadbalancers", options, cluster).await;
    let records = invariants::records(&stopped.fixture.cluster).await;
    assert_eq!(records.len(), 1, "the write to the pool came before");
    stopped
        .go_on(async |users| {
            if meanwhile == Meanwhile::GoesBeforeOthers {
                for index in 1..=LAB.addresses {
                    users.make(index, options).await;
                }
            }
            if meanwhile != Meanwhile::Stays {
                users.delete(0).await;
            }
        })
        .await;
}

/// A cloud controller manager is stopped before it marks a Service as one that Harvester announces. A user deletes the
/// Service and makes it again under the same name, as one that the guest announces: the mark must not reach that one.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_before_a_mark(cluster: TestCluster) {
    let options = ServiceOptions::plain(true);
    let stopped = StoppedLeader::of(Program::CloudControllerManager, "services", options, cluster).await;
    stopped
        .go_on(async |users| {
            users.delete(0).await;
            users.make(0, ServiceOptions::plain(false)).await;
        })
        .await;
}

/// A cloud controller manager is stopped before it makes the object of a Service that Harvester announces. A user deletes the
/// Service, and makes it again when the late object is there, as one of the guest that requires two addresses: it has the one of
/// that object.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_before_an_object(cluster: TestCluster) {
    let options = ServiceOptions::plain(true);
    let stopped = StoppedLeader::of(Program::CloudControllerManager, "loadbalancers", options, cluster).await;
    let cluster = stopped.fixture.cluster.clone();
    let requires_two = ServiceOptions { families: Families::Required, ..ServiceOptions::plain(false) };
    stopped
        .go_on(async |users| {
            users.delete(0).await;
            cluster.advance(STOPPED).await;
            users.make(0, requires_two).await;
        })
        .await;
}

/// A run whose leader has just been stopped.
struct StoppedLeader {
    fixture: Fixture,
    system: System,
    users: Users,
}

impl StoppedLeader {
    /// Makes a Service, and stops the leader of `program` before its first write to an object of `plural`.
    async fn of(
        program: Program,
        plural: &'static str,
        options: ServiceOptions,
        cluster: TestCluster,
    ) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let fixture = Fixture::drawn(cluster, &mut random).await;
        let system = System::start_planned(program, &fixture.environment(), &mut random);
        system.crash_next(CrashPoint { writes: 0, plural, interruption: Interruption::Stop(STOPPED) });
        let mut users = fixture.users(&system, random);
        fixture.cluster.advance(A_WHILE).await;
        users.make(0, options).await;
        fixture.cluster.advance(Duration::from_secs(1)).await;
        assert!(system.has_crashed(), "the leader is stopped in front of its write to {plural}");
        Self { fixture, system, users }
    }

    async fn go_on(self, meanwhile: impl AsyncFnOnce(&mut Users)) {
        let Self { fixture, system, mut users } = self;
        meanwhile(&mut users).await;
        for _ in 0..STOPPED.as_secs() + A_WHILE.as_secs() {
            fixture.cluster.advance(Duration::from_secs(1)).await;
            users.look().await;
        }
        fixture.must_rest(&users).await;
        fixture.must_be_cleared(users, system).await;
    }
}
