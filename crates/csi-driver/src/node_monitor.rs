//! What one process of the guest cluster does for all its Nodes and volumes, by the Lease that the Go program holds too.
//!
//! ```text
//! lost_nodes  the taint of Nodes whose machines are lost, so that Pods and volumes go elsewhere (decide, machine: pure)
//! labels      the cluster's label on the claims of volumes that may go with the cluster
//! ```
//! Candidates are the processes on Nodes of the control plane. Losing the Lease ends the work and nothing else: the node
//! service of the process goes on, and it is a candidate again (docs/contract/csi-driver.md#exits).

pub mod decide;
pub mod labels;
pub mod lost_nodes;
pub mod machine;

use std::{mem::take, time::Duration};

use controller_kit::{
    CREATE_EVENTS, Cache, PATCH_EVENTS, Recorder,
    election::{self, Leadership},
};
use harvester_api::{VirtualMachine, VirtualMachineInstance, annotations, names::CSI_DRIVER};
use k8s_openapi::api::{
    core::v1::{Node, NodeCondition, PersistentVolume, PersistentVolumeClaim},
    storage::v1::CSINode,
};
use kube::{Api, Client, ResourceExt, runtime::watcher};
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
};
use tokio::{sync::watch, time::sleep};

use crate::{
    host::{Host, PAGE, reach::Reached, rights, trim_metadata},
    leading::Leading,
    lease::{self, NODE_MONITOR},
    node_id::OwnMachine,
    refusal::error_message,
};

/// How long after a Node could not be read, or a Lease was lost, this is tried again.
const AGAIN: Duration = Duration::from_secs(30);
/// The roles that grant our rights, for people.
const GUEST_ROLE: &str = "ClusterRole harvester-csi-driver";
const HOST_ROLE: &str = "ClusterRole harvesterhci.io:cloudprovider";
/// Labels of Nodes of the control plane. Only the first one counts for the Go program, and only with value `true`.
const CONTROL_PLANE: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/controlplane",
    "node-role.kubernetes.io/master",
];

/// One process.
#[derive(Clone)]
pub struct NodeMonitor {
    pub guest: Client,
    /// Hears of the host when it is reached.
    pub host: watch::Receiver<Reached>,
    /// Name of the Node that this runs on; empty where nobody gave it.
    pub node: String,
    /// The machine that this process runs in.
    pub machine: watch::Receiver<OwnMachine>,
    /// Our name among the candidates.
    pub identity: String,
    pub clock: Clock,
    /// Counts the Lease.
    pub leading: Leading,
}

impl NodeMonitor {
    /// Works while this process has the Lease, until `tasks` ends. Ends at once on a Node outside of the control plane.
    pub async fn run(mut self, tasks: TaskGroup) {
        let stop = tasks.stop.clone();
        stop.run_until_cancelled(async {
            if !self.is_candidate().await {
                tracing::debug!(node = self.node, "no Node of the control plane: others watch the Nodes");
                return std::future::pending().await;
            }
            // without the host there is nothing to be decided
            drop(self.host.wait_for(Result::is_ok).await);
        })
        .await;
        let host = self.host.borrow().clone();
        let Ok(host) = host else { return };
        while stop.run_until_cancelled(lease::granted(&self.guest, NODE_MONITOR)).await.is_some() {
            if stop.is_cancelled() {
                return;
            }
            if let Err(error) = self.lead(&host, &tasks).await {
                tracing::warn!(
                    "{error}; nothing more is written, and this is a candidate again in {AGAIN:?}"
                );
                stop.run_until_cancelled(sleep(AGAIN)).await;
            }
        }
    }

    /// Whether the Node is one of the control plane. A process that has no Node is beside the sidecars.
    async fn is_candidate(&self) -> bool {
        if self.node.is_empty() {
            return true;
        }
        let nodes = Api::<Node>::all(self.guest.clone());
        loop {
            match nodes.get_metadata_opt(&self.node).await {
                Ok(node) => {
                    return node.is_some_and(|node| {
                        CONTROL_PLANE.iter().any(|key| node.labels().contains_key(*key))
                    });
                }
                Err(error) => tracing::warn!(
                    "node {}: {}; until it is read, this process watches no Nodes",
                    self.node,
                    rights::explained(error_message(&error))
                ),
            }
            sleep(AGAIN).await;
        }
    }

