//! `Remove` deletes the VM, its own volumes and its Secret, gives its static addresses back, and deletes nothing that belongs to another machine. It succeeds only
//! once the VM is gone, and it continues where a killed removal stopped.
//!
//! ```text
//! same Harvester? ──► VM? ──no──► volumes by their names, if those or a UID were stored ────────────┐
//!                      └──yes──► ours? ──► volumes to Harvester or to us ──► delete VM ──► gone ──► Secret ──► addresses
//! ```
//! Each delete carries the UID that was read. No error has the words `not found`, which rancher-machine takes for success
//! (`commands/rm.go`).

use std::time::Duration;

use harvester_api::{
    VirtualMachine,
    annotations::{REMOVE_ALL_PVCS, REMOVED_CLAIMS},
    labels::GUEST_CLUSTER,
};
use kube::ResourceExt as _;
use program::capabilities::{Right, denied};

use super::{Driver, Error, retried};
use crate::{
    harvester::{self, Claim, Harvester, follow::Start},
    labels,
    machine::secret_name,
    objects, ownership,
    reference::Reference,
    wait::{self, Goal},
};

/// Rights with which the driver deletes volumes itself.
const DELETE_CLAIMS: [Right; 2] =
    [Right::new("get", "", "persistentvolumeclaims"), Right::new("delete", "", "persistentvolumeclaims")];

/// Limit for the deletion of a VM.
const LIMIT: Duration = Duration::from_secs(600);

impl Driver {
    /// `Remove`.
    ///
    /// # Errors
    /// Why the VM was not deleted, or what is left of it.
    pub async fn remove(&self) -> Result<(), Error> {
        let (harvester, vm_ref) = self.harvester()?;
        self.check_harvester(&harvester, &vm_ref).await?;
        let Some(vm) = retried(|| harvester.vm(&vm_ref.name)).await? else {
            self.dependencies.output.line(&format!("no VM {vm_ref} at {}", harvester.server()));
            self.remove_left_claims(&harvester, &vm_ref).await?;
            remove_secret(&harvester, &vm_ref, None).await?;
            return self.release_all(&harvester, &vm_ref).await;
        };
        let config = self.config();
        let refusal =
            ownership::removal_refusal(&vm, &vm_ref.to_string(), &config.cluster_name, &config.vm_uid);
        if let Some(refusal) = refusal {
            return Err(Error::mask_not_found(&refusal));
        }
        let claims = claims_to_remove(&harvester, &vm_ref, &vm, &labels::legal(&config.cluster_name)).await?;
        let uid = vm.uid().unwrap_or_default();
        let deleted = self.delete_vm_with_claims(&harvester, &vm_ref, &uid, &claims, LIMIT).await;
        if !deleted.map_err(|why| Error::mask_not_found(&why))? {
            self.dependencies
                .output
                .line(&format!("VM {vm_ref} was gone already, or another VM has its name"));
        }
        remove_secret(&harvester, &vm_ref, Some(&uid)).await?;
        self.release_all(&harvester, &vm_ref).await
    }

    async fn release_all(&self, harvester: &Harvester, vm_ref: &Reference) -> Result<(), Error> {
        let interfaces = self.config().network_info.unwrap_or_default().interfaces;
        let pools: Vec<String> =
            interfaces.into_iter().map(|nic| nic.ip_pool).filter(|pool| !pool.is_empty()).collect();
        let released = self.release_addresses(harvester, vm_ref, &pools).await;
        released.map_err(|why| Error::mask_not_found(&why))
    }

    /// Fails if the credential leads to another Harvester than the one on which the machine was created: that the VM is
    /// absent there means nothing, and a VM of its name there belongs to somebody else. Upstream's driver stores no UID.
    async fn check_harvester(&self, harvester: &Harvester, vm_ref: &Reference) -> Result<(), Error> {
        let config = self.config();
        if config.harvester_uid.is_empty() {
            return Ok(());
        }
        let found = retried(|| harvester.server_version()).await.map_err(|error| {
            Error::mask_not_found(&format!(
                "whether this is the Harvester of VM {vm_ref} cannot be told: {error}"
            ))
        })?;
        if found.uid == config.harvester_uid {
            return Ok(());
        }
        let (server, made_at) = (harvester.server(), &config.harvester_server);
        Err(Error::mask_not_found(&format!(
            "the credential leads to another Harvester ({server}) than the one of VM {vm_ref} (made at {made_at}): renew the \
             cloud credential for that one, or remove the machine by force if that Harvester exists no more"
        )))
    }

