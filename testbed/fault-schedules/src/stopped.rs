//! One leader, stopped in front of a write, while another takes over and users go on; then it goes on too, with a write
//! that has passed every check.

use std::time::Duration;

use test_cluster::TestCluster;

use crate::deeds::{Deeds, Kind};
use crate::invariants;
use crate::land::LAB;
use crate::process::{Fate, Turn};
use crate::stage::Stage;
use crate::system::{Program, System};

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

/// A load balancer is stopped between its two writes of a claim (`addresses.md`, section 2).
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_leader(on_host: bool, meanwhile: Meanwhile, cluster: TestCluster) {
    let scene = Scene::set(Program::LoadBalancer, "loadbalancers", Kind::plain(on_host), cluster).await;
    let records = invariants::records(&scene.stage.cluster).await;
    assert_eq!(records.len(), 1, "the write to the pool came before");
    scene
        .play(async |deeds| {
            if meanwhile == Meanwhile::GoesBeforeOthers {
                for index in 1..=LAB.addresses {
                    deeds.make(index, Kind::plain(on_host)).await;
                }
            }
            if meanwhile != Meanwhile::Stays {
                deeds.delete(0).await;
            }
        })
        .await;
}

/// A cloud controller manager is stopped before it marks a Service as Harvester's to announce. The Service is deleted
/// and made again under the same name, as one that the guest announces: the mark must not come over that one.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn stopped_before_a_mark(cluster: TestCluster) {
    let scene = Scene::set(Program::CloudControllerManager, "services", Kind::plain(true), cluster).await;
    scene
        .play(async |deeds| {
            deeds.delete(0).await;
            deeds.make(0, Kind::plain(false)).await;
        })
        .await;
}

/// Everybody as they are when the leader has just been stopped.
struct Scene {
    stage: Stage,
    system: System,
    deeds: Deeds,
}

impl Scene {
    /// Makes a Service, and stops the leader of `program` before its first write to an object of `plural`.
    async fn set(program: Program, plural: &'static str, kind: Kind, cluster: TestCluster) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let stage = Stage::set(cluster, &mut random).await;
        let fate = Fate { writes: 0, plural, turn: Turn::Stop(STOPPED) };
        let system = System::with_one_fate(program, fate, &stage.world(), &mut random);
        let mut deeds = stage.deeds(random);
        stage.cluster.advance(A_WHILE).await;
        deeds.make(0, kind).await;
        stage.cluster.advance(Duration::from_secs(1)).await;
        assert!(system.fate_is_met(), "the leader is stopped in front of its write to {plural}");
        Self { stage, system, deeds }
    }

    async fn play(self, meanwhile: impl AsyncFnOnce(&mut Deeds)) {
        let Self { stage, system, mut deeds } = self;
        meanwhile(&mut deeds).await;
        for _ in 0..STOPPED.as_secs() + A_WHILE.as_secs() {
            stage.cluster.advance(Duration::from_secs(1)).await;
            invariants::nobody_shares(&stage.cluster).await;
        }
        stage.must_rest(&deeds, &system).await;
        stage.must_be_cleared(deeds, system).await;
    }
}
