//! Volumes of Harvester in pods. A process in a pod's place, with a mount namespace of its own, writes and reads at the path
//! that kubelet gives the pod.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use sim_harvester::guest::OUT_OF_SERVICE;
use sim_sidecars::{
    kinds::VolumeSnapshot,
    machine,
    pod_process::{self, From},
    publish_path,
};
use tokio::time::Instant;

use super::{Tour, doctor, nodes, observer::NAMESPACE};
use crate::manifests::{apply_one, plain};

/// Class of the tour's claims: `examples/guest/storage-classes.yaml` with a file system that this computer lets grow.
const CLASS: &str = "tour";
const CLAIM: &str = "tour-data";
const RESTORED: &str = "tour-restored";
const SNAPSHOT: &str = "tour-before";
const FILE: &str = "file";
/// xfs takes no smaller disk.
const SIZE: &str = "320Mi";
const LARGER: &str = "384Mi";
/// The driver looks on for a minute before it says that a node is lost, and a minute later the pod is to run elsewhere.
const MOVED_WITHIN: Duration = Duration::from_secs(120);

/// What the pods write and find.
fn first() -> Vec<u8> {
    (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn pods(guest: &Client) -> Api<Pod> {
    Api::namespaced(guest.clone(), NAMESPACE)
}

/// Where a pod's process comes from, and the path at which it finds its volume.
struct Place {
    from: From,
    at: PathBuf,
    node: String,
}

impl Place {
    async fn write(&self, content: Vec<u8>) -> Result<()> {
        let (from, at) = (self.from.clone(), self.at.clone());
        let written = tokio::task::spawn_blocking(move || pod_process::write(&from, &at, FILE, &content));
        Ok(written.await??)
    }

    async fn read(&self) -> Result<Vec<u8>> {
        let (from, at) = (self.from.clone(), self.at.clone());
        Ok(tokio::task::spawn_blocking(move || pod_process::read(&from, &at, FILE)).await??)
    }

    async fn size(&self) -> Result<u64> {
        let (from, at) = (self.from.clone(), self.at.clone());
        Ok(tokio::task::spawn_blocking(move || pod_process::size(&from, &at)).await??)
    }
}

/// Makes a pod with this claim on a node, and waits until it runs.
async fn start_pod(tour: &mut Tour<'_>, name: &str, claim: &str, node: &str) -> Result<Place> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}});
    apply_one(&tour.guest, &pod).await?;
    let (pods, observer) = (pods(&tour.guest), tour.observer());
    let uid = observer
        .wait(&format!("pod {name} on {node} to have its volume"), || async {
            let pod = pods.get(name).await.map_err(plain)?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
            ensure!(phase == "Running", "it is {phase}");
            pod.uid().context("it has a UID")
        })
        .await?;
    let volume = bound(tour, claim).await?;
    let (storage, _) = tour.environment.storage()?;
    let at = publish_path(&storage.root(node), &uid, &volume);
    Ok(Place { from: storage.inside(node)?, at, node: node.to_owned() })
}

async fn end_pod(tour: &Tour<'_>, name: &str) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    pods(&tour.guest).delete(name, &now).await.map(drop).map_err(plain)
}

fn claims(tour: &Tour<'_>) -> Api<PersistentVolumeClaim> {
    Api::namespaced(tour.guest.clone(), NAMESPACE)
}

async fn make_claim(tour: &Tour<'_>, name: &str, source: Value) -> Result<()> {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": {"requests": {"storage": SIZE}}}});
    if !source.is_null() {
        claim["spec"]["dataSource"] = source;
    }
    apply_one(&tour.guest, &claim).await.map(drop)
}

/// Waits until a claim has its volume.
async fn bound(tour: &Tour<'_>, name: &str) -> Result<String> {
    let claims = claims(tour);
    tour.observer()
        .wait(&format!("claim {name} to be bound"), || async {
            let claim = claims.get(name).await.map_err(plain)?;
            let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
            ensure!(phase == "Bound", "it is {phase}");
            claim.spec.and_then(|spec| spec.volume_name).context("it names no volume")
        })
        .await
}

/// Names of two VMs.
fn two(tour: &Tour<'_>) -> Result<[String; 2]> {
    let names: Vec<_> = tour.environment.vms.iter().map(|vm| vm.node.clone()).collect();
    let (Some(first), Some(last)) = (names.first(), names.last()) else { anyhow::bail!("there is no VM") };
    Ok([first.clone(), last.clone()])
}

/// What is left out here, and why.
fn left_out(tour: &mut Tour<'_>) -> Result<Option<String>> {
    let (storage, _) = tour.environment.storage()?;
    Ok(storage.left_out().map(|why| format!("left out: {why}")))
}

/// A claim gets its volume; on a computer that allows it a pod has it, and writes, Harvester keeps it, and `doctor` has nothing
/// to say.
pub(super) async fn writes(tour: &mut Tour<'_>) -> Result<String> {
    let file_system = machine::growing_file_system().unwrap_or("ext4");
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "driver.harvesterhci.io", "allowVolumeExpansion": true,
        "parameters": {"csi.storage.k8s.io/fstype": file_system}});
    apply_one(&tour.guest, &class).await?;
    make_claim(tour, CLAIM, Value::Null).await?;
    let volume = bound(tour, CLAIM).await?;
    if let Some(why) = left_out(tour)? {
        return Ok(format!("{CLAIM} is bound to {volume}; in pods {why}"));
    }
    let [node, _] = two(tour)?;
    let place = start_pod(tour, "tour-writer", CLAIM, &node).await?;
    place.write(first()).await?;
    is_kept(tour, &volume, &node).await?;
    let green = doctor::is_content(tour).await?;
    let written = first().len();
    Ok(format!("{written} bytes, with {file_system}, on {}; doctor says {green} times green", place.node))
}

