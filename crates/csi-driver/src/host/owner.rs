//! Whose a volume is, by the label of a guest cluster on its claim (docs/contract/csi-driver.md#cluster-label).
//!
//! Clusters may share a namespace of the host, and whoever writes PersistentVolumes in one of them can write any handle
//! into one. A claim that carries the name of another cluster which has machines here is none of ours. A claim without
//! the label is served: volumes of the Go driver have none, nor have retained ones. So is one of a cluster that has no
//! machine any more, since volumes outlive clusters, and of a cluster that got another name.

use std::sync::{Arc, Mutex};

use harvester_api::labels::{self, GUEST_CLUSTER};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, api::ListParams};
use tokio::sync::watch;
use tonic::Code;

use super::Host;
use crate::refusal::Refusal;

/// The cluster that this process is for, as far as it is known.
#[derive(Clone, Default)]
pub(super) struct Owner {
    /// The machine that this process runs in.
    machine: Option<watch::Receiver<Option<String>>>,
    cluster: Arc<Mutex<Option<String>>>,
}

impl Host {
    /// The same, for the cluster of this machine.
    #[must_use]
    pub fn for_cluster_of(self, machine: watch::Receiver<Option<String>>) -> Self {
        Self { owner: Owner { machine: Some(machine), cluster: Arc::default() }, ..self }
    }

    /// # Errors
    /// PERMISSION_DENIED for the claim of another cluster.
    pub(crate) async fn check_owner(&self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let of = claim.labels().get(GUEST_CLUSTER).map_or("", String::as_str);
        let is_named = !of.is_empty() && labels::is_value(of);
        if !is_named || self.known().as_deref() == Some(of) {
            return Ok(());
        }
        let Some(ours) = self.cluster().await? else { return Ok(()) };
        if ours == of || !self.has_machines(of).await? {
            return Ok(());
        }
        let name = self.claim_name(claim.name_any());
        Err(Refusal::new(
            Code::PermissionDenied,
            format!(
                "{name} is a volume of guest cluster {of}, and this one is {ours}: to give it away, let its \
                 PersistentVolume there retain it, or remove label {GUEST_CLUSTER} from the claim"
            ),
        ))
    }

    fn known(&self) -> Option<String> {
        self.owner.cluster.lock().expect("no panic while the name is replaced").clone()
    }

    /// The name of our cluster. `None` where the machine has no label, or is not on this host: then nothing says it.
    async fn cluster(&self) -> Result<Option<String>, Refusal> {
        let machine = self.owner.machine.as_ref().and_then(|machine| machine.borrow().clone());
        let Some(machine) = machine else { return Ok(None) };
        let vm = self.machines().get_metadata_opt(&machine).await;
        let vm =
            vm.map_err(|error| Refusal::of_host(&format!("read {}", self.machine_name(&machine)), &error))?;
        let label = vm.and_then(|vm| vm.labels().get(GUEST_CLUSTER).cloned());
        let name = label.filter(|name| !name.is_empty());
        (*self.owner.cluster.lock().expect("no panic while the name is replaced")).clone_from(&name);
        Ok(name)
    }

    async fn has_machines(&self, cluster: &str) -> Result<bool, Refusal> {
        let one = ListParams::default().labels(&format!("{GUEST_CLUSTER}={cluster}")).limit(1);
        let found = self.machines().list_metadata(&one).await.map_err(|error| {
            let namespace = self.namespace();
            Refusal::of_host(&format!("list the machines of cluster {cluster} in {namespace}"), &error)
        })?;
        Ok(!found.items.is_empty())
    }
}
