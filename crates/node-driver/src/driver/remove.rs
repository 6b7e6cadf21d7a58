//! `Remove`: the VM, the volumes that are its own, and its Secret. It ends well only when the VM is seen to be gone, and
//! can be repeated from wherever an earlier one was cut off.
//!
//! Every error is worded without the two words that rancher-machine takes for success.

use std::time::Duration;

use cloud_config::permissions::{self, Permission};
use harvester_api::{VirtualMachine, annotations::REMOVE_ALL_PVCS, labels::GUEST_CLUSTER};
use kube::ResourceExt as _;

use super::{Driver, Error, Place, again};
use crate::{
    host::{self, Claim, Host, follow::Start},
    labels,
    machine::secret_name,
    objects::{self, REMOVED_CLAIMS},
    ownership,
    wait::{self, Goal},
};

/// What it takes to delete volumes without Harvester's help.
const DELETE_CLAIMS: [Permission; 2] = [
    Permission { verb: "get", group: "", resource: "persistentvolumeclaims", subresource: "" },
    Permission { verb: "delete", group: "", resource: "persistentvolumeclaims", subresource: "" },
];

/// How long a VM may take to go.
const LIMIT: Duration = Duration::from_secs(600);

impl Driver {
    /// `Remove`.
    ///
    /// # Errors
    /// Why the VM may still be there, or what is left of it.
    pub async fn remove(&self) -> Result<(), Error> {
        let (host, place) = self.host()?;
        self.check_harvester(&host, &place).await?;
        let Some(vm) = again(|| host.vm(&place.machine)).await? else {
            self.parts.say.line(&format!("no VM {place} at {}", host.server()));
            self.remove_left_claims(&host, &place).await?;
            return Ok(remove_secret(&host, &place, None).await?);
        };
        let config = self.config();
        let refusal =
            ownership::removal_refusal(&vm, &place.to_string(), &config.cluster_name, &config.vm_uid);
        if let Some(refusal) = refusal {
            return Err(Error::calm(&refusal));
        }
        let claims = claims_to_remove(&host, &place, &vm, &labels::legal(&config.cluster_name)).await?;
        let uid = vm.uid().unwrap_or_default();
        let deleted = self.end(&host, &place, &uid, &claims, LIMIT).await;
        if !deleted.map_err(|why| Error::calm(&why))? {
            self.parts.say.line(&format!("VM {place} was gone already, or another VM has its name"));
        }
        Ok(remove_secret(&host, &place, Some(&uid)).await?)
    }

    /// Fails where the credential leads to another Harvester than the one on which the machine was made: an absent VM there
    /// means nothing, and a VM of its name there is somebody else's. Machines of upstream's driver store no identity.
    async fn check_harvester(&self, host: &Host, place: &Place) -> Result<(), Error> {
        let config = self.config();
        if config.harvester_uid.is_empty() {
            return Ok(());
        }
        let found = again(|| host.server_version()).await.map_err(|error| {
            Error::calm(&format!("whether this is the Harvester of VM {place} cannot be told: {error}"))
        })?;
        if found.uid == config.harvester_uid {
            return Ok(());
        }
        let (server, made_at) = (host.server(), &config.harvester_server);
        Err(Error::calm(&format!(
            "the credential leads to another Harvester ({server}) than the one of VM {place} (made at {made_at}): renew the \
             cloud credential for that one, or remove the machine by force if that Harvester exists no more"
        )))
    }

    /// Deletes the VM of this UID with these volumes of it, and sees it gone. `Ok(false)` where it was gone already, or
    /// another one has its name.
    ///
    /// Once a VM is gone, little tells which volumes were its own. So it stays while they can be neither given to
    /// Harvester, to go with it, nor be deleted by us.
    ///
    /// # Errors
    /// What is left, and why.
    pub(super) async fn end(
        &self,
        host: &Host,
        place: &Place,
        uid: &str,
        claims: &[String],
        limit: Duration,
    ) -> Result<bool, String> {
        let text = |error: host::Error| error.to_string();
        let ours = match give_to_harvester(host, place, uid, claims).await {
            Ok(true) => vec![],
            Ok(false) => read_claims(host, claims).await.map_err(text)?,
            // pitfalls-node-driver.md B8: the webhook may refuse, and upstream's removal is stuck
            Err(refusal) => {
                let missing = permissions::missing(&host.client(), &place.namespace, &DELETE_CLAIMS).await;
                if !missing.is_empty() {
                    let (claims, namespace) = (claims.join(", "), &place.namespace);
                    let verbs: Vec<&str> = missing.iter().map(|missing| missing.verb).collect();
                    return Err(format!(
                        "VM {place} stays, because its volumes {claims} would be left behind: give the credential's user the \
                         right to {} persistentvolumeclaims in namespace {namespace}, or to update virtualmachines ({refusal})",
                        verbs.join(" and ")
                    ));
                }
                self.parts.say.line(&format!("volumes of VM {place} are deleted one by one: {refusal}"));
                read_claims(host, claims).await.map_err(text)?
            }
        };
        let deleted = again(|| host.delete_vm(&place.machine, uid)).await.map_err(text)?;
        if deleted {
            self.wait(host, place, Goal::Gone { uid: uid.to_owned() }, limit, Start::Read).await?;
        }
        // after the VM: Harvester refuses to delete a volume that one uses
        delete_claims(host, place, &ours).await?;
        Ok(deleted)
    }

