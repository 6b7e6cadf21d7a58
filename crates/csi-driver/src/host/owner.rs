//! Whose a volume is, by the label of a guest cluster on its claim (docs/contract/csi-driver.md#cluster-label).
//!
//! Clusters may share a namespace of the host, and whoever writes PersistentVolumes in one of them can write any handle
//! into one. A claim that carries the name of another cluster which has machines here is none of ours. A claim without
//! the label is served: volumes of the Go driver have none, nor have retained ones. So is one of a cluster that has no
//! machine any more, since volumes outlive clusters, and of a cluster that got another name.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use harvester_api::{
    VirtualMachine,
    annotations::CSI_SNAPSHOT,
    labels::{self, GUEST_CLUSTER},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, api::ListParams};
use tokio::{sync::watch, time::Instant};
use tonic::Code;

use super::Host;
use crate::refusal::Refusal;

/// A claim that was found to be no other cluster's is served for so long without a question.
const SERVED_FOR: Duration = Duration::from_secs(60);

/// The cluster that this process is for, as far as it is known.
#[derive(Clone, Default)]
pub(super) struct Owner {
    /// The machine that this process runs in, once the host has confirmed it.
    machine: Option<watch::Receiver<Option<String>>>,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Our cluster.
    cluster: Option<String>,
    /// Clusters whose claims are served, and until when.
    served: HashMap<String, Instant>,
}

impl Known {
    fn serves(&self, cluster: &str) -> bool {
        self.cluster.as_deref() == Some(cluster)
            || self.served.get(cluster).is_some_and(|until| Instant::now() < *until)
    }

    fn serve(&mut self, cluster: &str) {
        let now = Instant::now();
        self.served.retain(|_, until| now < *until);
        self.served.insert(cluster.to_owned(), now + SERVED_FOR);
    }
}

impl Host {
    /// The same, for the cluster of this machine, which the host has confirmed to be the one that this process runs in:
    /// another cluster of the namespace may have a machine of our Node's name.
    #[must_use]
    pub fn for_cluster_of(self, machine: watch::Receiver<Option<String>>) -> Self {
        Self { owner: Owner { machine: Some(machine), known: Arc::default() }, ..self }
    }

    /// # Errors
    /// PERMISSION_DENIED for the claim of another cluster.
    pub(crate) async fn check_owner(&self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let of = claim.labels().get(GUEST_CLUSTER).map_or("", String::as_str);
        let Some(ours) = self.ours_if_other(of).await? else { return Ok(()) };
        let name = self.claim_name(claim.name_any());
        Err(Refusal::new(
            Code::PermissionDenied,
            format!(
                "{name} is a volume of guest cluster {of}, and this one is {ours}: to give it away, let its \
                 PersistentVolume there retain it, or remove label {GUEST_CLUSTER} from the claim"
            ),
        ))
    }

    /// For a snapshot or a backup whose volume is gone: `of` is the cluster that the volume was of.
    ///
    /// # Errors
    /// PERMISSION_DENIED for that of another cluster.
    pub(crate) async fn check_owner_of_snapshot(&self, name: &str, of: &str) -> Result<(), Refusal> {
        let Some(ours) = self.ours_if_other(of).await? else { return Ok(()) };
        let namespace = self.namespace();
        Err(Refusal::new(
            Code::PermissionDenied,
            format!(
                "snapshot {namespace}/{name} on the host was taken of a volume of guest cluster {of}, and this one is \
                 {ours}: to give it away, remove cluster from its annotation {CSI_SNAPSHOT}"
            ),
        ))
    }

    /// The name of our cluster, where `of` is another one that has machines here.
    async fn ours_if_other(&self, of: &str) -> Result<Option<String>, Refusal> {
        let is_named = !of.is_empty() && labels::is_value(of);
        if !is_named || self.known().serves(of) {
            return Ok(None);
        }
        let Some(machine) = self.own_machine() else { return Ok(None) };
        let ours = self.cluster(&machine).await?.filter(|ours| ours != of);
        if ours.is_none() || !self.has_machines(of).await? {
            self.known().serve(of);
            return Ok(None);
        }
        Ok(ours)
    }

    /// The name of our cluster. `None` where nothing says it.
    pub(crate) async fn own_cluster(&self) -> Result<Option<String>, Refusal> {
        let known = self.known().cluster.clone();
        match (known, self.own_machine()) {
            (None, Some(machine)) => self.cluster(&machine).await,
            (known, _) => Ok(known),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.owner.known.lock().expect("no panic while it is changed")
    }

    /// `None` where nothing says which machine this is, so that nothing says whose volumes are ours.
    pub(crate) fn own_machine(&self) -> Option<String> {
        self.owner.machine.as_ref().and_then(|machine| machine.borrow().clone())
    }

    /// Our machine, as somebody has it anyway, says which cluster is ours.
    pub(crate) fn note_own(&self, vm: &VirtualMachine) {
        let name = vm.labels().get(GUEST_CLUSTER).filter(|name| !name.is_empty());
        self.known().cluster = name.cloned();
    }

    /// The name of our cluster. `None` where the machine has no label, or is not on this host: then nothing says it.
    async fn cluster(&self, machine: &str) -> Result<Option<String>, Refusal> {
        let vm = self.machines().get_metadata_opt(machine).await;
        let vm =
            vm.map_err(|error| Refusal::of_host(&format!("read {}", self.machine_name(machine)), &error))?;
        let label = vm.and_then(|vm| vm.labels().get(GUEST_CLUSTER).cloned());
        let name = label.filter(|name| !name.is_empty());
        self.known().cluster.clone_from(&name);
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