    /// Deletes the VM of this UID with these volumes, and waits until it is gone. `Ok(false)`: it was gone already, or
    /// another VM has its name.
    ///
    /// Harvester deletes the volumes if the VM's annotation names them. Otherwise the driver deletes them after the VM. If
    /// it can do neither, it leaves the VM, which alone names all its volumes.
    ///
    /// # Errors
    /// The objects that are left, and why.
    pub(super) async fn delete_vm_with_claims(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        uid: &str,
        claims: &[String],
        limit: Duration,
    ) -> Result<bool, String> {
        let text = |error: harvester::Error| error.to_string();
        let ours = match give_to_harvester(harvester, vm_ref, uid, claims).await {
            Ok(true) => vec![],
            Ok(false) => read_claims(harvester, claims).await.map_err(text)?,
            // docs/contract/node-driver.md#B8: the webhook may refuse, and upstream's removal is stuck
            Err(refusal) => {
                let missing = denied(&harvester.client(), &vm_ref.namespace, &DELETE_CLAIMS).await;
                if !missing.is_empty() {
                    let (claims, namespace) = (claims.join(", "), &vm_ref.namespace);
                    let verbs: Vec<&str> = missing.iter().map(|missing| missing.verb).collect();
                    return Err(format!(
                        "VM {vm_ref} stays, because its volumes {claims} would be left behind: give the credential's user the \
                         right to {} persistentvolumeclaims in namespace {namespace}, or to update virtualmachines ({refusal})",
                        verbs.join(" and ")
                    ));
                }
                self.dependencies
                    .output
                    .line(&format!("volumes of VM {vm_ref} are deleted one by one: {refusal}"));
                read_claims(harvester, claims).await.map_err(text)?
            }
        };
        let deleted = retried(|| harvester.delete_vm(&vm_ref.name, uid)).await.map_err(text)?;
        if deleted {
            self.wait(harvester, vm_ref, Goal::Gone { uid: uid.to_owned() }, limit, Start::Read).await?;
        }
        // somebody may have made the VM anew on the same volumes; they are that one's now
        if !ours.is_empty() && retried(|| harvester.vm(&vm_ref.name)).await.map_err(text)?.is_some() {
            self.dependencies
                .output
                .line(&format!("the volumes stay, because another VM has the name {vm_ref}"));
            return Ok(deleted);
        }
        // after the VM: Harvester refuses to delete a volume that one uses
        delete_claims(harvester, vm_ref, &ours).await?;
        Ok(deleted)
    }

