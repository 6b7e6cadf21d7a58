//! What users do to VMs: stop, start, delete and make again.

use controller_kit::ObjectKey;
use harvester_api::VirtualMachine;
use serde_json::json;
use sim_harvester::Backend;

use super::Users;
use crate::cluster_setup::{RUNS, STOPPED, VMS, make_vm};

impl Users {
    pub(super) async fn change_a_vm(&mut self) {
        let vm = VMS[self.random.usize(..VMS.len())];
        let choice = self.random.u8(..4);
        tracing::info!(vm, choice, "stopped, started, deleted or made");
        match choice {
            _ if !self.is_there(vm).await => make_vm(&self.cluster, vm).await,
            0 | 1 => self.run(vm, STOPPED).await,
            2 => self.run(vm, RUNS).await,
            _ => self.cluster.harvester.delete::<VirtualMachine>(&self.key(vm).to_string()).await,
        }
    }

    /// The VM is there, runs, and its backend serves.
    pub(super) async fn restore(&self, vm: &str) {
        if !self.is_there(vm).await {
            make_vm(&self.cluster, vm).await;
        }
        self.run(vm, RUNS).await;
        self.set_backend(vm, Backend::Ok).await;
    }

    pub(super) async fn set_backend(&self, vm: &str, backend: Backend) {
        if self.is_there(vm).await {
            let outcome = self.simulation.set_backend(&self.key(vm), backend).await;
            outcome.expect("nothing is in the way of the administrator");
        }
    }

    /// All VMs run.
    pub(crate) async fn restore_all(&self) {
        for vm in VMS {
            self.restore(vm).await;
        }
    }

    async fn run(&self, vm: &str, strategy: &str) {
        let patch = json!({"spec": {"runStrategy": strategy}});
        self.cluster.harvester.patch::<VirtualMachine>(&self.key(vm).to_string(), patch).await;
    }

    async fn is_there(&self, vm: &str) -> bool {
        self.cluster.harvester.get::<VirtualMachine>(&self.key(vm).to_string()).await.is_some()
    }

    fn key(&self, vm: &str) -> ObjectKey {
        ObjectKey::new(&self.cluster.guest_cluster().vm_namespace, vm)
    }
}
