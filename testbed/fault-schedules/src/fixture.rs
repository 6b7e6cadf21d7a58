//! The beginning and the end of every run: clusters with their simulation, a rest after the faults, and an end at which
//! nothing may be left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use program::TaskGroup;
use sim_harvester::{Release, SimHarvester};
use test_cluster::{Side, TestCluster};

use crate::cluster_setup::RELEASES;
use crate::process::LateCreations;
use crate::system::{Environment, System};
use crate::user_actions::Users;
use crate::{cluster_setup, invariants};

/// Long enough for a stopped program to go on, for a Lease to change hands, and for the record garbage collector to look
/// twice.
const REST: Duration = Duration::from_secs(180);
/// A VM that was deleted while no manager watched, and before another Node had one, is searched for again after this time
/// (docs/nodes.md#the-vm-of-a-node); before that nothing shows that the Node should go.
const SEARCH: Duration = Duration::from_secs(600);
/// Long enough for everything that users delete to go while no fault happens, and for the record garbage collector to
/// look twice.
const DELETION: Duration = Duration::from_secs(90);

/// The clusters of one run, and their simulation.
pub(crate) struct Fixture {
    pub(crate) cluster: Arc<TestCluster>,
    pub(crate) simulation: SimHarvester,
    /// `--fall-over-when-full`.
    falls_over: bool,
    /// The objects of each cluster before the run.
    before: [BTreeSet<String>; 2],
    tasks: TaskGroup,
}

impl Fixture {
    /// Sets the clusters up with releases of kube-vip that `random` chooses, and chooses flags of the load balancer.
    pub(crate) async fn drawn(cluster: TestCluster, random: &mut fastrand::Rng) -> Self {
        let releases = [(); 2].map(|()| RELEASES[random.usize(..RELEASES.len())]);
        let falls_over = random.u8(..4) == 0;
        Self { falls_over, ..Self::with_releases(cluster, releases, random).await }
    }

    /// Sets the clusters up with these releases of kube-vip, Harvester's first.
    pub(crate) async fn with_releases(
        cluster: TestCluster,
        releases: [Release; 2],
        random: &mut fastrand::Rng,
    ) -> Self {
        let (cluster, tasks) = (Arc::new(cluster), TaskGroup::new());
        let simulation = cluster_setup::set_up(&cluster, releases, random.u64(..), &tasks).await;
        let before = [
            invariants::objects(&cluster, Side::Guest).await,
            invariants::objects(&cluster, Side::Harvester).await,
        ];
        Self { cluster, simulation, falls_over: false, before, tasks }
    }

    /// The environment of the programs.
    pub(crate) fn environment(&self) -> Environment {
        Environment::new(&self.cluster, &self.simulation, self.falls_over)
    }

    /// Users of these programs, whose actions follow from `random`.
    pub(crate) fn users(&self, system: &System, random: fastrand::Rng) -> Users {
        self.users_who_demand(system, random, None)
    }

    /// The same, who demand addresses besides where there are choices for that.
    pub(crate) fn users_who_demand(
        &self,
        system: &System,
        random: fastrand::Rng,
        demands: Option<fastrand::Rng>,
    ) -> Users {
        Users::new(self.cluster.clone(), self.simulation.clone(), system.late_creations(), random, demands)
    }

    /// Waits until all programs are at rest. Users do as reports tell them.
    ///
    /// # Panics
    /// Where an invariant does not hold then.
    pub(crate) async fn must_rest(&self, users: &Users) {
        self.cluster.advance(REST).await;
        if users.follow_reports().await {
            self.cluster.advance(REST).await;
        }
        if invariants::one_awaits_a_search(&self.cluster).await {
            self.cluster.advance(SEARCH).await;
        }
        self.must_hold(users.late_creations()).await;
    }

    async fn must_hold(&self, late: &LateCreations) {
        self.cluster.settle().await;
        invariants::hold(&self.cluster, &self.simulation, late, self.falls_over).await;
    }

    /// Deletes everything that users made, and ends all programs. Returns the number of processes that had died.
    ///
    /// # Panics
    /// Where something is left.
    pub(crate) async fn must_be_cleared(self, mut users: Users, system: System) -> usize {
        users.delete_all().await;
        users.restore_all().await;
        self.cluster.advance(DELETION).await;
        self.must_hold(users.late_creations()).await;
        self.must_be_as_before().await;
        let deaths = system.end().await;
        self.tasks.end().await;
        deaths
    }

    /// # Panics
    /// Where an object is there that was not before, or an address is still held.
    pub(crate) async fn must_be_as_before(&self) {
        invariants::nothing_is_left(&self.cluster, &self.before).await;
    }
}
