//! What a machine has of a volume, and the writes that give it the volume or take it away. Pure.
//!
//! ```text
//!  VM template ──virt-controller──► VMI spec ──virt-handler──► VMI status.volumeStatus
//!  volume, disk                     volume                     Bound, AttachedToNode, MountedToPod, Ready
//! ```
//! A volume has left a machine when none of the three has it any more (docs/contract/csi-driver.md#hotplug). Only what
//! this driver or the Go driver adds is ever removed: a hot-pluggable disk of that claim under the claim's own name.

use std::collections::{BTreeMap, BTreeSet};

use harvester_api::{VirtualMachine, VirtualMachineInstance, kubevirt::MigrationState, labels};
use serde_json::{Map, Value, json};

/// KubeVirt's schema allows so many volumes and disks in a machine, its root disk included.
pub const MOST_VOLUMES: usize = 256;

/// How far a volume is on its way into a machine or out of it, in KubeVirt's words; empty where it says nothing yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub phase: String,
    pub reason: String,
    pub message: String,
    /// The pod on the host that carries the volume to the machine.
    pub pod: String,
}

/// What a machine has of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    Absent,
    /// The template has it, and no instance runs: the disk comes with the next start.
    InTemplate,
    Adding(Progress),
    /// It is in the domain of the running instance.
    Ready,
    /// The template has it no more, and the instance still does.
    Removing(Progress),
    /// Somebody else gave it to the machine, as this volume of its template: it is no hot-pluggable disk of ours.
    Fixed(String),
}

/// What the machine has of the volume of this claim (PersistentVolumeClaim).
pub fn disk(vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>, claim: &str) -> Disk {
    let running = vmi.filter(|vmi| runs(vmi));
    if let Some(fixed) = vm.and_then(|vm| fixed(volumes(vm), claim)) {
        return Disk::Fixed(fixed);
    }
    let (adding, removing) = vm.map_or((false, false), |vm| requested(vm, claim));
    let is_in_template = vm.is_some_and(|vm| has(volumes(vm), claim) || has(disks(vm), claim));
    let status = running.and_then(|vmi| volume_status(vmi, claim));
    let is_in_spec = running.is_some_and(|vmi| has_claim(instance_volumes(vmi), claim));
    let progress = status.map(progress).unwrap_or_default();
    match (is_in_template || adding, running) {
        (true, _) if removing => Disk::Removing(progress),
        (true, None) => Disk::InTemplate,
        (true, Some(_)) if is_in_spec && progress.phase == "Ready" => Disk::Ready,
        (true, Some(_)) => Disk::Adding(progress),
        (false, _) if is_in_spec || status.is_some() || removing => Disk::Removing(progress),
        (false, _) => Disk::Absent,
    }
}

/// Whether the instance is there and not at its end.
pub fn runs(vmi: &VirtualMachineInstance) -> bool {
    !matches!(vmi.status.as_ref().map(|status| status.phase.as_str()), Some("Succeeded" | "Failed"))
}

/// Whether the instance runs by KubeVirt's own word, so that virt-controller takes new volumes into it.
pub fn is_running(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.as_ref().is_some_and(|status| status.phase == "Running")
}

/// Whether virt-controller has taken the volume from the template into the instance.
pub fn is_taken(vmi: &VirtualMachineInstance, claim: &str) -> bool {
    has_claim(instance_volumes(vmi), claim) || volume_status(vmi, claim).is_some()
}

/// What a running instance has not followed of its machine's template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfollowed {
    /// The template has the volume, and the instance has taken nothing of it.
    Added,
    /// The template has the volume no more, and the instance's spec has it yet.
    Removed,
}

/// Whether the instance follows the template for this volume, where nobody has asked for it by subresources. On hosts
/// with the declarative way it does so in a moment, on others never. One that migrates is left alone.
pub fn unfollowed(
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    claim: &str,
) -> Option<Unfollowed> {
    let vmi = vmi.filter(|vmi| is_running(vmi) && !migrates(vmi))?;
    if requested(vm, claim) != (false, false) || fixed(volumes(vm), claim).is_some() {
        return None;
    }
    let is_in_template = has(volumes(vm), claim) || has(disks(vm), claim);
    match is_in_template {
        true if !is_taken(vmi, claim) => Some(Unfollowed::Added),
        false if has_claim(instance_volumes(vmi), claim) => Some(Unfollowed::Removed),
        _ => None,
    }
}

