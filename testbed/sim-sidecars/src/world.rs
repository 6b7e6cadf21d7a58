//! What all stand-ins see of the guest cluster, and how they write.

use std::{fmt, sync::Arc};

use controller_kit::{Cache, ObjectKey, PendingEvent, Recorder, Watched};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSINode, StorageClass, VolumeAttachment},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use program::{
    Clock, TaskGroup,
    capabilities::{Capabilities, Wanted},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Options, Pace, Plugin,
    kinds::{VolumeSnapshot, VolumeSnapshotContent},
};

/// What keeps a stand-in from going on; it tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Call(#[from] tonic::Status),
    #[error("{0}")]
    Waits(String),
    #[error("{0}")]
    File(#[from] std::io::Error),
}

/// The objects that have to do with volumes.
pub(crate) struct World {
    pub(crate) guest: Client,
    pub(crate) controller: Plugin,
    pub(crate) pace: Pace,
    pub(crate) clock: Clock,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    pub(crate) volumes: Cache<PersistentVolume>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) classes: Cache<StorageClass>,
    pub(crate) attachments: Cache<VolumeAttachment>,
    pub(crate) csi_nodes: Cache<CSINode>,
    pub(crate) snapshots: Cache<VolumeSnapshot>,
    pub(crate) contents: Cache<VolumeSnapshotContent>,
    events: Recorder,
}

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) claim: ObjectKey,
    pub(crate) read_only: bool,
}

impl World {
    pub(crate) fn start(options: Options, tasks: &TaskGroup) -> Arc<Self> {
        let Options { guest, controller, pace, clock } = options;
        fn cache<K>(tasks: &TaskGroup, guest: &Client) -> Cache<K>
        where
            K: Watched + Resource<DynamicType = ()>,
        {
            Cache::start(tasks, Api::all(guest.clone()), Default::default())
        }
        // they ask for no right: they may do everything
        let capabilities = Capabilities::start(tasks, guest.clone(), Wanted::default());
        Arc::new(Self {
            controller,
            pace,
            clock,
            claims: cache(tasks, &guest),
            volumes: cache(tasks, &guest),
            pods: cache(tasks, &guest),
            nodes: cache(tasks, &guest),
            classes: cache(tasks, &guest),
            attachments: cache(tasks, &guest),
            csi_nodes: cache(tasks, &guest),
            snapshots: cache(tasks, &guest),
            contents: cache(tasks, &guest),
            events: Recorder::start(tasks, guest.clone(), "sim-sidecars", clock, &capabilities),
            guest,
        })
    }

    /// Waits until everything that exists is known.
    pub(crate) async fn ready(&self) {
        self.claims.ready().await;
        self.volumes.ready().await;
        self.pods.ready().await;
        self.nodes.ready().await;
        self.classes.ready().await;
        self.attachments.ready().await;
        self.csi_nodes.ready().await;
        self.snapshots.ready().await;
        self.contents.ready().await;
    }

    /// Calls `hear` whenever anything has changed.
    pub(crate) fn on_change(&self, hear: impl Fn() + Clone + Send + Sync + 'static) {
        fn on<K: Watched>(cache: &Cache<K>, hear: &(impl Fn() + Clone + Send + Sync + 'static)) {
            let hear = hear.clone();
            cache.on_change(move |_| hear());
        }
        on(&self.claims, &hear);
        on(&self.volumes, &hear);
        on(&self.pods, &hear);
        on(&self.nodes, &hear);
        on(&self.classes, &hear);
        on(&self.attachments, &hear);
        on(&self.csi_nodes, &hear);
        on(&self.snapshots, &hear);
        on(&self.contents, &hear);
    }

    pub(crate) fn claims_in(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.guest.clone(), namespace)
    }

    pub(crate) fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.guest.clone())
    }

    pub(crate) fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(&ObjectKey::new("", name)).filter(|volume| handle(volume).is_some())
    }

    pub(crate) fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let name = claim.spec.as_ref()?.storage_class_name.as_deref()?;
        self.classes.get(&ObjectKey::new("", name)).filter(|class| class.provisioner == CSI_DRIVER)
    }

    /// The volume of this driver that a claim is bound to.
    pub(crate) fn bound(&self, claim: &ObjectKey) -> Option<Arc<PersistentVolume>> {
        let claim = self.claims.get(claim)?;
        if claim.status.as_ref()?.phase.as_deref() != Some("Bound") {
            return None;
        }
        self.volume(claim.spec.as_ref()?.volume_name.as_deref()?)
    }

    pub(crate) fn warn<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, why: String) {
        self.events.publish(&about.object_ref(&()), &PendingEvent::warning(reason, why));
    }

    pub(crate) fn tell<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, what: String) {
        self.events.publish(&about.object_ref(&()), &PendingEvent::normal(reason, what));
    }
}

