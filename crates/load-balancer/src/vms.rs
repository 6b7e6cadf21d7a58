//! Virtual machines: this controller takes the finalizers of the Go program off them, and deletes the load balancers of
//! a guest cluster that is being removed.
//!
//! The Go program put a finalizer on every VM and VMI, and nobody could delete them while it was away
//! (upstream issue 5137). A watch tells as much.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use controller_kit::{Action, Cache, Change, ObjectKey, Queue, RawObject, replace};
use harvester_api::{
    LoadBalancer, VirtualMachine, VirtualMachineInstance, WorkloadType, annotations, finalizers, labels,
};
use kube::{Api, Client, Resource, ResourceExt, api::DeleteParams, api::Preconditions};
use program::TaskGroup;
use serde::de::DeserializeOwned;

use crate::{caches::Caches, condition};

/// Whether the VMs are listed. Where KubeVirt is not there, they never are. Clones share the answer.
#[derive(Clone)]
pub(crate) struct VmWatch {
    vmis: Cache<VirtualMachineInstance>,
    is_listed: Arc<AtomicBool>,
}

impl VmWatch {
    /// Wakes the load balancers of VMs in `queue` when the list is complete, and when the reason changes for which
    /// there is none.
    pub(crate) fn start(tasks: &TaskGroup, caches: &Caches, queue: &Queue<ObjectKey>) -> Self {
        let watch = Self { vmis: caches.vmis.clone(), is_listed: Arc::default() };
        let (load_balancers, queue) = (caches.load_balancers.clone(), queue.clone());
        let (vmis, is_listed) = (watch.vmis.clone(), watch.is_listed.clone());
        tasks.spawn_until_stop(async move {
            let wake = || {
                let all = load_balancers.list();
                let of_vms = all.iter().filter(|lb| lb.spec.workload() == WorkloadType::Vm);
                of_vms.for_each(|lb| queue.add(ObjectKey::of(&**lb)));
            };
            let (mut errors, mut told) = (vmis.watch_errors(), None);
            loop {
                tokio::select! {
                    () = vmis.ready() => break,
                    error = errors.wait_for(|error| *error != told) => {
                        told = error.expect("the cache holds the sender").clone();
                    }
                }
                wake();
            }
            is_listed.store(true, Ordering::Release);
            wake();
        });
        watch
    }

    /// Whether backends can be chosen.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    /// Why the watch does not work now.
    pub(crate) fn error(&self) -> Option<String> {
        self.vmis.watch_error()
    }
}

/// A failure after which the queue tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("remove a finalizer from {kind} {object}")]
    Finalizer { kind: &'static str, object: ObjectKey, source: kube::Error },
    #[error("delete load balancer {key} of the removed guest cluster {cluster}")]
    Delete { key: ObjectKey, cluster: String, source: kube::Error },
}

/// Takes the finalizer off a VM.
///
/// # Errors
/// Those that may pass.
pub(crate) async fn reconcile_vm(
    client: Client,
    vms: Cache<VirtualMachine>,
    key: ObjectKey,
) -> Result<Action, Error> {
    let vm = vms.get(&key);
    if vm.is_some_and(|vm| has(&*vm, finalizers::LEGACY_VM)) {
        let stripped = strip::<VirtualMachine>(&client, &key, finalizers::LEGACY_VM).await;
        stripped.map_err(|source| Error::Finalizer { kind: "VirtualMachine", object: key, source })?;
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
        stripped.map_err(|source| Error::Finalizer {
            kind: "VirtualMachineInstance",
            object: key,
            source,
        })?;
    }
    Ok(Action::AwaitChange)
}

/// Whether a VM carries the Go program's finalizer.
pub(crate) fn marked_vm(vm: &VirtualMachine) -> bool {
    has(vm, finalizers::LEGACY_VM)
}

/// Whether a VMI carries the Go program's finalizer.
pub(crate) fn marked_vmi(vmi: &VirtualMachineInstance) -> bool {
    has(vmi, finalizers::LEGACY_VMI)
}

