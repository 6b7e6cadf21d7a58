//! Joins what the guest has (VolumeAttachments, PersistentVolumes, CSINodes) with what the host has. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use harvester_api::{VirtualMachine, VirtualMachineInstance, labels, names::CSI_DRIVER};
use k8s_openapi::api::{
    core::v1::{
        CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeSpec,
    },
    storage::v1::{CSINode, VolumeAttachment, VolumeAttachmentStatus},
};
use kube::{ResourceExt, api::ObjectMeta};

use super::decide::{Attachment, Place, Seen, There};
use crate::{
    attach::{
        ClaimPhase,
        hotplug::{self, Disk},
        ownership::Recorded,
        recorded,
    },
    guest::NODE_ID,
    node_monitor::labels::NOBODYS,
    volume::name::HostName,
};

/// The access modes of a volume that is in one machine at a time.
const ONE_NODE: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

/// The guest, of one moment.
#[derive(Default)]
pub(super) struct GuestState {
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    pub(super) nodes: Vec<Arc<CSINode>>,
}

/// A machine and its running instance.
type Machine = (Option<Arc<VirtualMachine>>, Option<Arc<VirtualMachineInstance>>);

/// The host, of one moment.
pub(super) struct HostState {
    machines: BTreeMap<String, Machine>,
    claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    with: HashMap<String, BTreeSet<String>>,
}

/// A volume that some VolumeAttachment names.
pub(super) struct Volume {
    pub(super) name: HostName,
    pub(super) attachments: Vec<Attachment>,
    /// The claims (PersistentVolumeClaims) of the guest.
    pub(super) owners: Vec<ObjectReference>,
}

impl GuestState {
    /// The disks that these VolumeAttachments are for, by their handles.
    pub(super) fn disks<'a>(
        &self,
        attachments: impl IntoIterator<Item = &'a VolumeAttachment>,
    ) -> BTreeMap<String, Volume> {
        let volumes: HashMap<_, _> = self
            .volumes
            .iter()
            .filter_map(|one| Some((one.metadata.name.as_deref()?, one.as_ref())))
            .collect();
        let nodes: HashMap<_, _> = self
            .nodes
            .iter()
            .filter_map(|node| Some((node.metadata.name.as_deref()?, node_id(node)?)))
            .collect();
        let mut found = BTreeMap::new();
        for attachment in attachments.into_iter().filter(|one| one.spec.attacher == CSI_DRIVER) {
            let Some(volume) = attachment.spec.source.persistent_volume_name.as_deref() else { continue };
            let Some(volume) = volumes.get(volume) else { continue };
            let Some((handle, name)) = disk(volume) else { continue };
            let entry = found.entry(handle.to_owned()).or_insert_with(|| Volume {
                name,
                attachments: vec![],
                owners: vec![],
            });
            entry.attachments.push(self::attachment(attachment, &nodes));
            let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
            entry.owners.extend(owner.filter(|owner| !entry.owners.contains(owner)));
        }
        for volume in found.values_mut() {
            volume.attachments.sort_by(|a, b| a.name.cmp(&b.name));
        }
        found
    }

    /// The names of this machine's Nodes.
    pub(super) fn nodes_of(&self, machine: &str) -> impl Iterator<Item = &str> {
        nodes_of(self.nodes.iter().map(AsRef::as_ref), machine)
    }

    /// The machines of this cluster's nodes.
    pub(super) fn machines(&self) -> BTreeSet<String> {
        self.nodes.iter().filter_map(|node| node_id(node)).map(str::to_owned).collect()
    }
}

/// The names of this machine's Nodes.
pub(super) fn nodes_of<'a>(
    nodes: impl IntoIterator<Item = &'a CSINode>,
    machine: &str,
) -> impl Iterator<Item = &'a str> {
    let nodes = nodes.into_iter().filter(move |node| node_id(node) == Some(machine));
    nodes.filter_map(|node| node.metadata.name.as_deref())
}

fn node_id(node: &CSINode) -> Option<&str> {
    let driver = node.spec.drivers.iter().find(|driver| driver.name == CSI_DRIVER)?;
    Some(driver.node_id.as_str()).filter(|id| !id.is_empty())
}

/// Keeps what is read here: a guest may have thousands of each kind, with texts of any length that anybody wrote.
pub(super) fn trim_attachment(attachment: &mut VolumeAttachment) {
    trim_metadata(&mut attachment.metadata, &[NODE_ID]);
    if let Some(status) = &mut attachment.status {
        *status = VolumeAttachmentStatus { attached: status.attached, ..Default::default() };
    }
    let source = &mut attachment.spec.source;
    source.inline_volume_spec = None;
}