/// Patches an object, unless it is gone.
pub(crate) async fn patch<K>(api: &Api<K>, cache: &Cache<K>, name: &str, patch: Value) -> kube::Result<()>
where
    K: Watched + Clone + DeserializeOwned + Serialize + fmt::Debug,
{
    let answer = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    keep(cache, answer)
}

/// Patches the status of an object, unless it is gone.
pub(crate) async fn patch_status<K>(
    api: &Api<K>,
    cache: &Cache<K>,
    name: &str,
    status: Value,
) -> kube::Result<()>
where
    K: Watched + Clone + DeserializeOwned + Serialize + fmt::Debug,
{
    let patch = Patch::Merge(json!({"status": status}));
    keep(cache, api.patch_status(name, &PatchParams::default(), &patch).await)
}

fn keep<K: Watched>(cache: &Cache<K>, answer: kube::Result<K>) -> kube::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        answer => answer.map(|object| drop(cache.wrote(object))),
    }
}

/// Deletes this very object, unless it is gone.
pub(crate) async fn delete<K>(api: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug,
{
    let only = Preconditions { uid: object.uid(), resource_version: None };
    let how = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    match api.delete(&object.name_any(), &how).await {
        // a namesake of it is another object
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        answer => answer.map(drop),
    }
}

/// The patch that adds a finalizer, if it is not there. It names the version that was read: finalizers are others' too.
pub(crate) fn held<K: ResourceExt>(object: &K, finalizers: &[&str]) -> Option<Value> {
    let missing = finalizers.iter().filter(|one| !object.finalizers().iter().any(|other| other == *one));
    let missing: Vec<_> = missing.map(|one| (*one).to_owned()).collect();
    (!missing.is_empty()).then(|| {
        let all: Vec<_> = object.finalizers().iter().cloned().chain(missing).collect();
        json!({"metadata": {"finalizers": all, "resourceVersion": object.resource_version()}})
    })
}

/// The patch that takes finalizers away, if one is there.
pub(crate) fn let_go<K: ResourceExt>(object: &K, finalizers: &[&str]) -> Option<Value> {
    let left: Vec<_> = object.finalizers().iter().filter(|one| !finalizers.contains(&one.as_str())).collect();
    (left.len() < object.finalizers().len())
        .then(|| json!({"metadata": {"finalizers": left, "resourceVersion": object.resource_version()}}))
}

/// The handle of a volume of this driver.
pub(crate) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == CSI_DRIVER).then_some(csi.volume_handle.as_str())
}

pub(crate) fn is_going<K: ResourceExt>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// The claims that a pod uses.
pub(crate) fn used(pod: &Pod) -> impl Iterator<Item = Used> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| {
        let source = volume.persistent_volume_claim.as_ref()?;
        let claim = ObjectKey::new(&namespace, &source.claim_name);
        Some(Used { claim, read_only: source.read_only.unwrap_or_default() })
    })
}

/// Whether the containers of a pod have ended for good.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    is_going(pod) || matches!(phase, Some("Succeeded" | "Failed"))
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The bytes of a quantity.
pub(crate) fn bytes(quantity: Option<&Quantity>) -> i64 {
    let Some(text) = quantity.map(|quantity| quantity.0.as_str()) else { return 0 };
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor: i64 = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return 0,
    };
    digits.parse::<i64>().ok().and_then(|number| number.checked_mul(factor)).unwrap_or_default()
}

/// A quantity as the sidecars write it.
pub(crate) fn quantity(bytes: i64) -> String {
    for (shift, unit) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if bytes > 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Bytes that a claim asks for.
pub(crate) fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    bytes(resources.and_then(|resources| resources.requests.as_ref()?.get("storage")))
}

/// Bytes of a volume.
pub(crate) fn capacity(volume: &PersistentVolume) -> i64 {
    bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage")))
}

/// Bytes that a claim has.
pub(crate) fn granted(claim: &PersistentVolumeClaim) -> i64 {
    bytes(claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage")))
}

/// Whether a claim has a condition.
pub(crate) fn has(claim: &PersistentVolumeClaim, condition: &str) -> bool {
    let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == condition && one.status == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1Gi", 1 << 30)]
    #[case("1073741824", 1 << 30)]
    #[case("500M", 500_000_000)]
    #[case("12Mi", 12 << 20)]
    #[case("nonsense", 0)]
    fn a_quantity_is_read_and_written(#[case] text: &str, #[case] expected: i64) {
        assert_eq!(bytes(Some(&Quantity(text.to_owned()))), expected);
        assert_eq!(bytes(Some(&Quantity(quantity(expected)))), expected);
    }
}