fn has(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// The guest cluster, by namespace and name, that is removed with this VM: the node driver made the VM, it is deleted,
/// and Rancher has marked its volumes for removal.
pub(crate) fn removed_cluster(change: &Change<VirtualMachine>) -> Option<ObjectKey> {
    let vm = change.new.as_ref().or(change.old.as_ref())?;
    let marked = vm.annotations().get(annotations::REMOVE_ALL_PVCS).is_some_and(|value| value == "true");
    let is_node_drivers =
        vm.labels().get(labels::CREATOR).is_some_and(|creator| creator == labels::NODE_DRIVER);
    let cluster = vm.labels().get(labels::GUEST_CLUSTER).filter(|cluster| !cluster.is_empty())?;
    let deleted = change.new.is_none() || vm.meta().deletion_timestamp.is_some();
    (marked && is_node_drivers && deleted).then(|| ObjectKey::new(&change.key.namespace, cluster))
}

/// Deletes the load balancers of a guest cluster that is being removed, those of type vm too: the Go program left them
/// (docs/contract/data-paths.md#row-13).
///
/// # Errors
/// Those that may pass.
pub(crate) async fn reconcile_removed_cluster(
    client: Client,
    load_balancers: Cache<RawObject<LoadBalancer>>,
    key: ObjectKey,
) -> Result<Action, Error> {
    let (namespace, cluster) = (key.namespace.as_str(), key.name.as_str());
    let all = load_balancers.list();
    let of_cluster = all.iter().filter(|lb| {
        lb.namespace().as_deref() == Some(namespace)
            && lb.labels().get(labels::CLUSTER).is_some_and(|name| name == cluster)
            && lb.meta().deletion_timestamp.is_none()
    });
    for lb in of_cluster {
        tracing::info!(load_balancer = %ObjectKey::of(&***lb), cluster, "its guest cluster is being removed: deleted");
        let preconditions = Preconditions { uid: lb.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = Api::<LoadBalancer>::namespaced(client.clone(), namespace);
        match api.delete(&lb.name_any(), &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(source) => {
                let (key, cluster) = (ObjectKey::of(&***lb), cluster.to_owned());
                return Err(Error::Delete { key, cluster, source });
            }
        }
    }
    Ok(Action::AwaitChange)
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn vm(annotation: &str, creator: &str, deleted: Option<&str>) -> VirtualMachine {
        serde_json::from_value(json!({"metadata": {"name": "gc1-1", "namespace": "team",
            "deletionTimestamp": deleted, "annotations": {annotations::REMOVE_ALL_PVCS: annotation},
            "labels": {labels::CREATOR: creator, labels::GUEST_CLUSTER: "gc1"}}, "spec": {}}))
        .unwrap()
    }

    #[rstest]
    #[case::removed(vm("true", labels::NODE_DRIVER, Some("2026-01-01T00:00:00Z")), true)]
    #[case::still_there(vm("true", labels::NODE_DRIVER, None), false)]
    #[case::one_vm_of_many(vm("", labels::NODE_DRIVER, Some("2026-01-01T00:00:00Z")), false)]
    #[case::not_a_guest_cluster(vm("true", "terraform", Some("2026-01-01T00:00:00Z")), false)]
    fn a_guest_cluster_is_being_removed(#[case] vm: VirtualMachine, #[case] expected: bool) {
        let (key, vm) = (ObjectKey::new("team", "gc1-1"), Arc::new(vm));
        let change = Change { key: key.clone(), old: None, new: Some(vm.clone()) };
        assert_eq!(removed_cluster(&change), expected.then(|| ObjectKey::new("team", "gc1")));
        let gone = Change { key, old: Some(vm.clone()), new: None };
        let marked = vm.labels()[labels::CREATOR] == labels::NODE_DRIVER
            && vm.annotations()[annotations::REMOVE_ALL_PVCS] == "true";
        assert_eq!(removed_cluster(&gone).is_some(), marked);
    }
}
