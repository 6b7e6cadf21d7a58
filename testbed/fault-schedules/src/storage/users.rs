//! What users do during a storage schedule.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use harvester_api::VirtualMachine;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;
use test_cluster::TestCluster;
use tokio::time::Instant;

use super::{invariants::Watch, migrations::Migrations};
use crate::{
    cluster_setup::{RUNS, STOPPED, VMS, make_vm},
    fault_injection,
};

const CLAIMS: usize = 6;
const NAMESPACE: &str = "default";

/// Users whose actions follow from a seed. Each claim has one Pod at most, so that every Pod can run.
pub(super) struct Users {
    cluster: Arc<TestCluster>,
    watch: Watch,
    random: fastrand::Rng,
    migrations: Migrations,
    /// The Pod of each claim.
    claims: BTreeMap<usize, Option<String>>,
    /// Names are never used twice: a Deployment does not, either.
    made: usize,
}

impl Users {
    pub(super) fn new(cluster: &Arc<TestCluster>, watch: &Watch, mut random: fastrand::Rng) -> Self {
        let (cluster, watch) = (cluster.clone(), watch.clone());
        let migrations = Migrations::new(&cluster, random.fork());
        Self { cluster, watch, random, migrations, claims: BTreeMap::new(), made: 0 }
    }

    /// Acts until `time` has passed.
    pub(super) async fn act_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.act().await;
            self.migrations.act().await;
            let pause = Duration::from_millis(self.random.u64(..5_000));
            self.cluster.advance(pause).await;
            self.watch.look("while users act").await;
            self.watch.must_hold();
        }
    }

    async fn act(&mut self) {
        let index = self.random.usize(..CLAIMS);
        match self.random.u8(..16) {
            0..4 if !self.claims.contains_key(&index) => self.make_claim(index).await,
            0..8 => self.move_pod(index).await,
            8..10 => self.delete_pod(index).await,
            10 => self.delete_claim(index).await,
            11..14 => self.change_a_vm().await,
            14 => fault_injection::disturb_watches(&self.cluster, &mut self.random),
            _ => self.restore_pods().await,
        }
    }

    async fn make_claim(&mut self, index: usize) {
        let number = self.made;
        self.made += 1;
        let name = format!("data-{index}");
        let key = format!("{NAMESPACE}/{name}");
        if self.cluster.guest.get::<PersistentVolumeClaim>(&key).await.is_some() {
            // the former one is going
            return;
        }
        tracing::info!(name, number, "claim made");
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "harvester",
                "resources": {"requests": {"storage": "1Gi"}}}});
        self.cluster.guest.apply(&claim.to_string()).await;
        self.claims.insert(index, None);
        self.make_pod(index).await;
    }

    async fn make_pod(&mut self, index: usize) {
        let Some(pod) = self.claims.get_mut(&index) else { return };
        let name = format!("pod-{index}-{}", self.made);
        self.made += 1;
        *pod = Some(name.clone());
        let node = VMS.get(self.random.usize(..=VMS.len()));
        tracing::info!(name, node, "pod made");
        let selector = node.map(|node| json!({"kubernetes.io/hostname": node})).unwrap_or_default();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"nodeSelector": selector, "containers": [{"name": "main", "image": "busybox"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{index}")}}]}});
        self.cluster.guest.apply(&pod.to_string()).await;
    }

    async fn delete_pod(&mut self, index: usize) {
        if let Some(name) = self.claims.get_mut(&index).and_then(Option::take) {
            tracing::info!(name, "pod deleted");
            self.cluster.guest.delete::<Pod>(&format!("{NAMESPACE}/{name}")).await;
        }
    }

    async fn move_pod(&mut self, index: usize) {
        self.delete_pod(index).await;
        self.make_pod(index).await;
    }

    async fn delete_claim(&mut self, index: usize) {
        self.delete_pod(index).await;
        if self.claims.remove(&index).is_some() {
            tracing::info!(index, "claim deleted");
            let key = format!("{NAMESPACE}/data-{index}");
            self.cluster.guest.delete::<PersistentVolumeClaim>(&key).await;
        }
    }

    /// As a Deployment does: a Pod that is gone is made again.
    pub(super) async fn restore_pods(&mut self) {
        for (index, pod) in self.claims.clone() {
            let Some(pod) = pod else { continue };
            let known = self.cluster.guest.get::<Pod>(&format!("{NAMESPACE}/{pod}")).await;
            if known.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()) {
                self.make_pod(index).await;
            }
        }
    }

    /// Every machine is there, runs, and is where it moved to.
    pub(super) async fn restore_vms(&mut self) {
        self.migrations.let_all_go_on().await;
        for vm in VMS {
            if self.cluster.harvester.get::<VirtualMachine>(&self.key(vm)).await.is_none() {
                make_vm(&self.cluster, vm).await;
            }
            self.run(vm, RUNS).await;
        }
    }

    pub(super) async fn delete_all(&mut self) {
        for index in 0..CLAIMS {
            self.delete_claim(index).await;
        }
        self.migrations.delete_all().await;
    }

    /// The Pods that should run.
    pub(super) fn pods(&self) -> Vec<String> {
        self.claims.values().flatten().map(|pod| format!("{NAMESPACE}/{pod}")).collect()
    }

    async fn change_a_vm(&mut self) {
        let vm = VMS[self.random.usize(..VMS.len())];
        let choice = self.random.u8(..5);
        tracing::info!(vm, choice, "stopped, started, deleted or made");
        match choice {
            _ if self.cluster.harvester.get::<VirtualMachine>(&self.key(vm)).await.is_none() => {
                make_vm(&self.cluster, vm).await;
            }
            0 => self.run(vm, STOPPED).await,
            1..4 => self.run(vm, RUNS).await,
            _ => self.cluster.harvester.delete::<VirtualMachine>(&self.key(vm)).await,
        }
    }

    async fn run(&self, vm: &str, strategy: &str) {
        let patch = json!({"spec": {"runStrategy": strategy}});
        self.cluster.harvester.patch::<VirtualMachine>(&self.key(vm), patch).await;
    }

    fn key(&self, vm: &str) -> String {
        format!("{}/{vm}", self.cluster.guest_cluster().vm_namespace)
    }
}