/// Whether KubeVirt copies this machine's volumes to others, as Harvester asks it to for a migration of storage: while the
/// field stands it plugs no volume in or out.
pub fn copies_volumes(vm: &VirtualMachine) -> bool {
    vm.spec.rest.get("updateVolumesStrategy").and_then(Value::as_str) == Some("Migration")
}

/// Whether the host says that no volume gets on into this instance for now: the machine migrates, or does not run.
pub fn is_blocked(vmi: Option<&VirtualMachineInstance>) -> bool {
    vmi.is_some_and(|vmi| !is_running(vmi) || migrates(vmi))
}

/// Whether the disk has come out of the pod that brings it: from then on it is virt-handler's, and keeps no other waiting.
pub fn is_mounted(progress: &Progress) -> bool {
    matches!(progress.phase.as_str(), "MountedToPod" | "Ready")
}

/// The volumes of an instance that are on their way: into it and not mounted yet, or out of it. One pod on the host brings
/// all of them (docs/contract/csi-driver.md#hot-plug-pod). None where nothing is plugged now: the machine does not run, or
/// migrates.
pub fn on_their_way(
    vm: Option<&VirtualMachine>,
    vmi: Option<&VirtualMachineInstance>,
) -> BTreeMap<String, Direction> {
    let Some(vmi) = vmi.filter(|vmi| is_running(vmi) && !migrates(vmi)) else { return BTreeMap::new() };
    let statuses = array(vmi.status.as_ref().and_then(|status| status.rest.get("volumeStatus")));
    let hot = statuses.iter().filter(|status| status.get("hotplugVolume").is_some());
    let of_vm = vm.into_iter().flat_map(volumes).filter(|volume| is_hotpluggable(volume));
    let names: BTreeSet<_> = hot.chain(of_vm).map(name).collect();
    let direction = |name: &&str| match disk(vm, Some(vmi), name) {
        Disk::Adding(progress) if !is_mounted(&progress) => Some(Direction::In),
        Disk::Removing(_) => Some(Direction::Out),
        _ => None,
    };
    names.iter().filter_map(|name| Some(((*name).to_owned(), direction(name)?))).collect()
}

/// Where a volume is on its way to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

/// Whether a live migration of the instance is under way.
pub fn migrates(vmi: &VirtualMachineInstance) -> bool {
    migration(vmi).is_some()
}

/// The state of a live migration that is under way, by the words that KubeVirt goes by (docs/contract/csi-driver.md#migrates).
/// The state of one that has ended or failed stays, as does that of one that was never begun.
pub fn migration(vmi: &VirtualMachineInstance) -> Option<&MigrationState> {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref())?;
    let says = |key: &str| state.rest.get(key).filter(|value| !value.is_null());
    let is_over =
        state.completed || says("failed") == Some(&Value::Bool(true)) || says("endTimestamp").is_some();
    (is_running(vmi) && says("startTimestamp").is_some() && !is_over).then_some(state)
}

/// How far the volume is in the instance, or on its way.
pub fn how_far(vmi: Option<&VirtualMachineInstance>, claim: &str) -> Progress {
    vmi.and_then(|vmi| volume_status(vmi, claim)).map(progress).unwrap_or_default()
}

/// The claims of which the machine may have something, some of them more than once.
pub fn claims<'a>(
    vm: Option<&'a VirtualMachine>,
    vmi: Option<&'a VirtualMachineInstance>,
) -> impl Iterator<Item = &'a str> {
    let status =
        |vmi: &'a VirtualMachineInstance| array(vmi.status.as_ref()?.rest.get("volumeStatus")).into();
    let requests = |vm: &'a VirtualMachine| array(vm.status.as_ref()?.rest.get("volumeRequests")).into();
    let of_vm = vm.into_iter().flat_map(|vm| volumes(vm).iter().chain(disks(vm)));
    let of_vmi = vmi.into_iter().flat_map(|vmi| instance_volumes(vmi).iter());
    let told = vmi.and_then(status).into_iter().flat_map(<[Value]>::iter);
    let named = of_vm.chain(of_vmi).chain(told).flat_map(|one| [Some(name(one)), claim_of(one)]);
    let asked = vm.and_then(requests).into_iter().flat_map(<[Value]>::iter).flat_map(|request| {
        ["addVolumeOptions", "removeVolumeOptions"].map(|options| request.get(options).map(name))
    });
    named.chain(asked).flatten()
}

