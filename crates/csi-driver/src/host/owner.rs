//! Whose a volume is, by the label of a guest cluster on its claim (docs/contract/csi-driver.md#cluster-label).
//!
//! Clusters may share a namespace of the host, and whoever writes PersistentVolumes in one of them can write any handle
//! into one. A claim that carries the name of another cluster which has machines here is none of ours. A claim without
//! the label is served: volumes of the Go driver have none, nor have retained ones. So is one of a cluster that has no
//! machine any more, since volumes outlive clusters, and of a cluster that got another name.
//!
//! Which cluster is ours, the label of our own machine says, and the host says which machine that is. Where it has
//! answered that it has none, as for a Node that is no machine of it, nothing can ever say whose volumes are ours, and
//! all are served. Before it has answered, the claim of another cluster looks like ours: the caller comes again.

use std::{
    collections::{BTreeSet, HashMap},
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
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tonic::Code;

use super::Host;
use crate::{
    node_id::{self, OwnMachine},
    refusal::Refusal,
};

/// A claim that was found to be no other cluster's is served for so long without a question.
const SERVED_FOR: Duration = Duration::from_secs(60);
/// A call waits so long for the first answer of the host about our machine: a process that has just started has asked.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The cluster that this process is for, as far as it is known.
#[derive(Clone, Default)]
pub(super) struct Owner {
    /// The machine that this process runs in. Without it all claims are served.
    machine: Option<watch::Receiver<OwnMachine>>,
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
    /// The same, for the cluster of this machine.
    #[must_use]
    pub fn for_cluster_of(self, machine: watch::Receiver<OwnMachine>) -> Self {
        Self { owner: Owner { machine: Some(machine), known: Arc::default() }, ..self }
    }

    /// # Errors
    /// PERMISSION_DENIED for the claim of another cluster; UNAVAILABLE while the host has not said which one is ours.
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
    /// PERMISSION_DENIED for that of another cluster; UNAVAILABLE while the host has not said which one is ours.
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
        let Some(machine) = self.answered_machine().await? else { return Ok(None) };
        let ours = self.cluster(&machine).await?.filter(|ours| ours != of);
        if ours.is_none() || !self.has_machines(of).await? {
            self.known().serve(of);
            return Ok(None);
        }
        Ok(ours)
    }

    /// Those of these clusters that are not ours and have machines here. None where the host has no machine of ours.
    ///
    /// # Errors
    /// UNAVAILABLE while the host has not said which machine is ours.
    pub(crate) async fn other_clusters(&self, names: BTreeSet<String>) -> Result<Vec<String>, Refusal> {
        let mut others = vec![];
        if names.is_empty() {
            return Ok(others);
        }
        let Some(machine) = self.answered_machine().await? else { return Ok(others) };
        let ours = self.cluster(&machine).await?;
        for name in names {
            if Some(&name) != ours.as_ref() && labels::is_value(&name) && self.has_machines(&name).await? {
                others.push(name);
            }
        }
        Ok(others)
    }

    /// The name of our cluster. `None` where nothing says it.
    ///
    /// # Errors
    /// UNAVAILABLE while the host has not said which machine is ours.
    pub(crate) async fn own_cluster(&self) -> Result<Option<String>, Refusal> {
        let known = self.known().cluster.clone();
        if known.is_some() {
            return Ok(known);
        }
        match self.answered_machine().await? {
            Some(machine) => self.cluster(&machine).await,
            None => Ok(None),
        }
    }

    /// Our machine, or one of its cluster. `None` where the host has none of our addresses.
    async fn answered_machine(&self) -> Result<Option<String>, Refusal> {
        let Some(mut machine) = self.owner.machine.clone() else { return Ok(None) };
        drop(timeout(ANSWERED_WITHIN, machine.wait_for(OwnMachine::is_answered)).await);
        let says = machine.borrow().clone();
        let (why, next) = match says {
            OwnMachine::Confirmed(name) => return Ok(Some(name)),
            OwnMachine::None { .. } => return Ok(None),
            OwnMachine::NotAsked { why } => (why, "call again later"),
            OwnMachine::Several { names } => {
                let mut clusters = BTreeSet::new();
                for name in &names {
                    clusters.insert(self.label(name).await?);
                }
                // whichever of them is ours, it is of that cluster
                if clusters.len() == 1 {
                    return Ok(names.into_iter().next());
                }
                (node_id::alike(&names), "give each machine its own")
            }
        };
        let text = format!(
            "whether this volume is another guest cluster's is not known before the host has shown which machine this \
             process runs in: {why}: {next}"
        );
        Err(Refusal::new(Code::Unavailable, text))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.owner.known.lock().expect("no panic while it is changed")
    }

    /// Our machine, where the host has confirmed it.
    pub(crate) fn own_machine(&self) -> Option<String> {
        self.owner.machine.as_ref().and_then(|machine| machine.borrow().name().map(str::to_owned))
    }

    /// Our machine, as somebody has it anyway, says which cluster is ours.
    pub(crate) fn note_own(&self, vm: &VirtualMachine) {
        let name = vm.labels().get(GUEST_CLUSTER).filter(|name| !name.is_empty());
        self.known().cluster = name.cloned();
    }

    /// The name of our cluster. `None` where the machine has no label, or is not on this host: then nothing says it.
    async fn cluster(&self, machine: &str) -> Result<Option<String>, Refusal> {
        let name = self.label(machine).await?;
        self.known().cluster.clone_from(&name);
        Ok(name)
    }

    /// The name of a machine's cluster.
    async fn label(&self, machine: &str) -> Result<Option<String>, Refusal> {
        let vm = self.machines().get_metadata_opt(machine).await;
        let vm =
            vm.map_err(|error| Refusal::of_host(&format!("read {}", self.machine_name(machine)), &error))?;
        let label = vm.and_then(|vm| vm.labels().get(GUEST_CLUSTER).cloned());
        Ok(label.filter(|name| !name.is_empty()))
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
