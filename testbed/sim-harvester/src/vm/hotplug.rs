//! Disks that come into a VM that runs, and leave it (docs/contract/csi-driver.md#hot-plug).
//!
//! ```text
//! template or request ──► spec of the instance ──► its status.volumeStatus, one phase with each write:
//!     attach: Pending or Bound, as its PVC is ─► AttachedToNode ─► MountedToPod ─► Ready
//!     detach: Ready ─► UnMountedFromPod ─► Detaching ─► no entry
//! ```
//! As in KubeVirt one pod (`hp-volume-…`) has all hot-plugged volumes of an instance. Another set of volumes gets another
//! pod, and what the former one alone had is let go when that runs. A pod that cannot start, for one of its volumes, so
//! keeps the later ones out and those that leave in; and one that is replaced before it runs has done nothing. There are
//! no pods here: the statuses say which volumes are in which, and names and UIDs are made up.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::{
    HotPlug,
    settings::HOTPLUG,
    volumes::{asked, claim, disks, is_called, is_hot, name, volumes, with, without},
};

/// The state of one VM's volumes at one look.
pub(crate) struct Seen<'a> {
    /// The VM, every field of it.
    pub(crate) vm: &'a Value,
    /// Its instance, if that runs.
    pub(crate) instance: Option<&'a Value>,
    /// The PersistentVolumeClaim of this name in the VM's namespace.
    pub(crate) claim: &'a dyn Fn(&str) -> Option<PersistentVolumeClaim>,
    pub(crate) way: HotPlug,
    /// Whether virt-handler does its part.
    pub(crate) works: bool,
    /// Whether the pod of this name has had time to start.
    pub(crate) has_started: &'a dyn Fn(&str) -> bool,
}

/// One write, by what is written: a merge patch on the version that was seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Vm(Value),
    VmStatus(Value),
    Instance(Value),
}

/// The next write. It is a change that brings us back here.
pub(crate) fn decide(seen: &Seen<'_>) -> Option<Step> {
    if seen.way == HotPlug::Requests
        && let Some(step) = obey_request(seen)
    {
        return Some(step);
    }
    let instance = seen.instance?;
    // the volumes of such a VM are copied to others instead, with everything in it
    let copies = seen.vm["spec"]["updateVolumesStrategy"] == "Migration";
    if seen.way == HotPlug::Declarative
        && !copies
        && let Some(spec) = follow_template(&seen.vm["spec"]["template"]["spec"], instance)
    {
        return Some(Step::Instance(on_version(instance, json!({"spec": spec}))));
    }
    let next = statuses(seen, instance);
    (next != of_volumes(instance))
        .then(|| Step::Instance(on_version(instance, json!({"status": {"volumeStatus": next}}))))
}

fn on_version(object: &Value, mut patch: Value) -> Value {
    patch["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    patch
}

fn of_volumes(instance: &Value) -> &[Value] {
    instance["status"]["volumeStatus"].as_array().map_or(&[], Vec::as_slice)
}

/// A request in the VM's status is carried out in the template, then in the instance, then it is taken away.
fn obey_request(seen: &Seen<'_>) -> Option<Step> {
    let requests = seen.vm["status"]["volumeRequests"].as_array()?;
    let (request, later) = requests.split_first()?;
    let template = &seen.vm["spec"]["template"]["spec"];
    let spec = seen.instance.map(|instance| &instance["spec"]);
    let in_template =
        |spec: Value| Step::Vm(on_version(seen.vm, json!({"spec": {"template": {"spec": spec}}})));
    let in_instance = |spec: Value| {
        let instance = seen.instance.unwrap_or(&Value::Null);
        Step::Instance(on_version(instance, json!({"spec": spec})))
    };
    let (add, remove) = (&request["addVolumeOptions"], &request["removeVolumeOptions"]);
    if add.is_object() {
        let (volume, disk) = asked(add);
        let lacks = |spec: &Value| volumes(spec).iter().all(|known| name(known) != name(&volume));
        let added = |spec: &Value| with(spec, std::slice::from_ref(&volume), std::slice::from_ref(&disk));
        if lacks(template) {
            return Some(in_template(added(template)));
        }
        if let Some(spec) = spec.filter(|spec| lacks(spec)) {
            return Some(in_instance(added(spec)));
        }
    } else {
        let found = |spec: &'_ Value| {
            let mut hot = volumes(spec).iter().filter(|volume| is_hot(volume));
            hot.find(|volume| is_called(volume, name(remove))).map(|volume| name(volume).to_owned())
        };
        if let Some(volume) = found(template) {
            return Some(in_template(without(template, &[&volume])));
        }
        if let Some((spec, volume)) = spec.and_then(|spec| Some((spec, found(spec)?))) {
            return Some(in_instance(without(spec, &[&volume])));
        }
    }
    let left = if later.is_empty() { Value::Null } else { json!(later) };
    Some(Step::VmStatus(on_version(seen.vm, json!({"status": {"volumeRequests": left}}))))
}

