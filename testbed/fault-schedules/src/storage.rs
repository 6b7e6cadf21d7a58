//! The CSI driver under faults: two controller processes and the stand-ins that call them, as one system of its own.
//!
//! ```text
//! users ──► claims, Pods ──► stand-ins of the sidecars ──calls that fail──► two controllers ──► host, guest
//!   └──► VMs stop, start, migrate, go, come back      kubelets ──► a node service in memory      └─ faults, crashes
//! ```
//! In a real pod each sidecar leads by a Lease of its own, and two may call at once for a while: a call goes to either
//! process while the faults last.

mod controllers;
mod invariants;
mod migrations;
mod nodes;
mod users;

use std::{sync::Arc, time::Duration};

use program::{Clock, TaskGroup};
use sim_harvester::{Release, host_objects};
use sim_sidecars::{Options, Pace, Sidecars, kinds};
use test_cluster::{Side, TestCluster, User};

use self::{controllers::Controllers, invariants::Watch, nodes::Nodes, users::Users};
use crate::{FAULTS, Report, cluster_setup, fault_injection, seeds::seeds_of};

/// Long enough for a stopped process to go on, for Leases to change hands, for a claim of a dead process to go stale,
/// and for a volume to leave a Node that does not answer.
const REST: Duration = Duration::from_secs(220);
const CLASS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: harvester}
provisioner: driver.harvesterhci.io
reclaimPolicy: Delete
volumeBindingMode: Immediate
";

/// As sidecars wait, but sooner, so that more happens: calls run into their deadline, too.
fn pace() -> Pace {
    Pace { call: Duration::from_secs(20), unmount: Duration::from_secs(60), ..Pace::quick() }
}

/// The seeds of storage schedules that failed once, in rising order. `failed-storage-seeds.txt` says what each found.
///
/// # Panics
/// Never: a test reads the file.
#[must_use]
pub fn failed_seeds() -> Vec<u64> {
    seeds_of(include_str!("../failed-storage-seeds.txt")).expect("every line begins with a seed")
}

/// Runs the schedule of one seed on fresh simulated servers.
///
/// # Panics
/// When an invariant does not hold; the message says which.
pub async fn run(seed: u64, cluster: TestCluster) -> Report {
    let mut random = fastrand::Rng::with_seed(seed);
    let (cluster, tasks) = (Arc::new(cluster), TaskGroup::new());
    let folder = tempfile::tempdir().expect("a folder for kubelets");
    let (guest, harvester) = (cluster.guest.client(User::Driver), cluster.harvester.client(User::Driver));
    host_objects::apply(&harvester, "v1.8.0").await.expect("the host takes its own objects");
    kinds::apply(&guest).await.expect("the guest takes the kinds of snapshots");
    cluster.guest.apply(CLASS).await;
    let simulation = cluster_setup::set_up(&cluster, [Release::From12; 2], random.u64(..), &tasks).await;
    let before = cluster.objects(Side::Harvester).await;

    let watch = Watch::new(&cluster);
    let controllers = Controllers::start(&cluster, &watch, &mut random);
    let clock = Clock::starting_at(cluster.start());
    let options = Options { guest, controller: controllers.plugin(), pace: pace(), clock };
    let sidecars = Sidecars::start(options, &tasks);
    Nodes::start(&cluster, &simulation, sidecars, folder.path(), &tasks);
    let mut users = Users::new(&cluster, &watch, random.fork());
    cluster.advance(Duration::from_secs(10)).await;

    fault_injection::start(&cluster, random.u64(..));
    users.act_for(FAULTS).await;
    fault_injection::stop(&cluster);
    controllers.end_faults();
    users.restore_vms().await;
    cluster.advance(REST).await;
    users.restore_pods().await;
    cluster.advance(REST).await;
    watch.look("at rest").await;
    watch.must_hold();
    let annotated_late = controllers.late_annotations();
    invariants::at_rest(&cluster, users.pods(), &controllers.late_claims(), &annotated_late).await;

    users.delete_all().await;
    cluster.advance(REST).await;
    watch.must_hold();
    let late = controllers.late_claims();
    invariants::at_rest(&cluster, users.pods(), &late, &controllers.late_annotations()).await;
    let mut after = cluster.objects(Side::Harvester).await;
    after.retain(|path| !late.iter().any(|name| path.ends_with(&format!("/persistentvolumeclaims/{name}"))));
    assert_eq!(after, before, "objects of Harvester");
    let deaths = controllers.end().await;
    tasks.end().await;
    let requests = [cluster.guest.requests(), cluster.harvester.requests()].concat();
    Report { requests, faults: fault_injection::hits(&cluster), deaths }
}
