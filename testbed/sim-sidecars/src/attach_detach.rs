//! The attach-detach controller of kube-controller-manager: a VolumeAttachment for each volume and node that pods need
//! together, deleted when they do not any more and kubelet has unmounted the volume.
//!
//! It says in a Node's status what is attached, before kubelet mounts, and reads there what kubelet uses. One worker, as the
//! original has one loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    sync::Mutex,
    time::Duration,
};

use controller_kit::{Action, ObjectKey, Queue};
use harvester_api::names::CSI_DRIVER;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Resource as _, ResourceExt, api::PostParams};
use program::TaskGroup;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sim_harvester::guest::OUT_OF_SERVICE;
use tokio::time::Instant;

use crate::world::{Problem, World, delete, handle, is_going, is_over, node_of, patch_status, used};

/// The name of the one VolumeAttachment of a volume and a node.
pub(crate) fn attachment_name(handle: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{CSI_DRIVER}{node}"));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{digits}")
}

/// The name of a volume in the status of a Node.
pub(crate) fn unique_name(volume: &PersistentVolume) -> String {
    format!("kubernetes.io/csi/{CSI_DRIVER}^{}", handle(volume).unwrap_or_default())
}

/// Since when volumes are to be detached, by the name of the VolumeAttachment.
type Leaving = Mutex<BTreeMap<String, Instant>>;

pub(crate) fn start(world: &Arc<World>, tasks: &TaskGroup) {
    let queue = Queue::<&'static str>::new();
    let add = queue.clone();
    world.on_change(move || add.add("attachments"));
    let (world, in_life, leaving) = (world.clone(), tasks.clone(), Arc::new(Leaving::default()));
    tasks.spawn_until_stop(async move {
        world.ready().await;
        queue.run(&in_life, 1, move |_| {
            let (world, leaving) = (world.clone(), leaving.clone());
            async move { reconcile(&world, &leaving).await }
        });
    });
}

async fn reconcile(world: &World, leaving: &Leaving) -> Result<Action, Problem> {
    let pods = world.pods.list();
    let mut wanted: BTreeMap<(String, String), Arc<Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !is_over(pod)) {
        let Some(node) = node_of(pod) else { continue };
        for used in used(pod) {
            if let Some(volume) = world.bound(&used.claim) {
                wanted.insert((volume.name_any(), node.to_owned()), pod.clone());
            }
        }
    }
    let again = detach(world, leaving, &wanted).await?;
    attach(world, &wanted).await?;
    report(world).await?;
    Ok(again.map_or(Action::AwaitChange, Action::RequeueAfter))
}

fn ours(world: &World) -> impl Iterator<Item = Arc<VolumeAttachment>> {
    world.attachments.list().into_iter().filter(|one| one.spec.attacher == CSI_DRIVER)
}

fn pair(attachment: &VolumeAttachment) -> (String, String) {
    let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
    (volume, attachment.spec.node_name.clone())
}

async fn detach(
    world: &World,
    leaving: &Leaving,
    wanted: &BTreeMap<(String, String), Arc<Pod>>,
) -> Result<Option<Duration>, Problem> {
    let mut again: Option<Duration> = None;
    let surplus: Vec<_> =
        ours(world).filter(|one| !wanted.contains_key(&pair(one)) && !is_going(&**one)).collect();
    leaving
        .lock()
        .expect("no panic while noting")
        .retain(|name, _| surplus.iter().any(|one| one.name_any() == *name));
    for attachment in surplus {
        let since = {
            let mut leaving = leaving.lock().expect("no panic while noting");
            *leaving.entry(attachment.name_any()).or_insert_with(Instant::now)
        };
        let (volume, node) = pair(&attachment);
        let node = world.nodes.get(&ObjectKey::new("", &node));
        let volume = world.volume(&volume);
        match may_detach(node.as_deref(), volume.as_deref(), since.elapsed(), world.pace.unmount) {
            Ok(()) => delete(&world.all::<VolumeAttachment>(), &*attachment).await?,
            Err(Some(left)) => again = Some(again.map_or(left, |again| again.min(left))),
            Err(None) => {}
        }
    }
    Ok(again)
}

/// Whether a volume that no pod needs may be detached; else after which time it may, if it ever may by time alone.
fn may_detach(
    node: Option<&Node>,
    volume: Option<&PersistentVolume>,
    waits: Duration,
    longest: Duration,
) -> Result<(), Option<Duration>> {
    let (Some(node), Some(volume)) = (node, volume) else { return Ok(()) };
    let status = node.status.clone().unwrap_or_default();
    let in_use = status.volumes_in_use.unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let is_off = taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE);
    if is_off || !in_use.contains(&unique_name(volume)) {
        return Ok(());
    }
    let is_ready = status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    match longest.checked_sub(waits).filter(|left| !left.is_zero()) {
        None if !is_ready => Ok(()),
        left => Err(left.filter(|_| !is_ready)),
    }
}

