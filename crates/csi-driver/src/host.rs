//! The Harvester cluster, as the credentials of the cloud-config see it: one namespace, in which all machines and volumes
//! of the guest cluster are.

pub mod kinds;
pub mod missing;
pub mod observed;
mod owner;
pub mod quantity;
pub mod reach;
pub mod rights;

use std::collections::BTreeMap;

use harvester_api::{VirtualMachine, VirtualMachineInstance, labels::GUEST_CLUSTER};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};
use kube::{
    Api, Client, Resource,
    api::{ListParams, ObjectMeta, Preconditions},
};
use serde::de::DeserializeOwned;

use kinds::{
    NetworkFilesystem, Setting, VolumeRemoteBackup, VolumeRemoteRestore, VolumeSnapshot, VolumeSnapshotClass,
    longhorn,
};

/// Namespace of Harvester's own objects, the NFS exports among them.
pub(crate) const HARVESTER_SYSTEM: &str = "harvester-system";
/// Namespace of Longhorn's objects.
pub(crate) const LONGHORN_SYSTEM: &str = "longhorn-system";
/// Objects on each page of a list: machines and claims may be large.
pub(crate) const PAGE: u32 = 100;
/// No annotation that the driver reads is longer.
const LONGEST_ANNOTATION: usize = 4 << 10;

/// The host. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    client: Client,
    namespace: String,
    owner: owner::Owner,
}

/// The PersistentVolume on the host. Before a claim is bound the name is what its author wrote, another's volume perhaps.
pub(crate) fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let phase = claim.status.as_ref()?.phase.as_deref();
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (phase == Some("Bound") && !name.is_empty()).then_some(name)
}

impl Host {
    pub fn new(client: Client, namespace: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into(), owner: owner::Owner::default() }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace of all machines and volumes.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The PersistentVolumeClaims of the volumes.
    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn machines(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn instances(&self) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn classes(&self) -> Api<StorageClass> {
        Api::all(self.client())
    }

    pub fn snapshots(&self) -> Api<VolumeSnapshot> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub fn snapshot_classes(&self) -> Api<VolumeSnapshotClass> {
        Api::all(self.client())
    }

    /// The remote backups of a namespace, which may be another tenant's.
    pub fn backups_of(&self, namespace: &str) -> Api<VolumeRemoteBackup> {
        Api::namespaced(self.client(), namespace)
    }

    pub fn restores(&self) -> Api<VolumeRemoteRestore> {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// The NFS exports of all tenants, by the names of Longhorn's volumes.
    pub fn network_filesystems(&self) -> Api<NetworkFilesystem> {
        Api::namespaced(self.client(), HARVESTER_SYSTEM)
    }

    /// The volumes of all tenants, by the names of their PersistentVolumes.
    pub fn longhorn_volumes(&self) -> Api<longhorn::Volume> {
        Api::namespaced(self.client(), LONGHORN_SYSTEM)
    }

    pub fn settings(&self) -> Api<Setting> {
        Api::all(self.client())
    }

    /// `PersistentVolumeClaim shop/pvc-1 on the host`, for sentences.
    pub fn claim_name(&self, name: impl std::fmt::Display) -> String {
        self.name_of("PersistentVolumeClaim", name)
    }

    /// `VolumeSnapshot shop/snapshot-1 on the host`, for sentences.
    pub fn name_of(&self, kind: &str, name: impl std::fmt::Display) -> String {
        format!("{kind} {}/{name} on the host", self.namespace)
    }

    /// `VirtualMachine shop/node-1 on the host`, for sentences.
    pub fn machine_name(&self, name: impl std::fmt::Display) -> String {
        format!("VirtualMachine {}/{name} on the host", self.namespace)
    }
}

/// Whether the host says that there is no such object, or that it lacks or does not grant the kind: older hosts answer
/// 403 for kinds that they do not have (docs/contract/csi-driver.md#optional).
pub fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 403 | 404))
}

/// Whether a role on the host refuses it, and no webhook.
pub fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Whether the host says that there is no such object.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Keeps the cluster's label and these annotations. Whoever writes objects in the namespace decides how long the rest is.
/// An annotation that is too long to be one of the driver's is there, and empty.
pub(crate) fn trim_metadata(metadata: &mut ObjectMeta, annotations: &[&str]) {
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == GUEST_CLUSTER);
    }
    if let Some(all) = &mut metadata.annotations {
        all.retain(|key, _| annotations.contains(&key.as_str()));
        shorten(all);
    }
}

/// [`trim_metadata`] for a claim, of whose sizes only the storage is kept.
pub(crate) fn trim_claim(claim: &mut PersistentVolumeClaim, annotations: &[&str]) {
    trim_metadata(&mut claim.metadata, annotations);
    if let Some(sizes) = claim.status.as_mut().and_then(|status| status.capacity.as_mut()) {
        sizes.retain(|key, _| key == "storage");
    }
}

fn shorten(annotations: &mut BTreeMap<String, String>) {
    for text in annotations.values_mut().filter(|text| text.len() > LONGEST_ANNOTATION) {
        *text = String::new();
    }
}

/// All objects of a list, of one state, or an error: a short list would read as if the others were gone. What a list holds
/// until it is complete is bounded: nobody reads long annotations, and the record of who wrote which field.
pub async fn list<K>(api: &Api<K>) -> kube::Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut all = vec![];
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items.into_iter().map(|mut object| {
            object.meta_mut().managed_fields = None;
            object.meta_mut().annotations.iter_mut().for_each(shorten);
            object
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Deletes the version of the object that was read, and no other.
pub fn of_version(metadata: &ObjectMeta) -> kube::api::DeleteParams {
    kube::api::DeleteParams::default().preconditions(Preconditions {
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
    })
}

/// Deletes the object that was read, and no other of its name.
pub fn of_uid(uid: Option<&str>) -> kube::api::DeleteParams {
    kube::api::DeleteParams::default()
        .preconditions(Preconditions { uid: uid.map(str::to_owned), ..Preconditions::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::bound("Bound", "pv-1", Some("pv-1"))]
    #[case::written_by_its_author("Pending", "pv-of-another", None)]
    #[case::nothing("Bound", "", None)]
    fn a_claim_has_the_volume_that_it_is_bound_to(
        #[case] phase: &str,
        #[case] volume: &str,
        #[case] expected: Option<&str>,
    ) {
        let claim = serde_json::json!({"spec": {"volumeName": volume}, "status": {"phase": phase}});
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        assert_eq!(bound_volume(&claim), expected);
    }
}