/// How many volumes the machine has, and how many of them are hot-pluggable disks of claims.
pub fn count(vm: &VirtualMachine) -> (usize, usize) {
    let all = volumes(vm);
    (all.len().max(disks(vm).len()), all.iter().filter(|volume| is_hotpluggable(volume)).count())
}

/// A JSON patch that adds the volume and its disk, each only where it is missing; `None` where neither is.
pub fn add(vm: &VirtualMachine, claim: &str) -> Option<Value> {
    add_all(vm, &[claim.to_owned()])
}

/// [`add`] for several volumes: all of them, or none.
pub fn add_all(vm: &VirtualMachine, claims: &[String]) -> Option<Value> {
    let volume = |claim: &String| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim, "hotpluggable": true}});
    let disk = |claim: &String| json!({"name": claim, "disk": {"bus": "scsi"}});
    let missing =
        |there: &[Value]| claims.iter().filter(|claim| !has(there, claim)).cloned().collect::<Vec<_>>();
    let mut operations = vec![same_version(vm)];
    append(vm, &mut operations, &VOLUMES, missing(volumes(vm)).iter().map(volume).collect());
    append(vm, &mut operations, &DISKS, missing(disks(vm)).iter().map(disk).collect());
    (operations.len() > 1).then_some(Value::Array(operations))
}

/// A JSON patch that removes the volume and its disk, one element each, and nothing else of the machine: to write
/// whole lists back would drop what this program does not know (docs/contract/csi-driver.md#detach-patch). `None` where
/// neither is there.
pub fn remove(vm: &VirtualMachine, claim: &str) -> Option<Value> {
    let mut operations = vec![same_version(vm)];
    for path in [&VOLUMES[..], &DISKS[..]] {
        let Some(index) = list(vm, path).iter().position(|one| name(one) == claim) else { continue };
        let element = &list(vm, path)[index];
        let path = format!("/spec/{}/{index}", path.join("/"));
        operations.push(json!({"op": "test", "path": path, "value": element}));
        operations.push(json!({"op": "remove", "path": path}));
    }
    (operations.len() > 1).then_some(Value::Array(operations))
}