    async fn lead(&self, host: &Host, tasks: &TaskGroup) -> Result<(), election::Error> {
        let election = lease::of_node_monitor(&self.identity);
        self.leading.stands_by(NODE_MONITOR);
        election::lead(self.guest.clone(), election, self.clock, tasks, |leadership: Leadership| async move {
            let _leads = self.leading.leads(NODE_MONITOR);
            // tasks of their own, which end with this future: a lost Lease drops it
            let inner = tasks.child();
            let _ends = inner.stop.clone().drop_guard();
            self.start(host, &leadership, &inner).await;
            inner.stop.cancelled().await;
            inner.end().await;
        })
        .await
    }

    async fn start(&self, host: &Host, leadership: &Leadership, tasks: &TaskGroup) {
        let guest = leadership.client(self.guest.clone());
        let host = Host::new(leadership.client(host.client()), host.namespace());
        let config = || watcher::Config::default().page_size(PAGE);
        let nodes = Cache::start_trimmed(tasks, Api::all(guest.clone()), config(), trim_node);
        let csi_nodes = Cache::start_trimmed(tasks, Api::all(guest.clone()), config(), trim_csi_node);
        let volumes = Cache::start_trimmed(tasks, Api::all(guest.clone()), config(), trim_volume);
        let machines = Cache::start_trimmed(tasks, host.machines(), config(), trim_machine);
        let instances = Cache::start_trimmed(tasks, host.instances(), config(), trim_instance);
        let claims = Cache::start_trimmed(tasks, host.claims(), config(), trim_claim);
        let rights = vec![CREATE_EVENTS, PATCH_EVENTS, lost_nodes::UPDATE_NODES];
        let wanted = Wanted { rights, fields: Vec::new() };
        let capabilities = Capabilities::start(tasks, guest.clone(), wanted);
        let recorder = Recorder::start(tasks, guest.clone(), NODE_MONITOR, self.clock, &capabilities);
        let seen = labels::Sources {
            volumes: volumes.clone(),
            claims: claims.clone(),
            machines: machines.clone(),
            machine: self.machine.clone(),
        };
        labels::start(tasks, guest.clone(), host.clone(), seen);
        let machine = self.machine.clone();
        let seen = lost_nodes::Sources { nodes, csi_nodes, volumes, machines, instances, claims, machine };
        capabilities.known().await;
        lost_nodes::start(tasks, guest, host, seen, recorder, &capabilities);
    }
}

/// Drops the parts of a Node that nobody here reads; the list of images is most of one.
fn trim_node(node: &mut Node) {
    node.metadata.annotations = None;
    if let Some(status) = &mut node.status {
        let ready = status.conditions.iter_mut().flatten().find(|condition| condition.type_ == "Ready");
        let ready = ready.map(|ready| NodeCondition {
            status: take(&mut ready.status),
            type_: take(&mut ready.type_),
            last_transition_time: ready.last_transition_time.take(),
            ..NodeCondition::default()
        });
        *status = Default::default();
        status.conditions = Some(ready.into_iter().collect());
    }
}

fn trim_csi_node(node: &mut CSINode) {
    node.metadata.annotations = None;
    node.metadata.owner_references = None;
    node.spec.drivers.retain(|driver| driver.name == CSI_DRIVER);
}

fn trim_volume(volume: &mut PersistentVolume) {
    volume.metadata.annotations = None;
    volume.metadata.labels = None;
    volume.status = None;
    if let Some(spec) = &mut volume.spec {
        spec.node_affinity = None;
        if let Some(csi) = &mut spec.csi {
            csi.volume_attributes = None;
        }
    }
}

fn trim_machine(vm: &mut VirtualMachine) {
    trim_metadata(&mut vm.metadata, &[]);
    vm.spec.rest.clear();
    vm.status = None;
}

/// Bytes of a text in a status. Those of real ones are shorter.
const TEXT: usize = 253;

fn trim_instance(vmi: &mut VirtualMachineInstance) {
    vmi.metadata.annotations = None;
    vmi.metadata.labels = None;
    vmi.metadata.owner_references = None;
    vmi.spec.networks = Vec::new();
    vmi.spec.rest.clear();
    if let Some(status) = &mut vmi.status {
        status.interfaces = Vec::new();
        status.conditions = Vec::new();
        status.migration_state = None;
        let is_short = |text: &str| text.len() <= TEXT;
        status.rest.retain(|key, value| key == "reason" && value.as_str().is_some_and(is_short));
        for text in [&mut status.phase, &mut status.node_name] {
            if !is_short(text) {
                *text = String::new();
            }
        }
    }
}

fn trim_claim(claim: &mut PersistentVolumeClaim) {
    trim_metadata(&mut claim.metadata, &[annotations::CSI_ATTACH, annotations::CSI_VOLUME]);
    claim.spec = None;
    claim.status = None;
}