    /// Deletes the volumes of a VM that is gone. A removal that had to delete them itself died before it did.
    async fn remove_left_claims(&self, host: &Host, place: &Place) -> Result<(), Error> {
        let mut claims = match again(|| host.claims("")).await {
            Ok(claims) => claims,
            // upstream does not ask: its users need not have the right to
            Err(error) if error.is_forbidden() => {
                self.parts.say.line(&format!("whether volumes of VM {place} are left is unknown: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        claims.retain(|claim| {
            let used = claim.users.iter().any(|user| *user != place.to_string());
            objects::is_claim_name(&claim.name, &place.machine) && !claim.is_being_deleted && !used
        });
        for claim in &claims {
            self.parts.say.line(&format!("deleting volume {}, which is left of VM {place}", claim.name));
        }
        delete_claims(host, place, &claims).await.map_err(|why| Error::calm(&why))
    }
}

/// The claims of these names that exist.
async fn read_claims(host: &Host, names: &[String]) -> Result<Vec<Claim>, host::Error> {
    let mut claims = vec![];
    for name in names {
        claims.extend(again(|| host.claim(name)).await?);
    }
    Ok(claims)
}

/// Deletes claims of a VM that is gone.
async fn delete_claims(host: &Host, place: &Place, claims: &[Claim]) -> Result<(), String> {
    let mut faults = vec![];
    for claim in claims {
        faults.extend(again(|| host.delete_claim(claim)).await.err().map(|error| error.to_string()));
    }
    if faults.is_empty() {
        return Ok(());
    }
    let faults = faults.join("; ");
    Err(format!("VM {place} is gone and its volumes are left, delete them in Harvester: {faults}"))
}

/// Names the volumes for Harvester to delete them with the VM; `Ok(false)` where the VM is gone.
async fn give_to_harvester(
    host: &Host,
    place: &Place,
    uid: &str,
    claims: &[String],
) -> Result<bool, host::Error> {
    if claims.is_empty() {
        return Ok(true);
    }
    let (name, value) = (&place.machine, claims.join(","));
    match again(|| host.annotate_vm(name, uid, REMOVED_CLAIMS, &value)).await {
        // upstream never patches: its users need not have the right to
        Err(_) => again(|| host.rewrite_vm(name, uid, REMOVED_CLAIMS, &value)).await,
        answer => answer,
    }
}

/// The machine's own volumes; with the whole cluster also those that were plugged into it, and the cluster's by label.
async fn claims_to_remove(
    host: &Host,
    place: &Place,
    vm: &VirtualMachine,
    cluster: &str,
) -> Result<Vec<String>, Error> {
    let whole_cluster = vm.annotations().get(REMOVE_ALL_PVCS).is_some_and(|value| value == "true");
    let mut claims = wait::claim_names(vm, |claim| whole_cluster || claim["hotpluggable"] != true);
    // pitfalls-node-driver.md B10: an empty name would select what belongs to nobody
    if whole_cluster && !cluster.is_empty() {
        let selector = format!("{GUEST_CLUSTER}={cluster}");
        let labelled = again(|| host.claims(&selector)).await.map_err(|error| {
            Error::calm(&format!(
                "VM {place} stays, because the volumes that go with its cluster are unknown: {error}"
            ))
        })?;
        claims.extend(labelled.into_iter().map(|claim| claim.name));
    }
    claims.sort();
    claims.dedup();
    Ok(claims)
}

/// Removes the Secret of the VM that was `removed`, or of an earlier one of its name; never that of one that lives.
async fn remove_secret(host: &Host, place: &Place, removed: Option<&str>) -> Result<(), host::Error> {
    let name = secret_name(&place.machine);
    let found = match again(|| host.secret(&name)).await {
        Ok(found) => found,
        // upstream does not read it: without the right it goes with its VM, as there
        Err(error) if error.is_forbidden() => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(secret) = found.filter(|secret| ownership::is_secret_of(secret, &place.machine)) else {
        return Ok(());
    };
    let owners = secret.owner_references();
    if removed.is_some() && owners.iter().any(|owner| Some(owner.uid.as_str()) != removed) {
        let living = again(|| host.vm(&place.machine)).await?.and_then(|vm| vm.uid());
        if owners.iter().any(|owner| Some(&owner.uid) == living.as_ref()) {
            return Ok(());
        }
    }
    let uid = secret.uid().unwrap_or_default();
    match again(|| host.delete_secret(&name, &uid)).await {
        Err(error) if error.is_forbidden() => Ok(()),
        outcome => outcome.map(drop),
    }
}