/// Harvester refuses to delete the volume of a VM; it is only asked, so that a volume that it does not keep stays too.
async fn is_kept(tour: &Tour<'_>, volume: &str, vm: &str) -> Result<()> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(tour.harvester.clone(), crate::VM_NAMESPACE);
    match claims.delete(volume, &DeleteParams::default().dry_run()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            ensure!(
                status.message.contains(vm),
                "Harvester keeps {volume} for another reason: {}",
                status.message
            );
            Ok(())
        }
        Err(error) => Err(plain(error)),
        Ok(_) => anyhow::bail!("Harvester would delete volume {volume} while VM {vm} has it"),
    }
}

/// The pod goes, and the next one finds on another node what it wrote.
pub(super) async fn moves(tour: &mut Tour<'_>) -> Result<String> {
    if let Some(why) = left_out(tour)? {
        return Ok(why);
    }
    let [from, to] = two(tour)?;
    end_pod(tour, "tour-writer").await?;
    let place = start_pod(tour, "tour-reader", CLAIM, &to).await?;
    ensure!(place.read().await? == first(), "the pod on {to} finds something else");
    let attached = attachments(tour).await?;
    ensure!(attached == [to.as_str()], "it is attached to {attached:?}");
    Ok(format!("from {from} to {to}, and the same bytes there"))
}

/// The nodes that volumes are attached to.
async fn attachments(tour: &Tour<'_>) -> Result<Vec<String>> {
    let all =
        Api::<VolumeAttachment>::all(tour.guest.clone()).list(&ListParams::default()).await.map_err(plain)?;
    Ok(all.into_iter().map(|one| one.spec.node_name).collect())
}

/// A snapshot, a new volume of it while the old one has changed, and growth under a pod that uses it.
pub(super) async fn snapshot(tour: &mut Tour<'_>) -> Result<String> {
    let (observer, guest) = (tour.observer(), tour.guest.clone());
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": SNAPSHOT, "namespace": NAMESPACE},
        "spec": {"source": {"persistentVolumeClaimName": CLAIM}}});
    apply_one(&guest, &snapshot).await?;
    let snapshots = Api::<VolumeSnapshot>::namespaced(guest.clone(), NAMESPACE);
    observer
        .wait("the snapshot to be ready", || async {
            let status = snapshots.get(SNAPSHOT).await.map_err(plain)?.status.unwrap_or_default();
            ensure!(
                status.fields.get("readyToUse") == Some(&Value::Bool(true)),
                "it says {:?}",
                status.fields
            );
            Ok(())
        })
        .await?;
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": SNAPSHOT});
    make_claim(tour, RESTORED, source).await?;
    bound(tour, RESTORED).await?;
    if let Some(why) = left_out(tour)? {
        return Ok(format!("{RESTORED} is bound; in pods {why}"));
    }
    let [_, node] = two(tour)?;
    let (storage, _) = tour.environment.storage()?;
    let from = storage.inside(&node)?;
    let uid = pods(&guest).get("tour-reader").await.map_err(plain)?.uid().context("it has a UID")?;
    let volume = bound(tour, CLAIM).await?;
    let at = publish_path(&tour.environment.storage()?.0.root(&node), &uid, &volume);
    let reader = Place { from, at, node: node.clone() };
    reader.write(b"later".to_vec()).await?;
    let restored = start_pod(tour, "tour-restored", RESTORED, &node).await?;
    ensure!(restored.read().await? == first(), "the restored volume holds something else");
    ensure!(reader.read().await? == b"later", "the volume itself changed back");
    let grown = match machine::growing_file_system() {
        Some(_) => grow(tour, &reader).await?,
        None => format!("growth is left out: {}", machine::NO_GROWTH),
    };
    Ok(format!("restored as it was; {grown}"))
}

