//! `Remove`: the VM, the volumes that are its own, and its Secret. It ends well only when the VM is seen to be gone, and
//! can be repeated from wherever an earlier one was cut off.
//!
//! Every error is worded without the two words that rancher-machine takes for success.

use std::time::Duration;

use cloud_config::permissions::{self, Permission};
use harvester_api::{VirtualMachine, annotations::REMOVE_ALL_PVCS, labels::GUEST_CLUSTER};
use kube::ResourceExt as _;

use super::{Driver, Error, Place, again, create};
use crate::{
    host::{self, Host, follow::Start},
    labels,
    machine::secret_name,
    objects::REMOVED_CLAIMS,
    wait::{self, Goal},
};

/// What it takes to delete volumes without Harvester's help.
const DELETE_CLAIMS: [Permission; 1] =
    [Permission { verb: "delete", group: "", resource: "persistentvolumeclaims", subresource: "" }];

/// How long a VM may take to go.
const LIMIT: Duration = Duration::from_secs(600);

impl Driver {
    /// `Remove`.
    ///
    /// # Errors
    /// Why the VM may still be there.
    pub async fn remove(&self) -> Result<(), Error> {
        let (host, place) = self.host()?;
        // a VM made in the moment between is another round
        while let Some(vm) = again(|| host.vm(&place.machine)).await? {
            let claims = claims_to_remove(&host, &vm, &labels::legal(&self.config().cluster_name)).await?;
            let uid = vm.uid().unwrap_or_default();
            if self.end(&host, &place, &uid, &claims, LIMIT).await.map_err(|why| Error::calm(&why))? {
                break;
            }
        }
        Ok(remove_secret(&host, &place).await?)
    }

    /// Deletes the VM of this UID with these volumes of it, and sees it gone. `Ok(false)` where it was gone already, or
    /// another one has its name.
    ///
    /// Once a VM is gone, nothing tells any more which volumes were its own. So it stays while they can be neither given
    /// to Harvester, to go with it, nor be deleted by us.
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
        let ours = match give_to_harvester(host, place, uid, claims).await {
            Ok(true) => &[],
            Ok(false) => return Ok(false),
            // pitfalls-node-driver.md B8: the webhook may refuse, and upstream's removal is stuck
            Err(refusal) => {
                if !permissions::missing(&host.client(), &place.namespace, &DELETE_CLAIMS).await.is_empty() {
                    let (claims, namespace) = (claims.join(", "), &place.namespace);
                    return Err(format!(
                        "VM {place} stays, because its volumes {claims} would be left behind: give the credential's user the \
                         right to delete persistentvolumeclaims in namespace {namespace}, or to update virtualmachines ({refusal})"
                    ));
                }
                self.parts.say.line(&format!("volumes of VM {place} are deleted one by one: {refusal}"));
                claims
            }
        };
        let deleted =
            again(|| host.delete_vm(&place.machine, uid)).await.map_err(|error| error.to_string())?;
        if deleted {
            self.wait(host, place, Goal::Gone { uid: uid.to_owned() }, limit, Start::Read).await?;
        }
        // after the VM: Harvester refuses to delete a volume that one uses
        let mut faults = vec![];
        for claim in ours {
            faults.extend(again(|| host.delete_claim(claim)).await.err().map(|error| error.to_string()));
        }
        if faults.is_empty() {
            return Ok(deleted);
        }
        Err(format!(
            "VM {place} is gone and its volumes are left, delete them in Harvester: {}",
            faults.join("; ")
        ))
    }
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
    vm: &VirtualMachine,
    cluster: &str,
) -> Result<Vec<String>, host::Error> {
    let whole_cluster = vm.annotations().get(REMOVE_ALL_PVCS).is_some_and(|value| value == "true");
    let mut claims = wait::claim_names(vm, |claim| whole_cluster || claim["hotpluggable"] != true);
    // pitfalls-node-driver.md B10: an empty name would select what belongs to nobody
    if whole_cluster && !cluster.is_empty() {
        let labelled = match again(|| host.claims_labelled(GUEST_CLUSTER, cluster)).await {
            Ok(labelled) => labelled,
            Err(error) if error.is_forbidden() => vec![],
            Err(error) => return Err(error),
        };
        claims.extend(labelled);
    }
    claims.sort();
    claims.dedup();
    Ok(claims)
}

async fn remove_secret(host: &Host, place: &Place) -> Result<(), host::Error> {
    let name = secret_name(&place.machine);
    let found = match again(|| host.secret(&name)).await {
        Ok(found) => found,
        // upstream does not read it: without the right it goes with its VM, as there
        Err(error) if error.is_forbidden() => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(secret) = found.filter(create::is_ours) else { return Ok(()) };
    let uid = secret.uid();
    match again(|| host.delete_secret(&name, uid.as_deref())).await {
        Err(error) if error.is_forbidden() => Ok(()),
        outcome => outcome.map(drop),
    }
}
