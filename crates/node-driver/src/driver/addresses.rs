//! Static addresses from Harvester's IPPools: claimed before the VM is made, given back after it is gone.
//!
//! ```text
//! PreCreateCheck ── the claim as a dry run: is there an address, may the credential write it? ──► nothing is written
//! Create ── claim (PUT with resourceVersion) ──► network data ──► VM
//! Remove, Create that failed ── VM gone ──► release
//! ```
//! The record's holder is `namespace/name` of the VM, so whoever comes after a process that was killed finds the record: the
//! next `Create` goes on with the same address, and `Remove` gives it back also where no VM was made.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use harvester_api::{VirtualMachine, annotations::MANUALLY_RELEASE_IP};
use kube::ResourceExt as _;
use serde_json::Value;

use super::{Driver, prepare::Finding, retried};
use crate::{
    harvester::{Error, Harvester},
    machine::Machine,
    network_data,
    pools::{self, Asking, Claimed, Lease},
    reference::Reference,
};

/// How often a pool is read and written, while others write it too.
const ATTEMPTS: usize = 20;
/// Between two attempts after a conflict.
const PAUSE: Duration = Duration::from_millis(250);

/// Asks whether the machine can have its addresses. The server answers as it would for the write, and writes nothing.
pub(super) async fn question(
    harvester: &Harvester,
    vm_ref: &Reference,
    machine: &Machine,
    now: i64,
) -> Finding {
    let mut finding = Finding::default();
    let mut leases = vec![];
    for name in machine.pools() {
        let asking = Asking { holder: &vm_ref.to_string(), now };
        match planned(harvester, name, asking).await {
            Err(fault) => finding.faults.push(fault),
            Ok(Claimed { lease, put }) => {
                leases.push(lease);
                let Some(put) = put else { continue };
                match harvester.put_pool(name, &put, true).await {
                    Err(error) if error.is_forbidden() => finding.faults.push(format!(
                        "{error}: give the credential's user the rights get and update on ippools.loadbalancer.harvesterhci.io, or \
                         leave ipPool out"
                    )),
                    // a conflict is for Create, and an admission webhook may refuse dry runs alone
                    Err(error) if error.is_taken() || error.to_string().contains("dry run") => {}
                    Err(error) => finding.faults.push(error.to_string()),
                    Ok(()) => {}
                }
            }
        }
    }
    let has_dhcp = machine.nics.iter().any(|nic| nic.pool.is_none());
    if finding.faults.is_empty() && !has_dhcp && leases.iter().all(|lease| lease.gateway.is_none()) {
        let names = machine.pools().join(", ");
        finding.faults.push(format!(
            "IPPool {names} has no gateway for its address: the machine would not reach Rancher; give the range one"
        ));
    }
    finding
}

/// The claim from the pool as it is now.
async fn planned(harvester: &Harvester, name: &str, asking: Asking<'_>) -> Result<Claimed, String> {
    let text = |error: Error| error.to_string();
    // upstream's users may not list pools; then the pool's own record decides alone
    let all = match retried(|| harvester.pools()).await {
        Ok(all) => all,
        Err(error) if error.is_forbidden() => vec![],
        Err(error) => return Err(text(error)),
    };
    // after the list, so that nothing of it is newer
    let read = retried(|| harvester.pool(name)).await.map_err(text)?;
    let read = read.ok_or_else(|| format!("IPPool {name} does not exist in Harvester"))?;
    pools::claim(&read, &all, asking)
}

/// The network data that a VM starts with. `None`: it was to be in a Secret, which an earlier attempt did not come to make.
async fn network_data_of(
    harvester: &Harvester,
    vm: &VirtualMachine,
    secret: &str,
) -> Result<Option<String>, String> {
    let template = vm.spec.rest.get("template").unwrap_or(&Value::Null);
    let volumes = template["spec"]["volumes"].as_array().into_iter().flatten();
    let sources: Vec<_> = volumes.map(|volume| &volume["cloudInitNoCloud"]).collect();
    let inline = sources.iter().find_map(|source| source["networkData"].as_str());
    if inline.is_some() || sources.iter().all(|source| source["networkDataSecretRef"].is_null()) {
        return Ok(Some(inline.unwrap_or_default().to_owned()));
    }
    let read = retried(|| harvester.secret(secret)).await.map_err(|error| error.to_string())?;
    let uid = vm.uid().unwrap_or_default();
    // that of another VM is replaced
    let read = read.filter(|secret| secret.owner_references().iter().any(|owner| owner.uid == uid));
    let encoded =
        read.map(|secret| secret.data["data"]["networkdata"].as_str().unwrap_or_default().to_owned());
    let decode =
        |encoded: String| STANDARD.decode(encoded).ok().and_then(|text| String::from_utf8(text).ok());
    Ok(encoded.map(|encoded| decode(encoded).unwrap_or_default()))
}