/// The same of a PersistentVolume; those of other drivers keep their names alone.
pub(super) fn trim_volume(volume: &mut PersistentVolume) {
    trim_metadata(&mut volume.metadata, &[]);
    volume.status = None;
    let spec = volume.spec.take().unwrap_or_default();
    volume.spec = spec.csi.filter(|csi| csi.driver == CSI_DRIVER).map(|csi| PersistentVolumeSpec {
        access_modes: spec.access_modes,
        claim_ref: spec.claim_ref,
        csi: Some(CSIPersistentVolumeSource {
            driver: csi.driver,
            volume_handle: csi.volume_handle,
            ..CSIPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    });
}

/// The same of a CSINode.
pub(super) fn trim_node(node: &mut CSINode) {
    trim_metadata(&mut node.metadata, &[]);
    node.spec.drivers.retain(|driver| driver.name == CSI_DRIVER);
}

fn trim_metadata(metadata: &mut ObjectMeta, annotations: &[&str]) {
    metadata.labels = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(all) = &mut metadata.annotations {
        all.retain(|key, _| annotations.contains(&key.as_str()));
    }
}

/// The handle, where the volume is a disk of ours.
fn disk(volume: &PersistentVolume) -> Option<(&str, HostName)> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER)?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let name = HostName::from_handle(&csi.volume_handle).filter(HostName::fits_a_disk)?;
    let is_disk = !modes.is_empty() && modes.iter().all(|mode| ONE_NODE.contains(&mode.as_str()));
    is_disk.then_some((csi.volume_handle.as_str(), name))
}

fn attachment(attachment: &VolumeAttachment, nodes: &HashMap<&str, &str>) -> Attachment {
    let noted = attachment.annotations().get(NODE_ID).map(String::as_str);
    let machine = nodes.get(attachment.spec.node_name.as_str()).copied().or(noted);
    // what no machine can be called becomes part of no request's path
    let machine = machine.filter(|name| HostName::from_handle(name).is_some());
    let created = attachment.metadata.creation_timestamp.as_ref();
    Attachment {
        name: attachment.name_any(),
        uid: attachment.uid().unwrap_or_default(),
        node: attachment.spec.node_name.clone(),
        machine: machine.map(str::to_owned),
        is_attached: attachment.status.as_ref().is_some_and(|status| status.attached),
        is_leaving: attachment.metadata.deletion_timestamp.is_some(),
        created: created.map_or(0, |time| time.0.as_second()),
    }
}

impl HostState {
    pub(super) fn of(
        machines: Vec<Arc<VirtualMachine>>,
        instances: Vec<Arc<VirtualMachineInstance>>,
        claims: Vec<Arc<PersistentVolumeClaim>>,
    ) -> Self {
        let mut all: BTreeMap<String, Machine> = BTreeMap::new();
        for vm in machines {
            let name = vm.name_any();
            all.entry(name).or_default().0 = Some(vm);
        }
        for vmi in instances {
            let name = vmi.name_any();
            all.entry(name).or_default().1 = Some(vmi);
        }
        let mut with: HashMap<String, BTreeSet<String>> = HashMap::new();
        for (name, (vm, vmi)) in &all {
            for claim in hotplug::claims(vm.as_deref(), vmi.as_deref()) {
                match with.get_mut(claim) {
                    Some(names) => drop(names.insert(name.clone())),
                    None => drop(with.insert(claim.to_owned(), BTreeSet::from([name.clone()]))),
                }
            }
        }
        let claims = claims.into_iter().map(|claim| (claim.name_any(), claim)).collect();
        Self { machines: all, claims, with }
    }

    pub(super) fn machine(&self, name: &str) -> (Option<&VirtualMachine>, Option<&VirtualMachineInstance>) {
        self.machines.get(name).map_or((None, None), |(vm, vmi)| (vm.as_deref(), vmi.as_deref()))
    }

    pub(super) fn claim_phase(&self, claim: &str) -> ClaimPhase {
        ClaimPhase::of(self.claims.get(claim).map(AsRef::as_ref))
    }

