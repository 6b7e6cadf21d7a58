//! What people hear: one Event on the guest's PersistentVolumeClaim and one on each VolumeAttachment for each state, and
//! not for each try.

use std::collections::HashMap;

use controller_kit::{PendingEvent, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    decide::{Blocked, Seen, Step},
    join::{HostState, Volume},
};
use crate::{
    attach::{Pod, Waiting, hotplug::Disk, why_not},
    host,
};

/// A volume is not where a VolumeAttachment wants it.
const NOT_ATTACHED: &str = "VolumeNotAttached";
/// A volume does not leave a machine.
const NOT_DETACHED: &str = "VolumeNotDetached";
/// A volume is in two machines.
const IN_TWO: &str = "VolumeInTwoMachines";

/// What was said last of each VolumeAttachment.
#[derive(Default)]
pub(super) struct Told(HashMap<String, PendingEvent>);

impl Told {
    /// All is well: the next time it is said again.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    pub(super) fn tell(
        &mut self,
        recorder: &Recorder,
        volume: &Volume,
        attachments: &[String],
        event: &PendingEvent,
    ) {
        let mut is_new = false;
        for name in attachments {
            let Some(attachment) = volume.attachments.iter().find(|one| one.name == *name) else { continue };
            if self.0.get(name) == Some(event) {
                continue;
            }
            is_new |= !self.0.values().any(|told| told == event);
            self.0.insert(name.clone(), event.clone());
            let about = ObjectReference {
                api_version: Some("storage.k8s.io/v1".to_owned()),
                kind: Some("VolumeAttachment".to_owned()),
                name: Some(name.clone()),
                uid: Some(attachment.uid.clone()),
                ..ObjectReference::default()
            };
            recorder.publish(&about, event);
        }
        for owner in volume.owners.iter().filter(|_| is_new) {
            let about = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                resource_version: None,
                ..owner.clone()
            };
            recorder.publish(&about, event);
        }
    }
}

/// The host is at work, and late.
pub(super) fn awaited(
    names: &host::Host,
    volume: &Volume,
    host: &HostState,
    seen: &Seen,
    machine: &str,
) -> PendingEvent {
    let (vm, vmi) = host.machine(machine);
    let pod = &Pod::of(vm, vmi, volume.name.as_str(), |claim| host.claim_phase(claim));
    let why = |doing, progress| {
        why_not(names, &Waiting { volume: &volume.name, doing, machine, progress, vm, vmi, pod })
    };
    match seen.place(machine).map(|place| &place.disk) {
        Some(Disk::Removing(progress)) => PendingEvent::warning(NOT_DETACHED, why("is still in", progress)),
        Some(Disk::Adding(progress)) => PendingEvent::warning(NOT_ATTACHED, why("is not in", progress)),
        _ => PendingEvent::warning(
            NOT_ATTACHED,
            format!("volume {} is not in {} yet", volume.name, names.machine_name(machine)),
        ),
    }
}

/// A call waits, or was refused.
pub(super) fn waits(step: &Step, why: &str) -> PendingEvent {
    let reason = if matches!(step, Step::Detach { .. }) { NOT_DETACHED } else { NOT_ATTACHED };
    PendingEvent::warning(reason, why)
}

/// The external attacher does nothing.
pub(super) fn deaf(volume: &Volume) -> PendingEvent {
    let why = format!(
        "volume {} is as this VolumeAttachment wants it, and the external attacher does not note it: look at the \
         container csi-attacher of Deployment harvester-csi-driver-controllers",
        volume.name
    );
    PendingEvent::warning(NOT_ATTACHED, why)
}