/// The merge patch of the instance's spec after which it has the hot-plugged volumes of the template.
fn follow_template(template: &Value, instance: &Value) -> Option<Value> {
    let spec = &instance["spec"];
    let same = |one: &Value, other: &Value| name(one) == name(other) && claim(one) == claim(other);
    let gone: Vec<_> = volumes(spec)
        .iter()
        .filter(|has| is_hot(has) && !volumes(template).iter().any(|wanted| same(has, wanted)))
        .map(name)
        .collect();
    // one that is still on its way out comes again when it is out
    let is_known = |wanted: &Value| {
        let known = volumes(spec).iter().chain(of_volumes(instance));
        known.map(name).any(|known| known == name(wanted))
    };
    let new: Vec<_> =
        volumes(template).iter().filter(|wanted| is_hot(wanted) && !is_known(wanted)).cloned().collect();
    if gone.is_empty() && new.is_empty() {
        return None;
    }
    let of_new = |disk: &&Value| new.iter().any(|volume| name(volume) == name(disk));
    let new_disks: Vec<_> = disks(template).iter().filter(of_new).cloned().collect();
    Some(with(&without(spec, &gone), &new, &new_disks))
}

/// The statuses of all volumes, each one step further.
fn statuses(seen: &Seen<'_>, instance: &Value) -> Vec<Value> {
    let (spec, before) = (&instance["spec"], of_volumes(instance));
    let pod = Pod::of(seen, instance);
    let mut targets: Vec<_> =
        before.iter().filter_map(|status| status["target"].as_str().map(str::to_owned)).collect();
    let mut next = vec![];
    for volume in volumes(spec) {
        let known = before.iter().find(|status| name(status) == name(volume));
        let mut status = known.cloned().unwrap_or_else(|| json!({"name": name(volume), "target": ""}));
        let pvc = claim(volume).and_then(|claim| (seen.claim)(claim));
        if let (Some(claim), Some(pvc)) = (claim(volume), &pvc) {
            status["persistentVolumeClaimInfo"] = info(claim, pvc);
        }
        if is_hot(volume) {
            attach(&mut status, volume, pvc.as_ref(), &pod, seen.works);
        }
        let disk = disks(spec).iter().find(|disk| name(disk) == name(volume));
        let is_in = !is_hot(volume) || status["phase"] == "Ready";
        if let Some(disk) = disk.filter(|_| is_in && status["target"] == "") {
            let target = free_target(disk, &targets);
            status["target"] = target.clone().into();
            targets.push(target);
        }
        next.push(status);
    }
    let is_in_spec = |status: &&Value| volumes(spec).iter().any(|volume| name(volume) == name(status));
    next.extend(
        before
            .iter()
            .filter(|status| !is_in_spec(status))
            .filter_map(|status| detach(status, &pod, instance, seen.works)),
    );
    next.sort_by(|one, other| name(one).cmp(name(other)));
    next
}