/// A JSON patch that changes the version of the machine and nothing that runs, so that a write that was decided on an
/// older version fails when it arrives.
pub fn fence(vm: &VirtualMachine, key: &str, value: &str) -> Value {
    let annotations = vm.metadata.annotations.as_ref();
    let mut operations = vec![same_version(vm)];
    if annotations.is_none() {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    let key = key.replace('~', "~0").replace('/', "~1");
    operations.push(json!({"op": "add", "path": format!("/metadata/annotations/{key}"), "value": value}));
    Value::Array(operations)
}

/// Removes what nobody here reads: machines stay in memory while volumes come and go.
pub fn trim_machine(vm: &mut VirtualMachine) {
    trim_metadata(&mut vm.metadata);
    // whether there are annotations at all decides how one is added
    vm.metadata.annotations.iter_mut().for_each(BTreeMap::clear);
    keep(&mut vm.spec.rest, "template", |template| {
        keep(template, "spec", |spec| {
            retain(spec, &["volumes", "domain"]);
            keep(spec, "domain", |domain| {
                retain(domain, &["devices"]);
                keep(domain, "devices", |devices| retain(devices, &["disks"]));
            });
        });
        retain(template, &["spec"]);
    });
    vm.spec.rest.retain(|key, _| key == "template" || key == "updateVolumesStrategy");
    if let Some(status) = &mut vm.status {
        status.rest.retain(|key, _| key == "volumeRequests");
        let requests = status.rest.get_mut("volumeRequests").and_then(Value::as_array_mut);
        for request in requests.into_iter().flatten().filter_map(Value::as_object_mut) {
            retain(request, &["addVolumeOptions", "removeVolumeOptions"]);
            for options in request.values_mut().filter_map(Value::as_object_mut) {
                retain(options, &["name"]);
            }
        }
    }
    let ours: Vec<_> =
        volumes(vm).iter().filter(|it| is_hotpluggable(it)).map(|it| name(it).to_owned()).collect();
    let is_ours = |element: &Value| ours.iter().any(|ours| ours == name(element));
    for path in [&VOLUMES[..], &DISKS[..]] {
        let pointer = format!("/{}", path.join("/"));
        let Some(list) = pointer_mut(&mut vm.spec.rest, &pointer).and_then(Value::as_array_mut) else {
            continue;
        };
        // elements that are never removed are never compared either; a cloud-init volume may be large
        for element in list.iter_mut().filter(|element| !is_ours(element)) {
            if let Some(element) = element.as_object_mut() {
                element
                    .retain(|key, _| ["name", "persistentVolumeClaim", "dataVolume"].contains(&key.as_str()));
            }
        }
    }
}

/// [`trim_machine`] for an instance.
pub fn trim_instance(vmi: &mut VirtualMachineInstance) {
    trim_metadata(&mut vmi.metadata);
    vmi.metadata.annotations = None;
    vmi.spec.networks = Vec::new();
    vmi.spec.rest.retain(|key, _| key == "volumes");
    if let Some(volumes) = vmi.spec.rest.get_mut("volumes").and_then(Value::as_array_mut) {
        for volume in volumes.iter_mut().filter_map(Value::as_object_mut) {
            volume.retain(|key, _| ["name", "persistentVolumeClaim", "dataVolume"].contains(&key.as_str()));
        }
    }
    if let Some(status) = &mut vmi.status {
        status.interfaces = Vec::new();
        status.conditions = Vec::new();
        status.rest.retain(|key, _| key == "volumeStatus");
        if let Some(volumes) = status.rest.get_mut("volumeStatus").and_then(Value::as_array_mut) {
            trim_volume_statuses(volumes);
        }
        for text in [&mut status.phase, &mut status.node_name] {
            if text.len() > TEXT {
                *text = String::new();
            }
        }
        if let Some(migration) = &mut status.migration_state {
            let is_kept = |key: &str, value: &Value| {
                MIGRATION.contains(&key) && value.as_str().is_none_or(|text| text.len() <= TEXT)
            };
            migration.rest.retain(|key, value| is_kept(key, value));
        }
    }
}

/// Keeps of them what [`progress`] tells.
fn trim_volume_statuses(volumes: &mut Vec<Value>) {
    volumes.truncate(MOST_VOLUME_STATUSES);
    volumes.shrink_to_fit();
    for volume in volumes.iter_mut().filter_map(Value::as_object_mut) {
        retain(volume, &["name", "phase", "reason", "message", "hotplugVolume"]);
        volume.retain(|key, value| {
            let longest = if key == "message" { MESSAGE } else { TEXT };
            value.as_str().is_none_or(|text| text.len() <= longest)
        });
        keep(volume, "hotplugVolume", |pod| {
            pod.retain(|key, value| {
                key == "attachPodName" && value.as_str().is_some_and(|name| name.len() <= TEXT)
            });
        });
    }
}

/// A disk that is on its way out has one, too.
const MOST_VOLUME_STATUSES: usize = 4 * MOST_VOLUMES;
/// Bytes of what the host says of a volume.
const MESSAGE: usize = 1024;
/// What [`migration`], and the doubts about one that does not end, go by.
const MIGRATION: [&str; 4] = ["startTimestamp", "endTimestamp", "failed", "migrationUid"];
/// Bytes of any other text in a status: those of real ones are shorter.
const TEXT: usize = 253;

fn trim_metadata(metadata: &mut kube::api::ObjectMeta) {
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == labels::GUEST_CLUSTER);
    }
    metadata.owner_references = None;
    metadata.finalizers = None;
}

fn retain(map: &mut Map<String, Value>, keys: &[&str]) {
    map.retain(|key, _| keys.contains(&key.as_str()));
}

fn keep(map: &mut Map<String, Value>, key: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    if let Some(inner) = map.get_mut(key).and_then(Value::as_object_mut) {
        change(inner);
    }
}

fn pointer_mut<'a>(rest: &'a mut Map<String, Value>, pointer: &str) -> Option<&'a mut Value> {
    let (first, inner) = pointer.trim_start_matches('/').split_once('/')?;
    rest.get_mut(first)?.pointer_mut(&format!("/{inner}"))
}

const VOLUMES: [&str; 3] = ["template", "spec", "volumes"];
const DISKS: [&str; 5] = ["template", "spec", "domain", "devices", "disks"];

