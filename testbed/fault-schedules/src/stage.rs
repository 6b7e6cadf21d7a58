//! What every run has: furnished clusters with their simulation, a rest after the storm, and an end at which nothing may
//! be left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use program::TaskGroup;
use sim_harvester::SimHarvester;
use test_cluster::{Side, TestCluster};

use crate::deeds::Deeds;
use crate::system::{System, World};
use crate::{invariants, land};

/// Enough for a program that is stopped to go on, for a Lease to change hands, and for the sweep to have looked twice.
const CALM: Duration = Duration::from_secs(180);
/// Enough for users to see everything go that they delete while nothing is wrong, and for the sweep to have looked twice.
const LEAVING: Duration = Duration::from_secs(90);

/// The clusters of one run, and what is simulated around them.
pub(crate) struct Stage {
    pub(crate) cluster: Arc<TestCluster>,
    pub(crate) simulation: SimHarvester,
    /// The objects of each side.
    before: [BTreeSet<String>; 2],
    tasks: TaskGroup,
}

impl Stage {
    /// Furnishes the clusters and waits until all VMs run.
    pub(crate) async fn set(cluster: TestCluster, random: &mut fastrand::Rng) -> Self {
        let (cluster, tasks) = (Arc::new(cluster), TaskGroup::new());
        let simulation = land::furnish(&cluster, random, &tasks).await;
        let before = [
            invariants::objects(&cluster, Side::Guest).await,
            invariants::objects(&cluster, Side::Harvester).await,
        ];
        Self { cluster, simulation, before, tasks }
    }

    /// What programs need to live here.
    pub(crate) fn world(&self) -> World {
        World::new(&self.cluster, &self.simulation)
    }

    /// Users, with a plan that follows from `random`.
    pub(crate) fn deeds(&self, random: fastrand::Rng) -> Deeds {
        Deeds::new(self.cluster.clone(), self.simulation.clone(), random)
    }

    /// Waits until everybody has come to rest; users do what reports tell them to.
    ///
    /// # Panics
    /// Where an invariant does not hold then.
    pub(crate) async fn must_rest(&self, deeds: &Deeds, system: &System) {
        self.cluster.advance(CALM).await;
        if deeds.follow_reports(system.late_makings()).await {
            self.cluster.advance(CALM).await;
        }
        self.must_hold().await;
    }

    async fn must_hold(&self) {
        self.cluster.settle().await;
        invariants::hold(&self.cluster, &self.simulation).await;
    }

    /// Deletes what was made, and ends everybody; says how many programs had died.
    ///
    /// # Panics
    /// Where something is left.
    pub(crate) async fn must_be_cleared(self, mut deeds: Deeds, system: System) -> usize {
        deeds.undo().await;
        self.cluster.advance(LEAVING).await;
        self.must_hold().await;
        invariants::nothing_is_left(&self.cluster, &self.before).await;
        let deaths = system.end().await;
        self.tasks.end().await;
        deaths
    }
}
