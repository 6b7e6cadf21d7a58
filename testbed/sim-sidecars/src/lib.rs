//! Stand-ins for what calls a CSI driver in a real cluster, with the call order of the originals: the controllers of
//! kube-controller-manager and kube-scheduler that have to do with volumes, the external sidecars, and kubelet.
//!
//! ```text
//! claim ──binder──► annotated ──provisioner──► CreateVolume ──► PersistentVolume ──binder──► bound
//! pod ──scheduler──► on a node ──attach_detach──► VolumeAttachment ──attacher──► ControllerPublishVolume, attached
//!                        └──────kubelet──► NodeStage, NodeExpand, NodePublish … NodeUnpublish, NodeUnstage
//! node lost ──pod_collector──► pod gone
//! pod gone ──kubelet──► volume not in use ──attach_detach──► deletion ──attacher──► ControllerUnpublishVolume
//! larger claim ──resizer──► ControllerExpandVolume ──kubelet──► NodeExpandVolume ──► claim has its size
//! VolumeSnapshot ──snapshotter──► content ──► CreateSnapshot ──► readyToUse
//! ```
//! Everything is a plain client of the guest's API server, and calls the driver through a [`Plugin`]: over its socket, or in
//! the process, where it stands on a paused clock. Nothing here knows which driver it is but by its name. Unlike the
//! originals each stand-in is there once, and takes no Lease.
//!
//! On a cluster whose server has kinds of Kubernetes alone, [`kinds::apply`] brings those of snapshots.
#![forbid(unsafe_code)]

mod attach_detach;
mod attacher;
mod binder;
mod capability;
pub mod kinds;
mod kubelet;
pub mod machine;
mod node_stub;
mod plugin;
mod pod_collector;
pub mod pod_process;
mod provisioner;
mod resizer;
mod retries;
mod scheduler;
mod snapshotter;
mod world;

use std::{path::Path, sync::Arc, time::Duration};

use kube::Client;
use program::{Clock, TaskGroup};

pub use kubelet::{Files, MOUNTED, publish_path, staging_path};
pub use node_stub::NodeStub;
pub use plugin::Plugin;
use world::World;

/// How long the stand-ins wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// After a failed call, doubled with each further one: `--retry-interval-start` of the sidecars.
    pub first: Duration,
    /// `--retry-interval-max`.
    pub longest: Duration,
    /// The deadline of each call: `--timeout`.
    pub call: Duration,
    /// kube-controller-manager detaches a volume from a node that is not ready after so long, whether its kubelet has
    /// unmounted it or not.
    pub unmount: Duration,
    /// The attacher compares what the driver lists with what VolumeAttachments say: `--reconcile-sync`.
    pub compare: Duration,
}

impl Default for Pace {
    /// As the originals with the arguments of Harvester's chart.
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            call: Duration::from_secs(110),
            unmount: Duration::from_secs(360),
            compare: Duration::from_secs(60),
        }
    }
}

impl Pace {
    /// For people who look on, and for tests.
    pub fn quick() -> Self {
        Self {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(5),
            unmount: Duration::from_secs(20),
            ..Self::default()
        }
    }
}

/// The parts of the stand-ins.
#[derive(Clone)]
pub struct Options {
    /// May do everything in the guest cluster.
    pub guest: Client,
    /// The driver's controller service.
    pub controller: Plugin,
    pub pace: Pace,
    pub clock: Clock,
}

/// The running stand-ins. They end with the [`TaskGroup`] that they were started in.
#[derive(Clone)]
pub struct Sidecars(Arc<World>);

impl Sidecars {
    /// Starts everything but kubelets. The kinds of [`kinds`] must be there already.
    pub fn start(options: Options, tasks: &TaskGroup) -> Self {
        let world = World::start(options, tasks);
        binder::start(&world, tasks);
        scheduler::start(&world, tasks);
        provisioner::start(&world, tasks);
        attach_detach::start(&world, tasks);
        attacher::start(&world, tasks);
        resizer::start(&world, tasks);
        snapshotter::start(&world, tasks);
        pod_collector::start(&world, tasks);
        Self(world)
    }

    /// Starts the external attacher alone: nobody else makes VolumeAttachments, or deletes them.
    pub fn attacher(options: Options, tasks: &TaskGroup) {
        attacher::start(&World::start(options, tasks), tasks);
    }

    /// Starts the kubelet of a Node, as far as volumes go: it calls `plugin` and mounts below `root`. It ends with `tasks`,
    /// as one does whose machine is switched off: what is mounted stays.
    pub fn kubelet(&self, node: &str, plugin: Plugin, root: &Path, tasks: &TaskGroup) {
        self.kubelet_elsewhere(node, plugin, root, Arc::new(kubelet::OwnFiles), tasks);
    }

    /// The same where `root` is not on this computer, and its files are reached by `files`.
    pub fn kubelet_elsewhere(
        &self,
        node: &str,
        plugin: Plugin,
        root: &Path,
        files: Arc<dyn Files>,
        tasks: &TaskGroup,
    ) {
        kubelet::start(&self.0, node, plugin, root, files, tasks);
    }
}