    /// Deletes the volumes of a VM that is gone. They are left if a removal that had to delete them itself was killed
    /// between the VM and them.
    ///
    /// Without the UID of a VM that `Create` brought up, the random ends of the names prove that `Create` made the volumes:
    /// it may have been killed before it answered. Other volumes with such names may be those of an earlier machine, which
    /// a user kept. The driver names them and leaves them.
    async fn remove_left_claims(&self, harvester: &Harvester, vm_ref: &Reference) -> Result<(), Error> {
        let mut claims = match retried(|| harvester.claims("")).await {
            Ok(claims) => claims,
            // upstream does not ask: its users need not have the right to
            Err(error) if error.is_forbidden() => {
                self.dependencies
                    .output
                    .line(&format!("whether volumes of VM {vm_ref} are left is unknown: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        claims.retain(|claim| {
            let used = claim.users.iter().any(|user| *user != vm_ref.to_string());
            objects::claim_suffix(&claim.name, &vm_ref.name).is_some() && !claim.is_being_deleted && !used
        });
        let config = self.config();
        let drawn: Vec<&str> = config.volume_suffixes.split(',').collect();
        let is_proven = |claim: &Claim| {
            !config.vm_uid.is_empty()
                || objects::claim_suffix(&claim.name, &vm_ref.name).is_some_and(|end| drawn.contains(&end))
        };
        let (claims, others): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_proven);
        for claim in others {
            self.dependencies.output.line(&format!(
                "volume {} stays: it is named like those of VM {vm_ref}, but no UID of that VM is stored; delete it in \
                 Harvester if nobody needs it",
                claim.name
            ));
        }
        for claim in &claims {
            self.dependencies
                .output
                .line(&format!("deleting volume {}, which is left of VM {vm_ref}", claim.name));
        }
        delete_claims(harvester, vm_ref, &claims).await.map_err(|why| Error::mask_not_found(&why))
    }
}

/// The claims of these names that exist.
async fn read_claims(harvester: &Harvester, names: &[String]) -> Result<Vec<Claim>, harvester::Error> {
    let mut claims = vec![];
    for name in names {
        claims.extend(retried(|| harvester.claim(name)).await?);
    }
    Ok(claims)
}

/// Deletes claims of a VM that is gone.
async fn delete_claims(harvester: &Harvester, vm_ref: &Reference, claims: &[Claim]) -> Result<(), String> {
    let mut faults = vec![];
    for claim in claims {
        faults.extend(retried(|| harvester.delete_claim(claim)).await.err().map(|error| error.to_string()));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let faults = faults.join("; ");
    Err(format!("VM {vm_ref} is gone and its volumes are left, delete them in Harvester: {faults}"))
}

/// Writes the names of the volumes to the VM's annotation, so that Harvester deletes them with the VM. `Ok(false)`: the VM
/// is gone.
async fn give_to_harvester(
    harvester: &Harvester,
    vm_ref: &Reference,
    uid: &str,
    claims: &[String],
) -> Result<bool, harvester::Error> {
    if claims.is_empty() {
        return Ok(true);
    }
    let (name, value) = (&vm_ref.name, claims.join(","));
    match retried(|| harvester.annotate_vm(name, uid, REMOVED_CLAIMS, &value)).await {
        // upstream never patches: its users need not have the right to
        Err(_) => retried(|| harvester.rewrite_vm(name, uid, REMOVED_CLAIMS, &value)).await,
        answer => answer,
    }
}

/// The VM's own volumes. If the whole cluster is removed, also the hot-plugged ones, and those with the cluster's label.
async fn claims_to_remove(
    harvester: &Harvester,
    vm_ref: &Reference,
    vm: &VirtualMachine,
    cluster: &str,
) -> Result<Vec<String>, Error> {
    let whole_cluster = vm.annotations().get(REMOVE_ALL_PVCS).is_some_and(|value| value == "true");
    let mut claims = wait::claim_names(vm, |claim| whole_cluster || claim["hotpluggable"] != true);
    // docs/contract/node-driver.md#B10: an empty name would select what belongs to nobody
    if whole_cluster && !cluster.is_empty() {
        let selector = format!("{GUEST_CLUSTER}={cluster}");
        let labelled = retried(|| harvester.claims(&selector)).await.map_err(|error| {
            Error::mask_not_found(&format!(
                "VM {vm_ref} stays, because the volumes that go with its cluster are unknown: {error}"
            ))
        })?;
        claims.extend(labelled.into_iter().map(|claim| claim.name));
    }
    claims.sort();
    claims.dedup();
    Ok(claims)
}

/// Deletes the Secret of the VM with UID `removed`, or of an earlier VM of its name; never the Secret of a living VM.
async fn remove_secret(
    harvester: &Harvester,
    vm_ref: &Reference,
    removed: Option<&str>,
) -> Result<(), harvester::Error> {
    let name = secret_name(&vm_ref.name);
    let found = match retried(|| harvester.secret(&name)).await {
        Ok(found) => found,
        // upstream does not read it: without the right it goes with its VM, as there
        Err(error) if error.is_forbidden() => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(secret) = found.filter(|secret| ownership::is_secret_of(secret, &vm_ref.name)) else {
        return Ok(());
    };
    let owners = secret.owner_references();
    if removed.is_some() && owners.iter().any(|owner| Some(owner.uid.as_str()) != removed) {
        let living = retried(|| harvester.vm(&vm_ref.name)).await?.and_then(|vm| vm.uid());
        if owners.iter().any(|owner| Some(&owner.uid) == living.as_ref()) {
            return Ok(());
        }
    }
    let uid = secret.uid().unwrap_or_default();
    match retried(|| harvester.delete_secret(&name, &uid)).await {
        Err(error) if error.is_forbidden() => Ok(()),
        outcome => outcome.map(drop),
    }
}