pub(super) fn blocked(names: &host::Host, volume: &Volume, why: &Blocked) -> PendingEvent {
    let name = &volume.name;
    let (reason, why) = match why {
        Blocked::InUse { machine, by } => (
            NOT_ATTACHED,
            format!(
                "volume {name} is in {} for VolumeAttachment {by}, and in one machine at a time: end the Pod there, or \
                 run this one on that node",
                names.machine_name(machine)
            ),
        ),
        Blocked::InTwoMachines { machines } => {
            let machines: Vec<_> = machines.iter().map(|machine| names.machine_name(machine)).collect();
            (
                IN_TWO,
                format!(
                    "volume {name} is in {}, and each has a VolumeAttachment: end the Pod on one of the nodes, and check \
                     the file system",
                    machines.join(" and ")
                ),
            )
        }
        Blocked::Elsewhere { machine } => (
            NOT_ATTACHED,
            format!(
                "volume {name} is in {}, which no CSINode of this cluster names: end what uses it there, then remove the \
                 volume",
                names.machine_name(machine)
            ),
        ),
        Blocked::Fixed { machine, volume } => (
            NOT_ATTACHED,
            format!(
                "{} has volume {name} as {volume:?}, which this driver did not add: remove it from the machine by hand",
                names.machine_name(machine)
            ),
        ),
        Blocked::NoMachine { machine, node } => (
            NOT_ATTACHED,
            format!(
                "there is no {}, which CSINode {node} names as its machine: if it is gone for good, delete Node {node}; if \
                 {node} is no machine of this Harvester, keep Pods with this volume off it; if other machines are missing \
                 too, look at server and namespace of the driver's kubeconfig",
                names.machine_name(machine)
            ),
        ),
        Blocked::MachineLeaves { machine } => (
            NOT_ATTACHED,
            format!("{} is being deleted: the Pod needs another node", names.machine_name(machine)),
        ),
        Blocked::NoNodeId { node } => (
            NOT_ATTACHED,
            format!(
                "nothing says which machine Node {node} is: its CSINode has no driver driver.harvesterhci.io, so look \
                 at the Pod of the driver on that node"
            ),
        ),
        Blocked::NoClaim => (
            NOT_ATTACHED,
            format!(
                "there is no {}: look at the namespace of the driver's kubeconfig; if the claim was deleted, restore a backup",
                names.claim_name(name)
            ),
        ),
        Blocked::ClaimLeaves => {
            (NOT_ATTACHED, format!("{} is being deleted: wait for a new volume", names.claim_name(name)))
        }
    };
    PendingEvent::warning(reason, why)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{host::reach::unreached, volume::name::HostName};

    const VM: &str = "VirtualMachine default/vm-1 on the host";
    const KUBECONFIG: &str = "the driver's kubeconfig";

    fn machine() -> String {
        "vm-1".to_owned()
    }

    // a healthy Node may have a machine that the driver looks for in another namespace
    #[rstest]
    #[case::no_machine(
        Blocked::NoMachine { machine: machine(), node: "node-1".to_owned() },
        &["there is no", VM, "which CSINode node-1 names", "if it is gone for good, delete Node node-1",
            "if node-1 is no machine of this Harvester, keep Pods with this volume off it", KUBECONFIG]
    )]
    #[case::elsewhere(
        Blocked::Elsewhere { machine: machine() },
        &["volume pvc-1 is in", VM, "which no CSINode of this cluster names", "end what uses it there, then remove"]
    )]
    #[case::no_claim(
        Blocked::NoClaim,
        &["there is no PersistentVolumeClaim default/pvc-1", KUBECONFIG, "if the claim was deleted, restore a backup"]
    )]
    #[case::claim_leaves(Blocked::ClaimLeaves, &["PersistentVolumeClaim default/pvc-1", "wait for a new volume"])]
    #[case::machine_leaves(Blocked::MachineLeaves { machine: machine() }, &[VM, "the Pod needs another node"])]
    #[case::no_node_id(Blocked::NoNodeId { node: "node-1".to_owned() }, &["Node node-1", "its CSINode has no driver"])]
    #[case::in_use(
        Blocked::InUse { machine: machine(), by: "csi-2".to_owned() },
        &["volume pvc-1", VM, "VolumeAttachment csi-2", "end the Pod there"]
    )]
    #[case::in_two(
        Blocked::InTwoMachines { machines: vec![machine(), "vm-2".to_owned()] },
        &["volume pvc-1", VM, "vm-2", "check the file system"]
    )]
    #[case::fixed(
        Blocked::Fixed { machine: machine(), volume: "data".to_owned() },
        &[VM, "volume pvc-1 as \"data\"", "remove it from the machine by hand"]
    )]
    #[tokio::test]
    async fn what_blocks_a_volume_is_said_with_what_helps_and_condemns_no_node(
        #[case] why: Blocked,
        #[case] parts: &[&str],
    ) {
        let name = HostName::from_handle("pvc-1").unwrap();
        let volume = Volume { name, attachments: vec![], owners: vec![] };
        let event = blocked(&unreached("nobody asks it"), &volume, &why);
        for part in parts {
            assert!(event.message.contains(part), "{part}: {}", event.message);
        }
    }
}