/// The pod that has all hot-plugged volumes of an instance and no others.
enum Pod {
    /// There is none, for there is no such volume.
    NotNeeded,
    /// There is none yet.
    Missing,
    /// It is made with this step.
    Created {
        name: String,
    },
    /// It waits for one of its volumes, or has had no time to start.
    Pending,
    Running {
        name: String,
        uid: String,
    },
}

impl Pod {
    fn of(seen: &Seen<'_>, instance: &Value) -> Self {
        let hot: Vec<_> = volumes(&instance["spec"]).iter().filter(|volume| is_hot(volume)).collect();
        let claims: Vec<_> =
            hot.iter().map(|volume| claim(volume).and_then(|claim| (seen.claim)(claim))).collect();
        let statuses = of_volumes(instance);
        let known: Vec<_> = hot
            .iter()
            .filter_map(|volume| statuses.iter().find(|status| name(status) == name(volume)))
            .collect();
        let Some(first) = known.first() else {
            return if hot.is_empty() { Self::NotNeeded } else { Self::Missing };
        };
        if known.len() < hot.len() || claims.iter().any(Option::is_none) {
            return Self::Missing;
        }
        let of_pod = |pod: &str| statuses.iter().filter(|status| pod_name(status) == pod).count();
        let pod = pod_name(first);
        let is_shared = known.iter().all(|status| pod_name(status) == pod) && of_pod(pod) == known.len();
        if pod.is_empty() || !is_shared {
            let names: Vec<_> = hot.iter().map(|volume| name(volume)).collect();
            return Self::Created { name: made_up(instance, &names.join(" ")).0 };
        }
        let (name, uid) = (pod.to_owned(), first["hotplugVolume"]["attachPodUID"].as_str());
        match uid.filter(|uid| !uid.is_empty()) {
            Some(uid) => Self::Running { name, uid: uid.to_owned() },
            None if claims.iter().flatten().all(is_attachable) && (seen.has_started)(pod) => {
                Self::Running { name, uid: made_up(instance, pod).1 }
            }
            None => Self::Pending,
        }
    }
}

fn pod_name(status: &Value) -> &str {
    status["hotplugVolume"]["attachPodName"].as_str().unwrap_or_default()
}

/// Whether a host could attach the volume of this claim.
fn is_attachable(pvc: &PersistentVolumeClaim) -> bool {
    let annotations = pvc.metadata.annotations.as_ref();
    is_bound(pvc) && annotations.and_then(|all| all.get(HOTPLUG)).is_none_or(|how| how != "stuck")
}

