//! The finalizers of the Go program, which this controller takes off.
//!
//! The Go program put one on every VM and VMI, and nobody could delete them while it was away (upstream issue 5137). A
//! watch tells as much.

use controller_kit::{Action, Cache, ObjectKey, RawObject, replace};
use harvester_api::{VirtualMachine, VirtualMachineInstance, finalizers};
use kube::{Api, Client, Resource, ResourceExt};
use program::capabilities::Capabilities;
use serde::de::DeserializeOwned;

use crate::{
    caches::{Caches, VmMetadata},
    condition,
    wiring::Queues,
};

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
#[error("remove a finalizer from {kind} {object}")]
pub(crate) struct Error {
    kind: &'static str,
    object: ObjectKey,
    source: kube::Error,
}

/// Takes the finalizer off a VM.
///
/// # Errors
/// Those that may pass.
pub(crate) async fn reconcile_vm(
    client: Client,
    vms: Cache<VmMetadata>,
    key: ObjectKey,
) -> Result<Action, Error> {
    let vm = vms.get(&key);
    if vm.is_some_and(|vm| has(&*vm, finalizers::LEGACY_VM)) {
        let stripped = strip::<VirtualMachine>(&client, &key, finalizers::LEGACY_VM).await;
        stripped.map_err(|source| Error { kind: "VirtualMachine", object: key, source })?;
    }
    Ok(Action::AwaitChange)
}

/// Takes the finalizer off a VMI.
///
/// # Errors
/// Those that may pass.
pub(crate) async fn reconcile_vmi(
    client: Client,
    vmis: Cache<VirtualMachineInstance>,
    key: ObjectKey,
) -> Result<Action, Error> {
    let vmi = vmis.get(&key);
    if vmi.is_some_and(|vmi| has(&*vmi, finalizers::LEGACY_VMI)) {
        let stripped = strip::<VirtualMachineInstance>(&client, &key, finalizers::LEGACY_VMI).await;
        stripped.map_err(|source| Error { kind: "VirtualMachineInstance", object: key, source })?;
    }
    Ok(Action::AwaitChange)
}

/// A finalizer that was left for want of a right is looked at again when a right changes.
pub(crate) fn look_again(capabilities: &Capabilities, caches: &Caches, queues: &Queues) {
    let (vms, into_vms) = (caches.vms.clone(), queues.vms.clone());
    let (vmis, into_vmis) = (caches.vmis.clone(), queues.vmis.clone());
    capabilities.on_change(move || {
        vms.list().iter().filter(|vm| marked_vm(vm)).for_each(|vm| into_vms.add(ObjectKey::of(&**vm)));
        vmis.list().iter().filter(|vmi| marked_vmi(vmi)).for_each(|vmi| into_vmis.add(ObjectKey::of(&**vmi)));
    });
}

/// Whether a VM carries the Go program's finalizer.
pub(crate) fn marked_vm(vm: &VmMetadata) -> bool {
    has(vm, finalizers::LEGACY_VM)
}

/// Whether a VMI carries the Go program's finalizer.
pub(crate) fn marked_vmi(vmi: &VirtualMachineInstance) -> bool {
    has(vmi, finalizers::LEGACY_VMI)
}

fn has(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// Takes off one finalizer of an object read afresh: the caches hold a trimmed one. A PUT, since the role of the
/// existing chart may not patch, and of the JSON that was read, since typed round trips lost fields of newer KubeVirt
/// versions.
async fn strip<K>(client: &Client, key: &ObjectKey, finalizer: &str) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api = Api::<RawObject<K>>::namespaced(client.clone(), &key.namespace);
    let Some(object) = api.get_opt(&key.name).await? else { return Ok(()) };
    let Some(json) = object.edited(|json| condition::remove_finalizer(json, finalizer)) else {
        return Ok(());
    };
    match replace::<K>(client, &json).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            let kind = K::kind(&());
            tracing::warn!(%kind, object = %key, finalizer, why = status.message, "left: take it off before deleting");
            Ok(())
        }
        other => other.map(drop),
    }
}