async fn attach(world: &World, wanted: &BTreeMap<(String, String), Arc<Pod>>) -> Result<(), Problem> {
    for ((name, node), pod) in wanted {
        let there: BTreeSet<_> = ours(world)
            .map(|one| pair(&one))
            .filter(|(volume, _)| volume == name)
            .map(|(_, node)| node)
            .collect();
        let Some(volume) = world.volume(name).filter(|_| !there.contains(node)) else { continue };
        if world.nodes.get(&ObjectKey::new("", node)).is_none() {
            continue;
        }
        let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        let is_shared = modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany");
        if !is_shared && !there.is_empty() {
            let why = format!(
                "Multi-Attach error for volume \"{name}\" Volume is already exclusively attached to one node and can't be attached to another"
            );
            world.warn(&**pod, "FailedAttachVolume", why);
            continue;
        }
        let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": attachment_name(handle(&volume).unwrap_or_default(), node)},
            "spec": {"attacher": CSI_DRIVER, "nodeName": node, "source": {"persistentVolumeName": name}}});
        let attachment: VolumeAttachment = serde_json::from_value(attachment).expect("what we made is one");
        match world.all::<VolumeAttachment>().create(&PostParams::default(), &attachment).await {
            // a namesake is being detached: its end brings us back
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            answer => drop(world.attachments.wrote(answer?)),
        }
    }
    Ok(())
}

/// Writes into each Node's status what is attached there.
async fn report(world: &World) -> Result<(), Problem> {
    for node in world.nodes.list() {
        let name = node.name_any();
        let attached = ours(world).filter(|one| {
            one.spec.node_name == name && one.status.as_ref().is_some_and(|status| status.attached)
        });
        let names: BTreeSet<_> =
            attached.filter_map(|one| Some(unique_name(&*world.volume(&pair(&one).0)?))).collect();
        let known: BTreeSet<_> = node
            .status
            .iter()
            .flat_map(|status| status.volumes_attached.iter().flatten().map(|one| one.name.clone()))
            .collect();
        let foreign = known.iter().filter(|name| !name.contains(CSI_DRIVER));
        let wanted: BTreeSet<_> = names.iter().chain(foreign).cloned().collect();
        if wanted != known {
            let list: Vec<_> = wanted.iter().map(|name| json!({"name": name, "devicePath": ""})).collect();
            let status = json!({"volumesAttached": list});
            patch_status(&world.all::<Node>(), &world.nodes, &name, status).await?;
        }
    }
    Ok(())
}

/// Whether the Node's status says that the volume is attached.
pub(crate) fn is_reported(node: &Node, volume: &PersistentVolume) -> bool {
    let name = unique_name(volume);
    let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
    node.meta().deletion_timestamp.is_none() && attached.into_iter().flatten().any(|one| one.name == name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(360);

    #[rstest]
    #[case::unmounted(json!([]), "True", json!([]), 0, Ok(()))]
    #[case::mounted(json!(["v"]), "True", json!([]), 1_000, Err(None))]
    #[case::silent(json!(["v"]), "Unknown", json!([]), 100, Err(Some(260)))]
    #[case::silent_for_long(json!(["v"]), "Unknown", json!([]), 360, Ok(()))]
    #[case::switched_off(json!(["v"]), "Unknown", json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]), 0, Ok(()))]
    fn a_volume_leaves_a_node_after_kubelet_has_unmounted_it(
        #[case] in_use: serde_json::Value,
        #[case] ready: &str,
        #[case] taints: serde_json::Value,
        #[case] waits: u64,
        #[case] expected: Result<(), Option<u64>>,
    ) {
        let volume: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "pv"},
            "spec": {"csi": {"driver": CSI_DRIVER, "volumeHandle": "v"}}}))
        .unwrap();
        let in_use: Vec<_> = in_use.as_array().unwrap().iter().map(|_| unique_name(&volume)).collect();
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"volumesInUse": in_use, "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap();
        let told = may_detach(Some(&node), Some(&volume), Duration::from_secs(waits), LONGEST);
        assert_eq!(told.map_err(|left| left.map(|left| left.as_secs())), expected);
        assert_eq!(may_detach(None, Some(&volume), Duration::ZERO, LONGEST), Ok(()), "the Node is gone");
    }
}