impl Driver {
    /// Claims an address of each of the machine's pools. `made` gets the pools whose record this attempt may have made.
    ///
    /// # Errors
    /// Why a pool gives none.
    pub(super) async fn claim_addresses(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        machine: &Machine,
        made: &mut Vec<String>,
    ) -> Result<Vec<Lease>, String> {
        let mut leases = vec![];
        for name in machine.pools() {
            leases.push(self.claim_address(harvester, vm_ref, name, made).await?);
        }
        Ok(leases)
    }

    async fn claim_address(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        name: &str,
        made: &mut Vec<String>,
    ) -> Result<Lease, String> {
        let holder = vm_ref.to_string();
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let asking = Asking { holder: &holder, now: (self.dependencies.now)().as_second() };
            let Claimed { lease, put } = planned(harvester, name, asking).await?;
            let Some(put) = put else { return Ok(lease) };
            match harvester.put_pool(name, &put, false).await {
                Ok(()) => {
                    made.push(name.to_owned());
                    let address = &lease.address;
                    self.dependencies.output.line(&format!("IPPool {name} gives {address} to VM {vm_ref}"));
                    return Ok(lease);
                }
                Err(error) if error.is_passing() => {
                    // without an answer the record may be there, and then it is of this attempt
                    if !error.is_taken() && !made.iter().any(|pool| pool == name) {
                        made.push(name.to_owned());
                    }
                    last = error.to_string();
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(last)
    }

    /// Gives the machine's addresses back, once no VM of its name is there.
    ///
    /// # Errors
    /// The pools that go on to record an address, why, and what to do.
    pub(super) async fn release_addresses(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        pools: &[String],
    ) -> Result<(), String> {
        if pools.is_empty() {
            return Ok(());
        }
        let there = retried(|| harvester.vm(&vm_ref.name)).await.map_err(|error| error.to_string())?;
        if there.is_some() {
            let names = pools.join(", ");
            self.dependencies
                .output
                .line(&format!("the address of IPPool {names} stays, because a VM has the name {vm_ref}"));
            return Ok(());
        }
        let mut left = vec![];
        for name in pools {
            if let Err(error) = self.release_address(harvester, vm_ref, name).await {
                left.push(format!(
                    "VM {vm_ref} is gone and IPPool {name} records its address still ({error}): remove the machine again, or \
                     annotate the pool with {MANUALLY_RELEASE_IP}: \"<address>: {vm_ref}\""
                ));
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
    }

    /// Compares what the pools give with what the VM of an earlier attempt was made with. Where a pool lost the record, it
    /// gives another address, which the VM does not have: that one goes back, and `made` keeps the other pools.
    ///
    /// # Errors
    /// The pool that does not record the VM's address any more.
    pub(super) async fn check_addresses(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        vm: &VirtualMachine,
        machine: &Machine,
        made: &mut Vec<String>,
    ) -> Result<(), String> {
        let pools = machine.pools();
        if pools.is_empty() {
            return Ok(());
        }
        let Some(own) = network_data_of(harvester, vm, &machine.secret_name()).await? else { return Ok(()) };
        let wanted = network_data::addresses(&machine.network_data.0);
        let lost = network_data::lost(&pools, &wanted, &network_data::addresses(&own));
        let Some(pool) = lost.first() else { return Ok(()) };
        let mut why = format!(
            "VM {vm_ref} is there from an earlier attempt, and IPPool {pool} has no record any more of the address that it was \
             made with: remove the machine and make it again"
        );
        for pool in lost {
            let Some(at) = made.iter().position(|made| made == pool) else { continue };
            match self.release_address(harvester, vm_ref, pool).await {
                Ok(()) => drop(made.remove(at)),
                Err(error) => {
                    why += &format!("; IPPool {pool} goes on to record another one for it: {error}");
                }
            }
        }
        Err(why)
    }

    async fn release_address(
        &self,
        harvester: &Harvester,
        vm_ref: &Reference,
        name: &str,
    ) -> Result<(), String> {
        let holder = vm_ref.to_string();
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let read = retried(|| harvester.pool(name)).await.map_err(|error| error.to_string())?;
            // with the pool its records are gone
            let Some(read) = read else { return Ok(()) };
            let asking = Asking { holder: &holder, now: (self.dependencies.now)().as_second() };
            let Some(put) = pools::release(&read, asking)? else { return Ok(()) };
            match harvester.put_pool(name, &put, false).await {
                Ok(()) => {
                    self.dependencies
                        .output
                        .line(&format!("IPPool {name} has the address of VM {vm_ref} back"));
                    return Ok(());
                }
                Err(error) if error.is_passing() => last = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(last)
    }
}
