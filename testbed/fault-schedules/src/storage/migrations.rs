//! Machines that move to another host of Harvester, as an administrator or an upgrade moves them.

use std::sync::Arc;

use serde_json::{Value, json};
use sim_harvester::{settings::MIGRATION, vm::VirtualMachineInstanceMigration};
use test_cluster::TestCluster;

use crate::cluster_setup::VMS;

/// Migrations that follow from a seed.
pub(super) struct Migrations {
    cluster: Arc<TestCluster>,
    random: fastrand::Rng,
    /// The names of those that do not get on.
    stuck: Vec<String>,
    made: usize,
}

impl Migrations {
    pub(super) fn new(cluster: &Arc<TestCluster>, random: fastrand::Rng) -> Self {
        Self { cluster: cluster.clone(), random, stuck: Vec::new(), made: 0 }
    }

    pub(super) async fn act(&mut self) {
        match self.random.u8(..16) {
            0..3 => self.begin().await,
            3 => self.give_one_up().await,
            4 | 5 => self.let_one_go_on().await,
            _ => {}
        }
    }

    /// Every machine arrives.
    pub(super) async fn let_all_go_on(&mut self) {
        while !self.stuck.is_empty() {
            self.let_one_go_on().await;
        }
    }

    /// No object of theirs is left.
    pub(super) async fn delete_all(&self) {
        for number in 0..self.made {
            self.delete(&name(number)).await;
        }
    }

    async fn begin(&mut self) {
        let name = name(self.made);
        self.made += 1;
        let vm = VMS[self.random.usize(..VMS.len())];
        let is_stuck = self.random.bool();
        tracing::info!(name, vm, is_stuck, "migration begins");
        let annotations = if is_stuck { json!({MIGRATION: "stuck"}) } else { json!({}) };
        let migration = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": name, "namespace": self.namespace(), "annotations": annotations},
            "spec": {"vmiName": vm}});
        self.cluster.harvester.apply(&migration.to_string()).await;
        if is_stuck {
            self.stuck.push(name);
        }
    }

    async fn let_one_go_on(&mut self) {
        let Some(name) = self.take_a_stuck_one() else { return };
        tracing::info!(name, "migration goes on");
        let patch = json!({"metadata": {"annotations": {MIGRATION: Value::Null}}});
        let key = format!("{}/{name}", self.namespace());
        self.cluster.harvester.patch::<VirtualMachineInstanceMigration>(&key, patch).await;
    }

    /// KubeVirt notes in the instance that it has failed.
    async fn give_one_up(&mut self) {
        let Some(name) = self.take_a_stuck_one() else { return };
        tracing::info!(name, "migration deleted");
        self.delete(&name).await;
    }

    fn take_a_stuck_one(&mut self) -> Option<String> {
        let index = (!self.stuck.is_empty()).then(|| self.random.usize(..self.stuck.len()))?;
        Some(self.stuck.swap_remove(index))
    }

    async fn delete(&self, name: &str) {
        let key = format!("{}/{name}", self.namespace());
        if self.cluster.harvester.get::<VirtualMachineInstanceMigration>(&key).await.is_some() {
            self.cluster.harvester.delete::<VirtualMachineInstanceMigration>(&key).await;
        }
    }

    fn namespace(&self) -> &str {
        &self.cluster.guest_cluster().vm_namespace
    }
}

fn name(number: usize) -> String {
    format!("move-{number}")
}