fn volumes(vm: &VirtualMachine) -> &[Value] {
    list(vm, &VOLUMES)
}

fn disks(vm: &VirtualMachine) -> &[Value] {
    list(vm, &DISKS)
}

fn list<'a>(vm: &'a VirtualMachine, path: &[&str]) -> &'a [Value] {
    let [first, inner @ ..] = path else { return &[] };
    let found = inner.iter().try_fold(vm.spec.rest.get(*first), |value, key| Some(value?.get(key)));
    array(found.flatten())
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn instance_volumes(vmi: &VirtualMachineInstance) -> &[Value] {
    array(vmi.spec.rest.get("volumes"))
}

fn name(element: &Value) -> &str {
    text(element, "name")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn has(elements: &[Value], claim: &str) -> bool {
    elements.iter().any(|element| name(element) == claim)
}

/// Whether a volume is of this claim, under whatever name. A DataVolume has a claim of its own name.
fn has_claim(volumes: &[Value], claim: &str) -> bool {
    volumes.iter().any(|volume| name(volume) == claim || claim_of(volume) == Some(claim))
}

fn claim_of(volume: &Value) -> Option<&str> {
    let claim = volume.get("persistentVolumeClaim").map(|source| text(source, "claimName"));
    claim.or_else(|| volume.get("dataVolume").map(|source| text(source, "name")))
}

fn is_hotpluggable(volume: &Value) -> bool {
    volume.pointer("/persistentVolumeClaim/hotpluggable") == Some(&Value::Bool(true))
}

/// The volume that has this claim or its name, and is none that this driver adds.
fn fixed(volumes: &[Value], claim: &str) -> Option<String> {
    let is_ours =
        |volume: &Value| name(volume) == claim && claim_of(volume) == Some(claim) && is_hotpluggable(volume);
    let fixed = volumes
        .iter()
        .find(|volume| (name(volume) == claim || claim_of(volume) == Some(claim)) && !is_ours(volume));
    fixed.map(|volume| name(volume).to_owned())
}

/// What the subresources `addvolume` and `removevolume` have queued for virt-controller: whether the volume is to be
/// added, and whether it is to be removed.
fn requested(vm: &VirtualMachine, claim: &str) -> (bool, bool) {
    let requests = array(vm.status.as_ref().and_then(|status| status.rest.get("volumeRequests")));
    let is_queued = |options: &str| {
        requests.iter().any(|request| request.get(options).is_some_and(|options| name(options) == claim))
    };
    (is_queued("addVolumeOptions"), is_queued("removeVolumeOptions"))
}

fn volume_status<'a>(vmi: &'a VirtualMachineInstance, claim: &str) -> Option<&'a Value> {
    let status = vmi.status.as_ref()?;
    array(status.rest.get("volumeStatus")).iter().find(|one| name(one) == claim)
}

fn progress(status: &Value) -> Progress {
    let pod = status.pointer("/hotplugVolume/attachPodName").and_then(Value::as_str).unwrap_or_default();
    Progress {
        phase: text(status, "phase").to_owned(),
        reason: text(status, "reason").to_owned(),
        message: text(status, "message").to_owned(),
        pod: pod.to_owned(),
    }
}

fn same_version(vm: &VirtualMachine) -> Value {
    let version = vm.metadata.resource_version.as_deref().unwrap_or_default();
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})
}

/// Adds elements at the end of a list, and what is missing above it.
fn append(vm: &VirtualMachine, operations: &mut Vec<Value>, path: &[&str], elements: Vec<Value>) {
    if elements.is_empty() {
        return;
    }
    let root = Value::Object(vm.spec.rest.clone());
    let depth = (1..=path.len()).take_while(|depth| {
        root.pointer(&format!("/{}", path[..*depth].join("/"))).is_some_and(|found| !found.is_null())
    });
    let there = depth.count();
    if there == path.len() {
        let path = format!("/spec/{}/-", path.join("/"));
        operations
            .extend(elements.into_iter().map(|element| json!({"op": "add", "path": path, "value": element})));
        return;
    }
    let mut value = Value::Array(elements);
    for missing in path[there + 1..].iter().rev() {
        value = json!({*missing: value});
    }
    let at = path[..=there].join("/");
    operations.push(json!({"op": "add", "path": format!("/spec/{at}"), "value": value}));
}

#[cfg(test)]
mod tests;