fn is_bound(pvc: &PersistentVolumeClaim) -> bool {
    pvc.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn info(claim: &str, pvc: &PersistentVolumeClaim) -> Value {
    let spec = pvc.spec.clone().unwrap_or_default();
    let capacity = pvc.status.as_ref().and_then(|status| status.capacity.clone());
    let requests = spec.resources.and_then(|resources| resources.requests);
    let mut info =
        json!({"claimName": claim, "volumeMode": spec.volume_mode.as_deref().unwrap_or("Filesystem")});
    let fields = [
        ("accessModes", spec.access_modes.map(|modes| json!(modes))),
        ("capacity", capacity.map(|capacity| json!(capacity))),
        ("requests", requests.map(|requests| json!(requests))),
    ];
    for (field, value) in fields.into_iter().filter_map(|(field, value)| Some((field, value?))) {
        info[field] = value;
    }
    info
}

fn enter(status: &mut Value, phase: &str, reason: &str, message: String) {
    (status["phase"], status["reason"], status["message"]) = (phase.into(), reason.into(), message.into());
}

/// One step towards `Ready`.
fn attach(status: &mut Value, volume: &Value, pvc: Option<&PersistentVolumeClaim>, pod: &Pod, works: bool) {
    let name = name(volume);
    if !status["hotplugVolume"].is_object() {
        status["hotplugVolume"] = json!({});
    }
    let phase = status["phase"].as_str().unwrap_or_default().to_owned();
    let is_on_its_way = !matches!(&*phase, "AttachedToNode" | "MountedToPod" | "Ready");
    match pod {
        Pod::Created { name: pod } => {
            status["hotplugVolume"] = json!({"attachPodName": pod});
            if is_on_its_way {
                let message = format!("Created hotplug attachment pod {pod}, for volume {name}");
                enter(status, "AttachedToNode", "SuccessfulCreate", message);
            }
        }
        Pod::Running { name: pod, uid } if status["hotplugVolume"]["attachPodUID"] != **uid => {
            status["hotplugVolume"] = json!({"attachPodName": pod, "attachPodUID": uid});
        }
        Pod::Running { .. } if phase == "AttachedToNode" && works => {
            let message = format!("Volume {name} has been mounted in virt-launcher pod");
            enter(status, "MountedToPod", "VolumeMountedToPod", message);
        }
        Pod::Running { .. } if phase == "MountedToPod" && works => {
            let message = format!("Successfully attach hotplugged volume {name} to VM");
            enter(status, "Ready", "VolumeReady", message);
        }
        Pod::Running { .. } | Pod::Pending => {}
        Pod::Missing | Pod::NotNeeded if !is_on_its_way => {}
        Pod::Missing | Pod::NotNeeded => match pvc {
            None => {
                let claim = claim(volume).unwrap_or_default();
                enter(status, "Pending", "FailedPvcNotFound", format!("PVC {claim} not found"));
            }
            Some(pvc) if !is_bound(pvc) => {
                enter(status, "Pending", "PVCNotReady", "PVC is in phase Pending".to_owned());
            }
            Some(_) => enter(status, "Bound", "PVCNotReady", "PVC is in phase Bound".to_owned()),
        },
    }
}

/// One step towards no entry.
fn detach(status: &Value, pod: &Pod, instance: &Value, works: bool) -> Option<Value> {
    let (mut after, name, former) = (status.clone(), name(status), pod_name(status));
    match status["phase"].as_str().unwrap_or_default() {
        "Ready" | "MountedToPod" if !works => {}
        "Ready" | "MountedToPod" => {
            let message = format!("Volume {name} has been unmounted from virt-launcher pod");
            enter(&mut after, "UnMountedFromPod", "VolumeUnMountedFromPod", message);
            after["target"] = "".into();
            // it is in a pod that ran, whatever pod was to follow
            after["hotplugVolume"] =
                json!({"attachPodName": former, "attachPodUID": made_up(instance, former).1});
        }
        "UnMountedFromPod" | "AttachedToNode" => {
            let message = format!("Deleted hotplug attachment pod {former}, for volume {name}");
            enter(&mut after, "Detaching", "SuccessfulDelete", message);
        }
        // a pod that never ran goes at once, and one that ran when the next one runs
        "Detaching"
            if status["hotplugVolume"]["attachPodUID"].as_str().is_some_and(|uid| !uid.is_empty())
                && !matches!(pod, Pod::NotNeeded | Pod::Running { .. }) => {}
        _ => return None,
    }
    Some(after)
}

/// Name and UID of a pod: others each time.
fn made_up(instance: &Value, of: &str) -> (String, String) {
    let metadata = &instance["metadata"];
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, metadata["uid"].as_str(), metadata["resourceVersion"].as_str(), of).hash(&mut hasher);
        hasher.finish()
    };
    let (high, low) = (hash(0), hash(1));
    let uid = format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    );
    (format!("hp-volume-{}", &uid[..5]), uid)
}

/// The first name of a disk that no other disk of the guest has: `sda` on, or `vda` on for virtio.
fn free_target(disk: &Value, taken: &[String]) -> String {
    let kinds = ["disk", "lun", "cdrom"];
    let bus = kinds.iter().find_map(|kind| disk[kind]["bus"].as_str());
    let prefix = if bus == Some("virtio") { "vd" } else { "sd" };
    let letters = || (b'a'..=b'z').map(char::from);
    let one = letters().map(|letter| format!("{prefix}{letter}"));
    let two = letters().flat_map(|first| letters().map(move |second| format!("{prefix}{first}{second}")));
    one.chain(two).find(|target| !taken.contains(target)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
