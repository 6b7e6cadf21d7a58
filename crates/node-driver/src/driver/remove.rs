//! `Remove`: the VM, the volumes that are its own, and its Secret. It ends well only when the VM is seen to be gone, and
//! can be repeated from wherever an earlier one was cut off.
//!
//! Every error is worded without the two words that rancher-machine takes for success.

use std::time::Duration;

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
            let uid = vm.uid().unwrap_or_default();
            let left = self.mark_claims(&host, &place, &vm).await?;
            if !again(|| host.delete_vm(&place.machine, &uid)).await? {
                continue;
            }
            let (goal, name) = (Goal::Gone { uid }, place.to_string());
            wait::until(&host, &place.machine, &name, &goal, LIMIT, Start::Read, &self.parts.say)
                .await
                .map_err(|cause| Error::calm(&cause))?;
            for claim in left {
                let deleted = again(|| host.delete_claim(&claim)).await;
                deleted?;
            }
            break;
        }
        Ok(remove_secret(&host, &place).await?)
    }

    /// Names the volumes that go with the VM, for Harvester to delete them. The answer is what is left to be deleted by us,
    /// because the marking was refused (pitfalls-node-driver.md B8).
    async fn mark_claims(
        &self,
        host: &Host,
        place: &Place,
        vm: &VirtualMachine,
    ) -> Result<Vec<String>, Error> {
        let (cluster, uid) = (self.config().cluster_name, vm.uid().unwrap_or_default());
        let claims = claims_to_remove(host, vm, &labels::legal(&cluster)).await;
        let claims = claims?;
        if claims.is_empty() {
            return Ok(vec![]);
        }
        let value = claims.join(",");
        match again(|| host.annotate_vm(&place.machine, &uid, REMOVED_CLAIMS, &value)).await {
            Ok(()) => Ok(vec![]),
            Err(error) if error.status().is_some_and(|status| status.code == 404) => Ok(vec![]),
            Err(error) => {
                self.parts.say.line(&format!("volumes of VM {place} are deleted one by one: {error}"));
                Ok(claims)
            }
        }
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
