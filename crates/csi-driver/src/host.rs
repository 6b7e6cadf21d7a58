//! The Harvester cluster, as the credentials of the cloud-config see it: one namespace, in which all machines and volumes
//! of the guest cluster are.

use harvester_api::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};

/// The host. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    client: Client,
    namespace: String,
}

impl Host {
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into() }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace of all machines and volumes.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The PersistentVolumeClaims of the volumes.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn machines(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn instances(&self) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// `PersistentVolumeClaim shop/pvc-1 on the host`, for sentences.
    pub fn claim_name(&self, name: impl std::fmt::Display) -> String {
        format!("PersistentVolumeClaim {}/{name} on the host", self.namespace)
    }
}
