//! The Nodes of the guest: a kubelet in each VM that runs, with a node service in memory, and what
//! cloud-controller-manager and the controllers of Kubernetes do for Nodes and their Pods.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::ResourceExt;
use program::TaskGroup;
use serde_json::json;
use sim_harvester::{
    SimHarvester,
    guest::{OUT_OF_SERVICE, UNINITIALIZED},
};
use sim_sidecars::{NodeStub, Plugin, Sidecars};
use test_cluster::TestCluster;
use tokio::time::sleep;
use tonic::Status;

use super::invariants;

/// How often somebody looks at the Nodes.
const LOOK: Duration = Duration::from_secs(3);

pub(super) struct Nodes {
    cluster: Arc<TestCluster>,
    simulation: SimHarvester,
    sidecars: Sidecars,
    root: PathBuf,
    tasks: TaskGroup,
    /// The kubelets, by Node, with the UID of the instance that each runs in.
    kubelets: BTreeMap<String, (String, TaskGroup)>,
}

impl Nodes {
    /// Looks after the Nodes until `tasks` ends.
    pub(super) fn start(
        cluster: &Arc<TestCluster>,
        simulation: &SimHarvester,
        sidecars: Sidecars,
        root: &Path,
        tasks: &TaskGroup,
    ) {
        let mut nodes = Self {
            cluster: cluster.clone(),
            simulation: simulation.clone(),
            sidecars,
            root: root.to_owned(),
            tasks: tasks.clone(),
            kubelets: BTreeMap::new(),
        };
        tasks.spawn_until_stop(async move {
            loop {
                nodes.look().await;
                sleep(LOOK).await;
            }
        });
    }

    async fn look(&mut self) {
        let namespace = &self.cluster.guest_cluster().vm_namespace;
        let nodes = self.cluster.guest.list::<Node>().await;
        for node in &nodes {
            let name = node.name_any();
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
            if self.cluster.harvester.get::<VirtualMachine>(&format!("{namespace}/{name}")).await.is_none() {
                self.cluster.guest.delete::<Node>(&name).await;
            } else if taints.iter().any(|taint| taint.key == UNINITIALIZED) {
                let left: Vec<&Taint> = taints.iter().filter(|taint| taint.key != UNINITIALIZED).collect();
                let patch = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": left}});
                self.try_patch(&name, patch).await;
            }
        }
        self.collect_pods(&nodes).await;
        self.follow_instances(&nodes).await;
    }

    /// Another writer of the Node may be faster: the next look comes.
    async fn try_patch(&self, node: &str, patch: serde_json::Value) {
        let api = kube::Api::<Node>::all(self.cluster.guest.client(test_cluster::User::Driver));
        let patch = kube::api::Patch::Merge(patch);
        drop(api.patch(node, &kube::api::PatchParams::default(), &patch).await);
    }

    /// As the garbage collector of Pods: those of Nodes that are gone, or are vouched to be off.
    async fn collect_pods(&self, nodes: &[Node]) {
        let is_lost = |name: &str| match nodes.iter().find(|node| node.name_any() == name) {
            Some(node) => {
                let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
                taints.any(|taint| taint.key == OUT_OF_SERVICE)
            }
            None => true,
        };
        for pod in self.cluster.guest.list::<Pod>().await {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
            if !node.is_empty() && is_lost(node) {
                let key = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
                self.cluster.guest.delete::<Pod>(&key).await;
            }
        }
    }

    /// A kubelet ends with the instance that it runs in. Nothing is mounted in a new one.
    async fn follow_instances(&mut self, nodes: &[Node]) {
        let vms = self.simulation.vms();
        let running: BTreeMap<_, _> = vms.into_iter().filter_map(|vm| Some((vm.node, vm.running?))).collect();
        let over = self.kubelets.iter().filter(|(node, (uid, _))| running.get(*node) != Some(uid));
        let over: Vec<_> = over.map(|(node, _)| node.clone()).collect();
        for node in over {
            if let Some((_, tasks)) = self.kubelets.remove(&node) {
                tasks.end().await;
            }
        }
        for (name, uid) in running {
            if self.kubelets.contains_key(&name) || !nodes.iter().any(|node| node.name_any() == name) {
                continue;
            }
            self.cluster.guest.patch_status::<Node>(&name, json!({"status": {"volumesInUse": null}})).await;
            let life = self.tasks.child();
            let (cluster, node) = (self.cluster.clone(), name.clone());
            // a volume is staged when its disk is in the VM
            let service = NodeStub::new(&name).staging(move |volume| {
                let (cluster, node) = (cluster.clone(), node.clone());
                async move { has_disk(&cluster, &node, &volume).await }
            });
            let plugin = Plugin::of(service.routes());
            self.sidecars.kubelet(&name, plugin, &self.root.join(&uid), &life);
            self.kubelets.insert(name, (uid, life));
        }
    }
}

/// Whether the disk of a volume is in the VM of a Node.
async fn has_disk(cluster: &TestCluster, node: &str, volume: &str) -> Result<(), Status> {
    let key = format!("{}/{node}", cluster.guest_cluster().vm_namespace);
    let instance = cluster.harvester.get::<VirtualMachineInstance>(&key).await;
    if instance.is_some_and(|instance| invariants::is_ready(&instance, volume)) {
        return Ok(());
    }
    Err(Status::unavailable(format!("the disk of volume {volume} is not there yet")))
}