    /// The machines of the guest cluster of which these are nodes. A node whose driver just restarts has no ID in its
    /// CSINode: its machine has the cluster's label still.
    pub(super) fn machines_beside(&self, nodes: &BTreeSet<String>) -> BTreeSet<String> {
        let label = |vm: &VirtualMachine| vm.labels().get(labels::GUEST_CLUSTER).cloned();
        let of_node = |name: &String| self.machines.get(name)?.0.as_deref().and_then(label);
        let clusters: BTreeSet<_> = nodes.iter().filter_map(of_node).filter(|name| name != NOBODYS).collect();
        let labelled = self.machines.iter().filter(|(_, (vm, _))| {
            vm.as_deref().and_then(label).is_some_and(|cluster| clusters.contains(&cluster))
        });
        labelled.map(|(name, _)| name.clone()).chain(nodes.iter().cloned()).collect()
    }

    /// All that is seen of the volume; how long is not said.
    pub(super) fn seen(&self, volume: &Volume, nodes: &BTreeSet<String>) -> Seen {
        let handle = volume.name.as_str();
        let wanted = volume.attachments.iter().filter_map(|one| one.machine.clone());
        let names: BTreeSet<_> = self.with.get(handle).into_iter().flatten().cloned().chain(wanted).collect();
        let claim = self.claims.get(handle);
        let mut recorded = claim.map_or(Recorded::Nothing, |claim| recorded(claim));
        if let Recorded::Ownership(ownership) = &mut recorded {
            // each try has another one, and is no other state
            ownership.holder.clear();
        }
        Seen {
            attachments: volume.attachments.clone(),
            places: names.into_iter().map(|name| self.place(name, handle, nodes)).collect(),
            claim: there(claim.map(|claim| &claim.metadata)),
            recorded,
            unchanged_for: Duration::ZERO,
            is_ours: false,
        }
    }

    fn place(&self, name: String, handle: &str, nodes: &BTreeSet<String>) -> Place {
        let (vm, vmi) = self.machines.get(&name).cloned().unwrap_or_default();
        let disk = hotplug::disk(vm.as_deref(), vmi.as_deref(), handle);
        Place {
            uid: vm.as_ref().and_then(|vm| vm.uid()).unwrap_or_default(),
            machine: there(vm.as_ref().map(|vm| &vm.metadata)),
            is_taken: vmi.is_some_and(|vmi| disk != Disk::Absent && hotplug::is_taken(&vmi, handle)),
            disk,
            is_node: nodes.contains(&name),
            name,
        }
    }
}

fn there(metadata: Option<&ObjectMeta>) -> There {
    match metadata {
        None => There::Missing,
        Some(metadata) if metadata.deletion_timestamp.is_some() => There::Leaving,
        Some(_) => There::Yes,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn of_what_a_guest_wrote_a_cache_keeps_what_is_read_and_that_says_the_same() {
        let long = "x".repeat(100_000);
        let mut attachment: VolumeAttachment = read(json!({
            "metadata": {"name": "csi-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [long],
                "labels": {"a": long}, "annotations": {NODE_ID: "vm-1", "other": long}},
            "spec": {"attacher": CSI_DRIVER, "nodeName": "node-a", "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": true, "attachError": {"message": long}, "attachmentMetadata": {"a": long}}}));
        let mut volume: PersistentVolume = read(json!({
            "metadata": {"name": "pv", "annotations": {"a": long}},
            "spec": {"accessModes": ["ReadWriteOnce"], "claimRef": {"name": "data", "namespace": "team"},
                "mountOptions": [long], "csi": {"driver": CSI_DRIVER, "volumeHandle": "pvc-1",
                    "volumeAttributes": {"a": long}, "fsType": "ext4"}},
            "status": {"message": long}}));
        let mut other: PersistentVolume = read(json!({"metadata": {"name": "pv-2"},
            "spec": {"csi": {"driver": "other", "volumeHandle": long}}}));
        let mut node: CSINode =
            read(json!({"metadata": {"name": "node-a", "annotations": {"a": long}}, "spec": {"drivers":
            [{"name": CSI_DRIVER, "nodeID": "vm-1"}, {"name": long, "nodeID": long}]}}));
        let of = |attachment: &VolumeAttachment, volume: &PersistentVolume, node: &CSINode| {
            let guest =
                GuestState { volumes: vec![Arc::new(volume.clone())], nodes: vec![Arc::new(node.clone())] };
            let mut disks = guest.disks([attachment]);
            let disk = disks.remove("pvc-1").unwrap();
            (disk.attachments, disk.owners, guest.machines())
        };
        let whole = of(&attachment, &volume, &node);
        trim_attachment(&mut attachment);
        trim_volume(&mut volume);
        trim_volume(&mut other);
        trim_node(&mut node);
        assert_eq!(of(&attachment, &volume, &node), whole);
        let kept = json!([attachment, volume, other, node]).to_string();
        assert!(kept.len() < 2_000, "{kept}");
    }
}