async fn grow(tour: &Tour<'_>, place: &Place) -> Result<String> {
    let (claims, before) = (claims(tour), place.size().await?);
    let larger = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": LARGER}}}}));
    claims.patch(CLAIM, &PatchParams::default(), &larger).await.map_err(plain)?;
    tour.observer()
        .wait("the claim to have grown", || async {
            let status = claims.get(CLAIM).await.map_err(plain)?.status.unwrap_or_default();
            let size = status.capacity.and_then(|capacity| Some(capacity.get("storage")?.0.clone()));
            ensure!(size.as_deref() == Some(LARGER), "it has {size:?}");
            Ok(())
        })
        .await?;
    let after = place.size().await?;
    ensure!(after > before, "the file system has {after} bytes, as before");
    Ok(format!("grown from {} to {} MiB in use", before >> 20, after >> 20))
}

/// The machine of a node loses its power. The driver sees that and taints the node, so its pods go, and the volume serves
/// elsewhere; when the node is back, the taint goes too.
pub(super) async fn lost(tour: &mut Tour<'_>) -> Result<String> {
    if let Some(why) = left_out(tour)? {
        return Ok(why);
    }
    let [other, lost] = two(tour)?;
    let vm = tour.environment.vms.iter().find(|vm| vm.node == lost).cloned().context("there is a VM")?;
    let (observer, off) = (tour.observer(), Instant::now());
    tour.environment.storage()?.0.lose(&vm.name).await?;
    nodes::run(tour, &vm, "Halted").await?;
    observer.wait("the node to be silent", || ready(tour, &lost, false)).await?;
    let left = || MOVED_WITHIN.saturating_sub(off.elapsed());
    observer.wait_for(left(), "the driver to taint the node", || tainted(tour, &lost, true)).await?;
    observer.wait("the Event that says so", || said(tour, &lost, "NodeOutOfService")).await?;
    observer
        .wait_for(left(), "the pods of the node to go", || async {
            for pod in ["tour-reader", "tour-restored"] {
                let found = pods(&tour.guest).get_opt(pod).await.map_err(plain)?;
                ensure!(found.is_none(), "{pod} is there");
            }
            Ok(())
        })
        .await?;
    let place = start_pod(tour, "tour-rescue", RESTORED, &other).await?;
    let took = off.elapsed();
    ensure!(took <= MOVED_WITHIN, "that took {} s", took.as_secs());
    ensure!(place.read().await? == first(), "the pod on {other} finds something else");
    nodes::run(tour, &vm, "RerunOnFailure").await?;
    observer.wait("the node to be ready again", || ready(tour, &lost, true)).await?;
    observer.wait("the driver to take its taint away", || tainted(tour, &lost, false)).await?;
    observer.wait("the Event that says so", || said(tour, &lost, "NodeInService")).await?;
    let (storage, dir) = tour.environment.storage()?;
    storage.start_again(dir, &vm.name).await?;
    Ok(format!("{} s after its loss a pod went on with the volume of {lost} on {other}", took.as_secs()))
}

async fn ready(tour: &Tour<'_>, node: &str, expected: bool) -> Result<()> {
    let node = Api::<Node>::all(tour.guest.clone()).get(node).await.map_err(plain)?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    ensure!(is_ready == expected, "it is not so");
    Ok(())
}

/// Whether the driver says that nothing runs on a node any more.
async fn tainted(tour: &Tour<'_>, node: &str, expected: bool) -> Result<()> {
    let node = Api::<Node>::all(tour.guest.clone()).get(node).await.map_err(plain)?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let is_so = |value: Option<&str>| value == Some(CSI_DRIVER);
    let is_tainted = taints.iter().any(|one| one.key == OUT_OF_SERVICE && is_so(one.value.as_deref()));
    ensure!(is_tainted == expected, "its taints are {taints:?}");
    Ok(())
}

async fn said(tour: &Tour<'_>, node: &str, reason: &str) -> Result<()> {
    let events = Api::<Event>::all(tour.guest.clone()).list(&ListParams::default()).await.map_err(plain)?;
    let mut of_node = events.iter().filter(|event| event.involved_object.name.as_deref() == Some(node));
    ensure!(
        of_node.any(|event| event.reason.as_deref() == Some(reason)),
        "node {node} has no Event {reason}"
    );
    Ok(())
}

/// Deletes what these steps made, and waits until the volumes are gone.
pub(super) async fn clean_up(tour: &Tour<'_>) -> Result<()> {
    let (guest, how) = (&tour.guest, DeleteParams::default());
    let gone = |answer: kube::Result<()>| match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        answer => answer.map_err(plain),
    };
    gone(pods(guest).delete("tour-rescue", &how.clone().grace_period(0)).await.map(drop))?;
    let snapshots = Api::<VolumeSnapshot>::namespaced(guest.clone(), NAMESPACE);
    gone(snapshots.delete(SNAPSHOT, &how).await.map(drop))?;
    for claim in [CLAIM, RESTORED] {
        gone(claims(tour).delete(claim, &how).await.map(drop))?;
    }
    gone(Api::<StorageClass>::all(guest.clone()).delete(CLASS, &how).await.map(drop))?;
    let volumes = Api::<PersistentVolume>::all(guest.clone());
    tour.observer()
        .wait("the volumes to go", || async {
            let left = volumes.list(&ListParams::default()).await.map_err(plain)?.items.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
}
